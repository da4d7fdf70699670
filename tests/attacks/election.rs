//! Attacks the election of the coordinator, by messages from processes that are not voters (26).

use std::thread;

use bytes::{BufMut, BytesMut};
use ragent_election::election::{
    message::{Answer, Knowledge, Replica, Request, Version, VoterMessage},
    timers::Timers,
};
use ragent_proto::convert::voter::{ElectionHeader, FromVoter, encode};
use ragent_rendezvous::{
    ids::{JobUid, NodeId, RunId, Term, VoterAddress, VoterId},
    known_job::KnownJob,
    limits::NUMBER_MAX,
    message::PROTOCOL_VERSION,
    settings::NodeRange,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    attacker::{OTHER, python},
    support::{
        LEASE, Network, Program, Sandbox, Stream, Worker, is_alive, let_pass, may_make_networks,
    },
    victim::make_secret,
};

const VOTERS: [&str; 3] = ["10.77.0.1:29400", "10.77.0.2:29400", "10.77.0.3:29400"];
const LIST: &str = "10.77.0.1,10.77.0.2,10.77.0.3:29400";
/// A node without a voter.
const STRANGER: u32 = 4;
const VOTER_PROTOCOL: u8 = 0xee;

/// A job whose coordinator is elected by three agents on three nodes of a network.
struct Elected {
    sandbox: Sandbox,
    network: Network,
    agents: Vec<Program>,
    workers: Vec<Worker>,
    before: Value,
}

impl Elected {
    /// Starts a job without a secret. Returns `None` if networks cannot be made.
    fn new(name: &str) -> Option<Self> {
        may_make_networks().then(|| Self::start(name, Sandbox::new(), "--auth none"))
    }

    /// Starts a job with a secret. Returns `None` if networks cannot be made.
    fn secured(name: &str) -> Option<Self> {
        if !may_make_networks() {
            return None;
        }
        let sandbox = Sandbox::new();
        let auth = format!("--secret-file {}", make_secret(&sandbox).display());
        Some(Self::start(name, sandbox, &auth))
    }

    fn start(name: &str, sandbox: Sandbox, auth: &str) -> Self {
        let network = Network::new(name, 4);
        let words = format!(
            "{auth} --nnodes 3 --max-restarts 0 --rdzv-id job --rdzv-endpoint {LIST} --rdzv-conf \
             last_call_timeout=600,join_settle=0.1,shrink_timeout=0 --no-python stay.sh"
        );
        let mut agents: Vec<Program> =
            (1..=3).map(|node| network.ragent(&sandbox, node, &words).start()).collect();
        let workers = agents.iter_mut().map(Program::worker).collect();
        let mut job = Self { sandbox, network, agents, workers, before: Value::Null };
        job.before = job.status();
        job
    }

    #[track_caller]
    fn status(&self) -> Value {
        let words = format!("status --json --rdzv-endpoint {LIST}");
        let end = self.network.ragent(&self.sandbox, 1, &words).run();
        end.assert_code(0);
        serde_json::from_str(&end.stdout).unwrap()
    }

    /// The node id of the leader's process, from the status of the job.
    fn leader(&self) -> NodeId {
        let leads = |voter: &&Value| voter["is_leader"] == true;
        let leader = self.before["voters"].as_array().unwrap().iter().find(leads).unwrap();
        let (address, _) = leader["endpoint"].as_str().unwrap().split_once(':').unwrap();
        let is_there = |node: &&Value| node["address"] == address;
        let node = self.before["nodes"].as_array().unwrap().iter().find(is_there).unwrap();
        NodeId::new(node["node_id"].as_str().unwrap())
    }

    /// Sends each text on a separate connection, from a process of `uid` on `node`. Returns the bytes of each answer, or "open" if the
    /// connection was not closed. With `ends`, the process closes a connection itself when it has an answer.
    fn send(&self, (node, uid): (u32, u32), to: u32, texts: &[Vec<u8>], ends: bool) -> Vec<String> {
        let texts: Vec<String> = texts.iter().map(|text| format!("'{}'", hex(text))).collect();
        let (texts, address) = (texts.join(","), Network::address(to));
        let ends = u8::from(ends);
        let script = format!(
            "
import socket
for text in [{texts}]:
    stream = socket.create_connection(('{address}', 29400))
    stream.settimeout(10)
    answer = ''
    try:
        stream.sendall(bytes.fromhex(text))
        while piece := stream.recv(65536):
            answer += piece.hex()
            if {ends}: break
    except TimeoutError: answer += 'open'
    except OSError: pass
    print(answer or 'closed')
"
        );
        let answers = python(&self.network, node, uid, &script);
        answers.lines().map(str::to_owned).collect()
    }

    /// Fails if the attack had any effect on the election or on the job.
    #[track_caller]
    fn assert_unharmed(&self) {
        let status = self.status();
        let leaders = |status: &Value| {
            let voters = status["voters"].as_array().unwrap().iter();
            voters.map(|voter| voter["is_leading"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(leaders(&status), leaders(&self.before), "{status}");
        for part in ["job_uid", "term", "round", "phase", "restarts_used"] {
            assert_eq!(status[part], self.before[part], "{part}: {status}");
        }
        assert!(self.workers.iter().all(|worker| is_alive(worker.pid())), "a worker was killed");
        self.assert_no_panic();
    }

    #[track_caller]
    fn assert_no_panic(&self) {
        for agent in &self.agents {
            let text = agent.text(Stream::Stderr);
            assert!(is_alive(agent.pid()) && !text.contains("panicked"), "{text}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The header of this job's messages, computed from public values of the job.
fn header() -> ElectionHeader {
    let timers = Timers::for_nodes(NodeRange::new(3, 3).unwrap());
    let mut digest = Sha256::new();
    for voter in VOTERS {
        digest.update(voter.as_bytes());
        digest.update([0]);
    }
    ElectionHeader {
        run_id: RunId::new("job"),
        listed: Some(digest.finalize().into()),
        voter_lease: timers.voter_lease,
    }
}

/// A message as it is sent on a new connection.
fn framed(message: FromVoter) -> Vec<u8> {
    let message = encode(&header(), message);
    let mut text = BytesMut::new();
    text.put_u8(VOTER_PROTOCOL);
    text.put_u32(message.len().try_into().unwrap());
    text.put_slice(&message);
    text.to_vec()
}

fn message<Body>(process: &NodeId, to: u32, highest: u64, body: Body) -> VoterMessage<Body> {
    // Another voter than the receiver.
    let address = VoterAddress::new(VOTERS[if to == 1 { 1 } else { 0 }]);
    let version = Version { term: Term(highest), number: 1 };
    VoterMessage {
        voter: VoterId(1),
        address,
        process: process.clone(),
        has_just_started: false,
        highest: Term(highest),
        knows: Knowledge { has_round: true, version },
        job: None,
        ended: vec![JobUid::new("ended")],
        sequence: 1,
        body,
    }
}

fn request(process: &NodeId, to: u32, highest: u64, request: Request) -> Vec<u8> {
    framed(FromVoter::Request(message(process, to, highest, request)))
}

fn renewal(term: u64) -> Request {
    Request::Renew { term: Term(term), replica: Box::new(Replica::default()), is_copied: false }
}

/// Well-formed messages of every kind to the voter on node `to`, in a made-up name and in the leader's.
fn messages(job: &Elected, to: u32) -> Vec<Vec<u8>> {
    let term = job.before["term"].as_u64().unwrap();
    let mut texts = Vec::new();
    for process in [NodeId::new("evil_1"), job.leader()] {
        texts.push(request(&process, to, 0, Request::PreVote));
        texts.push(request(&process, to, NUMBER_MAX, Request::PreVote));
        for term in [term + (1 << 16), NUMBER_MAX] {
            texts.push(request(&process, to, term, Request::Vote { term: Term(term) }));
            texts.push(request(&process, to, term, renewal(term)));
        }
        texts.push(request(&process, to, term, Request::Release { term: Term(term) }));
        texts.push(request(&process, to, term, Request::Leave));
        texts.push(request(&process, to, term, Request::Hello));
        let answer = Answer {
            is_granted: true,
            is_connected: true,
            workers_for: std::time::Duration::ZERO,
            former: None,
            replica: None,
        };
        texts.push(framed(FromVoter::Answer(message(&process, to, NUMBER_MAX, answer))));
    }
    texts
}

/// Malformed messages. The last one announces a length of 4 GiB.
fn malformed() -> Vec<Vec<u8>> {
    let other_job = ElectionHeader { run_id: RunId::new("other"), ..header() };
    let vote = message(&NodeId::new("evil_1"), 1, 0, Request::PreVote);
    let other_job = encode(&other_job, FromVoter::Request(vote));
    let frame = |message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[VOTER_PROTOCOL][..], &length, message].concat()
    };
    vec![
        frame(&[]),
        frame(&[0xff; 64]),
        frame(&other_job),
        frame(&[0x08; 20_000]),
        [VOTER_PROTOCOL, 0xff, 0xff, 0xff, 0xff].to_vec(),
    ]
}

/// 26: another user of a voter's host sends messages of the election. They are not read: the connection is closed without an answer.
/// Messages from a host without a voter have no effect, so the leader stays.
#[test]
fn election_messages_of_strangers() {
    let Some(job) = Elected::new("elect") else { return };
    for to in 1..=3 {
        let texts = [messages(&job, to), malformed()].concat();
        let answers = job.send((to, OTHER), to, &texts, false);
        assert_eq!(answers, vec!["closed"; texts.len()], "from another user to {to}");
        let evil = NodeId::new("evil_1");
        let requests = [Request::PreVote, Request::Leave, Request::Hello, renewal(NUMBER_MAX)];
        let made_up = || KnownJob {
            uid: JobUid::new("made-up"),
            voters: vec![VoterAddress::new("10.77.0.4:29400")],
            leads: None,
        };
        let showing = |body| {
            let message = message(&evil, to, NUMBER_MAX, body);
            framed(FromVoter::Request(VoterMessage { job: Some(made_up()), ..message }))
        };
        let texts: Vec<_> = requests.into_iter().map(showing).collect();
        job.send((STRANGER, 0), to, &texts, true);
        let answers = job.send((STRANGER, 0), to, &malformed(), false);
        assert_eq!(answers, vec!["closed"; answers.len()], "from another host to {to}");
    }
    job.assert_unharmed();
}

/// A voter of an older version shows that it has a job of this name. No other job begins, although nothing else can be read from its
/// messages.
#[test]
fn job_of_another_version_prevents_a_second_one() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("eversion", 3), Sandbox::new());
    let mut text = request(&NodeId::new("old"), 1, 1, Request::Hello);
    // After the protocol's byte and the length, the first field is the version.
    assert_eq!(text[5..7], [0x08, PROTOCOL_VERSION as u8]);
    text[6] = 4;
    let script = format!(
        "
import socket, time
for attempt in range(600):
    try:
        stream = socket.create_connection(('10.77.0.1', 29400))
        stream.sendall(bytes.fromhex('{}'))
        break
    except OSError: time.sleep(0.1)
print('sent', flush=True)
time.sleep(1000)
",
        hex(&text)
    );
    let old = network.program(&sandbox, 2, "/usr/bin/python3").arg("-c").arg(script);
    let mut old = old.start();
    let words = "--nnodes 2:3 --rdzv-id job --rdzv-endpoint 10.77.0.1:29400 --no-python stay.sh";
    let mut agents = [1, 3].map(|node| network.ragent(&sandbox, node, words).start());
    old.prints("sent");
    agents[0].logs("another process knows a job of this name");
    agents[0].logs("the peer uses protocol version 4");
    for agent in &mut agents {
        agent.logs("the next round is not complete: job job was begun before");
    }
}

/// 26: a thousand connections, silent or with the beginning of a message, do not separate one voter from another.
#[test]
fn flood_of_election_connections() {
    let Some(job) = Elected::new("eflood") else { return };
    let flood = "
import resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
words, streams = [b'', b'\\xee', b'\\xee\\0\\0\\1\\0half'], []
for n in range(3000):
    stream = socket.socket()
    stream.settimeout(5)
    try:
        stream.connect((f'10.77.0.{n % 3 + 1}', 29400))
        stream.sendall(words[n // 3 % 3])
    except OSError: pass
    streams.append(stream)
print('full', flush=True)
time.sleep(1000)
";
    let attacker = job.network.program(&job.sandbox, STRANGER, "/usr/bin/python3");
    let mut attacker = attacker.arg("-c").arg(flood).start();
    attacker.prints("full");
    let_pass(LEASE);
    job.assert_unharmed();
}

/// 26: with a secret, another user of a voter's host opens connections to the other voters as fast as it can. The connections of the voter
/// stay, because they are authenticated.
#[test]
fn flood_from_the_host_of_a_voter() {
    let Some(job) = Elected::secured("ehost") else { return };
    let flood = format!(
        "
import socket, time
begin, streams = time.monotonic(), {{}}
count = 0
# On a busy machine, a flood takes longer.
while time.monotonic() < begin + (300 if count <= 1000 else {}):
    for to in {{1, 2, 3}} - {{AT}}:
        stream = socket.socket()
        stream.settimeout(5)
        try:
            stream.connect((f'10.77.0.{{to}}', 29400))
            stream.sendall(bytes([0xee]))
        except OSError: pass
        streams[count % 64] = stream
        count += 1
print(count)
",
        2 * LEASE.as_secs()
    );
    thread::scope(|scope| {
        let attacks = [1, 2, 3].map(|node| {
            let (network, flood) = (&job.network, flood.replace("AT", &node.to_string()));
            scope.spawn(move || python(network, node, OTHER, &flood))
        });
        for attack in attacks {
            let count: u32 = attack.join().unwrap().trim().parse().unwrap();
            assert!(count > 1000, "{count}");
        }
    });
    job.assert_unharmed();
    for agent in &job.agents {
        let text = agent.text(Stream::Stderr);
        assert!(!text.contains("the lease has ended"), "{text}");
    }
}

/// 26: a process of the agents' own user may take part in the election. Malformed messages, silence, and a renewal in the name of a process
/// that was not elected have no effect. The highest possible term ends the leadership, and the job continues under the next leader.
#[test]
fn election_messages_of_the_same_user() {
    let Some(mut job) = Elected::new("eown") else { return };
    let own = (1, 0);
    let answers = job.send(own, 1, &malformed(), false);
    assert_eq!(answers, vec!["closed"; answers.len()]);
    let silent = job.send(own, 1, &[vec![VOTER_PROTOCOL]], false);
    assert_eq!(silent, ["open"]);
    let evil = NodeId::new("evil_1");
    let term = job.before["term"].as_u64().unwrap();
    for to in 1..=3 {
        let renewal = request(&evil, to, 0, renewal(term + (1 << 16)));
        let vote = Request::Vote { term: Term(term + (1 << 16)) };
        let vote = request(&evil, to, 0, vote);
        let answers = job.send((to, 0), to, &[renewal, vote], true);
        assert!(answers.iter().all(|answer| answer.len() > 8), "{answers:?}");
    }
    job.assert_unharmed();
    let highest = Request::Vote { term: Term(NUMBER_MAX) };
    job.send(own, 1, &[request(&evil, 1, NUMBER_MAX, highest)], true);
    for agent in &mut job.agents {
        agent.worker();
    }
    let status = job.status();
    assert_eq!(status["restarts_used"], 0, "{status}");
    assert!(status["term"].as_u64().unwrap() > term, "{status}");
    let renewal = request(&evil, 1, NUMBER_MAX, renewal(NUMBER_MAX));
    job.send(own, 1, &[renewal], true);
    job.assert_no_panic();
}
