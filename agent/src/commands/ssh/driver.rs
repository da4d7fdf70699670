//! Carries out the decisions of a launch's machine, in one loop that never blocks.
//!
//! The next line is received when the previous one is written. So a slow console delays the hosts, but not the loop.

use std::time::Instant;

use bytes::Bytes;
use ragent_base::{
    output::{console::Console, streams::Stream},
    sys::clock,
};
use ragent_leadership::state_file::AgentFile;
use tokio::sync::mpsc;
use tracing::info;

use super::{
    connections::HostConnections,
    launch_result::LaunchResult,
    machine::{Effect, LaunchSettings, Machine},
    order::{HostNumber, RelayReport},
    output::Prefixes,
    plan::Plan,
};
use crate::{
    commands::ssh::limits,
    commands::{
        error::{LaunchError, system},
        runtime,
    },
};

/// Runs `plan` to its end.
///
/// # Errors
///
/// Returns [`LaunchError`] if this machine lacks something that every launch requires.
pub(super) async fn drive(plan: &Plan) -> Result<LaunchResult, LaunchError> {
    let mut signals = runtime::watch_signals(&plan.signals)?;
    let mut forwarded = runtime::watch_signals(&plan.spec.forwarded)?;
    let (console, console_end) = Console::start().map_err(system("start a thread"))?;
    let (sender, mut reports) = mpsc::channel(limits::RELAY_QUEUE);
    let mut driver = LaunchDriver {
        plan,
        machine: Machine::new(clock::now(), settings(plan)),
        connections: HostConnections::open(&plan.way, &plan.hosts, &sender),
        prefixes: Prefixes::new(plan.names(), plan.marks_workers),
        status_file: None,
        pending: None,
        hurry: None,
    };
    let result = loop {
        if let Some(result) = driver.carry_out() {
            break result;
        }
        let deadline = driver.machine.poll_timeout();
        tokio::select! {
            // In this order, so that many lines delay neither a signal nor a deadline.
            biased;
            Some(signal) = signals.recv() => {
                driver.hurry = Some(clock::now() + limits::FLUSH_TIMEOUT);
                driver.machine.handle_signal(clock::now(), signal);
            }
            Some(signal) = forwarded.recv() => {
                info!(%signal, "signal received; forwarding it");
                driver.connections.signal(signal as i32);
            }
            () = clock::until(deadline) => driver.machine.handle_timeout(clock::now()),
            () = write(&console, &driver.pending) => {
                driver.pending = None;
                // A console that accepts output is slow, but not blocked.
                driver.hurry = driver.hurry.map(|_| clock::now() + limits::FLUSH_TIMEOUT);
            }
            () = clock::until(driver.hurry), if driver.pending.is_some() => driver.pending = None,
            Some((host, report)) = reports.recv(), if driver.pending.is_none() => {
                driver.handle_report(host, report);
            }
        }
    };
    // Later reports are ignored.
    drop(reports);
    driver.connections.disconnect(limits::DISCONNECT_TIMEOUT).await;
    drop(console);
    console_end.wait(limits::FLUSH_TIMEOUT).await;
    Ok(result)
}

fn settings(plan: &Plan) -> LaunchSettings {
    LaunchSettings {
        names: plan.names(),
        min: plan.spec.shared.nodes.min() as usize,
        stop: plan.stop(),
        notice: plan.spec.shared.notice,
        // A busy sshd may drop a connection, which is then tried again.
        reach_silence: plan.way.greeting_timeout().saturating_mul(3),
        rendezvous: plan.rendezvous.clone(),
    }
}

struct LaunchDriver<'a> {
    plan: &'a Plan,
    machine: Machine,
    connections: HostConnections,
    prefixes: Prefixes,
    /// The file of this launch for `ragent status`, which exists until the launch ends.
    status_file: Option<AgentFile>,
    /// A line that is not yet written to the console.
    pending: Option<(Stream, Bytes)>,
    /// From this time on, a blocked console is not waited for. It is set when the user has asked for an end, because agents report their
    /// ends after their lines.
    hurry: Option<Instant>,
}

impl LaunchDriver<'_> {
    /// Carries out the pending effects. Returns the result when the launch is over.
    fn carry_out(&mut self) -> Option<LaunchResult> {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Start(hosts) => {
                    // If it fails, `ragent status` needs the endpoint and the secret as flags.
                    self.status_file =
                        self.plan.status_file(&hosts).and_then(|agent| AgentFile::new(&agent).ok());
                    self.connections.start(self.plan.first_job(), self.plan.host_jobs(&hosts));
                }
                Effect::Signal(signal) => self.connections.signal(signal as i32),
                Effect::Finish(result) => return Some(result),
            }
        }
        None
    }

    fn handle_report(&mut self, host: HostNumber, report: RelayReport) {
        match report {
            RelayReport::Line { stream, line } => {
                self.pending = Some((stream, self.prefixes.mark(host, line)));
            }
            report => self.machine.handle_report(clock::now(), host, report),
        }
    }
}

/// Writes the pending line to the console; never completes if there is none.
///
/// # Cancel safety
///
/// A cancelled call has written nothing.
async fn write(console: &Console, pending: &Option<(Stream, Bytes)>) {
    match pending {
        Some((stream, line)) => console.write(*stream, line.clone()).await,
        None => std::future::pending().await,
    }
}
