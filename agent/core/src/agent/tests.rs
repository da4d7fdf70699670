//! One rule per test, as a conversation between a node and its coordinator.

mod imports;
mod looks;
mod notices;

use std::net::IpAddr;

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, LocalRank, RoundId},
    message::{
        Admission, Assignment, CheckpointId, EvictReason, HardwareFact, HealthClass, JobResult,
        MemoryKind, MemoryPlan, REFUSED_CLIENTS_MAX, RefusedClients, RestartReason, StepSource,
        StoreUnreached, Unhealthy, WaitReason, WorkerEnd,
    },
    settings::{NodeRange, Timeouts},
    snapshot::Explanation,
};

use super::*;
use crate::{limits, steps::NodeSteps, supervisor::GroupEnd};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(30);
const PORT: u16 = 41000;

/// One node, and its clock.
struct Fixture {
    agent: Agent,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self::with_standbys(false)
    }

    fn with_standbys(has_standbys: bool) -> Self {
        let now = crate::some_instant();
        let settings = AgentSettings {
            memory: MemorySettings::off(),
            shared: SharedSettings {
                timeouts: Timeouts { stop_grace: GRACE, join: 600 * SECOND, ..Timeouts::default() },
                ..SharedSettings::new(NodeRange::new(1, 1).unwrap())
            },
            silence: Duration::ZERO,
            known_round: KnownRound::default(),
            runs_unleased: false,
            has_voters: false,
            has_standbys,
            leases: Leases::default(),
            seed: 7,
        };
        let mut t = Self { agent: Agent::new(now, settings), now };
        assert_eq!(t.effects(), [OPEN_STORE]);
        t
    }

    /// A registered node that has reported that it is ready.
    fn ready() -> Self {
        let mut t = Self::new();
        assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
        assert_eq!(t.store_open(), [t.sends(NodeState::Ready { store_port: PORT })]);
        t
    }

    /// A node whose workers run in round 1.
    fn running() -> Self {
        let mut t = Self::ready();
        t.assign(Assignment::Admit(admission(1, 1)));
        t
    }

    /// Returns the effects, without news for people and the sockets for checkpoints in memory.
    fn effects(&mut self) -> Vec<Effect> {
        let is_shown = |effect: &Effect| {
            !matches!(effect, Effect::Local(Action::Announce(_) | Action::Memory(_)))
        };
        std::iter::from_fn(|| self.agent.poll_effect()).filter(is_shown).collect()
    }

    fn sends(&self, state: NodeState) -> Effect {
        let report = self.agent.report(self.now);
        assert_eq!(report.state, state);
        Effect::Send(FromNode::NodeReport(report))
    }

    fn welcome(&mut self, term: u64) -> Vec<Effect> {
        self.agent.handle_welcome(
            self.now,
            &Welcome {
                term: Term(term),
                job_uid: JobUid::new("uid"),
                coordinator: "a".to_owned(),
                leases: Leases::default(),
                voters: Vec::new(),
                lease_left: None,
            },
        );
        self.effects()
    }

    fn store_open(&mut self) -> Vec<Effect> {
        self.agent.handle_store_open(self.now, PORT);
        self.effects()
    }

    fn assign(&mut self, assignment: Assignment) -> Vec<Effect> {
        self.agent.handle_assignment(self.now, assignment);
        self.effects()
    }

    fn restart(&mut self, round: RoundId) -> Vec<Effect> {
        let reason = RestartReason::NodesWaiting { waiting: 1 };
        self.assign(Assignment::Restart { round, reason, complete_step: None, memory_step: None })
    }

    fn finished(&mut self, end: GroupEnd) -> Vec<Effect> {
        self.agent.handle_finished(self.now, end);
        self.effects()
    }

    fn failed(&mut self, round: RoundId) -> Vec<Effect> {
        self.agent.handle_failed(self.now, failure(round));
        self.effects()
    }

    fn signal(&mut self) -> Vec<Effect> {
        self.agent.handle_signal(self.now, Signal::TERM);
        self.effects()
    }
}

fn round(term: u64, round: u64) -> RoundId {
    RoundId { term: Term(term), round: Round(round) }
}

fn admission(term: u64, number: u64) -> Admission {
    Admission {
        round: round(term, number),
        group_world_size: 2,
        world_size: 4,
        role_world_size: 4,
        master_address: "10.0.0.1".to_owned(),
        master_port: PORT,
        ..Admission::default()
    }
}

fn failure(round: RoundId) -> WorkerFailure {
    WorkerFailure::new("a", round, (GlobalRank(1), LocalRank(1)), 7, WorkerEnd::Exited(3))
}

fn outcome() -> Outcome {
    Outcome {
        result: JobResult::BudgetSpent,
        first_failure: None,
        other_failures: 0,
        further_failures: Vec::new(),
        restarts_used: 3,
        complete_step: None,
    }
}

const OPEN_STORE: Effect = Effect::Local(Action::OpenStore);
const KILL: Effect = Effect::Local(Action::Kill);
const TERM: Effect = Effect::Local(Action::Stop { signal: Signal::TERM, grace: GRACE });

/// A ready node starts the workers of its admission once, even if the admission is repeated.
#[test]
fn admission_starts_workers_once() {
    let mut t = Fixture::ready();
    let effects = t.assign(Assignment::Admit(admission(1, 1)));
    let start = Effect::Local(Action::Start(Box::new(admission(1, 1))));
    assert_eq!(effects, [t.sends(NodeState::Running), start]);
    assert_eq!(t.assign(Assignment::Admit(admission(1, 1))), []);
    assert_eq!(t.agent.known_round().round, round(1, 1));
}

/// An admission to a round in which the node was a member before starts nothing.
#[test]
fn old_admission_starts_nothing() {
    let mut t = Fixture::running();
    t.restart(round(1, 1));
    t.finished(GroupEnd::Stopped);
    t.store_open();
    let effects = t.assign(Assignment::Admit(admission(1, 1)));
    assert_eq!(effects, [t.sends(NodeState::Ready { store_port: PORT })]);
}

/// `Ready` is reported only when the last process of the round is reaped and a new store listens.
#[test]
fn ready_comes_after_the_last_process() {
    let mut t = Fixture::running();
    assert_eq!(t.restart(round(1, 1)), [t.sends(NodeState::Stopping), TERM]);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Preparing), OPEN_STORE]);
    assert_eq!(t.store_open(), [t.sends(NodeState::Ready { store_port: PORT })]);
}

/// A failure is reported at once, and again with every later report of that round, so that a broken
/// stream cannot lose it. Its age grows.
#[test]
fn failure_is_reported_until_the_next_round() {
    let mut t = Fixture::running();
    assert_eq!(t.failed(round(1, 1)), [t.sends(NodeState::Stopping)]);
    t.now += SECOND;
    t.finished(GroupEnd::Stopped);
    t.store_open();
    let failure = t.agent.report(t.now).failure.unwrap();
    assert_eq!((failure.age, failure.before_load), (SECOND, true));
    t.assign(Assignment::Admit(admission(1, 2)));
    assert_eq!(t.agent.report(t.now).failure, None);
}

/// The steps of the workers are sent before the report of the failure: the coordinator decides by them whether another start can help.
#[test]
fn steps_come_before_the_failure() {
    let mut t = Fixture::running();
    let (source, at) = (StepSource::Reported, t.now);
    t.agent.handle_steps(NodeSteps { source, lowest: 7, highest: 9, total: None, at });
    let effects = t.failed(round(1, 1));
    let [Effect::Send(FromNode::KeepAlive { progress: Some(progress), .. }), report] = &*effects
    else {
        panic!("{effects:?}")
    };
    assert_eq!((progress.lowest, progress.highest), (7, 9));
    assert_eq!(*report, t.sends(NodeState::Stopping));
}

/// A worker that ends while its round is being stopped is a victim, not a failure.
#[test]
fn victims_are_no_failures() {
    let mut t = Fixture::running();
    t.restart(round(1, 1));
    assert_eq!(t.failed(round(1, 1)), []);
    assert_eq!(t.agent.report(t.now).failure, None);
}

/// A restarted coordinator ends the round under its own term.
#[test]
fn restart_under_a_higher_term_counts() {
    let mut t = Fixture::running();
    t.welcome(2);
    assert_eq!(t.restart(round(2, 1)), [t.sends(NodeState::Stopping), TERM]);
}

/// A restart of a round in which this node is not a member changes nothing. The report is repeated.
#[test]
fn restart_of_another_round_changes_nothing() {
    let mut t = Fixture::running();
    assert_eq!(t.restart(round(1, 7)), [t.sends(NodeState::Running)]);
}

/// A node whose workers succeeded takes part again if the round must re-form.
#[test]
fn succeeded_node_takes_part_again() {
    let mut t = Fixture::running();
    assert_eq!(t.finished(GroupEnd::Succeeded), [t.sends(NodeState::Succeeded)]);
    assert_eq!(t.restart(round(1, 7)), [t.sends(NodeState::Succeeded)], "of another round");
    assert_eq!(t.restart(round(1, 1)), [t.sends(NodeState::Preparing), OPEN_STORE]);
}

/// A node that is no longer a member kills its workers without grace and registers as a newcomer.
#[test]
fn evicted_node_kills_and_comes_back() {
    let mut t = Fixture::running();
    let evict = Assignment::Evict { round: round(1, 1), reason: EvictReason::Silent };
    assert_eq!(t.assign(evict), [KILL, t.sends(NodeState::Stopping)]);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Preparing), OPEN_STORE]);
}

/// A ready node that was in a round without its knowledge opens another store. A late message about a round that it knows does not
/// concern its store.
#[test]
fn store_of_a_missed_round_is_replaced() {
    let evict = |number| Assignment::Evict { round: round(1, number), reason: EvictReason::Silent };
    let mut t = Fixture::ready();
    assert_eq!(t.assign(evict(1)), [OPEN_STORE, t.sends(NodeState::Preparing)]);
    assert_eq!(t.assign(evict(1)), []);
    assert_eq!(t.store_open(), [t.sends(NodeState::Ready { store_port: PORT })]);
    let mut t = Fixture::running();
    t.restart(round(1, 1));
    t.finished(GroupEnd::Stopped);
    t.store_open();
    assert_eq!(t.assign(evict(1)), []);
}

/// Without a lease no worker may run.
#[test]
fn lost_lease_kills() {
    let mut t = Fixture::running();
    t.agent.handle_lease_lost();
    assert_eq!(t.effects(), [KILL]);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Preparing), OPEN_STORE]);
}

/// A signal is reported to the coordinator first, then sent to the workers, which have the whole shutdown
/// time-out. The node leaves when it is dismissed, since others may need its store until then.
#[test]
fn leaving_is_reported_first_and_waits_for_the_dismissal() {
    let mut t = Fixture::running();
    let stop = Effect::Local(Action::Stop { signal: Signal::TERM, grace: GRACE });
    assert_eq!(t.signal(), [t.sends(NodeState::Leaving { reaped: false }), stop]);
    assert_eq!(t.signal(), []);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Leaving { reaped: true })]);
    let left = Effect::Local(Action::Finish(Ending::Left {
        signal: Some(Signal::TERM),
        saved_step: None,
    }));
    assert_eq!(t.assign(Assignment::Dismiss), [Effect::Send(FromNode::Goodbye), left]);
}

/// A node that cannot reach a coordinator leaves at once on a signal.
#[test]
fn leaving_while_disconnected_waits_for_nobody() {
    let mut t = Fixture::new();
    assert_eq!(
        t.signal(),
        [Effect::Local(Action::Finish(Ending::Left {
            signal: Some(Signal::TERM),
            saved_step: None
        }))]
    );
    let mut t = Fixture::running();
    t.signal();
    t.agent.handle_disconnected(t.now);
    t.agent.handle_lease_lost();
    assert_eq!(t.effects(), [KILL]);
    let left = Effect::Local(Action::Finish(Ending::Left {
        signal: Some(Signal::TERM),
        saved_step: None,
    }));
    assert_eq!(t.finished(GroupEnd::Stopped), [left]);
}

/// A short interruption does not end the membership: a node that leaves during one reports so
/// afterwards and is dismissed.
#[test]
fn leaving_during_an_outage_is_reported_afterwards() {
    let mut t = Fixture::ready();
    t.agent.handle_disconnected(t.now);
    assert_eq!(t.signal(), [t.sends(NodeState::Leaving { reaped: true })]);
    assert_eq!(t.welcome(1), [t.sends(NodeState::Leaving { reaped: true })]);
}

/// A second Ctrl-C kills the workers without waiting. A second SIGTERM does not shorten the grace period.
#[test]
fn second_interrupt_kills() {
    let mut t = Fixture::running();
    t.signal();
    assert_eq!(t.signal(), []);
    t.agent.handle_signal(t.now, Signal::INT);
    assert_eq!(t.effects(), [KILL]);
}

/// A change between a registration and its welcome is reported after the welcome.
#[test]
fn welcome_is_answered_with_what_holds() {
    let mut t = Fixture::running();
    t.finished(GroupEnd::Succeeded);
    assert_eq!(t.welcome(1), [t.sends(NodeState::Succeeded)]);
}

/// A node that waits to be dismissed leaves when its lease is over.
#[test]
fn leaving_node_outlives_no_lease() {
    let mut t = Fixture::running();
    t.signal();
    t.finished(GroupEnd::Stopped);
    t.agent.handle_disconnected(t.now);
    t.agent.handle_lease_lost();
    assert_eq!(
        t.effects(),
        [Effect::Local(Action::Finish(Ending::Left {
            signal: Some(Signal::TERM),
            saved_step: None
        }))]
    );
}

/// If the job closes, workers are ended first, and the outcome is acknowledged when none is left.
#[test]
fn close_ends_workers_first() {
    let mut t = Fixture::running();
    assert_eq!(t.assign(Assignment::Close(outcome())), [TERM]);
    let end =
        [Effect::Send(FromNode::Goodbye), Effect::Local(Action::Finish(Ending::Closed(outcome())))];
    assert_eq!(t.finished(GroupEnd::Stopped), end);
    let mut t = Fixture::ready();
    assert_eq!(t.assign(Assignment::Close(outcome())), end);
}

/// A node that waits reports the reason that it receives with the echo of a keep-alive. Of a node whose
/// workers have succeeded the reason is that others still run. A node with workers requests none.
#[test]
fn waits_are_reported() {
    let reason = || Some(Explanation { kind: "k".to_owned(), text: "t".to_owned() });
    let mut t = Fixture::ready();
    assert!(!t.agent.asks_reason(t.now, 1));
    t.now += 5 * SECOND;
    assert!(t.agent.asks_reason(t.now, 2));
    t.agent.handle_echo(t.now, 2, reason());
    let reported = |report| [Effect::Local(Action::ReportWait(report))];
    assert_eq!(t.effects(), reported(WaitReport::NextRound(reason().unwrap())));
    t.assign(Assignment::Admit(admission(1, 1)));
    t.now += 600 * SECOND;
    assert!(!t.agent.asks_reason(t.now, 3));
    t.finished(GroupEnd::Succeeded);
    assert!(!t.agent.asks_reason(t.now, 4));
    t.now += 5 * SECOND;
    assert!(t.agent.asks_reason(t.now, 5));
    t.agent.handle_echo(t.now, 5, None);
    assert_eq!(t.effects(), reported(WaitReport::OtherNodes));
}

/// A coordinator that is unreachable for the join time-out ends this node's part.
#[test]
fn coordinator_is_waited_for_as_long_as_nodes_are() {
    let mut t = Fixture::running();
    t.agent.handle_disconnected(t.now);
    t.agent.handle_disconnected(t.now + SECOND);
    t.now += 600 * SECOND;
    assert_eq!(t.agent.poll_timeout(), Some(t.now));
    t.agent.handle_timeout(t.now);
    assert_eq!(t.effects(), [KILL, unreachable(false)]);
    assert_eq!(t.agent.poll_timeout(), None);
}

/// The ending of a node whose coordinator was not reached again.
fn unreachable(has_left: bool) -> Effect {
    let waited = 600 * SECOND;
    Effect::Local(Action::Finish(Ending::Unreachable {
        waited,
        was_registered: true,
        has_left,
        complete_step: None,
    }))
}

/// A host that has announced its leave is distinguished from a lost one. The announcement ends with the
/// next registration.
#[test]
fn host_that_left_is_remembered() {
    for is_back in [false, true] {
        let mut t = Fixture::ready();
        t.agent.handle_host_leaving();
        if is_back {
            t.welcome(2);
        }
        t.agent.handle_disconnected(t.now);
        t.now += 600 * SECOND;
        t.agent.handle_timeout(t.now);
        assert_eq!(t.effects(), [KILL, unreachable(!is_back)]);
    }
}

/// A node that was in no round follows another coordinator as if it had known none. A node that was in
/// one follows as a node of its run.
#[test]
fn sent_elsewhere() {
    let mut t = Fixture::ready();
    assert!(t.agent.handle_sent_elsewhere(t.now, Term(0)));
    assert_eq!((t.agent.job_uid(), t.agent.term()), (None, Term(0)));
    assert_eq!(t.agent.poll_timeout(), Some(t.now + 600 * SECOND));
    assert_eq!(t.effects(), [OPEN_STORE], "it may have been in the first round");
    assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
    let mut t = Fixture::running();
    assert!(!t.agent.handle_sent_elsewhere(t.now, Term(0)));
    assert!(t.agent.handle_sent_elsewhere(t.now, Term(1)));
    assert_eq!((t.agent.job_uid(), t.agent.term()), (Some(&JobUid::new("uid")), Term(1)));
}

/// A node of a run that has formed no round joins another run.
#[test]
fn run_without_a_round_is_left() {
    let mut t = Fixture::ready();
    t.agent.handle_refused(RefuseReason::EarlierRun);
    assert_eq!((t.effects(), t.agent.job_uid()), (vec![OPEN_STORE], None));
    assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
    let mut t = Fixture::running();
    t.agent.handle_refused(RefuseReason::EarlierRun);
    let refused = Effect::Local(Action::Finish(Ending::Refused(RefuseReason::EarlierRun)));
    assert!(t.effects().contains(&refused));
}

/// A node without a coordinator may find another job of its name, which goes on. Then the node ends its own part.
#[test]
fn node_ends_for_another_job() {
    let mut t = Fixture::running();
    t.agent.handle_other_job("b:1".to_owned(), 7);
    let result = JobResult::OtherJob { endpoint: "b:1".to_owned(), born_ms: Some(7) };
    let closed = Ending::Closed(Outcome { result, restarts_used: 0, ..outcome() });
    let finish = t.effects().pop();
    assert_eq!(finish, Some(Effect::Local(Action::Finish(closed))));
}

/// A refusal is final. If the job has ended, nodes that took part in it report its outcome.
#[test]
fn refusals_are_final() {
    let mut t = Fixture::new();
    t.agent.handle_refused(RefuseReason::EarlierRun);
    let refused = Effect::Local(Action::Finish(Ending::Refused(RefuseReason::EarlierRun)));
    assert_eq!(t.effects(), [KILL, refused]);
    let mut t = Fixture::new();
    t.agent.handle_refused(RefuseReason::Closed(outcome()));
    let late = Effect::Local(Action::Finish(Ending::Refused(RefuseReason::Closed(outcome()))));
    assert_eq!(t.effects(), [KILL, late]);
    let mut t = Fixture::new();
    let succeeded = Outcome { result: JobResult::Succeeded, ..outcome() };
    t.agent.handle_refused(RefuseReason::Closed(succeeded.clone()));
    let closed = Effect::Local(Action::Finish(Ending::Closed(succeeded)));
    assert_eq!(t.effects(), [Effect::Send(FromNode::Goodbye), closed]);
    let mut t = Fixture::ready();
    t.agent.handle_refused(RefuseReason::Closed(outcome()));
    let closed = Effect::Local(Action::Finish(Ending::Closed(outcome())));
    assert_eq!(t.effects(), [Effect::Send(FromNode::Goodbye), closed]);
}

/// A probe is answered in every state.
#[test]
fn probe_is_answered() {
    let mut t = Fixture::running();
    t.agent.handle_message(t.now, ToNode::Probe { round: round(1, 1) });
    assert_eq!(t.effects(), [Effect::Send(FromNode::Alive { round: round(1, 1) })]);
}

/// Workers that were killed at the end of the lease are reported as such, until the next round.
#[test]
fn end_of_the_lease_is_reported() {
    let mut t = Fixture::running();
    t.agent.handle_lease_lost();
    assert!(t.agent.report(t.now).lease_expired);
    t.agent.handle_finished(t.now, GroupEnd::Stopped);
    t.store_open();
    assert!(t.agent.report(t.now).lease_expired);
    t.welcome(1);
    t.assign(Assignment::Admit(admission(2, 1)));
    assert!(!t.agent.report(t.now).lease_expired);
}

/// Progress text is sent at once, then at intervals and only the newest, again on a new stream, and
/// is cleared when the round has ended.
#[test]
fn progress_is_passed_on_at_intervals() {
    let progress = |text: &str| Effect::Send(FromNode::Progress { text: text.to_owned() });
    let mut t = Fixture::running();
    t.agent.handle_progress(t.now, "step 1".to_owned());
    assert_eq!(t.effects(), [progress("step 1")]);
    for step in ["step 2", "step 3"] {
        t.agent.handle_progress(t.now, step.to_owned());
    }
    assert_eq!(t.effects(), []);
    t.now += limits::PROGRESS_INTERVAL;
    assert_eq!(t.agent.poll_timeout(), Some(t.now));
    t.agent.handle_timeout(t.now);
    assert_eq!(t.effects(), [progress("step 3")]);
    assert_eq!(t.agent.poll_timeout(), None);
    assert!(t.welcome(1).contains(&progress("step 3")));
    t.agent.handle_finished(t.now, GroupEnd::Stopped);
    assert!(t.effects().contains(&progress("")));
}

/// Only a job that would fail again keeps a service manager from restarting the agent.
#[test]
fn endings_worth_another_start_have_another_exit_code() {
    let code = |result| {
        let outcome = Outcome {
            result,
            first_failure: None,
            other_failures: 0,
            further_failures: Vec::new(),
            restarts_used: 0,
            complete_step: None,
        };
        Ending::Refused(RefuseReason::Closed(outcome)).exit_code()
    };
    assert_eq!(code(JobResult::BudgetSpent), 4);
    assert_eq!(code(JobResult::FinalFailure), 4);
    assert_eq!(code(JobResult::AllLeft), 1);
    let waited = Duration::ZERO;
    let departed = Box::default();
    let timeout = JobResult::JoinTimeout { present: 1, min: 2, waited, after: Round(0), departed };
    assert_eq!(code(timeout), 1);
    let unreachable = |was_registered| {
        Ending::Unreachable { waited, was_registered, has_left: false, complete_step: None }
            .exit_code()
    };
    assert_eq!((unreachable(true), unreachable(false)), (3, 1));
}

/// Counts the announced news of a kind since the last call.
fn announced(t: &mut Fixture, is_it: impl Fn(&News) -> bool) -> usize {
    let is_it = |effect: &Effect| match effect {
        Effect::Local(Action::Announce(news)) => is_it(news),
        _ => false,
    };
    std::iter::from_fn(|| t.agent.poll_effect()).filter(is_it).count()
}

/// A reason to wait is announced once. A cause is announced if it names another worker than the failure before. That the host leaves is
/// announced unless this node leaves itself, and a refused client only for the present round.
#[test]
fn news_are_announced_once() {
    let mut t = Fixture::ready();
    for (reason, count) in
        [(WaitReason::Gathering, 1), (WaitReason::Gathering, 0), (WaitReason::Spare, 1)]
    {
        t.agent.handle_assignment(t.now, waits(reason));
        assert_eq!(announced(&mut t, |news| matches!(news, News::Waiting(..))), count);
    }
    for (rank, count) in [(1, 0), (2, 1)] {
        let mut t = Fixture::running();
        t.failed(round(1, 1));
        let cause = WorkerFailure {
            local_rank: LocalRank(rank),
            error_file_age: Some(3 * SECOND),
            ..failure(round(1, 1))
        };
        t.agent.handle_cause(t.now, cause);
        assert_eq!(announced(&mut t, |news| matches!(news, News::Cause(_))), count);
    }
    let mut t = Fixture::running();
    t.agent.handle_message(t.now, ToNode::HostLeaving);
    assert_eq!(announced(&mut t, |news| matches!(news, News::HostLeaving)), 1);
    t.signal();
    t.agent.handle_message(t.now, ToNode::HostLeaving);
    assert_eq!(announced(&mut t, |news| matches!(news, News::HostLeaving)), 0, "it leaves as well");
    let mut t = Fixture::running();
    for (number, count) in [(2, 0), (1, 1)] {
        let addresses = vec![[172, 20, 0, 5].into()];
        t.agent.handle_refused_clients(RefusedClients { round: round(1, number), addresses });
        assert_eq!(announced(&mut t, |news| matches!(news, News::ClientRefused(..))), count);
    }
}

/// The failure of the oldest event counts, in any order of arrival, and its ages grow.
#[test]
fn oldest_event_is_the_cause() {
    let mut t = Fixture::running();
    t.failed(round(1, 1));
    t.now += SECOND;
    let mut cause = failure(round(1, 1));
    cause.local_rank = LocalRank(1);
    cause.error_file_age = Some(3 * SECOND);
    t.agent.handle_cause(t.now, cause.clone());
    t.now += SECOND;
    let sent = t.agent.report(t.now).failure.expect("a failure is known");
    assert_eq!((sent.local_rank, sent.error_file_age), (LocalRank(1), Some(4 * SECOND)));
    assert_eq!(sent.age, SECOND);
    // A cause later than that, or in another round, changes nothing.
    cause.local_rank = LocalRank(2);
    cause.error_file_age = Some(2 * SECOND);
    t.agent.handle_cause(t.now, cause.clone());
    cause.round = round(1, 7);
    cause.error_file_age = Some(90 * SECOND);
    t.agent.handle_cause(t.now, cause);
    let sent = t.agent.report(t.now).failure.expect("a failure is known");
    assert_eq!(sent.local_rank, LocalRank(1));
}

/// What the hardware has reported since the failure joins it, with ages that stay comparable. It makes no failure where there is none.
#[test]
fn hardware_joins_the_failure() {
    let mut t = Fixture::running();
    let hardware = || {
        let text = "GPU 3 reported XID 79 (fell off the bus)".to_owned();
        vec![HardwareFact { text, age: Some(SECOND) }]
    };
    t.agent.handle_hardware(t.now, round(1, 1), hardware());
    assert_eq!(t.agent.report(t.now).failure, None);
    t.failed(round(1, 1));
    t.now += 3 * SECOND;
    t.agent.handle_hardware(t.now, round(1, 7), hardware());
    assert_eq!(t.agent.report(t.now).failure.expect("it is known").hardware, []);
    t.agent.handle_hardware(t.now, round(1, 1), hardware());
    t.now += SECOND;
    let sent = t.agent.report(t.now).failure.expect("a failure is known");
    let expected = ["GPU 3 reported XID 79 (fell off the bus) 2.0 s after"];
    assert_eq!(
        (sent.hardware_lines(), sent.age),
        (expected.map(str::to_owned).to_vec(), 4 * SECOND)
    );
}

/// A node whose workers were stopped on request has a failure if one of them wrote an error file
/// before.
#[test]
fn stopped_node_may_have_the_cause() {
    let mut t = Fixture::running();
    t.restart(round(1, 1));
    let mut cause = failure(round(1, 1));
    cause.error_file_age = Some(SECOND);
    t.agent.handle_cause(t.now, cause);
    let effects = t.finished(GroupEnd::Stopped);
    let has_failure = |effect: &Effect| match effect {
        Effect::Send(FromNode::NodeReport(report)) => {
            report.failure.as_ref().is_some_and(|failure| failure.before_load)
        }
        _ => false,
    };
    assert!(effects.iter().any(has_failure), "{effects:?}");
}

/// A client that the round's store has refused is announced once on each node. The node that serves the
/// store reports it to the coordinator, and again on a new stream.
#[test]
fn refused_clients_are_announced_once() {
    let address: IpAddr = [172, 20, 0, 5].into();
    let refused = RefusedClients { round: round(1, 1), addresses: vec![address] };
    let news = |t: &mut Fixture| {
        let effects = std::iter::from_fn(|| t.agent.poll_effect());
        effects
            .filter(|effect| {
                matches!(effect, Effect::Local(Action::Announce(News::ClientRefused(..))))
            })
            .count()
    };
    let mut t = Fixture::running();
    for _ in 0..2 {
        t.agent.handle_refused_clients(refused.clone());
    }
    t.agent.handle_refused_clients(RefusedClients { round: round(1, 2), ..refused.clone() });
    assert_eq!(news(&mut t), 1);

    let report = Effect::Send(FromNode::RefusedClients(refused.clone()));
    let mut t = Fixture::ready();
    let other = Admission { group_rank: GroupRank(1), ..admission(1, 1) };
    t.assign(Assignment::Admit(other));
    t.agent.handle_refused_clients(refused);
    t.effects();
    assert!(!t.welcome(1).contains(&report), "another node serves the store");
    let mut t = Fixture::running();
    t.agent.handle_client_refused(Round(1), address);
    assert_eq!(t.effects(), std::slice::from_ref(&report));
    t.agent.handle_client_refused(Round(1), address);
    t.agent.handle_client_refused(Round(2), address);
    assert_eq!(t.effects(), []);
    assert!(t.welcome(1).contains(&report));
    let mut t = Fixture::running();
    for number in 0..=u8::try_from(REFUSED_CLIENTS_MAX).unwrap() {
        t.agent.handle_client_refused(Round(1), [172, 20, 1, number].into());
    }
    assert_eq!(news(&mut t), REFUSED_CLIENTS_MAX, "they are bounded");
}

/// A node knows the charges of the job from its newest admission. It claims them when it registers again.
#[test]
fn charges_are_known_from_the_admission() {
    let mut t = Fixture::ready();
    let charged = Admission { restart_count: 2, charged_through: Round(4), ..admission(1, 5) };
    t.assign(Assignment::Admit(charged));
    assert_eq!(t.agent.charges(), (2, Round(4)));
    assert_eq!(t.agent.memory_report(), None, "the job does not use memory");
}

/// A node that does not reach the round's store reports it, and again to each coordinator, until its next round.
#[test]
fn unreached_store_is_reported() {
    let unreached = |number| StoreUnreached {
        round: round(1, number),
        address: "10.0.0.1:4000".to_owned(),
        why: "no answer".to_owned(),
    };
    let report = Effect::Send(FromNode::StoreUnreached(unreached(1)));
    let mut t = Fixture::running();
    assert!(!t.agent.handle_store_unreached(unreached(2)));
    assert_eq!(t.effects(), []);
    assert!(t.agent.handle_store_unreached(unreached(1)));
    assert_eq!(t.effects(), std::slice::from_ref(&report));
    assert!(t.welcome(1).contains(&report));
    t.restart(round(1, 1));
    t.finished(GroupEnd::Stopped);
    t.store_open();
    t.assign(Assignment::Admit(admission(1, 2)));
    assert!(!t.welcome(1).contains(&report));
}

fn waits(reason: WaitReason) -> Assignment {
    Assignment::Wait { round: round(1, 1), reason, memory: None }
}

/// The coordinator receives the newest counts of standbys, at most one in two seconds, and again on each
/// stream.
#[test]
fn standbys_are_reported() {
    let mut t = Fixture::ready();
    let counts = |ready| StandbyCounts { ready, size: 2, ..StandbyCounts::default() };
    let sends = |ready| Effect::Send(FromNode::Standbys(counts(ready)));
    t.agent.handle_standbys(t.now, counts(0));
    assert_eq!(t.effects(), [sends(0)]);
    t.agent.handle_standbys(t.now, counts(1));
    t.agent.handle_standbys(t.now, counts(2));
    assert_eq!(t.effects(), []);
    t.now += limits::PROGRESS_INTERVAL;
    assert_eq!(t.agent.poll_timeout(), Some(t.now));
    t.agent.handle_timeout(t.now);
    assert_eq!(t.effects(), [sends(2)]);
    t.agent.handle_standbys(t.now + SECOND, counts(2));
    assert_eq!(t.effects(), []);
    assert_eq!(t.welcome(1)[1..], [sends(2)]);
}

/// A checkpoint that this node cannot use is reported in its round. It is not reported in the next round, which may begin with the same
/// checkpoint from other nodes.
#[test]
fn unusable_checkpoint_is_reported_in_one_round() {
    let unusable = |effects: Vec<Effect>| -> Vec<bool> {
        let reports = effects.into_iter().filter_map(|effect| match effect {
            Effect::Send(FromNode::NodeReport(report)) => Some(report.memory_unusable.is_some()),
            Effect::Send(_) | Effect::Local(_) => None,
        });
        reports.collect()
    };
    let mut t = Fixture::ready();
    let plan = MemoryPlan {
        checkpoint: CheckpointId { round: round(1, 1), step: 10 },
        kind: MemoryKind::State,
        sources: Vec::new(),
        is_resharded: false,
        all_sources: Vec::new(),
    };
    let admitted = Admission { memory: Some(Box::new(plan)), ..admission(1, 2) };
    let reports = unusable(t.assign(Assignment::Admit(admitted)));
    assert_eq!(reports.last(), Some(&true));
    t.restart(round(1, 2));
    t.finished(GroupEnd::Stopped);
    t.store_open();
    let reports = unusable(t.assign(Assignment::Admit(admission(1, 3))));
    assert_eq!(reports, [false]);
}

fn unhealthy(class: HealthClass) -> Option<Unhealthy> {
    Some(Unhealthy { class, kind: "xid_79".to_owned(), reason: "GPU 3: XID 79".to_owned() })
}

/// A node becomes ready only after the check of its machine, and reports its health then and whenever it changes.
#[test]
fn check_comes_before_ready() {
    let mut t = Fixture::new();
    let checking = NodeHealth { unhealthy: None, is_checking: true };
    t.agent.handle_health(t.now, checking.clone());
    assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
    assert_eq!(t.store_open(), []);
    let found = NodeHealth { unhealthy: unhealthy(HealthClass::Reset), is_checking: false };
    t.agent.handle_health(t.now, found);
    let ready = t.sends(NodeState::Ready { store_port: PORT });
    assert_eq!(t.effects().last(), Some(&ready));
    assert!(t.agent.report(t.now).unhealthy.is_some());
    // The same level is not sent again, and a changed one is.
    t.agent.handle_health(t.now, t.agent.health.clone());
    assert_eq!(t.effects(), []);
    t.agent.handle_health(t.now, NodeHealth::default());
    assert_eq!(t.effects(), [t.sends(NodeState::Ready { store_port: PORT })]);
    assert!(t.agent.report(t.now).unhealthy.is_none());
    // A node that is ready stays so.
    t.agent.handle_health(t.now, checking);
    assert_eq!(t.effects(), []);
    t.sends(NodeState::Ready { store_port: PORT });
}

/// After a failure, the node is ready again only after the check. A signal meanwhile lets it leave at once.
#[test]
fn failed_node_is_checked() {
    for is_signaled in [false, true] {
        let mut t = Fixture::running();
        t.failed(round(1, 1));
        let checking = NodeHealth { unhealthy: unhealthy(HealthClass::Replace), is_checking: true };
        t.agent.handle_health(t.now, checking);
        assert_eq!(t.effects(), [t.sends(NodeState::Stopping)]);
        assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Preparing), OPEN_STORE]);
        assert_eq!(t.store_open(), []);
        if is_signaled {
            assert_eq!(t.signal(), [t.sends(NodeState::Leaving { reaped: true })]);
        }
        t.agent.handle_health(t.now, NodeHealth::default());
        let state = if is_signaled {
            NodeState::Leaving { reaped: true }
        } else {
            NodeState::Ready { store_port: PORT }
        };
        assert_eq!(t.effects().last(), Some(&t.sends(state)));
    }
}
