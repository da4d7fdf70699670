//! Carries out what the machine of a launch decides: one loop, which waits for nobody. A console that
//! is slow makes the hosts wait, not the loop: a line is asked for when the one before it is out.

use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::info;

use super::{
    branches::Branches,
    machine::{Effect, Machine, Settings},
    order::Report,
    output::Prefixes,
    plan::Plan,
    verdict::Verdict,
};
use crate::{
    clock,
    error::{LaunchError, system},
    job_spec::Stream,
    limits, run,
    supervisor::console::Console,
};

/// Runs `plan` to its end.
///
/// # Errors
///
/// Returns [`LaunchError`] if this machine lacks something that every launch needs.
pub(super) async fn drive(plan: &Plan) -> Result<Verdict, LaunchError> {
    let mut signals = run::watch_signals(&plan.signals)?;
    let mut forwarded = run::watch_signals(&plan.forwarded)?;
    let (console, console_end) = Console::start().map_err(system("start a thread"))?;
    let (sender, mut reports) = mpsc::channel(limits::RELAY_QUEUE);
    let mut driver = Driver {
        plan,
        machine: Machine::new(clock::now(), settings(plan)),
        branches: Branches::new(plan.way.clone(), sender),
        prefixes: Prefixes::new(plan.names(), plan.marks_workers),
        pending: None,
        hurry: None,
    };
    let verdict = loop {
        if let Some(verdict) = driver.carry_out() {
            break verdict;
        }
        let deadline = driver.machine.poll_timeout();
        tokio::select! {
            // In this order, so that a flood of lines delays neither a signal nor a deadline.
            biased;
            Some(signal) = signals.recv() => {
                driver.hurry = Some(clock::now() + limits::FAREWELL_TIMEOUT);
                driver.machine.handle_signal(clock::now(), signal);
            }
            Some(signal) = forwarded.recv() => {
                info!(%signal, "signal received; passing it on");
                driver.branches.signal(signal as i32);
            }
            () = clock::until(deadline) => driver.machine.handle_timeout(clock::now()),
            () = write(&console, &driver.pending) => {
                driver.pending = None;
                // A console that takes something is only slow.
                driver.hurry = driver.hurry.map(|_| clock::now() + limits::FAREWELL_TIMEOUT);
            }
            () = clock::until(driver.hurry), if driver.pending.is_some() => driver.pending = None,
            Some(report) = reports.recv(), if driver.pending.is_none() => driver.hear(report),
        }
    };
    // Whatever comes now is for nobody.
    drop(reports);
    driver.branches.hang_up(limits::HANG_UP_TIMEOUT).await;
    drop(console);
    console_end.wait(limits::FAREWELL_TIMEOUT).await;
    Ok(verdict)
}

fn settings(plan: &Plan) -> Settings {
    Settings {
        names: plan.names(),
        min: plan.nodes.min() as usize,
        stop: plan.stop(),
        // One host after the other may be tried by a relay, and then directly.
        reach_silence: plan.way.greeting_timeout().saturating_mul(3),
        meeting: plan.meeting.clone(),
    }
}

struct Driver<'a> {
    plan: &'a Plan,
    machine: Machine,
    branches: Branches,
    prefixes: Prefixes,
    /// A line that the console has not taken yet.
    pending: Option<(Stream, Bytes)>,
    /// From when on a console that takes nothing is not waited for: the user wants an end, and how
    /// agents end comes behind their lines.
    hurry: Option<Instant>,
}

impl Driver<'_> {
    /// Carries out what is to be done; says when all is over.
    fn carry_out(&mut self) -> Option<Verdict> {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Reach => self.branches.reach(self.plan.destinations()),
                Effect::ReachDirectly(host) => {
                    self.branches.reach_directly(self.plan.destination(host));
                }
                Effect::Start(hosts) => {
                    self.branches.start(&self.plan.job, &self.plan.host_jobs(&hosts));
                }
                Effect::Signal(signal) => self.branches.signal(signal as i32),
                Effect::Finish(verdict) => return Some(verdict),
            }
        }
        None
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Line { host, stream, line } => {
                self.pending = Some((stream, self.prefixes.mark(host, line)));
            }
            report => self.machine.handle_report(clock::now(), report),
        }
    }
}

/// Gives the console what is pending; never ends where nothing is.
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
