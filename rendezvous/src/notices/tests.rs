//! When a phase begins, which notices join it, and what ends it.

use std::{collections::BTreeSet, time::Duration};

use NoticeKind::{End, Leave, Members, Save};

use super::*;
use crate::{
    fixture::{SECOND, TestJob, some_instant},
    memory::fixture::{MemoryJob, checkpoint},
    message::{NodeNotice, Saved},
};

const NOTICE: Duration = Duration::from_secs(60);

/// A job whose round runs.
struct Noticed {
    t: TestJob,
    notices: JobNotices,
    memory: JobMemory,
    complete_step: Option<u64>,
}

/// A phase that is over: its kind, the step on disk, and the one in memory.
type Over = Option<(NoticeKind, Option<u64>, Option<u64>)>;

fn running(names: &[&str]) -> Noticed {
    let MemoryJob { t, memory } = MemoryJob::running(1, 3, names, |it| it.notice = NOTICE);
    Noticed { notices: JobNotices::new(&t.job.state), t, memory, complete_step: None }
}

impl Noticed {
    /// Reports that a node has received a notice.
    fn notice(&mut self, name: &str, ends_job: bool, left: Duration) -> Over {
        let text = format!("signal on {name}");
        self.t.report(name, |it| it.notice = Some(NodeNotice { ends_job, left, text }));
        self.step()
    }

    fn leave(&mut self, name: &str) -> Over {
        self.notice(name, false, NOTICE)
    }

    /// Reports that the workers of a node have saved a step for a notice.
    fn save(&mut self, name: &str, notice: u64, step: u64) -> Over {
        self.t.report(name, |it| it.saved = Some(Saved { notice, step, is_whole: step == 4 }));
        self.notices.record_answer(&self.t.job, &NodeId::new(name));
        self.step()
    }

    fn request(&mut self) -> Over {
        self.notices.request_save();
        self.step()
    }

    fn pass(&mut self, time: Duration) -> Over {
        self.t.pass(time);
        self.step()
    }

    fn step(&mut self) -> Over {
        let (job, out) = (&self.t.job, &mut self.t.out);
        self.notices.give_pending(job, out);
        self.notices.give_request(job, out);
        let over = self.notices.end_if_over(job, &self.memory, self.complete_step, out)?;
        Some((over.kind, over.step, over.memory_step))
    }

    fn give_for_members(&mut self) {
        self.notices.give_for_members(&self.t.job, self.t.shared(), &mut self.t.out);
    }

    fn withdraw(&mut self) {
        self.notices.withdraw_for_members(&self.t.job, &mut self.t.out);
    }

    /// Returns the newest notice, as it is sent.
    fn newest(&self) -> Option<(u64, NoticeKind)> {
        self.notices.newest(self.t.job.clock).map(|notice| (notice.number, notice.kind))
    }
}

/// If not all save in time, the phase ends with the notice, but never later than after `--notice`. Nothing is known to be saved
/// then, and the event names the ranks that have not.
#[test]
fn phase_ends_with_its_time() {
    for (left, time) in [(20, 20), (1_000, 60)] {
        let mut n = running(&["a", "b"]);
        assert_eq!(n.notice("b", false, left * SECOND), None);
        assert_eq!((n.save("a", 1, 120), n.pass((time - 1) * SECOND)), (None, None));
        assert_eq!(n.notices.deadline(&n.t.job), Some(n.t.job.clock + SECOND));
        assert_eq!(n.pass(SECOND), Some((Leave, None, None)));
        let events = n.t.events();
        let Some(EventKind::NoticeOver { missing, after_ms, .. }) = events.last() else {
            panic!("{events:?}")
        };
        assert_eq!((&**missing, *after_ms), ("1", u64::from(time) * 1_000));
    }
    let mut n = running(&["a", "b"]);
    n.t.job.settings.shared = Some(SharedSettings { notice: Duration::ZERO, ..n.t.shared() });
    assert_eq!(n.notice("a", true, SECOND), Some((End, None, None)), "without `--notice`");
}

/// The phase ends when all members have saved the same step, or one worker the parts of all (here step 4), or if all have saved for an
/// earlier notice and have done nothing since. An answer to an earlier notice or of a node without a place does not count.
#[test]
fn all_must_save_for_this_notice() {
    let mut n = running(&["a", "b"]);
    n.t.join("spare");
    assert_eq!((n.request(), n.newest()), (None, Some((1, Save))));
    assert_eq!((n.save("a", 1, 100), n.save("b", 1, 100)), (None, None), "the round goes on");
    assert_eq!((n.leave("b"), n.newest()), (None, Some((2, Leave))));
    assert_eq!((n.save("a", 1, 110), n.save("b", 1, 110)), (None, None));
    assert_eq!((n.save("a", 2, 120), n.save("spare", 2, 120)), (None, None));
    assert_eq!(n.save("b", 2, 130), None, "different steps");
    assert_eq!(n.save("a", 2, 130), Some((Leave, Some(130), None)));
    let mut n = running(&["a", "b"]);
    assert_eq!((n.leave("b"), n.save("a", 1, 4)), (None, Some((Leave, Some(4), None))));
    n.complete_step = Some(100);
    assert_eq!(n.notice("b", true, NOTICE), Some((End, Some(100), None)));
}

/// A second notice joins the phase: it keeps its number, and has the strongest kind, the earliest end and all nodes that leave.
#[test]
fn second_notice_joins_the_phase() {
    let mut n = running(&["a", "b", "c"]);
    n.leave("b");
    n.save("a", 1, 50);
    n.pass(10 * SECOND);
    n.notice("c", false, 5 * SECOND);
    assert_eq!(n.newest(), Some((1, Leave)));
    let saving = n.notices.saving(n.t.job.clock, &n.t.job).expect("a phase");
    assert_eq!((saving.left_ms, saving.hosts), (5_000, vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!((saving.saved_ranks, saving.ranks, &*saving.missing), (1, 3, "1-2"));
    n.t.out.has_guidance = false;
    n.notice("c", false, 5 * SECOND);
    assert!(!n.t.out.has_guidance, "a repetition changes nothing");
    n.notice("b", true, 50 * SECOND);
    assert_eq!((n.t.out.has_guidance, n.newest()), (true, Some((1, End))));
    // What was saved for the notice still counts.
    assert_eq!((n.save("b", 1, 50), n.save("c", 1, 50)), (None, Some((End, Some(50), None))));
}

/// The job ends with a notice for all of it, also on a spare, and if all nodes leave. A spare that leaves has nothing to save.
#[test]
fn job_ends_if_nobody_stays() {
    let kind = |members: &[&str], notices: &[(&str, bool)]| {
        let mut n = running(members);
        n.t.join("spare");
        for (name, ends_job) in notices {
            n.notice(name, *ends_job, NOTICE);
        }
        n.newest().map(|(_, kind)| kind)
    };
    assert_eq!(kind(&["a", "b"], &[("a", false), ("b", false)]), Some(Leave), "the spare stays");
    assert_eq!(kind(&["a"], &[("a", false), ("spare", false)]), Some(End));
    assert_eq!(kind(&["a", "b"], &[("a", true)]), Some(End));
    assert_eq!(kind(&["a", "b"], &[("spare", true)]), Some(End));
    assert_eq!(kind(&["a", "b"], &[("spare", false)]), None);
}

/// Workers that have saved for the notice and then exit with 0 have not succeeded. Others have, also after the answer to a request
/// for a checkpoint.
#[test]
fn exit_after_a_save_is_no_success() {
    let mut n = running(&["a", "b"]);
    let [a, b] = ["a", "b"].map(NodeId::new);
    n.request();
    n.save("a", 1, 5);
    assert!(!n.notices.note_exit(&a), "the round goes on");
    n.leave("b");
    n.save("a", 2, 8);
    assert!(n.notices.note_exit(&a) && !n.notices.note_exit(&b));
}

/// Requests for a checkpoint are passed on at once, and then once a minute. The checkpoint of a phase answers a request too.
#[test]
fn requests_are_spaced() {
    let mut n = running(&["a", "b"]);
    n.request();
    assert_eq!((n.request(), n.newest()), (None, Some((1, Save))));
    assert_eq!((n.pass(SAVE_SPACING - SECOND), n.newest()), (None, Some((1, Save))));
    assert_eq!(n.notices.deadline(&n.t.job), Some(n.t.job.clock + SECOND));
    assert_eq!((n.pass(SECOND), n.newest()), (None, Some((2, Save))));
    assert_eq!((n.pass(5 * SAVE_SPACING), n.newest()), (None, Some((2, Save))));
    n.leave("b");
    assert_eq!((n.request(), n.newest()), (None, Some((3, Leave))));
}

/// The phase for nodes that wait is withdrawn, unless workers have exited because of it, or a node leaves by now.
#[test]
fn phase_for_members_is_withdrawn() {
    let mut n = running(&["a", "b"]);
    n.give_for_members();
    n.withdraw();
    assert_eq!((n.newest(), n.pass(2 * NOTICE)), (None, None));
    n.give_for_members();
    n.save("a", 2, 110);
    assert!(n.notices.note_exit(&NodeId::new("a")));
    n.withdraw();
    assert_eq!((n.newest(), n.pass(NOTICE)), (Some((2, Members)), Some((Members, None, None))));
    n.give_for_members();
    assert_eq!((n.leave("b"), n.newest()), (None, Some((3, Leave))));
    assert_eq!(n.notices.newest(n.t.job.clock).expect("a notice").text, "signal on b");
    n.withdraw();
    assert_eq!(n.newest(), Some((3, Leave)));
}

/// Before nodes leave or join, a checkpoint in memory is enough after a few seconds, in which other nodes may get their signal, or at
/// the end of the phase. A job that ends needs one on disk.
#[test]
fn memory_is_enough_after_a_while() {
    let play = |ends_job: bool, left: Duration| {
        let mut n = running(&["a", "b"]);
        n.t.join("spare");
        n.notice("b", ends_job, left);
        n.t.pass(SECOND);
        let mut job = MemoryJob { t: n.t, memory: n.memory };
        job.hold_both(checkpoint(1, 20));
        let mut n = Noticed { t: job.t, memory: job.memory, ..n };
        let at_once = n.step();
        (at_once.is_some(), at_once.or_else(|| n.pass(MEMORY_IS_ENOUGH_AFTER - SECOND)))
    };
    let in_memory = Some((Leave, None, Some(20)));
    assert_eq!(play(false, NOTICE), (false, in_memory));
    assert_eq!(play(false, SECOND), (true, in_memory));
    assert_eq!(play(true, NOTICE), (false, None));
}

/// The numbers of notices go on under the next coordinator.
#[test]
fn numbers_outlive_the_coordinator() {
    let mut n = running(&["a", "b"]);
    n.leave("a");
    assert_eq!(n.newest().map(|(number, _)| number), Some(1));
    let mut state = n.t.job.state.clone();
    n.notices.keep(&mut state);
    n.notices = JobNotices::new(&state);
    n.leave("b");
    assert_eq!(n.newest().map(|(number, _)| number), Some(2));
}

/// A phase keeps the text of the first notice of its kind. A stronger one replaces it.
#[test]
fn stronger_notice_replaces_the_text() {
    let now = some_instant();
    let mut phase = NoticePhase::new(now, 1, Members, Some(now + NOTICE), "first".to_owned());
    for (kind, text) in [(Members, "first"), (End, "second"), (End, "second")] {
        let sent = if text == phase.text { "another" } else { text };
        phase.join(kind, now + NOTICE, BTreeSet::new(), sent.to_owned());
        assert_eq!(phase.text, text);
    }
}

/// Ranks that have not saved are listed as ranges, and only the first ones.
#[test]
fn ranks_that_have_not_saved_are_ranges() {
    let names: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut t = TestJob::new(1, 40, &names);
    t.begin_round(&names);
    let missing = |t: &mut TestJob, has_saved: &dyn Fn(usize) -> bool| {
        let mut phase = NoticePhase::new(t.job.clock, 1, Save, None, String::new());
        for (_, name) in names.iter().enumerate().filter(|(number, _)| has_saved(*number)) {
            let saved = Saved { notice: 1, step: 7, is_whole: false };
            phase.record(&NodeId::new(*name), &saved);
        }
        missing_ranks(t.group(), &phase)
    };
    assert_eq!(missing(&mut t, &|number| number == 1 || number >= 32), "0, 2-31");
    let odd = "1, 3, 5, 7, 9, 11, 13, 15 and 12 more ranges";
    assert_eq!(missing(&mut t, &|number| number % 2 == 0), odd);
}
