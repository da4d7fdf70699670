//! A machine that has everything: what a job's flags mean is checked here before any host is reached,
//! but what only the hosts can know is left to them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::variables::Variable;
use crate::host::{Gpu, Host, numa::CpuSet};

/// A machine that has everything, and the variables that agents are given.
pub(crate) struct Anywhere<'a>(pub(crate) &'a [Variable]);

/// What depends on the host that it is given to.
const OF_A_HOST: [&str; 3] = ["PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_VIRTUAL_LOCAL_RANK"];

impl Host for Anywhere<'_> {
    fn env(&self, name: &str) -> Option<OsString> {
        let is_flag = name.starts_with("PET_") || name.starts_with("TORCH");
        // Who has started this process says nothing of the hosts, and these have devices of their own.
        if !is_flag || OF_A_HOST.contains(&name) {
            return None;
        }
        // The last one wins, as with the agents.
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

    fn current_dir(&self) -> PathBuf {
        "/".into()
    }

    fn is_executable(&self, _: &Path) -> bool {
        true
    }

    fn exists(&self, _: &Path) -> bool {
        true
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
}
