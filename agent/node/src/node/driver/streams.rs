//! Registers on the streams to the coordinator, handles their messages, and follows redirects.

use std::{net::SocketAddr, time::Instant};

use ragent_base::{
    net::Endpoint,
    report::telemetry,
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::client::{FirstWords, StreamEvent};
use ragent_core::{link::Echo, node::Claims};
use ragent_leadership::{Leadership, LeadershipCommand, Superseded};
use ragent_proto::{
    Proof,
    convert::{CoordinatorAddress, FromCoordinator},
};
use ragent_rendezvous::{
    ids::{Round, StreamNumber, VoterAddress},
    known_job::KnownJob,
    message::{
        FromNode, KnownRound, NodeDescription, PROTOCOL_VERSION, Registration, ToNode, Welcome,
    },
};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use super::NodeDriver;
use crate::node::limits;
use crate::node::{description::describe, destination::Redirect, node_id::new_node_id};

impl NodeDriver<'_> {
    pub(super) fn handle_event(&mut self, event: StreamEvent) {
        let now = clock::now();
        match event {
            StreamEvent::Connected { stream, local, remote, reply } => {
                let node = self.describe(local);
                if self.memory.is_reached() {
                    let endpoint = Endpoint { host: node.address.clone(), port: node.agent_port };
                    self.node.tell(now, |agent| agent.set_memory_address(endpoint.to_string()));
                }
                if let Some(claims) = self.node.handle_connected(now, stream) {
                    self.register(stream, claims, node, remote, reply);
                }
            }
            StreamEvent::Accepted(stream) => self.node.handle_accepted(now, stream),
            StreamEvent::Message(stream, message) if self.registered(stream).is_some() => {
                debug!(stream = stream.0, ?message, "coordinator");
                self.handle_message(now, stream, *message);
                self.count_echo(now);
            }
            // The stream was dropped in the meantime.
            StreamEvent::Message(..) => {}
            // The attempt was abandoned in the meantime, or it has led to another coordinator.
            StreamEvent::Ended(stream, _) if !self.streams.contains_key(&stream) => {}
            StreamEvent::Ended(stream, error) => {
                let was_registered = self.node.is_registered();
                self.forget(stream);
                self.node.handle_ended(now, stream);
                if !self.node.is_registered() {
                    self.report_outage(&error, was_registered);
                    self.review_mismatch(error);
                }
            }
        }
    }

    /// Counts the echo of a keep-alive, if one has arrived.
    fn count_echo(&mut self, now: Instant) {
        let Some(Echo { round_trip, lease_left }) = self.node.take_echo() else { return };
        self.spec.measures.round_trips.observe(round_trip);
        if let Some(left) = lease_left {
            self.spec.measures.set_margin(Some(self.lease_margin.add(now, left)));
        }
    }

    /// Describes this node as it registers on a stream with this local address.
    fn describe(&mut self, local: SocketAddr) -> NodeDescription {
        let mut node = self.spec.node.clone();
        // IPv6 addresses may change while an agent runs.
        self.addresses = ThisHost.addresses();
        describe(&mut node, local.ip(), self.addresses.clone());
        self.address = node.address.parse().ok();
        node.load = ThisHost.load().unwrap_or_default();
        node
    }

    pub(super) fn register(
        &mut self,
        stream: StreamNumber,
        claims: Claims,
        node: NodeDescription,
        remote: SocketAddr,
        reply: oneshot::Sender<FirstWords>,
    ) {
        let Claims {
            job_uid,
            known_round,
            restarts_used,
            charged_through,
            report,
            memory,
            lost_term,
        } = claims;
        let job = self.known_job(&known_round);
        let ended = self.spec.leadership.as_ref().filter(|_| job_uid.is_none());
        let message = Registration {
            job,
            ended: ended.map(|leadership| leadership.ended.borrow().clone()).unwrap_or_default(),
            waited: self.spec.waited(),
            protocol_version: PROTOCOL_VERSION,
            run_id: self.spec.job.run_id.clone(),
            // Under a new node id, the agent is a new node of the job.
            job_uid: job_uid.filter(|_| self.proof.newest().is_some()),
            stream,
            node,
            settings: self.spec.job.shared,
            known_round,
            restarts_used,
            charged_through,
            report,
            memory,
        };
        let (sender, queue) = mpsc::channel(limits::STREAM_QUEUE);
        let first =
            FirstWords { registration: message, proof: self.proof.newest(), lost_term, queue };
        if reply.send(first).is_ok() {
            if let Some(open) = self.streams.get_mut(&stream) {
                open.registered = Some((sender, remote));
            }
            self.proof.handle_shown(stream);
            self.handle_registered_at(remote);
        }
    }

    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        message: FromCoordinator,
    ) {
        let message = match message {
            FromCoordinator::Message(message) => message,
            FromCoordinator::Elsewhere(elsewhere) => {
                return self.go_elsewhere(now, stream, &elsewhere);
            }
            FromCoordinator::OtherAgent => return self.become_another(now, stream),
            FromCoordinator::Welcomed(welcome, proof) => {
                return self.handle_welcome(now, stream, &welcome, proof);
            }
        };
        match message {
            ToNode::Voters(voters) => {
                self.handle_voter_list(&voters);
                self.node.handle_message(now, stream, ToNode::Voters(voters));
            }
            message => self.node.handle_message(now, stream, message),
        }
    }

    pub(super) fn handle_welcome(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        welcome: &Welcome,
        proof: Proof,
    ) {
        let is_first = self.node.agent().job_uid().is_none();
        let is_newly_led = welcome.term > self.node.agent().term();
        let counts = self.node.handle_welcome(now, stream, welcome);
        if welcome.term >= self.node.agent().term() && self.proof.handle_welcome(proof) {
            // At once, because the keeper needs it even if the agent is killed a moment later.
            self.set_death_notice();
        }
        if !counts {
            return debug!(term = welcome.term.0, "outdated welcome ignored");
        }
        self.handle_voter_list(&welcome.voters);
        let remote = self.registered(stream).map(|(_, remote)| *remote);
        if let (Some(leadership), Some(remote)) = (&self.spec.leadership, remote) {
            let joined = (welcome.job_uid.clone(), remote.ip());
            self.is_registered = leadership.try_send(LeadershipCommand::Registered(Some(joined)));
        }
        let name = self.spec.destination.handle_welcome(stream, welcome.term, remote);
        let endpoint = name.map(|name| name.to_string()).unwrap_or_default();
        if self.outage.handle_reached() || is_first || is_newly_led {
            info!(
                endpoint, run_id = %self.spec.job.run_id, term = welcome.term.0, "registered"
            );
            if is_first {
                // The host reaches itself at a loopback address, which is not what the user gave.
                let given = self.spec.coordinator.borrow().endpoint.clone();
                let is_fixed = !self.spec.destination.is_elected() && !given.is_empty();
                let line = self.lines.registered(if is_fixed { &given } else { &endpoint });
                line.iter().for_each(|line| telemetry::line(line));
            }
            self.service_manager.report_registered(&endpoint);
        }
        let is_elected = self.spec.destination.is_elected();
        self.spec.coordinator.send_modify(|known| {
            known.term = welcome.term;
            if is_elected {
                known.endpoint = endpoint;
            }
        });
    }

    /// Notes the voters of the job, if any, so that this agent dials them and its keeper informs them.
    fn handle_voter_list(&mut self, voters: &[VoterAddress]) {
        if self.spec.destination.uses_etcd() {
            return;
        }
        let voters: Vec<Endpoint> =
            voters.iter().filter_map(|voter| voter.as_str().parse().ok()).collect();
        if voters.is_empty() {
            return;
        }
        let before = self.spec.destination.to_string();
        if self.spec.destination.handle_voter_list(voters, self.spec.settings.seed) {
            info!(from = before, voters = %self.spec.destination, "received the list of voters");
            self.handle_other_recipients();
        }
    }

    /// Applies a list of voters that the voter of this process has received. The leader may be lost before this agent receives the list
    /// from it.
    pub(super) fn handle_own_copy(&mut self) {
        let newest = self.spec.leadership.as_ref().and_then(Leadership::newest_list);
        if let Some((_, voters)) =
            newest.filter(|(job_uid, _)| self.node.agent().job_uid() == Some(job_uid))
        {
            self.handle_voter_list(&voters);
        }
    }

    /// Returns the job that this process knows, if it has a round.
    fn known_job(&self, known_round: &KnownRound) -> Option<KnownJob> {
        let own = self.spec.leadership.as_ref().and_then(Leadership::known_job);
        if own.is_some() || known_round.round.round == Round(0) {
            return own;
        }
        let voters = self.spec.destination.voter_list();
        let uid = self.node.agent().job_uid().cloned();
        uid.filter(|_| !voters.is_empty()).map(|uid| KnownJob { uid, voters, leads: None })
    }

    /// Reports to the leadership that this agent is no longer registered.
    pub(super) fn review_registration(&mut self) {
        if self.is_registered
            && !self.node.is_registered()
            && let Some(leadership) = &self.spec.leadership
        {
            self.is_registered = !leadership.try_send(LeadershipCommand::Registered(None));
        }
    }

    /// Ends this agent's part, because the job does not continue in this process. If this process leads, its coordinator closes the job.
    pub(super) fn handle_superseded(&mut self, superseded: Superseded) {
        let now = clock::now();
        match superseded {
            _ if self.spec.destination.is_own_leader() => {}
            Superseded::ByJob { job, at } => {
                self.node.tell(now, |agent| agent.handle_other_job(at.to_string(), job.born_ms));
            }
            Superseded::ByEnd(outcome) => {
                self.node.tell(now, |agent| agent.handle_outlived(outcome.map(|outcome| *outcome)));
            }
        }
    }

    /// Registers again if the coordinator does not know the current addresses of this machine. It needs them before
    /// this node is ready for the next round, because the round's store refuses all others.
    ///
    /// A registration carries everything that a coordinator needs to know of a node, so no other message has to carry
    /// the addresses. The old stream has ended before this node reports ready on any.
    pub(super) fn refresh_addresses(&mut self) {
        let Some(stream) = self.node.current().filter(|_| self.node.is_registered()) else {
            return;
        };
        if ThisHost.addresses() != self.addresses {
            info!("the addresses of this machine have changed; registering again");
            self.forget(stream);
            self.node.handle_ended(clock::now(), stream);
        }
    }

    fn registered(&self, stream: StreamNumber) -> Option<&(mpsc::Sender<FromNode>, SocketAddr)> {
        self.streams.get(&stream)?.registered.as_ref()
    }

    pub(super) fn send_on(&mut self, stream: StreamNumber, message: FromNode) {
        let Some((sender, _)) = self.registered(stream) else { return };
        if sender.try_send(message).is_err() {
            debug!(stream = stream.0, "stream dropped: its queue is full or closed");
            self.forget(stream);
            self.node.handle_ended(clock::now(), stream);
        }
    }

    /// Ends a stream, or the attempt to open one.
    pub(super) fn forget(&mut self, stream: StreamNumber) {
        self.spec.destination.handle_ended(stream);
        self.proof.handle_ended(stream);
        if let Some(open) = self.streams.remove(&stream) {
            open.task.abort();
        }
    }

    /// Registers under a new node id, because the current one belongs to another agent. If this
    /// agent's proof arrived after the registration was sent, only drops this stream.
    pub(super) fn become_another(&mut self, now: Instant, stream: StreamNumber) {
        if self.proof.handle_refused(stream, self.node.is_registered()) {
            let node_id = new_node_id();
            warn!(
                old = %self.spec.node.node_id, new = %node_id,
                "the node id belongs to another agent; registering under a new one"
            );
            self.spec.node.node_id = node_id;
            self.set_death_notice();
        }
        self.forget(stream);
        self.node.handle_ended(now, stream);
    }

    /// Follows a redirect from an agent that does not coordinate, or no longer does.
    pub(super) fn go_elsewhere(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        elsewhere: &CoordinatorAddress,
    ) {
        let is_bound = self.node.agent().is_bound_to_a_run();
        match self.spec.destination.handle_redirect(stream, elsewhere, is_bound) {
            Redirect::SteppedDown(leader) => {
                info!(to = %leader, "the coordinator has stepped down for another one");
                self.node.handle_sent_elsewhere(now, stream, elsewhere.term, true);
                self.proof.discard();
            }
            Redirect::NotLeading(is_new) => {
                debug!(leader = elsewhere.endpoint, is_new, "the voter does not lead");
                self.node.handle_not_leading(now, stream, is_new);
            }
            Redirect::Elsewhere(endpoint) => {
                if self.node.handle_sent_elsewhere(now, stream, elsewhere.term, true) {
                    self.follow(endpoint);
                } else {
                    debug!(endpoint = elsewhere.endpoint, "redirect ignored");
                }
            }
            Redirect::Ignored => {
                self.node.handle_sent_elsewhere(now, stream, elsewhere.term, false);
                debug!(endpoint = elsewhere.endpoint, "redirect ignored");
            }
        }
    }

    /// Registers at another endpoint from now on.
    fn follow(&mut self, endpoint: Endpoint) {
        info!(
            from = %self.spec.destination, to = %endpoint,
            "redirected to another endpoint of the coordinator"
        );
        self.spec.coordinator.send_modify(|known| known.endpoint = endpoint.to_string());
        self.spec.destination.replace(endpoint);
        self.proof.discard();
        // This agent's address as a host may be a loopback address, which need not reach the new coordinator.
        self.spec.node.address = self.spec.job.local_addr.clone().unwrap_or_default();
        self.spec.state_file = None;
    }
}
