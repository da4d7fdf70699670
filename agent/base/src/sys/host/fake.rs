//! A fake machine for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{Gpu, Host, numa::CpuSet};

/// A machine that has only what a test gives it.
#[derive(Clone, Debug, Default)]
pub struct FakeHost {
    /// Its environment.
    pub env: BTreeMap<String, OsString>,
    /// The number of its processors.
    pub cpus: u32,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// The contents of its small files.
    pub contents: BTreeMap<PathBuf, String>,
    /// The folders of the program.
    pub program_folders: Vec<PathBuf>,
    /// Its executable files.
    pub programs: Vec<PathBuf>,
    /// Its files that are only readable.
    pub files: Vec<PathBuf>,
    /// Its folders on a network file system.
    pub shared: Vec<PathBuf>,
    /// The program that has started this process.
    pub parent: Option<String>,
}

impl FakeHost {
    /// Adds a small file.
    pub fn put(&mut self, path: &str, text: &str) {
        self.contents.insert(path.into(), text.to_owned());
    }
}

impl Host for FakeHost {
    fn env(&self, name: &str) -> Option<OsString> {
        self.env.get(name).cloned()
    }

    fn cpu_set(&self) -> CpuSet {
        (0..self.cpus).collect()
    }

    fn gpus(&self) -> Vec<Gpu> {
        self.gpus.clone()
    }

    fn read(&self, path: &Path) -> Option<String> {
        self.contents.get(path).cloned()
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let below = self.contents.keys().filter_map(|file| file.strip_prefix(path).ok());
        let names = below.filter_map(|rest| rest.iter().next()?.to_str().map(str::to_owned));
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    fn program_folders(&self) -> Vec<PathBuf> {
        self.program_folders.clone()
    }

    fn current_dir(&self) -> PathBuf {
        "/here".into()
    }

    fn is_executable(&self, path: &Path) -> bool {
        self.programs.iter().any(|program| program == path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.is_readable_file(path)
    }

    fn ask_pmi(&self, _: u32, _: Option<String>) -> Option<(String, String)> {
        None
    }

    fn ancestor_without(&self, _: &str) -> u32 {
        4711
    }

    fn parent_name(&self) -> Option<String> {
        self.parent.clone()
    }

    fn is_on_network(&self, path: &Path) -> bool {
        self.shared.iter().any(|folder| path.starts_with(folder))
    }

    fn is_readable_file(&self, path: &Path) -> bool {
        self.is_executable(path)
            || self.contents.contains_key(path)
            || self.files.iter().any(|file| file == path)
    }
}
