//! Tests the program by the name of torchrun, and the link that `ragent install-torchrun` creates.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;

use crate::support::{End, Sandbox, Start};

/// Writes a program that prints its name.
fn put_program(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\necho another torchrun\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder of a sandbox with a link to this program.
fn linked(sandbox: &Sandbox) -> PathBuf {
    let folder = sandbox.path("bin");
    fs::create_dir_all(&folder).unwrap();
    sandbox.ragent("install-torchrun").arg(&folder).run().assert_code(0);
    folder
}

/// Starts the link with the given words.
fn torchrun(sandbox: &Sandbox, folder: &Path, words: &str) -> Start {
    let program = folder.join("torchrun");
    let start = sandbox.program(program.to_str().unwrap()).default_lines();
    words.split_whitespace().fold(start, |start, word| start.arg(word))
}

fn install(sandbox: &Sandbox, folder: &Path) -> End {
    sandbox.ragent("install-torchrun").arg(folder).run()
}

/// The link replaces the torchrun of its folder, and is undone completely.
#[test]
fn link_is_made_and_undone() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("venv");
    put_program(&folder.join("torchrun"));
    let end = install(&sandbox, &folder);
    end.assert_code(0);
    let at = |folder: &Path, name: &str| folder.join(name).to_str().unwrap().to_owned();
    let former = at(&folder, "torchrun.replaced-by-ragent");
    for line in [
        format!("{} starts ragent now; the former one is {former}", at(&folder, "torchrun")),
        format!("undo it with: ragent install-torchrun --undo {}", folder.display()),
    ] {
        assert!(end.stdout.contains(&line), "no `{line}` in:\n{}", end.stdout);
    }
    let version = torchrun(&sandbox, &folder, "--version").run();
    let expected = concat!("torchrun is ragent ", env!("CARGO_PKG_VERSION"));
    assert!(version.stdout.starts_with(expected), "{}", version.stdout);
    // A second call changes nothing.
    let again = install(&sandbox, &folder);
    assert!(!again.stdout.contains("the former one"), "{}", again.stdout);

    let undo = || sandbox.ragent("install-torchrun --undo").arg(&folder).run();
    undo().assert_code(0);
    assert_eq!(torchrun(&sandbox, &folder, "").run().stdout.trim_end(), "another torchrun");
    assert_eq!(sandbox.files_below("venv"), ["torchrun"]);
    let end = undo();
    end.assert_code(2);
    end.assert_stderr(&["is not a link to ragent", "nothing was changed"]);
}

/// A link in an empty folder is removed again. A folder that does not exist, or files in the way, are errors.
#[test]
fn wrong_folders() {
    let sandbox = Sandbox::new();
    let end = install(&sandbox, &sandbox.path("none"));
    end.assert_code(1);
    end.assert_stderr(&["failed to create the link `torchrun`", "No such file or directory"]);
    let folder = linked(&sandbox);
    sandbox.ragent("install-torchrun --undo").arg(&folder).run().assert_code(0);
    assert_eq!(sandbox.files_below("bin"), Vec::<String>::new());
    put_program(&folder.join("torchrun"));
    put_program(&folder.join("torchrun.replaced-by-ragent"));
    let end = install(&sandbox, &folder);
    end.assert_code(2);
    end.assert_stderr(&["is in the way", "remove the older"]);
    // A link whose target is gone belongs to ragent, too.
    fs::remove_file(folder.join("torchrun")).unwrap();
    fs::remove_file(folder.join("torchrun.replaced-by-ragent")).unwrap();
    symlink("/gone/bin/ragent", folder.join("torchrun")).unwrap();
    install(&sandbox, &folder).assert_code(0);
    torchrun(&sandbox, &folder, "--version").run().assert_code(0);
}

/// By the name of torchrun, the first word is the script even if it is the name of a command, and nothing is printed in
/// addition to errors and the output of the workers.
#[test]
fn torchruns_behaviour() {
    let sandbox = Sandbox::new();
    let folder = linked(&sandbox);
    fs::write(sandbox.path("status"), "import sys; print('script', sys.argv[1:])").unwrap();
    let end = torchrun(&sandbox, &folder, "status --json").run();
    end.assert_code(0);
    assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("script ['--json']\n", ""));

    let worker = "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 7";
    let words = "--nproc-per-node 2 --max-restarts 1 --no-python sh -c";
    let end = torchrun(&sandbox, &folder, words).arg(worker).run();
    end.assert_code(0);
    end.assert_stderr(&["failed in round 1: exited with code 7"]);
    assert!(!end.stderr.contains("round 2: 1 node"), "{}", end.stderr);
    let own = sandbox.ragent(words).arg(worker).default_lines().run();
    own.assert_stderr(&["round 2: 1 node"]);
    let mut stopped = torchrun(&sandbox, &folder, "--no-python stay.sh").start();
    stopped.worker();
    stopped.signal(Signal::SIGTERM);
    stopped.end().assert_code(1);
    let help = torchrun(&sandbox, &folder, "-h").run();
    assert!(help.stdout.contains("Usage: torchrun [OPTIONS] SCRIPT"), "{}", help.stdout);
    sandbox.assert_nothing_left();
}

/// Two nodes that give only an endpoint use torchrun's default, `static`. Its host and port are `MASTER_ADDR` and `MASTER_PORT`.
#[test]
fn default_backend() {
    let sandbox = Sandbox::new();
    let folder = linked(&sandbox);
    let port = crate::support::free_port();
    let script = "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT";
    let nodes: Vec<_> = (0..2)
        .map(|rank| {
            let words = format!(
                "--nnodes 2 --node-rank {rank} --rdzv-endpoint 127.0.0.1:{port} --no-python sh -c"
            );
            torchrun(&sandbox, &folder, &words).arg(script).start()
        })
        .collect();
    for (rank, node) in nodes.into_iter().enumerate() {
        let end = node.end();
        end.assert_code(0);
        assert_eq!(end.stdout, format!("{rank} of 2 at 127.0.0.1:{port}\n"));
    }
    sandbox.assert_nothing_left();
}
