//! Runs on each host of a launch, started by ssh: `ragent __relay`.
//!
//! It starts the host's agent when it is ordered to, and passes on the agent's output.
//!
//! It runs as long as it receives orders. They end if the launching host is done or gone, or if ssh has lost its connection. Then, or if
//! none arrives for too long, it ends its agent with a signal.
//!
//! Its loop never blocks on output. Lines that are not read delay workers, not orders.

use std::{
    io::{self, Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use bytes::BytesMut;
use nix::sys::signal::Signal;
use ragent_base::sys::{clock, host::ThisHost};
use tokio::sync::{mpsc, oneshot};

use super::{
    agent_process::AgentProcess,
    frame::{FrameDecoder, Message},
    greeting,
    host_address::host_address,
    order::{AgentEnd, HostJob, RelayOrder, RelayReport, SharedJob},
};
use crate::{
    commands::ssh::limits,
    commands::{
        error::{LaunchError, system},
        runtime,
    },
};

/// Carries out the orders from stdin until it is closed.
///
/// # Errors
///
/// Returns [`LaunchError`] if this machine lacks something that every relay requires.
pub fn run() -> Result<(), LaunchError> {
    io::stdout()
        .write_all(&greeting::line())
        .and_then(|()| io::stdout().flush())
        .map_err(system("send the greeting to the launching host"))?;
    let (reports, written) = write_reports().map_err(system("start a thread"))?;
    let orders = read_orders().map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&SIGNALS)?;
        let mut relay = Relay::new(reports);
        relay.report_reached();
        relay.serve(orders, &mut signals).await;
        relay.leave(&mut signals).await;
        // Nothing reads output that is not written by then.
        let _ = tokio::time::timeout(limits::FLUSH_TIMEOUT, written).await;
        Ok(())
    })?
}

/// The signals that end the relay and its agent. SIGHUP is one of them, because there is no terminal.
const SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Returns the queue of reports, and a receiver that completes when all are written. A thread writes them, because the other side may stop
/// reading at any time.
fn write_reports() -> io::Result<(mpsc::Sender<RelayReport>, oneshot::Receiver<()>)> {
    let (sender, mut queue) = mpsc::channel::<RelayReport>(limits::RELAY_QUEUE);
    let (done, written) = oneshot::channel();
    thread::Builder::new().name("reports".to_owned()).spawn(move || {
        write_all_reports(&mut queue, io::stdout(), io::stderr());
        // The receiver may be gone.
        let _ = done.send(());
    })?;
    Ok((sender, written))
}

/// Writes all reports of `queue` to `output`. If a report cannot be encoded, for example because its line is too long, a warning is written
/// instead. ssh passes the relay's stderr on to the launching host.
fn write_all_reports(
    queue: &mut mpsc::Receiver<RelayReport>,
    mut output: impl Write,
    mut warnings: impl Write,
) {
    let mut has_reader = true;
    while let Some(report) = queue.blocking_recv() {
        match report.encode() {
            Ok(frame) if has_reader => {
                // Reports are still taken when nothing reads them, since the agent must not block.
                has_reader = output.write_all(&frame).and_then(|()| output.flush()).is_ok();
            }
            Ok(_) => {}
            Err(error) => {
                // If stderr is closed, nothing reads it either.
                let _ = writeln!(warnings, "ragent: warning: failed to send a report: {error}");
            }
        }
    }
}

/// Returns the queue of orders. It ends with stdin or at an invalid order.
fn read_orders() -> io::Result<mpsc::Receiver<RelayOrder>> {
    let (sender, queue) = mpsc::channel(limits::ORDER_QUEUE);
    thread::Builder::new().name("orders".to_owned()).spawn(move || {
        let (mut input, mut chunk) = (BytesMut::new(), vec![0; limits::CONSOLE_CHUNK]);
        let mut frames = FrameDecoder::<RelayOrder>::default();
        while let Ok(len @ 1..) = io::stdin().lock().read(&mut chunk) {
            input.extend_from_slice(&chunk[..len]);
            while let Some(order) = frames.decode(&mut input).transpose() {
                let Ok(order) = order else { return };
                if sender.blocking_send(order).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok(queue)
}

/// The part of a launch on one host.
struct Relay {
    reports: mpsc::Sender<RelayReport>,
    /// The part of the agent's command that is the same on all hosts, until the agent is started.
    job: Option<SharedJob>,
    agent: Option<AgentProcess>,
    /// The reserved port for the agent, until it is started.
    held: Option<TcpListener>,
    /// The time that the agent may take to end.
    stop: Duration,
    /// The inherited limit of core dumps, which is restored for the agent.
    core_dump: u64,
}

impl Relay {
    fn new(reports: mpsc::Sender<RelayReport>) -> Self {
        let core_dump = ThisHost.disable_core_dumps();
        Self { reports, job: None, agent: None, held: None, stop: Duration::ZERO, core_dump }
    }

    /// Carries out orders until they end, or a signal arrives.
    async fn serve(
        &mut self,
        mut orders: mpsc::Receiver<RelayOrder>,
        signals: &mut mpsc::Receiver<Signal>,
    ) {
        let mut silent_until = clock::now() + limits::ORDER_SILENCE;
        loop {
            tokio::select! {
                // Orders come before the deadline, since they may be waiting after a freeze.
                biased;
                _ = signals.recv() => return,
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    silent_until = clock::now() + limits::ORDER_SILENCE;
                    self.carry_out(order);
                }
                end = ended(&mut self.agent) => {
                    self.agent = None;
                    self.send(RelayReport::Ended(end));
                }
                () = clock::until(Some(silent_until)) => return,
            }
        }
    }

    fn carry_out(&mut self, order: RelayOrder) {
        match order {
            RelayOrder::Job(job) => self.job = Some(job),
            RelayOrder::Start(own) => {
                // An agent is ordered only once, after its job.
                if let Some(job) = self.job.take() {
                    self.start(&job, &own);
                }
            }
            RelayOrder::Signal { signal } => {
                if let Some(agent) = &self.agent {
                    agent.signal(signal);
                }
            }
            RelayOrder::KeepAlive => {}
        }
    }

    fn start(&mut self, job: &SharedJob, own: &HostJob) {
        self.stop = Duration::from_millis(job.stop_ms);
        self.held = None;
        match AgentProcess::start(job, own, self.core_dump, &self.reports) {
            Ok(agent) => self.agent = Some(agent),
            Err(why) => self.send(RelayReport::Ended(AgentEnd::NotStarted(why))),
        }
    }

    /// Reports that this host is reached.
    fn report_reached(&mut self) {
        let (host_address, held) = host_address();
        self.held = held;
        self.send(RelayReport::Reached(host_address));
    }

    /// Sends a report as soon as there is room in the queue. A relay sends two reports in this way.
    fn send(&self, report: RelayReport) {
        let reports = self.reports.clone();
        tokio::spawn(async move {
            // The thread that takes them runs as long as there is a sender.
            let _ = reports.send(report).await;
        });
    }

    /// Ends the agent of this host.
    async fn leave(self, signals: &mut mpsc::Receiver<Signal>) {
        let deadline = clock::now() + self.stop;
        let Some(mut agent) = self.agent else { return };
        agent.signal(Signal::SIGTERM as i32);
        tokio::select! {
            _ = agent.ended() => return,
            () = clock::until(Some(deadline)) => {}
            _ = signals.recv() => {}
        }
        // The agent's keeper kills all other processes. The relay waits for that.
        agent.signal(Signal::SIGKILL as i32);
        let _ = tokio::time::timeout(limits::CLEANUP_TIMEOUT, agent.ended()).await;
    }
}

/// Waits for the end of the agent. Never completes if there is none.
async fn ended(agent: &mut Option<AgentProcess>) -> AgentEnd {
    match agent {
        Some(agent) => agent.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::output::streams::Stream;

    use super::*;

    /// A report that cannot be encoded is replaced by a warning. The reports after it are written.
    #[test]
    fn report_that_is_too_long_is_reported() {
        let line = |len| RelayReport::Line { stream: Stream::Stdout, line: vec![b'x'; len].into() };
        let (sender, mut queue) = mpsc::channel(2);
        sender.try_send(line(limits::MAX_RELAYED_LINE + 1)).unwrap();
        sender.try_send(line(1)).unwrap();
        drop(sender);
        let (mut output, mut warnings) = (Vec::new(), Vec::new());
        write_all_reports(&mut queue, &mut output, &mut warnings);
        assert_eq!(output, line(1).encode().unwrap());
        let warnings = String::from_utf8(warnings).unwrap();
        let expected = "ragent: warning: failed to send a report: a message is longer than ";
        assert!(warnings.starts_with(expected), "{warnings}");
        assert_eq!(warnings.lines().count(), 1);
    }

    /// The relay ends if it receives no order for too long. Keep-alives prevent that.
    #[tokio::test(start_paused = true)]
    async fn silence_is_an_end() {
        let (reports, _heard) = mpsc::channel(1);
        let mut relay = Relay::new(reports);
        let (_never, mut signals) = mpsc::channel(1);
        let (give, orders) = mpsc::channel(1);
        let begun = clock::now();
        tokio::spawn(async move {
            for _ in 0..10 {
                clock::until(Some(clock::now() + limits::ORDER_SILENCE / 2)).await;
                give.send(RelayOrder::KeepAlive).await.unwrap();
            }
            // The sender still exists, but sends nothing.
            std::future::pending::<()>().await;
        });
        relay.serve(orders, &mut signals).await;
        assert_eq!(clock::now() - begun, limits::ORDER_SILENCE * 6);
    }
}
