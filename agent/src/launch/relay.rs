//! `ragent __relay`: what ssh starts on a host. It starts the host's agent when it is told to, passes on
//! what that says, and does the same for the hosts below it.
//!
//! It lives as long as whoever gives it orders. When they end (the launching host is done or gone, ssh has
//! lost its connection) or are silent for too long, it ends its agent, as a signal would, and the relays
//! below it see the same. Nothing in its loop waits for a reader: lines that nobody takes make workers wait,
//! not orders.

use std::{
    io::{self, Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use bytes::BytesMut;
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};

use super::{
    agent_process::AgentProcess,
    branches::Branches,
    frame::{self, Message},
    greeting,
    order::{AgentEnd, HostJob, HostNumber, Job, Order, Report},
    site::site,
};
use crate::{
    clock,
    error::{LaunchError, system},
    host::ThisHost,
    limits, run,
};

/// Carries out what comes in through stdin until that ends.
///
/// # Errors
///
/// Returns [`LaunchError`] if this machine lacks something that every relay needs.
pub fn run() -> Result<(), LaunchError> {
    io::stdout()
        .write_all(&greeting::line())
        .and_then(|()| io::stdout().flush())
        .map_err(system("greet"))?;
    let (reports, written) = write_reports().map_err(system("start a thread"))?;
    let orders = read_orders().map_err(system("start a thread"))?;
    run::block_on(async {
        let mut signals = run::watch_signals(&SIGNALS)?;
        let mut relay = Relay::new(reports);
        relay.serve(orders, &mut signals).await;
        relay.leave(&mut signals).await;
        // What is not out by then has nobody to read it.
        let _ = tokio::time::timeout(limits::FAREWELL_TIMEOUT, written).await;
        Ok(())
    })?
}

/// Those that mean: end, with everything. A hang-up is no less: there is no terminal.
const SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// The queue of what is to be said, and word of its end. A thread writes, because the other end may not
/// read for as long as it likes.
fn write_reports() -> io::Result<(mpsc::Sender<Report>, oneshot::Receiver<()>)> {
    let (sender, mut queue) = mpsc::channel::<Report>(limits::RELAY_QUEUE);
    let (done, written) = oneshot::channel();
    thread::Builder::new().name("reports".to_owned()).spawn(move || {
        let mut is_heard = true;
        while let Some(report) = queue.blocking_recv() {
            if is_heard {
                let mut stdout = io::stdout().lock();
                let frame = report.encode();
                // Where nobody hears them, they are taken all the same: the agent must not wait.
                is_heard = stdout.write_all(&frame).and_then(|()| stdout.flush()).is_ok();
            }
        }
        // Nobody may be waiting.
        let _ = done.send(());
    })?;
    Ok((sender, written))
}

/// The queue of orders, which ends where they do, or make no sense.
fn read_orders() -> io::Result<mpsc::Receiver<Order>> {
    let (sender, queue) = mpsc::channel(limits::ORDER_QUEUE);
    thread::Builder::new().name("orders".to_owned()).spawn(move || {
        let (mut input, mut chunk) = (BytesMut::new(), vec![0; limits::CONSOLE_CHUNK]);
        while let Ok(len @ 1..) = io::stdin().lock().read(&mut chunk) {
            input.extend_from_slice(&chunk[..len]);
            while let Some(order) = frame::take::<Order>(&mut input).transpose() {
                let Ok(order) = order else { return };
                if sender.blocking_send(order).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok(queue)
}

/// One host's part of a launch.
struct Relay {
    /// Its number, once it has been told.
    me: Option<HostNumber>,
    reports: mpsc::Sender<Report>,
    branches: Option<Branches>,
    agent: Option<AgentProcess>,
    /// The port that the agent may need, until it is started.
    held: Option<TcpListener>,
    /// How long the agent may take to end.
    stop: Duration,
    /// The inherited limit of core dumps, which the agent gets back.
    core_dump: u64,
}

impl Relay {
    fn new(reports: mpsc::Sender<Report>) -> Self {
        let (me, branches, agent, held) = (None, None, None, None);
        let core_dump = ThisHost.forgo_core_dumps();
        Self { me, reports, branches, agent, held, stop: Duration::ZERO, core_dump }
    }

    async fn serve(
        &mut self,
        mut orders: mpsc::Receiver<Order>,
        signals: &mut mpsc::Receiver<Signal>,
    ) {
        let mut silent_until = clock::now() + limits::ORDER_SILENCE;
        loop {
            tokio::select! {
                // Orders before the deadline: a machine that was frozen has missed some.
                biased;
                _ = signals.recv() => return,
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    silent_until = clock::now() + limits::ORDER_SILENCE;
                    self.carry_out(order);
                }
                end = ended(&mut self.agent) => {
                    self.agent = None;
                    self.say_end(end);
                }
                () = clock::until(Some(silent_until)) => return,
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Reach { me, below, way } => {
                self.me = Some(me);
                if below.len().min(way.fanout as usize) > limits::PLAIN_CONNECTIONS {
                    // Its agent gets the new limit, too, and so do workers: only where it must be.
                    ThisHost.raise_open_files();
                }
                let (site, held) = site();
                self.held = held;
                self.say(Report::Reached { host: me, site });
                let mut branches = Branches::new(way, self.reports.clone());
                branches.reach(below);
                self.branches = Some(branches);
            }
            Order::Start { job, hosts } => {
                if let Some(branches) = &self.branches {
                    branches.start(&job, &hosts);
                }
                if let Some(own) = hosts.iter().find(|host| Some(host.number) == self.me) {
                    self.start(&job, own);
                }
            }
            Order::Signal { signal } => {
                if let Some(branches) = &self.branches {
                    branches.signal(signal);
                }
                if let Some(agent) = &self.agent {
                    agent.signal(signal);
                }
            }
            Order::KeepAlive => {}
        }
    }

    fn start(&mut self, job: &Job, own: &HostJob) {
        self.stop = Duration::from_millis(job.stop_ms);
        self.held = None;
        if self.agent.is_some() {
            // Nobody orders it twice; a second one would be nobody's.
            return;
        }
        match AgentProcess::start(job, own, self.core_dump, &self.reports) {
            Ok(agent) => self.agent = Some(agent),
            Err(why) => self.say_end(AgentEnd::NotStarted(why)),
        }
    }

    fn say_end(&self, end: AgentEnd) {
        if let Some(host) = self.me {
            self.say(Report::Ended { host, end });
        }
    }

    /// Says it as soon as there is room. There are two of these in a relay's life.
    fn say(&self, report: Report) {
        let reports = self.reports.clone();
        tokio::spawn(async move {
            // The thread that takes them lives as long as there is a sender.
            let _ = reports.send(report).await;
        });
    }

    /// Ends what it has started, here and below.
    async fn leave(self, signals: &mut mpsc::Receiver<Signal>) {
        let deadline = clock::now() + self.stop;
        let agent = async {
            let Some(mut agent) = self.agent else { return };
            agent.signal(Signal::SIGTERM as i32);
            tokio::select! {
                _ = agent.ended() => return,
                () = clock::until(Some(deadline)) => {}
                _ = signals.recv() => {}
            }
            // Its keeper kills the rest, and is waited for.
            agent.signal(Signal::SIGKILL as i32);
            let _ = tokio::time::timeout(limits::SWEEP_TIMEOUT, agent.ended()).await;
        };
        let below = async {
            if let Some(branches) = self.branches {
                branches.hang_up(self.stop.saturating_add(limits::HANG_UP_TIMEOUT)).await;
            }
        };
        tokio::join!(agent, below);
    }
}

/// The end of the agent; never, where there is none.
async fn ended(agent: &mut Option<AgentProcess>) -> AgentEnd {
    match agent {
        Some(agent) => agent.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever gives orders and is silent for too long is gone, but not while it says that it is there.
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
                give.send(Order::KeepAlive).await.unwrap();
            }
            // It is there still, and says nothing.
            std::future::pending::<()>().await;
        });
        relay.serve(orders, &mut signals).await;
        assert_eq!(clock::now() - begun, limits::ORDER_SILENCE * 6);
    }
}
