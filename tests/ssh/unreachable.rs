//! Tests hosts that cannot be reached, or cannot start their agent.

use std::os::unix::fs::PermissionsExt;

use crate::{
    cluster::Cluster,
    support::{End, Sandbox},
};

/// Hosts that cannot be reached are named, and the job starts without them if enough are left.
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

/// With too few hosts nothing is started, and the reasons are ssh's own messages.
#[test]
fn too_few_hosts_are_reached() {
    let Some(cluster) = Cluster::new("few", 4) else { return };
    cluster.write_client_config("Host node3\nPort 1\n");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "error: 3 hosts were reached, but the job needs 4; no agent was started",
        "\n  node3: ",
        "Connection refused",
    ]);
    assert_eq!(end.stdout, "");
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// The user is not asked for a password. A host that needs one is named, with a hint.
#[test]
fn password_is_not_asked_for() {
    let Some(mut cluster) = Cluster::new("password", 4) else { return };
    cluster.serve(2, 2222, "PubkeyAuthentication no\nPasswordAuthentication yes\n");
    cluster.write_client_config("Host node2\nPort 2222\n");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "node2: ",
        "Permission denied",
        "hint: ssh cannot ask for a password here",
    ]);
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// A host with an unconfirmed key is not trusted, and the message has the reason.
#[test]
fn unknown_host_key() {
    let Some(cluster) = Cluster::new("hostkey", 2) else { return };
    cluster.write("known_hosts", "");
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&["Host key verification failed", "hint: log in manually once"]);
}

/// Another version of ragent on a host is reported, with both versions.
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
    end.assert_stderr(&[
        &format!("node2: it runs ragent 0.0.1, but this host runs {ours}"),
        "hint: ",
    ]);
    assert_eq!(end.stdout, "");
}

/// A folder or a program that a host lacks is reported as that host's error, and the other hosts
/// are ended.
#[test]
fn host_lacks_something() {
    let Some(cluster) = Cluster::new("lacks", 4) else { return };
    let end = cluster.launch("--chdir /no/such --no-python environment.sh").run();
    end.assert_code(1);
    end.assert_stderr(&["node4: cannot enter the folder `/no/such`: No such file"]);
    cluster.wait_until_nothing_left();
    let end = cluster.launch("--no-python nothing.sh").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "] error: the program `nothing.sh` was not found in PATH",
        "its agent exited with 2",
    ]);
    cluster.wait_until_nothing_left();
    // Without ragent on the hosts, the message has a hint.
    cluster.write("once.sh", "#!/bin/sh\nexec sleep infinity\n");
    let path = cluster.sandbox.path("once.sh");
    let words = format!("--remote-ragent /no/ragent --no-python {}", path.display());
    let end = cluster.launch(&words).run();
    end.assert_code(1);
    end.assert_stderr(&[
        "/no/ragent",
        "hint: install ragent on that host, or give its path with `--remote-ragent PATH`",
    ]);
}

/// Runs `ragent launch` with a script in place of ssh.
fn launch_by(ssh: &str, words: &str) -> End {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("hosts"), "node1\n").unwrap();
    let path = sandbox.path("ssh.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{ssh}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.ragent(&format!("launch --hostfile hosts --ssh ./ssh.sh {words}")).run()
}

/// If a host refuses on stdout, as without a login shell, the end of its text is in the message.
#[test]
fn refusal_on_stdout() {
    let end = launch_by("echo This account is currently not available.; exit 1", "x.py");
    end.assert_code(1);
    end.assert_stderr(&[
        "\n  node1: This account is currently not available. (exit status: 1)\nhint: ",
    ]);
    assert!(!end.stderr.contains("--nnodes"), "{}", end.stderr);
    let much = "i=0; while [ $i -lt 999 ]; do i=$((i+1)); echo line $i; done; printf last; exit 1";
    let end = launch_by(much, "x.py");
    end.assert_stderr(&["\n  node1: line 998; line 999; last (exit status: 1)\n"]);
    assert!(!end.stderr.contains("line 90"), "{}", end.stderr);
    // The stderr of ssh is nearer to the cause.
    let end = launch_by("echo welcome; echo cause >&2; exit 1", "x.py");
    end.assert_stderr(&["\n  node1: cause (exit status: 1)\n"]);
    assert!(!end.stderr.contains("welcome"), "{}", end.stderr);
}

/// If ssh fails because of its own configuration, the message does not suggest that ragent is
/// missing.
#[test]
fn configuration_of_ssh() {
    let expected = "Can\\'t open user config file nothing: No such file or directory";
    let end = launch_by(&format!("echo {expected} >&2; exit 255"), "x.py");
    end.assert_code(1);
    end.assert_stderr(&["\n  node1: Can't open user config file", "hint: "]);
    assert!(!end.stderr.contains("--remote-ragent"), "{}", end.stderr);
}

/// PWD is the folder that the workers run in.
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
