//! Parses lists of hosts: the hostfiles of Open MPI, MPICH and DeepSpeed, and plain lists.
//!
//! Each line names one host: `node1`, `user@node1`, `node1:8`, `node1 slots=8 max_slots=8`. The order of the lines is the order of the
//! ranks. `#` begins a comment. No host is contacted.

use std::{collections::BTreeMap, num::NonZeroU32, str::FromStr};

use crate::commands::ssh::limits;

/// The hosts of a list.
///
/// Invariant: there is at least one host, and no two have the same name. Names are compared without ASCII case.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct HostList {
    hosts: Vec<ListedHost>,
}

impl HostList {
    /// Returns the hosts, in the order of the list.
    pub(crate) fn hosts(&self) -> &[ListedHost] {
        &self.hosts
    }
}

/// A host, as its line describes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ListedHost {
    /// The name or address of the host.
    pub name: String,
    /// The user to log in as, if the list has one.
    pub user: Option<String>,
    /// The number of workers for the host, if the list has one.
    pub slots: Option<NonZeroU32>,
}

impl ListedHost {
    /// Returns the destination for ssh: `HOST` or `USER@HOST`.
    pub(crate) fn target(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The reason why a text is not a valid [`HostList`]. Lines are counted from one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum HostListError {
    /// A host is listed twice.
    #[error("`{name}` is in line {first} and again in line {line}")]
    Duplicate {
        /// The host.
        name: String,
        /// The line of the first entry.
        first: usize,
        /// The line of the second entry.
        line: usize,
    },
    /// The list has no hosts.
    #[error("it contains no hosts")]
    Empty,
    /// A name that cannot be the name of a host.
    #[error("line {line}: `{name}` is not a valid host name")]
    HostName {
        /// The line.
        line: usize,
        /// The word, as written.
        name: String,
    },
    /// A word that refers to a scheduler's list, such as `+n1` or `^node1`.
    #[error("line {line}: `{word}` refers to another host list, which is not supported")]
    Relative {
        /// The line.
        line: usize,
        /// The word, as written.
        word: String,
    },
    /// A number of slots that is too large, or not a number.
    #[error("line {line}: `{value}` is not a valid number of slots")]
    Slots {
        /// The line.
        line: usize,
        /// The word, as written.
        value: String,
    },
    /// More hosts than the limit.
    #[error("it contains more than {} hosts", limits::MAX_LISTED_HOSTS)]
    TooMany,
    /// A line with two different numbers of slots.
    #[error("line {line}: `{name}` has two numbers of slots, {first} and {second}")]
    TwoSizes {
        /// The line.
        line: usize,
        /// The host.
        name: String,
        /// The first number of slots.
        first: NonZeroU32,
        /// The second number of slots.
        second: NonZeroU32,
    },
    /// A word that is not part of the grammar.
    #[error("line {line}: `{word}` is not valid in a hostfile")]
    Word {
        /// The line.
        line: usize,
        /// The word, as written.
        word: String,
    },
    /// A host with zero slots.
    #[error("line {line}: `{name}` has no slots")]
    ZeroSlots {
        /// The line.
        line: usize,
        /// The host.
        name: String,
    },
}

impl HostListError {
    /// Returns a hint for the user.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Duplicate { .. } => "list each host once, with all its slots",
            Self::Empty => "write one host per line, such as `node1 slots=8`",
            Self::HostName { .. } | Self::Word { .. } | Self::Slots { .. } => {
                "a line is `HOST`, `HOST:8`, `HOST slots=8` or `USER@HOST slots=8`"
            }
            Self::Relative { .. } => "list host names, and use `--exclude` to leave some out",
            Self::TooMany => "check that the file is a list of hosts",
            Self::TwoSizes { .. } => "give one number, as `HOST:8` or `HOST slots=8`",
            Self::ZeroSlots { .. } => "remove the line, or leave the host out with `--exclude`",
        }
    }
}

impl FromStr for HostList {
    type Err = HostListError;

    fn from_str(text: &str) -> Result<Self, HostListError> {
        let mut hosts = Vec::new();
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        for (line, text) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let text = text.split('#').next().unwrap_or_default();
            let Some(host) = host(line, text)? else { continue };
            if let Some(first) = lines.insert(host.name.to_ascii_lowercase(), line) {
                return Err(HostListError::Duplicate { name: host.name, first, line });
            }
            if hosts.len() == limits::MAX_LISTED_HOSTS {
                return Err(HostListError::TooMany);
            }
            hosts.push(host);
        }
        if hosts.is_empty() { Err(HostListError::Empty) } else { Ok(Self { hosts }) }
    }
}

/// Parses a line without its comment. Returns `None` for a blank line.
fn host(line: usize, text: &str) -> Result<Option<ListedHost>, HostListError> {
    // Open MPI allows white space around the sign.
    let spaced = text.replace('=', " = ");
    let mut words = spaced.split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let mut host = named(line, first)?;
    while let Some(word) = words.next() {
        let (Some("="), Some(value)) = (words.next(), words.next()) else {
            return Err(HostListError::Word { line, word: word.to_owned() });
        };
        match word.to_ascii_lowercase().as_str() {
            "slots" | "slot" | "cpu" | "cpus" | "count" => {
                let second = slots(line, &host.name, value)?;
                match host.slots.replace(second) {
                    Some(first) if first != second => {
                        return Err(HostListError::TwoSizes {
                            line,
                            name: host.name,
                            first,
                            second,
                        });
                    }
                    Some(_) | None => {}
                }
            }
            // It limits schedulers that start more workers on a host than it has slots.
            "max_slots" | "max-slots" | "slots_max" | "slots-max" => {
                slots(line, &host.name, value)?;
            }
            "user" | "username" | "user_name" | "user-name" if is_user(value) => {
                host.user = Some(value.to_owned());
            }
            _ => return Err(HostListError::Word { line, word: format!("{word}={value}") }),
        }
    }
    Ok(Some(host))
}

/// Parses `HOST`, `USER@HOST`, `HOST:SLOTS` or `[ADDRESS]:SLOTS`.
fn named(line: usize, word: &str) -> Result<ListedHost, HostListError> {
    if word.starts_with(['+', '^']) {
        return Err(HostListError::Relative { line, word: word.to_owned() });
    }
    let wrong = || HostListError::HostName { line, name: word.to_owned() };
    let (user, rest) = match word.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, word),
    };
    let (name, count) = split_slots(rest).ok_or_else(wrong)?;
    if !is_host(name) || !user.is_none_or(is_user) {
        return Err(wrong());
    }
    let slots = count.map(|count| slots(line, name, count)).transpose()?;
    Ok(ListedHost { name: name.to_owned(), user: user.map(str::to_owned), slots })
}

/// Splits `text` into the name and the slots after a colon. A colon in an IPv6 address does not count.
fn split_slots(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(count) => Some((name, Some(count))),
            None => rest.is_empty().then_some((name, None)),
        };
    }
    match text.split_once(':') {
        Some((name, count)) if !count.contains(':') => Some((name, Some(count))),
        Some(_) | None => Some((text, None)),
    }
}

/// Returns true if `text` can be passed to ssh as a host, and ssh cannot take it for an option.
fn is_host(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME && !text.starts_with('-') && text.chars().all(fits)
}

fn is_user(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-+$\\@".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME && !text.starts_with('-') && text.chars().all(fits)
}

fn slots(line: usize, name: &str, value: &str) -> Result<NonZeroU32, HostListError> {
    let number = value.parse::<u32>().ok().filter(|number| *number <= limits::MAX_LOCAL_WORLD_SIZE);
    let number = number.ok_or_else(|| HostListError::Slots { line, value: value.to_owned() })?;
    NonZeroU32::new(number).ok_or_else(|| HostListError::ZeroSlots { line, name: name.to_owned() })
}

/// The maximum length of a DNS name.
const MAX_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, Option<u32>)> {
        let list: HostList = text.parse().unwrap();
        let entry = |host: &ListedHost| (host.target(), host.slots.map(NonZeroU32::get));
        list.hosts().iter().map(entry).collect()
    }

    fn error(text: &str) -> HostListError {
        text.parse::<HostList>().unwrap_err()
    }

    /// The lists of all three programs are accepted. Comments and blank lines are ignored.
    #[test]
    fn grammars() {
        let text = "# all of them\nnode1\n\n  node2 slots=8  # eight\nnode3:4\n\
                    me@node4 slots = 2 max_slots=4\nnode5 username=you slots=1\r\n\
                    [fd00::1]:3\nfd00::2\n";
        let expected = [
            ("node1", None),
            ("node2", Some(8)),
            ("node3", Some(4)),
            ("me@node4", Some(2)),
            ("you@node5", Some(1)),
            ("fd00::1", Some(3)),
            ("fd00::2", None),
        ];
        assert_eq!(read(text), expected.map(|(name, slots)| (name.to_owned(), slots)));
    }

    /// A host that is listed twice is refused, even with two users. The error names both lines.
    #[test]
    fn duplicates() {
        let name = "a".to_owned();
        let duplicate = HostListError::Duplicate { name, first: 1, line: 3 };
        assert_eq!(error("a\nb\nme@a slots=2\n"), duplicate);
    }

    /// Names of hosts are compared without case.
    #[test]
    fn case_makes_no_other_host() {
        let name = "n1.Example".to_owned();
        assert_eq!(
            error("N1.example\nn1.Example\n"),
            HostListError::Duplicate { name, first: 1, line: 2 }
        );
        assert_eq!(read("N1\nn2"), [("N1".to_owned(), None), ("n2".to_owned(), None)]);
    }

    /// Two numbers of slots for one host are refused, unless they are equal.
    #[test]
    fn two_sizes() {
        assert_eq!(read("n1:2 slots=2"), [("n1".to_owned(), Some(2))]);
        for (text, expected) in [
            ("a\nn1:2 slots=3", "line 2: `n1` has two numbers of slots, 2 and 3"),
            ("n1 slots=4 cpus=2", "line 1: `n1` has two numbers of slots, 4 and 2"),
        ] {
            assert_eq!(error(text).to_string(), expected);
        }
    }

    /// A host with zero slots is an error. It is not silently left out.
    #[test]
    fn zero_slots() {
        let zero = HostListError::ZeroSlots { line: 2, name: "b".to_owned() };
        assert_eq!(error("a\nb slots=0"), zero);
        assert_eq!(error("a\nb:0"), zero);
    }

    /// An invalid word is reported with its line.
    #[test]
    fn mistakes() {
        assert_eq!(error("# nothing\n"), HostListError::Empty);
        assert_eq!(error("a slots=x"), HostListError::Slots { line: 1, value: "x".to_owned() });
        assert_eq!(error("a slots"), HostListError::Word { line: 1, word: "slots".to_owned() });
        let word = "gpus=8".to_owned();
        assert_eq!(error("a gpus=8"), HostListError::Word { line: 1, word });
        assert_eq!(error("+n0"), HostListError::Relative { line: 1, word: "+n0".to_owned() });
        // ssh could take the first ones for options. The others are not names of hosts.
        for name in ["-oProxyCommand=x", "-F", "me@-F", "-l@a", "a,b", "a;b", "$(a)"] {
            assert!(name.parse::<HostList>().is_err(), "{name}");
        }
    }

    proptest! {
        /// Every text is either accepted or refused, and an accepted list keeps the invariant.
        #[test]
        fn never_panics(text in "(?s).{0,200}") {
            if let Ok(list) = text.parse::<HostList>() {
                let names: std::collections::BTreeSet<String> =
                    list.hosts().iter().map(|host| host.name.to_ascii_lowercase()).collect();
                prop_assert!(!names.is_empty() && names.len() == list.hosts().len());
            }
        }

        /// Text that resembles a list never causes a panic.
        #[test]
        fn never_panics_on_likely_text(text in "([a-c@:=+^\\[\\]0-9 \n#.-]|slots|max_slots){0,40}") {
            let _ = text.parse::<HostList>();
        }
    }
}
