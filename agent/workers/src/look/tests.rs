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
    LookOrder { round, number: 3, part, shows_lines }
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

/// A program in the place of py-spy, which prints this for the process whose number is the second argument. It writes its
/// arguments to a file, one line for each start.
fn fake_spy(folder: &Path, frames: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("py-spy");
    let json = format!(
        r#"[{{"pid": $3, "os_thread_id": $3, "thread_name": "MainThread", "frames": {frames}}}]"#
    );
    let json = json.replace('"', "\\\"");
    let started = folder.join("py-spy.txt");
    let script = format!("#!/bin/sh\necho \"$*\" >> {}\necho \"{json}\"\n", started.display());
    fs::write(&path, script).unwrap();
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
    // A worker chooses its command and its name.
    let sleeps = "import time # \u{1b}[31m\nopen('/proc/self/comm', 'w').write('a\\x1bb\\nc')\nprint('ready')\ntime.sleep(1000)";
    let sleeps = sleeps.to_owned();
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
        (LocalRank(local_rank), LookedAt { pid: *pid, folder, ..LookedAt::default() })
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
    let (digest, contents) = look(request.clone()).await;
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
    // A worker that py-spy stops could stay stopped.
    let started = fs::read_to_string(folder.path().join("py-spy.txt")).unwrap();
    let has_paused = started.lines().any(|arguments| !arguments.contains("--nonblocking"));
    assert!(started.lines().count() == 3 && !has_paused, "{started}");
    files::write(contents);
    let files = request.workers[&LocalRank(1)].files.clone();
    files.written().await;
    request.workers[&LocalRank(2)].files.written().await;
    let stack = fs::read_to_string(kept(2).unwrap().stack_file()).unwrap();
    assert!(
        stack.contains(" ab c: T (stopped)") && stack.contains("import time # [31m open"),
        "{stack}"
    );
    assert!(!stack.contains(|c: char| c.is_control() && c != '\n'), "{stack:?}");
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

/// A log folder on a server that does not answer delays no digest. At most one task of a worker waits for it, and what
/// further looks would write is dropped.
#[tokio::test]
async fn hung_log_folder_delays_no_digest() {
    let folder = tempfile::tempdir().unwrap();
    let started = Started(vec![python("import time\nprint('ready')\ntime.sleep(1000)")]);
    let run_id = ragent_rendezvous::ids::RunId::new("job7");
    let logs = LogFolder::create(Some(folder.path()), folder.path(), &run_id).unwrap();
    let kept = logs.worker(0, LocalRank(0)).unwrap().unwrap();
    // Opening it for writing waits until another process reads.
    mkfifo(&kept.stack_file(), Mode::S_IRWXU).unwrap();
    let worker =
        LookedAt { pid: started.0[0].id(), folder: Some(kept.clone()), ..LookedAt::default() };
    let files = worker.files.clone();
    let mut request = LookRequest {
        order: order(LookPart::First, true),
        first_rank: GlobalRank(0),
        world_size: 1,
        store_port: 1,
        workers: BTreeMap::from([(LocalRank(0), worker)]),
        py_spy: None,
        facts: Vec::new(),
    };
    for number in [3, 4] {
        request.order.number = number;
        let (digest, contents) = look(request.clone()).await;
        assert_eq!((digest.look, digest.workers.len()), (number, 1));
        files::write(contents);
    }
    let stack = fs::read_to_string(kept.stack_file()).unwrap();
    assert!(stack.starts_with("look 3, part 1\n") && !stack.contains("look 4"), "{stack}");
    files.written().await;
    request.order.number = 5;
    let (_, contents) = look(request).await;
    files::write(contents);
    let stack = fs::read_to_string(kept.stack_file()).unwrap();
    assert!(stack.starts_with("look 5, part 1\n"), "{stack}");
}

/// If lines must not leave the node, the digest has only the activity. Without py-spy it has none, and without
/// files there are none.
#[tokio::test]
async fn lines_stay_on_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let started = Started(vec![python("import time\nprint('ready')\ntime.sleep(1000)")]);
    let worker = LookedAt { pid: started.0[0].id(), ..LookedAt::default() };
    let mut request = LookRequest {
        order: order(LookPart::First, false),
        first_rank: GlobalRank(0),
        world_size: 1,
        store_port: 1,
        workers: BTreeMap::from([(LocalRank(0), worker)]),
        py_spy: Some(fake_spy(folder.path(), FRAMES)),
        facts: Vec::new(),
    };
    let (digest, contents) = look(request.clone()).await;
    assert!(contents.is_empty());
    assert_eq!(digest.workers[0].activity, Some(Activity::Collective));
    assert_eq!(digest.workers[0].line, None);
    request.py_spy = None;
    assert_eq!(look(request).await.0.workers[0].activity, None);
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
    let few = looks[..DIGEST_WORKERS_MAX].to_vec();
    let (looks, is_cut) = most_unusual(looks);
    let ranks: Vec<u32> = looks.iter().map(|look| look.rank.0).collect();
    assert_eq!(ranks[..6], [93, 92, 90, 91, 0, 1]);
    assert!(ranks.len() == DIGEST_WORKERS_MAX && is_cut);
    assert_eq!(most_unusual(few.clone()), (few, false));
}
