//! Takes notices and signals of all sources, and answers the processes that have asked for a checkpoint.

use std::time::{Duration, Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ragent_base::sys::clock;
use ragent_core::{
    agent::{Received, Wanted},
    saves::NodeSaves,
    signal,
};
use ragent_options::spec::RequestKind;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::NodeDriver;
use crate::{
    node::repeated_signals::RepeatedSignals,
    notices::{NoticeAnswer, NoticeRequest},
};

/// A second SIGTERM within this time is the first one again.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The notices and signals that were given on this node.
#[derive(Default)]
pub(super) struct GivenNotices {
    signals: RepeatedSignals,
    /// The time of the last SIGTERM that was a notice.
    noticed: Option<Instant>,
    /// The processes that wait until ranks have saved.
    askers: Vec<Asker>,
}

/// A process that wants to know when ranks have saved.
pub(super) struct Asker {
    pub(super) kind: RequestKind,
    /// The newest notice when it asked: checkpoints for this one, or for an earlier one, do not answer.
    known: u64,
    answers: mpsc::Sender<NoticeAnswer>,
}

impl GivenNotices {
    /// Reports to these askers that the round of their notice is over.
    pub(super) fn answer(&mut self, is_over: impl Fn(&Asker) -> bool, step: Option<u64>) {
        let answer = step.map_or(NoticeAnswer::Over, NoticeAnswer::Saved);
        for asker in self.askers.extract_if(.., |asker| is_over(asker)) {
            let _ = asker.answers.try_send(answer);
        }
    }

    /// Reports a checkpoint of the workers of this node to all clients that have asked for one.
    pub(super) fn answer_saves(&mut self, saves: &NodeSaves) {
        let Some(saved) = saves.answer else { return };
        let is_answered = |Asker { kind, known, answers }: &Asker| {
            *kind == RequestKind::Save
                && saved.notice > *known
                && answers.try_send(NoticeAnswer::Saved(saved.step)).is_ok()
        };
        self.askers.retain(|asker| !is_answered(asker));
    }
}

impl NodeDriver<'_> {
    pub(super) fn handle_signal(&mut self, signal: Signal) {
        let now = clock::now();
        if !self.notices.signals.handle_received(now, signal) {
            return debug!(%signal, "the signal of a worker has reached this process as well");
        }
        if self.is_notice(now, signal) {
            return;
        }
        info!(%signal, "signal received; leaving the job");
        let signal = signal::Signal(signal as i32);
        let was_leaving = self.node.agent().is_leaving();
        self.node.tell(now, |agent| agent.handle_signal(now, signal));
        // While the job closes, the workers are stopped in any case.
        if was_leaving || self.node.agent().is_leaving() {
            self.workers.stopping.handle_signal(now, signal);
        }
    }

    /// Takes SIGTERM as a notice that this node leaves, if ranks may save. Returns false if the node leaves at
    /// once, as it does for a second SIGTERM.
    fn is_notice(&mut self, now: Instant, signal: Signal) -> bool {
        // After a notice from elsewhere, the first one joins it: a cloud and a service manager may both stop a node.
        let is_first = self.notices.noticed.is_none() && !self.node.agent().is_leaving();
        if signal != Signal::SIGTERM || self.spec.job.shared.notice.is_zero() {
            return false;
        }
        if !is_first {
            // Process managers and launchers may both signal a process.
            let is_same = |at: Instant| now.saturating_duration_since(at) < SAME_SIGNAL;
            return self.notices.noticed.is_some_and(is_same);
        }
        self.notices.noticed = Some(now);
        let (kind, text) = (RequestKind::Leave, signal.as_str().to_owned());
        self.handle_notice(NoticeRequest { kind, within: None, text, asker: None });
        true
    }

    /// Handles a notice of any source.
    pub(super) fn handle_notice(&mut self, request: NoticeRequest) {
        let NoticeRequest { kind, within, text, asker } = request;
        let (now, was_leaving) = (clock::now(), self.node.agent().is_leaving());
        info!(?kind, text, "notice received");
        let taken = self.node.tell(now, |agent| match kind {
            RequestKind::Save => agent.handle_request(now, Wanted::Save),
            RequestKind::Look => agent.handle_request(now, Wanted::Look),
            RequestKind::Leave | RequestKind::End => {
                let ends_job = kind == RequestKind::End;
                agent.handle_notice(now, Received { ends_job, within, text })
            }
        });
        if !was_leaving && self.node.agent().is_leaving() {
            self.workers.stopping.handle_signal(now, signal::Signal::TERM);
        }
        let Some(asker) = asker else { return };
        let answer = taken.map_or_else(NoticeAnswer::NotTaken, |()| NoticeAnswer::Taken);
        // An asker that is gone needs no answer.
        if asker.try_send(answer).is_ok() && taken.is_ok() {
            self.notices.askers.retain(|asker| !asker.answers.is_closed());
            self.notices.askers.push(Asker {
                kind,
                known: self.node.agent().notice_number(),
                answers: asker,
            });
        }
    }

    /// Sends this process the signal that a worker has sent to its parent.
    pub(super) fn handle_signal_of_worker(&mut self, signal: Signal) {
        if self.notices.signals.handle_of_worker(clock::now(), signal) {
            warn!(%signal, "a worker has sent this signal to its parent; this agent handles it");
            let _ = kill(Pid::this(), signal);
        }
    }
}
