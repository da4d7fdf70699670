//! The line that an agent prints after a signal while its workers take their time to stop.

use std::time::{Duration, Instant};

use ragent_core::signal::Signal;

use crate::report::limits;

/// The line of one agent: none if the workers stop within `limits::QUICK_STOP`.
#[derive(Debug)]
pub struct StoppingLine {
    workers: u32,
    grace: Duration,
    /// True while workers run.
    runs: bool,
    is_leaving: bool,
    pending: Option<(Instant, Signal)>,
}

impl StoppingLine {
    /// The line for this number of workers, which have `grace` to stop.
    pub fn new(workers: u32, grace: Duration) -> Self {
        Self { workers, grace, runs: false, is_leaving: false, pending: None }
    }

    /// Notes that the workers were started.
    pub fn handle_started(&mut self) {
        self.runs = true;
    }

    /// Notes that the workers have ended.
    pub fn handle_ended(&mut self) {
        self.runs = false;
        self.pending = None;
    }

    /// Notes a signal to this agent. Only the first one stops the workers; after a second Ctrl-C they
    /// are killed.
    pub fn handle_signal(&mut self, now: Instant, signal: Signal) {
        if self.is_leaving && signal == Signal::INT {
            self.pending = None;
        } else if !self.is_leaving && self.runs {
            self.pending = Some((now + limits::QUICK_STOP, signal));
        }
        self.is_leaving = true;
    }

    /// Returns the time at which the line is due, if it is.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pending.map(|(at, _)| at)
    }

    /// Returns the line once it is due.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<String> {
        let (_, signal) = self.pending.take_if(|(at, _)| *at <= now)?;
        let (workers, them) = match self.workers {
            1 => ("1 worker".to_owned(), "it"),
            workers => (format!("{workers} workers"), "them"),
        };
        let kills = if signal == Signal::INT { "a second Ctrl-C" } else { "Ctrl-C (SIGINT)" };
        let grace = self.grace.as_secs_f64();
        Some(format!(
            "{signal} received; waiting up to {grace} s for {workers} to stop ({kills} kills {them})"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    fn running(workers: u32) -> (StoppingLine, Instant) {
        let mut line = StoppingLine::new(workers, GRACE);
        line.handle_started();
        (line, crate::sys::clock::now())
    }

    /// Workers that take longer than a quick stop have one line, with their number, the time that they
    /// have, and what a further signal does.
    #[test]
    fn slow_stop_has_one_line() {
        let (mut line, now) = running(2);
        line.handle_signal(now, Signal::INT);
        let due = now + limits::QUICK_STOP;
        assert_eq!(line.poll_timeout(), Some(due));
        assert_eq!(line.handle_timeout(now), None);
        let text = "SIGINT received; waiting up to 30 s for 2 workers to stop (a second Ctrl-C kills them)";
        assert_eq!(line.handle_timeout(due).as_deref(), Some(text));
        assert_eq!(line.poll_timeout(), None);
        line.handle_signal(due, Signal::TERM);
        assert_eq!(line.poll_timeout(), None, "the first signal stops the workers");
    }

    /// After SIGTERM the line names SIGINT: a second SIGTERM does not kill.
    #[test]
    fn sigterm_is_worded_differently() {
        let (mut line, now) = running(1);
        line.handle_signal(now, Signal::TERM);
        let text =
            "SIGTERM received; waiting up to 30 s for 1 worker to stop (Ctrl-C (SIGINT) kills it)";
        assert_eq!(line.handle_timeout(now + limits::QUICK_STOP).as_deref(), Some(text));
    }

    /// Quick stops, second signals that kill, and agents without workers have no line.
    #[test]
    fn quick_stop_has_no_line() {
        let (mut line, now) = running(2);
        line.handle_signal(now, Signal::INT);
        line.handle_ended();
        assert_eq!(line.poll_timeout(), None);
        let (mut line, now) = running(2);
        line.handle_signal(now, Signal::TERM);
        line.handle_signal(now, Signal::INT);
        assert_eq!(line.poll_timeout(), None);
        let mut line = StoppingLine::new(2, GRACE);
        line.handle_signal(now, Signal::INT);
        assert_eq!(line.poll_timeout(), None);
    }
}
