//! Causes the losses of voters. They hit the hosts that lead or vote at that moment, unlike other faults, whose nodes the seed chooses.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde_json::Value;

use crate::{
    history,
    job::Site,
    node::{self, Chronicle, Newcomers, Node},
    schedule::Loss,
    support::{Network, PATIENCE, let_pass},
};

/// The time for which all voters must have answered before the next loss. By then, a leader that was just elected knows which of them
/// do not answer.
const STEADY: Duration = Duration::from_secs(2);

/// A voter that has not answered for this time is lost.
const SILENT_MS: u64 = 1_000;

/// The job whose voters are lost.
#[derive(Debug)]
pub(crate) struct Losses<'n, 'a> {
    pub(crate) site: &'n Site,
    pub(crate) nodes: &'n [Mutex<Node<'a>>],
    pub(crate) chronicle: &'n Chronicle,
    pub(crate) newcomers: &'n Newcomers,
}

/// The voters, as the leader reports them.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Voters {
    /// The run of the job.
    job_uid: String,
    term: u64,
    /// The endpoint of the leader.
    leader: String,
    /// The endpoints of all voters.
    endpoints: Vec<String>,
    /// True if the job has a round, and all voters have answered recently.
    are_whole: bool,
}

impl Voters {
    /// Parses the status of a job; `None` if no leader has answered.
    fn parse(status: &Value) -> Option<Self> {
        let voters = status["voters"].as_array()?;
        let endpoint = |voter: &Value| Some(voter["endpoint"].as_str()?.to_owned());
        let is_silent = |voter: &Value| voter["silent_ms"].as_u64().is_none_or(|ms| ms > SILENT_MS);
        Some(Self {
            job_uid: status["job_uid"].as_str()?.to_owned(),
            term: status["term"].as_u64()?,
            leader: status["leader"].as_str()?.to_owned(),
            endpoints: voters.iter().map(endpoint).collect::<Option<_>>()?,
            are_whole: status["round"].as_u64()? > 0 && !voters.iter().any(is_silent),
        })
    }
}

impl<'n, 'a> Losses<'n, 'a> {
    /// Causes one loss after another. The job must be the same afterwards.
    ///
    /// # Errors
    ///
    /// Returns an event that has not occurred in time, or that must not occur.
    pub(crate) fn bring_about(&self, losses: &[(Duration, Loss)]) -> Result<(), String> {
        let first = self.whole()?;
        for (pause, loss) in losses {
            let_pass(*pause);
            self.whole()?;
            self.chronicle.note(&format!("voters: {loss:.2?}"));
            self.suffer(*loss)?;
        }
        let last = self.whole()?;
        if last.job_uid == first.job_uid {
            return Ok(());
        }
        Err(format!("another job has begun: {} after {}", last.job_uid, first.job_uid))
    }

    fn suffer(&self, loss: Loss) -> Result<(), String> {
        match loss {
            Loss::Leader(pause) => {
                let mut leader = self.lock_leader()?;
                leader.kill_all();
                let_pass(pause);
                leader.start_again();
            }
            Loss::NextAfterReturn { places: [first, second], pause } => {
                let (endpoint, mut node) = self.lock_voter(first, "")?;
                node.kill_all();
                let_pass(pause);
                node.start_again();
                drop(node);
                self.whole()?;
                let (_, mut node) = self.lock_voter(second, &endpoint)?;
                node.kill_all();
                let_pass(pause);
                node.start_again();
            }
            Loss::NextAfterReplacement([first, second]) => {
                let (endpoint, mut node) = self.lock_voter(first, "")?;
                node.kill_all();
                let replaced = self.wait("the voter is replaced", |voters| {
                    voters.are_whole && !voters.endpoints.contains(&endpoint)
                });
                let next = replaced.and_then(|_| self.lock_voter(second, &endpoint));
                let next = next.map(|(_, mut next)| {
                    next.kill_all();
                    next.start_again();
                });
                node.start_again();
                next?;
            }
            Loss::State { node, pause, is_with_newcomer } => {
                let mut host = self.lock_started(node);
                let voters = self.wait("a leader answers", |_| true)?;
                let is_its = |endpoint: &String| host_of(endpoint) == Network::address(node);
                let was_voter = voters.endpoints.iter().any(is_its);
                host.kill_all();
                let changes = self.count_changes(node);
                host.forget_state();
                if is_with_newcomer {
                    self.newcomers.call();
                }
                let_pass(pause);
                host.start_again();
                drop(host);
                // Another loss could take the state from the majority before.
                self.wait("the voter without its state is replaced", |_| {
                    !was_voter || self.count_changes(node) > changes
                })?;
            }
        }
        Ok(())
    }

    /// Waits until all voters answer.
    fn whole(&self) -> Result<Voters, String> {
        let mut since = (history::now(), 0);
        self.wait("all voters answer", |voters| {
            if !voters.are_whole || since.1 != voters.term {
                since = (history::now(), voters.term);
            }
            since.0 + STEADY <= history::now()
        })
    }

    /// Waits until the status of the job meets a condition. No event reports that, so this polls.
    fn wait(&self, what: &str, mut is_met: impl FnMut(&Voters) -> bool) -> Result<Voters, String> {
        let deadline = history::now() + PATIENCE;
        loop {
            let status = self.site.status();
            let voters = Voters::parse(&status);
            if let Some(voters) = voters.filter(&mut is_met) {
                return Ok(voters);
            }
            if history::now() > deadline {
                return Err(format!("waiting until {what}: {status}"));
            }
            let_pass(Duration::from_millis(100));
        }
    }

    /// Waits for the end of the present fault of the leader's node. Returns the node if it still leads.
    fn lock_leader(&self) -> Result<MutexGuard<'n, Node<'a>>, String> {
        let mut locked = None;
        self.wait("a node leads for a while", |voters| {
            // Only one node at a time, so that the others suffer their own faults.
            let before = locked.take();
            if before.as_ref().is_some_and(|(leader, _)| *leader == voters.leader) {
                locked = before;
                return true;
            }
            drop(before);
            locked = Some((voters.leader.clone(), self.lock_at(&voters.leader)));
            false
        })?;
        let (_, leader) = locked.expect("the wait has locked it");
        Ok(leader)
    }

    /// Waits for the end of the present fault of a voter's node, and returns its endpoint and the node. `place` counts in the list without
    /// the endpoint `except`.
    fn lock_voter(
        &self,
        place: usize,
        except: &str,
    ) -> Result<(String, MutexGuard<'n, Node<'a>>), String> {
        let mut endpoints = self.wait("a leader answers", |_| true)?.endpoints;
        endpoints.retain(|endpoint| endpoint != except);
        let endpoint = endpoints.swap_remove(place % endpoints.len());
        let node = self.lock_at(&endpoint);
        Ok((endpoint, node))
    }

    /// Waits for the first start of a node's agent, and for the end of its present fault. No event reports that, so this polls.
    fn lock_started(&self, number: u32) -> MutexGuard<'n, Node<'a>> {
        loop {
            let node = self.lock_at(&format!("{}:0", Network::address(number)));
            if node.has_started() {
                return node;
            }
            drop(node);
            let_pass(Duration::from_millis(100));
        }
    }

    fn lock_at(&self, endpoint: &str) -> MutexGuard<'n, Node<'a>> {
        let is_there = |(node, _): &(u32, _)| Network::address(*node) == host_of(endpoint);
        let mut nodes = (1..).zip(self.nodes);
        let (_, node) = nodes.find(is_there).expect("voters are at the nodes' addresses");
        node::lock(node)
    }

    /// Returns the number of changes of the voters that nodes other than this one have completed.
    fn count_changes(&self, except: u32) -> usize {
        let others = (1..).zip(self.nodes).filter(|(node, _)| *node != except);
        others.map(|(_, node)| node::lock(node).count_changes()).sum()
    }
}

/// The address of an endpoint.
fn host_of(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}
