//! The socket of an agent for `ragent notice` and `ragent stacks`, in a folder that only its user can open.
//!
//! Each side sends lines of JSON: a [`Request`], and then one or two [`Answer`]s. Only the agent's user and root
//! are answered.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::unistd::getuid;
use ragent_base::sys::{clock, private_folder::PrivateFolder};
use ragent_core::agent::NotTaken;
use ragent_options::spec::RequestKind;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::AbortHandle,
    time::timeout,
};
use tracing::{debug, warn};

use super::{NoticeAnswer, NoticeRequest, fitted};

/// The most connections at once: each `ragent notice` uses one.
const CONNECTIONS_MAX: usize = 16;

/// The longest line.
const LINE_MAX: u64 = 4096;

/// The time in which a request must be sent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A request of `ragent notice` or `ragent stacks`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Request {
    /// What is about to happen, or what is wanted.
    pub kind: RequestKind,
    /// The time for which ranks may save, in milliseconds; `None` for that of `--notice`.
    pub within_ms: Option<u64>,
    /// A text for people.
    pub text: String,
    /// True if a second answer is wanted, once all ranks have saved.
    pub waits: bool,
}

/// The answer of an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The notice counts.
    Taken,
    /// The notice does not count, for this reason.
    Refused(String),
    /// All ranks have saved this step.
    Saved(u64),
    /// The round has ended, and not all ranks had saved.
    Over,
}

impl From<NoticeAnswer> for Answer {
    fn from(answer: NoticeAnswer) -> Self {
        match answer {
            NoticeAnswer::Taken => Self::Taken,
            NoticeAnswer::NotTaken(NotTaken::TooLate) => Self::Refused(
                "it is too late: the node is leaving, or the job has ended".to_owned(),
            ),
            NoticeAnswer::NotTaken(NotTaken::NoRound) => {
                Self::Refused("no worker runs on the node".to_owned())
            }
            NoticeAnswer::Saved(step) => Self::Saved(step),
            NoticeAnswer::Over => Self::Over,
        }
    }
}

/// The open socket. Dropping this removes it.
#[derive(Debug)]
pub struct NoticeSocket {
    path: PathBuf,
    task: AbortHandle,
}

impl NoticeSocket {
    /// Opens the socket at `path`, in a folder of this user.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn open(path: PathBuf, notices: mpsc::Sender<NoticeRequest>) -> io::Result<Self> {
        PrivateFolder::make_for_paths(path.parent().unwrap_or_else(|| Path::new("/")))?;
        let listener = UnixListener::bind(&path)?;
        let task = tokio::spawn(accept(listener, notices)).abort_handle();
        Ok(Self { path, task })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NoticeSocket {
    fn drop(&mut self) {
        self.task.abort();
        // A socket that stays does no harm: nobody listens.
        let _ = fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, notices: mpsc::Sender<NoticeRequest>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Further askers wait in the kernel's queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "failed to accept a connection for a notice");
                clock::until(Some(clock::now() + REQUEST_TIMEOUT)).await;
                continue;
            }
        };
        let is_allowed =
            stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == getuid().as_raw());
        if !is_allowed {
            debug!("a process of another user may not give a notice");
            continue;
        }
        let notices = notices.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, notices).await {
                debug!(%error, "a notice was not answered");
            }
            drop(place);
        });
    }
}

async fn serve(stream: UnixStream, notices: mpsc::Sender<NoticeRequest>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(LINE_MAX));
    let mut line = String::new();
    timeout(REQUEST_TIMEOUT, reader.read_line(&mut line)).await??;
    let (asker, mut answers) = mpsc::channel(2);
    let waits = match serde_json::from_str::<Request>(&line) {
        Ok(Request { kind, within_ms, text, waits }) => {
            let within = within_ms.map(Duration::from_millis);
            let text = fitted(&text);
            let request = NoticeRequest { kind, within, text, asker: Some(asker) };
            if notices.send(request).await.is_err() {
                return Ok(());
            }
            waits
        }
        Err(_) => {
            let refused = Answer::Refused("the request is malformed".to_owned());
            return write(&mut writer, &refused).await;
        }
    };
    let mut more = Vec::new();
    loop {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            // The client has gone. Nothing else is expected from it.
            _ = reader.read_to_end(&mut more) => return Ok(()),
        };
        let Some(answer) = answer else { break };
        write(&mut writer, &answer.into()).await?;
        if answer != NoticeAnswer::Taken || !waits {
            return Ok(());
        }
    }
    // The agent has ended.
    write(&mut writer, &Answer::Over).await
}

async fn write(writer: &mut (impl AsyncWriteExt + Unpin), answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    timeout(REQUEST_TIMEOUT, writer.write_all(&line)).await?
}

/// Sends a request to the agent at `path`, and passes each answer on. Returns when there are no more.
///
/// # Errors
///
/// Returns the system's error.
pub async fn ask(path: &Path, request: &Request, mut handle: impl FnMut(Answer)) -> io::Result<()> {
    let stream = timeout(REQUEST_TIMEOUT, UnixStream::connect(path)).await??;
    let (reader, mut writer) = stream.into_split();
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    timeout(REQUEST_TIMEOUT, writer.write_all(&line)).await??;
    let mut lines = BufReader::new(reader.take(2 * LINE_MAX)).lines();
    while let Some(line) = lines.next_line().await? {
        handle(serde_json::from_str(&line)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str, waits: bool) -> Request {
        Request { kind: RequestKind::Leave, within_ms: Some(1_500), text: text.to_owned(), waits }
    }

    async fn answers(path: &Path, request: &Request) -> Vec<Answer> {
        let mut answers = Vec::new();
        ask(path, request, |answer| answers.push(answer)).await.unwrap();
        answers
    }

    /// A request reaches the agent, and its answers the asker. Without the wish to wait, there is one answer.
    #[tokio::test]
    async fn requests_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private").join("agent.sock");
        let (sender, mut notices) = mpsc::channel(1);
        let socket = NoticeSocket::open(path.clone(), sender).unwrap();
        tokio::spawn(async move {
            while let Some(NoticeRequest { kind, within, text, asker }) = notices.recv().await {
                assert_eq!(
                    (kind, within),
                    (RequestKind::Leave, Some(Duration::from_millis(1_500)))
                );
                let asker = asker.unwrap();
                let first = match text.as_str() {
                    "late" => NoticeAnswer::NotTaken(NotTaken::TooLate),
                    _ => NoticeAnswer::Taken,
                };
                asker.send(first).await.unwrap();
                if text == "spot" {
                    let _ = asker.send(NoticeAnswer::Saved(48_210)).await;
                }
            }
        });
        assert_eq!(
            answers(&path, &request("spot", true)).await,
            [Answer::Taken, Answer::Saved(48_210)]
        );
        assert_eq!(answers(&path, &request("spot", false)).await, [Answer::Taken]);
        let [Answer::Refused(why)] = &answers(&path, &request("late", true)).await[..] else {
            panic!("a refusal is expected")
        };
        assert!(why.contains("too late"), "{why}");
        let gone = answers(&path, &request("agent ends", true)).await;
        assert_eq!(gone, [Answer::Taken, Answer::Over]);
        drop(socket);
        assert!(!path.exists());
    }

    /// Malformed and oversized requests are refused.
    #[tokio::test]
    async fn malformed_requests_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let (sender, mut notices) = mpsc::channel(1);
        let _socket = NoticeSocket::open(path.clone(), sender).unwrap();
        let members = br#"{"kind":"members","within_ms":null,"text":"","waits":false}"#;
        for line in [&b"nonsense"[..], b"{}", members, &vec![b'x'; 10_000]] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            // The agent may have answered before it has read everything.
            let _ = stream.write_all(&[line, b"\n"].concat()).await;
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            assert!(answer.contains("malformed") || line.len() > 4096, "{answer}");
        }
        assert!(notices.try_recv().is_err());
    }
}
