//! Asks torch's worker server, which runs in the process of a worker: HTTP/1.1 on a Unix socket.
//!
//! 1. `GET /handler/` lists what it answers, which depends on the version of torch.
//! 2. `POST /handler/dump_traceback` returns stacks, `fr_trace_json` and `dump_nccl_trace_json` records of collectives.
//!
//! Each answer has a limit of size and time. If any records are missing, nothing is known of the worker's collectives:
//! without them, it would seem to have launched none. A worker without a server has no such socket.

use std::{io, path::Path};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};
use tracing::debug;

use super::{
    frames::{self, Stack},
    records::{Recorder, Records},
};
use crate::limits;

/// The handler that returns stacks.
const OF_STACKS: &str = "dump_traceback";

/// The answers of a server.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The records, as JSON, as far as there are any.
    pub(super) whole_records: Vec<Vec<u8>>,
    /// The last collective of each group; `None` unless all recorders have answered.
    pub(super) records: Option<Records>,
    /// The stacks of all threads as text, and that of the main one.
    pub(super) stack: Option<(String, Stack)>,
}

/// Asks the server at this socket. What is not answered in time is left out.
pub(super) async fn ask(socket: &Path) -> Answers {
    let mut answers = Answers::default();
    let asked = ask_all(socket, &mut answers);
    if timeout(limits::WORKER_SERVER_TIMEOUT, asked).await.is_err() {
        debug!(socket = %socket.display(), "a torch worker server has not answered all questions in time");
    }
    answers
}

async fn ask_all(socket: &Path, answers: &mut Answers) {
    let list = match exchange(socket, "GET", "").await {
        Ok(list) => list,
        Err(error) => {
            return debug!(socket = %socket.display(), %error, "a worker has no torch worker server");
        }
    };
    let handlers: Vec<String> = serde_json::from_slice(&list).unwrap_or_default();
    let has = |name: &str| handlers.iter().any(|handler| handler == name);
    let asked: Vec<Recorder> =
        Recorder::ALL.into_iter().filter(|recorder| has(recorder.handler())).collect();
    let mut records = Records::default();
    for &recorder in &asked {
        let handler = recorder.handler();
        match exchange(socket, "POST", handler).await {
            Ok(json) if records.add(recorder, &json) => answers.whole_records.push(json),
            Ok(_) => debug!(handler, "a torch worker server returns records of another form"),
            Err(error) => debug!(handler, %error, "a torch worker server returns no records"),
        }
    }
    if !asked.is_empty() && answers.whole_records.len() == asked.len() {
        answers.records = Some(records);
    }
    if has(OF_STACKS) {
        match exchange(socket, "POST", OF_STACKS).await {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                answers.stack = frames::of_faulthandler(&text).map(|stack| (text, stack));
            }
            Err(error) => debug!(%error, "a torch worker server returns no stacks"),
        }
    }
}

async fn exchange(socket: &Path, method: &str, handler: &str) -> io::Result<Vec<u8>> {
    let exchanged = timeout(limits::WORKER_SERVER_ANSWER, async {
        let mut stream = UnixStream::connect(socket).await?;
        let request = format!(
            "{method} /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut received = Vec::new();
        stream.take(limits::MAX_RECORDS + 1).read_to_end(&mut received).await?;
        Ok::<_, io::Error>(received)
    });
    let received = exchanged.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if received.len() as u64 > limits::MAX_RECORDS {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    body(received).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the body of an answer with the status 200, if it is whole.
fn body(mut received: Vec<u8>) -> Option<Vec<u8>> {
    const END: &[u8] = b"\r\n\r\n";
    let head = received.windows(END.len()).position(|window| window == END)?;
    let body = received.split_off(head + END.len());
    let head = String::from_utf8(received).ok()?;
    let mut lines = head.lines();
    if lines.next()?.split(' ').nth(1)? != "200" {
        return None;
    }
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let len = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let len: usize = len?.1.trim().parse().ok()?;
    let mut body = body;
    if body.len() < len {
        return None;
    }
    body.truncate(len);
    Some(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::{io::AsyncReadExt, net::UnixListener};

    use super::*;

    fn ok(body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    /// Asks a server that answers each request with what `answer` returns for its first line.
    async fn asked(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Answers {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.torch");
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                // A client that has enough closes the connection.
                let _ = stream.write_all(&answer(request.lines().next().unwrap())).await;
            }
        });
        let answers = ask(&path).await;
        server.abort();
        answers
    }

    /// Only handlers of the list are asked. Records and the stack of the main thread are read.
    #[tokio::test]
    async fn server_is_asked_for_what_it_has() {
        let answers = asked(|line| match line {
            "GET /handler/ HTTP/1.1" => ok(r#"["ping","fr_trace_json","dump_traceback"]"#),
            "POST /handler/fr_trace_json HTTP/1.1" => ok(r#"{"entries":[]}"#),
            "POST /handler/dump_traceback HTTP/1.1" => {
                ok("Current thread 0x1 (most recent call first):\n  <no Python frame>\n\n\
                 Thread 0x2 (most recent call first):\n  File \"/a/t.py\", line 7 in main\n")
            }
            other => panic!("{other}"),
        })
        .await;
        assert_eq!(answers.records, Some(Records::default()));
        assert_eq!(answers.whole_records, [br#"{"entries":[]}"#.to_vec()]);
        assert_eq!(answers.stack.unwrap().1.line().as_deref(), Some("main at t.py:7"));
    }

    /// Answers that are cut, too large, refused or of another form are left out.
    #[tokio::test]
    async fn bad_answers_are_left_out() {
        let answers = asked(|line| match line {
            "GET /handler/ HTTP/1.1" => {
                ok(r#"["fr_trace_json","dump_nccl_trace_json","dump_traceback"]"#)
            }
            "POST /handler/fr_trace_json HTTP/1.1" => {
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}".to_vec()
            }
            "POST /handler/dump_nccl_trace_json HTTP/1.1" => {
                ok(&" ".repeat(usize::try_from(limits::MAX_RECORDS).unwrap()))
            }
            _ => b"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\nno".to_vec(),
        })
        .await;
        assert!(answers.records.is_none() && answers.stack.is_none());
        assert!(answers.whole_records.is_empty());
        let answers = asked(|_| ok("not a list")).await;
        assert!(answers.records.is_none());
    }

    /// If one of several recorders does not answer, or too late, it is not known which collectives the worker has launched.
    #[tokio::test]
    async fn some_records_are_none() {
        for (bad, whole) in [("cut", 1), ("of another form", 1), ("missing", 1), ("sound", 2)] {
            let answers = asked(move |line| match (line, bad) {
                ("GET /handler/ HTTP/1.1", _) => ok(r#"["dump_nccl_trace_json","fr_trace_json"]"#),
                ("POST /handler/fr_trace_json HTTP/1.1", _) => ok(r#"{"entries":[]}"#),
                (_, "cut") => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}".to_vec(),
                (_, "of another form") => ok("[]"),
                (_, "sound") => ok(r#"{"pg_config":{}}"#),
                _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno".to_vec(),
            })
            .await;
            assert_eq!(answers.records.is_some(), bad == "sound", "{bad}");
            assert_eq!(answers.whole_records.len(), whole, "{bad}");
        }
    }

    /// A server that is silent is left out after the time limit.
    #[tokio::test(start_paused = true)]
    async fn silent_server_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.torch");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(ask(&path).await.records.is_none());
    }

    proptest! {
        /// All bytes are either a body or refused.
        #[test]
        fn never_panics(text in "(HTTP/1.1 200|\r\n|Content-Length: |[0-9]{1,30}|[a-z :]){0,12}") {
            if let Some(body) = body(text.clone().into_bytes()) {
                prop_assert!(text.as_bytes().windows(body.len().max(1)).any(|part| part == body) || body.is_empty());
            }
        }
    }
}
