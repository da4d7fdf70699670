//! Receives the reports of a relay and of the relays below it, and passes on the valid ones.

use std::{collections::BTreeSet, time::Instant};

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
    host_address::checked,
    order::{AgentEnd, HostNumber, RelayReport},
    ssh_process::SshOutput,
};
use crate::commands::ssh::limits;

/// The receiver of a relay's reports.
pub(super) struct Listener<'a> {
    stdout: ChildStdout,
    input: BytesMut,
    frames: FrameDecoder<RelayReport>,
    ssh_output: SshOutput,
    head: HostNumber,
    open: &'a mut BTreeSet<HostNumber>,
}

impl<'a> Listener<'a> {
    /// Creates the listener for the relay of `head`, which leads to the hosts in `open`.
    pub(super) fn new(
        stdout: ChildStdout,
        ssh_output: SshOutput,
        head: HostNumber,
        open: &'a mut BTreeSet<HostNumber>,
    ) -> Self {
        let (input, frames) = (BytesMut::new(), FrameDecoder::default());
        Self { stdout, input, frames, ssh_output, head, open }
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
        reports: &mpsc::Sender<RelayReport>,
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
                if let Some(report) = self.checked(report) {
                    let _ = reports.send(report).await;
                }
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

    /// Returns the report as it is passed on, or `None` if this connection does not lead to its
    /// host.
    fn checked(&mut self, report: RelayReport) -> Option<RelayReport> {
        let (RelayReport::Line { host, .. }
        | RelayReport::Reached { host, .. }
        | RelayReport::Disconnected { host, .. }
        | RelayReport::Ended { host, .. }) = report;
        if !self.open.contains(&host) {
            return None;
        }
        match report {
            RelayReport::Disconnected { host, why, .. } => {
                self.open.remove(&host);
                let why = printable(&why);
                Some(RelayReport::Disconnected { host, why, is_direct: host == self.head })
            }
            RelayReport::Ended { host, end } => {
                self.open.remove(&host);
                let end = match end {
                    AgentEnd::NotStarted(why) => AgentEnd::NotStarted(printable(&why)),
                    AgentEnd::Exited(_) | AgentEnd::Signaled(_) => end,
                };
                Some(RelayReport::Ended { host, end })
            }
            RelayReport::Reached { host, host_address } => {
                Some(RelayReport::Reached { host, host_address: checked(host_address) })
            }
            RelayReport::Line { .. } => Some(report),
        }
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
