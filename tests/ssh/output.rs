//! Tests the output of all hosts on one console.

use nix::sys::signal::Signal;

use crate::{cluster::Cluster, support::Network};

/// Under a flood from all hosts, each line is complete and has its host and rank.
#[test]
fn lines_stay_whole() {
    let Some(cluster) = Cluster::new("flood", 4) else { return };
    let end = cluster.launch("--no-python flood.sh 3000 0").run();
    end.assert_code(0);
    for (host, rank) in [("node1", 0), ("node2", 1), ("node3", 2), ("node4", 3)] {
        for (text, stream) in [(&end.stdout, "stdout"), (&end.stderr, "stderr")] {
            let line = |number: u32| {
                let rest = "of the flood, and some more words to fill it";
                format!("[{host}:{rank}] {stream} line {number} {rest}")
            };
            let start = format!("[{host}:{rank}] {stream} line ");
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&start)).collect();
            let expected: Vec<String> = (1..=3000).map(line).collect();
            assert_eq!(lines, expected, "{host}");
        }
    }
    assert!(end.stdout.lines().all(|line| line.starts_with("[node")), "{}", end.stdout);
}

/// A client that the store of a round refuses is one warning on the console. The other agents only log it.
#[test]
fn refused_client_is_one_warning() {
    let Some(cluster) = Cluster::new("client", 2) else { return };
    let mut launch = cluster.launch("--no-python stay.sh").start();
    let admitted = launch.logs("admitted; starting workers");
    let master = admitted.split(' ').find_map(|word| word.strip_prefix("master=")).unwrap();
    let (host, port) = master.rsplit_once(':').unwrap();
    for rank in 0..2 {
        launch.prints(&format!("worker rank={rank} "));
    }
    // The launching host is not a member.
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; printf '\\0' >&3; cat <&3");
    cluster.network.program(&cluster.sandbox, 3, "bash").arg("-c").arg(script).run();
    let refused = format!("the store of round 1 refused a connection from {}", Network::address(3));
    assert!(launch.logs(&format!("WARN {refused}")).starts_with("[node1] "));
    assert!(launch.logs(&format!("INFO {refused}")).starts_with("[node2] "));
    launch.signal_group(Signal::SIGINT);
    launch.end().assert_code(8);
}
