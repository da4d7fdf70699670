//! Drives the rendezvous machine: one task, one loop, no waiting for an agent.
//!
//! Each turn of the loop
//!
//! 1. takes effects from the machine. Most wait until the state of the job is stored, as in a
//!    write-ahead log, so that no agent acts on a state that a crash could undo.
//! 2. waits for an input, for news of the voters, or for the next deadline.
//!
//! An agent that reads too slowly fills the queue of its stream, and the stream is dropped. The
//! agent registers again, and both sides repeat their state, so nothing is lost.
//!
//! Helpers, one decision each: `persistence` stores the state of the job, [`proofs`] checks node ids, and `streams` keeps the streams of
//! nodes. `pause` delays timeouts after the process was paused. `excluded_hosts` asks a program which hosts get no place. `peer_addresses`
//! chooses the addresses of a node, and `node_reach` tests the connections to new nodes. `listed_voters` adds the voters to the status.

pub(crate) mod excluded_hosts;
mod listed_voters;
pub mod measures;
mod node_reach;
mod pause;
mod peer_addresses;
mod persistence;
pub mod proofs;
mod streams;

use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Instant};

use ragent_base::{
    net::{Endpoint, connection::PeerAddress, port::RegisteredNodes},
    sys::{
        alarm::{Alarm, passed},
        clock,
        host::ThisHost,
        random::random_id,
    },
};
use ragent_election::election::OtherJob;
use ragent_leadership::{
    Leadership, LeadershipCommand, Mandate, Superseded, state_file::DeathNotice,
};
use ragent_proto::{
    Proof,
    convert::{CoordinatorAddress, FromCoordinator},
};
use ragent_rendezvous::{
    ExcludedHosts, Rendezvous,
    effect::Effect,
    ids::{JobUid, Peer, RunId, VoterAddress},
    member_reports::MemberReports,
    message::{Assignment, FromNode, Registration, StoreUnreached, ToNode},
    settings::{JobState, Settings},
    snapshot::{JobCounts, SharedSnapshot, Snapshot, VoterStatus},
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, warn};

use self::{
    listed_voters::ListedVoters,
    measures::CoordinatorMeasures,
    node_reach::NodeReach,
    pause::PauseGuard,
    peer_addresses::{add_source, observed},
    persistence::Persistence,
    proofs::Proofs,
    streams::{OpenStream, OpenStreams},
};
use crate::{
    journal::{EventJournal, JournalReader},
    limits,
};

/// An input of the coordinator.
#[derive(Debug)]
pub enum Input {
    /// A stream was opened. This is its first message.
    Registration {
        /// The message.
        registration: Box<Registration>,
        /// The proof of its node id.
        proof: Option<Proof>,
        /// The source address of the stream.
        from: Option<PeerAddress>,
        /// The queue of answers.
        answers: mpsc::Sender<FromCoordinator>,
        /// Notified if the registration is accepted. Dropped if the node id belongs to another agent.
        taken: oneshot::Sender<()>,
    },
    /// A later message of a stream.
    Message(Peer, FromNode),
    /// A stream has ended.
    Detached(Peer),
    /// A keeper reports that its agent is gone and no process of the node is left. It names the
    /// newest round that ran there.
    DeathNotice(DeathNotice),
    /// A request for the job's state.
    Snapshot(oneshot::Sender<SharedSnapshot>),
    /// A request for the counts of the job's nodes.
    Counts(oneshot::Sender<JobCounts>),
    /// A request for the journal.
    Journal(oneshot::Sender<JournalReader>),
    /// Another agent coordinates the same job at this endpoint. This coordinator should step down if it can.
    StepDown(Endpoint),
    /// The hosts that the user excludes; `None` if the program that lists them has failed.
    Excluded(Option<ExcludedHosts>),
    /// The process received a signal to end.
    Shutdown,
}

/// A queue of inputs for a coordinator.
pub type Inputs = mpsc::Sender<Input>;

/// Asks a coordinator for the state of its job. Returns `None` if the coordinator has ended.
pub async fn snapshot(inputs: &Inputs) -> Option<Snapshot> {
    let (answer, snapshot) = oneshot::channel();
    inputs.send(Input::Snapshot(answer)).await.ok()?;
    // Copies the texts of the nodes here, not in the loop of the coordinator.
    snapshot.await.ok().map(Snapshot::from)
}

/// Asks a coordinator for the counts of its nodes. Returns `None` if the coordinator has ended.
pub(crate) async fn counts(inputs: &Inputs) -> Option<JobCounts> {
    let (answer, counts) = oneshot::channel();
    inputs.send(Input::Counts(answer)).await.ok()?;
    counts.await.ok()
}

/// Asks a coordinator for its journal. Returns `None` if the coordinator has ended.
pub(crate) async fn journal(inputs: &Inputs) -> Option<JournalReader> {
    let (answer, journal) = oneshot::channel();
    inputs.send(Input::Journal(answer)).await.ok()?;
    journal.await.ok()
}

impl Coordination {
    /// Creates a coordinator. It continues from the state of the previous one, or begins a run. Draws a key for the
    /// proofs if there is none.
    pub(crate) fn new(
        settings: Settings,
        mandate: &Mandate,
        place: Place,
        records: Records,
    ) -> Self {
        let job_state = mandate.job_state.clone().unwrap_or_else(|| JobState {
            born_ms: u64::try_from(clock::wall_time().as_millis()).unwrap_or(u64::MAX),
            ..JobState::new(JobUid::new(random_id()))
        });
        let proofs = Proofs::new(job_state.proof_key.clone());
        let job_state = JobState { proof_key: Some(proofs.key().clone()), ..job_state };
        let Records { journal, measures } = records;
        let journal = EventJournal::new(settings.run_id.clone(), journal.as_deref());
        let settings = Settings { voters: mandate.voters.clone(), ..settings };
        let Place { leadership, endpoint, registered_nodes, registered, awaits_excluded } = place;
        let grant = mandate.grant.clone();
        let mut rendezvous = Rendezvous::new(clock::now(), settings, job_state, grant);
        if awaits_excluded {
            rendezvous.await_excluded(clock::now() + limits::EXCLUDED_AWAITED_FOR);
        }
        let persistence = Persistence::new(leadership.clone(), mandate.term());
        let listed =
            ListedVoters { leadership: leadership.clone(), own: endpoint, since: clock::now() };
        Self(CoordinatorDriver {
            rendezvous,
            persistence,
            streams: OpenStreams::new(registered_nodes, proofs),
            node_reach: NodeReach::new(),
            effects: VecDeque::new(),
            pause: PauseGuard::default(),
            leadership,
            until: mandate.until.clone(),
            listed,
            members: MemberReports::default(),
            registered,
            journal,
            measures,
            rival: None,
            silence_due: None,
        })
    }
}

/// The surroundings of a coordinator in its process.
pub(crate) struct Place {
    /// The handle of the leadership.
    pub(crate) leadership: Leadership,
    /// The endpoint at which others reach this process.
    pub(crate) endpoint: VoterAddress,
    /// The registered nodes, published to the port.
    pub(crate) registered_nodes: watch::Sender<RegisteredNodes>,
    /// The coordinator with which the agent of this process is registered, published for other agents. A coordinator that steps down
    /// publishes its rival here.
    pub(crate) registered: watch::Sender<CoordinatorAddress>,
    /// True if a program lists the hosts that the user excludes.
    pub(crate) awaits_excluded: bool,
}

/// The destinations of what a coordinator records.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The file to which its events are appended, if there is one.
    pub journal: Option<PathBuf>,
    /// The counters of the coordinator.
    pub measures: Arc<CoordinatorMeasures>,
}

/// The reason for the end of a coordinator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum CoordinatorEnd {
    /// The job has ended, and all nodes have the outcome.
    JobOver,
    /// The node in the coordinator's process has left; another voter should be elected.
    HandedOver,
    /// The coordinator has stepped down for the one at this endpoint.
    SteppedDown(CoordinatorAddress),
    /// The job had ended before, and no node of it is left.
    Forgotten,
    /// The right to coordinate has ended.
    Ended,
}

/// Waits for a change of this process's voter or, if `awaits_answers`, for an answer of another voter. Without voters it never returns.
///
/// # Cancel safety
///
/// A cancelled call loses nothing.
async fn news_of_voters(leadership: &mut Leadership, awaits_answers: bool) -> VoterNews {
    let Leadership { stored, others, superseded, answered, .. } = leadership;
    tokio::select! {
        biased;
        Ok(()) = stored.changed() => VoterNews::Listed(stored.borrow_and_update().voters()),
        Ok(()) = others.changed() => VoterNews::Others(others.borrow_and_update().clone()),
        Ok(()) = superseded.changed() => {
            VoterNews::Superseded(superseded.borrow_and_update().clone())
        }
        Ok(()) = answered.changed(), if awaits_answers => VoterNews::Answered,
        // The senders have ended.
        else => std::future::pending().await,
    }
}

/// News of the voters.
enum VoterNews {
    /// The list of voters has changed.
    Listed(Vec<VoterAddress>),
    /// Other processes have shown these jobs of the same name.
    Others(Vec<OtherJob>),
    /// The job does not continue here.
    Superseded(Option<Superseded>),
    /// A voter has answered.
    Answered,
}

/// A coordinator that is ready to run.
pub(crate) struct Coordination(CoordinatorDriver);

/// Drives a coordinator until
///
/// - its job has ended and all nodes have the outcome,
/// - it steps down for another coordinator, or hands over,
/// - its right to coordinate has ended, or
/// - no sender of inputs is left.
pub(crate) async fn drive(
    coordination: Coordination,
    mut inputs: mpsc::Receiver<Input>,
) -> CoordinatorEnd {
    let Coordination(mut driver) = coordination;
    driver.check_silence(clock::now());
    driver.note_others(clock::now());
    let mut alarm = Alarm::new();
    let mut began: Option<Instant> = None;
    loop {
        if let Some(end) = driver.carry_out_all() {
            let end = driver.rival.take().map_or(end, CoordinatorEnd::SteppedDown);
            driver.finish().await;
            return end;
        }
        if let Some(began) = began.take() {
            driver.measures.inputs.observe(clock::now().saturating_duration_since(began));
        }
        let deadline = driver.rendezvous.poll_timeout();
        let due = driver.pause.due(clock::now(), deadline);
        let silence_due = driver.silence_due;
        let awaits_answers = !driver.rendezvous.silent_voters().is_empty();
        let report_due = driver.members.poll_timeout();
        tokio::select! {
            // Inputs come first, so that received messages are handled before any node times out. A flood of inputs
            // delays a deadline only briefly: the work for one input is limited, and so is the queue of each stream.
            biased;
            input = inputs.recv() => match input {
                Some(input) => driver.handle(*began.insert(clock::now()), input),
                None => return CoordinatorEnd::Ended,
            },
            () = driver.persistence.stored() => {}
            tested = driver.node_reach.tested() => {
                driver.node_reach.record(tested, |node| driver.rendezvous.knows(node));
            }
            news = news_of_voters(&mut driver.leadership, awaits_answers) => driver.handle_voters(clock::now(), news),
            () = passed(silence_due) => driver.check_silence(clock::now()),
            () = passed(report_due) => driver.report_members(clock::now()),
            () = passed(due) => driver.handle_due(clock::now(), deadline),
            // The next turn of the loop notices which deadline has passed.
            () = alarm.until([report_due, due, silence_due]) => {}
        }
    }
}

/// Describes a job of the same name that may run, so this one must not begin.
fn describe(run_id: &RunId, other: &OtherJob) -> String {
    let addresses: Vec<&str> = other.addresses.iter().map(VoterAddress::as_str).collect();
    match &other.leader {
        Some((leader, _)) => format!("job {run_id} is led at {leader}"),
        None => format!(
            "job {run_id} was begun before, and no process of it that leads has answered; asked: {}",
            addresses.join(", ")
        ),
    }
}

struct CoordinatorDriver {
    rendezvous: Rendezvous,
    streams: OpenStreams,
    node_reach: NodeReach,
    persistence: Persistence,
    /// Effects that wait until the state is stored.
    effects: VecDeque<Effect>,
    pause: PauseGuard,
    leadership: Leadership,
    /// The end of the right to coordinate. An election extends it.
    until: watch::Receiver<Instant>,
    /// The voters, for the status of the job.
    listed: ListedVoters,
    /// The reports of the members, which may become voters.
    members: MemberReports,
    /// The coordinator with which the agent of this process is registered, published for other agents.
    registered: watch::Sender<CoordinatorAddress>,
    /// The journal of this term.
    journal: EventJournal,
    measures: Arc<CoordinatorMeasures>,
    /// Another coordinator of the job. This one has stepped down for it.
    rival: Option<CoordinatorAddress>,
    /// The earliest time at which a voter that still answers may count as silent.
    silence_due: Option<Instant>,
}

impl CoordinatorDriver {
    /// Carries out the effects of the machine. Returns `Some` if one of them ends the coordinator.
    /// Most effects wait until the state is stored.
    fn carry_out_all(&mut self) -> Option<CoordinatorEnd> {
        while let Some(effect) = self.rendezvous.poll_effect() {
            debug!(?effect, "rendezvous");
            match effect {
                // Leases depend on probes and echoes, so these are never delayed.
                Effect::Send {
                    to,
                    message: message @ (ToNode::Echo { .. } | ToNode::Probe { .. }),
                } => self.streams.send(&to, message),
                Effect::Record(event) => self.journal.record(&event, self.rendezvous.job_uid()),
                effect => self.effects.push_back(effect),
            }
        }
        if self.persistence.is_over() {
            return Some(CoordinatorEnd::Ended);
        }
        while !self.persistence.is_awaited()
            && let Some(effect) = self.effects.pop_front()
        {
            match effect {
                Effect::Send { to, message } => {
                    if let ToNode::Assignment(Assignment::Admit(admission)) = &message
                        && admission.group_world_size > 1
                        && let Some(node) = self.rendezvous.description(&to.node)
                    {
                        let is_new = self.streams.take_newcomer(&to);
                        let is_known = |node: &_| self.rendezvous.knows(node);
                        self.node_reach.handle_admitted(node, is_new, is_known);
                    }
                    self.streams.send(&to, message);
                }
                // Recorded above.
                Effect::Record(_) => {}
                Effect::HangUp { to } => self.streams.close(&to),
                Effect::Remember(job_state) => {
                    let successors = self.rendezvous.successors();
                    self.persistence.remember(*job_state, successors);
                }
                Effect::Resign { term } => {
                    // This coordinator ends in any case, so a full queue does no harm: its host then resigns.
                    self.leadership.try_send(LeadershipCommand::Highest(term));
                    return Some(CoordinatorEnd::Ended);
                }
                Effect::HandOver => return Some(CoordinatorEnd::HandedOver),
                Effect::Forget => return Some(CoordinatorEnd::Forgotten),
                Effect::Finish { is_over: true } => return Some(CoordinatorEnd::JobOver),
                Effect::Finish { is_over: false } => return Some(CoordinatorEnd::Ended),
            }
        }
        None
    }

    /// Ends the coordinator: completes the journal, and sends the last messages.
    async fn finish(self) {
        let state = self.snapshot(clock::now());
        self.journal.end(state.into()).await;
        self.streams.close_all().await;
    }

    /// Applies the jobs that other processes showed before this coordinator started.
    fn note_others(&mut self, now: Instant) {
        let others = self.leadership.others.borrow_and_update().clone();
        self.handle_voters(now, VoterNews::Others(others));
    }

    /// Reports the members to the voter of this process.
    fn report_members(&mut self, now: Instant) {
        let leadership = &self.leadership;
        self.members.handle_timeout(now, &self.rendezvous, |report| {
            leadership.try_send(LeadershipCommand::Members(report))
        });
    }

    /// Applies extensions of the right to coordinate.
    fn extend(&mut self, now: Instant) {
        let until = *self.until.borrow();
        self.rendezvous.handle_extended(now, until);
    }

    fn handle_voters(&mut self, now: Instant, news: VoterNews) {
        match news {
            VoterNews::Listed(voters) => self.rendezvous.handle_voters(voters),
            VoterNews::Others(others) => {
                let run_id = self.rendezvous.run_id().clone();
                let text = |other: &OtherJob| describe(&run_id, other);
                self.rendezvous.handle_other_jobs(now, others.iter().map(text).collect());
            }
            VoterNews::Superseded(Some(Superseded::ByJob { job, at })) => {
                self.rendezvous.handle_elder_job(now, at.to_string(), job.born_ms);
            }
            // A leader learns the end of its job from no other process.
            VoterNews::Superseded(Some(Superseded::ByEnd(_)) | None) | VoterNews::Answered => {}
        }
        self.check_silence(now);
    }

    /// Reports to the machine which voters do not answer. Sets the time of the next check.
    fn check_silence(&mut self, now: Instant) {
        let voters = self.listed.statuses(now);
        let until_silent = voters.iter().filter_map(VoterStatus::silent_after);
        let next = until_silent.filter(|after| !after.is_zero()).min();
        self.silence_due = next.map(|after| now + after);
        let silent = voters.iter().filter(|voter| voter.is_silent());
        let silent = silent.map(|voter| voter.endpoint.clone()).collect();
        let listed = voters.iter().map(|voter| voter.endpoint.clone()).collect();
        self.rendezvous.handle_silent_voters(silent, &listed);
    }

    fn handle_due(&mut self, now: Instant, deadline: Option<Instant>) {
        self.extend(now);
        let factor = self.rendezvous.leases().factor().max(1.0);
        if self.pause.may_apply(now, deadline, limits::CATCH_UP.mul_f64(factor)) {
            self.rendezvous.handle_timeout(now);
        } else {
            warn!(
                "the coordinator was paused; processing queued messages before any node times out"
            );
        }
    }

    fn handle(&mut self, now: Instant, input: Input) {
        self.extend(now);
        let is_routine = matches!(
            input,
            Input::Snapshot(_)
                | Input::Counts(_)
                | Input::Journal(_)
                | Input::Message(
                    _,
                    FromNode::KeepAlive { .. } | FromNode::Progress { .. } | FromNode::Standbys(_)
                )
        );
        if !is_routine && self.leadership.member().is_some() {
            self.members.note_change(now);
        }
        match input {
            Input::Registration { answers, .. } if answers.is_closed() => {
                // The agent has stopped waiting, so nothing would read the answer.
                debug!("registration ignored: its stream is closed");
            }
            // The proof is checked first: the stream may have the same name as the stream of another agent.
            Input::Registration { registration, proof, answers, .. }
                if !self.streams.proofs.admit(self.rendezvous.job_uid(), &registration, proof) =>
            {
                refuse(&registration, &answers);
            }
            Input::Registration { registration, from, answers, taken, .. } => {
                // The stream may have ended.
                let _ = taken.send(());
                self.register(now, *registration, from, answers);
            }
            Input::Message(peer, message) => {
                if self.streams.is_open(&peer) {
                    let is_known = |node: &_| self.rendezvous.knows(node);
                    self.streams.proofs.confirm(&peer.node, is_known);
                }
                if let FromNode::StoreUnreached(unreached) = &message {
                    self.handle_store_unreached(&peer, unreached.clone());
                }
                self.rendezvous.handle_message(now, peer, message);
            }
            Input::Detached(peer) => {
                self.streams.close(&peer);
                self.rendezvous.handle_detached(now, peer);
            }
            Input::DeathNotice(death_notice) => self.handle_death_notice(now, &death_notice),
            // The receiver may be gone.
            Input::Snapshot(answer) => drop(answer.send(self.snapshot(now))),
            // The receiver may be gone.
            Input::Counts(answer) => drop(answer.send(self.counts(now))),
            // The receiver may be gone.
            Input::Journal(answer) => drop(answer.send(self.journal.reader())),
            Input::StepDown(to) => self.step_down(now, &to),
            Input::Excluded(hosts) => self.rendezvous.handle_excluded(now, hosts),
            Input::Shutdown => self.rendezvous.handle_shutdown(now),
        }
    }

    fn handle_store_unreached(&mut self, peer: &Peer, unreached: StoreUnreached) {
        let is_current =
            self.streams.is_open(peer) && unreached.round == self.rendezvous.newest_round();
        if let Some(node) = self.rendezvous.description(&peer.node).filter(|_| is_current) {
            let is_known = |node: &_| self.rendezvous.knows(node);
            self.node_reach.handle_store_unreached(node, unreached, is_known);
        }
    }

    /// Returns the state of the job.
    fn snapshot(&self, now: Instant) -> SharedSnapshot {
        let mut snapshot = self.rendezvous.shared_snapshot(now);
        let newest = self.rendezvous.newest_round();
        snapshot.job.unreached =
            self.node_reach.unreached(newest, |node| self.rendezvous.knows(node));
        self.listed.add_to(now, &mut snapshot.job);
        snapshot
    }

    /// Returns the counts of the job's nodes.
    fn counts(&self, now: Instant) -> JobCounts {
        let mut counts = self.rendezvous.counts(now);
        self.listed.add_to(now, &mut counts.job);
        counts
    }

    fn register(
        &mut self,
        now: Instant,
        mut registration: Registration,
        from: Option<PeerAddress>,
        answers: mpsc::Sender<FromCoordinator>,
    ) {
        add_source(&mut registration.node.addresses, from);
        let is_own = |ip| ThisHost.owns(ip);
        registration.node.observed =
            from.map(|from| observed(from, &registration.node.address, is_own));
        let is_new = registration.known_round.group_rank.is_none();
        self.streams.open(registration.peer(), OpenStream { answers, from, is_new });
        self.rendezvous.handle_registration(now, registration);
    }

    fn handle_death_notice(
        &mut self,
        now: Instant,
        DeathNotice { node, round, proof }: &DeathNotice,
    ) {
        if self.streams.proofs.are_of(self.rendezvous.job_uid(), node, *proof) {
            self.rendezvous.handle_death_notice(now, node, *round);
        } else {
            debug!(%node, "death notice ignored: it lacks the proof of its node id");
        }
    }

    fn step_down(&mut self, now: Instant, to: &Endpoint) {
        if self.leadership.successors().is_some() {
            // With etcd, the record decides which process leads.
            return;
        }
        if let Some(term) = self.rendezvous.handle_rival(now) {
            let elsewhere = CoordinatorAddress { term, endpoint: to.to_string() };
            self.registered.send_replace(elsewhere.clone());
            self.streams.send_elsewhere(&elsewhere);
            self.rival = Some(elsewhere);
        }
    }
}

/// Refuses a registration without the proof of its node id. The stream ends with this answer.
fn refuse(registration: &Registration, answers: &mpsc::Sender<FromCoordinator>) {
    warn!(
        node = %registration.node.node_id,
        "registration refused: it lacks the proof of its node id"
    );
    let _ = answers.try_send(FromCoordinator::OtherAgent);
}

#[cfg(test)]
pub(crate) mod tests;
