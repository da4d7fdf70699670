//! The service with real sockets, and a machine whose decisions are those of each test.

use std::{
    fs::File,
    io::{IoSlice, IoSliceMut, Read},
    num::NonZeroU32,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    path::Path,
    time::Duration,
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
};
use ragent_base::{
    net::{
        Reach, listen,
        port::{PortProtocols, serve_port},
    },
    secret::{Credentials, Origin, Secret},
    sys::unix,
};
use ragent_core::memory::{Ask, BlockHeader, BlockRange, Decline, PartId, RangesRequest, Sum};
use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, Round, Term},
    message::{CheckpointId, MemoryKind, PartSources},
};
use ragent_workers::socket_folder::memory_socket;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};

use super::*;

pub(super) fn secret(character: &str) -> Credentials {
    let secret = Secret::new(&character.repeat(43)).unwrap();
    Credentials::new(vec![secret], Origin::Stdin)
}

pub(super) fn round(number: u64) -> RoundId {
    RoundId { term: Term(1), round: Round(number) }
}

pub(super) fn header(bytes: u64, sum: Sum) -> BlockHeader {
    let checkpoint = CheckpointId { round: round(1), step: 120 };
    BlockHeader {
        part: PartId { checkpoint, group_rank: GroupRank(1) },
        local_rank: LocalRank(0),
        nodes: 2,
        first_global_rank: GlobalRank(1),
        local_ranks: NonZeroU32::MIN,
        kind: MemoryKind::State,
        is_replicated: false,
        bytes,
        sum,
    }
}

/// Serves a port of an agent. Returns its address, and the connections for checkpoints in memory.
pub(super) fn port(credentials: &Credentials) -> (String, mpsc::Receiver<PassedConnection>) {
    let listener = listen(Reach::Loopback([127, 0, 0, 1].into()), 0).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (memory, connections) = mpsc::channel(1);
    let (credentials, memory) = (credentials.clone(), Some(memory));
    let protocols =
        PortProtocols { credentials, memory, ..PortProtocols::public(Default::default()) };
    tokio::spawn(serve_port(listener, protocols, 100));
    (address, connections)
}

/// The folder of a service, and the address of its agent.
struct Place {
    _folder: TempDir,
    address: String,
}

/// A service of the job `uid`.
fn service(credentials: Credentials, uid: &str) -> (MemoryService, Place) {
    let folder = tempfile::tempdir().unwrap();
    let (address, connections) = port(&credentials);
    let socket_dir = folder.path().join("sockets");
    let connections = Some(connections);
    let service =
        MemoryService::new(MemoryServiceSettings { credentials, socket_dir, connections });
    service.set_job(JobUid::new(uid));
    (service, Place { _folder: folder, address })
}

/// A service without transport, with sockets for one worker.
fn with_socket() -> (MemoryService, Place, PathBuf) {
    let (mut service, folder) = service(Credentials::default(), "job");
    let opened = Effect::OpenSockets { round: round(1), workers: NonZeroU32::MIN };
    service.carry_out(opened);
    let path = memory_socket(service.socket_folder().unwrap(), LocalRank(0));
    (service, folder, path)
}

/// Content that differs in each piece.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 % 251) as u8 ^ (n >> 16) as u8).collect()
}

fn fill(service: &MemoryService, buffer: Buffer, bytes: &[u8]) -> Sum {
    let file = service.buffers.get(buffer);
    file.open().unwrap().write_all_at(bytes, 0).unwrap();
    file.sum(bytes.len() as u64, || false).unwrap()
}

fn read(service: &MemoryService, buffer: Buffer, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    service.buffers.get(buffer).open().unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The library in a worker.
struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Self {
        Self(worker_sockets::connect(path).unwrap())
    }

    fn send(&self, packet: &[u8], descriptors: &[i32]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        let slices = [IoSlice::new(packet)];
        sendmsg::<()>(self.0.as_raw_fd(), &slices, rights, MsgFlags::MSG_NOSIGNAL, None).unwrap();
    }

    /// Receives an answer; `None` if the agent has closed the connection.
    fn receive(&self) -> Option<(Value, Option<OwnedFd>)> {
        let mut packet = [0; limits::MAX_PACKET];
        let mut control = cmsg_space!([i32; 2]);
        let mut slices = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        // A packet that the agent has not read resets the connection.
        let message =
            recvmsg::<()>(self.0.as_raw_fd(), &mut slices, Some(&mut control), flags).ok()?;
        let mut descriptors = Vec::new();
        for control in message.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(fds) = control {
                descriptors.extend(fds.into_iter().map(unix::own));
            }
        }
        let len = message.bytes;
        assert!(descriptors.len() <= 1);
        (len > 0).then(|| (serde_json::from_slice(&packet[..len]).unwrap(), descriptors.pop()))
    }

    fn ask(&self, request: &Value) -> (Value, Option<OwnedFd>) {
        self.send(request.to_string().as_bytes(), &[]);
        self.receive().expect("an answer")
    }
}

/// Gives the inputs of the service to `machine` until `other` ends.
async fn run_until<T>(
    service: &mut MemoryService,
    mut other: JoinHandle<T>,
    mut machine: impl FnMut(&Input) -> Vec<Effect>,
) -> (T, Vec<Input>) {
    let mut inputs = Vec::new();
    loop {
        tokio::select! {
            input = service.next() => {
                machine(&input).into_iter().for_each(|effect| service.carry_out(effect));
                inputs.push(input);
            }
            result = &mut other => return (result.unwrap(), inputs),
        }
    }
}

fn answer(answer: Answer) -> Vec<Effect> {
    vec![Effect::Answer { worker: LocalRank(0), answer }]
}

/// A worker fills a buffer, saves it, and reads it again from a descriptor that cannot write.
#[tokio::test]
async fn worker_saves_and_loads() {
    let (mut service, _folder, path) = with_socket();
    let bytes = content(3_000_000);
    let buffer = Buffer { id: 7, size: 4 << 20 };
    let written = bytes.clone();
    let client = spawn_blocking(move || {
        let client = Client::connect(&path);
        let request = json!({"ask": "buffer", "step": 5, "bytes": written.len(), "kind": "state", "replicated": false});
        let (answer, file) = client.ask(&request);
        assert_eq!(answer, json!({"buffer": 7, "size": 4 << 20, "waited": 0.25}));
        File::from(file.expect("a buffer")).write_all_at(&written, 0).unwrap();
        let (answer, file) =
            client.ask(&json!({"ask": "saved", "step": 5, "bytes": written.len()}));
        assert_eq!((answer, file.is_none()), (json!({"taken": true}), true));
        let (answer, file) = client.ask(&json!({"ask": "load", "kind": "state"}));
        assert_eq!(answer, json!({"step": 5, "bytes": written.len(), "replicated": false}));
        let (mut read, file) = (vec![0; written.len()], File::from(file.expect("a block")));
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == written && file.write_at(b"x", 0).is_err());
    });
    let len = bytes.len() as u64;
    let ((), mut inputs) = run_until(&mut service, client, |input| match input {
        Input::Asked { ask: Ask::Buffer { .. }, left, .. } => {
            assert!(left.available > 0);
            answer(Answer::Buffer { buffer, waited: Duration::from_millis(250) })
        }
        Input::Asked { ask: Ask::Saved { .. }, .. } => {
            let mut effects = answer(Answer::Taken);
            effects.push(Effect::Sum { buffer, bytes: len });
            effects
        }
        Input::Asked { ask: Ask::Load { .. }, .. } => {
            answer(Answer::Block { step: 5, buffer, bytes: len, is_replicated: false })
        }
        _ => vec![],
    })
    .await;
    let sum = fill(&service, buffer, &bytes);
    let last = [
        Input::Made(buffer),
        Input::Summed { buffer, sum: Ok(sum) },
        Input::WorkerGone { round: round(1), worker: LocalRank(0) },
    ];
    // The checksum may take longer than the worker.
    while !last.iter().all(|input| inputs.contains(input)) {
        inputs.push(service.next().await);
    }
    assert_eq!(inputs.len(), 6, "{inputs:?}");
    service.carry_out(Effect::Drop(buffer));
    assert!(service.buffers.remove(buffer).is_none());
}

/// A buffer that cannot be made is reported, and the worker is refused.
#[tokio::test]
async fn buffer_that_cannot_be_made_is_refused() {
    let (mut service, _folder, path) = with_socket();
    let buffer = Buffer { id: 7, size: u64::MAX };
    let client = spawn_blocking(move || {
        let request =
            json!({"ask": "buffer", "step": 5, "bytes": 9, "kind": "dcp", "replicated": true});
        Client::connect(&path).ask(&request)
    });
    let ((refused, file), inputs) = run_until(&mut service, client, |input| match input {
        Input::Asked { .. } => answer(Answer::Buffer { buffer, waited: Duration::ZERO }),
        _ => vec![],
    })
    .await;
    assert!(refused["refused"].is_string() && file.is_none(), "{refused}");
    let not_made =
        |input: &Input| matches!(input, Input::NotMade { buffer: Buffer { id: 7, .. }, .. });
    assert!(inputs.iter().any(not_made), "{inputs:?}");
}

/// A worker that breaks the protocol loses its connection: malformed and long messages, descriptors, and a second request
/// before the answer. The next connection is served.
#[tokio::test]
async fn broken_protocol_closes_the_connection() {
    let (mut service, _folder, path) = with_socket();
    let newest = json!({"ask": "newest"}).to_string();
    let long = format!("{newest}{}", " ".repeat(limits::MAX_PACKET));
    let client = spawn_blocking(move || {
        let null = File::open("/dev/null").unwrap();
        let null = [null.as_raw_fd()];
        for (packet, descriptors) in [("{", &[][..]), (&long, &[]), (&newest, &null)] {
            let client = Client::connect(&path);
            client.send(packet.as_bytes(), descriptors);
            assert!(client.receive().is_none(), "{packet:.20}");
        }
        let client = Client::connect(&path);
        let load = json!({"ask": "load", "kind": "state"}).to_string();
        client.send(load.as_bytes(), &[]);
        client.send(load.as_bytes(), &[]);
        assert!(client.receive().is_none());
        Client::connect(&path).ask(&json!({"ask": "newest"})).0
    });
    let (newest, inputs) = run_until(&mut service, client, |input| match input {
        Input::Asked { ask: Ask::Newest, .. } => answer(Answer::Newest(Some(5))),
        // A load is answered late.
        _ => vec![],
    })
    .await;
    assert_eq!(newest, json!({"step": 5}));
    let asks: Vec<_> = inputs.iter().filter(|input| matches!(input, Input::Asked { .. })).collect();
    assert_eq!(asks.len(), 2, "{inputs:?}");
}

/// A newer connection of a worker replaces the older one, and the sockets of a newer round those of the older one. A late
/// answer to the older request is dropped.
#[tokio::test]
async fn newer_connections_and_rounds_replace_older_ones() {
    let (mut service, _folder, path) = with_socket();
    let newest = json!({"ask": "newest"}).to_string();
    let older = Client::connect(&path);
    older.send(newest.as_bytes(), &[]);
    assert!(matches!(service.next().await, Input::Asked { .. }));
    let newer = Client::connect(&path);
    assert!(matches!(service.next().await, Input::WorkerGone { .. }));
    assert!(older.receive().is_none());
    service.carry_out(Effect::Answer { worker: LocalRank(0), answer: Answer::Taken });
    newer.send(newest.as_bytes(), &[]);
    assert!(matches!(service.next().await, Input::Asked { .. }));
    let opened = Effect::OpenSockets { round: round(2), workers: NonZeroU32::MIN };
    service.carry_out(opened);
    service.carry_out(Effect::Answer { worker: LocalRank(0), answer: Answer::Taken });
    let newer = spawn_blocking(move || newer.receive().is_none());
    assert!(newer.await.unwrap());
    let last = Client::connect(&path);
    last.send(newest.as_bytes(), &[]);
    match service.next().await {
        Input::Asked { round: asked, .. } => assert_eq!(asked, round(2)),
        other => panic!("{other:?}"),
    }
    service.carry_out(Effect::Answer { worker: LocalRank(0), answer: Answer::Newest(None) });
    let last = spawn_blocking(move || last.receive().unwrap().0);
    assert_eq!(last.await.unwrap(), json!({"step": null}));
    service.carry_out(Effect::CloseSockets);
    assert!(!path.exists() && service.socket_folder().is_none());
    assert!(service.working.is_none(), "nothing of this needs a thread");
}

const OWN: TransferId = TransferId { is_foreign: false, number: 1 };

/// Drives both services until both have reported the end of their transfer.
async fn both_ends(
    services: [&mut MemoryService; 2],
    mut machine: impl FnMut(usize, &Input) -> Vec<Effect>,
) -> [TransferEnd; 2] {
    let [first, second] = services;
    let mut ends = [None, None];
    loop {
        let (index, input) = tokio::select! {
            input = first.next() => (0, input),
            input = second.next() => (1, input),
        };
        let service = if index == 0 { &mut *first } else { &mut *second };
        machine(index, &input).into_iter().for_each(|effect| service.carry_out(effect));
        if let Input::Ended { transfer, end } = input {
            assert_eq!(transfer.is_foreign, index == 1);
            ends[index] = Some(end);
        }
        if let [Some(first), Some(second)] = &ends {
            return [first.clone(), second.clone()];
        }
    }
}

/// A block is sent to another agent, and fetched back. Its checksum is right at both.
#[tokio::test]
async fn blocks_are_sent_and_fetched() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    let bytes = content(5_000_001);
    let buffer = Buffer { id: 1, size: 6 << 20 };
    let header = header(bytes.len() as u64, fill(&first, buffer, &bytes));
    let to = other.address.clone();
    first.carry_out(Effect::Copy { transfer: OWN, to: to.clone(), header, buffer });
    let copy = Buffer { id: 9, size: 5 << 20 };
    let ends = both_ends([&mut first, &mut second], |_, input| match *input {
        Input::Incoming { transfer, header: offered, left } => {
            assert!(offered == header && left.available > 0);
            vec![Effect::Receive { transfer, buffer: copy }]
        }
        _ => vec![],
    })
    .await;
    assert_eq!(ends, [TransferEnd::Done, TransferEnd::Done]);
    assert!(read(&second, copy, bytes.len()) == bytes);
    let (part, local_rank, transfer) =
        (header.part, header.local_rank, TransferId { number: 2, ..OWN });
    first.carry_out(Effect::Fetch { transfer, from: to, part, local_rank });
    let fetched = Buffer { id: 2, size: 5 << 20 };
    let ends = both_ends([&mut first, &mut second], |_, input| match *input {
        Input::Wanted { transfer, part: wanted, .. } => {
            assert_eq!(wanted, part);
            vec![Effect::Serve { transfer, header, buffer: copy }]
        }
        Input::Incoming { transfer, .. } => vec![Effect::Receive { transfer, buffer: fetched }],
        _ => vec![],
    })
    .await;
    assert_eq!(ends, [TransferEnd::Done, TransferEnd::Done]);
    assert!(read(&first, fetched, bytes.len()) == bytes);
}

/// Bytes that have changed since their checksum was computed are noticed by both ends.
#[tokio::test]
async fn changed_bytes_are_noticed() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    let mut bytes = content(2_000_000);
    let buffer = Buffer { id: 1, size: 2 << 20 };
    let header = header(bytes.len() as u64, fill(&first, buffer, &bytes));
    bytes[1_999_999] ^= 1;
    fill(&first, buffer, &bytes);
    let to = other.address.clone();
    first.carry_out(Effect::Copy { transfer: OWN, to, header, buffer });
    let ends = both_ends([&mut first, &mut second], |_, input| match *input {
        Input::Incoming { transfer, .. } => vec![Effect::Receive { transfer, buffer }],
        _ => vec![],
    })
    .await;
    assert_eq!(ends, [TransferEnd::WrongSum, TransferEnd::WrongSum]);
}

/// Bytes that have changed since the checksum are not given to a worker of another agent, nor are others of their 64 KiB.
#[tokio::test]
async fn changed_ranges_are_noticed() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    let mut bytes = content(200_000);
    let buffer = Buffer { id: 1, size: 1 << 20 };
    let part = header(bytes.len() as u64, fill(&second, buffer, &bytes)).part;
    bytes[199_999] ^= 1;
    second.buffers.get(buffer).open().unwrap().write_all_at(&bytes, 0).unwrap();
    for (number, range, expected) in [
        (0, 100..196_608, TransferEnd::Done),
        (1, 100..196_609, TransferEnd::WrongSum),
        (2, 199_998..200_000, TransferEnd::WrongSum),
    ] {
        let transfer = TransferId { number, ..OWN };
        let (offset, bytes) = (range.start, range.end - range.start);
        let ranges = vec![BlockRange { local_rank: LocalRank(0), offset, bytes }];
        let sources = vec![other.address.clone()];
        first.carry_out(Effect::FetchRanges { transfer, sources, part, ranges });
        let [end, _] = both_ends([&mut first, &mut second], |_, input| match *input {
            Input::WantedRange { transfer, range, .. } => {
                vec![Effect::ServeRange { transfer, buffer, range }]
            }
            _ => vec![],
        })
        .await;
        assert_eq!(end, expected, "{range:?}");
    }
}

/// A worker learns where the parts are, and reads ranges of a block that another agent holds. The first address does not
/// answer.
#[tokio::test]
async fn ranges_are_read_from_another_agent() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    first.carry_out(Effect::OpenSockets { round: round(1), workers: NonZeroU32::MIN });
    let path = memory_socket(first.socket_folder().unwrap(), LocalRank(0));
    let bytes = content(5_000_001);
    let buffer = Buffer { id: 1, size: 6 << 20 };
    let part = header(bytes.len() as u64, fill(&second, buffer, &bytes)).part;
    let closed = listen(Reach::Loopback([127, 0, 0, 1].into()), 0).unwrap();
    let closed = format!("127.0.0.1:{}", closed.local_addr().unwrap().port());
    let sources = vec![closed, other.address.clone()];
    let parts = vec![PartSources {
        group_rank: GroupRank(1),
        first_global_rank: GlobalRank(1),
        local_ranks: NonZeroU32::MIN,
        sources: sources.clone(),
    }];
    let whole = bytes.clone();
    let mut client = spawn_blocking(move || {
        let client = Client::connect(&path);
        let (answer, file) = client.ask(&json!({"ask": "load", "kind": "dcp"}));
        let mut list = Vec::new();
        File::from(file.expect("a list")).read_to_end(&mut list).unwrap();
        assert_eq!(answer, json!({"step": 120, "resharded": true, "bytes": list.len()}));
        let list: Value = serde_json::from_slice(&list).unwrap();
        assert_eq!(
            list,
            json!([{"group_rank": 1, "first_rank": 1, "ranks": 1, "sources": sources}])
        );
        let ranges = json!([[0, 3, 2_000_000], [0, 4_999_999, 2], [0, 0, 1]]);
        let request = json!({"ask": "ranges", "step": 120, "group_rank": 1, "sources": sources, "ranges": ranges});
        let (answer, file) = client.ask(&request);
        assert_eq!(answer, json!({"bytes": 2_000_003}));
        let mut read = Vec::new();
        File::from(file.expect("the ranges")).read_to_end(&mut read).unwrap();
        assert!(read == [&whole[3..2_000_003], &whole[4_999_999..], &whole[..1]].concat());
    });
    let mut served = 0;
    loop {
        tokio::select! {
            input = first.next() => match input {
                Input::Asked { ask: Ask::Load { .. }, .. } => {
                    let list = Answer::Resharded { step: 120, parts: parts.clone() };
                    answer(list).into_iter().for_each(|effect| first.carry_out(effect));
                }
                Input::Asked { ask: Ask::Ranges(request), .. } => {
                    assert_eq!((request.step, request.group_rank), (120, GroupRank(1)));
                    let RangesRequest { sources, ranges, .. } = request;
                    first.carry_out(Effect::FetchRanges { transfer: OWN, sources, part, ranges });
                }
                Input::Ended { transfer, end } => {
                    assert_eq!((transfer, end), (OWN, TransferEnd::Done));
                    let ranges = Answer::Ranges { transfer, bytes: 2_000_003 };
                    answer(ranges).into_iter().for_each(|effect| first.carry_out(effect));
                }
                Input::WorkerGone { .. } => {}
                other => panic!("{other:?}"),
            },
            input = second.next() => match input {
                Input::WantedRange { transfer, part: wanted, range } => {
                    assert_eq!(wanted, part);
                    second.carry_out(Effect::ServeRange { transfer, buffer, range });
                }
                Input::Ended { end, .. } => {
                    assert_eq!(end, TransferEnd::Done);
                    served += 1;
                }
                other => panic!("{other:?}"),
            },
            result = &mut client => break result.unwrap(),
        }
    }
    assert!(served >= 2 && first.fetched.is_empty(), "the last end may not be reported yet");
}

/// Ranges that no holder has are declined, and what was fetched for a worker that is gone is not kept.
#[tokio::test]
async fn ranges_may_be_declined_or_aborted() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    let (part, buffer) = (header(9, Sum(0)).part, Buffer { id: 1, size: 9 });
    let ranges = vec![BlockRange { local_rank: LocalRank(0), offset: 0, bytes: 9 }];
    let sources = vec![other.address.clone()];
    let fetch = |transfer| {
        let (sources, ranges) = (sources.clone(), ranges.clone());
        Effect::FetchRanges { transfer, sources, part, ranges }
    };
    first.carry_out(fetch(OWN));
    let why = Decline::NotHere;
    let ends = both_ends([&mut first, &mut second], |_, input| match *input {
        Input::WantedRange { transfer, .. } => vec![Effect::Decline { transfer, why }],
        _ => vec![],
    })
    .await;
    assert_eq!(ends, [TransferEnd::Declined(why), TransferEnd::Declined(why)]);
    fill(&second, buffer, b"some text");
    let other = TransferId { number: 2, ..OWN };
    first.carry_out(fetch(other));
    loop {
        tokio::select! {
            input = second.next() => if let Input::WantedRange { transfer, range, .. } = input {
                first.carry_out(Effect::Abort(other));
                second.carry_out(Effect::ServeRange { transfer, buffer, range });
            },
            input = first.next() => {
                assert!(matches!(input, Input::Ended { .. }), "{input:?}");
                break;
            }
        }
    }
    assert!(first.fetched.is_empty());
}

/// Both ends learn why a block is not received or not sent.
#[tokio::test]
async fn declined_blocks_have_a_reason() {
    let (mut first, _folder) = service(secret("a"), "job");
    let (mut second, other) = service(secret("a"), "job");
    let (buffer, header) = (Buffer { id: 1, size: 1 << 20 }, header(9, Sum(0)));
    let (to, from) = (other.address.clone(), other.address.clone());
    for why in [Decline::HaveIt, Decline::NotNeeded, Decline::NoRoom] {
        first.carry_out(Effect::Copy { transfer: OWN, to: to.clone(), header, buffer });
        let ends = both_ends([&mut first, &mut second], |_, input| match *input {
            Input::Incoming { transfer, .. } => vec![Effect::Decline { transfer, why }],
            _ => vec![],
        })
        .await;
        assert_eq!(ends, [TransferEnd::Declined(why), TransferEnd::Declined(why)]);
    }
    let (part, local_rank) = (header.part, header.local_rank);
    first.carry_out(Effect::Fetch { transfer: OWN, from, part, local_rank });
    let why = Decline::NotHere;
    let ends = both_ends([&mut first, &mut second], |_, input| match *input {
        Input::Wanted { transfer, .. } => vec![Effect::Decline { transfer, why }],
        _ => vec![],
    })
    .await;
    assert_eq!(ends, [TransferEnd::Declined(why), TransferEnd::Declined(why)]);
}

/// Agents of another job, with another secret or without one are refused, and the machine does not see their requests.
#[tokio::test]
async fn strangers_are_refused() {
    let (mut host, place) = service(secret("a"), "job");
    let to = place.address.clone();
    for (credentials, uid, expected) in [
        (secret("a"), "other", "it belongs to another job"),
        (secret("b"), "job", "it has not authenticated itself"),
        (Credentials::default(), "job", "the job has no secret"),
    ] {
        let (mut stranger, _own_folder) = service(credentials, uid);
        let (buffer, header) = (Buffer { id: 1, size: 1 << 20 }, header(9, Sum(0)));
        stranger.carry_out(Effect::Copy { transfer: OWN, to: to.clone(), header, buffer });
        let end = tokio::select! {
            input = stranger.next() => input,
            input = host.next() => panic!("{input:?}"),
        };
        let Input::Ended { transfer: OWN, end: TransferEnd::Failed(why) } = end else {
            panic!("{end:?}");
        };
        assert!(why.contains(expected), "{why}");
    }
}

/// A transfer that this agent has begun ends when the machine aborts it, even if the other agent does not answer.
#[tokio::test]
async fn transfers_are_aborted() {
    let (mut first, _folder) = service(secret("a"), "job");
    let silent = listen(Reach::Loopback([127, 0, 0, 1].into()), 0).unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let (buffer, header) = (Buffer { id: 1, size: 1 << 20 }, header(9, Sum(0)));
    first.carry_out(Effect::Copy { transfer: OWN, to, header, buffer });
    first.carry_out(Effect::Abort(OWN));
    let end = TransferEnd::Failed("this agent has ended the transfer".to_owned());
    assert_eq!(first.next().await, Input::Ended { transfer: OWN, end });
}

/// The memory is read each second while it is watched.
#[tokio::test(start_paused = true)]
async fn memory_is_watched() {
    let (mut service, _folder) = service(Credentials::default(), "job");
    service.carry_out(Effect::WatchMemory(true));
    let begun = clock::now();
    for second in 1..=3 {
        let Input::Left(left) = service.next().await else { panic!("another input") };
        assert!(left.available > 0 && clock::now() - begun == Duration::from_secs(second));
    }
    service.carry_out(Effect::WatchMemory(false));
    let limit = Duration::from_secs(60);
    assert!(tokio::time::timeout(limit, service.next()).await.is_err());
}
