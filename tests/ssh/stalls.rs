//! Tests what a job of `ragent launch` says about itself when it stands still.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::{cluster::Cluster, support::skip};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The rank that does not come to a collective is named, with its line: a launch has a secret, so lines may cross the network.
#[test]
fn missing_rank_is_named() {
    let python = format!("{REPOSITORY}/.venv/bin/python");
    if !Path::new(&python).exists() {
        return skip("there is no .venv; `scripts/setup-venv.sh` makes it");
    }
    let Some(cluster) = Cluster::new("stall", 2) else { return };
    let words = format!(
        "--nproc-per-node 2 --no-python env GLOO_SOCKET_IFNAME=eth0 PYTHONDONTWRITEBYTECODE=1 \
         PYTHONPATH={REPOSITORY}/packaging/python {python} -u {REPOSITORY}/examples/stall/train.py --observe"
    );
    let folder = cluster.sandbox.path("launching");
    let mut launch = cluster.launch(&words).env("XDG_RUNTIME_DIR", &folder).start();
    // On the launching host, on which no agent runs.
    let ask =
        |words| cluster.network.ragent(&cluster.sandbox, 3, words).env("XDG_RUNTIME_DIR", &folder);
    launch.prints("step=40");
    let mut events = ask("events --follow").start();
    events.prints("has not launched all_reduce 41");
    let explained = ask("explain stall").run();
    explained.assert_code(0);
    assert!(explained.stdout.contains("it is in load_batch at train.py:"), "{}", explained.stdout);
    launch.signal_group(Signal::SIGINT);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
}
