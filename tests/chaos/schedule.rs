//! Chooses the faults of a job on each of its nodes, by a seed.

use std::{fmt, time::Duration};

use crate::random::Random;

/// The number of nodes of every job.
pub(crate) const NODES: u32 = 5;

/// The least time between the end of one fault on a node and the next. An agent and a keeper that are killed at the same instant leave
/// processes, unless they have a delegated cgroup.
pub(crate) const RECOVERY: Duration = Duration::from_millis(700);

/// The least time between two agents that are asked to leave. If all are leaving, the job is over.
const BETWEEN_LEAVERS: Duration = Duration::from_secs(4);

/// The most machines of a job that become bad. The job may set aside as many for one reason, also with a MIN of 3.
pub(crate) const BAD_MACHINES: u64 = 2;

/// The time after which workers without a sign of progress are killed, in jobs that have such a limit.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of losses of voters in a job.
const LOSSES: u32 = 2;

/// A fault on one node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The link is cut, and restored after a while.
    Cut(Duration),
    /// Agent, keeper and workers are frozen.
    FreezeAll(Duration),
    /// The agent is frozen.
    FreezeAgent(Duration),
    /// The agent is killed, and started again after a while.
    KillAgent(Duration),
    /// While the link is cut, the agent is killed and started again.
    KillAgentOffline(Duration),
    /// All processes of the node are killed, its state is removed, and its agent is started again after a while. The host of the only
    /// endpoint has no such fault: its job is lost if it returns while all other agents are being restarted.
    LoseState(Duration),
    /// The keeper is killed.
    KillKeeper,
    /// A worker is killed.
    KillWorker,
    /// The agent gets SIGTERM, and is started again a while after its end.
    Terminate(Duration),
    /// The same, but `ragent notice leave` asks it to leave.
    Leave(Duration),
    /// `ragent notice save` asks all ranks to save.
    Save,
    /// The workers are stopped for a while, with all of their processes.
    StopWorkers(Duration),
    /// The workers are stopped, and one of them is killed after a while.
    KillStopped(Duration),
    /// The workers are stopped until the agent ends them.
    StopForever,
    /// The workers hang until the agent ends them. They are not stopped.
    Hang,
    /// A GPU reports an error, and a worker is killed. The machine is repaired after a while: its agent is killed and started again.
    BreakMachine(Duration),
}

impl Fault {
    /// Returns a random fault of a job, which may watch its workers and may have notices.
    fn any(dice: &mut Random, are_watched: bool, has_notices: bool) -> Self {
        let pause = dice.millis(0, 3_000);
        match dice.between(1, 132) {
            101..=106 => Self::StopWorkers(dice.millis(500, 2_000)),
            107..=112 if are_watched => Self::StopForever,
            107..=112 => Self::KillStopped(dice.millis(200, 1_500)),
            113..=118 if are_watched => Self::Hang,
            119..=124 => Self::BreakMachine(dice.millis(1_000, 4_000)),
            125..=128 if has_notices => Self::Leave(pause),
            129..=132 if has_notices => Self::Save,
            _ => Self::usual(dice),
        }
    }

    fn usual(dice: &mut Random) -> Self {
        match dice.between(1, 100) {
            1..=14 => Self::Cut(dice.millis(500, 5_000)),
            15..=28 => Self::FreezeAll(dice.millis(500, 5_000)),
            29..=42 => Self::FreezeAgent(dice.millis(500, 5_000)),
            43..=50 => Self::KillAgent(dice.millis(0, 200)),
            51..=58 => Self::KillAgent(dice.millis(200, 3_000)),
            59..=62 => Self::KillAgentOffline(dice.millis(500, 4_000)),
            63..=66 => Self::LoseState(dice.millis(0, 3_000)),
            67..=74 => Self::KillKeeper,
            75..=90 => Self::KillWorker,
            _ => Self::Terminate(dice.millis(0, 3_000)),
        }
    }

    /// A fault during which the node's workers may run while no other node can reach it.
    fn hides_workers(dice: &mut Random) -> Self {
        let time = dice.millis(2_000, 5_000);
        if dice.chance(50) { Self::Cut(time) } else { Self::FreezeAgent(time) }
    }

    /// The approximate duration of the fault.
    fn time(self) -> Duration {
        match self {
            Self::KillKeeper | Self::KillWorker | Self::Save => Duration::ZERO,
            Self::StopForever | Self::Hang => HANG_TIMEOUT,
            Self::Cut(time)
            | Self::FreezeAgent(time)
            | Self::FreezeAll(time)
            | Self::KillAgent(time)
            | Self::KillAgentOffline(time)
            | Self::LoseState(time)
            | Self::Terminate(time)
            | Self::Leave(time)
            | Self::StopWorkers(time)
            | Self::KillStopped(time)
            | Self::BreakMachine(time) => time,
        }
    }
}

/// The loss of voters, in a job whose coordinator is elected. It hits the hosts that lead or vote at that moment, and is over when all
/// voters answer again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Loss {
    /// All processes of the leader's host are killed, and its agent is started again after a while.
    Leader(Duration),
    /// All processes of a voter's host are killed. When its agent has returned, all processes of another voter's host are killed.
    NextAfterReturn {
        /// The places of the two voters. The second place is in the list without the first voter.
        places: [usize; 2],
        /// The time until each agent is started again.
        pause: Duration,
    },
    /// The same, but a member replaces the first voter before the second is lost. Then both agents are started again.
    NextAfterReplacement([usize; 2]),
    /// All processes of a host are killed. Its agent is started again after a while, without its state.
    State {
        /// The number of the node.
        node: u32,
        /// The time until its agent is started again.
        pause: Duration,
        /// True if the agent of a node that was not there before is started at the moment of the loss.
        is_with_newcomer: bool,
    },
}

impl Loss {
    /// Returns a random loss in a job with this number of voters. One of them can be replaced if the job `has_spares`.
    fn any(dice: &mut Random, voters: u32, has_spares: bool) -> Self {
        let pause = dice.millis(0, 4_000);
        let last = u64::from(voters) - 1;
        let mut place = |last| usize::try_from(dice.between(0, last)).expect("a small number");
        let places = [place(last), place(last - 1)];
        match dice.between(1, 100) {
            1..=40 => Self::Leader(pause),
            41..=70 if has_spares => Self::NextAfterReplacement(places),
            41..=70 => Self::NextAfterReturn { places, pause },
            _ => {
                // Newcomers, and agents without a state, dial the first host first.
                let node = if dice.chance(40) { 1 } else { dice.between(1, NODES.into()) };
                let node = u32::try_from(node).expect("a small number");
                Self::State { node, pause, is_with_newcomer: false }
            }
        }
    }
}

/// The end of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// All agents are asked to leave.
    Leave,
    /// One node gets the notice that the job ends, in a job with notices.
    Notice,
    /// All workers succeed.
    Success,
}

impl Ending {
    /// Returns true if all agents may exit with this code. With notices, it depends on the ranks: 5 if all have saved, and otherwise 8.
    pub(crate) fn allows(self, code: Option<i32>, has_notices: bool) -> bool {
        match self {
            Self::Leave | Self::Notice => code == Some(8) || (has_notices && code == Some(5)),
            Self::Success => code == Some(0),
        }
    }
}

/// The behaviour of a node's workers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Manner {
    /// They start a process in a session of its own.
    Family,
    /// They end when they are asked to.
    Polite,
    /// They ignore all signals that can be ignored.
    Stubborn,
}

impl Manner {
    /// The argument of the fake worker.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Family => "family",
            Self::Polite => "polite",
            Self::Stubborn => "stubborn",
        }
    }
}

/// The properties of one node, and its faults.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Plan {
    /// The number of its workers.
    pub(crate) workers: u32,
    /// The behaviour of its workers.
    pub(crate) manner: Manner,
    /// The time of the first start of its agent.
    pub(crate) joins: Duration,
    /// True if its agent is started later than that: when the state of another host is lost.
    pub(crate) is_newcomer: bool,
    /// Its faults, with their earliest times.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

impl Plan {
    /// Returns how often its machine becomes bad.
    pub(crate) fn count_bad_machines(&self) -> u64 {
        let is_bad = |fault: &Fault| matches!(fault, Fault::BreakMachine(_));
        self.faults.iter().map(|(_, fault)| u64::from(is_bad(fault))).sum()
    }
}

/// The faults of one job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Schedule {
    /// The seed that everything else is derived from.
    pub(crate) seed: u64,
    /// The fewest nodes of a round.
    pub(crate) min_nodes: u32,
    /// The plans of node 1, which hosts, and of the others.
    pub(crate) plans: Vec<Plan>,
    /// The number of nodes that the user lists as voters, the first ones; one for a job with one endpoint.
    pub(crate) voters: u32,
    /// The losses of voters, one after another, each with the time after the end of the one before.
    pub(crate) losses: Vec<(Duration, Loss)>,
    /// The end of the job.
    pub(crate) ending: Ending,
}

impl Schedule {
    /// Returns the schedule of a seed, whose last fault begins before `span` is over.
    pub(crate) fn new(seed: u64, span: Duration) -> Self {
        let dice = &mut Random::new(seed);
        let min_nodes = u32::try_from(dice.between(2, 3)).expect("a small number");
        let plans = (0..NODES).map(|index| Self::plan(dice, index < min_nodes)).collect();
        let (losses, ending) = (Vec::new(), Ending::Leave);
        let mut schedule = Self { seed, min_nodes, plans, voters: 1, losses, ending };
        // Faults of the host affect all nodes, so half of all jobs have none on the host. Many faults mean that nothing is charged, so some
        // jobs have failing workers and few other faults.
        let (is_quiet, is_calm) = (dice.chance(50), dice.chance(35));
        let (most, rest) = if is_calm { (1, 3_000) } else { (3, 2_500) };
        let mut leaves = Duration::ZERO;
        // The first round has formed by then.
        let mut now = dice.millis(2_000, 3_000);
        while now < span {
            if is_calm && let Some(node) = schedule.free(dice, 0, now) {
                let fault = schedule.failure(dice);
                schedule.plans[node].faults.push((now, fault));
                now += dice.millis(500, 1_500);
            }
            if !is_quiet && dice.chance(25) {
                schedule.restart_blindly(dice, now);
            }
            for _ in 0..dice.between(1, most) {
                schedule.place(dice, usize::from(is_quiet), now, &mut leaves);
            }
            now += dice.millis(100, rest);
        }
        schedule.elect(dice);
        let last = if schedule.has_notices() { Ending::Notice } else { Ending::Leave };
        let endings = [Ending::Leave, last, Ending::Success, Ending::Success];
        schedule.ending = dice.pick(&endings).expect("there are some");
        schedule
    }

    /// Returns a random failure of a worker.
    fn failure(&self, dice: &mut Random) -> Fault {
        let (repair, may_break) =
            (dice.millis(1_000, 4_000), self.count_bad_machines() < BAD_MACHINES);
        match dice.between(1, 100) {
            1..=15 if self.has_hang_timeout() => Fault::Hang,
            16..=30 if self.has_hang_timeout() => Fault::StopForever,
            31..=50 if may_break => Fault::BreakMachine(repair),
            _ => Fault::KillWorker,
        }
    }

    /// Lets half of all jobs elect their coordinator.
    fn elect(&mut self, dice: &mut Random) {
        self.voters = dice.pick(&[1, 1, 1, 3, 3, 5]).expect("there are some");
        if self.voters > 1 {
            // With a MIN of 3, five members are five voters.
            let has_spares = self.voters == 3 && self.min_nodes < 3;
            let loss = |_| (dice.millis(0, 3_000), Loss::any(dice, self.voters, has_spares));
            self.losses = (0..LOSSES).map(loss).collect();
            // These losses become random losses of one host at a time. The loss of the state of a majority would end the job.
            for (_, fault) in self.plans.iter_mut().flat_map(|plan| &mut plan.faults) {
                if let Fault::LoseState(pause) = *fault {
                    *fault = Fault::KillAgent(pause);
                }
            }
            // All listed hosts must be there before the first loss.
            if self.voters == 3 && dice.chance(50) {
                let newcomer = self.plans.last_mut().expect("there are some");
                (newcomer.is_newcomer, newcomer.joins) = (true, Duration::ZERO);
                let node = u32::try_from(dice.between(1, 4)).expect("a small number");
                let loss =
                    Loss::State { node, pause: dice.millis(0, 4_000), is_with_newcomer: true };
                self.losses[0].1 = loss;
            }
        }
    }

    fn plan(dice: &mut Random, is_early: bool) -> Plan {
        let manners = [Manner::Family, Manner::Polite, Manner::Stubborn];
        Plan {
            workers: u32::try_from(dice.between(1, 2)).expect("a small number"),
            manner: dice.pick(&manners).expect("there are some"),
            joins: if is_early || dice.chance(60) {
                dice.millis(0, 300)
            } else {
                dice.millis(1_000, 6_000)
            },
            is_newcomer: false,
            faults: Vec::new(),
        }
    }

    /// Places a fault at `now` on a random idle node with an index of at least `first`.
    fn place(&mut self, dice: &mut Random, first: usize, now: Duration, leaves: &mut Duration) {
        let fault = Fault::any(dice, self.has_hang_timeout(), self.has_notices());
        if matches!(fault, Fault::Terminate(_) | Fault::Leave(_)) {
            if now < *leaves {
                return;
            }
            *leaves = now + BETWEEN_LEAVERS;
        }
        if matches!(fault, Fault::BreakMachine(_)) && self.count_bad_machines() >= BAD_MACHINES {
            return;
        }
        let first = if matches!(fault, Fault::LoseState(_)) { first.max(1) } else { first };
        if let Some(node) = self.free(dice, first, now) {
            self.plans[node].faults.push((now, fault));
        }
    }

    fn count_bad_machines(&self) -> u64 {
        self.plans.iter().map(Plan::count_bad_machines).sum()
    }

    /// Kills the host's agent while another node cannot be reached; the host is back while that
    /// node's workers still run.
    fn restart_blindly(&mut self, dice: &mut Random, now: Duration) {
        if self.is_free(0, now)
            && let Some(node) = self.free(dice, 1, now)
        {
            let (hidden, pause) = (Fault::hides_workers(dice), dice.millis(0, 200));
            self.plans[node].faults.push((now, hidden));
            self.plans[0].faults.push((now + dice.millis(0, 1_000), Fault::KillAgent(pause)));
        }
    }

    /// Returns a random idle node with an index of at least `first`.
    fn free(&self, dice: &mut Random, first: usize, now: Duration) -> Option<usize> {
        let free: Vec<usize> =
            (first..self.plans.len()).filter(|&node| self.is_free(node, now)).collect();
        dice.pick(&free)
    }

    fn is_free(&self, node: usize, now: Duration) -> bool {
        let plan = &self.plans[node];
        let last = plan.faults.last();
        last.map_or(plan.joins, |&(at, fault)| at + fault.time()) + RECOVERY <= now
    }
}

impl Schedule {
    /// Returns true if the workers keep checkpoints in memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.seed % 2 == 1
    }

    /// Returns true if what they keep is the same on all nodes, so that any of them can go on.
    pub(crate) fn is_replicated(&self) -> bool {
        self.seed % 8 > 4
    }

    /// Returns true if the ranks have time to save before nodes leave.
    pub(crate) fn has_notices(&self) -> bool {
        self.seed % 3 != 1
    }

    /// Returns true if workers without a sign of progress are killed.
    pub(crate) fn has_hang_timeout(&self) -> bool {
        self.seed % 5 < 3
    }

    /// Returns true if the agents share a secret.
    pub(crate) fn has_secret(&self) -> bool {
        matches!(self.seed % 4, 1 | 2)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, min_nodes, voters, ending, .. } = self;
        write!(f, "seed {seed}, --nnodes {min_nodes}:{NODES}, {voters} endpoint(s), {ending:?}")?;
        let (memory, replicated) = (self.has_memory(), self.is_replicated());
        let (secret, notices) = (self.has_secret(), self.has_notices());
        write!(f, ", memory: {memory}, replicated: {replicated}, secret: {secret}")?;
        writeln!(f, ", notices: {notices}, hang timeout: {}", self.has_hang_timeout())?;
        for (node, plan) in (1..).zip(&self.plans) {
            let Plan { workers, manner, joins, is_newcomer, faults } = plan;
            let joins = if *is_newcomer {
                "with the loss of a state".to_owned()
            } else {
                format!("at {joins:.2?}")
            };
            writeln!(f, "node {node}: {workers} {manner:?} worker(s), joins {joins}")?;
            for (at, fault) in faults {
                writeln!(f, "  {at:.2?} {fault:.2?}")?;
            }
        }
        for (pause, loss) in &self.losses {
            writeln!(f, "voters: after {pause:.2?} {loss:.2?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(12);

    /// The same seed gives the same schedule.
    #[test]
    fn schedules_are_repeatable() {
        for seed in 0..20 {
            assert_eq!(Schedule::new(seed, SPAN), Schedule::new(seed, SPAN));
            assert_ne!(Schedule::new(seed, SPAN), Schedule::new(seed + 1, SPAN));
        }
    }

    /// Every fault occurs, also on the host, and nodes have time to recover from each.
    #[test]
    fn schedules_are_eventful() {
        let schedules: Vec<Schedule> = (0..200).map(|seed| Schedule::new(seed, SPAN)).collect();
        let of = |plan: &Plan| plan.faults.iter().map(|(_, fault)| *fault).collect::<Vec<_>>();
        let hosts: Vec<Fault> = schedules.iter().flat_map(|s| of(&s.plans[0])).collect();
        let is_there = |which: fn(&Fault) -> bool| hosts.iter().any(which);
        assert!(is_there(|fault| matches!(fault, Fault::Cut(_))));
        assert!(is_there(|fault| matches!(fault, Fault::FreezeAgent(_))));
        assert!(is_there(|fault| matches!(fault, Fault::FreezeAll(_))));
        assert!(is_there(|fault| matches!(fault, Fault::KillAgent(_))));
        assert!(is_there(|fault| matches!(fault, Fault::KillAgentOffline(_))));
        assert!(is_there(|fault| matches!(fault, Fault::KillKeeper)));
        assert!(is_there(|fault| matches!(fault, Fault::KillWorker)));
        assert!(is_there(|fault| matches!(fault, Fault::Terminate(_))));
        assert!(is_there(|fault| matches!(fault, Fault::Leave(_))));
        assert!(is_there(|fault| matches!(fault, Fault::Save)));
        assert!(is_there(|fault| matches!(fault, Fault::StopWorkers(_))));
        assert!(is_there(|fault| matches!(fault, Fault::KillStopped(_))));
        assert!(is_there(|fault| matches!(fault, Fault::StopForever)));
        assert!(is_there(|fault| matches!(fault, Fault::Hang)));
        assert!(is_there(|fault| matches!(fault, Fault::BreakMachine(_))));
        assert!(!is_there(|fault| matches!(fault, Fault::LoseState(_))));
        let mut others = schedules.iter().flat_map(|s| s.plans[1..].iter().flat_map(of));
        assert!(others.any(|fault| matches!(fault, Fault::LoseState(_))));
        for schedule in &schedules {
            let all = schedule.plans.iter().flat_map(of);
            let of_kind = |which: fn(&Fault) -> bool| all.clone().filter(which).count();
            let hangs = of_kind(|fault| matches!(fault, Fault::Hang | Fault::StopForever));
            let notices = of_kind(|fault| matches!(fault, Fault::Leave(_) | Fault::Save));
            assert!(hangs == 0 || schedule.has_hang_timeout(), "{schedule}");
            assert!(notices == 0 || schedule.has_notices(), "{schedule}");
            assert!(schedule.count_bad_machines() <= BAD_MACHINES, "{schedule}");
        }
        for plan in schedules.iter().flat_map(|schedule| &schedule.plans) {
            for pair in plan.faults.windows(2) {
                assert!(pair[0].0 + pair[0].1.time() + RECOVERY <= pair[1].0);
            }
        }
    }

    /// Jobs with one endpoint, with three voters and with five occur, and every loss of voters.
    #[test]
    fn voters_are_lost() {
        let schedules: Vec<Schedule> = (0..200).map(|seed| Schedule::new(seed, SPAN)).collect();
        let losses_of = |voters| {
            let schedules = schedules.iter().filter(move |schedule| schedule.voters == voters);
            schedules.flat_map(|schedule| schedule.losses.iter().map(|(_, loss)| *loss))
        };
        assert!(schedules.iter().any(|schedule| schedule.voters == 1));
        assert_eq!(losses_of(1).count(), 0);
        for voters in [3, 5] {
            let is_there = |which: fn(Loss) -> bool| losses_of(voters).any(which);
            assert!(is_there(|loss| matches!(loss, Loss::Leader(_))));
            assert!(is_there(|loss| matches!(loss, Loss::NextAfterReturn { .. })));
            for node in 1..=NODES {
                let is_of = |loss| matches!(loss, Loss::State { node: lost, .. } if lost == node);
                assert!(losses_of(voters).any(is_of), "{node}");
            }
        }
        let is_with_newcomer = |loss| matches!(loss, Loss::State { is_with_newcomer: true, .. });
        assert!(losses_of(3).any(is_with_newcomer));
        assert!(!losses_of(5).any(is_with_newcomer));
        assert!(losses_of(3).any(|loss| matches!(loss, Loss::NextAfterReplacement(_))));
    }

    /// The seeds of a default run cover every number of voters, both ends of a job, and every loss of voters.
    #[test]
    fn default_seeds_are_varied() {
        let schedules: Vec<Schedule> =
            (0..crate::SEEDS).map(|seed| Schedule::new(crate::FIRST + seed, SPAN)).collect();
        for voters in [1, 3, 5] {
            assert!(schedules.iter().any(|schedule| schedule.voters == voters));
        }
        let has = |memory, secret| {
            schedules.iter().any(|s| s.has_memory() == memory && s.has_secret() == secret)
        };
        assert!(schedules.iter().any(|s| s.has_memory() && s.is_replicated()));
        assert!(has(true, true) && has(true, false) && has(false, true) && has(false, false));
        for ending in [Ending::Leave, Ending::Notice, Ending::Success] {
            assert!(schedules.iter().any(|schedule| schedule.ending == ending), "{ending:?}");
        }
        let all = || schedules.iter().flat_map(|s| &s.plans).flat_map(|plan| &plan.faults);
        let is_there = |which: fn(&Fault) -> bool| all().any(|(_, fault)| which(fault));
        assert!(is_there(|fault| matches!(fault, Fault::Leave(_) | Fault::Terminate(_))));
        assert!(is_there(|fault| matches!(fault, Fault::StopWorkers(_) | Fault::KillStopped(_))));
        assert!(is_there(|fault| matches!(fault, Fault::StopForever | Fault::Hang)));
        assert!(is_there(|fault| matches!(fault, Fault::BreakMachine(_))));
        let losses = || schedules.iter().flat_map(|schedule| &schedule.losses);
        let is_there = |which: fn(Loss) -> bool| losses().any(|(_, loss)| which(*loss));
        assert!(is_there(|loss| matches!(loss, Loss::Leader(_))));
        assert!(is_there(|loss| matches!(loss, Loss::NextAfterReturn { .. })));
        assert!(is_there(|loss| matches!(loss, Loss::NextAfterReplacement(_))));
        assert!(is_there(|loss| matches!(loss, Loss::State { .. })));
    }
}
