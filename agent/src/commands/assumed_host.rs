//! Pretends a host that has everything, so that the job's flags can be checked before any host is reached.
//!
//! Checks that depend on a host are left to that host.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use ragent_base::sys::host::{Gpu, Host, numa::CpuSet};

/// A host that has everything, with the variables that agents are given.
pub(crate) struct AssumedHost<'a>(pub(crate) &'a [(String, OsString)]);

/// Variables whose meaning depends on the host.
const OF_A_HOST: [&str; 3] = ["PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_VIRTUAL_LOCAL_RANK"];

impl Host for AssumedHost<'_> {
    fn env(&self, name: &str) -> Option<OsString> {
        let is_flag = name.starts_with("PET_") || name.starts_with("TORCH");
        // The hosts do not have the variables of the launcher that started this process, nor the devices of this machine.
        if !is_flag || OF_A_HOST.contains(&name) {
            return None;
        }
        // The last one counts, as in the agents.
        let given = self.0.iter().rev().find(|(given, _)| given == name);
        given.map(|(_, value)| value.clone())
    }

    fn cpu_set(&self) -> CpuSet {
        CpuSet::from([0])
    }

    fn gpus(&self) -> Vec<Gpu> {
        Vec::new()
    }

    fn read(&self, _: &Path) -> Option<String> {
        None
    }

    fn list(&self, _: &Path) -> Vec<String> {
        Vec::new()
    }

    fn program_folders(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn current_dir(&self) -> PathBuf {
        "/".into()
    }

    fn is_executable(&self, _: &Path) -> bool {
        true
    }

    fn exists(&self, _: &Path) -> bool {
        true
    }

    fn is_on_network(&self, _: &Path) -> bool {
        false
    }

    fn is_readable_file(&self, _: &Path) -> bool {
        true
    }

    fn ask_pmi(&self, _: u32, _: Option<String>) -> Option<(String, String)> {
        None
    }

    fn ancestor_without(&self, _: &str) -> u32 {
        0
    }

    fn parent_name(&self) -> Option<String> {
        None
    }
}
