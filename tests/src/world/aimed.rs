//! Aims faults at the voters. Random faults rarely occur at the moment at which they could break a rule.

use std::{collections::BTreeSet, time::Duration};

use ragent_rendezvous::{ids::NodeId, settings::NodeRange};

use super::{
    Event, World,
    fault::{Fault, Victim},
    rules::Stage,
};
use crate::addresses::host_of;

impl World {
    /// Aims faults at the voters: at their state files, and at each change.
    pub(super) fn aim(&mut self) {
        self.is_aimed = true;
        if self.is_calm() {
            self.events.retain(|_, event| !matches!(event, Event::Fault(_)));
            // Two hosts that do not know the job could begin another one, soon after their start.
            let max = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            self.shared.nodes = NodeRange::new(2, max).expect("there are two hosts");
            self.shared.timeouts.last_call = self.random.millis(100, 500);
            // By then, the listed host is no longer a voter, and loses power.
            self.aim_at(6_000, 10_000, Fault::Leave { victim: Victim::Leader });
            return self.aim_at(18_000, 35_000, Fault::LosePower);
        }
        for _ in 0..self.random.between(1, 3) {
            self.aim_at(5_000, 35_000, Fault::ForgetLease);
        }
    }

    fn aim_at(&mut self, earliest: u64, latest: u64, fault: Fault) {
        let at = self.random.millis(earliest, latest);
        self.schedule(at, Event::Fault(fault));
    }

    /// Returns true if no other faults occur. In another network, hosts that have lost their state files may begin a second job.
    pub(super) fn is_calm(&self) -> bool {
        self.is_aimed && self.listed == 1
    }

    /// Separates a leader from the voters in the list before, when it begins a change of the voters. They do not learn of the change.
    pub(super) fn split_voters(&mut self, id: &NodeId) {
        let Some(own) = self.processes.get(id).map(|process| process.host) else { return };
        let Some(voter) = self.voter(id) else { return };
        let next = voter.election.replica().lists.last.clone();
        let is_leading = voter.election.leads_until().is_some();
        // The file is written after the effects.
        let file = self.hosts[own].file.as_ref().filter(|file| file.replica.has_round());
        let Some(before) = file.map(|file| &file.replica.lists.last) else { return };
        let old: BTreeSet<usize> =
            before.iter().filter_map(|slot| host_of(&slot.address)).collect();
        let is_change = self.is_aimed && is_leading && *before != next;
        if !is_change || self.stage != Stage::Faulty || !self.random.chance(50) {
            return;
        }
        let time = self.random.millis(3_000, 8_000);
        let is_separated = |host: &usize| *host != own && old.contains(host);
        let (there, here): (Vec<_>, Vec<_>) = (0..self.hosts.len()).partition(is_separated);
        for (one, other) in
            here.iter().flat_map(|one| there.iter().map(move |other| (*one, *other)))
        {
            self.cut(one, other, time);
            self.cut(other, one, time);
        }
    }

    /// Separates a voter from the leader. When its lease is over, another voter returns without its state file, so it has forgotten the
    /// lease that it granted.
    pub(super) fn forget_lease(&mut self) {
        let Some(leader) = self.leading_hosts().next() else { return };
        let voters = self.voting_hosts();
        let others: Vec<usize> = voters.into_iter().filter(|host| *host != leader).collect();
        let Some(separated) = self.random.pick(&others) else { return };
        let others: Vec<usize> = others.into_iter().filter(|host| *host != separated).collect();
        let Some(forgetful) = self.random.pick(&others) else { return };
        self.cut(leader, separated, Duration::from_secs(8));
        self.cut(separated, leader, Duration::from_secs(8));
        let at = self.random.millis(3_000, 5_000);
        self.schedule(at, Event::Fault(Fault::Forget { victim: Victim::Host(forgetful) }));
    }

    /// Switches off the hosts that the user gave and others, possibly the leader. They return without their state files, as long as a
    /// majority of the voters keeps them.
    pub(super) fn lose_power(&mut self) {
        if self.leading_hosts().next().is_none() {
            return;
        }
        let others = self.listed..self.hosts.len();
        let count = others.len();
        let first = self.random.between(0, count as u64);
        let others = others.cycle().skip(usize::try_from(first).unwrap_or_default()).take(count);
        let hosts: Vec<usize> = (0..self.listed).chain(others).collect();
        for host in hosts {
            if self.can_lose_file(host) {
                let down = self.random.millis(20, 500);
                self.kill_host(host, down);
                self.record.has_forgotten |= self.hosts[host].file.take().is_some();
            }
        }
    }

    /// Kills an agent, which returns without its state file if a majority of the voters keeps theirs.
    pub(super) fn restart_without_file(&mut self, host: usize) {
        if !self.can_lose_file(host) {
            return;
        }
        let down = self.random.millis(20, 100);
        self.kill_agent(host, down);
        self.record.has_forgotten |= self.hosts[host].file.take().is_some();
    }

    /// Returns the hosts of the voters in the newest list that the leader knows.
    fn voting_hosts(&self) -> Vec<usize> {
        let leader = self.leading_hosts().next();
        let file = leader.and_then(|host| self.hosts[host].file.as_ref());
        let slots = file.into_iter().flat_map(|file| &file.replica.lists.last);
        slots.filter_map(|slot| host_of(&slot.address)).collect()
    }
}
