//! Receives the reports of a relay, and passes them on in a form that is safe to print.

use std::time::Instant;

use bytes::BytesMut;
use ragent_base::sys::clock;
use tokio::{
    io::AsyncReadExt,
    process::ChildStdout,
    sync::{OwnedSemaphorePermit, mpsc},
};

use super::{
    frame::FrameDecoder,
    greeting::Greeting,
    host_address,
    order::{AgentEnd, HostNumber, RelayReport},
    ssh_process::SshOutput,
};
use crate::commands::ssh::limits;

/// The receiver of a relay's reports.
pub(super) struct Listener {
    stdout: ChildStdout,
    input: BytesMut,
    frames: FrameDecoder<RelayReport>,
    ssh_output: SshOutput,
    host: HostNumber,
}

impl Listener {
    /// Creates the listener for the relay of `host`.
    pub(super) fn new(stdout: ChildStdout, ssh_output: SshOutput, host: HostNumber) -> Self {
        let (input, frames) = (BytesMut::new(), FrameDecoder::default());
        Self { stdout, input, frames, ssh_output, host }
    }

    /// Passes on reports until there are no more.
    ///
    /// # Errors
    ///
    /// Returns a description of the mistake if the other side sends something invalid.
    pub(super) async fn run(
        mut self,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
        reports: &mpsc::Sender<(HostNumber, RelayReport)>,
    ) -> Result<(), String> {
        let greeted = timeout_at(deadline, self.greeting()).await;
        match greeted {
            Some(Ok(true)) => self.ssh_output.greeted(),
            Some(Ok(false)) => return Ok(()),
            Some(Err(why)) => return Err(why),
            None => return Err(self.silent()),
        }
        drop(permit);
        loop {
            while let Some(report) = self.next()? {
                let _ = reports.send((self.host, checked(report))).await;
            }
            if !self.read().await {
                return Ok(());
            }
        }
    }

    /// Waits for the greeting. Returns false if the stream ends before it.
    async fn greeting(&mut self) -> Result<bool, String> {
        let mut greeting = Greeting::default();
        loop {
            if greeting.take(&mut self.input).map_err(|error| error.to_string())? {
                return Ok(true);
            }
            if !self.read().await {
                self.ssh_output.printed(&self.input);
                return Ok(false);
            }
        }
    }

    fn silent(&self) -> String {
        self.ssh_output.printed(&self.input);
        let ssh_output = self.ssh_output.text();
        let printed =
            if ssh_output.is_empty() { String::new() } else { format!(": {}", ssh_output.trim()) };
        format!("it did not start ragent in time{printed}")
    }

    async fn read(&mut self) -> bool {
        self.input.reserve(limits::CONSOLE_CHUNK);
        matches!(self.stdout.read_buf(&mut self.input).await, Ok(1..))
    }

    fn next(&mut self) -> Result<Option<RelayReport>, String> {
        self.frames
            .decode(&mut self.input)
            .map_err(|error| format!("its ragent sent an invalid message: {error}"))
    }
}

/// Returns the report as it is passed on.
fn checked(report: RelayReport) -> RelayReport {
    match report {
        RelayReport::Reached(address) => RelayReport::Reached(host_address::checked(address)),
        RelayReport::Ended(AgentEnd::NotStarted(why)) => {
            RelayReport::Ended(AgentEnd::NotStarted(printable(&why)))
        }
        RelayReport::Ended(AgentEnd::Exited(_) | AgentEnd::Signaled(_))
        | RelayReport::Line { .. }
        | RelayReport::Disconnected(_) => report,
    }
}

/// Returns a text of another host in a form that is safe to print: short, and without control characters.
fn printable(text: &str) -> String {
    let text: String = text.chars().take(limits::SSH_ERROR_LEN).collect();
    ragent_proto::printable_line(&text)
}

/// Returns the output of `future`, or `None` if it is not complete at `deadline`.
async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let left = deadline.saturating_duration_since(clock::now());
    tokio::time::timeout(left, future).await.ok()
}
