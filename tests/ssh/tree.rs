//! Tests hosts that are reached through other hosts.

use crate::{cluster::Cluster, support::Network};

/// With fewer connections than hosts, hosts connect to further hosts, in a chain of any length.
#[test]
fn hosts_reach_others() {
    let Some(cluster) = Cluster::new("tree", 4) else { return };
    for fanout in [1, 2, 3] {
        let words = format!("--fanout {fanout} --no-python environment.sh");
        let end = cluster.launch(&words).run();
        end.assert_code(0);
        for rank in 0..4 {
            let line = format!("[node{}:{rank}] env rank={rank} WORLD_SIZE=4\n", rank + 1);
            assert!(end.stdout.contains(&line), "{fanout}: {}", end.stdout);
        }
        assert_eq!(cluster.left(), Vec::<String>::new());
    }
}

/// A host that cannot be reached through another one is reached directly, and so are the hosts below it. By default, the cause is a
/// warning.
#[test]
fn direct_way_is_the_second_one() {
    let Some(cluster) = Cluster::new("second", 4) else { return };
    // From node1, ssh uses a port of node2 on which no process listens.
    let from_first = format!(
        "Match host node2 exec \"ip -o addr | grep -q {}/\"\nPort 1\n",
        Network::address(1)
    );
    cluster.write_client_config(&from_first);
    let launch = cluster.launch("--fanout 1 --no-python environment.sh");
    let end = launch.default_lines().run();
    end.assert_code(0);
    let warning = "ragent: warning: host not reached through another host; connecting to it directly (host node2): ";
    end.assert_stderr(&[warning, "Connection refused (exit status: 255)"]);
    assert_eq!(end.stderr.matches(warning).count(), 1, "{}", end.stderr);
    for rank in 0..4 {
        let line = format!("[node{}:{rank}] env rank={rank} WORLD_SIZE=4\n", rank + 1);
        assert!(end.stdout.contains(&line), "{}", end.stdout);
    }
}
