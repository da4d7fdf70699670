//! Knows the endpoints that an agent dials: the only endpoint, or the voters, or its own port and the leader in etcd.

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use ragent_base::net::Endpoint;
use ragent_core::targets::Targets;
use ragent_leadership::Leader;
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{StreamNumber, Term, VoterAddress},
    limits::VOTERS_MAX,
};
use tokio::sync::watch;

/// The endpoints that an agent dials.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The only endpoint, or this agent's own port. First the name that all nodes use, then the form in which this agent dials it.
    own: (Endpoint, Endpoint),
    /// True if `own` is this agent's own port.
    is_own: bool,
    /// The choice between several endpoints, under the names that all nodes use: voters, or with etcd this agent's own port and the leader.
    /// `None` if there is one endpoint.
    targets: Option<Targets<Endpoint>>,
    /// The leader, as this agent's own voter or the record in etcd names it.
    leader: Option<watch::Receiver<Leader>>,
    /// The endpoints of the leader's successors in etcd; `None` without etcd.
    successors: Option<watch::Receiver<Vec<Endpoint>>>,
    /// The endpoints as text, for messages.
    text: String,
    /// The last known addresses of endpoints, by name.
    known: Vec<(Endpoint, SocketAddr)>,
    /// The name of the endpoint of each attempt without a welcome.
    attempts: BTreeMap<StreamNumber, Endpoint>,
}

/// The consequence of a redirect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Redirect {
    /// This endpoint should replace the only endpoint, if the agent follows.
    Elsewhere(Endpoint),
    /// The voter does not lead. True if it names a leader that was not known.
    NotLeading(bool),
    /// The leader has stepped down for the one at this endpoint, which is dialed next.
    SteppedDown(Endpoint),
    /// The redirect names the endpoint that was dialed, or no endpoint.
    Ignored,
}

impl Destination {
    /// Returns the destination of an agent with one endpoint, which it dials at `dialed`.
    pub fn endpoint(name: Endpoint, dialed: Endpoint) -> Self {
        Self {
            text: name.to_string(),
            own: (name, dialed),
            is_own: false,
            targets: None,
            leader: None,
            successors: None,
            known: Vec::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Returns the destination of an agent with voters.
    ///
    /// - `listed` are the endpoints of the user, which are shown as `text`. `known` are those in the agent's state file.
    /// - `own` is the endpoint of the agent's own voter, and the form in which the agent dials it.
    ///
    /// The agent dials its own voter first if that is in one of the lists. Otherwise `seed` selects the first one.
    pub fn voters(
        mut listed: Vec<Endpoint>,
        known: Vec<Endpoint>,
        text: String,
        own: (Endpoint, Endpoint),
        seed: u64,
    ) -> Self {
        rotate(&mut listed, seed);
        let is_first = listed.contains(&own.0) || known.contains(&own.0);
        let first = is_first.then(|| own.0.clone());
        let mut targets = Targets::new(listed, first.clone());
        if !known.is_empty() {
            targets.handle_voters(known, first);
        }
        Self {
            targets: Some(targets),
            own,
            is_own: true,
            leader: None,
            successors: None,
            text,
            known: Vec::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Adds the leader, as this agent's own voter knows it.
    pub(crate) fn with_leader(mut self, leader: watch::Receiver<Leader>) -> Self {
        self.leader = Some(leader);
        self
    }

    #[cfg(feature = "etcd")]
    /// Returns the destination of an agent with etcd: its own port, which others reach at `name` and it at `dialed`. Once etcd names a
    /// leader, the leader's port is added.
    pub(crate) fn etcd(
        etcd: &ragent_options::spec::EtcdSpec,
        name: Endpoint,
        dialed: Endpoint,
        leadership: &ragent_leadership::Leadership,
    ) -> Self {
        Self {
            targets: Some(Targets::new(vec![name.clone()], Some(name.clone()))),
            own: (name, dialed),
            is_own: true,
            leader: Some(leadership.leader.clone()),
            successors: leadership.successors(),
            text: format!("etcd ({etcd})"),
            known: Vec::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Returns the endpoint for a new attempt, and its last known address.
    pub(super) fn dial(
        &mut self,
        stream: StreamNumber,
        is_registered: bool,
    ) -> (Endpoint, Option<SocketAddr>) {
        let target = self.targets.as_mut().and_then(|targets| targets.next(is_registered));
        let name = target.unwrap_or_else(|| self.own.0.clone());
        let known = self.known.iter().find(|(known, _)| *known == name).map(|(_, at)| *at);
        let endpoint = self.dialed(&name);
        self.attempts.insert(stream, name);
        (endpoint, known)
    }

    /// Returns the endpoint that this agent dials for a name.
    fn dialed(&self, name: &Endpoint) -> Endpoint {
        let (own, dialed) = &self.own;
        if name == own { dialed.clone() } else { name.clone() }
    }

    /// Replaces the voters by the coordinator's list. When the leader is lost, this agent's own voter is dialed first, or else `seed`
    /// selects another. Returns true if the voters have changed.
    pub(super) fn handle_voter_list(&mut self, mut voters: Vec<Endpoint>, seed: u64) -> bool {
        let text: Vec<String> = voters.iter().map(ToString::to_string).collect();
        let text = text.join(",");
        if self.targets.is_some() && self.text == text {
            return false;
        }
        self.text = text;
        rotate(&mut voters, seed);
        let own = &self.own.0;
        let first = (self.is_own && voters.contains(own)).then(|| own.clone());
        let targets =
            self.targets.get_or_insert_with(|| Targets::new(vec![own.clone()], first.clone()));
        targets.handle_voters(voters, first);
        let kept = targets.all();
        self.known.retain(|(name, _)| kept.contains(name));
        true
    }

    /// Returns the known voters.
    pub(super) fn voter_list(&self) -> Vec<VoterAddress> {
        let all = self.targets.as_ref().filter(|_| !self.uses_etcd()).map(Targets::all);
        let addresses = all.into_iter().flatten().map(|name| VoterAddress::new(name.to_string()));
        addresses.take(2 * VOTERS_MAX).collect()
    }

    /// Notes a welcome on a stream, and the remote address of the stream. Returns the name of the endpoint, which the list of voters may
    /// spell differently.
    pub(super) fn handle_welcome(
        &mut self,
        stream: StreamNumber,
        term: Term,
        remote: Option<SocketAddr>,
    ) -> Option<Endpoint> {
        let name = self.attempts.remove(&stream)?;
        if let Some(targets) = &mut self.targets {
            targets.handle_welcome(name.clone(), term);
        }
        self.known.retain(|(known, _)| *known != name);
        self.known.extend(remote.map(|remote| (name.clone(), remote)));
        Some(name)
    }

    /// Notes that a stream, or an attempt to open one, has ended. That proves nothing about the leader, so it is dialed again.
    pub(super) fn handle_ended(&mut self, stream: StreamNumber) {
        if let Some(name) = self.attempts.remove(&stream)
            && let Some(targets) = &mut self.targets
        {
            targets.handle_failed(&name);
        }
    }

    /// Notes a redirect and returns its consequence. It came on a stream, or in answer to an attempt to open one. `is_bound` is true if the
    /// agent is bound to a run, because another run cannot take it over.
    pub(super) fn handle_redirect(
        &mut self,
        stream: StreamNumber,
        elsewhere: &CoordinatorAddress,
        is_bound: bool,
    ) -> Redirect {
        let named = elsewhere.endpoint.parse::<Endpoint>().ok();
        let may_follow = !is_bound && !self.uses_etcd();
        if let Some(targets) = &mut self.targets {
            let Some(named) = named else { return Redirect::NotLeading(false) };
            // A stream with a welcome leads to the leader.
            let from = self.attempts.get(&stream).or_else(|| targets.leader()).cloned();
            let has_stepped_down =
                |from: &Endpoint| targets.handle_stepped_down(from, named.clone());
            if may_follow && from.as_ref().is_some_and(has_stepped_down) {
                return Redirect::SteppedDown(named);
            }
            return Redirect::NotLeading(self.handle_leader(named, elsewhere.term));
        }
        match named.filter(|named| *named != self.own.1) {
            Some(endpoint) => Redirect::Elsewhere(endpoint),
            None => Redirect::Ignored,
        }
    }

    /// Replaces the only endpoint.
    pub(super) fn replace(&mut self, endpoint: Endpoint) {
        *self = Self::endpoint(endpoint.clone(), endpoint);
    }

    /// Notes a leader. Returns true if it is new.
    fn handle_leader(&mut self, leader: Endpoint, term: Term) -> bool {
        let uses_etcd = self.uses_etcd();
        let Some(targets) = &mut self.targets else { return false };
        let is_new = targets.handle_redirect(leader.clone(), term);
        if is_new && uses_etcd {
            // With etcd, no other process is known.
            targets.handle_voters(vec![leader], Some(self.own.0.clone()));
        }
        is_new
    }

    /// Waits until this agent's own voter, or the record in etcd, names another leader or other successors. Never returns if there is
    /// neither.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn leader_changed(&mut self) {
        tokio::select! {
            () = changed(self.leader.as_mut()) => {}
            () = changed(self.successors.as_mut()) => {}
        }
    }

    /// Applies the leader that this agent's own voter, or the record in etcd, names. Returns true if it is new.
    pub(super) fn handle_own_leader(&mut self) -> bool {
        let leader = self.leader.as_ref().map(|leader| leader.borrow().clone());
        match leader {
            Some(Leader::At(endpoint, term)) => {
                endpoint.parse().is_ok_and(|endpoint| self.handle_leader(endpoint, term))
            }
            Some(Leader::Here(mandate)) => {
                let own = self.own.0.clone();
                self.handle_leader(own, mandate.term())
            }
            Some(Leader::Unknown) | None => false,
        }
    }

    /// Returns true if the voter of this process leads.
    pub(super) fn is_own_leader(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| matches!(*leader.borrow(), Leader::Here(_)))
    }

    /// Returns true if voters or etcd choose the leader.
    pub(super) fn is_elected(&self) -> bool {
        self.targets.is_some()
    }

    /// Returns true if etcd names the leader.
    pub(super) fn uses_etcd(&self) -> bool {
        self.successors.is_some()
    }

    /// Returns the endpoints that receive this node's death notice in addition to the coordinator: the voters, as this agent dials them, or
    /// the leader's successors. Empty if there is one endpoint.
    pub(super) fn death_notice_recipients(&self) -> Vec<Endpoint> {
        match (&self.successors, &self.targets) {
            (Some(successors), _) => successors.borrow().clone(),
            (None, Some(targets)) => targets.all().iter().map(|name| self.dialed(name)).collect(),
            (None, None) => Vec::new(),
        }
    }
}

/// Waits until a value has changed. Never returns if there is none, or if its sender has ended.
async fn changed<T>(value: Option<&mut watch::Receiver<T>>) {
    if let Some(value) = value
        && value.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Moves the endpoint that `seed` selects to the front, so that not all agents dial the same one first.
fn rotate(list: &mut [Endpoint], seed: u64) {
    let [any, ..] = seed.to_le_bytes();
    let by = usize::from(any) % list.len().max(1);
    list.rotate_left(by);
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use ragent_leadership::{Leadership, Means, Stored};
    use ragent_options::spec::EtcdSpec;
    use tokio::sync::mpsc;

    use super::*;

    const ONE: StreamNumber = StreamNumber(1);
    const TWO: StreamNumber = StreamNumber(2);

    fn at(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn address(term: u64, endpoint: &str) -> CoordinatorAddress {
        CoordinatorAddress { term: Term(term), endpoint: endpoint.to_owned() }
    }

    /// An agent with one endpoint follows a redirect to another one.
    #[test]
    fn one_endpoint_is_replaced() {
        let mut destination = Destination::endpoint(at("a:1"), at("127.0.0.1:1"));
        assert_eq!(destination.dial(ONE, false), (at("127.0.0.1:1"), None));
        assert_eq!(
            destination.handle_redirect(ONE, &address(1, "127.0.0.1:1"), false),
            Redirect::Ignored
        );
        assert_eq!(destination.handle_redirect(ONE, &address(1, ""), false), Redirect::Ignored);
        let elsewhere = Redirect::Elsewhere(at("b:1"));
        assert_eq!(destination.handle_redirect(ONE, &address(1, "b:1"), false), elsewhere);
        destination.replace(at("b:1"));
        assert_eq!(destination.dial(TWO, false), (at("b:1"), None));
        assert_eq!(destination.to_string(), "b:1");
    }

    /// An agent with voters dials its own voter at its own address, and the leader under the name that others use.
    #[test]
    fn voters_are_dialed() {
        let list = ["a:1", "b:1", "c:1"].map(at).to_vec();
        let own = (at("b:1"), at("127.0.0.1:1"));
        let mut destination = Destination::voters(list, Vec::new(), "a,b,c".to_owned(), own, 0);
        assert_eq!(destination.dial(ONE, false), (at("127.0.0.1:1"), None));
        let unknown = Redirect::NotLeading(false);
        assert_eq!(destination.handle_redirect(ONE, &address(0, ""), false), unknown);
        assert_eq!(
            destination.handle_redirect(ONE, &address(2, "d:1"), false),
            Redirect::NotLeading(true)
        );
        assert_eq!(destination.dial(TWO, false).0, at("d:1"), "it was not listed");
        assert_eq!(
            destination.handle_redirect(ONE, &address(3, "c:1"), false),
            Redirect::NotLeading(true)
        );
        assert_eq!(destination.dial(TWO, false), (at("c:1"), None));
        let remote = Some("10.0.0.3:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(TWO, Term(3), remote), Some(at("c:1")));
        assert_eq!(destination.dial(StreamNumber(3), true), (at("c:1"), remote));
        destination.handle_ended(TWO);
        assert_eq!(destination.dial(StreamNumber(4), false).0, at("c:1"), "the same leader");
        destination.handle_ended(StreamNumber(4));
        assert_eq!(destination.dial(StreamNumber(5), false).0, at("127.0.0.1:1"));
        assert_eq!(destination.dial(StreamNumber(6), false).0, at("c:1"), "in its turn");
        assert_eq!(destination.to_string(), "a,b,c");
    }

    /// An agent with etcd dials its own port until etcd names a leader. If the leader is lost, it dials both in turn. A leader of a lower
    /// term and an answer without a leader are ignored.
    #[tokio::test]
    async fn leader_is_found_through_etcd() {
        let (sender, successors) = watch::channel(Vec::new());
        let (leads, leader) = watch::channel(Leader::Unknown);
        let stored = watch::channel(Stored::default()).1;
        let (means, commands) = (Means::Etcd(successors), mpsc::channel(1).0);
        let leadership = Leadership::without_voters(means, &commands, leader, stored);
        let members = vec![at("e:2379")];
        let etcd = EtcdSpec { members, prefix: "/p".to_owned(), tls: None, login: None };
        let mut destination = Destination::etcd(&etcd, at("a:1"), at("127.0.0.1:1"), &leadership);
        assert_eq!(destination.dial(ONE, false).0, at("127.0.0.1:1"));
        let unknown = Redirect::NotLeading(false);
        assert_eq!(destination.handle_redirect(ONE, &address(0, ""), false), unknown);
        assert_eq!(
            destination.handle_redirect(ONE, &address(3, "b:1"), false),
            Redirect::NotLeading(true)
        );
        assert_eq!(destination.dial(TWO, false).0, at("b:1"));
        let remote = Some("10.0.0.3:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(TWO, Term(3), remote), Some(at("b:1")));
        assert_eq!(destination.dial(StreamNumber(3), true), (at("b:1"), remote));
        destination.handle_ended(StreamNumber(3));
        let dialed: Vec<_> = (4..7).map(|n| destination.dial(StreamNumber(n), false).0).collect();
        assert_eq!(dialed, ["127.0.0.1:1", "b:1", "127.0.0.1:1"].map(at));
        assert_eq!(destination.handle_redirect(ONE, &address(2, "c:1"), false), unknown);
        assert_eq!(destination.dial(StreamNumber(7), false).0, at("b:1"));
        assert_eq!(
            destination.handle_redirect(ONE, &address(4, "c:1"), false),
            Redirect::NotLeading(true)
        );
        assert_eq!(destination.dial(StreamNumber(8), false), (at("c:1"), None));
        assert_eq!(
            destination.handle_redirect(ONE, &address(5, "a:1"), false),
            Redirect::NotLeading(true)
        );
        assert_eq!(
            destination.dial(StreamNumber(9), false).0,
            at("127.0.0.1:1"),
            "this agent leads"
        );
        assert!(destination.is_elected() && destination.uses_etcd());
        assert_eq!(destination.death_notice_recipients(), []);
        sender.send_replace(vec![at("d:1")]);
        assert_eq!(destination.death_notice_recipients(), [at("d:1")]);
        assert_eq!(destination.to_string(), "etcd (e:2379)");
        destination.leader_changed().await;
        assert!(!destination.handle_own_leader());
        leads.send_replace(Leader::At("d:1".to_owned(), Term(6)));
        destination.leader_changed().await;
        assert!(destination.handle_own_leader() && !destination.handle_own_leader());
        assert_eq!(destination.dial(StreamNumber(10), false).0, at("d:1"));
    }

    /// An agent dials the leader that its own voter knows, under the name that other agents use.
    #[tokio::test]
    async fn leader_of_the_own_voter_is_dialed() {
        let (leads, leader) = watch::channel(Leader::Unknown);
        let own = (at("b:1"), at("127.0.0.1:1"));
        let list = ["a:1", "b:1", "c:1"].map(at).to_vec();
        let destination = Destination::voters(list, Vec::new(), "a,b,c".to_owned(), own, 0);
        let mut destination = destination.with_leader(leader);
        leads.send_replace(Leader::At("c:1".to_owned(), Term(2)));
        destination.leader_changed().await;
        assert!(destination.handle_own_leader() && !destination.handle_own_leader());
        assert_eq!(destination.dial(ONE, false).0, at("c:1"));
        leads.send_replace(Leader::Unknown);
        destination.leader_changed().await;
        assert!(!destination.handle_own_leader());
        assert_eq!(destination.voter_list().len(), 3);
        assert!(!destination.uses_etcd());
    }

    /// An agent with one endpoint takes the list of voters from the welcome. It dials the leader at its known address. If the leader is
    /// lost, it dials the other voters.
    #[test]
    fn list_is_taken_from_the_welcome() {
        let mut destination = Destination::endpoint(at("b:1"), at("b:1"));
        destination.dial(ONE, false);
        let list = ["a:1", "b:1", "c:1"].map(at).to_vec();
        assert!(destination.handle_voter_list(list.clone(), 0));
        let remote = Some("10.0.0.2:1".parse().unwrap());
        assert_eq!(destination.handle_welcome(ONE, Term(3), remote), Some(at("b:1")));
        assert_eq!(destination.to_string(), "a:1,b:1,c:1");
        assert_eq!(destination.death_notice_recipients(), ["a:1", "b:1", "c:1"].map(at));
        assert_eq!(destination.dial(TWO, true), (at("b:1"), remote));
        destination.handle_ended(TWO);
        let dialed: Vec<_> = (3..6).map(|n| destination.dial(StreamNumber(n), false).0).collect();
        assert_eq!(dialed, ["a:1", "b:1", "c:1"].map(at));
        assert_eq!(
            destination.handle_redirect(ONE, &address(4, "c:1"), true),
            Redirect::NotLeading(true)
        );
        assert!(!destination.handle_voter_list(list, 1), "the same list");
        assert_eq!(destination.dial(StreamNumber(6), false).0, at("c:1"), "the leader is kept");
    }

    /// An agent that knows no round follows its leader to another one, even in a lower term. No other process can send it there. An agent
    /// that is bound to a run does not follow.
    #[test]
    fn leader_steps_down() {
        let own = (at("d:5"), at("127.0.0.1:5"));
        let mut destination =
            Destination::voters(vec![at("b:1")], Vec::new(), "b:1".to_owned(), own, 0);
        destination.dial(ONE, false);
        assert_eq!(destination.handle_welcome(ONE, Term(9), None), Some(at("b:1")));
        let (elsewhere, stepped_down) = (address(9, "a:1"), Redirect::SteppedDown(at("a:1")));
        assert_eq!(destination.handle_redirect(ONE, &elsewhere, true), Redirect::NotLeading(false));
        assert_eq!(destination.handle_redirect(ONE, &elsewhere, false), stepped_down);
        assert_eq!(destination.dial(TWO, false).0, at("a:1"));
        let stream = StreamNumber(3);
        destination.handle_ended(TWO);
        assert_eq!(destination.dial(stream, false).0, at("b:1"));
        let other = Redirect::NotLeading(false);
        assert_eq!(destination.handle_redirect(stream, &address(0, "c:1"), false), other);
    }

    /// After a change of the voters, the agent dials the new and the listed ones, its own voter first.
    #[test]
    fn changed_voters_are_dialed() {
        let own = (at("d:5"), at("127.0.0.1:5"));
        let mut destination =
            Destination::voters(vec![at("a:1")], Vec::new(), "a:1".to_owned(), own, 0);
        assert_eq!(destination.dial(ONE, false).0, at("a:1"), "its own voter is not listed");
        assert!(destination.handle_voter_list(["b:1", "c:1", "d:5"].map(at).to_vec(), 0));
        assert_eq!(destination.handle_welcome(ONE, Term(3), None), Some(at("a:1")));
        destination.dial(TWO, false);
        destination.handle_ended(TWO);
        let dialed: Vec<_> = (3..7).map(|n| destination.dial(StreamNumber(n), false).0).collect();
        assert_eq!(dialed, ["127.0.0.1:5", "a:1", "b:1", "c:1"].map(at));
        assert_eq!(destination.to_string(), "b:1,c:1,d:5");
        let recipients = destination.death_notice_recipients();
        assert_eq!(recipients, ["b:1", "c:1", "127.0.0.1:5", "a:1"].map(at));
        assert_eq!(destination.voter_list().len(), 4);
    }
}
