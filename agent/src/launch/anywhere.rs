//! A machine that has everything: what a job's flags mean is checked here before any host is reached,
//! but what only the hosts can know is left to them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{
    host::{Gpu, Host, numa::CpuSet},
    job_spec::JobSpecError,
};

/// A machine that has everything.
pub(super) struct Anywhere;

impl Host for Anywhere {
    fn env(&self, _: &str) -> Option<OsString> {
        None
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

    fn parent(&self) -> u32 {
        0
    }
}

/// Whether a mistake is one on every machine, and not a lack of this one.
pub(super) fn holds_anywhere(error: &JobSpecError) -> bool {
    !matches!(
        error,
        JobSpecError::NoAccelerator { .. }
            | JobSpecError::DeepSpeedConfig { .. }
            | JobSpecError::Interface { .. }
            | JobSpecError::Numa { .. }
            | JobSpecError::TooFewDevices { .. }
            | JobSpecError::LogDir { .. }
            | JobSpecError::OutputFile { .. }
            | JobSpecError::OpenFiles { .. }
    )
}
