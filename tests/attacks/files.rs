//! Attacks a job by files in places where other users may write.

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use nix::{
    sys::stat::Mode,
    unistd::{geteuid, mkfifo},
};

use crate::{
    attacker::OTHER,
    support::{End, Sandbox, Start, free_port, skip},
};

/// The folder for the state of a launch by root, if only the temp folder exists.
fn state_folder(sandbox: &Sandbox) -> PathBuf {
    sandbox.path("tmp").join("ragent-0")
}

fn may_attack() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skip("to plant another user's files wants root");
    }
    is_root
}

fn without_runtime_dir(start: Start) -> Start {
    start.env("XDG_RUNTIME_DIR", "")
}

/// A single-node job with a state file.
fn launch(sandbox: &Sandbox, port: u16, script: &str) -> End {
    let words =
        format!("--nnodes 1 --rdzv-id job --rdzv-endpoint 127.0.0.1:{port} --no-python bash -c");
    without_runtime_dir(sandbox.ragent(&words)).arg(script).run()
}

fn give_to_other(path: &Path) {
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
}

/// The state file of the job while it runs, with its content.
fn state_file(port: u16) -> (PathBuf, String) {
    let sandbox = Sandbox::new();
    let end = launch(
        &sandbox,
        port,
        "cat $TMPDIR/ragent-0/job-*.json; ls $TMPDIR/ragent-0/job-*.json >&2",
    );
    end.assert_code(0);
    let name = end.stderr.split_ascii_whitespace().find(|word| word.ends_with(".json")).unwrap();
    (PathBuf::from(name).file_name().unwrap().into(), end.stdout)
}

/// The text of a state file of a late round with a spent budget.
fn far(text: &str) -> String {
    let mut state: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    for (field, value) in [("round", 1_000), ("term", 1_000), ("charged_through", 999)] {
        assert!(state[field].is_number(), "{state}");
        state[field] = value.into();
    }
    state.to_string()
}

const TELL_ROUND: &str = "echo restarts $TORCHELASTIC_RESTART_COUNT";

/// 17: Python does not read the hook of standbys from a folder that another user could replace. The job runs without standbys.
#[test]
fn hook_in_a_folder_that_others_can_replace() {
    for (mode, is_used) in [(0o777, false), (0o1777, true)] {
        let sandbox = Sandbox::new();
        fs::set_permissions(sandbox.path("tmp"), Permissions::from_mode(mode)).unwrap();
        fs::write(sandbox.path("t.py"), "print('ran')").unwrap();
        let end = without_runtime_dir(sandbox.ragent("--standby=json t.py")).run();
        end.assert_code(0);
        assert_eq!(end.stdout, "ran\n");
        let is_refused = end.stderr.contains("other users can put another folder in the place of");
        assert_eq!(is_refused, !is_used, "{}", end.stderr);
    }
}

/// 17: a state folder that another user has made, or can write to, is neither read nor written. In the user's own folder, a foreign,
/// linked, special or huge file is ignored.
#[test]
fn planted_state_folder() {
    if !may_attack() {
        return;
    }
    let port = free_port();
    let (name, text) = state_file(port);
    for plant in ["owner", "mode", "symlink"] {
        let sandbox = Sandbox::new();
        let (folder, elsewhere) = (state_folder(&sandbox), sandbox.path("elsewhere"));
        let made = if plant == "symlink" { &elsewhere } else { &folder };
        fs::create_dir(made).unwrap();
        fs::write(made.join(&name), far(&text)).unwrap();
        match plant {
            "owner" => give_to_other(&folder),
            "mode" => fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap(),
            _ => symlink(&elsewhere, &folder).unwrap(),
        }
        let end = launch(&sandbox, port, TELL_ROUND);
        end.assert_code(0);
        assert!(end.stdout.contains("restarts 0"), "{plant}: {}", end.stdout);
        end.assert_stderr(&[" round=1 ", "is not used for state"]);
        assert_eq!(fs::read_to_string(made.join(&name)).unwrap(), far(&text), "{plant}");
        assert_eq!(fs::read_dir(made).unwrap().count(), 1, "{plant}");
    }
    for plant in ["owner", "symlink", "hard link", "fifo", "folder", "huge"] {
        let sandbox = Sandbox::new();
        let (folder, elsewhere) = (state_folder(&sandbox), sandbox.path("elsewhere"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        fs::write(&elsewhere, far(&text)).unwrap();
        let file = folder.join(&name);
        match plant {
            "owner" => {
                fs::write(&file, far(&text)).unwrap();
                give_to_other(&file);
            }
            "symlink" => symlink(&elsewhere, &file).unwrap(),
            "hard link" => fs::hard_link(&elsewhere, &file).unwrap(),
            "fifo" => mkfifo(&file, Mode::S_IRWXU).unwrap(),
            "folder" => fs::create_dir(&file).unwrap(),
            _ => fs::File::create(&file).unwrap().set_len(1 << 40).unwrap(),
        }
        let end = launch(&sandbox, port, TELL_ROUND);
        end.assert_code(0);
        end.assert_stderr(&[" round=1 "]);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), far(&text), "{plant}");
    }
}

/// 18: a planted registration is neither dialed, printed nor removed by `ragent status`.
#[test]
fn planted_registration() {
    if !may_attack() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let began: u64 =
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    let registration = serde_json::json!({
        "run_id": "planted\u{1b}[2J", "endpoint": listener.local_addr().unwrap().to_string(),
        "pid": std::process::id(), "began": began, "stage": "registered",
    });
    for is_owner in [true, false] {
        let sandbox = Sandbox::new();
        let folder = state_folder(&sandbox);
        fs::create_dir(&folder).unwrap();
        let file = folder.join(format!("agent-{}.json", std::process::id()));
        let dead = folder.join("agent-1.json");
        fs::write(&file, registration.to_string()).unwrap();
        fs::write(&dead, registration.to_string().replace(&began.to_string(), "1")).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        if is_owner {
            give_to_other(&folder);
        }
        let end = without_runtime_dir(sandbox.ragent("status")).run();
        end.assert_code(1);
        end.assert_stderr(&["no job of this user is running on this machine"]);
        assert!(
            !end.stderr.contains("planted") && !end.stderr.contains('\u{1b}'),
            "{}",
            end.stderr
        );
        assert!(listener.accept().is_err(), "it was dialed");
        assert!(file.exists() && dead.exists());
    }
}
