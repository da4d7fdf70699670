//! The transport, with clients that do not follow the protocol.

use std::{net::SocketAddr, sync::Arc};

use ragent_base::{
    net::secure_stream::{self, SecureStream},
    secret::ALPN_MEMORY,
};
use ragent_core::memory::{Buffer, Decline, Sum};

use super::{
    frames::{FRAME_LEN, Frame, Receipt, Verdict},
    *,
};
use crate::memory::{
    buffers::{Buffers, Sums},
    tests::{header, port, secret},
};

struct Host {
    events: mpsc::Receiver<Event>,
    address: SocketAddr,
    running: watch::Sender<()>,
}

/// Starts the transport of an agent of the job, on this runtime.
fn host() -> Host {
    let (address, mut connections) = port(&secret("a"));
    let (sender, events) = mpsc::channel(limits::EVENTS);
    let (running, stop) = watch::channel(());
    let end = (stop, Busy::default());
    let job = watch::Sender::new(Some(JobUid::new("job")));
    let transport = Arc::new(Transport::new(secret("a"), job.subscribe(), sender, end));
    tokio::spawn(async move {
        let _job = job;
        while let Some(connection) = connections.recv().await {
            let transport = Arc::clone(&transport);
            tokio::spawn(async move { transport.serve(connection).await });
        }
    });
    Host { events, address: address.parse().unwrap(), running }
}

/// Opens a connection, and exchanges the greetings.
async fn greeted(address: SocketAddr) -> SecureStream {
    let mut stream = secure_stream::connect(address, &secret("a"), ALPN_MEMORY).await.unwrap();
    let own = Greeting::of(&JobUid::new("job"));
    stream.write_all(&own.encode()).await.unwrap();
    stream.flush().await.unwrap();
    let mut theirs = [0; GREETING_LEN];
    stream.read_exact(&mut theirs).await.unwrap();
    own.check(&theirs).unwrap();
    stream
}

async fn send(stream: &mut SecureStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// A header with 10^18 bytes, and one with other nonsense, closes the connection, and the machine does not see it.
#[tokio::test]
async fn impossible_headers_close_the_connection() {
    let mut host = host();
    let huge = Frame::Put(header(10_u64.pow(18), Sum(0))).encode();
    for frame in [huge, [0xff; FRAME_LEN]] {
        let mut stream = greeted(host.address).await;
        send(&mut stream, &frame).await;
        // The end of TLS is not announced.
        assert!(stream.read_u8().await.is_err());
    }
    assert!(host.events.try_recv().is_err());
}

/// Several requests follow each other on one connection. A client that closes it in the middle of a block ends only that
/// transfer.
#[tokio::test]
async fn requests_follow_each_other() {
    let mut host = host();
    let mut stream = greeted(host.address).await;
    let part = header(9, Sum(0)).part;
    send(&mut stream, &Frame::Get(part, ragent_rendezvous::ids::LocalRank(0)).encode()).await;
    let Some(Event::Wanted { answer, transfer: first, .. }) = host.events.recv().await else {
        panic!()
    };
    answer.send(TransferAnswer::Decline(Decline::NotHere)).unwrap();
    let mut frame = [0; FRAME_LEN];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(Frame::decode(&frame), Ok(Frame::Decline(Decline::NotHere)));
    assert!(matches!(host.events.recv().await, Some(Event::Ended { .. })));
    let (buffers, buffer) = (Buffers::default(), Buffer { id: 1, size: 9 });
    let mut sums = Sums::new();
    sums.add(b"some text");
    send(&mut stream, &Frame::Put(header(9, sums.finish())).encode()).await;
    let Some(Event::Incoming { answer, transfer, .. }) = host.events.recv().await else { panic!() };
    assert!(transfer.is_foreign && transfer.number > first.number);
    answer.send(TransferAnswer::Receive(buffer, buffers.get(buffer))).unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), Verdict::Take.encode());
    send(&mut stream, b"some text").await;
    assert_eq!(stream.read_u8().await.unwrap(), Receipt::Done.encode());
    let Some(Event::Ended { end: TransferEnd::Done, .. }) = host.events.recv().await else {
        panic!()
    };
    send(&mut stream, &Frame::Put(header(9, Sum(0))).encode()).await;
    let Some(Event::Incoming { answer, .. }) = host.events.recv().await else { panic!() };
    answer.send(TransferAnswer::Receive(buffer, buffers.get(buffer))).unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), Verdict::Take.encode());
    send(&mut stream, b"some").await;
    drop(stream);
    let Some(Event::Ended { end: TransferEnd::Failed(why), .. }) = host.events.recv().await else {
        panic!()
    };
    assert_eq!(why, "it has closed the connection");
    greeted(host.address).await;
}

/// An address has four connections. The fifth is greeted when one of them is closed.
#[tokio::test]
async fn connections_of_an_address_are_bounded() {
    let mut host = host();
    let mut open = Vec::new();
    for _ in 0..limits::MAX_CONNECTIONS_PER_ADDRESS {
        open.push(greeted(host.address).await);
    }
    let fifth = tokio::spawn(greeted(host.address));
    // The others are served meanwhile.
    for stream in &mut open {
        send(stream, &Frame::Put(header(9, Sum(0))).encode()).await;
        let Some(Event::Incoming { answer, .. }) = host.events.recv().await else { panic!() };
        answer.send(TransferAnswer::Decline(Decline::NoRoom)).unwrap();
        let verdict = stream.read_u8().await.unwrap();
        assert_eq!(Verdict::decode(verdict), Ok(Verdict::Decline(Decline::NoRoom)));
        assert!(matches!(host.events.recv().await, Some(Event::Ended { .. })));
    }
    assert!(!fifth.is_finished());
    open.pop();
    fifth.await.unwrap();
}

/// The end of the agent ends a transfer in the middle of a block.
#[tokio::test]
async fn end_of_the_agent_ends_transfers() {
    let mut host = host();
    let mut stream = greeted(host.address).await;
    send(&mut stream, &Frame::Put(header(9, Sum(0))).encode()).await;
    let Some(Event::Incoming { answer, .. }) = host.events.recv().await else { panic!() };
    let (buffers, buffer) = (Buffers::default(), Buffer { id: 1, size: 9 });
    answer.send(TransferAnswer::Receive(buffer, buffers.get(buffer))).unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), Verdict::Take.encode());
    drop(host.running);
    assert!(stream.read_u8().await.is_err());
    let Some(Event::Ended { end: TransferEnd::Failed(why), .. }) = host.events.recv().await else {
        panic!()
    };
    assert_eq!(why, "this agent has ended the transfer");
}
