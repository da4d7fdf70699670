//! Tests the sources of notices on one node: signals, `ragent notice` and its socket, and the program of `--notice-command`.

use std::{fs, os::unix::fs::PermissionsExt};

use nix::{sys::signal::Signal, unistd::geteuid};
use serde_json::Value;

use crate::support::{Orders, Program, Sandbox, skip};

/// A job of two workers that follow orders, and can save for 5 minutes after a notice.
fn start(sandbox: &Sandbox, flags: &str) -> (Program, [Orders; 2]) {
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let words = format!("--nproc-per-node 2 --notice 300 {flags} --no-python steps.py");
    let mut agent = sandbox.ragent(&words).start();
    agent.workers(2);
    (agent, orders)
}

fn give_all(orders: &[Orders; 2], order: &str) {
    orders.iter().for_each(|orders| orders.give(order));
}

/// SIGTERM is a notice. Both ranks see it, and save the same step. Then the job ends with 5.
#[test]
fn all_ranks_save_before_the_job_ends() {
    let sandbox = Sandbox::with_standbys();
    let (mut agent, orders) = start(&sandbox, "");
    give_all(&orders, "notice()");
    agent.prints("no notice");
    agent.prints("no notice");
    give_all(&orders, "report('X_RAGENT_STEP=130')");
    agent.signal(Signal::SIGTERM);
    agent.logs("notice 1: the job ends (SIGTERM); all ranks may save for 300 s");
    give_all(&orders, "notice(1)");
    for _ in 0..2 {
        let line = agent.prints("notice {");
        let notice: Value = serde_json::from_str(line.trim_start_matches("notice ")).unwrap();
        assert_eq!(notice["schema"], 1, "{notice}");
        assert_eq!((&notice["notice"], &notice["kind"]), (&1.into(), &"end".into()), "{notice}");
        assert_eq!((&notice["here"], &notice["text"]), (&true.into(), &"SIGTERM".into()));
        assert!(notice["until"].as_f64().is_some_and(|until| until > 1.7e9), "{notice}");
    }
    orders[0].give("saved(120, 1)");
    orders[1].give("saved(130, 1); print('other step')");
    agent.prints("other step");
    let status = sandbox.ragent("status").run();
    status.assert_code(0);
    assert!(status.stdout.contains("saving: 0 of 2 ranks, "), "{}", status.stdout);
    assert!(status.stdout.contains("not yet: 0-1"), "{}", status.stdout);
    orders[0].give("saved(130, 1)");
    let end = agent.end();
    end.assert_code(5);
    end.assert_stderr(&[
        "notice 1: all ranks have saved step 130 after",
        "ragent: the job is saved at step 130: start it again, and it goes on from there",
    ]);
    sandbox.assert_nothing_left();
}

/// `ragent notice` waits until all ranks have saved. It finds the agents of one job, and says if there is none.
#[test]
fn command_gives_a_notice_and_waits() {
    let sandbox = Sandbox::with_standbys();
    let none = sandbox.ragent("notice leave").run();
    none.assert_code(1);
    none.assert_stderr(&["no agent of this user runs on this machine"]);
    let (mut agent, orders) =
        start(&sandbox, "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --rdzv-id here");
    let other = sandbox.ragent("notice end --rdzv-id elsewhere").run();
    other.assert_code(1);
    other.assert_stderr(&["no agent of the job `elsewhere` of this user runs"]);
    let mut waits = sandbox.ragent("notice save --wait --rdzv-id here").start();
    waits.prints("notice given");
    agent.logs("notice 1: a checkpoint is wanted");
    give_all(&orders, "notice(1)");
    let line = agent.prints("notice {");
    assert!(line.contains(r#""kind":"save""#) && !line.contains("until"), "{line}");
    give_all(&orders, "saved(20, 1)");
    waits.prints("all ranks of this node have saved step 20");
    waits.end().assert_code(0);
    let mut waits = sandbox.ragent("notice end --wait").start();
    waits.prints("notice given");
    agent.logs("notice 2: the job ends (ragent notice)");
    give_all(&orders, "saved(30, 2)");
    waits.prints("all ranks have saved step 30");
    waits.end().assert_code(0);
    agent.end().assert_code(5);
}

/// Only the user of the agent and root may give it a notice.
#[test]
fn strangers_give_no_notice() {
    if !geteuid().is_root() {
        return skip("root is needed to become another user");
    }
    let sandbox = Sandbox::with_standbys();
    let (agent, _orders) = start(&sandbox, "");
    fs::set_permissions(sandbox.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let ask = |words: &str| {
        let program = sandbox.program("setpriv").arg("--reuid=nobody").arg("--clear-groups");
        let program =
            words.split(' ').fold(program.arg(env!("CARGO_BIN_EXE_ragent")), |p, word| p.arg(word));
        let end = program.run();
        assert_ne!(end.code, Some(0), "{end:?}");
    };
    ask("notice end");
    let folder = sandbox.path("run/ragent");
    ask(&format!("notice end --runtime-dir {}", folder.display()));
    // The agent goes on: the next signal is its first notice.
    agent.signal(Signal::SIGTERM);
    let mut agent = agent;
    agent.logs("notice 1: the job ends (SIGTERM)");
}

/// A signal of `--notice-on` to the whole group ends no worker: they ignore it. It is a notice to the agent.
#[test]
fn signal_may_be_a_notice() {
    let sandbox = Sandbox::with_standbys();
    let (mut agent, orders) = start(&sandbox, "--notice-on SIGUSR1,USR2=save");
    give_all(&orders, "import signal; os.kill(os.getpid(), signal.SIGUSR1); print('lives')");
    agent.prints("lives");
    agent.prints("lives");
    agent.signal(Signal::SIGUSR2);
    agent.logs("notice 1: a checkpoint is wanted");
    agent.signal(Signal::SIGUSR1);
    agent.logs("notice 2: the job ends (SIGUSR1)");
    give_all(&orders, "saved(5, 2)");
    agent.end().assert_code(5);
}

/// The lines of a program are notices. Other lines are reported once, and a program that ends is started again.
#[test]
fn program_may_print_notices() {
    let sandbox = Sandbox::with_standbys();
    let program = sandbox.path("notices");
    let script = "#!/bin/sh\necho hello; echo 'leave soon'\n[ -e again ] && echo 'end 60 spot' && exec sleep 1000\n\
                  touch again\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (mut agent, orders) = start(&sandbox, &format!("--notice-command {}", program.display()));
    agent.logs("notice 1: the job ends (spot); all ranks may save for 60 s");
    give_all(&orders, "saved(5, 1)");
    let end = agent.end();
    end.assert_code(5);
    end.assert_stderr(&["has ended; starting it again after a pause"]);
    assert_eq!(end.stderr.matches("that is not a notice").count(), 1, "{}", end.stderr);
    sandbox.assert_nothing_left();
}

/// Workers know the newest step that all ranks have saved, and how many starts made no progress.
#[test]
fn variables_tell_of_the_past() {
    let sandbox = Sandbox::with_standbys();
    let (mut agent, orders) = start(&sandbox, "--max-restarts 5 --journal journal");
    let show = "print('past', os.environ['RAGENT_SAVED_STEP'] or 'none', \
                os.environ['RAGENT_ROUNDS_WITHOUT_PROGRESS'])";
    orders[0].give(show);
    agent.prints("past none 0");
    give_all(&orders, "report('X_RAGENT_STEP=7'); saved(7)");
    let saved = |agent: &mut Program, orders: &[Orders; 2], expected: &str| {
        orders[1].give("exit(3)");
        agent.workers(2);
        orders[0].give(show);
        agent.prints(expected);
    };
    // The step is reported with the next keep-alives.
    let mut watch = sandbox.ragent("status --watch --json").start();
    watch.prints(r#""saved_step":7"#);
    saved(&mut agent, &orders, "past 7 1");
    saved(&mut agent, &orders, "past 7 2");
}
