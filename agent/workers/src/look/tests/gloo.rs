//! Looks at real jobs with gloo, and explains them. Without a Python that has torch, these tests are skipped.

use std::{collections::BTreeMap, time::Duration};

use ragent_base::sys::clock;
use ragent_rendezvous::stall::{Own, RankedNode, explain_stall};

use super::*;

/// The longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(120);

const WORLD_SIZE: u32 = 3;

/// Prepares a job of three ranks. The rest of the script follows. `t` is a tensor, and `r` the rank.
const BEGIN: &str = "import os, sys, time
import torch
import torch.distributed as dist
if os.environ.get('TORCH_WORKER_SERVER_SOCKET'):
    import ragent
    assert ragent.observe()
dist.init_process_group('gloo')
r, t = dist.get_rank(), torch.ones(4)
sub = dist.new_group([0, 1])
dist.all_reduce(t)
os.write(1, b'ready\\n')
";

/// A program that imports torch once, and forks the ranks. It prints the process number of each rank. Each rank runs the script of the test.
const RANKS: &str = "import os, sys
import torch, torch.distributed
script, size, sockets = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
for rank in range(size):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        if sockets:
            os.environ['TORCH_WORKER_SERVER_SOCKET'] = sockets[rank]
        exec(compile(open(script).read(), script, 'exec'), {'__name__': '__main__', '__file__': script})
        os._exit(0)
    os.write(1, b'%d %d\\n' % (rank, pid))
for _ in range(size):
    os.wait()
";

/// The workers of a job.
struct Job {
    /// The process that has forked the ranks.
    _parent: Started,
    /// The processes of the ranks, each with its socket.
    ranks: BTreeMap<u32, (Pid, PathBuf)>,
    _folder: tempfile::TempDir,
    port: u16,
    has_server: bool,
}

impl Drop for Job {
    fn drop(&mut self) {
        for (pid, _) in self.ranks.values() {
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }
}

impl Job {
    /// Starts a job whose script goes on like this; `None` without torch.
    fn start(rest: &str, has_server: bool) -> Option<Self> {
        Self::start_script(&format!("{BEGIN}{rest}"), has_server)
    }

    /// Starts a job that runs this script, and waits until all ranks print `ready`; `None` without torch.
    fn start_script(text: &str, has_server: bool) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join(".venv/bin/python");
        if !python.exists() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("t.py");
        fs::write(&script, text).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let socket = |rank: u32| folder.path().join(format!("{rank}.torch"));
        let mut command = Command::new(&python);
        command.args(["-u", "-c", RANKS]).arg(&script).arg(WORLD_SIZE.to_string());
        if has_server {
            command.args((0..WORLD_SIZE).map(socket));
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("OMP_NUM_THREADS", "1").env("PYTHONPATH", root.join("packaging/python"));
        let mut parent = Started(vec![command.spawn().unwrap()]);
        let output = BufReader::new(parent.0[0].stdout.take().unwrap());
        let (mut ranks, mut ready) = (BTreeMap::new(), 0);
        // Each line is written by one call, so lines of several processes are whole.
        for line in output.lines().map(Result::unwrap) {
            if let Some((rank, pid)) = line.split_once(' ') {
                let rank = rank.parse().unwrap();
                ranks.insert(rank, (Pid::from_raw(pid.parse().unwrap()), socket(rank)));
            } else {
                assert_eq!(line, "ready");
                ready += 1;
            }
            if (ranks.len(), ready) == (WORLD_SIZE as usize, WORLD_SIZE) {
                return Some(Self { _parent: parent, ranks, _folder: folder, port, has_server });
            }
        }
        panic!("the job has ended")
    }

    async fn look(&self, part: LookPart) -> Digest {
        let worker = |(rank, (pid, socket)): (&u32, &(Pid, PathBuf))| {
            let worker_server = self.has_server.then(|| socket.clone());
            let pid = pid.as_raw().cast_unsigned();
            (LocalRank(*rank), LookedAt { pid, worker_server, ..LookedAt::default() })
        };
        let py_spy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/py-spy");
        let (digest, _) = look(LookRequest {
            order: order(part, true),
            first_rank: GlobalRank(0),
            world_size: WORLD_SIZE,
            store_port: self.port,
            workers: self.ranks.iter().map(worker).collect(),
            py_spy: py_spy.exists().then_some(py_spy),
            facts: Vec::new(),
        })
        .await;
        digest
    }

    /// Looks until both parts explain the stall like this.
    async fn assert_explained(&self, expected: &str, blamed: Option<u32>) {
        let first =
            RankedNode { host: "n0".to_owned(), workers: WORLD_SIZE, ..RankedNode::default() };
        let order = order(LookPart::First, true);
        let own =
            Own { round: order.round, look: order.number, nodes: vec![first], ..Own::default() };
        let until = clock::now() + PATIENCE;
        loop {
            let digests = [self.look(LookPart::First).await, self.look(LookPart::Second).await];
            let explanation = explain_stall(&digests, &own);
            let rank = explanation.rank.map(|rank| rank.0);
            if explanation.text.starts_with(expected) && rank == blamed {
                return;
            }
            // The workers may not have reached the place yet.
            assert!(clock::now() < until, "{explanation:#?}\n{digests:#?}");
        }
    }
}

/// A rank that sleeps before a collective is blamed with the records of torch, and named by its stack without them.
#[tokio::test]
async fn rank_that_sleeps_is_named() {
    let rest = "if r == 2:\n    time.sleep(1000)\ndist.all_reduce(t)\n";
    let Some(job) = Job::start(rest, true) else { return };
    let text = "rank 2 has not launched all_reduce 2 of the group of 3 ranks, which 2 ranks have launched (records of \
                torch; unchanged after 10 s)";
    job.assert_explained(text, Some(2)).await;
    let Some(job) = Job::start(rest, false) else { return };
    let text = "ranks 0, 1 wait in all_reduce (t.py:14); rank 2 is in <module> (t.py:13)";
    job.assert_explained(text, None).await;
}

/// A rank that was stopped, one in another collective, and one for which others wait in a subgroup are named.
#[tokio::test]
async fn other_faults_are_named() {
    let stops = "if r == 1:\n    os.kill(os.getpid(), 19)\ndist.all_reduce(t)\n";
    if let Some(job) = Job::start(stops, false) {
        let text = "ranks 0, 2 wait in all_reduce (t.py:14); rank 1 is stopped";
        job.assert_explained(text, None).await;
    }
    let differs = "if r == 1:\n    dist.broadcast(t, 1)\n    time.sleep(1000)\nelse:\n    dist.all_reduce(t)\n";
    if let Some(job) = Job::start(differs, true) {
        let text = "rank 1 has launched broadcast [4] float as number 2";
        job.assert_explained(text, Some(1)).await;
    }
    let nested = "if r == 0:\n    time.sleep(1000)\nif r == 1:\n    dist.all_reduce(t, group=sub)\ndist.all_reduce(t)\n";
    if let Some(job) = Job::start(nested, true) {
        job.assert_explained("rank 0 has not launched", Some(0)).await;
    }
}

/// Without the server, the stacks still name two ranks: one calls another collective, and others of two groups wait for one.
#[tokio::test]
async fn other_faults_are_named_without_the_server() {
    let differs = "if r == 1:\n    dist.broadcast(t, 1)\n    time.sleep(1000)\nelse:\n    dist.all_reduce(t)\n";
    if let Some(job) = Job::start(differs, false) {
        let text = "ranks 0, 2 wait in all_reduce (t.py:16); rank 1 is in ";
        job.assert_explained(text, None).await;
    }
    let nested = "if r == 0:\n    time.sleep(1000)\nif r == 1:\n    dist.all_reduce(t, group=sub)\ndist.all_reduce(t)\n";
    if let Some(job) = Job::start(nested, false) {
        let text = "ranks 1, 2 wait in all_reduce (t.py:15); rank 0 is in <module> (t.py:13)";
        job.assert_explained(text, None).await;
    }
}

/// A rank that waits for the writer of a pipe is named, with the line that reads it.
#[tokio::test]
async fn rank_that_reads_a_pipe_is_named() {
    let reads = "if r == 2:\n    os.mkfifo(f'{__file__}.fifo')\n    open(f'{__file__}.fifo').read()\ndist.all_reduce(t)\n";
    if let Some(job) = Job::start(reads, true) {
        let text = "rank 2 has not launched all_reduce 2 of the group of 3 ranks, which 2 ranks have launched";
        job.assert_explained(text, Some(2)).await;
    }
    if let Some(job) = Job::start(reads, false) {
        let text = "ranks 0, 1 wait in all_reduce (t.py:15); rank 2 is in <module> (t.py:14)";
        job.assert_explained(text, None).await;
    }
}

/// A rank that does not come to `init_process_group` has not reached the store, with and without the server.
#[tokio::test]
async fn rank_that_does_not_reach_the_store_is_named() {
    let script = "import os, time
import torch
import torch.distributed as dist
if os.environ.get('TORCH_WORKER_SERVER_SOCKET'):
    import ragent
    assert ragent.observe()
os.write(1, b'ready\\n')
if os.environ['RANK'] == '2':
    time.sleep(1000)
dist.init_process_group('gloo')
";
    for has_server in [false, true] {
        let Some(job) = Job::start_script(script, has_server) else { return };
        let text = "rank 2 has not reached the store; 2 of 3 have (unchanged after 10 s)";
        job.assert_explained(text, Some(2)).await;
    }
}
