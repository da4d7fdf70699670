//! Hosts that cannot be reached, or cannot start what they are to.

use std::os::unix::fs::PermissionsExt;

use crate::{
    cluster::Cluster,
    support::{End, Sandbox},
};

/// Hosts that cannot be reached are named, and the job starts without them while enough are there.
#[test]
fn enough_hosts_are_reached() {
    let Some(cluster) = Cluster::new("reach", 4) else { return };
    cluster.write("hosts", "node1\nnode9\nnode2\nnode3\nnode4\n");
    let words = "--connect-timeout 3 --nnodes 3:5 --no-python environment.sh";
    let end = cluster.launch(words).run();
    end.assert_code(0);
    end.assert_stderr(&["host cannot be reached", "node9"]);
    assert!(end.stdout.contains("[node4:3] env rank=3 WORLD_SIZE=4\n"), "{}", end.stdout);
}

/// With too few of them nothing is started, and the reasons are ssh's own.
#[test]
fn too_few_hosts_are_reached() {
    let Some(cluster) = Cluster::new("few", 4) else { return };
    cluster.write_client_config("Host node3\nPort 1\n");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "error: 3 hosts are reached, and the job needs 4; nothing was started",
        "\n  node3: ",
        "Connection refused",
    ]);
    assert_eq!(end.stdout, "");
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// Nobody is asked for a password: that it would be needed is said, and how to do without.
#[test]
fn password_is_not_asked_for() {
    let Some(mut cluster) = Cluster::new("password", 4) else { return };
    cluster.serve(2, 2222, "PubkeyAuthentication no\nPasswordAuthentication yes\n");
    cluster.write_client_config("Host node2\nPort 2222\n");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&["node2: ", "Permission denied", "hint: nobody can type a password here"]);
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// A host whose key nobody has confirmed is not trusted, and that is said.
#[test]
fn unknown_host_key() {
    let Some(cluster) = Cluster::new("hostkey", 2) else { return };
    cluster.write("known_hosts", "");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&["Host key verification failed", "hint: log in by hand once"]);
}

/// Another version of ragent on a host is told, with both.
#[test]
fn other_version() {
    let Some(cluster) = Cluster::new("version", 2) else { return };
    cluster.write("other", "#!/bin/sh\nprintf '\\0ragent-relay 1 0.0.1\\n'\nexec sleep 1000\n");
    let path = cluster.sandbox.path("other");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let words = format!("--remote-ragent {} --no-python stay.sh", path.display());
    let end = cluster.launch(&words).run();
    end.assert_code(1);
    let ours = env!("CARGO_PKG_VERSION");
    end.assert_stderr(&[&format!("node2: it runs ragent 0.0.1, and this host {ours}"), "hint: "]);
    assert_eq!(end.stdout, "");
}

/// A folder that a host lacks, or a program, is that host's clear error, and ends the others.
#[test]
fn host_lacks_something() {
    let Some(cluster) = Cluster::new("lacks", 4) else { return };
    let end = cluster.launch("--chdir /no/such --no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&["node4: the folder `/no/such` cannot be entered: No such file"]);
    cluster.wait_until_nothing_left();
    let end = cluster.launch("--no-python nothing.sh").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "] error: the program `nothing.sh` is not found in PATH",
        "its agent exited with 2",
    ]);
    cluster.wait_until_nothing_left();
    // Only one lacks it; the others do not wait for it for ever.
    cluster.write("once.sh", "#!/bin/sh\nexec sleep infinity\n");
    let path = cluster.sandbox.path("once.sh");
    let words = format!("--remote-ragent /no/ragent --no-python {}", path.display());
    let end = cluster.launch(&words).run();
    end.assert_code(1);
    end.assert_stderr(&["/no/ragent", "hint: is ragent installed there? `--remote-ragent PATH`"]);
}

/// `ragent launch` with a program that answers as an ssh would.
fn launch_by(ssh: &str, words: &str) -> End {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("hosts"), "node1\n").unwrap();
    let path = sandbox.path("ssh.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{ssh}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.ragent(&format!("launch --hostfile hosts --ssh ./ssh.sh {words}")).run()
}

/// A host that says on stdout why it refuses, as one without a shell does, is repeated, the end of it.
#[test]
fn refusal_on_stdout() {
    let end = launch_by("echo This account is currently not available.; exit 1", "x.py");
    end.assert_code(1);
    end.assert_stderr(&["\n  node1: This account is currently not available.\nhint: "]);
    assert!(!end.stderr.contains("--nnodes"), "{}", end.stderr);
    let much = "i=0; while [ $i -lt 999 ]; do i=$((i+1)); echo line $i; done; printf last; exit 1";
    let end = launch_by(much, "x.py");
    end.assert_stderr(&["\n  node1: line 998; line 999; last\n"]);
    assert!(!end.stderr.contains("line 90"), "{}", end.stderr);
    // What ssh says itself is nearer to the cause.
    let end = launch_by("echo welcome; echo cause >&2; exit 1", "x.py");
    end.assert_stderr(&["\n  node1: cause\n"]);
    assert!(!end.stderr.contains("welcome"), "{}", end.stderr);
}

/// ssh that fails on its own configuration has reached no host that could lack ragent.
#[test]
fn configuration_of_ssh() {
    let says = "Can\\'t open user config file nothing: No such file or directory";
    let end = launch_by(&format!("echo {says} >&2; exit 255"), "x.py");
    end.assert_code(1);
    end.assert_stderr(&["\n  node1: Can't open user config file", "hint: "]);
    assert!(!end.stderr.contains("--remote-ragent"), "{}", end.stderr);
}

/// Workers find the folder that they run in as PWD, too.
#[test]
fn folder_is_the_shells() {
    let here = "for last; do :; done; cd / && exec sh -c \"$last\"";
    for (chdir, pwd) in [("tmp", "/tmp\n"), ("./tmp/.", "/tmp\n"), (".", "\n")] {
        let end = launch_by(here, &format!("--chdir {chdir} --no-python printenv PWD SCRATCH"));
        end.assert_code(0);
        let lines = end.stdout.lines().map(|line| line.trim_start_matches("[node1:0] "));
        let [found, scratch] = lines.collect::<Vec<_>>()[..] else { panic!("{}", end.stdout) };
        assert_eq!(format!("{found}\n"), format!("{scratch}{pwd}"), "{chdir}");
    }
}
