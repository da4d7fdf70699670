//! The rules of elections.
//!
//! - a: at no moment do two processes lead.
//! - b: no worker starts while a worker of another round runs on any host.
//! - c: no term is won twice.
//! - d: the numbers of rounds increase, unless voters may lose their state files.
//! - e: a majority has granted the leader renewals that were sent within its lease.
//! - f: after the last fault there is a leader within a voter's lease and 2 s, and the job runs; no other leader is
//!   elected then.

use std::time::{Duration, Instant};

use ragent_rendezvous::ids::{Round, Term};

use super::{Bug, Stage, World};

/// The time within which a job runs after the last fault: a leader is elected, and all workers that
/// it does not know have ended.
const RUNS_WITHIN: Duration = Duration::from_millis(9_500);

/// The time within which late messages have arrived, and the time for which the leader must stay then.
const SETTLED_AFTER: Duration = Duration::from_secs(6);
const STABLE_FOR: Duration = Duration::from_secs(10);

impl World {
    /// Checks rules a and e.
    pub(super) fn check_leaders(&self) -> Result<(), String> {
        let leads = |host: &usize| {
            let host = &self.hosts[*host];
            host.leads_until(self.bug).is_some_and(|until| host.local(self.now) < until)
        };
        let leaders: Vec<usize> = (0..self.voters).filter(leads).collect();
        if leaders.len() > 1 {
            return Err(format!("rule a: hosts {leaders:?} lead at {:?}", self.elapsed()));
        }
        let Some(leader) = leaders.first() else { return Ok(()) };
        let process = self.hosts[*leader].process.as_ref();
        let Some(term) = process.and_then(|own| own.coordinator.as_ref()).map(|own| own.term)
        else {
            return Ok(());
        };
        // A slow clock makes the lease longer.
        let lease = self.timers.leader_lease.mul_f64(1.0 / 0.99) + Duration::from_micros(1);
        let granted = (0..self.voters).filter(|place| {
            let sent = self.record.grants.get(&(term, *place));
            place == leader || sent.is_some_and(|sent| self.now < *sent + lease)
        });
        let granted = granted.count();
        if granted <= self.voters / 2 {
            let at = self.elapsed();
            return Err(format!("rule e: host {leader} leads with {granted} leases at {at:?}"));
        }
        Ok(())
    }

    /// Checks rule b for the workers that have started on a host.
    pub(super) fn check_workers(&mut self, host: usize) {
        let Some((term, round)) =
            self.hosts[host].workers.as_ref().map(|own| (own.term, own.round))
        else {
            return;
        };
        let other = self.hosts.iter().enumerate().find_map(|(place, other)| {
            let alive = other.alive(self.now)?;
            ((alive.term, alive.round) != (term, round)).then_some((place, alive.term, alive.round))
        });
        if let Some((place, other_term, other_round)) = other {
            self.record.broken = Some(format!(
                "rule b: round {term}.{round} starts on host {host} while {other_term}.{other_round} \
                 runs on host {place}, at {:?}",
                self.elapsed()
            ));
        }
    }

    /// Checks rule d for a round that is formed.
    pub(super) fn note_round(&mut self, round: Round, term: Term) {
        let newest = self.record.rounds.last().map(|(round, _)| *round);
        if !self.forgets && newest.is_some_and(|newest| newest >= round) {
            self.record.broken = Some(format!(
                "rule d: round {round} of term {term} follows {newest:?}, at {:?}",
                self.elapsed()
            ));
        }
        self.record.rounds.insert((round, term));
    }

    /// Checks that a leader stays once the job runs again and late messages have arrived. Returns false at the end
    /// of the world.
    fn check_stability(&mut self, since: Instant, elections: u64) -> Result<bool, String> {
        if self.now < since + SETTLED_AFTER {
            self.stage = Stage::Healed(since, self.record.elections);
        } else if self.record.elections > elections && self.bug == Bug::None {
            return Err(format!("rule f: another leader was elected at {:?}", self.elapsed()));
        }
        Ok(self.now < since + SETTLED_AFTER + STABLE_FOR)
    }

    /// Checks rule f. Returns false at the end of the world.
    pub(super) fn check_health(&mut self) -> Result<bool, String> {
        let since = match self.stage {
            Stage::Faulty => return Ok(true),
            Stage::Quiet(since) => since,
            Stage::Healed(since, elections) => return self.check_stability(since, elections),
        };
        let is_thawed = self.hosts.iter().all(|host| host.freeze.is_none());
        if !is_thawed {
            // A frozen host is a fault that has not ended.
            self.stage = Stage::Quiet(self.now);
            return Ok(true);
        }
        let local = |host: usize| self.hosts[host].local(self.now);
        let leads = |host: usize| {
            self.hosts[host].leads_until(self.bug).is_some_and(|until| local(host) < until)
        };
        let leader = (0..self.voters).find(|host| leads(*host));
        let elected_within = self.timers.voter_lease.mul_f64(1.02) + Duration::from_secs(2);
        // Messages that were sent during the faults may still be under way.
        let delayed = Duration::from_secs(5);
        if leader.is_none() && self.now > since + elected_within + delayed {
            return Err(format!("rule f: no leader at {:?}", self.elapsed()));
        }
        let runs = self.hosts.iter().filter(|host| host.alive(self.now).is_some()).count();
        if leader.is_some() && runs > self.hosts.len() / 2 {
            self.stage = Stage::Healed(self.now, self.record.elections);
            return Ok(true);
        }
        if self.now <= since + RUNS_WITHIN + delayed {
            return Ok(true);
        }
        match self.bug {
            Bug::None => Err(format!("rule f: {runs} hosts run workers at {:?}", self.elapsed())),
            // A planted bug may keep the simulated agents and coordinators from running the job.
            _ => Ok(false),
        }
    }
}
