//! A system that fails: `faults.c`, between ragent and the C library.

use std::{fs, path::PathBuf, process::Command};

use super::{Sandbox, Start, is_there};

/// What goes wrong for the agents that are given it.
#[derive(Debug)]
pub struct Faults {
    folder: PathBuf,
    library: PathBuf,
}

impl Faults {
    /// Nothing goes wrong yet; none where there is no C compiler, with the reason said.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        if !is_there("cc") {
            return None;
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/support/faults.c");
        let (folder, library) = (sandbox.path("faults"), sandbox.path("faults.so"));
        fs::create_dir(&folder).expect("a fresh folder");
        fs::create_dir(sandbox.path("slow")).expect("a fresh folder");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        let built = cc.arg("-ldl").status();
        assert!(built.is_ok_and(|status| status.success()), "{source} cannot be built");
        Some(Self { folder, library })
    }

    /// An agent to which these things happen.
    pub fn happen_to(&self, start: Start) -> Start {
        start.env("LD_PRELOAD", &self.library).env("FAULTS", &self.folder)
    }

    /// Lets something go wrong from now on.
    pub fn set(&self, name: &str, number: i64) {
        // Renamed, so that nobody reads half of it.
        let draft = self.folder.join("draft");
        fs::write(&draft, number.to_string()).expect("our folder");
        fs::rename(draft, self.folder.join(name)).expect("our folder");
    }

    /// Whether all that was to go wrong has.
    pub fn is_used_up(&self, name: &str) -> bool {
        fs::read_to_string(self.folder.join(name)).is_ok_and(|text| text == "0")
    }
}
