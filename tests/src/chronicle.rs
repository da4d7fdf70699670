//! Records the events in a world that the rules need.

use std::collections::{BTreeMap, BTreeSet};

use ragent_rendezvous::{
    ids::{NodeId, Round, RoundId},
    message::{Admission, Assignment, NodeDescription, Outcome},
    settings::JobState,
};

/// The events so far.
#[derive(Debug, Default)]
pub struct Chronicle {
    /// Every round, with its members and their admissions.
    pub rounds: BTreeMap<RoundId, Vec<Member>>,
    /// The newest round when the last one began.
    pub before_newest: RoundId,
    /// The newest round of any admission.
    pub newest: RoundId,
    /// The first round of each store. The key is `address:port`.
    stores: BTreeMap<String, RoundId>,
    /// Stores that serve two rounds: the store, its first round, and a later one.
    pub shared_stores: Vec<(String, RoundId, RoundId)>,
    /// Members that got two different admissions to one round.
    pub contradictions: Vec<String>,
    /// The round that each node runs. It runs from the admission until the node gets another assignment or stops.
    pub running: BTreeMap<NodeId, RoundId>,
    /// Nodes that were assigned to wait while they were members.
    pub waiting_members: Vec<NodeId>,
    /// The contents of the state file, newest last.
    pub job_states: Vec<JobState>,
    /// Rounds in which a worker has failed.
    pub failed_rounds: BTreeSet<Round>,
    /// The outcome of the job, once a node has received it.
    pub outcome: Option<Outcome>,
    /// True if an event was added since the rules were last checked.
    pub has_news: bool,
}

/// A member of a round.
#[derive(Clone, Debug)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The number of its workers.
    pub local_world_size: u32,
    /// The rank that it must have, if ranks are fixed.
    pub node_rank: Option<u32>,
    /// Its admission.
    pub admission: Admission,
}

impl Chronicle {
    /// Adds an assignment to a node.
    pub fn note(&mut self, description: &NodeDescription, assignment: &Assignment) {
        self.has_news = true;
        let node = &description.node_id;
        match assignment {
            Assignment::Admit(admission) => self.note_admission(description, admission),
            Assignment::Wait { .. } => {
                if self.running.contains_key(node) {
                    self.waiting_members.push(node.clone());
                }
            }
            Assignment::Restart { .. } | Assignment::Evict { .. } | Assignment::Dismiss => {
                self.running.remove(node);
            }
            Assignment::Close(outcome) => {
                self.running.remove(node);
                self.outcome.get_or_insert_with(|| outcome.clone());
            }
        }
    }

    fn note_admission(&mut self, description: &NodeDescription, admission: &Admission) {
        let node = &description.node_id;
        let round = admission.round;
        if !self.rounds.contains_key(&round) {
            self.before_newest = self.newest;
            self.newest = round;
        }
        let store = format!("{}:{}", admission.master_address, admission.master_port);
        let first = *self.stores.entry(store.clone()).or_insert(round);
        if first != round {
            self.shared_stores.push((store, first, round));
        }
        let members = self.rounds.entry(round).or_default();
        match members.iter().find(|member| member.node == *node) {
            // The admission was repeated on a new stream. The node may have stopped since.
            Some(member) if member.admission == *admission => {}
            Some(_) => {
                self.contradictions.push(format!("{node} received two admissions to {round}"))
            }
            None => {
                self.running.insert(node.clone(), round);
                let (node, admission) = (node.clone(), admission.clone());
                let local_world_size = description.local_world_size.get();
                let node_rank = description.node_rank;
                members.push(Member { node, local_world_size, node_rank, admission });
            }
        }
    }

    /// Notes that a node no longer runs its round.
    pub fn note_stopped(&mut self, node: &NodeId) {
        self.running.remove(node);
    }
}
