//! Tests a notice on its way from one node to the sockets of all workers, and their answers.

use nix::sys::signal::Signal;

use crate::{
    job::Job,
    support::{Orders, Program, Sandbox, Stream},
};

/// Timeouts that a test would notice: nothing waits for one of them, unless a test says so.
const FLAGS: &str =
    "--notice 300 --rdzv-conf shrink_timeout=3600,join_timeout=7200,last_call_timeout=3600";

const WORKER: &str = "--no-python steps.py";

/// Starts the agents of a job, each with one worker that follows orders. Returns them by rank.
fn start(job: &Job<'_>, sandbox: &Sandbox, nodes: u32) -> (Vec<Program>, Vec<Orders>) {
    let orders = (0..nodes).map(|rank| sandbox.orders(rank)).collect();
    let mut agents = vec![job.host(WORKER)];
    agents.extend((1..nodes).map(|_| job.guest(WORKER)));
    for (rank, agent) in (0..nodes).zip(&mut agents) {
        let worker = agent.worker();
        assert_eq!(worker.number("rank"), rank);
    }
    (agents, orders)
}

/// Waits until the status of the job contains a text.
fn shown(sandbox: &Sandbox, job: &Job<'_>, part: &str) {
    let words = format!("status --watch --json --rdzv-endpoint {}", job.endpoint);
    sandbox.ragent(&words).start().prints(part);
}

fn give_all(orders: &[Orders], order: &str) {
    orders.iter().for_each(|orders| orders.give(order));
}

/// One of three nodes gets SIGTERM. All ranks learn of it and save, the node leaves, and the other two go on at once. No step is done again.
#[test]
fn others_go_on_after_a_checkpoint() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, &format!("--nnodes 2:3 {FLAGS}"));
    let (mut agents, orders) = start(&job, &sandbox, 3);
    give_all(&orders, "[report(f'X_RAGENT_STEP={n}') for n in range(1, 41)]");
    shown(&sandbox, &job, r#""step":40"#);
    agents[2].signal(Signal::SIGTERM);
    for agent in &mut agents {
        agent.logs("(SIGTERM); all ranks may save for 300 s");
    }
    give_all(&orders, "notice(1)");
    let here = agents.iter_mut().map(|agent| agent.prints("notice {").contains(r#""here":true"#));
    assert_eq!(here.collect::<Vec<_>>(), [false, false, true]);
    let status = job.status();
    assert_eq!(status["saving"]["kind"], "leave", "{status}");
    assert_eq!(
        (&status["saving"]["saved_ranks"], &status["saving"]["ranks"]),
        (&0.into(), &3.into())
    );
    // The last answer ends the round.
    orders[2].give("saved(40, 1)");
    orders[1].give("saved(40, 1)");
    orders[0].give("saved(40, 1)");
    let left = agents.pop().unwrap().end();
    left.assert_code(8);
    left.assert_stderr(&["notice 1: all ranks have saved step 40 after"]);
    for (rank, agent) in (0..).zip(&mut agents) {
        let worker = agent.worker();
        let numbers = ["rank", "restart"].map(|name| worker.number(name));
        assert_eq!(numbers, [rank, 0]);
    }
    give_all(&orders[..2], "print('saved', os.environ['RAGENT_SAVED_STEP'])");
    agents[0].prints("saved 40");
    give_all(&orders[..2], "report('X_RAGENT_STEP=41')");
    let mut explain =
        sandbox.ragent(&format!("events --follow --rdzv-endpoint {}", job.endpoint)).start();
    let cost = explain.prints("the restart took");
    assert!(cost.contains("saving") && !cost.contains("done again"), "{cost}");
}

/// A node that joins waits for a checkpoint, once the job has saved one before. If it goes away meanwhile, the notice is withdrawn.
#[test]
fn nodes_join_after_a_checkpoint() {
    let sandbox = Sandbox::with_standbys();
    let flags = "--notice 300 --rdzv-conf last_call_timeout=1,join_settle=0";
    let job = Job::new(&sandbox, &format!("--nnodes 2:3 {flags}"));
    let (mut agents, orders) = start(&job, &sandbox, 2);
    // Its worker needs a pipe, too.
    let _orders_of_the_third = sandbox.orders(2);
    give_all(&orders, "saved(7)");
    shown(&sandbox, &job, r#""saved_step":7"#);
    let third = job.guest(WORKER);
    agents[0].logs("notice 1: nodes join (1 node waits); all ranks may save for 300 s");
    third.signal(Signal::SIGKILL);
    let mut events =
        sandbox.ragent(&format!("events --follow --rdzv-endpoint {}", job.endpoint)).start();
    events.prints("notice 1: withdrawn, the waiting nodes are gone");
    let mut third = job.guest(WORKER);
    agents[0].logs("notice 2: nodes join (1 node waits)");
    give_all(&orders, "saved(9, 2)");
    agents[0].logs("notice 2: all ranks have saved step 9");
    for agent in agents.iter_mut().chain([&mut third]) {
        let size = agent.worker().number("world_size");
        assert_eq!(size, 3, "{}", agent.text(Stream::Stderr));
    }
}
