//! Tests the hook alone. These tests play its keeper.

use std::{
    fs::File,
    io::{IoSlice, Read, pipe},
    os::fd::{AsRawFd, OwnedFd},
    process::{Child, Command, Stdio},
};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
};
use ragent_base::sys::host::{Host, ThisHost};

use crate::{
    job::write,
    support::{Sandbox, is_there},
};

const HOOK: &str = include_str!("../../agent/workers/src/sitecustomize.py");
const SCRIPT: &str = "\
import os, subprocess
print(os.environ['RANK'], os.environ.get('EARLIER'), os.environ.get('OTHER'), flush=True)
subprocess.run(['/usr/bin/env', 'printenv', 'EARLIER'])
";

/// A standby that has imported the module `imported`, and has two variables.
struct Standby {
    child: Child,
    socket: OwnedFd,
}

impl Standby {
    /// Starts a standby and waits for its report.
    fn start(sandbox: &Sandbox, module: &str) -> Self {
        Self::start_with(sandbox, module, &[])
    }

    /// The same, with further variables for the hook.
    fn start_with(sandbox: &Sandbox, module: &str, variables: &[(&str, &str)]) -> Self {
        write(sandbox, "hook/sitecustomize.py", HOOK);
        write(sandbox, "modules/imported.py", module);
        write(sandbox, "train.py", SCRIPT);
        let flags = SockFlag::SOCK_CLOEXEC;
        let (socket, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let modules = sandbox.path("modules");
        let child = Command::new(ThisHost.find_program("python3".as_ref()).unwrap())
            .args(["-u", "train.py"])
            .current_dir(modules.parent().unwrap())
            .env("PYTHONPATH", format!("{}:{}", sandbox.path("hook").display(), modules.display()))
            .env("RAGENT_STANDBY", "imported")
            .env("RAGENT_STANDBY_SCRIPT", "train.py")
            .env("RAGENT_STANDBY_PATH", modules)
            .envs([("EARLIER", "1"), ("OTHER", "2")])
            .envs(variables.iter().copied())
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let standby = Self { child, socket };
        let report = standby.report();
        assert!(report.starts_with("ready\t"), "{report}");
        standby
    }

    fn report(&self) -> String {
        let mut report = vec![0; 64 * 1024];
        let len = recv(self.socket.as_raw_fd(), &mut report, MsgFlags::empty()).unwrap();
        String::from_utf8(report[..len].to_vec()).unwrap()
    }

    /// Starts the round with `variables`. Returns the next report, and the output of the script.
    fn run(mut self, variables: &[u8]) -> (String, String) {
        let (mut stdout, theirs) = pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let rights = [null.as_raw_fd(), theirs.as_raw_fd(), theirs.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&rights)];
        let socket = self.socket.as_raw_fd();
        let slices = [IoSlice::new(variables)];
        sendmsg::<()>(socket, &slices, &rights, MsgFlags::empty(), None).unwrap();
        drop(theirs);
        let report = self.report();
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        (report, text)
    }
}

/// A variable that the worker does not have is removed from the environment of the script, and of
/// its children.
#[test]
fn variable_that_the_worker_does_not_have() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let (report, text) =
        Standby::start(&sandbox, "").run(b"RANK=3\0RAGENT_SOCKET=/dev/null\0EARLIER\0");
    assert_eq!((report.as_str(), text.as_str()), ("taken", "3 None 2\n"));
}

/// If a module has read it while it was imported, the standby ends, and the script does not run in it.
#[test]
fn module_that_reads_a_variable_that_the_worker_does_not_have() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let module = "import os\nSEEN = os.environ['EARLIER']";
    let (report, text) = Standby::start(&sandbox, module).run(b"RANK=3\0EARLIER\0");
    assert_eq!(report, "refused\timported\tit reads EARLIER while it is imported");
    assert_eq!(text, "");
}

/// A standby that could not report a change by the script ends, and the script does not run in it.
#[test]
fn worker_without_a_socket_for_reports() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    for variables in ["RANK=3\0", "RANK=3\0RAGENT_SOCKET=/dev/null/none\0"] {
        let (report, text) = Standby::start(&sandbox, "").run(variables.as_bytes());
        assert_eq!(report, "refused\t\tthe socket in RAGENT_SOCKET does not exist");
        assert_eq!(text, "");
    }
}

/// A module in the place of torch, which prints the path of each server.
const SERVER: &str = "\
import sys, types
torch = types.ModuleType('torch._C._distributed_c10d')
torch._WorkerServer = lambda path: print('server', path, flush=True) or object()
sys.modules[torch.__name__] = torch
";

/// With `--observe`, the worker starts torch's server once it has its own streams, on the socket of its round.
#[test]
fn server_of_an_observed_worker() {
    if !is_there("python3") {
        return;
    }
    let round = b"RANK=3\0RAGENT_SOCKET=/dev/null\0TORCH_WORKER_SERVER_SOCKET=/s\0EARLIER\0";
    let sandbox = Sandbox::new();
    let observed = [("RAGENT_STANDBY_OBSERVE", "1")];
    let (report, text) = Standby::start_with(&sandbox, SERVER, &observed).run(round);
    assert_eq!((report.as_str(), text.as_str()), ("taken", "server /s\n3 None 2\n"));
    let (_, text) = Standby::start_with(&sandbox, "", &observed).run(round);
    assert_eq!(text, "3 None 2\n", "without torch");
    let (_, text) = Standby::start(&sandbox, SERVER).run(round);
    assert_eq!(text, "3 None 2\n", "without the flag");
}

/// If the script chooses a file for torch's records by the older name of the variable, the agent's own choice is removed.
#[test]
fn records_of_the_script() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let standby = Standby::start(&sandbox, "");
    let script = "import os\n\
                  os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE'] = '/mine'\n\
                  print(os.environ.get('TORCH_FR_DUMP_TEMP_FILE'))\n";
    write(&sandbox, "train.py", script);
    let round =
        b"RANK=3\0RAGENT_SOCKET=/dev/null\0TORCHELASTIC_ERROR_FILE=/l/attempt_0/3/error.json\0\
                  TORCH_FR_DUMP_TEMP_FILE=/l/attempt_0/nccl_trace_rank_\0";
    assert_eq!(standby.run(round).1, "None\n");
}

/// If the keeper closes the socket, the standby ends, and the script does not run.
#[test]
fn keeper_that_is_gone() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let Standby { mut child, socket } = Standby::start(&sandbox, "");
    drop(socket);
    assert_eq!(child.wait().unwrap().code(), Some(70));
}
