//! Tests workers with the real torch that are started from standbys.

use nix::sys::signal::Signal;

use super::{
    REPOSITORY,
    support::{Sandbox, count_standbys, free_port},
    venv,
};

/// The standbys of two nodes wait for a coordinator, become the workers of the first round, and train together.
#[test]
fn first_round_trains_from_standbys() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    // The two agents are voters, but no majority of them. So nothing begins before a third voter.
    let list = [(); 5].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
    let job = format!("--nnodes 2 --rdzv-id digits --rdzv-endpoint {list}");
    let words =
        format!("{job} --nproc-per-node 2 {REPOSITORY}/examples/digits/train.py --epochs 1");
    let agent = || {
        let start = sandbox.ragent(&words).env("PYTHON_EXEC", &python).env("PET_STANDBY", "1");
        let start = start.env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"));
        // torch resolves the names of its peers, and waits if there is no answer.
        start.env("RES_OPTIONS", "timeout:1 attempts:1").start()
    };
    let mut agents = [agent(), agent()];
    for agent in &mut agents {
        agent.logs("all standbys are ready");
    }
    let coordinator = sandbox.ragent(&format!("coordinator {job}")).start();
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
