//! The output of all hosts on one console.

use crate::cluster::Cluster;

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

/// Prefixes that the user has set are kept, after the host.
#[test]
fn own_prefixes() {
    let Some(cluster) = Cluster::new("prefix", 2) else { return };
    let words = "-t 3 --role r --include node2 --no-python environment.sh";
    let end = cluster.launch(words).run();
    end.assert_code(0);
    assert!(end.stdout.contains("[node2] [r0]:env rank=0 RANK=0\n"), "{}", end.stdout);
}
