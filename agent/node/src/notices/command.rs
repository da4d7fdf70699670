//! Runs the program of `--notice-command`, and reads its lines. If it ends, it is started again after a pause.

use std::{io, process::Stdio, time::Duration};

use ragent_base::{
    report::news::with_causes,
    sys::{clock, user_command::UserCommand},
};
use ragent_rendezvous::jitter::Jitter;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
};
use tracing::{info, warn};

use super::{NoticeRequest, line::parse};

/// The longest line. The rest of a longer one is dropped.
const LINE_MAX: usize = 4096;

/// The pause before the first restart. It doubles with each restart, up to the longest one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Runs the program for as long as this process runs. Dropping the future ends the program and its group.
pub async fn run_command(words: Vec<String>, notices: mpsc::Sender<NoticeRequest>) {
    let (mut pause, mut jitter) = (PAUSE, Jitter::new(rand::random()));
    let mut has_warned = false;
    loop {
        let has_printed = match run_once(&words, &notices, &mut has_warned).await {
            Ok(has_printed) => {
                warn!(
                    command = words.join(" "),
                    seconds = pause.as_secs_f64(),
                    "the program of `--notice-command` has ended; starting it again after a pause"
                );
                has_printed
            }
            Err(error) => {
                warn!(
                    command = words.join(" "),
                    error = with_causes(&error),
                    seconds = pause.as_secs_f64(),
                    "failed to run the program of `--notice-command`; trying again after a pause"
                );
                false
            }
        };
        if notices.is_closed() {
            return;
        }
        if has_printed {
            pause = PAUSE;
        }
        clock::until(Some(clock::now() + jitter.spread(pause))).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Runs the program once, until it ends. Returns true if it has printed a notice.
async fn run_once(
    words: &[String],
    notices: &mpsc::Sender<NoticeRequest>,
    has_warned: &mut bool,
) -> io::Result<bool> {
    let mut command = UserCommand::start(words, &[], Stdio::inherit())?;
    let output = command.take_stdout()?;
    let mut lines = Lines::new(output);
    let mut has_printed = false;
    while let Some(line) = lines.next().await? {
        match parse(&line) {
            Some(request) => {
                has_printed = true;
                info!(line, "notice of `--notice-command`");
                if notices.send(request).await.is_err() {
                    break;
                }
            }
            None if line.trim().is_empty() => {}
            None if std::mem::replace(has_warned, true) => {}
            None => warn!(
                line,
                "the program of `--notice-command` has printed a line that is not a notice; further ones are \
                 ignored without a warning (a notice is `leave|end|save SECONDS TEXT`)"
            ),
        }
    }
    Ok(has_printed)
}

/// The lines of a program's output.
struct Lines<R> {
    output: R,
    bytes: Vec<u8>,
    /// True while the rest of a line that is too long is dropped.
    is_dropping: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(output: R) -> Self {
        Self { output, bytes: Vec::new(), is_dropping: false }
    }

    /// Returns the next line without its end; `None` at the end of the output.
    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                let line = std::mem::replace(&mut self.bytes, rest);
                if std::mem::take(&mut self.is_dropping) {
                    continue;
                }
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.bytes.len() >= LINE_MAX {
                let line = std::mem::take(&mut self.bytes);
                if !std::mem::replace(&mut self.is_dropping, true) {
                    return Ok(Some(String::from_utf8_lossy(&line[..LINE_MAX]).into_owned()));
                }
            }
            let mut chunk = [0; 1024];
            match self.output.read(&mut chunk).await? {
                0 if self.bytes.is_empty() || self.is_dropping => return Ok(None),
                0 => {
                    let line = std::mem::take(&mut self.bytes);
                    return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
                }
                len => self.bytes.extend_from_slice(&chunk[..len]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::{sys::signal::killpg, unistd::Pid};

    use super::*;

    async fn lines(output: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(output);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(line);
        }
        all
    }

    /// Output is split into lines. The last one needs no end.
    #[tokio::test]
    async fn output_is_split() {
        assert_eq!(lines(b"leave 120 spot\n\nend 3").await, ["leave 120 spot", "", "end 3"]);
        assert_eq!(lines(b"").await, [""; 0]);
        assert_eq!(lines(b"a\xffb\n").await, ["a\u{fffd}b"]);
    }

    /// The rest of a line that is too long is dropped, and memory is bounded.
    #[tokio::test]
    async fn long_lines_are_cut() {
        let output = [vec![b'x'; 100_000], b"\nend 3\n".to_vec()].concat();
        assert_eq!(lines(&output).await, ["x".repeat(LINE_MAX), "end 3".to_owned()]);
        assert_eq!(lines(&vec![b'x'; 100_000]).await, ["x".repeat(LINE_MAX)]);
    }

    /// The program's notices are passed on. Its secrets are removed from its environment, and it ends with the
    /// future.
    #[tokio::test]
    async fn notices_of_a_program_are_passed_on() {
        let (sender, mut notices) = mpsc::channel(1);
        let script = "echo nonsense; echo leave 120 pid $$; echo save 0 again; exec sleep 1000";
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        let run = tokio::spawn(run_command(words, sender));
        let first = notices.recv().await.unwrap();
        let pid = first.text.strip_prefix("pid ").unwrap().parse().unwrap();
        assert_eq!(first.within, Some(Duration::from_secs(120)));
        assert_eq!(notices.recv().await.unwrap().text, "again");
        assert!(killpg(Pid::from_raw(pid), None).is_ok());
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        // It is reaped soon after it was killed.
        while killpg(Pid::from_raw(pid), None).is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
