//! Notices on a node: it leaves with the end of its round, and shows the notices of the round to its workers.

use ragent_rendezvous::message::{Guidance, Notice, NoticeKind, Requests, Saved};

use super::*;
use crate::{agent::Wanted, saves::NodeSaves};

const NOTICE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3);

impl Fixture {
    /// A node whose workers run in round 1, with time for checkpoints.
    fn noticing() -> Self {
        let mut t = Self::running();
        t.agent.settings.shared.notice = NOTICE;
        t
    }

    fn notice(&mut self, ends_job: bool, within: Option<Duration>) -> Vec<Effect> {
        let received = Received { ends_job, within, text: "SIGTERM".to_owned() };
        assert_eq!(self.agent.handle_notice(self.now, received), Ok(()));
        self.effects()
    }

    fn leave(&mut self) -> Vec<Effect> {
        self.notice(false, None)
    }

    fn guide(&mut self, round: RoundId, notice: Option<Notice>) -> Vec<Effect> {
        self.agent.handle_guidance(self.now, Guidance { round, notice, ..Guidance::default() });
        self.effects()
    }

    /// Receives notice 1 of the round.
    fn begin_phase(&mut self, kind: NoticeKind) {
        let notice = shown(1, kind, Some(NOTICE));
        let effects = self.guide(round(1, 1), Some(notice));
        let [Effect::Local(Action::ShowNotice(Some(notice)))] = &*effects else {
            panic!("{effects:?}")
        };
        assert_eq!(notice.until, Some(self.now + NOTICE));
    }

    fn saves(&mut self, notice: u64, step: u64) -> Vec<Effect> {
        let answer = Some(Saved { notice, step, is_whole: false });
        self.agent.handle_saves(self.now, NodeSaves { answer, ..NodeSaves::default() });
        self.effects()
    }

    fn end_round(&mut self, complete_step: Option<u64>) -> Vec<Effect> {
        let reason = RestartReason::Notice { kind: NoticeKind::Leave, hosts: vec!["a".to_owned()] };
        self.assign(Assignment::Restart {
            round: round(1, 1),
            reason,
            complete_step,
            memory_step: None,
        })
    }

    fn advance(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.agent.handle_timeout(self.now);
        self.effects()
    }

    /// Closes the job, whose workers end. Returns the exit code.
    fn close(&mut self, result: JobResult, complete_step: Option<u64>) -> u8 {
        let outcome = Outcome {
            result,
            first_failure: None,
            other_failures: 0,
            further_failures: Vec::new(),
            restarts_used: 0,
            complete_step,
        };
        let mut effects = self.assign(Assignment::Close(outcome));
        effects.extend(self.finished(GroupEnd::Stopped));
        exit_code(&effects)
    }
}

fn exit_code(effects: &[Effect]) -> u8 {
    let ending = effects.iter().find_map(|effect| match effect {
        Effect::Local(Action::Finish(ending)) => Some(ending.exit_code()),
        _ => None,
    });
    ending.expect("the node's part is over")
}

fn shown(number: u64, kind: NoticeKind, left: Option<Duration>) -> Notice {
    Notice { number, kind, hosts: vec!["a".to_owned()], left, text: "SIGTERM".to_owned() }
}

fn stop() -> Effect {
    Effect::Local(Action::Stop { signal: Signal::TERM, grace: GRACE })
}

/// A member that is to leave reports it, and its workers run until the coordinator ends the round. Then it leaves.
#[test]
fn leaver_waits_for_the_end_of_its_round() {
    let mut t = Fixture::noticing();
    assert_eq!(t.leave(), [t.sends(NodeState::Running)]);
    let notice = t.agent.report(t.now + SECOND).notice.expect("reported");
    assert_eq!((notice.ends_job, notice.left), (false, NOTICE - SECOND));
    t.begin_phase(NoticeKind::Leave);
    assert_eq!(t.saves(1, 10), [t.sends(NodeState::Running)]);
    let effects = t.end_round(Some(10));
    let leaving = t.sends(NodeState::Leaving { reaped: false });
    assert_eq!(effects, [Effect::Local(Action::ShowNotice(None)), leaving, stop()]);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Leaving { reaped: true })]);
    let left = Action::Finish(Ending::Left { signal: None, saved_step: None });
    assert!(t.assign(Assignment::Dismiss).contains(&Effect::Local(left)));
}

/// A node without workers leaves at once, and so does any without time for a checkpoint.
#[test]
fn leaver_without_work_leaves_at_once() {
    let mut t = Fixture::ready();
    t.agent.settings.shared.notice = NOTICE;
    assert_eq!(t.leave(), [t.sends(NodeState::Leaving { reaped: true })]);
    let mut t = Fixture::noticing();
    t.finished(GroupEnd::Succeeded);
    assert_eq!(t.leave(), [t.sends(NodeState::Leaving { reaped: true })]);
    let mut t = Fixture::running();
    assert_eq!(t.leave(), [t.sends(NodeState::Leaving { reaped: false }), stop()]);
}

/// A signal between two rounds, after a checkpoint of all ranks: nothing is lost. Work may be lost if the
/// node has no coordinator, or a later round has begun.
#[test]
fn leaver_between_rounds_has_lost_nothing() {
    let leave_between = |complete_step, stops_first: bool| {
        let mut t = Fixture::noticing();
        t.begin_phase(NoticeKind::Leave);
        t.end_round(complete_step);
        if stops_first {
            t.finished(GroupEnd::Stopped);
        }
        t
    };
    for (complete_step, code) in [(Some(10), SAVED), (None, LEFT)] {
        let mut t = leave_between(complete_step, true);
        assert_eq!(t.leave(), [t.sends(NodeState::Leaving { reaped: true })]);
        assert_eq!(exit_code(&t.assign(Assignment::Dismiss)), code);
        let mut t = leave_between(complete_step, false);
        assert_eq!(t.leave(), [t.sends(NodeState::Stopping)]);
        t.finished(GroupEnd::Stopped);
        assert_eq!(exit_code(&t.assign(Assignment::Dismiss)), code);
    }
    let mut t = leave_between(Some(10), true);
    t.agent.handle_disconnected(t.now);
    t.agent.handle_lease_lost();
    t.effects();
    assert_eq!(exit_code(&t.leave()), LEFT);
    let mut t = leave_between(Some(10), true);
    t.agent.handle_disconnected(t.now);
    t.leave();
    t.agent.handle_lease_lost();
    assert_eq!(exit_code(&t.effects()), SAVED, "it had its lease until then");
    let mut t = leave_between(Some(10), true);
    let reason = WaitReason::NextRound;
    t.assign(Assignment::Wait { round: round(1, 2), reason, memory: None });
    t.leave();
    assert_eq!(exit_code(&t.assign(Assignment::Dismiss)), LEFT);
}

/// The end of a notice names the workers that have saved nothing, and a step in memory that was enough.
#[test]
fn end_of_a_notice_says_who_has_not_saved() {
    let here = |saves: Option<NodeSaves>| {
        let mut t = Fixture::noticing();
        t.begin_phase(NoticeKind::Leave);
        if let Some(saves) = saves {
            t.agent.handle_saves(t.now, saves);
        }
        t.effects();
        let reason = RestartReason::Notice { kind: NoticeKind::Leave, hosts: Vec::new() };
        t.agent.handle_assignment(
            t.now,
            Assignment::Restart {
                round: round(1, 1),
                reason,
                complete_step: None,
                memory_step: Some(20),
            },
        );
        let effects: Vec<Effect> = std::iter::from_fn(|| t.agent.poll_effect()).collect();
        let end = effects.into_iter().find_map(|effect| match effect {
            Effect::Local(Action::Announce(News::NoticeOver(end))) => Some(end),
            _ => None,
        });
        let end = end.expect("it is announced");
        assert_eq!((end.step, end.memory_step), (None, Some(20)));
        end.here
    };
    let unanswered = |notice, ranks: &[u32]| {
        let ranks = ranks.iter().copied().map(LocalRank).collect();
        Some(NodeSaves { unanswered: Some((notice, ranks)), ..NodeSaves::default() })
    };
    assert_eq!(here(None), SavedHere::Nothing);
    assert_eq!(here(unanswered(1, &[1])), SavedHere::NotBy(vec![GlobalRank(1)]));
    assert_eq!(here(unanswered(1, &[])), SavedHere::OtherSteps);
    assert_eq!(here(unanswered(2, &[1])), SavedHere::Nothing, "another notice");
}

/// A node whose workers have saved and exited stays until the round ends: others may still save.
#[test]
fn leaver_that_has_saved_and_exited_stays() {
    let mut t = Fixture::noticing();
    t.begin_phase(NoticeKind::Leave);
    t.saves(1, 10);
    t.finished(GroupEnd::Succeeded);
    assert_eq!(t.leave(), [t.sends(NodeState::Succeeded)]);
    let effects = t.end_round(Some(10));
    assert_eq!(*effects.last().expect("a report"), t.sends(NodeState::Leaving { reaped: true }));
}

/// A node whose workers are being stopped leaves when they have ended.
#[test]
fn leaver_in_a_stop_leaves_after_it() {
    let mut t = Fixture::noticing();
    t.restart(round(1, 1));
    assert_eq!(t.leave(), [t.sends(NodeState::Stopping)]);
    assert_eq!(t.finished(GroupEnd::Stopped), [t.sends(NodeState::Leaving { reaped: true })]);
}

/// If the coordinator does not end the round in time, the node leaves by itself. If the job is to end, it first waits as
/// long as for any coordinator, because no other node knows of that.
#[test]
fn leaver_has_a_deadline_of_its_own() {
    for (ends_job, patience) in [(false, LEASE), (true, 600 * SECOND)] {
        let mut t = Fixture::noticing();
        t.notice(ends_job, Some(10 * SECOND));
        assert_eq!(t.agent.poll_timeout(), Some(t.now + 10 * SECOND + patience));
        assert_eq!(t.advance(10 * SECOND), []);
        assert_eq!(t.advance(patience), [t.sends(NodeState::Leaving { reaped: false }), stop()]);
        assert_eq!(t.agent.poll_timeout(), None);
    }
}

/// Notices join: the end is the earliest, and the end of the job is stronger.
#[test]
fn notices_join() {
    let mut t = Fixture::noticing();
    t.leave();
    t.notice(true, Some(20 * SECOND));
    t.leave();
    let notice = t.agent.report(t.now).notice.expect("reported");
    assert_eq!((notice.ends_job, notice.left), (true, 20 * SECOND));
    // The source cannot lengthen `--notice`.
    let mut t = Fixture::noticing();
    t.notice(false, Some(1_000 * SECOND));
    assert_eq!(t.agent.report(t.now).notice.expect("reported").left, NOTICE);
}

/// A notice that the job ends is reported in any state, even without time for a checkpoint.
#[test]
fn end_is_reported() {
    let mut t = Fixture::ready();
    assert_eq!(t.notice(true, None), [t.sends(NodeState::Ready { store_port: PORT })]);
    let notice = t.agent.report(t.now).notice.expect("reported");
    assert_eq!((notice.ends_job, notice.left), (true, Duration::ZERO));
    // It is repeated when the node is back.
    let mut t = Fixture::noticing();
    t.notice(true, None);
    t.restart(round(1, 1));
    t.finished(GroupEnd::Stopped);
    assert!(t.agent.report(t.now).notice.is_some_and(|notice| notice.ends_job));
}

/// A notice of another round, or for a node whose workers do not run, is ignored.
#[test]
fn guidance_of_another_round_is_ignored() {
    let mut t = Fixture::noticing();
    let notice = || Some(shown(1, NoticeKind::Leave, Some(NOTICE)));
    for other in [round(1, 2), round(2, 1), round(1, 0)] {
        assert_eq!(t.guide(other, notice()), []);
    }
    assert_eq!(t.agent.notice_number(), 0);
    t.restart(round(1, 1));
    assert_eq!(t.guide(round(1, 1), notice()), []);
}

/// The user reads once in a round that memory is off.
#[test]
fn memory_off_is_announced_once() {
    let mut t = Fixture::noticing();
    let announced = |t: &mut Fixture, round: RoundId| {
        let memory_off = Some("a has no room".to_owned());
        t.agent.handle_guidance(t.now, Guidance { round, memory_off, ..Guidance::default() });
        let effects = std::iter::from_fn(|| t.agent.poll_effect());
        let news = News::MemoryOff(round, "a has no room".to_owned());
        effects.filter(|effect| *effect == Effect::Local(Action::Announce(news.clone()))).count()
    };
    assert_eq!(announced(&mut t, round(1, 2)), 0, "of another round");
    let counts = [(); 3].map(|()| announced(&mut t, round(1, 1)));
    assert_eq!(counts, [1, 0, 0]);
}

/// A repeated notice is shown once. A change is shown.
#[test]
fn notice_is_shown_once() {
    let mut t = Fixture::noticing();
    t.begin_phase(NoticeKind::Members);
    t.now += 5 * SECOND;
    let again = shown(1, NoticeKind::Members, Some(NOTICE - 5 * SECOND));
    assert_eq!(t.guide(round(1, 1), Some(again)), []);
    let mut left = NOTICE - 5 * SECOND;
    for (earlier, is_shown) in [(SECOND, false), (2 * SECOND, true)] {
        let sooner = shown(1, NoticeKind::Members, Some(left - earlier));
        assert_eq!(!t.guide(round(1, 1), Some(sooner)).is_empty(), is_shown, "{earlier:?}");
    }
    left -= 2 * SECOND;
    let more = Notice { hosts: vec!["b".to_owned()], ..shown(1, NoticeKind::Members, Some(left)) };
    assert_eq!(t.guide(round(1, 1), Some(more.clone())).len(), 1, "another host");
    let kind = NoticeKind::Save;
    assert_eq!(t.guide(round(1, 1), Some(Notice { kind, ..more.clone() })).len(), 1);
    let next = Notice { number: 2, kind, ..more };
    assert_eq!(t.guide(round(1, 1), Some(next)).len(), 1, "another notice");
    t.guide(round(1, 1), None);
    t.begin_phase(NoticeKind::End);
    assert_eq!(t.guide(round(1, 1), None), [Effect::Local(Action::ShowNotice(None))]);
    assert_eq!(t.agent.notice_number(), 2);
}

/// Only an answer to the newest notice is reported, and only if the round ends after it. Workers may know of it before
/// this node does, from ranks of other nodes.
#[test]
fn answers_belong_to_their_notice() {
    let mut t = Fixture::noticing();
    assert_eq!(t.saves(1, 10), [t.sends(NodeState::Running)]);
    assert_eq!(t.agent.report(t.now).saved.map(|saved| saved.notice), Some(1));
    t.guide(round(1, 1), Some(shown(1, NoticeKind::Save, None)));
    t.saves(1, 10);
    assert_eq!(t.agent.report(t.now).saved, None, "the round goes on");
    t.guide(round(1, 1), Some(shown(2, NoticeKind::Leave, Some(NOTICE))));
    t.saves(1, 20);
    assert_eq!(t.agent.report(t.now).saved, None);
    assert_eq!(t.saves(2, 20), [t.sends(NodeState::Running)]);
    assert_eq!(t.agent.report(t.now).saved.map(|saved| saved.step), Some(20));
    assert_eq!(t.saves(2, 20), [], "the same answer");
}

/// The workers of the next round do not see a notice of this one, however the round ends on this node.
#[test]
fn next_round_begins_without_a_notice() {
    let removed = Effect::Local(Action::ShowNotice(None));
    let end = |how: fn(&mut Fixture)| {
        let mut t = Fixture::noticing();
        t.begin_phase(NoticeKind::Leave);
        t.saves(1, 10);
        how(&mut t);
        let mut effects = t.effects();
        effects.extend(t.finished(GroupEnd::Stopped));
        (t, effects)
    };
    let failed: fn(&mut Fixture) = |t| t.agent.handle_failed(t.now, failure(round(1, 1)));
    let evicted: fn(&mut Fixture) = |t| {
        let reason = EvictReason::Silent;
        let evict = Assignment::Evict { round: round(1, 1), reason };
        t.agent.handle_assignment(t.now, evict);
    };
    let expired: fn(&mut Fixture) = |t| t.agent.handle_lease_lost();
    for how in [failed, evicted, expired] {
        let (mut t, effects) = end(how);
        assert!(effects.contains(&removed), "{effects:?}");
        assert_eq!(t.agent.report(t.now).saved, None);
        t.store_open();
        t.assign(Assignment::Admit(admission(1, 2)));
        assert_eq!(t.agent.notice_number(), 1);
        assert_eq!(t.agent.report(t.now).saved, None);
    }
}

/// Checkpoints and looks can be requested while workers run.
#[test]
fn requests_are_counted() {
    let mut t = Fixture::ready();
    assert_eq!(t.agent.handle_request(t.now, Wanted::Save), Err(NotTaken::NoRound));
    let mut t = Fixture::running();
    assert_eq!(t.agent.handle_request(t.now, Wanted::Save), Ok(()));
    assert_eq!(t.effects(), [t.sends(NodeState::Running)]);
    assert_eq!(t.agent.handle_request(t.now, Wanted::Look), Ok(()));
    assert_eq!(t.effects(), [t.sends(NodeState::Running)]);
    assert_eq!(t.agent.report(t.now).requests, Requests { saves: 1, looks: 1 });
    t.signal();
    assert_eq!(t.agent.handle_request(t.now, Wanted::Save), Err(NotTaken::TooLate));
    let received = Received { ends_job: true, within: None, text: String::new() };
    assert_eq!(t.agent.handle_notice(t.now, received), Err(NotTaken::TooLate));
}

/// The exit codes after a notice: 5 if all ranks have saved, and no work is lost.
#[test]
fn exit_codes_of_notices() {
    let timed_out = || JobResult::JoinTimeout {
        present: 1,
        min: 2,
        waited: SECOND,
        after: Round(1),
        departed: Box::default(),
    };
    let no_progress = || JobResult::NoProgress { rounds: vec![Round(1)], step: None };
    let codes = [
        (JobResult::Saved { step: 7 }, Some(7), SAVED),
        (JobResult::AllLeft, None, LEFT),
        (JobResult::AllLeft, Some(7), SAVED),
        (timed_out(), None, 1),
        (timed_out(), Some(7), SAVED),
        (JobResult::BudgetSpent, Some(7), 1),
        (JobResult::FinalFailure, Some(7), 1),
        (no_progress(), Some(7), NO_PROGRESS),
    ];
    for (result, complete_step, code) in codes {
        let mut t = Fixture::noticing();
        assert_eq!(t.close(result.clone(), complete_step), code, "{result:?} {complete_step:?}");
    }
    // Later agents of a job without progress.
    let outcome = |result| Outcome {
        result,
        first_failure: None,
        other_failures: 0,
        further_failures: Vec::new(),
        restarts_used: 0,
        complete_step: None,
    };
    let refused = |outcome| Ending::Refused(RefuseReason::Closed(outcome));
    assert_eq!(refused(outcome(no_progress())).exit_code(), CLOSED_BEFORE);
    // After a saved job, another agent of this name begins the next one.
    let at_an_end = Outcome { complete_step: Some(7), ..outcome(JobResult::Succeeded) };
    assert!(refused(outcome(JobResult::Saved { step: 7 })).is_of_saved_job());
    assert!(refused(at_an_end.clone()).is_of_saved_job());
    assert!(!refused(outcome(JobResult::Succeeded)).is_of_saved_job());
    assert!(!Ending::Closed(at_an_end).is_of_saved_job());
}

/// A node that lost its coordinator knows that all is saved only if its host has left for good, after a round that
/// was saved. Otherwise the job may have gone on without this node.
#[test]
fn unreachable_coordinator_may_have_saved() {
    let play = |has_left: bool, later: fn(&mut Fixture)| {
        let mut t = Fixture::noticing();
        t.begin_phase(NoticeKind::Leave);
        t.end_round(Some(10));
        t.finished(GroupEnd::Stopped);
        t.store_open();
        later(&mut t);
        if has_left {
            t.agent.handle_host_leaving();
        }
        t.agent.handle_disconnected(t.now);
        t.effects();
        exit_code(&t.advance(600 * SECOND))
    };
    assert_eq!(play(true, |_| {}), SAVED);
    assert_eq!(play(false, |_| {}), HOST_GONE);
    // The node was admitted to another round, or another round runs without it.
    assert_eq!(play(true, |t| drop(t.assign(Assignment::Admit(admission(1, 2))))), HOST_GONE);
    let spare = |t: &mut Fixture| {
        drop(t.assign(Assignment::Wait {
            round: round(1, 2),
            reason: WaitReason::Spare,
            memory: None,
        }));
    };
    assert_eq!(play(true, spare), HOST_GONE);
    let waits = |t: &mut Fixture| {
        drop(t.assign(Assignment::Wait {
            round: round(1, 1),
            reason: WaitReason::Gathering,
            memory: None,
        }));
    };
    assert_eq!(play(true, waits), SAVED);
}

/// The end of the job concerns each node. That others leave does not.
#[test]
fn end_of_the_job_is_here() {
    for (kind, is_here) in [(NoticeKind::End, true), (NoticeKind::Leave, false)] {
        let effects = Fixture::noticing().guide(round(1, 1), Some(shown(1, kind, Some(NOTICE))));
        let [Effect::Local(Action::ShowNotice(Some(notice)))] = &*effects else {
            panic!("{effects:?}")
        };
        assert_eq!(notice.is_here, is_here);
    }
}
