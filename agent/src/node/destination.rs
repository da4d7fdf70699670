//! The endpoints that an agent dials: that of the only coordinator, or those of the voters.

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use ragent_core::targets::Targets;
use ragent_proto::convert::NotHere;
use ragent_rendezvous::ids::{AttendNumber, Term};
use tokio::sync::watch;

use crate::{
    spec::{Endpoint, EtcdSpec, VoterList},
    voter::Leader,
};

/// The endpoints that an agent dials.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The endpoints, by the names that all nodes use; one, or those of the voters by place.
    names: Vec<Endpoint>,
    /// The same endpoints in the form in which this agent dials them: its own port is at another address.
    dialed: Vec<Endpoint>,
    /// The choice among voters, or between this agent's own port and the leader; `None` if there is one endpoint.
    targets: Option<Targets>,
    /// The record in etcd, if the leader is found there.
    record: Option<RecordInEtcd>,
    /// The endpoints as text, for messages.
    text: String,
    /// The last known address of each endpoint.
    known: Vec<Option<SocketAddr>>,
    /// The name of the endpoint of each attempt that was not welcomed yet.
    attempts: BTreeMap<AttendNumber, Endpoint>,
}

/// The record in etcd, as far as an agent needs it to find the leader.
#[derive(Clone, Debug)]
pub(crate) struct RecordInEtcd {
    /// The leader.
    pub leader: watch::Receiver<Leader>,
    /// The endpoints of the agents that succeed it.
    pub successors: watch::Receiver<Vec<Endpoint>>,
}

/// The consequence of a redirect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Redirect {
    /// The only endpoint is to be replaced by this one, if the agent follows.
    Elsewhere(Endpoint),
    /// The voter does not lead; true if it names a leader that was not known.
    NotLeading(bool),
    /// The redirect names the endpoint that was dialed, or none.
    Ignored,
}

impl Destination {
    /// Returns the destination of an agent with one endpoint, which it dials at `dialed`.
    pub fn endpoint(name: Endpoint, dialed: Endpoint) -> Self {
        let text = name.to_string();
        Self {
            names: vec![name],
            dialed: vec![dialed],
            targets: None,
            record: None,
            text,
            known: vec![None],
            attempts: BTreeMap::new(),
        }
    }

    /// Returns the destination of an agent with `voters`, which are listed by place and shown as `text`. The
    /// voter at `first` is dialed first. `own` is the agent's own voter, and the endpoint at which it is dialed.
    pub fn voters(
        voters: Vec<Endpoint>,
        text: String,
        own: Option<(usize, Endpoint)>,
        first: usize,
    ) -> Self {
        let mut dialed = voters.clone();
        if let Some((place, address)) = own
            && let Some(endpoint) = dialed.get_mut(place)
        {
            *endpoint = address;
        }
        Self {
            targets: Some(Targets::new(voters.len(), first)),
            record: None,
            known: vec![None; voters.len()],
            names: voters,
            dialed,
            text,
            attempts: BTreeMap::new(),
        }
    }

    /// Returns the destination of an agent that finds the leader through etcd: its own port, which others reach at `name`
    /// and it at `dialed`, and the leader's once that names it.
    pub(crate) fn etcd(
        etcd: &EtcdSpec,
        name: Endpoint,
        dialed: Endpoint,
        record: RecordInEtcd,
    ) -> Self {
        Self {
            names: vec![name.clone(), name],
            dialed: vec![dialed.clone(), dialed],
            targets: Some(Targets::new(2, OWN)),
            record: Some(record),
            text: format!("etcd ({etcd})"),
            known: vec![None, None],
            attempts: BTreeMap::new(),
        }
    }

    /// Returns the endpoint for a new attempt, and its last known address.
    pub(super) fn dial(
        &mut self,
        attend: AttendNumber,
        is_attended: bool,
    ) -> (Endpoint, Option<SocketAddr>) {
        let at = self.targets.as_mut().map_or(0, |targets| targets.next(is_attended));
        self.attempts.insert(attend, self.names.get(at).cloned().unwrap_or_default());
        let endpoint = self.dialed.get(at).cloned().unwrap_or_default();
        (endpoint, self.known.get(at).copied().flatten())
    }

    /// Replaces the endpoints by the list of voters that a welcome contains; keeps the addresses of endpoints that
    /// are in both lists. `seed` selects the voter that is dialed first when the leader is lost, unless this agent is
    /// itself a voter. Returns true if the list has changed.
    pub(super) fn handle_voter_list(&mut self, list: &VoterList, seed: u64) -> bool {
        let names = list.sorted();
        if self.targets.is_some() && self.names == names {
            return false;
        }
        let known = |name: &Endpoint| {
            let at = self.position(name)?;
            Some((self.dialed.get(at)?.clone(), self.known.get(at).copied().flatten()))
        };
        let (dialed, known): (Vec<_>, Vec<_>) =
            names.iter().map(|name| known(name).unwrap_or_else(|| (name.clone(), None))).unzip();
        let own = names.iter().zip(&dialed).position(|(name, dialed)| name != dialed);
        let [any, ..] = seed.to_le_bytes();
        let first = own.unwrap_or_else(|| usize::from(any) % names.len().max(1));
        self.targets = Some(Targets::new(names.len(), first));
        (self.names, self.dialed, self.known) = (names, dialed, known);
        self.text = list.to_string();
        true
    }

    /// Notes a welcome on a stream, and the remote address of that stream. Returns the name of the endpoint, which
    /// the list of voters may spell in another way.
    pub(super) fn handle_welcome(
        &mut self,
        attend: AttendNumber,
        term: Term,
        remote: Option<SocketAddr>,
    ) -> Option<Endpoint> {
        let name = self.attempts.remove(&attend)?;
        if let Some(at) = self.position(&name) {
            if let Some(targets) = &mut self.targets {
                targets.handle_welcome(at, term);
            }
            if let Some(known) = self.known.get_mut(at) {
                *known = remote;
            }
        }
        Some(name)
    }

    /// Notes that a stream, or the attempt to open it, has ended. The end of a stream proves nothing about the
    /// leader, which is dialed again.
    pub(super) fn handle_ended(&mut self, attend: AttendNumber) {
        if let Some(name) = self.attempts.remove(&attend)
            && let Some(at) = self.position(&name)
            && let Some(targets) = &mut self.targets
        {
            targets.handle_failed(at);
        }
    }

    /// Notes a redirect, and returns its consequence.
    pub(super) fn handle_redirect(&mut self, not_here: &NotHere) -> Redirect {
        let named = not_here.endpoint.parse::<Endpoint>().ok();
        match &mut self.targets {
            Some(_) if self.record.is_some() => Redirect::NotLeading(
                named.is_some_and(|leader| self.handle_leader(leader, not_here.term)),
            ),
            Some(targets) => {
                let position = |named: &Endpoint| self.names.iter().position(|name| name == named);
                let place = named.as_ref().and_then(position);
                Redirect::NotLeading(
                    place.is_some_and(|place| targets.handle_redirect(place, not_here.term)),
                )
            }
            None => match named.filter(|named| !self.dialed.contains(named)) {
                Some(endpoint) => Redirect::Elsewhere(endpoint),
                None => Redirect::Ignored,
            },
        }
    }

    fn position(&self, name: &Endpoint) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// Replaces the only endpoint.
    pub(super) fn replace(&mut self, endpoint: Endpoint) {
        *self = Self::endpoint(endpoint.clone(), endpoint);
    }

    /// Notes a leader that is found through etcd; returns true if it is new.
    fn handle_leader(&mut self, leader: Endpoint, term: Term) -> bool {
        let Some(targets) = &mut self.targets else { return false };
        let place = if self.names.first() == Some(&leader) { OWN } else { LEADER };
        let is_new = targets.handle_redirect(place, term);
        if is_new && place == LEADER {
            self.names[LEADER] = leader.clone();
            self.dialed[LEADER] = leader;
            self.known[LEADER] = None;
        }
        is_new
    }

    /// Waits until the record in etcd has changed; never returns if the leader is not found there.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn record_changed(&mut self) {
        if let Some(RecordInEtcd { leader, successors }) = &mut self.record {
            tokio::select! {
                Ok(()) = leader.changed() => return,
                Ok(()) = successors.changed() => return,
                // The thread that watches the record has ended.
                else => {}
            }
        }
        std::future::pending().await
    }

    /// Applies the record in etcd; returns true if it has a new leader.
    pub(super) fn handle_record(&mut self) -> bool {
        let leader = self.record.as_ref().map(|record| record.leader.borrow().clone());
        match leader {
            Some(Leader::At(endpoint, term)) => {
                endpoint.parse().is_ok_and(|endpoint| self.handle_leader(endpoint, term))
            }
            Some(Leader::Here(tenancy)) => {
                let own = self.names.first().cloned().unwrap_or_default();
                self.handle_leader(own, tenancy.leadership.term)
            }
            Some(Leader::Unknown | Leader::Other(..)) | None => false,
        }
    }

    /// Returns true if the coordinator is elected, or chosen through etcd.
    pub(super) fn is_elected(&self) -> bool {
        self.targets.is_some()
    }

    /// Returns true if the coordinator is chosen through etcd.
    pub(super) fn uses_etcd(&self) -> bool {
        self.record.is_some()
    }

    /// Returns the endpoints that receive the obituary of this node in addition to the coordinator: those of the voters,
    /// as this agent dials them, or of the agents that succeed the leader. Empty if there is one endpoint.
    pub(super) fn obituary_recipients(&self) -> Vec<Endpoint> {
        match (&self.record, &self.targets) {
            (Some(record), _) => record.successors.borrow().clone(),
            (None, Some(_)) => self.dialed.clone(),
            (None, None) => Vec::new(),
        }
    }
}

/// The position of this agent's own port, if the leader is found through etcd.
const OWN: usize = 0;
/// The position of the leader.
const LEADER: usize = 1;

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AttendNumber = AttendNumber(1);
    const TWO: AttendNumber = AttendNumber(2);

    fn at(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn not_here(term: u64, endpoint: &str) -> NotHere {
        NotHere { term: Term(term), endpoint: endpoint.to_owned() }
    }

    /// An agent with one endpoint follows a redirect to another one.
    #[test]
    fn one_endpoint_is_replaced() {
        let mut destination = Destination::endpoint(at("a:1"), at("127.0.0.1:1"));
        assert_eq!(destination.dial(ONE, false), (at("127.0.0.1:1"), None));
        assert_eq!(destination.handle_redirect(&not_here(1, "127.0.0.1:1")), Redirect::Ignored);
        assert_eq!(destination.handle_redirect(&not_here(1, "")), Redirect::Ignored);
        let elsewhere = Redirect::Elsewhere(at("b:1"));
        assert_eq!(destination.handle_redirect(&not_here(1, "b:1")), elsewhere);
        destination.replace(at("b:1"));
        assert_eq!(destination.dial(TWO, false), (at("b:1"), None));
        assert_eq!(destination.to_string(), "b:1");
    }

    /// An agent with voters dials its own voter at its own address, and the leader by the name that others
    /// give it.
    #[test]
    fn voters_are_dialed() {
        let list = ["a:1", "b:1", "c:1"].map(at).to_vec();
        let own = Some((1, at("127.0.0.1:1")));
        let mut destination = Destination::voters(list, "a,b,c".to_owned(), own, 1);
        assert_eq!(destination.dial(ONE, false), (at("127.0.0.1:1"), None));
        let unknown = Redirect::NotLeading(false);
        assert_eq!(destination.handle_redirect(&not_here(0, "")), unknown);
        assert_eq!(destination.handle_redirect(&not_here(3, "d:1")), unknown);
        assert_eq!(destination.handle_redirect(&not_here(3, "c:1")), Redirect::NotLeading(true));
        assert_eq!(destination.dial(TWO, false), (at("c:1"), None));
        let remote = Some("10.0.0.3:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(TWO, Term(3), remote), Some(at("c:1")));
        assert_eq!(destination.dial(AttendNumber(3), true), (at("c:1"), remote));
        destination.handle_ended(TWO);
        assert_eq!(destination.dial(AttendNumber(4), false).0, at("c:1"), "the same leader");
        destination.handle_ended(AttendNumber(4));
        assert_eq!(destination.dial(AttendNumber(5), false).0, at("127.0.0.1:1"));
        assert_eq!(destination.dial(AttendNumber(6), false).0, at("c:1"), "in its turn");
        assert_eq!(destination.to_string(), "a,b,c");
    }

    /// An agent that finds the leader through etcd dials its own port until that names a leader. If the leader is lost,
    /// it dials both in turn. A leader of a lower term is ignored, and so is an answer without one.
    #[tokio::test]
    async fn leader_is_found_through_etcd() {
        let (sender, successors) = watch::channel(Vec::new());
        let (leads, leader) = watch::channel(Leader::Unknown);
        let record = RecordInEtcd { leader, successors };
        let members = vec![at("e:2379")];
        let etcd = EtcdSpec { members, prefix: "/p".to_owned(), tls: None, login: None };
        let mut destination = Destination::etcd(&etcd, at("a:1"), at("127.0.0.1:1"), record);
        assert_eq!(destination.dial(ONE, false).0, at("127.0.0.1:1"));
        let unknown = Redirect::NotLeading(false);
        assert_eq!(destination.handle_redirect(&not_here(0, "")), unknown);
        assert_eq!(destination.handle_redirect(&not_here(3, "b:1")), Redirect::NotLeading(true));
        assert_eq!(destination.dial(TWO, false).0, at("b:1"));
        let remote = Some("10.0.0.3:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(TWO, Term(3), remote), Some(at("b:1")));
        assert_eq!(destination.dial(AttendNumber(3), true), (at("b:1"), remote));
        destination.handle_ended(AttendNumber(3));
        let dialed: Vec<_> = (4..7).map(|n| destination.dial(AttendNumber(n), false).0).collect();
        assert_eq!(dialed, ["127.0.0.1:1", "b:1", "127.0.0.1:1"].map(at));
        assert_eq!(destination.handle_redirect(&not_here(2, "c:1")), unknown);
        assert_eq!(destination.dial(AttendNumber(7), false).0, at("b:1"));
        assert_eq!(destination.handle_redirect(&not_here(4, "c:1")), Redirect::NotLeading(true));
        assert_eq!(destination.dial(AttendNumber(8), false), (at("c:1"), None));
        assert_eq!(destination.handle_redirect(&not_here(5, "a:1")), Redirect::NotLeading(true));
        assert_eq!(
            destination.dial(AttendNumber(9), false).0,
            at("127.0.0.1:1"),
            "this agent leads"
        );
        assert!(destination.is_elected() && destination.uses_etcd());
        assert_eq!(destination.obituary_recipients(), []);
        sender.send_replace(vec![at("d:1")]);
        assert_eq!(destination.obituary_recipients(), [at("d:1")]);
        assert_eq!(destination.to_string(), "etcd (e:2379)");
        destination.record_changed().await;
        assert!(!destination.handle_record());
        leads.send_replace(Leader::At("d:1".to_owned(), Term(6)));
        destination.record_changed().await;
        assert!(destination.handle_record() && !destination.handle_record());
        assert_eq!(destination.dial(AttendNumber(10), false).0, at("d:1"));
    }

    /// An agent with one endpoint takes the list of voters from the welcome. It dials the leader at its known
    /// address, and the other voters if the leader is lost.
    #[test]
    fn list_is_taken_from_the_welcome() {
        let mut destination = Destination::endpoint(at("b:1"), at("b:1"));
        destination.dial(ONE, false);
        let list: VoterList = "a,b,c:1".parse().unwrap();
        assert!(destination.handle_voter_list(&list, 0));
        let remote = Some("10.0.0.2:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(ONE, Term(3), remote), Some(at("b:1")));
        assert_eq!(destination.to_string(), "a:1,b:1,c:1");
        assert_eq!(destination.obituary_recipients(), ["a:1", "b:1", "c:1"].map(at));
        assert_eq!(destination.dial(TWO, true), (at("b:1"), remote));
        destination.handle_ended(TWO);
        let dialed: Vec<_> = (3..6).map(|n| destination.dial(AttendNumber(n), false).0).collect();
        assert_eq!(dialed, ["a:1", "b:1", "c:1"].map(at));
        assert_eq!(destination.handle_redirect(&not_here(4, "c:1")), Redirect::NotLeading(true));
        assert!(!destination.handle_voter_list(&list, 1), "the same list");
        assert_eq!(destination.dial(AttendNumber(6), false).0, at("c:1"), "the leader is kept");
    }

    /// A list in another spelling replaces the given list. The agent dials its own voter at the same address as
    /// before, and a stream to an endpoint that the new list spells differently keeps its name.
    #[test]
    fn list_in_another_spelling_is_replaced() {
        let list = ["a:1", "b:1", "c:1"].map(at).to_vec();
        let own = Some((1, at("127.0.0.1:1")));
        let mut destination = Destination::voters(list, "a,b,c".to_owned(), own, 0);
        assert_eq!(destination.dial(ONE, false).0, at("a:1"));
        let other: VoterList = "a.org,b,c:1".parse().unwrap();
        assert!(destination.handle_voter_list(&other, 0));
        assert_eq!(destination.handle_welcome(ONE, Term(3), None), Some(at("a:1")));
        let dialed: Vec<_> = (2..5).map(|n| destination.dial(AttendNumber(n), false).0).collect();
        assert_eq!(dialed, ["127.0.0.1:1", "c:1", "a.org:1"].map(at));
        assert_eq!(destination.to_string(), "a.org:1,b:1,c:1");
    }
}
