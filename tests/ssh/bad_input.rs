//! Tests that mistakes in arguments and on this host are reported before any host is reached, with exit code 2.

use std::fs;

use crate::support::{End, Sandbox, Start};

/// Runs `ragent launch` with an ssh that only creates the file `called`.
fn launch(sandbox: &Sandbox, hosts: &str, words: &str) -> End {
    fs::write(sandbox.path("hosts"), hosts).unwrap();
    let start = sandbox.ragent("launch --hostfile hosts --ssh").arg("touch called");
    words.split_ascii_whitespace().fold(start, Start::arg).run()
}

/// Each mistake is reported with the argument that it is about, and ssh is not called.
#[test]
fn mistakes_cost_no_network() {
    let sandbox = Sandbox::new();
    let cases = [
        ("a\nb\na slots=2\n", "x", "`a` is in line 1 and again in line 3"),
        ("a\nb\n", "--nnodes 3:4 x", "2 hosts are fewer than the 3"),
        ("a\nb\n", "-x NOT_THERE x", "NOT_THERE is not set on this host"),
        ("a\nb\n", "--env-file nothing x", "`--env-file nothing` cannot be read"),
        ("a\nb\n", "--node-rank 1 x", "each host gets its own"),
    ];
    for (hosts, words, part) in cases {
        let end = launch(&sandbox, hosts, words);
        end.assert_code(2);
        end.assert_stderr(&[part, "error: "]);
        assert!(!sandbox.path("called").exists(), "{words}");
    }
    let hosts: String = (0..1001).map(|host| format!("n{host}\n")).collect();
    let end = launch(&sandbox, &hosts, "x");
    end.assert_code(2);
    end.assert_stderr(&["1001 hosts are more than the 1000", "Slurm, MPI or a systemd unit"]);
    let end = sandbox.ragent("launch --hostfile nothing x").run();
    end.assert_code(2);
    end.assert_stderr(&["`--hostfile nothing` cannot be read: No such file"]);
}

/// A dry run prints the command of each host, without values of variables, and starts nothing.
#[test]
fn dry_run() {
    let sandbox = Sandbox::new();
    let words = "--dry-run --fanout 1 -x TOKEN=s3cr3t --no-python train --lr 3";
    let end = launch(&sandbox, "a slots=8\nme@b\nc\n", words);
    end.assert_code(0);
    for part in [
        "\na\n  touch called -T -o BatchMode=yes ",
        " -- me@b 'exec ",
        "\nc\n  touch called ",
        "--nproc-per-node=8",
        "--no-python --nnodes=3",
        "-- train --lr 3\n    with RAGENT_LOG TOKEN\n",
    ] {
        assert!(end.stdout.contains(part), "no `{part}` in:\n{}", end.stdout);
    }
    assert!(!end.stdout.contains("s3cr3t"));
    assert!(!sandbox.path("called").exists());
}
