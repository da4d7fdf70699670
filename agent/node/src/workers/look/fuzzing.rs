//! Answers about collectives, of NCCL and of torch.

use std::{collections::BTreeMap, net::Ipv4Addr};

use ragent_proto::v1;
use ragent_rendezvous::{
    ids::{GlobalRank, RoundId},
    message::{Digest, LookPart},
};

use super::{
    Groups,
    ras::answer::{self, OwnWorkers},
    records::{self, Recorder, Records},
};

/// Reads an answer of NCCL, with the confirmation or without it. What is described fits into a digest.
pub fn ras_answer(input: &[u8]) {
    let own = OwnWorkers {
        pids: (4_001..4_005).zip((0..).map(GlobalRank)).collect(),
        addresses: vec![Ipv4Addr::new(10, 0, 0, 1).into()],
        world_size: 4,
    };
    for received in [input.to_vec(), [b"OK\nOK\n", input].concat()] {
        if let Some(groups) = answer::groups(&received, &own) {
            assert_fits(groups);
        }
    }
}

/// Reads torch's records of two workers, as those of each recorder. What is described fits into a digest.
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

#[track_caller]
fn assert_fits(Groups { groups, is_cut }: Groups) {
    let digest = Digest {
        round: RoundId::default(),
        look: 1,
        part: LookPart::First,
        workers: Vec::new(),
        groups,
        facts: Vec::new(),
        logs: None,
        has_asked_nccl: false,
        is_cut,
    };
    let texts = digest.groups.iter().flat_map(|group| {
        group.launched.iter().map(|launched| &launched.operation).chain([&group.name])
    });
    assert!(!texts.flat_map(|text| text.chars()).any(char::is_control));
    Digest::try_from(v1::Digest::from(digest)).expect("it is within the limits");
}
