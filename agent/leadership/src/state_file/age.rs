//! Determines the age of a state file. If no agent can still wait for its run, the run is not continued.

use std::{fs, path::Path, time::Duration};

use ragent_base::sys::{clock, proc};
use serde::{Deserialize, Serialize};

/// The time of a write: the boot of the machine, and the time since that boot.
///
/// Suspended time counts. The wall clock can be set, so it is used only across boots.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct WriteStamp {
    boot_id: String,
    boot_time_ms: u64,
}

impl WriteStamp {
    /// Returns the stamp of the current time.
    pub(super) fn now() -> Self {
        let boot_id = proc::read("sys/kernel/random/boot_id").unwrap_or_default();
        let boot_time_ms = u64::try_from(clock::boot_time().as_millis()).unwrap_or(u64::MAX);
        Self { boot_id: boot_id.trim().to_owned(), boot_time_ms }
    }

    /// Returns true if the machine has not been restarted since.
    pub(super) fn is_of_this_boot(&self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == Self::now().boot_id
    }

    /// Returns the age at `now` of a file with this stamp. By the wall clock, the file was changed `changed` ago.
    ///
    /// A time in the future counts as now: a clock was set, and the file may be recent.
    pub(super) fn age(&self, now: &Self, changed: Duration) -> Duration {
        if self.boot_id.is_empty() || self.boot_id != now.boot_id {
            return changed;
        }
        Duration::from_millis(now.boot_time_ms.saturating_sub(self.boot_time_ms))
    }
}

/// Returns the time since the last change of a file by the wall clock; zero if unknown.
pub(super) fn changed(path: &Path) -> Duration {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since_1970 = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since_1970.map_or(Duration::ZERO, |at| clock::wall_time().saturating_sub(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn stamp(boot_id: &str, seconds: u64) -> WriteStamp {
        WriteStamp { boot_id: boot_id.to_owned(), boot_time_ms: seconds * 1000 }
    }

    /// Within a boot the boot clock counts, across boots the time of the last change. A stamp in
    /// the future counts as now.
    #[test]
    fn ages() {
        let now = stamp("a", 100);
        assert_eq!(stamp("a", 60).age(&now, 7 * SECOND), 40 * SECOND);
        assert_eq!(stamp("a", 101).age(&now, 7 * SECOND), Duration::ZERO);
        assert_eq!(stamp("b", 60).age(&now, 7 * SECOND), 7 * SECOND);
        assert_eq!(stamp("", 60).age(&stamp("", 100), 7 * SECOND), 7 * SECOND);
    }

    /// A file that was changed in the future, or does not exist, has age zero.
    #[test]
    fn future_counts_as_now() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let future = std::time::UNIX_EPOCH + clock::wall_time() + 3600 * SECOND;
        file.as_file().set_modified(future).unwrap();
        assert_eq!(changed(file.path()), Duration::ZERO);
        assert_eq!(changed(Path::new("/proc/no")), Duration::ZERO);
        file.as_file().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(changed(file.path()) > 3600 * SECOND);
    }
}
