//! The limits of state files, and of a coordinator that no other process can replace.

use std::time::Duration;

pub(crate) use ragent_base::limits::MAX_STATE_FILE;

/// The number of commands that wait for a coordinator that is fixed.
pub(super) const COMMANDS: usize = 64;
/// The time for which a coordinator waits for its state file to be written before it continues: a
/// good part of what a lease can spare, and far more than a healthy disk takes.
pub(super) const STATE_FILE_PATIENCE: Duration = Duration::from_secs(1);
/// The time for removing the state file of a finished job: nothing else waits for the disk then.
pub(super) const STATE_FILE_REMOVAL: Duration = Duration::from_secs(10);
/// Interval at which a coordinator rewrites its state file, so that the file's age shows whether
/// agents may still wait for the job: one small write in place, and far more often than they give
/// up.
pub(super) const STATE_FILE_INTERVAL: Duration = Duration::from_secs(10);
/// Age at which a file in the folder of the state files is removed if it belongs to no job: longer than any
/// process takes between two files that belong together.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
