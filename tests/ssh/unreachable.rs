//! Hosts that cannot be reached, or cannot start what they are to.

use std::os::unix::fs::PermissionsExt;

use crate::cluster::Cluster;

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
