use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::wire::GREETING;

/// Serves one connection on which the client says `words`; returns how it ended. Time passes as
/// soon as nobody has anything to do.
async fn end_after(words: &[u8], goodbye: bool) -> Result<End, tokio::time::error::Elapsed> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    client.write_all(words).await.unwrap();
    if goodbye {
        client.shutdown().await.unwrap();
    }
    let connection = Connection::new(stream, Rc::new(State::default()));
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
