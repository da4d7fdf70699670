//! Shows the start of a round on the terminal.
//!
//! It decides when the start is shown. Meanwhile it asks the coordinator for the state of the job.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ragent_base::{
    report::{
        start::{Facts, Start, StartStage},
        telemetry::Log,
    },
    secret::Credentials,
    spec::{Endpoint, JobSpec},
};
use ragent_coordinator::client;
use ragent_core::agent::News;
use ragent_rendezvous::{
    jitter::Jitter,
    message::{StandbyCounts, WaitReason},
};
use tokio::task::JoinSet;
use tracing::debug;

use crate::node::limits;

/// The start of a round on the terminal of this agent.
#[derive(Debug, Default)]
pub struct StartScreen(Option<Box<Shown>>);

/// A terminal that shows starts.
#[derive(Debug)]
struct Shown {
    log: Log,
    start: Start,
    /// The time after which the agent gives up without a coordinator.
    join_timeout: Duration,
    credentials: Credentials,
    /// True if this agent asks the coordinator for the state of the job.
    asks: bool,
    is_shown: bool,
    has_workers: bool,
    /// True if this node does not wait for the next round, but for other workers, or for a place in a round.
    is_idle: bool,
    /// The reason why the coordinator cannot be reached.
    cause: Option<String>,
    /// The newest answer and its time.
    job: Option<(Facts, Instant)>,
    question: JoinSet<Option<Facts>>,
    next_question: Instant,
    jitter: Jitter,
}

impl StartScreen {
    /// Returns the screen of an agent with this log. Nothing is shown if the log does not go to a
    /// terminal, or if the agents of a launch share the terminal.
    pub fn new(now: Instant, spec: &JobSpec, log: &Log) -> Self {
        if !log.has_block() || spec.output.first_node_lines {
            return Self::default();
        }
        let join_timeout = spec.shared.timeouts.join;
        let start = Start {
            run_id: spec.run_id.to_string(),
            nodes: spec.shared.nodes,
            since: now,
            follows_workers: false,
            stage: StartStage::Looking {
                endpoint: spec.rendezvous.endpoint_text(),
                cause: None,
                until: now + join_timeout,
            },
            standbys: None,
        };
        log.show_start(start.clone());
        Self::of_start(start, join_timeout, spec.credentials.clone(), log)
    }

    fn of_start(start: Start, join_timeout: Duration, credentials: Credentials, log: &Log) -> Self {
        Self(Some(Box::new(Shown {
            log: log.clone(),
            join_timeout,
            credentials,
            asks: start.nodes.max() <= limits::START_NODES_ASKED,
            is_shown: true,
            has_workers: false,
            is_idle: false,
            cause: None,
            job: None,
            question: JoinSet::new(),
            next_question: start.since + limits::START_QUESTION / 2,
            jitter: Jitter::new(rand::random()),
            start,
        })))
    }

    /// Shows the reason why no coordinator has been found yet.
    pub fn handle_cause(&self, cause: &str) {
        let Some(shown) = &self.0 else { return };
        let mut start = shown.start.clone();
        if let StartStage::Looking { cause: before, .. } = &mut start.stage {
            *before = Some(cause.to_owned());
        }
        shown.log.show_start(start);
    }

    /// Notes that this agent hosts the only coordinator. It may then ask even in a large job.
    pub(crate) fn handle_hosting(&mut self) {
        if let Some(shown) = &mut self.0 {
            shown.asks = true;
        }
    }

    /// Notes a piece of news.
    pub(super) fn handle_news(&mut self, news: &News) {
        let Some(shown) = &mut self.0 else { return };
        match news {
            News::Waiting(
                _,
                WaitReason::Spare
                | WaitReason::Quarantined
                | WaitReason::Unhealthy
                | WaitReason::Excluded,
            )
            | News::Succeeded(_) => {
                shown.is_idle = true;
            }
            News::Waiting(
                _,
                WaitReason::Gathering
                | WaitReason::NextRound
                | WaitReason::Ending
                | WaitReason::Recovering,
            )
            | News::Restarting(..)
            | News::Evicted(..) => shown.is_idle = false,
            News::Admitted(_)
            | News::HostLeaving
            | News::NoticeGiven(_)
            | News::NoticeOver(_)
            | News::MemoryOff(..)
            | News::WorkerFailed(_)
            | News::Cause(_)
            | News::ClientRefused(..) => {}
        }
    }

    /// Notes the standbys of this node.
    pub(super) fn handle_standbys(&mut self, counts: &StandbyCounts) {
        if let Some(shown) = &mut self.0 {
            shown.start.standbys = Some(counts.clone());
        }
    }

    /// Notes the reason why the coordinator cannot be reached.
    pub(super) fn handle_outage(&mut self, cause: &str) {
        if let Some(shown) = &mut self.0 {
            shown.cause = Some(cause.to_owned());
        }
    }

    /// Removes the block before workers start, because they may write to the terminal.
    pub(super) async fn handle_workers(&mut self) {
        let Some(shown) = &mut self.0 else { return };
        shown.has_workers = true;
        shown.hide();
        let log = shown.log.clone();
        // Another thread waits for the terminal.
        let _ = tokio::task::spawn_blocking(move || log.finish_start()).await;
    }

    /// Notes that the workers of this node have ended.
    pub(super) fn handle_workers_ended(&mut self) {
        if let Some(shown) = &mut self.0 {
            shown.has_workers = false;
        }
    }

    /// Shows the current state. `disconnected` is the start of the time without a coordinator; `None` if one is reached.
    pub(super) fn review(
        &mut self,
        now: Instant,
        is_leaving: bool,
        disconnected: Option<Instant>,
        endpoint: impl FnOnce() -> String,
    ) {
        let Some(shown) = &mut self.0 else { return };
        if is_leaving || shown.has_workers || shown.is_idle {
            if shown.is_shown {
                shown.hide();
                shown.log.hide_start();
            }
            return;
        }
        if !shown.is_shown {
            shown.is_shown = true;
            shown.start.since = now;
            shown.start.follows_workers = true;
            shown.next_question = now + limits::START_QUESTION / 2;
        }
        let endpoint = endpoint();
        shown.start.stage = match disconnected {
            Some(since) => {
                shown.job = None;
                let until = since + shown.join_timeout;
                StartStage::Looking { endpoint, cause: shown.cause.clone(), until }
            }
            None => {
                shown.cause = None;
                StartStage::Registered { endpoint, job: shown.job.clone() }
            }
        };
        shown.log.show_start(shown.start.clone());
    }

    /// Returns the time of the next question to the coordinator.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let shown = self.0.as_ref()?;
        let is_due = shown.is_shown && shown.asks && shown.question.is_empty();
        is_due.then_some(shown.next_question)
    }

    /// Asks the coordinator at this address for the state of the job, if it is time.
    pub(super) fn handle_timeout(&mut self, now: Instant, coordinator: Option<SocketAddr>) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        let Some(shown) = &mut self.0 else { return };
        let wait = limits::START_QUESTION.mul_f64(1.0 + shown.jitter.fraction() / 2.0);
        shown.next_question = now + wait;
        let Some(address) = coordinator else { return };
        let endpoint = Endpoint { host: address.ip().to_string(), port: address.port() };
        let credentials = shown.credentials.clone();
        shown.question.spawn(async move {
            match client::job(&endpoint, &credentials).await {
                Ok(job) => job.map(|job| Facts::of(&job)),
                Err(error) => {
                    debug!(%endpoint, %error, "failed to ask for the state of the job");
                    None
                }
            }
        });
    }

    /// Waits for the answer to a question. Never returns if there is none.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn answered(&mut self) -> Option<Facts> {
        match &mut self.0 {
            Some(shown) => match shown.question.join_next().await {
                Some(answer) => answer.ok().flatten(),
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    /// Notes an answer of the coordinator.
    pub(super) fn handle_answer(&mut self, now: Instant, facts: Option<Facts>) {
        if let (Some(shown), Some(facts)) = (&mut self.0, facts) {
            shown.job = Some((facts, now));
        }
    }
}

impl Shown {
    fn hide(&mut self) {
        self.is_shown = false;
        self.job = None;
        // An answer would be outdated at the next start.
        self.question = JoinSet::new();
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.log.hide_start();
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::{secret::Unsecured, sys::clock};
    use ragent_rendezvous::{
        ids::{Round, RoundId, Term},
        message::RestartReason,
        settings::NodeRange,
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn screen(now: Instant, nodes: u32) -> StartScreen {
        let start = Start {
            run_id: "j".to_owned(),
            nodes: NodeRange::new(nodes, nodes).unwrap(),
            since: now,
            follows_workers: false,
            stage: StartStage::Looking {
                endpoint: "n:1".to_owned(),
                cause: None,
                until: now + 600 * SECOND,
            },
            standbys: None,
        };
        let credentials = Credentials::unsecured(Unsecured::Chosen);
        StartScreen::of_start(start, 600 * SECOND, credentials, &Log::disabled())
    }

    /// Reviews the screen of a registered agent, and returns the start that is shown.
    fn shown(screen: &mut StartScreen, now: Instant) -> Option<Start> {
        screen.review(now, false, None, || "n:1".to_owned());
        let shown = screen.0.as_ref().unwrap();
        shown.is_shown.then(|| shown.start.clone())
    }

    fn waiting(reason: WaitReason) -> News {
        News::Waiting(RoundId { term: Term(1), round: Round(1) }, reason)
    }

    /// The start is shown until workers run, and again after they have ended. Meanwhile nothing is asked.
    #[tokio::test]
    async fn start_is_shown_while_no_workers_run() {
        let now = clock::now();
        let mut screen = screen(now, 2);
        let first = shown(&mut screen, now).unwrap();
        assert!(
            matches!(first.stage, StartStage::Registered { job: None, .. }) && first.since == now
        );
        screen.handle_answer(now, Some(Facts::default()));
        let answered = shown(&mut screen, now).unwrap();
        assert!(matches!(answered.stage, StartStage::Registered { job: Some(_), .. }));
        screen.handle_workers().await;
        let later = now + 60 * SECOND;
        assert_eq!((shown(&mut screen, later), screen.poll_timeout()), (None, None));
        screen.handle_workers_ended();
        screen.handle_news(&News::Restarting(RoundId::default(), RestartReason::HostLeft));
        let again = shown(&mut screen, later).unwrap();
        assert!(matches!(again.stage, StartStage::Registered { job: None, .. }), "{again:?}");
        assert_eq!((again.since, again.follows_workers), (later, true));
        assert_eq!(screen.poll_timeout(), Some(later + SECOND / 2));
    }

    /// A node shows no start if it does not wait for the next round: it is a spare, its workers have succeeded, or it leaves.
    #[test]
    fn other_waits_are_not_shown() {
        let now = clock::now();
        let succeeded = News::Succeeded(RoundId::default());
        let quarantined = waiting(WaitReason::Quarantined);
        for news in [waiting(WaitReason::Spare), quarantined, succeeded] {
            let mut screen = screen(now, 2);
            screen.handle_news(&news);
            assert_eq!(shown(&mut screen, now), None, "{news:?}");
            screen.handle_news(&waiting(WaitReason::NextRound));
            assert!(shown(&mut screen, now).is_some(), "{news:?}");
            screen.review(now, true, None, String::new);
            assert!(!screen.0.unwrap().is_shown, "{news:?}");
        }
    }

    /// A node that has lost the coordinator shows the reason, and when it gives up, counted from the loss.
    #[test]
    fn outage_is_shown() {
        let now = clock::now();
        let mut screen = screen(now, 2);
        screen.handle_answer(now, Some(Facts::default()));
        screen.handle_outage("refused");
        screen.review(now + SECOND, false, Some(now), || "n:2".to_owned());
        let (endpoint, cause) = ("n:2".to_owned(), Some("refused".to_owned()));
        let expected = StartStage::Looking { endpoint, cause, until: now + 600 * SECOND };
        assert_eq!(screen.0.as_ref().unwrap().start.stage, expected);
        let stage = shown(&mut screen, now).unwrap().stage;
        assert!(matches!(stage, StartStage::Registered { job: None, .. }), "{stage:?}");
    }

    /// In a large job, only the agent that hosts the coordinator asks. Each agent asks again after more than a second.
    #[test]
    fn questions_are_bounded() {
        let now = clock::now();
        let mut large = screen(now, limits::START_NODES_ASKED + 1);
        assert_eq!(large.poll_timeout(), None);
        large.handle_hosting();
        assert_eq!(large.poll_timeout(), Some(now + SECOND / 2));
        let mut small = screen(now, limits::START_NODES_ASKED);
        small.handle_timeout(now, None);
        assert_eq!(small.poll_timeout(), Some(now + SECOND / 2), "it is not time");
        let due = now + SECOND;
        small.handle_timeout(due, None);
        let next = small.poll_timeout().unwrap();
        assert!(next >= due + SECOND && next <= due + SECOND * 3 / 2);
    }
}
