//! The voter of a process, driven as its thread drives it.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Instant,
};

use ragent_rendezvous::{
    election::{
        self, Effect, Election, Leadership,
        message::{Place, Replica, Request, Version, VoterMessage},
    },
    ids::{NodeId, Peer, Round, Term},
    message::Attend,
    settings::Memory,
};

use super::{Bug, Event, Input, Part, World, coordinator::Coordination};

/// The voter, the coordinator and the port of a process.
#[derive(Debug)]
pub(super) struct Voter {
    pub(super) election: Election,
    /// The leader, as the voter reports it.
    pub(super) leader: Leader,
    /// The end of each leadership of this process, as the voter reports it.
    pub(super) until: BTreeMap<Term, Instant>,
    /// Changes of the memory that are being copied, in their order.
    copying: Vec<(Version, u64)>,
    pub(super) coordination: Coordination,
    /// The coordinator, as the port knows it.
    pub(super) elected: Elected,
    /// Registrations that wait for a leader.
    pub(super) held: Vec<(Peer, Box<Attend>, Term)>,
    /// The obituaries of the last minute.
    pub(super) recent: VecDeque<(Instant, NodeId, Round)>,
    pub(super) changes: u64,
}

/// The leader, as a voter reports it to its process.
#[derive(Clone, Debug)]
pub(super) enum Leader {
    Unknown,
    Other(Place, Term),
    Here(Box<Leadership>),
}

/// The coordinator, as a port knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Elected {
    Unknown,
    Here(Term),
    There(Place, Term),
}

/// A command of a coordinator to its voter.
#[derive(Debug)]
pub(super) enum Command {
    Remember(Box<Memory>, u64),
    Highest(Term),
    Resign(Term),
    Obituary(NodeId),
    Leave,
}

impl World {
    /// Creates the voter of a process that starts.
    pub(super) fn new_voter(&mut self, host: usize, id: &NodeId, local: Instant) -> Voter {
        let settings = election::Settings {
            place: Place(host),
            turn: host,
            voters: self.voters,
            process: id.clone(),
            timers: self.timers,
            seed: self.random.between(0, u64::MAX - 1),
        };
        let empty = Replica { version: Version::default(), memory: None };
        let (replica, highest) = self.hosts[host].file.clone().unwrap_or((empty, Term(0)));
        Voter {
            election: Election::new(local, settings, replica, highest),
            leader: Leader::Unknown,
            until: BTreeMap::new(),
            copying: Vec::new(),
            coordination: Coordination::Idle,
            elected: Elected::Unknown,
            held: Vec::new(),
            recent: VecDeque::new(),
            changes: 0,
        }
    }

    pub(super) fn voter(&mut self, id: &NodeId) -> Option<&mut Voter> {
        self.processes.get_mut(id)?.voter.as_mut()
    }

    /// Connects the voter of a host that has started, and the other voters with it.
    pub(super) fn connect_voters(&mut self, host: usize) {
        for other in (0..self.voters).filter(|other| *other != host) {
            for (from, to) in [(other, host), (host, other)] {
                let Some(id) = self.hosts[from].process.clone() else { continue };
                if let Some(delay) = self.transit(from, to) {
                    self.wake(&id, delay, Input::Connected(Place(to)));
                }
            }
        }
    }

    /// Calls the voter of a process with the time on its clock, and carries out the effects.
    pub(super) fn with_election<T>(
        &mut self,
        id: &NodeId,
        call: impl FnOnce(&mut Election, Instant) -> T,
    ) -> Option<T> {
        let local = self.local(id)?;
        let result = call(&mut self.voter(id)?.election, local);
        self.settle_voter(id);
        Some(result)
    }

    pub(super) fn arrive_request(&mut self, id: &NodeId, message: VoterMessage<Request>) {
        let (place, asked_by) = (message.place.0, message.process.clone());
        let answer = self.with_election(id, |election, now| election.handle_request(now, message));
        let Some(mut answer) = answer.flatten() else { return };
        if self.bug == Bug::IgnoredReplica {
            answer.body.replica = None;
        }
        let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
        if let Some(delay) = self.transit(host, place) {
            self.wake(&asked_by, delay, Input::Answer(Box::new(answer)));
        }
    }

    pub(super) fn handle_command(&mut self, id: &NodeId, command: Command) {
        match command {
            Command::Remember(memory, number) => {
                let remember =
                    |election: &mut Election, now| election.handle_remember(now, *memory);
                let Some(local) = self.local(id) else { return };
                let Some(voter) = self.voter(id) else { return };
                match remember(&mut voter.election, local) {
                    Some(version) => voter.copying.push((version, number)),
                    // This process no longer leads.
                    None => self.pass(id, Input::Stored(number, false)),
                }
                self.settle_voter(id);
            }
            Command::Highest(term) => {
                self.with_election(id, |election, now| election.handle_highest(now, term));
            }
            Command::Resign(term) => {
                self.with_election(id, |election, now| election.handle_resigned(now, term));
            }
            Command::Obituary(node) => {
                self.with_election(id, |election, now| election.handle_obituary(now, &node));
            }
            Command::Leave => {
                self.with_election(id, |election, now| election.handle_leaving(now));
            }
        }
    }

    /// Carries out the effects of a voter, and sets its timer.
    pub(super) fn settle_voter(&mut self, id: &NodeId) {
        while let Some(effect) = self.voter(id).and_then(|voter| voter.election.poll_effect()) {
            if self.dies_now(id) {
                return;
            }
            self.carry_out_of_voter(id, effect);
        }
        let Some(voter) = self.voter(id) else { return };
        let election = &voter.election;
        let file = (election.replica().clone(), election.highest());
        let deadline = election.poll_timeout();
        if let Some(process) = self.processes.get(id) {
            self.hosts[process.host].file = Some(file);
        }
        self.set_timer(id, Part::Voter, deadline);
    }

    fn carry_out_of_voter(&mut self, id: &NodeId, effect: Effect) {
        let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
        match effect {
            Effect::Send { to, message } => {
                if let Some(delay) = self.transit(host, to.0) {
                    let message = Box::new(message);
                    self.schedule(delay, Event::Request { to: to.0, message });
                }
            }
            Effect::Lead(leadership) => {
                self.note_winner(id, &leadership);
                let Some(voter) = self.voter(id) else { return };
                voter.until.insert(leadership.term, leadership.until);
                voter.leader = Leader::Here(leadership);
                self.pass(id, Input::Leader);
            }
            Effect::Extend(until) => {
                let Some(voter) = self.voter(id) else { return };
                if let Leader::Here(leadership) = &voter.leader {
                    voter.until.insert(leadership.term, until);
                }
            }
            Effect::Copied(version) => {
                let Some(voter) = self.voter(id) else { return };
                let (done, rest) =
                    mem::take(&mut voter.copying).into_iter().partition(|(at, _)| *at <= version);
                voter.copying = rest;
                let done: Vec<(Version, u64)> = done;
                for (_, number) in done {
                    self.pass(id, Input::Stored(number, true));
                }
            }
            Effect::Follow { leader } => {
                let Some(voter) = self.voter(id) else { return };
                let lost = mem::take(&mut voter.copying);
                let term = voter.election.lease_term().unwrap_or_default();
                voter.leader = match leader {
                    Some(place) => Leader::Other(place, term),
                    None => Leader::Unknown,
                };
                for (_, number) in lost {
                    self.pass(id, Input::Stored(number, false));
                }
                self.pass(id, Input::Leader);
            }
            Effect::Duplicate { place } => {
                self.record.breaks(|| format!("rule c: a process answers at {place:?} as well"));
            }
        }
    }
}
