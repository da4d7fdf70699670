//! Attacks the connections on which the agents of a job with a secret exchange checkpoints in memory.

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use ragent_base::{
    net::secure_stream::{self, SecureStream},
    secret::{ALPN_MEMORY, Credentials, Origin, Secret},
    sys::clock,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    attacker::{here, http},
    support::{Network, Orders, PATIENCE, Program, Sandbox, Stream, let_pass, may_make_networks},
    victim::{ATTACKER, ENDPOINT},
};

/// The secret of the job.
const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// The length of a frame.
const FRAME_LEN: usize = 80;
/// More than a connection takes without a reader.
const LARGE: u64 = 64 << 20;

/// A job of two nodes with different host names and a worker each, so that each keeps the copies of the other.
struct Victim {
    sandbox: Sandbox,
    network: Network,
    orders: Vec<Orders>,
    /// By rank.
    agents: Vec<Program>,
}

impl Victim {
    /// Returns `None` if networks cannot be made.
    fn new(name: &str, has_secret: bool) -> Option<Self> {
        if !may_make_networks() {
            return None;
        }
        let sandbox = Sandbox::new();
        let path = sandbox.path("secret");
        fs::write(&path, SECRET).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let secret =
            if has_secret { format!("--secret-file {}", path.display()) } else { String::new() };
        let network = Network::new(name, 3);
        let orders = (0..2).map(|rank| sandbox.orders(rank)).collect();
        let agent = |node: u32| {
            let script = format!(
                "hostname n{node}; exec {} --nnodes 2 --rdzv-id job --local-addr {} --rdzv-endpoint {ENDPOINT} \
                 --rdzv-conf last_call_timeout=600 {secret} --no-python memory.py",
                env!("CARGO_BIN_EXE_ragent"),
                Network::address(node)
            );
            let runtime_dir = sandbox.path(&format!("run{node}"));
            fs::create_dir_all(&runtime_dir).unwrap();
            let start = network.program(&sandbox, node, "unshare").arg("-u").arg("bash");
            start.arg("-c").arg(script).env("XDG_RUNTIME_DIR", runtime_dir).start()
        };
        let mut agents: Vec<(String, Program)> = [1, 2]
            .map(|node| {
                let mut agent = agent(node);
                if node == 1 {
                    agent.endpoint();
                }
                agent
            })
            .into_iter()
            .map(|mut agent| (agent.prints(" pid="), agent))
            .collect();
        agents.sort_by(|(a, _), (b, _)| a.cmp(b));
        let agents = agents.into_iter().map(|(_, agent)| agent).collect();
        Some(Self { sandbox, network, orders, agents })
    }

    fn give(&self, order: &str) {
        self.orders.iter().for_each(|orders| orders.give(order));
    }

    /// Saves a step, and waits until it is whole: each node has the copy of the other.
    #[track_caller]
    fn save(&mut self, step: u64, bytes: u64) {
        self.give(&format!("save({step}, {bytes})"));
        self.give(&format!("while ask(ask='newest')[0]['step'] != {step}: time.sleep(0.01)"));
        self.give("newest()");
        for (rank, agent) in self.agents.iter_mut().enumerate() {
            agent.prints(&format!("rank={rank} newest={step}"));
        }
        // Without a copy, the reason is here.
        let memory = self.status()["memory"].clone();
        assert_eq!(memory["text"], Value::Null, "{memory}");
    }

    fn status(&self) -> Value {
        let answer = here(&self.network, 1, || {
            let mut stream = TcpStream::connect(ENDPOINT).unwrap();
            let request = "GET /status HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n\r\n";
            http(&mut stream, request);
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn job_uid(&self) -> String {
        self.status()["job_uid"].as_str().unwrap().to_owned()
    }

    /// The address of the agent with this rank.
    fn address_of(&self, rank: u32) -> SocketAddr {
        let status = self.status();
        let nodes = status["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|node| node["group_rank"] == rank).unwrap();
        format!("{}:{}", node["address"].as_str().unwrap(), node["agent_port"]).parse().unwrap()
    }

    /// Runs the attacker.
    fn attack<T: Send>(&self, attack: impl Future<Output = T> + Send) -> T {
        here(&self.network, ATTACKER, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let attack = async { tokio::time::timeout(PATIENCE, attack).await.unwrap() };
            runtime.unwrap().block_on(attack)
        })
    }

    /// The number of open connections of the attacker, as the first agent has them.
    fn connections(&self) -> usize {
        let table = format!("/proc/{}/net/tcp", self.agents[0].pid());
        let tables = [&table, &(table.clone() + "6")].map(|path| fs::read_to_string(path).unwrap());
        let is_open = |line: &&str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words[2].contains("03004D0A:") && words[3] == "01"
        };
        tables.iter().flat_map(|table| table.lines()).filter(is_open).count()
    }

    #[track_caller]
    fn assert_unharmed(&mut self) {
        let status = self.status();
        assert_eq!(
            (&status["round"], &status["phase"]),
            (&1.into(), &"running".into()),
            "{status}"
        );
        for agent in &mut self.agents {
            agent.receive_pending();
            let text = agent.text(Stream::Stderr);
            assert!(!text.contains("round ended") && !text.contains("panicked"), "{text}");
        }
    }
}

fn credentials(secret: &str) -> Credentials {
    Credentials::new(vec![Secret::new(secret).unwrap()], Origin::Stdin)
}

fn greeting(job_uid: &str) -> Vec<u8> {
    let digest = Sha256::digest(job_uid.as_bytes());
    [b"ragent\0m", &1_u32.to_be_bytes()[..], &[0; 20], &digest].concat()
}

/// The bytes that name a block of the first round: of the one worker of a node.
fn block(step: u64, group_rank: u32) -> Vec<u8> {
    let numbers = [1, 1, step].map(u64::to_be_bytes).concat();
    [&numbers[..], &group_rank.to_be_bytes(), &[0; 4]].concat()
}

fn get(step: u64, group_rank: u32) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0], &block(step, group_rank)[..]].concat();
    frame.resize(FRAME_LEN, 0);
    frame
}

fn put(step: u64, group_rank: u32, bytes: u64) -> Vec<u8> {
    let ranks = [2, group_rank, 1].map(u32::to_be_bytes).concat();
    let block = block(step, group_rank);
    let mut frame = [&[1, 1, 0, 0], &block[..], &ranks, &bytes.to_be_bytes(), &[7; 16]].concat();
    frame.resize(FRAME_LEN, 0);
    frame
}

async fn send(stream: &mut SecureStream, bytes: &[u8]) {
    // The other end may have closed it.
    if stream.write_all(bytes).await.is_ok() {
        let _ = stream.flush().await;
    }
}

/// Opens a connection with the secret, and greets as a process of this job. The greeting of the agent is read.
async fn opened(address: SocketAddr, job_uid: &str) -> SecureStream {
    let credentials = credentials(SECRET);
    let mut stream = secure_stream::connect(address, &credentials, ALPN_MEMORY).await.unwrap();
    send(&mut stream, &greeting(job_uid)).await;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await.unwrap();
    stream
}

/// Sends bytes, and returns the answer.
async fn plain(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // It may be reset.
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

/// Without the secret, a process gets no byte, in plain text or with another secret. With the secret, a process of another job gets only
/// the greeting.
#[test]
fn strangers_and_other_jobs_get_nothing() {
    let Some(mut victim) = Victim::new("memstrange", true) else { return };
    victim.save(10, 1 << 20);
    let (address, job_uid) = (victim.address_of(0), victim.job_uid());
    let uid = job_uid.as_str();
    victim.attack(async {
        for bytes in [&b"GET /status HTTP/1.1\r\n\r\n"[..], &greeting(uid), &[0x16, 3, 1, 0, 5, 1]]
        {
            let answer = plain(address, &[&[0xef], bytes].concat()).await;
            // An alert of TLS.
            assert!(answer.len() < 16, "{}", answer.escape_ascii());
        }
        let other = credentials(&"f".repeat(64));
        secure_stream::connect(address, &other, ALPN_MEMORY).await.unwrap_err();
        let mut stream = opened(address, "another-job").await;
        send(&mut stream, &get(10, 0)).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{}", answer.escape_ascii());
        // A process of this job gets the block, so that the requests above were the right ones.
        let mut stream = opened(address, uid).await;
        send(&mut stream, &get(10, 0)).await;
        let mut offer = [0; FRAME_LEN];
        stream.read_exact(&mut offer).await.unwrap();
        assert_eq!((offer[0], &offer[4..36]), (1, &block(10, 0)[..]));
    });
    victim.save(20, 1 << 20);
    victim.assert_unharmed();
    victim.agents[0].receive_pending();
    let text = victim.agents[0].text(Stream::Stderr);
    assert!(text.contains("10.77.0.3"), "the refusals are logged: {text}");
}

/// A member that announces 10^18 bytes is disconnected. If it stops to read in the middle of a block it is disconnected in the end, and
/// copies go on meanwhile.
#[test]
fn odd_members_do_not_stop_copies() {
    let Some(mut victim) = Victim::new("memodd", true) else { return };
    victim.save(10, LARGE);
    let (address, job_uid) = (victim.address_of(0), victim.job_uid());
    let streams = victim.attack(async {
        let mut stream = opened(address, &job_uid).await;
        send(&mut stream, &put(20, 1, 10_u64.pow(18))).await;
        assert!(stream.read_u8().await.is_err());
        let mut stopped = Vec::new();
        for _ in 0..4 {
            let mut stream = opened(address, &job_uid).await;
            send(&mut stream, &get(10, 0)).await;
            let mut offer = [0; FRAME_LEN];
            stream.read_exact(&mut offer).await.unwrap();
            send(&mut stream, &[0]).await;
            stream.read_exact(&mut [0; 1000]).await.unwrap();
            stopped.push(stream);
        }
        // They stay open without the runtime of the attack.
        stopped
    });
    assert_eq!(victim.connections(), 4);
    for step in [20, 30, 40] {
        victim.save(step, 1 << 20);
    }
    while victim.connections() > 0 {
        let_pass(Duration::from_millis(50));
    }
    drop(streams);
    victim.assert_unharmed();
}

/// Opens thousands of connections a second from all addresses, which send nothing, until a file appears. Prints their number.
const SILENT_FLOOD: &str = "
import collections, os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
streams, count, until = collections.deque(), 0, time.monotonic() + 300
while not os.path.exists(STOP) and time.monotonic() < until:
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stream.bind((SOURCES[count % len(SOURCES)], 0))
    stream.setblocking(False)
    stream.connect_ex(TARGET)
    streams.append(stream)
    count += 1
    if len(streams) > 2000: streams.popleft().close()
print(count)
";

/// A flood of connections that send nothing, from many addresses, does not stop copies. It closes no connection of a member, even one
/// whose handshake takes seconds.
#[test]
fn silent_connections_do_not_stop_copies() {
    let Some(mut victim) = Victim::new("memsilent", true) else { return };
    victim.save(10, 1 << 20);
    let (address, other) = (victim.address_of(0), victim.address_of(1));
    let sources: Vec<String> = (20..68).map(|last| format!("10.77.0.{last}")).collect();
    for source in &sources {
        victim.network.ip(ATTACKER, &format!("addr add {source}/24 dev eth0"));
    }
    let stop = victim.sandbox.path("stop");
    let target = (address.ip().to_string(), address.port());
    let script =
        format!("STOP = {stop:?}\nSOURCES = {sources:?}\nTARGET = {target:?}\n{SILENT_FLOOD}");
    let member = other.ip().to_string()[8..].parse().unwrap();
    let mut flood = Command::new("ip");
    flood.args(["netns", "exec", &victim.network.namespace(ATTACKER), "/usr/bin/python3", "-c"]);
    let flood = flood.arg(script).stdout(Stdio::piped()).spawn().unwrap();
    for step in [20, 30, 40] {
        victim.save(step, 1 << 20);
    }
    let lived = here(&victim.network, member, || {
        let mut silent = TcpStream::connect(address).unwrap();
        let begun = clock::now();
        // It may be reset.
        let _ = silent.read(&mut [0]);
        clock::now().duration_since(begun)
    });
    fs::write(&stop, "").unwrap();
    let printed = String::from_utf8(flood.wait_with_output().unwrap().stdout).unwrap();
    let count: u64 = printed.trim().parse().unwrap();
    assert!(count > 2000, "a flood: {count}");
    assert!(lived >= Duration::from_secs(4), "closed after {lived:?}");
    victim.assert_unharmed();
}

/// A member fills no more than two checkpoints at its buddy, and none at others.
#[test]
fn members_fill_two_checkpoints() {
    let Some(mut victim) = Victim::new("memfill", true) else { return };
    victim.save(10, 1 << 20);
    let (address, job_uid) = (victim.address_of(0), victim.job_uid());
    let (taken, streams) = victim.attack(async {
        let mut filling = opened(address, &job_uid).await;
        // The sum of the first one is wrong, so that it is dropped. The second one stays incomplete.
        for bytes in [1 << 20, 100] {
            send(&mut filling, &put(50, 1, 1 << 20)).await;
            assert_eq!(filling.read_u8().await.unwrap(), 0);
            send(&mut filling, &vec![0; bytes]).await;
            if bytes == 1 << 20 {
                assert_eq!(filling.read_u8().await.unwrap(), 1);
            }
        }
        let (mut taken, mut stream) = (Vec::new(), opened(address, &job_uid).await);
        // The node keeps its own part of rank 0, and copies of rank 1.
        for (step, group_rank) in [(50, 0), (50, 1), (51, 1), (52, 1), (9, 1)] {
            send(&mut stream, &put(step, group_rank, 1 << 20)).await;
            taken.push((step, group_rank, stream.read_u8().await.unwrap()));
        }
        (taken, [filling, stream])
    });
    // Step 10 of rank 1 is there already. Older ones are not needed.
    assert_eq!(taken, [(50, 0, 3), (50, 1, 3), (51, 1, 3), (52, 1, 3), (9, 1, 2)]);
    drop(streams);
    // When they are gone, the real ones have room.
    victim.save(60, 1 << 20);
    victim.assert_unharmed();
}

/// Without a secret, an agent closes connections for checkpoints.
#[test]
fn jobs_without_a_secret_send_nothing() {
    let Some(mut victim) = Victim::new("memopen2", false) else { return };
    victim.give("save(10)");
    for rank in 0..2 {
        victim.agents[rank].prints(&format!("rank={rank} saved=10"));
    }
    let (addresses, greeting) =
        ([victim.address_of(0), victim.address_of(1)], greeting(&victim.job_uid()));
    victim.attack(async {
        for address in addresses {
            let answer = plain(address, &[&[0xef], &greeting[..], &get(10, 0)].concat()).await;
            assert!(answer.is_empty(), "{}", answer.escape_ascii());
        }
    });
    victim.assert_unharmed();
}
