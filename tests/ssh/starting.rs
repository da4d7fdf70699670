//! Tests the agents of a launch, their hosts, and their arguments and environment.

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    support::{Network, Start, command_line, is_there},
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

/// Workers see exactly the accelerators that were chosen.
#[test]
fn chosen_accelerators() {
    let Some(cluster) = Cluster::new("slots", 4) else { return };
    cluster.write("hosts", "node1 slots=4\nnode2 slots=4\nnode3 slots=4\n");
    let words = "--include node1:1,3@node2 --exclude node2:0-2 --no-python environment.sh";
    let end = cluster.launch(words).run();
    end.assert_code(0);
    for (host, rank, devices) in [("node1", 0, "1,3"), ("node1", 1, "1,3"), ("node2", 2, "3")] {
        let line = format!("[{host}:{rank}] env rank={rank} CUDA_VISIBLE_DEVICES={devices}\n");
        assert!(end.stdout.contains(&line), "{line}\n{}", end.stdout);
    }
}

/// Fixed ranks are in the order of the list, and the first host is the master.
#[test]
fn fixed_ranks() {
    let Some(cluster) = Cluster::new("fixed", 3) else { return };
    cluster.write("hosts", "node3\nnode1\nnode2\n");
    let words = "--rdzv-backend static --master-port 29511 --no-python environment.sh";
    let end = cluster.launch(words).run();
    end.assert_code(0);
    for (rank, host) in [(0, "node3"), (1, "node1"), (2, "node2")] {
        for pair in ["MASTER_ADDR=10.77.0.3", "MASTER_PORT=29511", &format!("GROUP_RANK={rank}")] {
            let line = format!("[{host}:{rank}] env rank={rank} {pair}\n");
            assert!(end.stdout.contains(&line), "{line}\n{}", end.stdout);
        }
    }
}

/// The agents of a launch find their coordinator through etcd. The user's name and password file are passed on. The loss of the
/// coordinator's host does not end the launch.
#[test]
fn coordinator_is_found_through_etcd() {
    let Some(cluster) = Cluster::new("etcd", 3) else { return };
    if !is_there("etcd") || !is_there("etcdctl") {
        return;
    }
    let url = format!("http://{}:2379", Network::address(4));
    let data = cluster.sandbox.path("data").display().to_string();
    let mut etcd = cluster.network.program(&cluster.sandbox, 4, "etcd");
    for (flag, value) in
        [("data-dir", &data), ("listen-client-urls", &url), ("advertise-client-urls", &url)]
    {
        etcd = etcd.arg(format!("--{flag}={value}"));
    }
    let mut etcd = etcd.start();
    etcd.logs("ready to serve client requests");
    for words in ["user add root:root", "user grant-role root root", "auth enable"] {
        let control = cluster.network.program(&cluster.sandbox, 4, "etcdctl");
        let control = control.env("ETCDCTL_API", "3").arg(format!("--endpoints={url}"));
        words.split(' ').fold(control, Start::arg).run().assert_code(0);
    }
    cluster.write("password", "root\n");
    let words = format!(
        "--nnodes 2:3 --rdzv-backend etcd --rdzv-endpoint {} --rdzv-id j \
         --rdzv-conf shrink_timeout=0,last_call_timeout=600 --no-python obey.sh",
        Network::address(4)
    );
    let file = cluster.sandbox.path("password").display().to_string();
    let launch =
        cluster.launch(&format!("-x RAGENT_ETCD_USER -x RAGENT_ETCD_PASSWORD_FILE {words}"));
    let launch = launch.env("RAGENT_LOG", "info").env("RAGENT_ETCD_USER", "root");
    let mut launch = launch.env("RAGENT_ETCD_PASSWORD_FILE", file).start();
    let line = launch.logs("elected; coordinating the job");
    for _ in 0..3 {
        launch.prints("world_size=3");
    }
    let node = (1..=3).find(|node| line.contains(&format!("[node{node}]"))).expect("it is a node");
    cluster.network.cut(node);
    for _ in 0..2 {
        launch.prints("world_size=2");
    }
    cluster.network.heal(node);
    launch.signal(Signal::SIGTERM);
    launch.end().assert_code(8);
    etcd.signal(Signal::SIGKILL);
    etcd.end();
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

/// A jump host in ssh's configuration is used.
#[test]
fn jump_host() {
    let Some(cluster) = Cluster::new("jump", 4) else { return };
    // The launching host reaches node4 only through node1.
    cluster.network.cut_one_way(5, 4);
    cluster.write_client_config("Host node4\nProxyJump node1\n");
    let end = cluster.launch("--include node[2,4] --no-python environment.sh").run();
    end.assert_code(0);
    assert!(end.stdout.contains("[node4:1] env rank=1 WORLD_SIZE=2\n"), "{}", end.stdout);
}
