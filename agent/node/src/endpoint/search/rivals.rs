//! Decides between two hosts of one job that learn of each other.
//!
//! Both have the same information and apply the same rule, so at most one steps down: the one with the later job in the order of
//! [`Seniority`]. A host stays if its job has begun. If both jobs have begun, their voters decide which one closes.

use ragent_rendezvous::{
    ids::Round,
    known_job::Seniority,
    snapshot::{PhaseName, Snapshot},
};

/// The reaction of a host to another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// This host steps down, and its agents join the other one.
    StepDown,
    /// This host stays. The other one steps down, or ends.
    Stay,
    /// Both jobs have begun. Their voters ask each other, and the younger job closes. Without voters, two jobs remain.
    BothBegun,
    /// Both hosts stay, so two jobs remain: their settings differ.
    Clash,
}

/// Decides for the host with state `own`, about a host with state `theirs`.
pub(crate) fn verdict(own: &Snapshot, theirs: &Snapshot) -> Verdict {
    let settings = |job: &Snapshot| (job.min_nodes, job.max_nodes, job.max_restarts);
    // A host with the same uid is this host itself at another address, or it continues the same run.
    let is_other = theirs.job_uid != own.job_uid && theirs.run_id == own.run_id;
    if !is_other || is_ending(theirs) || is_ending(own) {
        Verdict::Stay
    } else if settings(own) != settings(theirs) {
        Verdict::Clash
    } else if has_begun(own) && has_begun(theirs) {
        Verdict::BothBegun
    } else if seniority(theirs) < seniority(own) {
        Verdict::StepDown
    } else {
        Verdict::Stay
    }
}

/// Returns the place of a job among two. At most one of them has begun.
fn seniority(job: &Snapshot) -> Seniority {
    let uid = job.job_uid.clone();
    if has_begun(job) { Seniority { born_ms: 0, uid } } else { Seniority::without_round(uid) }
}

/// Returns true if an earlier round binds nodes to this coordinator.
fn has_begun(job: &Snapshot) -> bool {
    job.round != Round(0) || job.phase != PhaseName::Gathering
}

/// Returns true if the coordinator is about to end: its job has ended, or its host leaves.
fn is_ending(job: &Snapshot) -> bool {
    let host_leaves = job.incomplete.as_ref().is_some_and(|why| why.kind == "host_leaving");
    job.phase == PhaseName::Closed || host_leaves
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::empty_snapshot;
    use ragent_rendezvous::{
        ids::{JobUid, RunId},
        snapshot::Explanation,
    };

    use super::*;

    fn job(uid: &str) -> Snapshot {
        Snapshot {
            job_uid: JobUid::new(uid),
            min_nodes: 2,
            max_nodes: 4,
            max_restarts: 3,
            ..empty_snapshot()
        }
    }

    fn begun(uid: &str) -> Snapshot {
        Snapshot { round: Round(1), phase: PhaseName::Running, ..job(uid) }
    }

    /// If both can step down, one does. If only one can, it does.
    #[test]
    fn exactly_one_steps_down() {
        for (one, other) in [
            (job("b"), job("a")),
            (job("a"), begun("b")),
            (job("b"), begun("a")),
            (job("a"), Snapshot { phase: PhaseName::Recovering, ..begun("b") }),
        ] {
            assert_eq!(verdict(&one, &other), Verdict::StepDown, "{one:?} {other:?}");
            assert_eq!(verdict(&other, &one), Verdict::Stay, "{other:?} {one:?}");
        }
    }

    /// If neither can step down, both report it.
    #[test]
    fn two_jobs_clash() {
        let (one, other) = (begun("a"), begun("b"));
        assert_eq!(verdict(&one, &other), Verdict::BothBegun);
        assert_eq!(verdict(&other, &one), Verdict::BothBegun);
        for other in [
            Snapshot { min_nodes: 1, ..job("a") },
            Snapshot { max_nodes: 5, ..begun("a") },
            Snapshot { max_restarts: 0, ..job("a") },
        ] {
            assert_eq!(verdict(&job("b"), &other), Verdict::Clash);
        }
    }

    /// A host does not step down for itself, to another job, or to a host that is about to end.
    #[test]
    fn nobody_goes_where_nothing_is() {
        let leaving = Explanation { kind: "host_leaving".to_owned(), text: String::new() };
        for other in [
            begun("b"),
            Snapshot { run_id: RunId::new("other"), ..begun("a") },
            Snapshot { phase: PhaseName::Closed, ..begun("a") },
            Snapshot { incomplete: Some(leaving), ..begun("a") },
        ] {
            assert_eq!(verdict(&job("b"), &other), Verdict::Stay, "{other:?}");
        }
    }
}
