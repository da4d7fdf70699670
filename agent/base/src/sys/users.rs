//! The users of this machine, as this process sees them.
//!
//! In a user namespace, the kernel shows all users that the namespace does not map as one: the overflow uid, 65534. A process
//! with that uid cannot distinguish itself from them. So no connection counts as its own, unless its network is that of the
//! namespace, which only users of the namespace reach. A file is its own if the kernel lets it change the mode.

use std::{collections::BTreeSet, fs, os::fd::AsFd, sync::LazyLock};

use nix::{
    sys::stat::{Mode, fchmod},
    unistd::geteuid,
};
use tracing::warn;

use super::unix;

/// The uid of root.
const ROOT: u32 = 0;
/// The overflow uid, unless the system has another one.
const OVERFLOW: u32 = 65534;
/// The number of uids that a machine has.
const ALL: u64 = u32::MAX as u64;

/// The users that the kernel cannot show by their own uid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Unmapped {
    /// The uid that it shows.
    overflow: u32,
    /// True if there are such users.
    exist: bool,
    /// True if such users may have connections to this process.
    may_connect: bool,
}

static UNMAPPED: LazyLock<Unmapped> = LazyLock::new(|| {
    let map = fs::read_to_string("/proc/self/uid_map").ok();
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let mut unmapped = Unmapped::new(map.as_deref(), overflow.as_deref());
    unmapped.may_connect = !unix::network_is_of_user_namespace();
    let uid = geteuid();
    if unmapped.own(uid.as_raw()).is_none() {
        warn!(
            "in this user namespace, uid {uid} may be any user of the machine, and the network is shared with them: no \
             connection counts as this user's own, and without a secret this process refuses its own connections; run it \
             as another user of the namespace, or give the job a secret"
        );
    }
    unmapped
});

impl Unmapped {
    /// Reads the texts of `uid_map` and `overflowuid`. A kernel without user namespaces has no `uid_map`.
    fn new(map: Option<&str>, overflow: Option<&str>) -> Self {
        let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
        let counts = |map: &str| map.lines().filter_map(count).fold(0, u64::saturating_add);
        Self {
            overflow: overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW),
            exist: map.is_some_and(|map| counts(map) < ALL),
            may_connect: true,
        }
    }

    /// Returns the uid if connections with it are those of its user.
    fn own(self, uid: u32) -> Option<u32> {
        (!self.may_connect || !self.may_have(uid)).then_some(uid)
    }

    fn may_have(self, uid: u32) -> bool {
        self.exist && uid == self.overflow
    }
}

/// Returns the uid of this process; `None` if other users that reach it may have the same one.
pub(crate) fn own_uid() -> Option<u32> {
    UNMAPPED.own(geteuid().as_raw())
}

/// Returns true if a file or folder with this owner and mode belongs to this user.
pub(crate) fn owns(file: impl AsFd, owner: u32, mode: u32) -> bool {
    let mode = Mode::from_bits_truncate(mode);
    // Only the owner may set the mode, also to the same one.
    owner == geteuid().as_raw() && (!UNMAPPED.may_have(owner) || fchmod(file, mode).is_ok())
}

/// Returns the uids that may do what this user may: its own, and root's.
pub fn trusted_uids() -> BTreeSet<u32> {
    own_uid().into_iter().chain([ROOT]).collect()
}

/// Returns true if a process with this uid belongs to this user or to root.
pub fn is_trusted(uid: u32) -> bool {
    uid == ROOT || own_uid() == Some(uid)
}

/// As [`is_trusted`], for the folders of the system: in a container without root, root's have the overflow uid.
pub(crate) fn may_be_trusted(uid: u32) -> bool {
    is_trusted(uid) || UNMAPPED.may_have(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with the overflow uid is not known to be the user of anything, if its namespace does not map all users.
    #[test]
    fn overflow_uid_is_not_of_one_user() {
        let own = |map: &str, uid| Unmapped::new(Some(map), Some("65534\n")).own(uid);
        let all = "         0          0 4294967295\n";
        for uid in [0, 1000, 65534] {
            assert_eq!(own(all, uid), Some(uid));
            assert_eq!(Unmapped::new(None, None).own(uid), Some(uid));
        }
        for map in ["65534 1000 1\n", "0 1000 1\n1 100000 65536\n", "", "0 0 4294967294"] {
            assert_eq!(own(map, 65534), None, "{map}");
            assert_eq!(own(map, 1000), Some(1000), "{map}");
        }
        assert_eq!(own("0 0 1000\n1000 1000 4294966295\n", 65534), Some(65534));
        let private = Unmapped { may_connect: false, ..Unmapped::new(Some("0 1000 1\n"), None) };
        assert_eq!(
            private.own(65534),
            Some(65534),
            "only users of the namespace reach its network"
        );
        let unusual = Unmapped::new(Some("99 1000 1"), Some("99"));
        assert_eq!((unusual.own(99), unusual.own(65534)), (None, Some(65534)));
    }
}
