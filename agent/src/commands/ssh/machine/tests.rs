use ragent_rendezvous::voter_count::VoterCount;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A launch on simulated hosts, with a simulated clock.
struct Fixture {
    machine: Machine,
    now: Instant,
}

impl Fixture {
    fn new(hosts: usize, min: usize) -> Self {
        Self::with_voters(hosts, min, VoterCount::One)
    }

    fn with_voters(hosts: usize, min: usize, voters: VoterCount) -> Self {
        let now = ragent_base::sys::clock::now_blocking();
        let settings = LaunchSettings {
            names: (0..hosts).map(|host| format!("n{host}")).collect(),
            min,
            stop: 40 * SECOND,
            notice: Duration::ZERO,
            reach_silence: 60 * SECOND,
            rendezvous: RendezvousPlan::at_hosts(voters),
        };
        Self { machine: Machine::new(now, settings), now }
    }

    /// Creates a launch whose hosts are all reached and whose agents run.
    fn running(hosts: usize, min: usize) -> Self {
        Self::new(hosts, min).started()
    }

    /// Reaches all hosts, and starts their agents.
    fn started(mut self) -> Self {
        let hosts = self.machine.hosts.len();
        let fixture = &mut self;
        let all = (0..hosts as HostNumber).collect::<Vec<_>>();
        let (last, others) = all.split_last().unwrap();
        for host in others {
            assert_eq!(fixture.reached(*host), []);
        }
        assert_eq!(fixture.reached(*last), [start(&all)]);
        self
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.machine.poll_effect()).collect()
    }

    fn report(&mut self, host: HostNumber, report: RelayReport) -> Vec<Effect> {
        self.machine.handle_report(self.now, host, report);
        self.effects()
    }

    fn reached(&mut self, host: HostNumber) -> Vec<Effect> {
        self.report(host, RelayReport::Reached(host_address()))
    }

    fn disconnected(&mut self, host: HostNumber) -> Vec<Effect> {
        self.report(host, RelayReport::Disconnected("cut".to_owned()))
    }

    fn exited(&mut self, host: HostNumber, code: i32) -> Vec<Effect> {
        self.report(host, RelayReport::Ended(AgentEnd::Exited(code)))
    }

    fn signal(&mut self, signal: Signal) -> Vec<Effect> {
        self.machine.handle_signal(self.now, signal);
        self.effects()
    }

    fn advance(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.machine.handle_timeout(self.now);
        self.effects()
    }
}

fn host_address() -> HostAddress {
    HostAddress { host_name: "n".to_owned(), address: None, port: 29400 }
}

fn start(hosts: &[HostNumber]) -> Effect {
    Effect::Start(hosts.iter().map(|host| (*host, host_address())).collect())
}

fn failed(code: u8, ends: &[(&str, &str)]) -> Effect {
    let end = |(name, how): &(&str, &str)| ((*name).to_owned(), (*how).to_owned());
    Effect::Finish(LaunchResult::Failed { code, ends: ends.iter().map(end).collect() })
}

/// All agents are started at once when every host has answered.
#[test]
fn all_start_at_once() {
    let mut t = Fixture::running(3, 3);
    assert_eq!(t.exited(1, 0), []);
    assert_eq!(t.exited(0, 0), []);
    assert_eq!(t.exited(2, 0), [Effect::Finish(LaunchResult::Succeeded)]);
}

/// The job starts without the hosts that cannot be reached, if there are enough others.
#[test]
fn goes_on_without_the_unreachable() {
    let mut t = Fixture::new(3, 2);
    assert_eq!(t.disconnected(0), []);
    assert_eq!(t.reached(2), []);
    assert_eq!(t.reached(1), [start(&[1, 2])]);
}

/// If too few hosts are reached, no agent is started, and each unreachable host is reported with
/// the reason.
#[test]
fn too_few_hosts() {
    let mut t = Fixture::new(2, 2);
    assert_eq!(t.reached(0), []);
    let unreachable = vec![("n1".to_owned(), "cut".to_owned())];
    let result = LaunchResult::TooFewHosts { reached: 1, min: 2, unreachable };
    assert_eq!(t.disconnected(1), [Effect::Finish(result)]);
}

/// A host whose connection is lost before the start takes no part.
#[test]
fn host_is_lost_before_the_start() {
    let mut t = Fixture::new(3, 2);
    assert_eq!(t.reached(0), []);
    assert_eq!(t.reached(1), []);
    assert_eq!(t.disconnected(1), []);
    assert_eq!(t.reached(1), []);
    assert_eq!(t.reached(2), [start(&[0, 2])]);
}

/// A host that does not report delays the others for a limited time only.
#[test]
fn silence_ends() {
    let mut t = Fixture::new(2, 1);
    assert_eq!(t.advance(59 * SECOND), []);
    assert_eq!(t.reached(0), []);
    assert_eq!(t.advance(59 * SECOND), []);
    assert_eq!(t.advance(SECOND), [start(&[0])]);
}

/// The first signal is passed on, the second one kills, the third one ends the launch at once.
#[test]
fn three_signals() {
    let mut t = Fixture::running(2, 2);
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Signal(Signal::SIGINT)]);
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Signal(Signal::SIGKILL)]);
    let result = LaunchResult::Interrupted { signal: Signal::SIGINT };
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Finish(result)]);
    assert_eq!(t.signal(Signal::SIGINT), []);
}

/// If ranks may save, the first signal is a notice to all agents. The second one ends them, the third one kills them.
#[test]
fn first_signal_may_be_a_notice() {
    let mut t = Fixture::running(2, 2);
    t.machine.settings.notice = 10 * SECOND;
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Signal(Signal::SIGTERM)]);
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Signal(Signal::SIGINT)]);
    assert_eq!(t.signal(Signal::SIGINT), [Effect::Signal(Signal::SIGKILL)]);
    let mut t = Fixture::running(2, 2);
    t.machine.settings.notice = 10 * SECOND;
    t.signal(Signal::SIGINT);
    assert_eq!(t.exited(0, 8), []);
    assert_eq!(t.exited(1, 5), [Effect::Finish(LaunchResult::Saved)]);
    let mut t = Fixture::running(2, 2);
    t.machine.settings.notice = 10 * SECOND;
    t.signal(Signal::SIGTERM);
    assert_eq!(t.advance(40 * SECOND), [Effect::Signal(Signal::SIGKILL)]);
}

/// Before the agents are started, a signal ends the launch at once.
#[test]
fn signal_before_the_start() {
    let result = LaunchResult::Interrupted { signal: Signal::SIGTERM };
    assert_eq!(Fixture::new(2, 2).signal(Signal::SIGTERM), [Effect::Finish(result)]);
}

/// Agents that do not end in time after a signal are killed.
#[test]
fn stubborn_agents_are_killed() {
    let mut t = Fixture::running(2, 2);
    t.signal(Signal::SIGTERM);
    assert_eq!(t.exited(0, 1), []);
    assert_eq!(t.advance(39 * SECOND), []);
    assert_eq!(t.advance(SECOND), [Effect::Signal(Signal::SIGKILL)]);
    let end = RelayReport::Ended(AgentEnd::Signaled(9));
    let result = LaunchResult::Interrupted { signal: Signal::SIGTERM };
    assert_eq!(t.report(1, end), [Effect::Finish(result)]);
}

/// If a host cannot take part and too few are left, the other agents are signalled to end.
#[test]
fn others_do_not_wait_for_what_never_comes() {
    let ends = [AgentEnd::NotStarted("no folder".to_owned()), AgentEnd::Exited(2)];
    for end in ends {
        let mut t = Fixture::running(2, 2);
        let ended = t.report(1, RelayReport::Ended(end));
        assert_eq!(ended, [Effect::Signal(Signal::SIGTERM)]);
        assert!(matches!(
            t.exited(0, 1)[..],
            [Effect::Finish(LaunchResult::Failed { code: 1, .. })]
        ));
    }
    let mut t = Fixture::running(2, 2);
    assert_eq!(t.disconnected(1), [Effect::Signal(Signal::SIGTERM)]);
    assert_eq!(t.exited(0, 1), [failed(1, &[("n1", "it was lost: cut")])]);
}

/// The remaining agents continue if there are enough, but not without the agent of the coordinator.
#[test]
fn enough_go_on() {
    let mut t = Fixture::running(3, 2);
    assert_eq!(t.disconnected(2), []);
    assert_eq!(t.exited(0, 0), []);
    assert_eq!(t.exited(1, 0), [Effect::Finish(LaunchResult::Succeeded)]);
    let mut t = Fixture::running(3, 1);
    assert_eq!(t.disconnected(0), [Effect::Signal(Signal::SIGTERM)]);
}

/// With voters, the agents continue without any one of their hosts, also the first one, but not without a majority.
#[test]
fn majority_of_the_voters_is_needed() {
    // The voters are on the hosts 0, 2 and 4.
    let mut t = Fixture::with_voters(5, 2, VoterCount::Three).started();
    assert_eq!(t.disconnected(0), []);
    assert_eq!(t.disconnected(1), []);
    assert_eq!(t.disconnected(4), [Effect::Signal(Signal::SIGTERM)]);
    // An agent that has ended may have ended with the job.
    let mut t = Fixture::with_voters(5, 2, VoterCount::Three).started();
    assert_eq!(t.disconnected(2), []);
    assert_eq!(t.exited(4, 1), []);
    assert_eq!(t.advance(39 * SECOND), []);
    assert_eq!(t.advance(SECOND), [Effect::Signal(Signal::SIGTERM)]);
    let mut t = Fixture::with_voters(5, 2, VoterCount::Three).started();
    assert_eq!(t.disconnected(0), []);
    for host in [2, 3, 1] {
        assert_eq!(t.exited(host, 0), []);
    }
    assert_eq!(t.exited(4, 0), [Effect::Finish(LaunchResult::Succeeded)]);
    let mut t = Fixture::with_voters(5, 2, VoterCount::Five).started();
    for host in [0, 1] {
        assert_eq!(t.disconnected(host), []);
    }
    assert_eq!(t.disconnected(2), [Effect::Signal(Signal::SIGTERM)]);
}

/// After a failure of the job all agents have time to end by themselves.
#[test]
fn failed_job_ends_by_itself() {
    let mut t = Fixture::running(2, 2);
    assert_eq!(t.exited(0, 1), []);
    assert_eq!(t.advance(39 * SECOND), []);
    assert_eq!(t.exited(1, 1), [failed(1, &[])]);
    let mut t = Fixture::running(2, 2);
    assert_eq!(t.exited(0, 1), []);
    assert_eq!(t.advance(40 * SECOND), [Effect::Signal(Signal::SIGTERM)]);
}

/// After success on one host, the others have some seconds to end by themselves, even if another deadline was set before. Then they are
/// signalled to end. An agent that is unreachable does not block the launch.
#[test]
fn succeeded_job_is_not_kept_by_a_stuck_agent() {
    let mut t = Fixture::running(3, 3);
    assert_eq!(t.exited(0, 1), []);
    assert_eq!(t.advance(39 * SECOND), []);
    assert_eq!(t.exited(1, 0), []);
    assert_eq!(t.advance(9 * SECOND), []);
    assert_eq!(t.advance(SECOND), [Effect::Signal(Signal::SIGTERM)]);
    assert_eq!(t.exited(2, 1), [Effect::Finish(LaunchResult::Succeeded)]);
}

/// The end of an agent does not extend the time of the others. An agent that does not end after a signal is killed. The job has still
/// succeeded.
#[test]
fn end_of_a_succeeded_job_is_bounded() {
    let mut t = Fixture::running(4, 2);
    assert_eq!(t.exited(0, 0), []);
    assert_eq!(t.advance(6 * SECOND), []);
    assert_eq!(t.exited(1, 0), []);
    assert_eq!(t.disconnected(2), []);
    assert_eq!(t.advance(4 * SECOND), [Effect::Signal(Signal::SIGTERM)]);
    assert_eq!(t.advance(40 * SECOND), [Effect::Signal(Signal::SIGKILL)]);
    let end = RelayReport::Ended(AgentEnd::Signaled(9));
    assert_eq!(t.report(3, end), [Effect::Finish(LaunchResult::Succeeded)]);
}

/// A host whose relay reports the end of an agent that was not started takes no part in the job. The launch does not wait for its end,
/// which would never be reported again.
#[test]
fn end_before_the_start_is_invalid() {
    for is_reached in [false, true] {
        let mut t = Fixture::new(3, 2);
        if is_reached {
            assert_eq!(t.reached(2), []);
        }
        assert_eq!(t.exited(2, 0), []);
        assert_eq!(t.reached(0), []);
        assert_eq!(t.reached(1), [start(&[0, 1])]);
        // It is not counted as a success of the job.
        assert_eq!(t.reached(2), []);
        assert_eq!(t.exited(0, 0), []);
        assert_eq!(t.exited(1, 0), [Effect::Finish(LaunchResult::Succeeded)]);
    }
}
