//! Tests the agents of a launch, their hosts, and their arguments and environment.

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    support::{command_line, is_there},
};

/// Every host gets an agent, with as many workers as it has slots, ranked in the order of the list. All lines have host and rank.
#[test]
fn all_hosts_take_part() {
    let Some(cluster) = Cluster::new("all", 4) else { return };
    cluster.write("hosts", "node1 slots=2\nnode2\n# none here\nnode3:2\nnode4 slots=1\n");
    let mut launch = cluster.launch("--no-python obey.sh").start();
    let expected =
        [("node1", 0), ("node1", 1), ("node2", 2), ("node3", 3), ("node3", 4), ("node4", 5)];
    for (host, rank) in expected {
        let line = launch.prints(&format!("[{host}:{rank}] worker rank={rank} "));
        assert!(line.contains("world_size=6 group_world_size=4"), "{line}");
    }
    launch.logs("[node1] ");
    launch.signal(Signal::SIGTERM);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
}

/// The launch succeeds with the job, and fails with it.
#[test]
fn end_of_the_job_is_the_end_of_the_launch() {
    let Some(cluster) = Cluster::new("ends", 4) else { return };
    if !is_there("python3") {
        return;
    }
    cluster.write("train.py", "import os, sys\nprint('at', os.environ['RANK'], sys.argv[1:])\n");
    let end = cluster.launch("train.py --lr 3 -x").run();
    end.assert_code(0);
    assert!(end.stdout.contains("[node4:3] at 3 ['--lr', '3', '-x']\n"), "{}", end.stdout);
    end.assert_stderr(&["the job has succeeded"]);
    assert_eq!(cluster.left(), Vec::<String>::new());
    let end = cluster.launch("--include node[2-3] --no-python fail.sh 7").run();
    end.assert_code(1);
    end.assert_stderr(&["gives up", "error: the job did not succeed"]);
    assert!(!end.stdout.contains("node1"), "{}", end.stdout);
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// Hosts get the chosen variables, and the folder. The values are not visible in a list of processes.
#[test]
fn environment_and_folder() {
    let Some(cluster) = Cluster::new("env", 4) else { return };
    cluster.write("secrets", "# keys\nexport FROM_FILE='two words'\nTOKEN=in-file\n");
    std::fs::create_dir(cluster.sandbox.path("work here")).unwrap();
    let folder = cluster.sandbox.path("work here");
    let launch = cluster.launch("-x HERE -x TOKEN=s3cr3t --env-file secrets --chdir");
    let script = "echo \"$HERE/$TOKEN/$FROM_FILE/$PWD\"; exec sleep infinity";
    let launch = launch.arg(&folder).arg("--no-python").arg("bash").arg("-c").arg(script);
    let mut launch = launch.env("HERE", "yes").start();
    for rank in 0..4 {
        let line = launch.prints(&format!(":{rank}] "));
        assert!(line.ends_with(&format!("yes/s3cr3t/two words/{}", folder.display())), "{line}");
    }
    let seen: Vec<String> = cluster.sandbox.processes().into_iter().map(command_line).collect();
    // A value on the user's command line is visible there, and nowhere else.
    let others = seen.iter().filter(|line| !line.contains(" launch "));
    assert!(others.clone().count() > 8, "{seen:?}");
    assert!(!others.into_iter().any(|line| line.contains("s3cr3t")), "{seen:?}");
    launch.signal_group(Signal::SIGINT);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
}

/// A connection that a busy sshd drops is tried again.
#[test]
fn busy_host_is_asked_again() {
    let Some(cluster) = Cluster::new("busy", 2) else { return };
    let path = |name| cluster.sandbox.path(name).display().to_string();
    // The first connection is closed before anything is sent.
    let proxy = format!(
        "Host node2\nProxyCommand sh -c \"mkdir {} 2>/dev/null || exec ssh -F {} -W %h:%p node1\"\n",
        path("first"),
        path("ssh_config")
    );
    cluster.write_client_config(&proxy);
    let end = cluster.launch("--no-python environment.sh").run();
    end.assert_code(0);
    assert!(cluster.sandbox.path("first").exists());
}
