//! Filters the hosts of a list: `--include` and `--exclude`.
//!
//! - Hosts are separated by commas or, as with DeepSpeed, by at signs.
//! - `node[1-4,7]` is a set of hosts.
//! - Slots follow a colon: `node1:0,2` takes the accelerators 0 and 2 of node1, with one worker each.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use ragent_options::{scheduler::node_list, spec::UsageError};

use super::hostfile::{HostList, ListedHost};
use crate::commands::ssh::limits;

/// A host that the filters have chosen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ChosenHost {
    /// The name of the host, as in the list.
    pub(super) name: String,
    /// The destination for ssh: `HOST` or `USER@HOST`.
    pub(super) target: String,
    /// The number of workers for the host, if the list or a filter has one.
    pub(super) workers: Option<NonZeroU32>,
    /// The accelerators that the workers may use; `None` for all.
    pub(super) devices: Option<BTreeSet<u32>>,
}

/// Returns the hosts that the filters leave, in the order of the list.
///
/// # Errors
///
/// Returns [`UsageError`] if a filter is invalid, names an unknown host or slot, or leaves no host.
pub(super) fn choose(
    list: &HostList,
    include: Option<&str>,
    exclude: Option<&str>,
) -> Result<Vec<ChosenHost>, UsageError> {
    let include = include.map(|text| read("--include", text, list)).transpose()?;
    let exclude = exclude.map(|text| read("--exclude", text, list)).transpose()?;
    let (include, exclude) = (include.as_ref(), exclude.unwrap_or_default());
    let mut chosen = Vec::new();
    for host in list.hosts() {
        let devices = match include.map(|named| named.get(&host.name)) {
            Some(None) => continue,
            Some(Some(slots)) => slots.clone(),
            None => None,
        };
        let devices = match exclude.get(&host.name) {
            None => devices,
            Some(None) => continue,
            Some(Some(without)) => Some(rest(host, devices, without)?),
        };
        if devices.as_ref().is_some_and(BTreeSet::is_empty) {
            continue;
        }
        chosen.push(chosen_host(host, devices));
    }
    if chosen.is_empty() {
        return Err(UsageError::new(format!(
            "`--include` and `--exclude` leave none of the {} hosts",
            list.hosts().len()
        ))
        .with_hint("keep at least one host"));
    }
    Ok(chosen)
}

fn chosen_host(host: &ListedHost, devices: Option<BTreeSet<u32>>) -> ChosenHost {
    let count = devices.as_ref().and_then(|devices| u32::try_from(devices.len()).ok());
    ChosenHost {
        name: host.name.clone(),
        target: host.target(),
        workers: count.and_then(NonZeroU32::new).or(host.slots),
        devices,
    }
}

/// Returns the slots of a host without the slots in `without`.
fn rest(
    host: &ListedHost,
    devices: Option<BTreeSet<u32>>,
    without: &BTreeSet<u32>,
) -> Result<BTreeSet<u32>, UsageError> {
    let not_known = || {
        UsageError::new(format!(
            "`--exclude` selects slots of `{}`, but the hostfile does not give its number of slots",
            host.name
        ))
        .with_hint("write `slots=N` after the host in the hostfile")
    };
    let all = match devices {
        Some(devices) => devices,
        None => (0..host.slots.ok_or_else(not_known)?.get()).collect(),
    };
    Ok(all.difference(without).copied().collect())
}

/// The hosts that a filter names, in the spelling of the list. Each has its slots, or `None` for the whole host.
type Named = BTreeMap<String, Option<BTreeSet<u32>>>;

fn read(flag: &'static str, text: &str, list: &HostList) -> Result<Named, UsageError> {
    // Names are compared without case, as in the list.
    let hosts: BTreeMap<String, &ListedHost> =
        list.hosts().iter().map(|host| (host.name.to_ascii_lowercase(), host)).collect();
    let listed = |name: &str| hosts.get(&name.to_ascii_lowercase()).copied();
    let mut named = Named::new();
    for part in text.split('@').flat_map(pieces).filter(|part| !part.trim().is_empty()) {
        let wrong = || not_hosts(flag, &part);
        let (pattern, slots) = match part.trim().rsplit_once(':') {
            Some((name, slots)) if listed(part.trim()).is_none() => (name, Some(slots)),
            Some(_) | None => (part.trim(), None),
        };
        let slots = match slots {
            Some(slots) => Some(numbers(slots).ok_or_else(wrong)?),
            None => None,
        };
        for name in node_list::names(pattern).map_err(|_| wrong())? {
            let host = listed(&name).ok_or_else(|| {
                UsageError::new(format!("`{flag}` contains `{name}`, which is not in the hostfile"))
                    .with_hint("use the names of the hostfile, without a user")
            })?;
            check_slots(flag, host, slots.as_ref())?;
            match (named.entry(host.name.clone()).or_insert_with(|| Some(BTreeSet::new())), &slots)
            {
                (Some(known), Some(slots)) => known.extend(slots),
                (known, None) => *known = None,
                (None, Some(_)) => {}
            }
        }
    }
    if named.is_empty() { Err(not_hosts(flag, text)) } else { Ok(named) }
}

fn not_hosts(flag: &str, text: &str) -> UsageError {
    UsageError::new(format!("`{flag}` contains `{text}`, which is not a list of hosts"))
        .with_hint("examples: `node1,node2`, `node[1-4]`, or `node1:0,2@node2` for slots of a host")
}

fn check_slots(
    flag: &'static str,
    host: &ListedHost,
    named: Option<&BTreeSet<u32>>,
) -> Result<(), UsageError> {
    let highest = named.and_then(|slots| slots.last()).copied();
    match (highest, host.slots.map(NonZeroU32::get)) {
        (Some(slot), Some(slots)) if slot >= slots => {
            let name = &host.name;
            let message =
                format!("`{flag}` contains slot {slot} of `{name}`, which has {slots} slots");
            Err(UsageError::new(message).with_hint("slots are counted from 0"))
        }
        (_, _) => Ok(()),
    }
}

/// Splits `text` at commas, except those in brackets and those between the slots of a host.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = vec![String::new()];
    let mut depth = 0u32;
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ',' && depth == 0 {
            pieces.push(String::new());
        } else if let Some(last) = pieces.last_mut() {
            last.push(c);
        }
    }
    let mut joined: Vec<String> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(host) if host.contains(':') && numbers(&piece).is_some() => {
                host.push(',');
                host.push_str(&piece);
            }
            Some(_) | None => joined.push(piece),
        }
    }
    joined
}

/// Parses a set of numbers such as `0,2,4-7`.
fn numbers(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (range, _) = node_list::range(part.trim()).ok()?;
        let (first, last) =
            (u32::try_from(*range.start()).ok()?, u32::try_from(*range.end()).ok()?);
        if last >= limits::MAX_LOCAL_WORLD_SIZE {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> HostList {
        "me@n1 slots=4\nn2 slots=4\nn3\nn10 slots=8\ngpu-a01 slots=2\nfd00::1".parse().unwrap()
    }

    fn chosen(include: &str, exclude: &str) -> Result<Vec<String>, String> {
        let given = |text| Some(text).filter(|text: &&str| !text.is_empty());
        let hosts = choose(&list(), given(include), given(exclude));
        let hosts = hosts.map_err(|error| error.to_string())?;
        let text = |host: &ChosenHost| {
            let devices = host.devices.iter().flatten().map(u32::to_string);
            let devices: Vec<String> = devices.collect();
            format!("{}/{}:{}", host.target, host.workers.map_or(0, u32::from), devices.join(","))
        };
        Ok(hosts.iter().map(text).collect())
    }

    /// Commas, at signs and ranges name hosts. They keep the order of the list.
    #[test]
    fn hosts_are_included() {
        let two = Ok(vec!["me@n1/4:".to_owned(), "n3/0:".to_owned()]);
        for text in ["n3,n1", "n3@n1", "n[1,3]", "n[1, 3]", "n[3-3],n1"] {
            assert_eq!(chosen(text, ""), two, "{text}");
        }
        assert_eq!(chosen("gpu-a[01-01]", ""), Ok(vec!["gpu-a01/2:".to_owned()]));
        assert_eq!(chosen("fd00::1", ""), Ok(vec!["fd00::1/0:".to_owned()]));
    }

    /// Names of hosts are compared without case here, too.
    #[test]
    fn case_makes_no_other_host() {
        assert_eq!(chosen("N1:0,n1:2,FD00::1", "Fd00::1"), Ok(vec!["me@n1/2:0,2".to_owned()]));
    }

    /// Slots are accelerators. Each has one worker.
    #[test]
    fn slots_of_a_host() {
        let expected = Ok(vec!["me@n1/2:0,2".to_owned(), "n10/4:4,5,6,7".to_owned()]);
        assert_eq!(chosen("n1:0,2@n10:4-7", ""), expected);
        assert_eq!(chosen("n1:0,2,n10:4-7", ""), expected);
        assert_eq!(chosen("n3:1,5", ""), Ok(vec!["n3/2:1,5".to_owned()]));
    }

    /// Excluded hosts and excluded slots of hosts are removed.
    #[test]
    fn hosts_are_excluded() {
        let rest = chosen("", "n[2-3],gpu-a01,fd00::1,n1:0-2").unwrap();
        assert_eq!(rest, ["me@n1/1:3", "n10/8:"]);
        assert_eq!(chosen("n1:0,1@n2", "n1:0@n2:0-3"), Ok(vec!["me@n1/1:1".to_owned()]));
    }

    /// A filter that names an unknown host or slot, or leaves no host, is refused.
    #[test]
    fn mistakes() {
        for (include, exclude, error) in [
            ("n1,n7", "", "`--include` contains `n7`, which is not in the hostfile"),
            ("n[1-3],n[4-5]", "", "`--include` contains `n4`, which is not in the hostfile"),
            ("n1,n2", "n[1-2]", "`--include` and `--exclude` leave none of the 6 hosts"),
            ("n1:4", "", "`--include` contains slot 4 of `n1`, which has 4 slots"),
            (
                "",
                "n3:0",
                "`--exclude` selects slots of `n3`, but the hostfile does not give its number of \
                 slots",
            ),
        ] {
            assert_eq!(chosen(include, exclude), Err(error.to_owned()));
        }
        for wrong in
            [",", "n[1-", "n1]", "n[2-1]", "n[]", "n1:", "n1:x", ":0", "n1:4096", "n[0-99999999]"]
        {
            assert!(chosen(wrong, "").is_err(), "{wrong}");
        }
    }

    proptest! {
        /// Every text of a filter is either accepted or refused.
        #[test]
        fn never_panics(include in "[n0-9:@,\\[\\]-]{0,30}", exclude in "(?s).{0,30}") {
            let _ = choose(&list(), Some(&include), Some(&exclude));
        }
    }
}
