//! What has happened in a world, as far as a rule asks for it.

use std::collections::{BTreeMap, BTreeSet};

use ragent_rendezvous::{
    ids::{NodeId, Round, RoundId},
    message::{Admission, Assignment, NodeDescription, Outcome},
    settings::Memory,
};

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Chronicle {
    /// Every round, with the members that were admitted to it and what they were told.
    pub rounds: BTreeMap<RoundId, Vec<Member>>,
    /// The newest round when the last one began.
    pub before_newest: RoundId,
    /// The newest round that any member was told.
    pub newest: RoundId,
    /// Members that were told two different things about one round.
    pub contradictions: Vec<String>,
    /// The round in which each node was last told to run, until it is told or does otherwise.
    pub running: BTreeMap<NodeId, RoundId>,
    /// Nodes that were told to wait while they were members.
    pub waiting_members: Vec<NodeId>,
    /// What the state file has held, newest last.
    pub memories: Vec<Memory>,
    /// Rounds in which a worker really failed.
    pub failed_rounds: BTreeSet<Round>,
    /// How the job ended, once any node was told.
    pub outcome: Option<Outcome>,
    /// Streams that agents have begun to open.
    pub dials: u64,
    /// Whether something has been noted since the rules were last looked at.
    pub has_news: bool,
}

/// A member of a round.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who it is.
    pub node: NodeId,
    /// Its workers.
    pub local_world_size: u32,
    /// The rank that it must have, where ranks are fixed.
    pub node_rank: Option<u32>,
    /// What it was told.
    pub admission: Admission,
}

impl Chronicle {
    /// Notes what a node is told.
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
        let members = self.rounds.entry(round).or_default();
        match members.iter().find(|member| member.node == *node) {
            // Repeated on a new stream; perhaps the node has stopped since.
            Some(member) if member.admission == *admission => {}
            Some(_) => {
                self.contradictions.push(format!("{node} was told two things about {round}"))
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

    /// Notes that a node no longer does what it was told.
    pub fn note_stopped(&mut self, node: &NodeId) {
        self.running.remove(node);
    }
}
