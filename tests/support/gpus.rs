//! Gives an agent two GPUs, by `nvml.c` in place of the driver's library.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    process::Command,
};

use nix::{sys::stat::Mode, unistd};

use super::{Sandbox, Start, is_there};

/// Two GPUs. They have no error and no process.
#[derive(Debug)]
pub struct Gpus {
    library: PathBuf,
    held: PathBuf,
    fields: PathBuf,
    errors: (PathBuf, File),
}

impl Gpus {
    /// Builds the library. Without a C compiler, prints why and returns `None`.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        if !is_there("cc") {
            return None;
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/support/nvml.c");
        let folder = sandbox.path("gpus");
        fs::create_dir(&folder).expect("a fresh folder");
        let library = folder.join("libnvidia-ml.so.1");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        assert!(cc.status().is_ok_and(|status| status.success()), "{source} cannot be built");
        let pipe = folder.join("errors");
        unistd::mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).expect("a fresh folder");
        // It stays open for reading, so that an error waits until the driver's user asks for it.
        let writer = OpenOptions::new().read(true).write(true).open(&pipe).expect("our pipe");
        let (held, fields) = (folder.join("held"), folder.join("fields"));
        Some(Self { library, held, fields, errors: (pipe, writer) })
    }

    /// Returns the program with these GPUs.
    pub fn belong_to(&self, start: Start) -> Start {
        let folder = self.library.parent().expect("it is in a folder");
        start
            .env("LD_LIBRARY_PATH", folder)
            .env("HELD_GPUS", &self.held)
            .env("GPU_FIELDS", &self.fields)
            .env("GPU_ERRORS", &self.errors.0)
    }

    /// Makes a GPU report an error.
    pub fn fail(&mut self, gpu: u32, xid: u64) {
        writeln!(self.errors.1, "{gpu} {xid}").expect("our pipe");
    }

    /// Gives a field of a GPU a value, as the only one that is not 0, and makes the GPU report a change.
    pub fn change(&mut self, gpu: u32, field: u32, value: u32) {
        rename_into_place(&self.fields, &format!("{gpu} {field} {value}\n"));
        self.fail(gpu, 0);
    }

    /// Makes the driver report that a process holds the second GPU.
    pub fn hold(&self, pid: u32) {
        rename_into_place(&self.held, &format!("1 {pid} 3221225472\n"));
    }

    /// Makes the driver report that no process holds a GPU.
    pub fn free(&self) {
        fs::remove_file(&self.held).expect("our file");
    }
}

/// Writes a file so that a reader never sees half of it.
fn rename_into_place(path: &PathBuf, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("our folder");
    fs::rename(draft, path).expect("our folder");
}
