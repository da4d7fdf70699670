//! The coordinator of a voter's process: runs it while this process leads, and publishes the leader to the
//! agent's port otherwise.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{Round, Term, VoterAddress},
    member_reports::MemberReports,
    settings::Settings,
    tenure::{Elected, Tenure},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tracing::{debug, info};

use super::{
    driver::{self, Coordination, ElectedByVoters, End, Input, Inputs, Records, Right},
    listed_voters::ListedVoters,
    persistence::Persistence,
    proofs::Proofs,
    role::{ElectedCoordinator, OwnVoter},
    state_file::Obituary,
};
use crate::{
    coordinator::limits,
    net::port::Attended,
    sys::clock,
    voter::{Answered, Command, Commands, Leader, StateNeed, Stored, Tenancy},
};

/// The coordinator of a voter's process, and its interfaces.
pub(crate) struct VoterCoordinator {
    /// The settings of every coordinator that runs in this process.
    pub settings: Settings,
    /// The endpoint at which others reach this process.
    pub endpoint: VoterAddress,
    /// The voter of this process; `None` if the leader is chosen through an external store.
    pub voter: Option<OwnVoter>,
    /// The queue of the voter's commands.
    pub commands: Commands,
    /// The leader, as the voter knows it.
    pub leader: watch::Receiver<Leader>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// The voter's copy of the memory.
    pub stored: watch::Receiver<Stored>,
    /// The registered nodes, published to the port.
    pub attended: watch::Sender<Attended>,
    /// The elected coordinator, published to the port.
    pub elected: watch::Sender<ElectedCoordinator>,
    /// The coordinator with which the agent of this process is registered, published to the port.
    pub registered: watch::Sender<NotHere>,
    /// Obituaries that keepers have sent.
    pub obituaries: mpsc::Receiver<Obituary>,
    /// The destinations of what every coordinator of this process records.
    pub records: Records,
}

/// The obituaries of the last minute, which the next leader needs.
#[derive(Debug, Default)]
struct RecentObituaries(VecDeque<(Instant, Obituary)>);

impl VoterCoordinator {
    /// Coordinates whenever this process leads, until its voter or the job has ended.
    pub(crate) async fn run(mut self) {
        let mut recent = RecentObituaries::default();
        loop {
            let leader = self.leader.borrow_and_update().clone();
            let is_over = match leader {
                Leader::Here(tenancy) => self.coordinate(tenancy, &mut recent).await,
                Leader::At(endpoint, term) => {
                    let there = ElectedCoordinator::There(NotHere { term, endpoint });
                    self.elected.send_replace(there);
                    self.wait(&mut recent).await
                }
                Leader::Unknown => {
                    self.elected.send_replace(ElectedCoordinator::Unknown);
                    self.wait(&mut recent).await
                }
            };
            if is_over {
                return;
            }
        }
    }

    /// Handles obituaries until the leader changes; returns true if the voter has ended.
    async fn wait(&mut self, recent: &mut RecentObituaries) -> bool {
        loop {
            tokio::select! {
                changed = self.leader.changed() => return changed.is_err(),
                Some(obituary) = self.obituaries.recv() => {
                    if self.is_proven(&obituary) {
                        self.report(&obituary).await;
                        recent.add(clock::now(), obituary);
                    }
                }
            }
        }
    }

    /// Coordinates until the end of a leadership; returns true if the job or the voter has ended.
    async fn coordinate(&mut self, tenancy: Tenancy, recent: &mut RecentObituaries) -> bool {
        let term = tenancy.leadership.term;
        let (inputs, queue) = mpsc::channel(limits::COORDINATOR_QUEUE);
        recent.pass_on(clock::now(), &inputs);
        let coordination = self.coordination(&tenancy);
        self.elected.send_replace(ElectedCoordinator::Here(inputs.clone()));
        let coordinator = driver::drive(coordination, queue);
        tokio::pin!(coordinator);
        let end = loop {
            tokio::select! {
                // The end of the leadership first: no result of this coordinator may be used after it.
                biased;
                changed = self.leader.changed() => {
                    if changed.is_err() {
                        self.elected.send_replace(ElectedCoordinator::Unknown);
                        return true;
                    }
                    if !self.leads_in(term) {
                        // All streams end with the coordinator.
                        return false;
                    }
                }
                end = &mut coordinator => break end,
                Some(obituary) = self.obituaries.recv() => {
                    if self.is_proven(&obituary) {
                        // This task also runs the coordinator, which would never make room if it waited here;
                        // a lost obituary is replaced by the end of the lease.
                        let _ = inputs.try_send(Input::Obituary(obituary.clone()));
                        recent.add(clock::now(), obituary);
                    }
                }
            }
        };
        self.elected.send_replace(ElectedCoordinator::Unknown);
        match end {
            End::JobOver => {
                debug!("the job has ended; ending the leadership");
                // The voter may have ended.
                let _ = self.commands.send(Command::JobOver(term)).await;
                leave(&self.commands, false).await;
                return true;
            }
            // Its last messages are sent.
            End::HandedOver => {
                leave(&self.commands, false).await;
            }
            End::GivenWay(to) => {
                let to = VoterAddress::new(to.to_string());
                // The voter may have ended.
                let _ = self.commands.send(Command::GiveWay(to)).await;
            }
            End::Forgotten => drop(self.commands.send(Command::Forget).await),
            // Another process may lead; the voter may have ended.
            End::Ended => drop(self.commands.send(Command::Resign(term)).await),
        }
        while self.leads_in(term) {
            if self.wait(recent).await {
                return true;
            }
        }
        false
    }

    fn coordination(&self, tenancy: &Tenancy) -> Coordination {
        let leadership = &tenancy.leadership;
        let tenure = Tenure::Elected(Elected {
            term: leadership.term,
            until: leadership.until,
            workers_until: leadership.workers_until,
            former: leadership.former.clone(),
        });
        info!(
            endpoint = %self.endpoint, term = %leadership.term, run_id = %self.settings.run_id,
            "elected; coordinating the job"
        );
        if leadership.memory.as_ref().is_some_and(|memory| memory.round > Round(0)) {
            self.records.measures.takeovers.add(1);
        }
        let listed = ListedVoters {
            stored: self.stored.clone(),
            own: self.endpoint.clone(),
            since: clock::now(),
            answered: self.answered.clone(),
        };
        let voters = self.voter.as_ref().map(|voter| {
            Box::new(ElectedByVoters {
                stored: self.stored.clone(),
                others: voter.others.clone(),
                superseded: voter.superseded.clone(),
                members: MemberReports::default(),
                commands: self.commands.clone(),
                registered: self.registered.clone(),
            })
        });
        let settings = Settings {
            voters: leadership.voters.iter().map(|seat| seat.address.clone()).collect(),
            ..self.settings.clone()
        };
        Coordination::new(
            settings,
            leadership.memory.clone(),
            tenure,
            Persistence::voters(self.commands.clone(), leadership.term),
            self.attended.clone(),
            Right::Elected { until: tenancy.until.clone(), listed, voters },
            self.records.clone(),
        )
    }

    fn leads_in(&self, term: Term) -> bool {
        match &*self.leader.borrow() {
            Leader::Here(tenancy) => tenancy.leadership.term == term,
            Leader::At(..) | Leader::Unknown => false,
        }
    }

    /// Returns true if an obituary has the proof of its node id, by the key in this voter's copy.
    fn is_proven(&self, obituary: &Obituary) -> bool {
        let stored = self.stored.borrow();
        let Some(memory) = &stored.replica.memory else { return false };
        let proofs = Proofs::new(memory.proof_key.clone());
        proofs.are_of(&memory.job_uid, &obituary.node, obituary.proof)
    }

    /// Reports the end of an agent to the election: the lease of that process has ended.
    async fn report(&self, obituary: &Obituary) {
        // The voter may have ended.
        let _ = self.commands.send(Command::Obituary(obituary.node.clone())).await;
    }
}

impl RecentObituaries {
    fn add(&mut self, now: Instant, obituary: Obituary) {
        self.forget_old(now);
        if self.0.len() >= limits::MAX_OBITUARIES {
            self.0.pop_front();
        }
        self.0.push_back((now, obituary));
    }

    /// Passes the obituaries on to a coordinator that has just started.
    fn pass_on(&mut self, now: Instant, inputs: &Inputs) {
        self.forget_old(now);
        for (_, obituary) in &self.0 {
            // The queue has room for all of them.
            let _ = inputs.try_send(Input::Obituary(obituary.clone()));
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) > limits::OBITUARY_AGE;
        while self.0.front().is_some_and(|(at, _)| is_old(*at)) {
            self.0.pop_front();
        }
    }
}

/// Resigns if this process leads, and never becomes a candidate again; waits until the release of the leases
/// has been sent to the other voters, and if `is_replaced` until a member has replaced this voter, for a limited time.
/// Returns the need for the state of this voter.
pub(crate) async fn leave(commands: &Commands, is_replaced: bool) -> StateNeed {
    let (left, has_left) = oneshot::channel();
    let leaving = async {
        if commands.send(Command::Leave { is_replaced, left }).await.is_ok() {
            // The voter may end at this moment.
            return has_left.await.unwrap_or(StateNeed::Needed);
        }
        StateNeed::Needed
    };
    timeout(LEAVE_PATIENCE, leaving).await.unwrap_or(StateNeed::Needed)
}

/// The maximum wait for the voter's thread, which sends its last messages within a shorter limit of its own.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
