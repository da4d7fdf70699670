use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use crate::wire::{GREETING, Query};

/// A connection, its client, and the state that it has for itself.
async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    // So that the kernel does not take what is not read.
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    (Connection::new(stream, Rc::new(State::default())), client)
}

/// Serves one connection on which the client says `words`; returns how it ended. Time passes as
/// soon as nobody has anything to do.
async fn end_after(words: &[u8], goodbye: bool) -> Result<End, tokio::time::error::Elapsed> {
    let (connection, mut client) = pair().await;
    client.write_all(words).await.unwrap();
    if goodbye {
        client.shutdown().await.unwrap();
    }
    timeout(1000 * GREETING_TIMEOUT, connection.run()).await
}

/// Who does not complete VALIDATE in time is closed; who has may be silent.
#[tokio::test(start_paused = true)]
async fn only_the_greeting_has_a_deadline() {
    assert!(matches!(end_after(b"", false).await, Ok(End::Silent)));
    assert!(matches!(end_after(&GREETING[..4], false).await, Ok(End::Silent)));
    assert!(end_after(&GREETING, false).await.is_err());
}

/// A client that hangs up is not one that broke a rule, even in the middle of a request.
#[tokio::test]
async fn hanging_up_is_no_violation() {
    for words in [&b""[..], &GREETING[..2], b"\0\xce\xf7\x85\x3c", b"\0\xce\xf7\x85\x3c\x01\x05\0"]
    {
        assert!(matches!(end_after(words, true).await, Ok(End::HungUp)));
    }
}

/// Serves `connection` while `client` runs.
async fn while_served<T>(connection: &mut Connection, client: impl Future<Output = T>) -> T {
    tokio::select! {
        end = future::poll_fn(|cx| connection.poll_end(cx)) => unreachable!("it ended: {end:?}"),
        result = client => result,
    }
}

fn encode(queries: &[Query<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for query in queries {
        query.encode(&mut bytes).unwrap();
    }
    bytes
}

/// Who has read its answers holds nothing, though it asks nothing further.
#[tokio::test]
async fn answers_that_were_read_do_not_count() {
    const LEN: usize = 8000;
    let (mut connection, mut client) = pair().await;
    let keys = vec![&b"k"[..]; 1000];
    let ask = [Query::Set { key: b"k", value: &[7; LEN] }, Query::MultiGet { keys }];
    while_served(&mut connection, async {
        client.write_all(&[&GREETING[..], &encode(&ask)].concat()).await.unwrap();
        client.read_exact(&mut vec![0; 1000 * (8 + LEN)]).await.unwrap();
    })
    .await;
    assert_eq!(connection.state.buffered.get(), 0);
}

/// What stands behind a large request does not keep the room that the request took; and all the
/// room that is held counts, whether or not anything comes to fill it.
#[tokio::test]
async fn buffers_count_as_what_they_occupy() {
    let (mut connection, mut client) = pair().await;
    let key = [b'k'; 8000];
    let large = encode(&[Query::Check { keys: vec![&key; 500] }]);
    while_served(&mut connection, async {
        client.write_all(&[&GREETING[..], &large, b"\x0dpi"].concat()).await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
    })
    .await;
    assert_eq!(connection.state.buffered.get(), connection.unread.capacity());
    assert!(connection.unread.capacity() <= UNREAD_CAPACITY);
    while_served(&mut connection, async {
        client.write_all(b"ng").await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
    })
    .await;
    assert_eq!((connection.state.buffered.get(), connection.unread.capacity()), (0, 0));
}

/// A value that was replaced while it was read is let go when it was sent, or when who read it
/// leaves; one that was popped counts as its reader's.
#[tokio::test]
async fn sent_values_are_let_go() {
    const VALUE: &[u8] = &[7; 8 << 20];
    let (mut connection, mut client) = pair().await;
    let ask = [Query::Set { key: b"x", value: VALUE }, Query::Get { key: b"x" }];
    let (mut reader, mut writer) = client.split();
    let replace = |connection: &Connection| {
        let mut engine = connection.state.engine.borrow_mut();
        engine.set(b"x", b"").unwrap();
        engine.lingering_len()
    };
    while_served(&mut connection, async {
        writer.write_all(&[&GREETING[..], &encode(&ask)].concat()).await.unwrap();
        reader.read_exact(&mut [0; 8]).await.unwrap();
    })
    .await;
    assert_eq!(replace(&connection), 1);
    while_served(&mut connection, async {
        reader.read_exact(&mut vec![0; VALUE.len()]).await.unwrap();
    })
    .await;
    assert_eq!(connection.state.engine.borrow().lingering_len(), 0);
    let push = Query::QueuePush { queue: b"q", value: VALUE };
    let ask = [push, Query::QueuePop { queue: b"q" }];
    while_served(&mut connection, async {
        writer.write_all(&encode(&ask)).await.unwrap();
        reader.read_exact(&mut [0; 16]).await.unwrap();
    })
    .await;
    assert!(VALUE.len() / 4 < connection.state.buffered.get());
    while_served(&mut connection, async {
        reader.read_exact(&mut vec![0; VALUE.len()]).await.unwrap();
    })
    .await;
    assert_eq!(connection.state.buffered.get(), 0);
    let ask = [Query::Set { key: b"x", value: VALUE }, Query::Get { key: b"x" }];
    while_served(&mut connection, async {
        writer.write_all(&encode(&ask)).await.unwrap();
        reader.read_exact(&mut [0; 8]).await.unwrap();
    })
    .await;
    assert_eq!(replace(&connection), 1);
    let state = Rc::clone(&connection.state);
    drop(connection);
    assert_eq!(state.engine.borrow().lingering_len(), 0);
}

/// Who asks for little is served though others hold all the buffers there may be.
#[tokio::test]
async fn full_buffers_do_not_concern_the_small() {
    let (mut connection, mut client) = pair().await;
    connection.state.buffered.set(crate::limits::BUFFERS_LEN_MAX);
    while_served(&mut connection, async {
        client.write_all(&[&GREETING[..], b"\x0dping\x0dpo"].concat()).await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
        client.write_all(b"ng").await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
    })
    .await;
}
