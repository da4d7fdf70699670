//! Writes the corpus, except for messages whose values are in the tests of `ragent-proto`.

use std::{fs, net::Ipv4Addr, path::Path, sync::Arc};

use ragent_base::{
    secret::{
        ALPN_HTTP2, ALPN_VOTER, Credentials, Origin, Secret,
        testing::{Authority, Issue},
    },
    testing::{self, job},
};
use ragent_coordinator::driver::proofs::Proofs;
use ragent_election::election::message::{Lists, Replica, Version, VoterSlot};
use ragent_leadership::{Stored, state_file::write_copy};
use ragent_proto::{Message as _, Proof, convert::FromAgent, v1};
use ragent_rendezvous::{
    ids::{
        GlobalRank, GroupRank, JobUid, LocalRank, NodeId, ProofKey, Round, RoundId, RunId,
        StreamNumber, Term, VoterAddress, VoterId,
    },
    known_job::KnownJob,
    message::{
        FromNode, JobResult, NodeReport, NodeState, Outcome, Registration, STEP_MAX, StepProgress,
        StepSource, WorkerEnd, WorkerFailure,
    },
    settings::{HostMember, HostTally, JobState},
};
use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256};

use super::{agent_file, death_notice, pki, state_file, tests::CORPUS};

/// Writes all inputs. Those with keys differ from run to run.
#[test]
#[ignore = "it writes the corpus, which is committed"]
fn seeds_are_written() {
    write("registration", registrations());
    write("port", ports());
    write("death_notice", death_notices());
    write("datagram", datagrams());
    write("identity", identities());
    write("secret_file", secret_files());
    write("certificates", certificates());
    write("state_file", state_files());
    write("agent_file", agent_files());
    write("launch_frames", launch_frames());
    write("hostfile", texts(HOSTFILES));
    write("memory_frames", memory_frames());
    write("memory_requests", texts(MEMORY_REQUESTS));
    write("node_list", texts(NODE_LISTS));
    write("torch_records", variants(TORCH_RECORDS, TORCH_CHANGES));
}

fn write(target: &str, seeds: Vec<Vec<u8>>) {
    let folder = Path::new(CORPUS).join(target);
    fs::create_dir_all(&folder).unwrap();
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("{number:03}")), seed).unwrap();
    }
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Returns a text, and the same with each of the changes.
fn variants(text: &str, changes: &[(&str, &str)]) -> Vec<Vec<u8>> {
    let changed = changes.iter().map(|(from, to)| text.replace(from, to));
    [text.to_owned()].into_iter().chain(changed).map(String::into_bytes).collect()
}

/// Puts a byte in front, which selects a kind of input.
fn with(kind: u8, rest: impl AsRef<[u8]>) -> Vec<u8> {
    [&[kind], rest.as_ref()].concat()
}

fn round(round: u64) -> RoundId {
    RoundId { term: Term(1), round: Round(round) }
}

fn registration_of(name: &str, change: impl FnOnce(&mut Registration)) -> FromAgent {
    let mut registration = testing::registration(name);
    registration.node.local_world_size = 2.try_into().unwrap();
    registration.run_id = RunId::new(job::RUN_ID);
    change(&mut registration);
    FromAgent::Registration {
        registration: Box::new(registration),
        proof: None,
        lost_term: Term(0),
    }
}

fn failure() -> WorkerFailure {
    WorkerFailure {
        age: std::time::Duration::from_millis(1200),
        message: Some("ValueError".to_owned()),
        stderr_tail: "one\ntwo".to_owned(),
        ..WorkerFailure::new(
            "n1",
            round(1),
            (GlobalRank(1), LocalRank(1)),
            4711,
            WorkerEnd::Exited(1),
        )
    }
}

fn report(number: u64, state: NodeState) -> FromAgent {
    let failure = matches!(state, NodeState::Stopping).then(failure);
    let failure = failure.map(Box::new);
    let report = NodeReport { failure, ..NodeReport::new(round(number), state) };
    FromAgent::Message(FromNode::NodeReport(report))
}

fn registrations() -> Vec<Vec<u8>> {
    let known = |ahead: u64| {
        registration_of("n1", |registration| {
            registration.job_uid = Some(JobUid::new(job::UID));
            registration.known_round.round = round(ahead);
            registration.known_round.size = 3;
            registration.charged_through = Round(ahead);
            registration.restarts_used = 1;
        })
    };
    let one = || registration_of("n1", |_| {});
    let two = || registration_of("n2", |registration| registration.stream = StreamNumber(2));
    let many = |number: usize| {
        registration_of("n1", |registration| {
            registration.node.addresses = vec!["fd00::1".parse().unwrap(); number];
            let voters = vec![VoterAddress::new("n0:29400"); number];
            registration.job = Some(KnownJob { uid: JobUid::new("u"), voters, leads: None });
            registration.node.node_rank = Some(1);
        })
    };
    let message = FromAgent::Message;
    let alive = |sequence| {
        let progress = StepProgress {
            source: StepSource::Reported,
            lowest: sequence,
            highest: sequence + 1,
            total: Some(100),
            age: std::time::Duration::from_millis(250),
        };
        let progress = (sequence % 2 == 0).then_some(progress);
        message(FromNode::KeepAlive {
            sequence,
            asks_reason: true,
            progress,
            checkpoint: None,
            save_failed: None,
        })
    };
    let states = [NodeState::Running, NodeState::Stopping, NodeState::Succeeded];
    let mut scenarios = vec![
        vec![one(), two(), alive(1), message(FromNode::Goodbye)],
        vec![one(), one(), message(FromNode::Alive { round: round(0) })],
        vec![known(5), alive(1), known(1 << 20), alive(2), known(1 << 21)],
        vec![known(u64::MAX), alive(1)],
        vec![known(1 << 62), alive(1)],
        vec![many(3), many(70)],
        vec![one(), message(FromNode::Progress { text: "step 7".to_owned() })],
        vec![one(), report(u64::MAX, NodeState::Running)],
        vec![one(), report(1, NodeState::Leaving { reaped: true }), alive(9)],
        vec![
            registration_of("n1", |registration| registration.settings.max_restarts = u32::MAX),
            alive(1),
        ],
        vec![registration_of("n1", |registration| registration.protocol_version = 1)],
    ];
    for state in states {
        // The round starts once no further node has registered for a while.
        let mut steps = vec![one(), two()];
        steps.extend((0..50).map(|sequence| if sequence == 48 { one() } else { alive(sequence) }));
        steps.extend([report(1, NodeState::Running), report(1, state), alive(99)]);
        scenarios.push(steps);
    }
    let encode = |message: FromAgent| {
        let bytes = v1::AgentMessage::from(message).encode_to_vec();
        [&u16::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat()
    };
    let encoded: Vec<Vec<u8>> =
        scenarios.into_iter().map(|steps| steps.into_iter().flat_map(encode).collect()).collect();
    [0, 1].iter().flat_map(|kind| encoded.iter().map(|rest| with(*kind, rest))).collect()
}

/// Requests to a port, for clients of each kind.
fn ports() -> Vec<Vec<u8>> {
    let death_notice = String::from_utf8(death_notices().remove(0)).unwrap();
    let post = |text: &str| {
        let len = text.len();
        format!(
            "POST /v1/death-notice HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len}\r\n\r\n{text}"
        )
    };
    let get = |path: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost:29400\r\n{more}\r\n").into_bytes()
    };
    let headers = |headers: &[u8], is_last: bool| frame(1, 4 | u8::from(is_last), 1, headers);
    let registration = v1::AgentMessage::from(registration_of("n1", |_| {})).encode_to_vec();
    let message = |bytes: &[u8]| {
        [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    };
    let call = |path: &str, body: &[u8]| {
        [PREFACE, &headers(&request(path), false), &frame(0, 1, 1, &message(body))].concat()
    };
    let streams: Vec<u8> =
        (0..40).flat_map(|stream| frame(1, 5, 2 * stream + 1, &request("/v1/identity"))).collect();
    let resets: Vec<u8> = (0..40)
        .flat_map(|stream| {
            let id = 2 * stream + 1;
            [frame(1, 5, id, &request("/status")), frame(3, 0, id, &[0, 0, 0, 8])].concat()
        })
        .collect();
    let requests: Vec<Vec<u8>> = vec![
        get("/v1/identity", ""),
        get("/status", ""),
        get("/v1/reach", ""),
        get("/unknown", "Origin: http://evil.example\r\n"),
        get("/status", "Host: evil.example\r\n"),
        get("/status", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
        [get("/v1/identity", ""), get("/status", ""), get("/v1/reach", "")].concat(),
        post(&death_notice).into_bytes(),
        post("n1 7").into_bytes(),
        post("\u{1b}[2J 7").into_bytes(),
        b"POST /v1/death-notice HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nn1 7\r\n0\r\n\r\n".to_vec(),
        b"POST /v1/death-notice HTTP/1.1\r\nHost: ::1\r\nContent-Length: 99\r\n\r\nhalf".to_vec(),
        format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(120)).into_bytes(),
        b"GET /v1/identity HTTP/1.0\r\n\r\n".to_vec(),
        call("/ragent.v1.Coordination/Attend", &registration),
        get("/status?follow", "Max-Forwards: 0\r\n"),
        call("/v1/death-notice", b"n1 7"),
        [PREFACE, &streams].concat(),
        [PREFACE, &resets].concat(),
        [PREFACE, &frame(4, 0, 0, &[0, 1, 0xff, 0xff, 0xff, 0xff]).repeat(20)].concat(),
        [PREFACE, &headers(&[0x3f, 0xff, 0xff, 0xff, 0xff, 0x0f], true)].concat(),
        [PREFACE, &frame(1, 0, 1, &request("/status")), &frame(9, 0, 1, b"x").repeat(30)].concat(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc".to_vec(),
        b"\xee\x00\x00\x00\x02\x08\x01".to_vec(),
        b"\x00\x85\x3b\x1b\x26\x06\x02".to_vec(),
        b"SSH-2.0-x\r\n".to_vec(),
        Vec::new(),
    ];
    let mut seeds = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        // All kinds of credentials, and in turn all kinds of clients.
        for credentials in 0..4 {
            let client = u8::try_from((number + usize::from(credentials)) % 16).unwrap();
            seeds.push([&[credentials | client << 2, 3], &request[..]].concat());
        }
    }
    for (setting, hello) in [(2, hello_of_secret(ALPN_HTTP2)), (2, hello_of_secret(ALPN_VOTER))] {
        seeds.push([&[setting, 255], &hello[..]].concat());
    }
    seeds.push([&[3, 255], &hello(&pki::credentials(), ALPN_HTTP2)[..]].concat());
    seeds
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

/// The headers of a call, without compression.
fn request(path: &str) -> Vec<u8> {
    let literal = |name: &str, value: &str| {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        [vec![0], text(name), text(value)].concat()
    };
    [
        literal(":method", "POST"),
        literal(":scheme", "http"),
        literal(":path", path),
        literal(":authority", "localhost"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ]
    .concat()
}

fn hello_of_secret(protocol: &'static [u8]) -> Vec<u8> {
    let secret = Secret::new(job::SECRET).unwrap();
    hello(&Credentials::new(vec![secret], Origin::Stdin), protocol)
}

/// The first message of a member that opens a connection with TLS.
fn hello(credentials: &Credentials, protocol: &'static [u8]) -> Vec<u8> {
    let client = credentials.clients().remove(0);
    let mut config = (*client.config).clone();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = client.name.unwrap_or_else(|| ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()));
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

fn death_notices() -> Vec<Vec<u8>> {
    let proofs = Proofs::new(Some(ProofKey::new(death_notice::KEY)));
    let of = |uid: &str, node: &str| proofs.of(&JobUid::new(uid), &NodeId::new(node));
    let valid = of(job::UID, "node1_17_ab");
    let texts = [
        format!("node1_17_ab 7 {valid}"),
        format!("node1_17_ab 8 {valid}"),
        format!("node2 7 {valid}"),
        format!("n m 7 {}", of(job::UID, "n m")),
        format!("node1_17_ab 7 {}", of("other", "node1_17_ab")),
        format!("node1_17_ab {} {valid}", u64::MAX),
        format!("node1_17_ab 7 {}", valid.to_string().to_uppercase()),
        format!("{} 1 {}", "a".repeat(256), of(job::UID, &"a".repeat(256))),
        format!("{} 1 {valid}", "a".repeat(257)),
        format!("node1_17_ab  7 {}", Proof([0; Proof::LEN])),
        "node1 7".to_owned(),
        "\u{1b}[2J 7".to_owned(),
        "\u{202e}n 7".to_owned(),
        " 7".to_owned(),
        "n +7".to_owned(),
        "n -1 x".to_owned(),
    ];
    texts.map(String::into_bytes).to_vec()
}

fn datagrams() -> Vec<Vec<u8>> {
    let by = r#"{"rank":4294967295,"number":18446744073709551615}"#;
    let job = "0".repeat(32);
    let of = |version: u32, home: &str| {
        format!(
            r#"{{"ragent":{version},"job":"{job}","by":{by},"may_host":true,"searches":true,"port":29400,"home":{home}}}"#
        )
    };
    let texts = [
        of(3, "null"),
        of(3, r#""[::1]:1""#),
        of(4, r#""1.2.3.4:5""#),
        of(3, "null") + "0123456789abcdef",
        format!(r#"{{"ragent":2,"job":"{job}","message":{{}}}}"#),
        format!("ragent-search 7f3a90c2 {job}\n{{\"ragent\":2,\"job\":\"{job}\"}}"),
        "ragent-search ".to_owned(),
        "{".repeat(1000),
        r#"{"ragent":3}"#.to_owned(),
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| with(0, text)).collect();
    seeds
        .extend(ragent_node::endpoint::search::fuzzing::seeds().iter().map(|bytes| with(0, bytes)));
    // A kind, flags, a rank, a port, a number, and a change at each part of the datagram.
    let head: Vec<u8> = (0..16).collect();
    for kind in 0..3 {
        for (place, change) in [(0_u16, 1), (14, 1), (23, 0x20), (40, 0x20), (60, 0xff), (90, 0)] {
            let at = place.to_le_bytes();
            seeds.push([&[1, kind], &head[1..], &at, &[change]].concat());
            seeds.push([&[1, kind], &head[1..], &at, &[0], b" "].concat());
        }
    }
    seeds
}

fn identities() -> Vec<Vec<u8>> {
    let id = Secret::new(job::SECRET).unwrap().id();
    let identity = |rest: &str| {
        format!(
            "HTTP/1.1 200 OK\r\na: b\r\n\r\n{{\"ragent\":\"0.1.0\",\"protocol\":7,\"run_id\":\"x\"{rest}}}"
        )
    };
    let ids = format!(r#""{id}","#).repeat(40);
    let texts = [
        identity(""),
        identity(r#","auth":"none""#),
        identity(&format!(r#","auth":"secret","ids":["{id}"]"#)),
        identity(r#","auth":"secret","ids":["00000000","x","+1234567"]"#),
        identity(&format!(r#","auth":"secret","ids":[{}]"#, &ids[..ids.len() - 1])),
        identity(r#","auth":"tls","unix_ms":18446744073709551615"#),
        identity(r#","auth":"\u001b[2J","unix_ms":-1"#),
        "HTTP/1.1 404 Not Found\r\n\r\n{}".to_owned(),
        "HTTP/1.1 +20 OK\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200".to_owned(),
        "SSH-2.0-OpenSSH_9.7\r\n".to_owned(),
        "\u{1b}]0;title\u{7}\u{202e}x\n".to_owned(),
        "é".repeat(40),
        String::new(),
    ];
    let mut seeds = texts.map(String::into_bytes).to_vec();
    seeds.push(vec![0xff; 80]);
    seeds
}

fn secret_files() -> Vec<Vec<u8>> {
    let (a, b) = ("a".repeat(43), "Zz09_+/=-".repeat(10));
    let texts = [
        format!("{a}\n"),
        a.clone(),
        format!("# new\n{b}\r\n\n  {a}\t\n#old"),
        format!("{a}\n").repeat(16),
        format!("{a}\n").repeat(17),
        "a".repeat(512),
        "a".repeat(513),
        "a".repeat(42),
        format!("{a} {a}\n"),
        format!("{a}$\n"),
        format!("\u{feff}{a}\n"),
        "#\n\n".to_owned(),
        String::new(),
        format!("{a}\n\0\0"),
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| with(0, text)).collect();
    seeds.extend((3..8).map(|kind| with(kind, format!("{a}\n"))));
    seeds.push(with(0, [0x7f, b'E', b'L', b'F', 2, 1, 0xff, 0xfe, b'\n']));
    seeds
}

fn certificates() -> Vec<Vec<u8>> {
    let authority = Authority::new("ca");
    let issue = |subject: &str, names: &[&str]| {
        let issue = Issue { subject: subject.to_owned(), ..Issue::with_names(names) };
        authority.issue(&issue)
    };
    let plain = issue("node", &["node0.example", "spiffe://site/node"]);
    let mut seeds = vec![
        with(0, &plain.certificate),
        with(0, issue("\u{1b}[2J\n\u{202e}x", &["a"]).certificate),
        with(0, issue(&"é".repeat(300), &[]).certificate),
        with(0, issue("", &["a", "b", "c", "d", "e", "f", "g", "h"]).certificate),
        with(1, authority.pem()),
        with(1, authority.pem().repeat(3)),
        with(1, &plain.certificate_pem),
        with(2, &plain.certificate_pem),
        with(2, issue("x", &[]).certificate_pem),
        with(3, &plain.key_pem),
        with(3, plain.key_pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")),
        with(2, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
        with(2, "-----BEGIN CERTIFICATE-----\n\u{1b}[2J"),
        with(1, "no certificate"),
        with(0, [0x30, 0x83, 0xff, 0xff, 0xff]),
    ];
    for file in 4..8 {
        seeds.push(vec![file]);
        seeds.push([&[file][..], &[60, 0, b'A', 100, 1, b'='], &[10, 0, b'\n']].concat());
    }
    seeds
}

fn state_files() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job-1.json");
    let kept = std::time::Duration::from_secs(600);
    let boot = ragent_base::sys::proc::read("sys/kernel/random/boot_id").unwrap_or_default();
    let written = || {
        let text = fs::read_to_string(&path).unwrap();
        let text = text.trim_end().replace(boot.trim(), state_file::BOOT);
        let (head, rest) = text.split_once(r#""boot_time_ms":"#).unwrap();
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        // A time in the future counts as now.
        format!(r#"{head}"boot_time_ms":{}{rest}"#, u64::MAX)
    };
    let tally = HostTally {
        host_name: "n1".to_owned(),
        address: "10.0.0.1".to_owned(),
        strikes: 2,
        early_losses: 1,
        suspicions: 1,
        suspected_for: std::time::Duration::from_secs(60),
    };
    let host = HostMember {
        rank: GroupRank(1),
        node: NodeId::new("n1_17"),
        host_name: "n1".to_owned(),
        is_confirmed_dead: false,
    };
    let closed = Outcome {
        result: JobResult::BudgetSpent,
        first_failure: Some(failure()),
        other_failures: 1,
        further_failures: vec![failure()],
        restarts_used: 3,
        complete_step: None,
    };
    let full = JobState {
        born_ms: 1_767_225_600_123,
        term: Term(3),
        round: Round(7),
        round_size: 2,
        host: Some(host),
        restarts_used: 1,
        charged_through: Round(6),
        host_tallies: vec![tally],
        proof_key: Some(ProofKey::new([5; ProofKey::LEN])),
        ..JobState::new(JobUid::new(job::UID))
    };
    let job_states = [
        JobState::new(JobUid::new(job::UID)),
        full.clone(),
        JobState { closed: Some(closed), ..full.clone() },
    ];
    let mut texts: Vec<String> = job_states
        .iter()
        .map(|job_state| {
            write_copy(&path, &state_file::sole(job_state), kept).unwrap();
            written()
        })
        .collect();
    let slot = |address: &str| VoterSlot {
        address: VoterAddress::new(address),
        voter: Some(VoterId(address.len() as u64)),
    };
    let lists = Lists { last: vec![slot("n0:1"), slot("n10:1")], before: Some(vec![slot("n:1")]) };
    let version = Version { term: Term(3 << 16), number: 9 };
    let stored = Stored {
        voter: Some(VoterId(4)),
        replica: Replica { version, lists, job_state: Some(full) },
        highest: Term(3 << 16),
        is_led: true,
    };
    write_copy(&path, &stored, kept).unwrap();
    texts.push(written());
    let (whole, copy) = (texts[1].clone(), texts[3].clone());
    let max = u64::MAX.to_string();
    for (from, to) in [
        (r#""round":7"#, format!(r#""round":{max}"#)),
        (r#""round":7"#, r#""round":4611686018427387904"#.to_owned()),
        (r#""term":3"#, format!(r#""term":{max}"#)),
        (r#""charged_through":6"#, format!(r#""charged_through":{max}"#)),
        (r#""round_size":2"#, r#""round_size":4294967295"#.to_owned()),
        (r#""restarts_used":1"#, r#""restarts_used":4294967295"#.to_owned()),
        (r#""host_rank":1"#, r#""host_rank":4294967295"#.to_owned()),
        (r#""host_name":"n1""#, r#""host_name":"\u001b[2J""#.to_owned()),
        (r#""job_uid":"uid7""#, r#""job_uid":"""#.to_owned()),
        (r#""free_rounds":0"#, r#""free_rounds":4294967295"#.to_owned()),
        (r#""strikes":2"#, r#""strikes":4294967295"#.to_owned()),
        (r#""kept_ms":600000"#, format!(r#""kept_ms":{max}"#)),
        (r#""schema":1"#, r#""schema":2"#.to_owned()),
    ] {
        assert!(whole.contains(from), "{from} in {whole}");
        texts.push(whole.replacen(from, &to, 1));
    }
    for (from, to) in [
        (r#""highest":196608"#, format!(r#""highest":{max}"#)),
        (r#""version_term":196608"#, format!(r#""version_term":{max}"#)),
        (r#""version_number":9"#, format!(r#""version_number":{max}"#)),
        (r#""voter":4"#, r#""voter":null"#.to_owned()),
        (r#""address":"n0:1""#, r#""address":"\u001b[2J""#.to_owned()),
    ] {
        assert!(copy.contains(from), "{from} in {copy}");
        texts.push(copy.replacen(from, &to, 1));
    }
    texts.extend(["{".to_owned(), String::new()]);
    texts.into_iter().map(String::into_bytes).collect()
}

fn agent_files() -> Vec<Vec<u8>> {
    let (pid, began) = (agent_file::PID, agent_file::BEGAN);
    let agent = |pid: &str, began: &str, rest: &str| {
        format!(r#"{{"run_id":"r","endpoint":"h:1","pid":{pid},"began":{began}{rest}}}"#)
    };
    let running = |rest: &str| agent(pid, began, rest);
    let secret = job::SECRET;
    let texts = [
        running(""),
        running(r#","stage":"searching","credentials":"none""#),
        running(r#","stage":{"waiting":{"cause":"\u001b[2J"}}"#),
        running(r#","credentials":{"secret_file":"/s"}"#),
        running(&format!(r#","credentials":{{"secret":"{secret}"}}"#)),
        running(r#","credentials":{"secret":"short"}"#),
        running(
            r#","credentials":{"certificates":{"authorities":"/a","certificate":"/c","key":"/k","peer":{"dns":"n"}}}"#,
        ),
        agent(pid, "1", ""),
        agent("0", "0", ""),
        agent("1", "0", ""),
        agent("4294967295", "18446744073709551615", ""),
        agent("-1", "0", ""),
        "{}".to_owned(),
    ];
    texts.map(String::into_bytes).to_vec()
}

fn launch_frames() -> Vec<Vec<u8>> {
    let json = |text: &str| {
        let len = u32::try_from(text.len() + 1).unwrap().to_be_bytes();
        [&len[..], &[0], text.as_bytes()].concat()
    };
    let reports = [
        json(r#"{"Reached":{"host_name":"n","address":"fd00::1","port":9}}"#),
        json(r#"{"Disconnected":"\u001b[2J"}"#),
        json(r#"{"Ended":{"Exited":-1}}"#),
        json(r#"{"Ended":{"NotStarted":"no such file"}}"#),
        vec![0, 0, 0, 3, 1, 0xff, b'\n'],
        vec![0, 0, 0, 1, 2],
    ];
    let orders = [
        json(r#""KeepAlive""#),
        json(r#"{"Signal":{"signal":-2147483648}}"#),
        json(
            r#"{"Job":{"env":[["A",{"Unix":[255,61]}]],"folder":{"Unix":[47]},"flags":[],"script":[],"secret":null,"stop_ms":5}}"#,
        ),
        json(r#"{"Start":{"number":1,"flags":[{"Unix":[45]}],"env":[]}}"#),
        vec![0, 0, 0, 0],
        vec![0xff, 0xff, 0xff, 0xff],
        vec![0, 0, 0, 1, 9],
        vec![0, 0, 0, 2, 1, 0],
        vec![0, 1, 0, 0, 0],
    ];
    let mut seeds = Vec::new();
    for (kind, all) in [(0, &reports[..]), (1, &orders[..])] {
        for cuts in [&[0][..], &[3, 1, 3, 5]] {
            seeds.push([&[kind], cuts, &all.concat()].concat());
            seeds.extend(all.iter().map(|message| [&[kind], cuts, message].concat()));
        }
    }
    seeds
}

fn memory_frames() -> Vec<Vec<u8>> {
    let greeting = |version: u32, uid: &str| {
        let digest = Sha256::digest(uid.as_bytes());
        [b"ragent\0m", &version.to_be_bytes()[..], &[0; 20], &digest].concat()
    };
    let block = |step: u64, node: u32, worker: u32| {
        let round = [1_u64.to_be_bytes(), 7_u64.to_be_bytes()].concat();
        [&round[..], &step.to_be_bytes(), &node.to_be_bytes(), &worker.to_be_bytes()].concat()
    };
    let put = |kind: u8, is_replicated: u8, block: &[u8], ranks: [u32; 3], bytes: u64| {
        let ranks = ranks.map(u32::to_be_bytes).concat();
        let sum = (u128::MAX - 5).to_be_bytes();
        [&[1, kind, is_replicated, 0], block, &ranks, &bytes.to_be_bytes(), &sum, &[0; 8]].concat()
    };
    let get = |block: &[u8]| [&[2, 0, 0, 0], block, &[0; 44]].concat();
    let decline = |why: u8| [&[3, why][..], &[0; 78]].concat();
    let frames = [
        put(1, 0, &block(120, 1, 3), [4, 8, 8], 7_600_000_000),
        put(2, 1, &block(0, 0, 0), [1, 0, 1], 1),
        put(1, 0, &block(STEP_MAX, 9_999, 1023), [10_000, 0, 1024], 1 << 48),
        put(1, 0, &block(120, 1, 3), [4, 8, 8], 10_u64.pow(18)),
        put(1, 0, &block(STEP_MAX + 1, 1, 3), [4, 8, 8], 5),
        put(1, 0, &block(1, 4, 3), [4, 8, 8], 5),
        put(1, 0, &block(1, 1, 8), [4, u32::MAX, 8], 5),
        get(&block(120, 1, 3)),
        get(&block(120, u32::MAX, u32::MAX)),
        decline(1),
        decline(4),
        decline(0),
    ];
    let mut seeds: Vec<Vec<u8>> = frames.iter().map(|frame| with(1, frame)).collect();
    seeds.push(with(1, frames.concat()));
    seeds.extend(
        [greeting(1, job::UID), greeting(2, job::UID), greeting(1, "other")].map(|g| with(0, g)),
    );
    seeds
}

const MEMORY_REQUESTS: &[&str] = &[
    r#"{"ask":"buffer","step":120,"bytes":7600000000,"kind":"state","replicated":false}"#,
    r#"{"ask":"buffer","step":0,"bytes":1,"kind":"dcp","replicated":true}"#,
    r#"{"ask":"buffer","step":1,"bytes":1000000000000000000,"kind":"state","replicated":false}"#,
    r#"{"ask":"saved","step":9007199254740991,"bytes":5}"#,
    r#"{"ask":"saved","step":9007199254740992,"bytes":5}"#,
    r#"{"ask":"saved","step":-1,"bytes":1.5}"#,
    r#"{"ask":"load","kind":"state"}"#,
    r#"{"ask":"load","kind":"pickle"}"#,
    r#"{"ask":"newest","ask":"newest"}"#,
    r#"{"ask":"newest","step":{"a":[[[[]]]]}}"#,
    r#"{"ask":"unusable","step":120,"reason":"\u001b[2J it \ud83d\ude00 has other parameters"}"#,
    r#" {"reason":"\ud800","step":1,"ask":"unusable"} "#,
    r#"["newest"]"#,
    "",
];

const HOSTFILES: &[&str] = &[
    "node1\nnode2 slots=8\nnode3:4\n",
    "# all\n\nme@node4 slots = 2 max_slots=4\r\nnode5 username=you slots=1\n",
    "[fd00::1]:3\nfd00::2\n[fe80::1%eth0] slots=2\n",
    "[a:8]\nx@[b:c]:2\n",
    "a\nb\nA slots=2\n",
    "-oProxyCommand=x\n",
    "+n1\n^node1\n",
    "node1 slots=0\n",
    "node1:8 slots=9\n",
    "node1 slots=99999999999\n",
    "a@b@c\nuser\\name@d\n",
    "\u{feff}node1\u{85}node2\n",
    "node1 slots\n= 3\n",
    "\u{1b}[2J\n",
    "",
    "-x\n",
    "-x@h\n",
];

/// Records of two workers.
const TORCH_RECORDS: &str = concat!(
    r#"{"entries":[{"collective_seq_id":2,"input_dtypes":["Float"],"input_sizes":[[4]],"is_p2p":false,"p2p_seq_id":0,"#,
    r#""process_group":["0","default_pg"],"profiling_name":"nccl:all_reduce","record_id":1,"retired":false,"#,
    r#""state":"started"}],"pg_config":{"0":{"desc":"default_pg","name":"0","ranks":"[0, 1]"}}}"#,
    "\0",
    r#"{"entries":[{"collective_seq_id":1,"is_p2p":true,"p2p_seq_id":7,"process_group":["1"],"#,
    r#""profiling_name":"nccl:send 0->1","record_id":1,"state":"scheduled"}]}"#,
);

/// Changes of these records.
const TORCH_CHANGES: &[(&str, &str)] = &[
    ("[[4]]", "[[4, 4], [9223372036854775807]]"),
    (r#""record_id":1"#, r#""record_id":18446744073709551615"#),
    ("all_reduce", "\\u001b[2J"),
    ("[0, 1]", "[0, 1, 2, 3, 4, 5, 6, 7]"),
    (r#""0""#, r#""dp""#),
    (r#""started""#, r#""completed""#),
    (r#""is_p2p":true"#, r#""is_p2p":7"#),
    (r#"["1"]"#, "[]"),
    ("\0", ""),
];

const NODE_LISTS: &[&str] = &[
    "node[1-3,07],gpu[0-1]x[0-1]",
    "node1",
    "a[001-010], b ,c[5]",
    "a[0-9][0-9][0-9][0-9]",
    "a[0-65535]",
    "a[0-65536]",
    "a[18446744073709551614-18446744073709551615]",
    "a[3-1]",
    "a[]",
    "a[1-2",
    "[[1]]",
    "a,,b",
    "a[1][2][3][4][5][6][7][8][9]",
    "2(x3),1",
    "4294967295(x65536)",
    "1(x65535),2(x2)",
    "1(x18446744073709551616)",
    "2(x3",
    " 1 ,+2",
    "a[0-65535],b",
    "1(x0)",
];
