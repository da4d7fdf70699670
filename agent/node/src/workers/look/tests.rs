//! Looks at real processes.

mod gloo;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, mkfifo},
};
use ragent_base::output::logs::LogFolder;
use ragent_rendezvous::ids::{Round, RoundId, Term};

use super::*;

/// Processes that are killed when this is dropped.
struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts Python, and waits until it has printed a line.
fn python(code: &str) -> Child {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", code]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn order(part: LookPart, shows_lines: bool) -> LookOrder {
    let round = RoundId { term: Term(2), round: Round(5) };
    LookOrder { round, number: 3, part, asks_nccl: false, shows_lines }
}

/// Waits until a process sleeps in this function of the kernel, or one whose name contains it.
fn settle(pid: u32, function: &str) {
    let has_settled = || {
        let place = ragent_base::sys::proc::read(&format!("{pid}/wchan")).unwrap_or_default();
        place.contains(function)
    };
    while !has_settled() {
        std::thread::yield_now();
    }
}

/// A program in the place of py-spy, which prints this for the process whose number is the second argument.
fn fake_spy(folder: &Path, frames: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("py-spy");
    let json = format!(
        r#"[{{"pid": $3, "os_thread_id": $3, "thread_name": "MainThread", "frames": {frames}}}]"#
    );
    let json = json.replace('"', "\\\"");
    fs::write(&path, format!("#!/bin/sh\necho \"{json}\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const FRAMES: &str = r#"[{"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
                         {"name": "main", "filename": "/a/t.py", "short_filename": "t.py", "line": 7}]"#;

/// Three workers are described: the first is connected to the store, the second waits for another process, and the third
/// was stopped. The stopped worker comes first. The whole stacks are in the files.
#[tokio::test]
async fn workers_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = store.local_addr().unwrap().port();
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let connects = format!(
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}))\nprint('ready')\ns.recv(1)"
    );
    let reads = format!("print('ready')\nopen({:?}).read()", fifo.to_str().unwrap());
    let sleeps = "import time\nprint('ready')\ntime.sleep(1000)".to_owned();
    let started = Started([connects, reads, sleeps].iter().map(|code| python(code)).collect());
    let pids: Vec<u32> = started.0.iter().map(Child::id).collect();
    settle(pids[0], "wait_woken");
    settle(pids[1], "wait_for_partner");
    let stopped = Pid::from_raw(pids[2].cast_signed());
    kill(stopped, Signal::SIGSTOP).unwrap();
    waitpid(stopped, Some(WaitPidFlag::WUNTRACED)).unwrap();
    let run_id = ragent_rendezvous::ids::RunId::new("job7");
    let logs =
        LogFolder::create(Some(&folder.path().join("logs")), folder.path(), &run_id).unwrap();
    let kept = |local_rank: u32| logs.worker(0, LocalRank(local_rank)).unwrap();
    let worker = |(local_rank, pid): (u32, &u32)| {
        let folder = kept(local_rank);
        (LocalRank(local_rank), LookedAt { pid: *pid, folder, worker_server: None })
    };
    let request = LookRequest {
        order: order(LookPart::Second, true),
        first_rank: GlobalRank(8),
        world_size: 16,
        store_port: port,
        workers: (0..).zip(&pids).map(worker).collect(),
        py_spy: Some(fake_spy(folder.path(), FRAMES)),
        facts: Vec::new(),
    };
    let digest = look(request.clone()).await;
    assert_eq!((digest.round, digest.look), (request.order.round, 3));
    assert_eq!(digest.part, LookPart::Second);
    let described = |look: &WorkerLook| (look.rank.0, look.state, look.has_reached_store);
    let described: Vec<_> = digest.workers.iter().map(described).collect();
    let expected =
        [(10, Some('T'), Some(false)), (9, Some('S'), Some(false)), (8, Some('S'), Some(true))];
    assert_eq!(described, expected);
    for look in &digest.workers {
        assert_eq!(look.activity, Some(Activity::Collective));
        assert_eq!(look.line.as_deref(), Some("all_reduce at t.py:7"));
    }
    assert_eq!(digest.workers[1].waits_in.as_deref(), Some("wait_for_partner"));
    let stack = fs::read_to_string(kept(1).unwrap().stack_file()).unwrap();
    for part in [
        "look 3, part 2\n",
        "python3 -u -c",
        "waits in wait_for_partner",
        ".so",
        "    main (t.py:7)",
    ] {
        assert!(stack.contains(part), "no `{part}` in:\n{stack}");
    }
}

/// If lines must not leave the node, the digest has only the activity. Without py-spy it has none, and without
/// files there are none.
#[tokio::test]
async fn lines_stay_on_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let started = Started(vec![python("import time\nprint('ready')\ntime.sleep(1000)")]);
    let worker = LookedAt { pid: started.0[0].id(), folder: None, worker_server: None };
    let mut request = LookRequest {
        order: order(LookPart::First, false),
        first_rank: GlobalRank(0),
        world_size: 1,
        store_port: 1,
        workers: BTreeMap::from([(LocalRank(0), worker)]),
        py_spy: Some(fake_spy(folder.path(), FRAMES)),
        facts: Vec::new(),
    };
    let digest = look(request.clone()).await;
    assert_eq!(digest.workers[0].activity, Some(Activity::Collective));
    assert_eq!(digest.workers[0].line, None);
    request.py_spy = None;
    assert_eq!(look(request).await.workers[0].activity, None);
}

/// Workers that differ from the others come first, and are never left out.
#[test]
fn unusual_workers_come_first() {
    let usual = |rank| WorkerLook {
        rank: GlobalRank(rank),
        activity: Some(Activity::Collective),
        state: Some('S'),
        has_reached_store: Some(true),
        ..WorkerLook::default()
    };
    let mut looks: Vec<_> = (0..100).map(usual).collect();
    looks[90].state = Some('D');
    looks[91].activity = Some(Activity::Other);
    looks[92].has_reached_store = Some(false);
    looks[93].state = Some('T');
    let ranks: Vec<u32> = most_unusual(looks).iter().map(|look| look.rank.0).collect();
    assert_eq!(ranks[..6], [93, 92, 90, 91, 0, 1]);
    assert_eq!(ranks.len(), DIGEST_WORKERS_MAX);
}
