//! Runs one ssh: starts a relay on a host, sends it orders, and passes on its reports.
//!
//! When it ends, for any reason, it reports that too.

use std::sync::Arc;

use bytes::Bytes;
use ragent_base::sys::clock;
use tokio::{
    io::AsyncWriteExt,
    process::ChildStdin,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tracing::debug;

use super::{
    frame::Message,
    listener::Listener,
    order::{HostNumber, RelayOrder, RelayReport},
    ssh_command::{self, Way},
    ssh_process::{SshOutput, SshProcess, listen},
};
use crate::commands::ssh::limits;

/// A connection to one host.
#[derive(Debug)]
pub(super) struct HostConnection {
    /// The number of the host.
    pub(super) host: HostNumber,
    /// The destination for ssh: `HOST` or `USER@HOST`.
    pub(super) target: String,
    pub(super) way: Arc<Way>,
    /// Limits the number of connections that are opened at the same time.
    pub(super) permits: Arc<Semaphore>,
    /// The orders, as frames. The connection is closed when the sender is gone.
    pub(super) orders: mpsc::Receiver<Bytes>,
    /// The receiver of the reports.
    pub(super) reports: mpsc::Sender<(HostNumber, RelayReport)>,
}

impl HostConnection {
    /// Opens the connection and serves it until it ends.
    pub(super) async fn run(mut self) {
        let Some(why) = self.attempt().await else { return };
        // If this fails, the receiver has ended.
        let _ = self.reports.send((self.host, RelayReport::Disconnected(why))).await;
    }

    /// Opens the connection and serves it. Retries if the refusal may be temporary. Returns the reason for its end, or `None` if it is no
    /// longer needed.
    async fn attempt(&mut self) -> Option<String> {
        let mut attempts = 1;
        loop {
            let ssh_output = SshOutput::default();
            let permit = self.permit().await?;
            let why = self.serve(permit, &ssh_output).await;
            if ssh_output.is_greeted()
                || !ssh_command::may_pass(&why)
                || attempts == limits::SSH_ATTEMPTS
            {
                return Some(why);
            }
            // Connections that were refused together must not retry together, so the wait is random.
            let wait =
                limits::SSH_RETRY_INTERVAL.mul_f64(f64::from(attempts) + rand::random::<f64>());
            debug!(cause = why, "a connection was refused; retrying");
            clock::until(Some(clock::now() + wait)).await;
            attempts += 1;
        }
    }

    /// Waits until the connection may be opened. Returns `None` if it is no longer needed.
    async fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                biased;
                // Orders that come before the connection is open have no recipient.
                order = self.orders.recv() => drop(order?),
                permit = &mut permit => return permit.ok(),
            }
        }
    }

    /// Serves the connection and returns the reason for its end.
    async fn serve(&mut self, permit: OwnedSemaphorePermit, ssh_output: &SshOutput) -> String {
        let keep_alive = match RelayOrder::KeepAlive.encode() {
            Ok(order) => order,
            Err(error) => return format!("failed to encode an order: {error}"),
        };
        let command = self.way.command(&self.target);
        let (process, stdin, stdout, stderr) = match SshProcess::start(&command) {
            Ok(started) => started,
            Err(error) => return format!("failed to start `{}`: {error}", self.way.ssh[0]),
        };
        let (host, reports) = (self.host, self.reports.clone());
        let stderr = tokio::spawn(listen(stderr, host, ssh_output.clone(), reports));
        let listener = Listener::new(stdout, ssh_output.clone(), host);
        let deadline = clock::now() + self.way.greeting_timeout();
        let writer = write(stdin, keep_alive, &mut self.orders);
        let listen = listener.run(permit, deadline, &self.reports);
        tokio::pin!(writer, listen);
        // The stream of orders may end first. Later reports are still received.
        let received = tokio::select! {
            received = &mut listen => received,
            () = &mut writer => listen.await,
        };
        disconnect(process, stderr, ssh_output, received).await
    }
}

/// Sends orders, and keep-alives between them, until there are no more or ssh has ended.
async fn write(mut stdin: ChildStdin, keep_alive: Bytes, orders: &mut mpsc::Receiver<Bytes>) {
    loop {
        let next = match timeout(limits::ORDER_KEEP_ALIVE, orders.recv()).await {
            Ok(Some(order)) => order,
            Ok(None) => return,
            Err(_) => keep_alive.clone(),
        };
        if stdin.write_all(&next).await.is_err() {
            // ssh has ended. Its other streams show that too.
            return;
        }
    }
}

/// Waits for the end of ssh and returns the reason.
async fn disconnect(
    mut process: SshProcess,
    stderr: JoinHandle<()>,
    ssh_output: &SshOutput,
    received: Result<(), String>,
) -> String {
    if let Err(why) = received {
        // After an invalid message, ssh is ended without a wait.
        return why;
    }
    let status = timeout(limits::DISCONNECT_TIMEOUT, process.ended()).await;
    // A master connection of ssh may hold the stream for longer.
    let _ = timeout(limits::FAILURE_OUTPUT_TIMEOUT, stderr).await;
    ssh_command::why(status.ok().flatten(), &ssh_output.text())
}
