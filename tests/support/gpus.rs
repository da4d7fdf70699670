//! Gives an agent two GPUs, by `nvml.c` in place of the driver's library.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::Command,
};

use nix::{fcntl::OFlag, sys::stat::Mode, unistd};

use super::{Sandbox, Start, is_there};

/// Two GPUs. They have no error and no process.
#[derive(Debug)]
pub struct Gpus {
    library: PathBuf,
    held: PathBuf,
    fields: PathBuf,
    lost: PathBuf,
    hangs: PathBuf,
    device: PathBuf,
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
        let [held, fields, lost, hangs, device] =
            ["held", "fields", "lost", "hangs", "device"].map(|name| folder.join(name));
        Some(Self { library, held, fields, lost, hangs, device, errors: (pipe, writer) })
    }

    /// Returns the program with these GPUs.
    pub fn belong_to(&self, start: Start) -> Start {
        let folder = self.library.parent().expect("it is in a folder");
        start
            .env("LD_LIBRARY_PATH", folder)
            .env("HELD_GPUS", &self.held)
            .env("GPU_FIELDS", &self.fields)
            .env("GPU_ERRORS", &self.errors.0)
            .env("GPU_LOST", &self.lost)
            .env("GPU_HANGS", &self.hangs)
            .env("GPU_DEVICE", &self.device)
    }

    /// Makes a GPU report an error.
    pub fn fail(&mut self, gpu: u32, xid: u64) {
        self.send(gpu, 0x8, xid);
    }

    /// Drops the errors that no agent has read, as a restart of the machine does.
    pub fn forget_errors(&self) {
        let flags = OFlag::O_NONBLOCK.bits();
        let pipe = OpenOptions::new().read(true).custom_flags(flags).open(&self.errors.0);
        // It reads until nothing is left, which is an error, since the pipe stays open.
        let _ = pipe.expect("our pipe").read_to_end(&mut Vec::new());
    }

    /// Makes the driver report that a GPU became unavailable.
    pub fn make_unavailable(&mut self, gpu: u32) {
        self.send(gpu, 0x4000, 0);
    }

    fn send(&mut self, gpu: u32, kind: u64, xid: u64) {
        writeln!(self.errors.1, "{gpu} {kind} {xid}").expect("our pipe");
    }

    /// Gives a field of a GPU a value, as the only one that is not 0, and makes the GPU report a change.
    pub fn change(&mut self, gpu: u32, field: u32, value: u32) {
        self.set(gpu, field, value);
        self.send(gpu, 0x8000, 0);
    }

    /// Gives a field of a GPU a value, as the only one that is not 0.
    pub fn set(&self, gpu: u32, field: u32, value: u32) {
        rename_into_place(&self.fields, &format!("{gpu} {field} {value}\n"));
    }

    /// Takes a GPU away. The driver gives the other one its index.
    pub fn lose(&self, gpu: u32) {
        rename_into_place(&self.lost, &format!("{gpu}\n"));
    }

    /// Makes the driver hang, or answer again.
    pub fn hang(&self, hangs: bool) {
        let done = if hangs { fs::write(&self.hangs, "") } else { fs::remove_file(&self.hangs) };
        done.expect("our folder");
    }

    /// Returns true if this process has the driver open.
    pub fn are_open_in(&self, pid: u32) -> bool {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == self.device)
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
