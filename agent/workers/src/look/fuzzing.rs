//! torch's records of collectives.

use std::collections::BTreeMap;

use ragent_proto::v1;
use ragent_rendezvous::{
    ids::{GlobalRank, RoundId},
    message::{DIGEST_GROUPS_MAX, Digest, LookPart},
};

use super::{
    Groups,
    records::{self, Recorder, Records},
};

/// Reads torch's records of two workers, once for each recorder. What is described fits into a digest.
pub fn torch_records(input: &[u8]) {
    let mut workers = BTreeMap::new();
    for (rank, json) in (0..).map(GlobalRank).zip(input.split(|byte| *byte == 0).take(2)) {
        let mut records = Records::default();
        for recorder in Recorder::ALL {
            records.add(recorder, json);
        }
        workers.insert(rank, records);
    }
    assert_fits(records::groups(&workers, 4));
}

/// Sends a description. It is within the limits, and only whole groups may be left out, with a mark. Returns their number.
#[track_caller]
fn assert_fits(Groups { groups, is_cut }: Groups) -> usize {
    let digest = Digest { groups, is_cut, ..Digest::new(RoundId::default(), 1, LookPart::First) };
    let texts = digest.groups.iter().flat_map(|group| {
        group.launched.iter().map(|launched| &launched.operation).chain([&group.name])
    });
    assert!(!texts.flat_map(|text| text.chars()).any(char::is_control));
    assert!(digest.groups.len() <= DIGEST_GROUPS_MAX, "there are too many groups");
    let sent = v1::Digest::from(digest.clone());
    let received = Digest::try_from(sent).expect("it is within the limits");
    let left_out = digest.groups.len() - received.groups.len();
    let sent_groups = &digest.groups[..received.groups.len()];
    assert_eq!(received.groups, sent_groups, "a group is changed");
    assert_eq!(received.is_cut, is_cut || left_out > 0);
    left_out
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::message::{GROUP_NAME_MAX, GroupLook};

    use super::*;

    fn named(groups: usize, name: &str) -> Groups {
        let group = GroupLook { name: name.to_owned(), size: 4, launched: Vec::new() };
        Groups { groups: vec![group; groups], is_cut: false }
    }

    /// Groups are counted if a digest has no room for them.
    #[test]
    fn left_out_groups_are_counted() {
        assert_eq!(assert_fits(named(DIGEST_GROUPS_MAX, "0")), 0);
        // Each takes 70 bytes of 2,048.
        assert_eq!(assert_fits(named(DIGEST_GROUPS_MAX, &"x".repeat(GROUP_NAME_MAX))), 3);
    }

    /// A description with too many groups fails.
    #[test]
    #[should_panic = "there are too many groups"]
    fn too_many_groups_fail() {
        assert_fits(named(DIGEST_GROUPS_MAX + 1, "0"));
    }

    /// A description with a name that is too long fails: it would be shortened without a mark.
    #[test]
    #[should_panic = "a group is changed"]
    fn long_names_fail() {
        assert_fits(named(1, &"x".repeat(GROUP_NAME_MAX + 1)));
    }
}
