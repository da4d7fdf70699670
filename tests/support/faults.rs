//! Makes system calls fail, by `faults.c` between ragent and the C library.

use std::{fs, path::PathBuf, process::Command};

use super::{Sandbox, Start, is_there};

/// The failures that are injected into agents.
#[derive(Debug)]
pub struct Faults {
    folder: PathBuf,
    library: PathBuf,
}

impl Faults {
    /// Builds the library, without any failure yet. Without a C compiler, prints why and returns `None`.
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

    /// Returns the agent with these failures injected.
    pub fn happen_to(&self, start: Start) -> Start {
        start.env("LD_PRELOAD", &self.library).env("FAULTS", &self.folder)
    }

    /// Sets a failure from now on.
    pub fn set(&self, name: &str, number: i64) {
        // Renamed into place, so that a reader never sees half of it.
        let draft = self.folder.join("draft");
        fs::write(&draft, number.to_string()).expect("our folder");
        fs::rename(draft, self.folder.join(name)).expect("our folder");
    }

    /// Returns true if all failures of this kind have happened.
    pub fn is_used_up(&self, name: &str) -> bool {
        fs::read_to_string(self.folder.join(name)).is_ok_and(|text| text == "0")
    }
}
