//! Tests checkpoints in memory with the module `ragent.checkpoint` and real optimizers.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use crate::{
    REPOSITORY,
    support::{Network, Program, Sandbox, may_make_networks},
    venv,
};

/// Training that was interrupted by a killed worker ends with the same parameters as training that was not. The second round has a new
/// optimizer, and begins after a step that was saved in memory.
#[test]
fn killed_worker_changes_no_parameter() {
    assert_unchanged(&["dcp"]);
}

/// So it does with `memory.save`.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn killed_worker_changes_no_saved_parameter() {
    assert_unchanged(&["state", "replicated"]);
}

fn assert_unchanged(modes: &[&str]) {
    let Some(python) = venv("python") else { return };
    for mode in modes {
        let sandbox = Sandbox::new();
        let words = format!(
            "--standalone --nproc-per-node 2 --max-restarts 1 {REPOSITORY}/tests/torch/memory.py {mode}"
        );
        let end = sandbox
            .ragent(&words)
            .env("PYTHON_EXEC", &python)
            .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            .run();
        assert_eq!(end.code, Some(0), "{mode}\n{}\n{}", end.stdout, end.stderr);
        for rank in 0..2 {
            let line = |text: &str| {
                let text = format!("rank={rank} {text}=");
                let line = end.stdout.lines().find_map(|line| line.strip_prefix(&text));
                line.unwrap_or_else(|| panic!("{mode}: no `{text}` in {}", end.stdout)).to_owned()
            };
            let step: Result<u32, _> = line("restart=1 begins after").parse();
            assert!(step.is_ok_and(|step| step % 3 == 0), "{mode}: {}", end.stdout);
            assert_eq!(line("same"), "True", "{mode}: {}", end.stdout);
        }
        sandbox.assert_nothing_left();
    }
}

/// Returns the digest that all of these ranks print after `text`. Their random numbers differ.
#[track_caller]
fn digest(agents: &mut [Program], text: &str) -> String {
    let (mut digests, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for agent in &mut *agents {
        let line = agent.prints(text);
        let (before, digest) = line.rsplit_once(" digest=").expect("a digest");
        digests.insert(digest.to_owned());
        numbers.extend(before.split_once("random=").map(|(_, number)| number.to_owned()));
    }
    assert_eq!(digests.len(), 1, "{digests:?}");
    assert!(numbers.is_empty() || numbers.len() == agents.len(), "{numbers:?}");
    digests.pop_first().expect("one digest")
}

/// A job of four nodes loses one, and goes on with three from the newest step. So it does when the node is back. Models and optimizers have the
/// same values on any number of ranks.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn any_number_of_ranks_goes_on() {
    let Some(python) = venv("python") else { return };
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let secret = sandbox.path("secret");
    std::fs::write(&secret, "0123456789abcdef".repeat(4)).expect("the sandbox is writable");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("it is ours");
    let network = Network::new("reshard", 4);
    let start = |node: u32| {
        let words = format!(
            "--nnodes 3:4 --max-restarts 3 --rdzv-id reshard --rdzv-endpoint 10.77.0.1:29400 --local-addr {} --secret-file {} \
             --rdzv-conf last_call_timeout=5,shrink_timeout=0 {REPOSITORY}/tests/torch/resharding.py",
            Network::address(node),
            secret.display()
        );
        network
            .named_ragent(&sandbox, node, &words)
            .env("PYTHON_EXEC", &python)
            .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("GLOO_SOCKET_IFNAME", "eth0")
            .start()
    };
    let mut agents: Vec<Program> = (1..=4).map(start).collect();
    let of_four = digest(&mut agents, "world=4 saved=3");
    let mut lost = agents.pop().expect("four agents");
    lost.signal(Signal::SIGKILL);
    lost.wait_until_silent();
    assert_eq!(digest(&mut agents, "world=3 begins=3"), of_four);
    let of_three = digest(&mut agents, "world=3 saved=6");
    assert_ne!(of_three, of_four);
    agents.push(start(4));
    assert_eq!(digest(&mut agents, "world=4 begins=6"), of_three);
    for agent in agents {
        agent.end().assert_code(0);
    }
    sandbox.assert_nothing_left();
}
