//! Converts looks at the workers of a stalled job, and the answers.

use prost::Message;
use ragent_rendezvous::{
    ids::GlobalRank,
    message::{
        Activity, DIGEST_GROUPS_MAX, DIGEST_MAX, DIGEST_WORKERS_MAX, Digest, FACTS_MAX,
        GROUP_NAME_MAX, GroupLook, Hung, LAUNCHES_MAX, LISTED_RANKS_MAX, Launched, Look, LookPart,
        WorkerLook,
    },
};

use super::{fitted_line, fitted_to, line, list, millis, one_line, round, to_millis, to_round};
use crate::{Malformed, v1};

enumeration!(LookPart, LookPart, "look.part", [First, Second]);
enumeration!(Activity, Activity, "worker_look.activity", [Collective, Wait, Other]);

impl From<Look> for v1::Look {
    fn from(Look { number, part }: Look) -> Self {
        Self { number, part: v1::LookPart::from(part).into() }
    }
}

impl TryFrom<v1::Look> for Look {
    type Error = Malformed;

    fn try_from(look: v1::Look) -> Result<Self, Malformed> {
        Ok(Self { part: look.part().try_into()?, number: look.number })
    }
}

impl From<Hung> for v1::Hung {
    fn from(Hung { rank, time, if_stopped }: Hung) -> Self {
        Self { rank: rank.0, ms: to_millis(time), if_stopped }
    }
}

impl TryFrom<v1::Hung> for Hung {
    type Error = Malformed;

    fn try_from(v1::Hung { rank, ms, if_stopped }: v1::Hung) -> Result<Self, Malformed> {
        Ok(Self { rank: GlobalRank(rank), time: millis(ms, "hung.ms")?, if_stopped })
    }
}

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

impl From<WorkerLook> for v1::WorkerLook {
    fn from(worker: WorkerLook) -> Self {
        let activity = worker.activity.map_or(v1::Activity::Unspecified, Into::into);
        Self {
            rank: worker.rank.0,
            activity: activity.into(),
            state: worker.state.map(String::from).unwrap_or_default(),
            has_reached_store: worker.has_reached_store,
            line: worker.line.as_deref().map(fitted_line),
            waits_in: worker.waits_in.as_deref().map(fitted_line),
        }
    }
}

impl TryFrom<v1::WorkerLook> for WorkerLook {
    type Error = Malformed;

    fn try_from(worker: v1::WorkerLook) -> Result<Self, Malformed> {
        let line = |value: Option<String>, field| value.map(|value| line(value, field)).transpose();
        Ok(Self {
            rank: GlobalRank(worker.rank),
            // A name that only a later build has is unknown here.
            activity: worker.activity().try_into().ok(),
            state: process_state(&worker.state)?,
            has_reached_store: worker.has_reached_store,
            line: line(worker.line, "worker_look.line")?,
            waits_in: line(worker.waits_in, "worker_look.waits_in")?,
        })
    }
}

/// Parses the state of a process: one letter, or none.
fn process_state(text: &str) -> Result<Option<char>, Malformed> {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (None, _) => Ok(None),
        (Some(letter), None) if letter.is_ascii_alphabetic() => Ok(Some(letter)),
        (Some(_), _) => Err(Malformed::OutOfRange("worker_look.state")),
    }
}

/// Parses the name of a group or a collective.
fn group_name(value: String, field: &'static str) -> Result<String, Malformed> {
    one_line(value, field, GROUP_NAME_MAX)
}

impl From<GroupLook> for v1::GroupLook {
    fn from(group: GroupLook) -> Self {
        Self {
            name: fitted_to(&group.name, GROUP_NAME_MAX),
            size: group.size,
            launched: group.launched.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::GroupLook> for GroupLook {
    type Error = Malformed;

    fn try_from(group: v1::GroupLook) -> Result<Self, Malformed> {
        let launched: Vec<Launched> =
            list(group.launched, "group_look.launched", LAUNCHES_MAX, TryInto::try_into)?;
        if launched.iter().any(|launched| launched.count > group.size) {
            return Err(Malformed::OutOfRange("launched.count"));
        }
        Ok(Self { name: group_name(group.name, "group_look.name")?, size: group.size, launched })
    }
}

impl From<Launched> for v1::Launched {
    fn from(launched: Launched) -> Self {
        Self {
            operation: fitted_to(&launched.operation, GROUP_NAME_MAX),
            number: launched.number,
            is_finished: launched.is_finished,
            count: launched.count,
            ranks: launched.ranks.into_iter().map(|rank| rank.0).collect(),
        }
    }
}

impl TryFrom<v1::Launched> for Launched {
    type Error = Malformed;

    fn try_from(launched: v1::Launched) -> Result<Self, Malformed> {
        let ranks =
            list(launched.ranks, "launched.ranks", LISTED_RANKS_MAX, |rank| Ok(GlobalRank(rank)))?;
        if usize::try_from(launched.count).is_ok_and(|count| count < ranks.len()) {
            return Err(Malformed::OutOfRange("launched.ranks"));
        }
        Ok(Self {
            operation: group_name(launched.operation, "launched.operation")?,
            number: launched.number,
            is_finished: launched.is_finished,
            count: launched.count,
            ranks,
        })
    }
}
