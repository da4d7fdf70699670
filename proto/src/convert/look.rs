//! Converts looks at the workers of a stalled job, and the answers.

use prost::Message;
use ragent_rendezvous::message::{
    Activity, DIGEST_GROUPS_MAX, DIGEST_MAX, DIGEST_WORKERS_MAX, Digest, FACTS_MAX, GROUP_NAME_MAX,
    GroupLook, Hung, LAUNCHES_MAX, LINE_MAX, LISTED_RANKS_MAX, Launched, Look, LookPart,
    WorkerLook,
};

use super::{fitted_line, line, list, round, to_round};
use crate::{Malformed, v1};

enumeration!(LookPart, LookPart, "look.part", [First, Second]);
enumeration!(Activity, Activity, "worker_look.activity", [Collective, Wait, Other]);

message!(Look, v1::Look, "look", { number: Same, part: Enumeration });

message!(Hung, v1::Hung, "hung", { rank: Same, ms as time: Millis, if_stopped: Same });

impl From<Digest> for v1::Digest {
    fn from(digest: Digest) -> Self {
        shortened(Self {
            round: to_round(digest.round),
            look: digest.look,
            part: v1::LookPart::from(digest.part).into(),
            workers: digest.workers.into_iter().map(Into::into).collect(),
            groups: digest.groups.into_iter().map(Into::into).collect(),
            facts: digest.facts.iter().map(|fact| fitted_line(fact)).collect(),
            // A part of a path leads nowhere.
            is_cut: digest.is_cut,
            logs: digest.logs.filter(|path| fitted_line(path) == *path),
        })
    }
}

/// Leaves out what does not fit. The lines of the last workers go first, because their activity is enough to
/// find the others. Without them, a rank may still be blamed.
fn shortened(mut digest: v1::Digest) -> v1::Digest {
    for last in (0..digest.workers.len()).rev() {
        if digest.encoded_len() <= DIGEST_MAX {
            return digest;
        }
        let worker = &mut digest.workers[last];
        (worker.line, worker.waits_in) = (None, None);
    }
    while digest.encoded_len() > DIGEST_MAX {
        digest.is_cut = true;
        let is_shorter = digest.workers.pop().is_some()
            || digest.groups.pop().is_some()
            || digest.facts.pop().is_some();
        if !is_shorter {
            break;
        }
    }
    digest
}

impl TryFrom<v1::Digest> for Digest {
    type Error = Malformed;

    fn try_from(digest: v1::Digest) -> Result<Self, Malformed> {
        let len = digest.encoded_len();
        if len > DIGEST_MAX {
            return Err(Malformed::TooLong { field: "digest", len, limit: DIGEST_MAX });
        }
        Ok(Self {
            part: digest.part().try_into()?,
            round: round(digest.round, "digest.round")?,
            look: digest.look,
            workers: list(digest.workers, "digest.workers", DIGEST_WORKERS_MAX, TryInto::try_into)?,
            groups: list(digest.groups, "digest.groups", DIGEST_GROUPS_MAX, TryInto::try_into)?,
            facts: list(digest.facts, "digest.facts", FACTS_MAX, |fact| {
                line(fact, "digest.facts")
            })?,
            is_cut: digest.is_cut,
            logs: digest.logs.map(|path| line(path, "digest.logs")).transpose()?,
        })
    }
}

message!(WorkerLook, v1::WorkerLook, "worker_look", {
    rank: Same,
    activity: IfKnown,
    state: Letter,
    has_reached_store: Same,
    line: Optional(OneLine(LINE_MAX)),
    waits_in: Optional(OneLine(LINE_MAX)),
});

message!(GroupLook, v1::GroupLook, "group_look", {
    name: OneLine(GROUP_NAME_MAX),
    size: Same,
    launched: List(LAUNCHES_MAX, Inner),
}, check_counts);

fn check_counts(group: &v1::GroupLook) -> Result<(), Malformed> {
    if group.launched.iter().any(|launched| launched.count > group.size) {
        return Err(Malformed::OutOfRange("launched.count"));
    }
    Ok(())
}

message!(Launched, v1::Launched, "launched", {
    operation: OneLine(GROUP_NAME_MAX),
    number: Same,
    is_finished: Same,
    count: Same,
    ranks: List(LISTED_RANKS_MAX, Same),
}, check_count);

fn check_count(launched: &v1::Launched) -> Result<(), Malformed> {
    if usize::try_from(launched.count).is_ok_and(|count| count < launched.ranks.len()) {
        return Err(Malformed::OutOfRange("launched.ranks"));
    }
    Ok(())
}
