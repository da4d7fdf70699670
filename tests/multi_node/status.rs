//! Tests `ragent status` of a job of several nodes.

use std::{sync::mpsc, thread};

use nix::sys::signal::Signal;
use ragent_base::secret::{Secret, file};
use serde_json::Value;

use crate::{
    job::{Job, assert_served_everywhere, follow, pages, workers},
    support::{Sandbox, free_port, listening_ports},
};

/// Every agent sends the state of the job again after each change. The coordinator sends the end of the job.
#[test]
fn states_are_followed() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = job.guest("--no-python obey.sh");
    workers([&mut host, &mut guest]);
    let status = job.status();
    let nodes = status["nodes"].as_array().unwrap().iter();
    let ports = nodes.map(|node| u16::try_from(node["agent_port"].as_u64().unwrap()).unwrap());
    let coordinator = |port: &u16| job.endpoint.ends_with(&format!(":{port}"));
    let (mut ports, others): (Vec<u16>, Vec<u16>) = ports.partition(coordinator);
    ports.extend(others);
    let followers: Vec<_> = ports
        .into_iter()
        .map(|port| {
            let (begun, has_begun) = mpsc::channel();
            let follower = thread::spawn(move || {
                let mut states = Vec::new();
                follow(port, "/status?follow", |line| {
                    let state: Value = serde_json::from_str(line).unwrap();
                    states.push(state["phase"].as_str().unwrap().to_owned());
                    let _ = begun.send(());
                });
                states
            });
            has_begun.recv().unwrap();
            follower
        })
        .collect();
    orders.iter().for_each(|orders| orders.give("exit 0"));
    host.end().assert_code(0);
    guest.end().assert_code(0);
    let states: Vec<_> = followers.into_iter().map(|one| one.join().unwrap()).collect();
    assert!(states.iter().all(|states| states[0] == "running"), "{states:?}");
    assert_eq!(states[0].last().unwrap(), "closed", "{states:?}");
}

/// Members are listed first, in the order of their ranks, with the ranks of their workers. Nodes in the same state share a row, unless you
/// ask for each.
#[test]
fn status_lists_members_by_rank() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --nproc-per-node 2");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    host.workers(2);
    guest.workers(2);
    let mut spare = job.guest("--no-python stay.sh");
    spare.logs("this node is a spare");
    let status = job.status();
    let nodes = status["nodes"].as_array().unwrap();
    let firsts: Vec<_> = nodes.iter().map(|node| node["first_global_rank"].as_u64()).collect();
    assert_eq!(firsts, [Some(0), Some(2), None]);
    let table = |words| {
        let text = sandbox.ragent(words).run().stdout;
        let rows = text.lines().skip(3).map(|line| {
            let words = line.split_ascii_whitespace().map(str::to_owned);
            words.collect::<Vec<_>>()
        });
        (rows.collect::<Vec<_>>(), text)
    };
    let (rows, text) = table("status");
    assert_eq!(rows.len(), 2, "{text}");
    assert_eq!([&rows[0][0], &rows[0][2], &rows[0][3]], ["0-1", "×2", "0-3"], "{text}");
    let (rows, text) = table("status --nodes");
    assert_eq!(
        rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(),
        ["0", "1", "-"],
        "{text}"
    );
    assert_eq!(
        rows.iter().map(|row| row[3].as_str()).collect::<Vec<_>>(),
        ["0-1", "2-3", "(2)"],
        "{text}"
    );
}

/// `ragent status --watch` prints each state until the job is closed, from any agent.
#[test]
fn status_is_watched() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = job.guest("--no-python obey.sh");
    workers([&mut host, &mut guest]);
    let port = &job.status()["nodes"][1]["agent_port"];
    let words = format!("status --watch --rdzv-endpoint 127.0.0.1:{port}");
    let mut watching = sandbox.ragent(&words).start();
    watching.prints("job j  round 1  running  nodes 2  workers 2  restarts 0/1");
    orders[1].give("exit 7");
    workers([&mut host, &mut guest]);
    watching.prints("job j  round 2  running  nodes 2  workers 2  restarts 1/1");
    orders.iter().for_each(|orders| orders.give("exit 0"));
    host.end().assert_code(0);
    guest.end().assert_code(0);
    let watched = watching.end();
    watched.assert_code(0);
    assert!(watched.stdout.contains("job j  round 2  closed"), "{}", watched.stdout);
}

/// Every agent serves the same object to its user over HTTP, and metrics, even in a job with a secret. The agent that coordinates has the
/// metrics of the job.
#[test]
fn status_over_http() {
    let sandbox = Sandbox::new();
    let secret = sandbox.path("secret");
    file::create(&secret, &Secret::random().unwrap()).unwrap();
    for flags in ["--nnodes 2", &format!("--nnodes 2 --secret-file {}", secret.display())] {
        let job = Job::new(&sandbox, flags);
        let mut host = job.host("--no-python stay.sh");
        let mut guest = job.guest("--no-python stay.sh");
        workers([&mut host, &mut guest]);
        let status = job.status();
        assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2));
        assert_served_everywhere(&status);
        let metrics = pages(&status, "/metrics");
        let of_job = |text: &&String| text.contains("ragent_job_info{run_id=\"j\"");
        let [text] = metrics.iter().filter(of_job).collect::<Vec<_>>()[..] else {
            panic!("one process coordinates the job: {metrics:?}")
        };
        for line in [
            "ragent_phase{phase=\"running\"} 1",
            "ragent_nodes{state=\"running\"} 2",
            "ragent_round 1",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        let cpu = |text: &String| text.contains("process_cpu_seconds_total ");
        assert!(metrics.len() == 2 && metrics.iter().all(cpu), "{metrics:?}");
    }
}

/// While the coordinator of a job that has succeeded waits for a frozen node, status shows that the
/// job has succeeded.
#[test]
fn status_of_a_job_that_has_succeeded() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = job.guest("--no-python obey.sh");
    workers([&mut host, &mut guest]);
    let mut spare = job.guest("--no-python obey.sh");
    spare.logs("this node is a spare");
    // Repeats the request, so that one answer comes during the lease of the frozen node.
    let script = format!(
        "while text=$({} status --rdzv-endpoint {}); do
             echo \"$text\"; [[ $text == *succeeded ]] && exit 0
         done; exit 1",
        env!("CARGO_BIN_EXE_ragent"),
        job.endpoint
    );
    let mut asking = sandbox.program("/bin/bash").arg("-c").arg(script).start();
    asking.prints("job j  round 1  running");
    spare.signal(Signal::SIGSTOP);
    orders.iter().for_each(|orders| orders.give("exit 0"));
    guest.end().assert_code(0);
    let asked = asking.end();
    asked.assert_code(0);
    assert!(asked.stdout.ends_with("ragent: the job has succeeded\n"), "{}", asked.stdout);
    assert!(asked.stdout.contains("job j  round 1  closed"), "{}", asked.stdout);
    assert!(!asked.stdout.contains("FAILED"), "{}", asked.stdout);
    host.end().assert_code(0);
}

/// One voter that answers is enough. An agent that does not coordinate the job redirects to the coordinator. If no voter answers, the error
/// lists each of them with the cause.
#[test]
fn status_of_voters() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    let ports = Vec::from_iter(listening_ports(guest.pid()));
    let [port] = ports[..] else { panic!("one port was expected, not {ports:?}") };
    let refused = [free_port(), free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let asked = job.status();
    for answering in [&job.endpoint, &format!("127.0.0.1:{port}")] {
        let list = format!("{},{answering},{}", refused[0], refused[1]);
        let end = sandbox.ragent(&format!("status --json --rdzv-endpoint {list}")).run();
        end.assert_code(0);
        let status: Value = serde_json::from_str(&end.stdout).unwrap();
        for part in ["job_uid", "round", "phase", "world_size"] {
            assert_eq!(status[part], asked[part], "{part} from {list}");
        }
    }
    let end = sandbox.ragent("status").env("PET_RDZV_ENDPOINT", refused.join(",")).run();
    end.assert_code(1);
    let lines = refused.map(|voter| format!("\n  {voter}: cannot connect to {voter}: Connection"));
    let [first, second, third] = &lines;
    end.assert_stderr(&["from any of its voters", first, second, third, "hint: "]);
}

/// The registration of an agent contains the whole list of its voters. `ragent status` without arguments finds the job by it.
#[test]
fn status_finds_a_job_with_voters() {
    let sandbox = Sandbox::new();
    let list = [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
    let job = Job::at(&sandbox, list.clone(), "--nnodes 2");
    let mut host = job.guest("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    let end = sandbox.ragent("status").run();
    end.assert_code(0);
    assert!(end.stdout.starts_with("job j  round 1  running"), "{}", end.stdout);
    let mut other =
        sandbox.ragent("--rdzv-id b --rdzv-endpoint 127.0.0.1:0 --no-python stay.sh").start();
    other.worker();
    let end = sandbox.ragent("status").run();
    end.assert_code(1);
    end.assert_stderr(&[&format!("\n  run id j, endpoint {list}")]);
}

/// An agent that waits for its coordinator is a job of this machine. Status shows what it waits for, and that it runs.
#[test]
fn status_of_an_agent_that_waits() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --rdzv-conf is_host=0");
    let mut agent = job.guest("--no-python stay.sh");
    agent.logs("waiting for the coordinator");
    let [endpoint, pid] = [job.endpoint.clone(), agent.pid().to_string()];
    for words in ["status", "status --rdzv-endpoint auto"] {
        let end = sandbox.ragent(words).run();
        end.assert_code(1);
        let waits = format!(
            "job j has no coordinator yet: its agent on this machine (process {pid}) is waiting for"
        );
        end.assert_stderr(&[&waits, &endpoint, "Connection refused", "hint: "]);
    }
    let end = sandbox.ragent(&format!("status --rdzv-endpoint {endpoint}")).run();
    end.assert_code(1);
    end.assert_stderr(&[
        &format!("its agent on this machine is running (process {pid})"),
        "hint: ",
    ]);
    assert!(!end.stderr.contains("check that its agent is running"), "{}", end.stderr);
    // An agent that has ended leaves no registration.
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    sandbox
        .ragent("status")
        .run()
        .assert_stderr(&["no job of this user is running on this machine"]);
}
