//! Reads torch's records of collectives, and describes the last one of each rank in each group.
//!
//! Torch has several recorders. A group may use two of them, for data on different devices. Ids and numbers of different
//! recorders cannot be compared, so such a group counts as two.
//!
//! The records come from the process of a worker, so they are not trusted.

use std::collections::{BTreeMap, BTreeSet};

use ragent_proto::printable_line;
use ragent_rendezvous::{
    ids::GlobalRank,
    message::{
        DIGEST_GROUPS_MAX, GROUP_NAME_MAX, GroupLook, LAUNCHES_MAX, LISTED_RANKS_MAX, Launched,
    },
};
use serde::{Deserialize, de::IgnoredAny};

use super::Groups;

/// The name of the group of all ranks.
const DEFAULT_GROUP: &str = "0";

/// A recorder of torch.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Recorder {
    /// That of gloo.
    Gloo,
    /// That of NCCL.
    Nccl,
}

impl Recorder {
    pub(super) const ALL: [Self; 2] = [Self::Gloo, Self::Nccl];

    /// The handler of the worker server that returns its records.
    pub(super) fn handler(self) -> &'static str {
        match self {
            Self::Gloo => "fr_trace_json",
            Self::Nccl => "dump_nccl_trace_json",
        }
    }

    /// Returns the name of a group in a digest.
    fn group_name(self, name: &str) -> String {
        match self {
            Self::Gloo => shortened(name),
            Self::Nccl => shortened(&format!("nccl/{name}")),
        }
    }
}

/// The records of a process. There are no entries before the first collective.
#[derive(Deserialize)]
struct Trace {
    entries: Option<Vec<Maybe<Entry>>>,
    pg_config: Option<BTreeMap<String, Maybe<GroupConfig>>>,
}

/// A value of the expected form, or any other one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Maybe<T> {
    Expected(T),
    Other(IgnoredAny),
}

impl<T> Maybe<T> {
    fn expected(self) -> Option<T> {
        match self {
            Self::Expected(value) => Some(value),
            Self::Other(IgnoredAny) => None,
        }
    }
}

/// The record of a collective.
#[derive(Deserialize)]
struct Entry {
    record_id: u64,
    /// The name of the group, and its description.
    process_group: Vec<String>,
    collective_seq_id: u64,
    #[serde(default)]
    p2p_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
    profiling_name: String,
    #[serde(default)]
    input_sizes: Vec<Vec<i64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    #[serde(default)]
    state: String,
    #[serde(default)]
    retired: bool,
}

/// The configuration of a group.
#[derive(Deserialize)]
struct GroupConfig {
    /// Such as `[0, 1]`.
    ranks: String,
}

/// The last collective of a process in a group.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Last {
    record: u64,
    operation: String,
    number: u64,
    is_finished: bool,
}

/// The last collective of a process in each of its groups, by name, and the sizes of groups that are known.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Records {
    /// The recorders that know a group of the process. Others cannot show that it has launched none.
    used: BTreeSet<Recorder>,
    /// True if groups are left out.
    is_cut: bool,
    last: BTreeMap<String, Last>,
    sizes: BTreeMap<String, u32>,
}

impl Records {
    /// Adds the records of a recorder, in the form of JSON. Returns false if they have another form.
    pub(super) fn add(&mut self, recorder: Recorder, json: &[u8]) -> bool {
        // An array could be read as the fields of a record, too.
        let is_object = json.trim_ascii_start().starts_with(b"{");
        let (true, Ok(Trace { entries, pg_config })) = (is_object, serde_json::from_slice(json))
        else {
            return false;
        };
        if entries.is_none() && pg_config.is_none() {
            return false;
        }
        let (entries, pg_config) = (entries.unwrap_or_default(), pg_config.unwrap_or_default());
        if !entries.is_empty() || !pg_config.is_empty() {
            self.used.insert(recorder);
        }
        for entry in entries.into_iter().filter_map(Maybe::expected) {
            self.add_entry(recorder, entry);
        }
        // For gloo, the configuration has no name. It describes the newest group.
        for (name, config) in pg_config.into_iter().filter(|(name, _)| !name.is_empty()) {
            let name = recorder.group_name(&name);
            // The other groups are not described.
            if self.last.contains_key(&name) {
                let ranks = config.expected().map(|config| config.ranks).unwrap_or_default();
                let is_rank = |rank: &&str| rank.contains(|c: char| c.is_ascii_digit());
                let size = ranks.split(',').filter(is_rank).count();
                self.sizes.insert(name, u32::try_from(size).unwrap_or(u32::MAX));
            }
        }
        true
    }

    fn add_entry(&mut self, recorder: Recorder, entry: Entry) {
        let operation = operation(&entry);
        let Entry { record_id, process_group, state, retired, .. } = entry;
        let Some(name) = process_group.first().map(|name| recorder.group_name(name)) else {
            return;
        };
        let is_finished = retired || state == "completed";
        let number = if entry.is_p2p { entry.p2p_seq_id } else { entry.collective_seq_id };
        // After data between two ranks, the last collective of the group counts.
        if entry.is_p2p && is_finished {
            return;
        }
        let last = Last { record: record_id, operation, number, is_finished };
        let is_known = self.last.contains_key(&name);
        if !is_known && self.last.len() >= DIGEST_GROUPS_MAX {
            self.is_cut = true;
            return;
        }
        let known = self.last.entry(name).or_insert_with(|| last.clone());
        if known.record <= record_id {
            *known = last;
        }
    }
}

/// Returns the name of an operation, with size and type of its data: `all_reduce [1024] float`.
fn operation(entry: &Entry) -> String {
    // For example `gloo:all_reduce`, or `nccl:send 0->1`.
    let name = entry.profiling_name.rsplit(':').next().unwrap_or_default();
    let name = name.split(' ').next().unwrap_or_default();
    let mut text = name.to_owned();
    if let Some(size) = entry.input_sizes.first() {
        let size: Vec<String> = size.iter().take(8).map(i64::to_string).collect();
        text.push_str(&format!(" [{}]", size.join(", ")));
    }
    if let Some(kind) = entry.input_dtypes.first() {
        text.push_str(&format!(" {}", kind.to_lowercase()));
    }
    if let Some(more @ 1..) = entry.input_sizes.len().checked_sub(1) {
        text.push_str(&format!(" and {more} more"));
    }
    shortened(&text)
}

/// Returns a name as a digest contains it: on one line, and with at most [`GROUP_NAME_MAX`] bytes.
pub(super) fn shortened(name: &str) -> String {
    let mut short = printable_line(name);
    short.truncate(short.floor_char_boundary(GROUP_NAME_MAX));
    short
}

/// The ranks by the number and operation of their last collective, and true if they have finished it.
type Launches<'a> = BTreeMap<(u64, &'a str, bool), Vec<GlobalRank>>;

/// Describes the groups of the workers of a node, by rank. Groups in which a rank waits come first.
pub(super) fn groups(workers: &BTreeMap<GlobalRank, Records>, world_size: u32) -> Groups {
    let mut is_cut = workers.values().any(|records| records.is_cut);
    let of_all = Recorder::ALL.map(|recorder| (recorder, recorder.group_name(DEFAULT_GROUP)));
    let mut found: BTreeMap<&str, Launches<'_>> = BTreeMap::new();
    for (rank, records) in workers {
        for (name, last) in &records.last {
            let launch = (last.number, last.operation.as_str(), last.is_finished);
            found.entry(name).or_default().entry(launch).or_default().push(*rank);
        }
        for (_, name) in of_all.iter().filter(|(recorder, _)| records.used.contains(recorder)) {
            if !records.last.contains_key(name) {
                let launches = found.entry(name).or_default();
                launches.entry((0, "", false)).or_default().push(*rank);
            }
        }
    }
    let mut groups: Vec<GroupLook> = found
        .into_iter()
        .map(|(name, launches)| {
            let known = launches.values().map(Vec::len).sum::<usize>();
            let known = u32::try_from(known).unwrap_or(u32::MAX);
            let sizes = workers.values().filter_map(|records| records.sizes.get(name).copied());
            let (launched, is_list_cut) = launched(launches);
            is_cut |= is_list_cut;
            let is_of_all = of_all.iter().any(|(_, of_all)| of_all == name);
            let size = if is_of_all { Some(world_size) } else { sizes.max() };
            GroupLook { name: name.to_owned(), size: size.unwrap_or(known).max(known), launched }
        })
        .collect();
    let is_open = |group: &GroupLook| group.launched.iter().any(|l| l.number > 0 && !l.is_finished);
    groups.sort_by_key(|group| (!is_open(group), std::cmp::Reverse(group.size)));
    is_cut |= groups.len() > DIGEST_GROUPS_MAX;
    groups.truncate(DIGEST_GROUPS_MAX);
    Groups { groups, is_cut }
}

/// Lists launches with their ranks. A list has at most [`LISTED_RANKS_MAX`] ranks, so there may be several of a launch.
/// If there are too many lists, keeps the last launches, because ranks may wait in them. Returns true then.
fn launched(launches: Launches<'_>) -> (Vec<Launched>, bool) {
    let lists = launches.iter().flat_map(|((number, operation, is_finished), ranks)| {
        ranks.chunks(LISTED_RANKS_MAX).map(|ranks| Launched {
            operation: (*operation).to_owned(),
            number: *number,
            is_finished: *is_finished,
            count: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
            ranks: ranks.to_vec(),
        })
    });
    let mut lists: Vec<_> = lists.collect();
    let surplus = lists.len().saturating_sub(LAUNCHES_MAX);
    lists.drain(..surplus);
    (lists, surplus > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Records of torch 2.15: two collectives with gloo, the second one not finished.
    const GLOO: &str = r#"{"comm_lib_version":"","entries":[
        {"collective_seq_id":1,"input_dtypes":["Float"],"input_sizes":[[4]],"is_p2p":false,"op_id":1,"p2p_seq_id":0,
         "pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":0,"retired":true,
         "state":"scheduled","thread_id":"1","timeout_ms":1800000},
        {"collective_seq_id":2,"input_dtypes":["Float"],"input_sizes":[[4],[2, 3]],"is_p2p":false,"op_id":2,
         "pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":1,"retired":false,
         "state":"scheduled"}],
        "nccl_comm_state":{},"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},
        "pg_status":{"0":{"last_completed_collective":"1"}},"version":"2.10"}"#;

    fn records(json: &str) -> Records {
        let mut records = Records::default();
        assert!(records.add(Recorder::Gloo, json.as_bytes()));
        records
    }

    /// Entries of group, number, point-to-point flag, name and state, in order.
    fn entries(of: &[(&str, u64, bool, &str, &str)], config: &str) -> Records {
        let entries: Vec<String> = (0..)
            .zip(of)
            .map(|(id, (group, number, is_p2p, name, state))| {
                format!(
                    r#"{{"record_id":{id},"process_group":["{group}",""],"collective_seq_id":{number},
                    "p2p_seq_id":{number},"is_p2p":{is_p2p},"profiling_name":"{name}","state":"{state}"}}"#
                )
            })
            .collect();
        records(&format!(r#"{{"entries":[{}],"pg_config":{{{config}}}}}"#, entries.join(",")))
    }

    fn described(workers: &[(u32, Records)], world_size: u32) -> Vec<GroupLook> {
        let Groups { groups, is_cut } = described_all(workers, world_size);
        assert!(!is_cut);
        groups
    }

    fn described_all(workers: &[(u32, Records)], world_size: u32) -> Groups {
        let workers = workers.iter().map(|(rank, records)| (GlobalRank(*rank), records.clone()));
        groups(&workers.collect(), world_size)
    }

    fn launch(operation: &str, number: u64, is_finished: bool, ranks: &[u32]) -> Launched {
        let ranks: Vec<_> = ranks.iter().copied().map(GlobalRank).collect();
        let count = u32::try_from(ranks.len()).unwrap();
        let operation = operation.to_owned();
        Launched { operation, number, is_finished, count, ranks }
    }

    /// The last collective of each rank is described, with size and type of its data. A rank with a group, but without
    /// entries, has launched none. Nothing is known of a rank without groups.
    #[test]
    fn last_collective_is_described() {
        let none = records(r#"{"pg_config":{"":{"ranks":"[0, 1]"}}}"#);
        let unused = records(r#"{"pg_config":{}}"#);
        let groups = described(&[(4, records(GLOO)), (5, none), (6, unused)], 8);
        let waits = launch("all_reduce [4] float and 1 more", 2, false, &[4]);
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].name.as_str(), groups[0].size), ("0", 8));
        assert_eq!(groups[0].launched, [launch("", 0, false, &[5]), waits]);
    }

    /// Recorders number their collectives themselves, so a group that uses two of them counts as two. A rank that has used
    /// one of them has not launched fewer collectives of the other one.
    #[test]
    fn recorders_are_kept_apart() {
        let of_nccl = |id: u32, number: u32, state: &str| {
            format!(
                r#"{{"entries":[{{"record_id":{id},"process_group":["0",""],"collective_seq_id":{number},
                "profiling_name":"nccl:all_reduce","state":"{state}"}}],"pg_config":{{"0":{{"ranks":"[0, 1]"}}}}}}"#
            )
        };
        let mut both = records(GLOO);
        assert!(both.add(Recorder::Nccl, of_nccl(900, 900, "completed").as_bytes()));
        let mut nccl = records(r#"{"pg_config":{}}"#);
        assert!(nccl.add(Recorder::Nccl, of_nccl(0, 901, "started").as_bytes()));
        let mut gloo = records(GLOO);
        assert!(gloo.add(Recorder::Nccl, br#"{"pg_config":{}}"#));
        let groups = described(&[(0, both), (1, nccl), (2, gloo)], 3);
        let shown: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.size)).collect();
        assert_eq!(shown, [("0", 3), ("nccl/0", 3)]);
        let waits = launch("all_reduce [4] float and 1 more", 2, false, &[0, 2]);
        assert_eq!(groups[0].launched, [waits]);
        let launched =
            [launch("all_reduce", 900, true, &[0]), launch("all_reduce", 901, false, &[1])];
        assert_eq!(groups[1].launched, launched);
    }

    /// Groups in which a rank waits come first. Their size is that of their configuration, or the number of known
    /// ranks.
    #[test]
    fn groups_have_sizes() {
        let first = entries(
            &[
                ("0", 7, false, "nccl:barrier", "completed"),
                ("dp", 3, false, "nccl:all_gather", "started"),
            ],
            r#""dp":{"ranks":"[0, 1, 6, 7]"}"#,
        );
        let second = entries(
            &[
                ("0", 7, false, "nccl:barrier", "completed"),
                ("tp", 2, false, "nccl:broadcast", "scheduled"),
            ],
            "",
        );
        let groups = described(&[(0, first), (1, second)], 8);
        let shown: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.size)).collect();
        assert_eq!(shown, [("dp", 4), ("tp", 1), ("0", 8)]);
        assert_eq!(groups[2].launched, [launch("barrier", 7, true, &[0, 1])]);
    }

    /// Data between two ranks counts while it is under way.
    #[test]
    fn unfinished_data_between_ranks_counts() {
        let before = ("0", 7, false, "nccl:barrier", "completed");
        let sends = |state| entries(&[before, ("0", 2, true, "nccl:send 0->1", state)], "");
        let groups = described(&[(0, sends("started"))], 2);
        assert_eq!(groups[0].launched, [launch("send", 2, false, &[0])]);
        let groups = described(&[(0, sends("completed"))], 2);
        assert_eq!(groups[0].launched, [launch("barrier", 7, true, &[0])]);
    }

    /// Long lists are split, and everything has a limit.
    #[test]
    fn lists_are_bounded() {
        let waiting = records(GLOO);
        let workers: Vec<_> = (0..40).map(|rank| (rank, waiting.clone())).collect();
        let groups = described(&workers, 40);
        let counts: Vec<_> = groups[0].launched.iter().map(|launched| launched.count).collect();
        assert_eq!(counts, [32, 8]);
        let names: Vec<String> =
            (0..100).map(|number| format!("{number}{}", "ä".repeat(80))).collect();
        let many: Vec<_> =
            names.iter().map(|name| (name.as_str(), 1, false, name.as_str(), "")).collect();
        let Groups { groups, is_cut } = described_all(&[(0, entries(&many, ""))], 1);
        assert!(groups.len() == DIGEST_GROUPS_MAX && is_cut);
        assert!(groups.iter().all(|group| group.name.len() <= GROUP_NAME_MAX));
        // Each of two workers is within the limits, but not both together.
        let some = |range: std::ops::Range<usize>| entries(&many[range], "");
        let Groups { groups, is_cut } = described_all(&[(0, some(0..20)), (1, some(20..40))], 2);
        assert!(groups.len() == DIGEST_GROUPS_MAX && is_cut);
        let configs: Vec<_> =
            names.iter().map(|name| format!(r#""{name}":{{"ranks":"[0]"}}"#)).collect();
        assert_eq!(described(&[(0, entries(&many[..2], &configs.join(",")))], 1).len(), 3);
    }

    /// Of too many launches, the highest ones stay: ranks wait in them.
    #[test]
    fn highest_launches_stay() {
        let of = |number: u64| entries(&[("0", number, false, "nccl:barrier", "")], "");
        let workers: Vec<_> = (0..9).map(|rank| (rank, of(u64::from(rank) + 10))).collect();
        let Groups { groups, is_cut } = described_all(&workers, 9);
        let numbers: Vec<u64> = groups[0].launched.iter().map(|launched| launched.number).collect();
        assert!(numbers == [11, 12, 13, 14, 15, 16, 17, 18] && is_cut, "{groups:?}");
        assert_eq!(described(&workers[1..], 9)[0].launched.len(), LAUNCHES_MAX);
    }

    /// Entries of another form are left out, and other text is refused.
    #[test]
    fn other_forms_are_left_out() {
        let odd = GLOO.replace(r#""record_id":1"#, r#""record_id":"1""#);
        let groups = described(&[(0, records(&odd))], 2);
        assert_eq!(groups[0].launched, [launch("all_reduce [4] float", 1, true, &[0])]);
        for wrong in ["", "[", "[]", "7", "{}", r#"{"entries":7}"#, "Handler not found"] {
            assert!(!Records::default().add(Recorder::Gloo, wrong.as_bytes()), "{wrong}");
        }
    }

    proptest! {
        /// Every text is either read or refused, within the limits of a digest.
        #[test]
        fn never_panics(
            text in r#"(\{"entries":\[|\{"record_id":|[0-9]{1,22}|,"process_group":\[|"[a-z]{0,70}"|\]|\}|,|-|\[|null){0,40}"#
        ) {
            let mut records = Records::default();
            records.add(Recorder::Nccl, text.as_bytes());
            let Groups { groups, .. } = described_all(&[(0, records)], 1);
            prop_assert!(groups.iter().all(|group| group.launched.len() <= LAUNCHES_MAX));
        }
    }
}
