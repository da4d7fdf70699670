//! Tests workers with the real torch that are started from standbys.

use nix::sys::signal::Signal;

use super::{
    REPOSITORY,
    support::{Sandbox, count_standbys, free_port},
    venv,
};

/// The standbys of two nodes wait for their coordinator, become the workers of the first round, and train together.
#[test]
fn first_round_trains_from_standbys() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let port = free_port();
    let words = format!(
        "--nnodes 2 --nproc-per-node 2 --rdzv-endpoint 127.0.0.1:{port} --rdzv-id digits \
         --rdzv-conf is_host=0 {REPOSITORY}/examples/digits/train.py --epochs 1"
    );
    let agent = || {
        let start = sandbox.ragent(&words).env("PYTHON_EXEC", &python).env("PET_STANDBY", "1");
        // torch resolves the names of its peers, and waits if there is no answer.
        start.env("RES_OPTIONS", "timeout:1 attempts:1").start()
    };
    let mut agents = [agent(), agent()];
    for agent in &mut agents {
        agent.logs("all standbys are ready");
    }
    let words = format!("coordinator --rdzv-id digits --host 127.0.0.1 --port {port}");
    let coordinator = sandbox.ragent(&words).start();
    let ends = agents.map(|agent| agent.end());
    for end in &ends {
        end.assert_code(0);
        assert!(!end.stderr.contains("standbys do not import"), "{}", end.stderr);
        assert_eq!(count_standbys(&end.stderr), 2, "{}", end.stderr);
    }
    assert!(ends.iter().any(|end| end.stdout.contains("epoch=1/1 world_size=4")), "{ends:?}");
    coordinator.signal(Signal::SIGTERM);
    coordinator.end();
    sandbox.assert_nothing_left();
}
