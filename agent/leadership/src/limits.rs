//! The limits of state files and of a fixed coordinator, each with its reason.

use std::time::Duration;

pub(crate) use ragent_base::limits::MAX_STATE_FILE;

/// Commands that wait for a fixed coordinator.
pub(super) const COMMANDS: usize = 64;
/// Time that a coordinator waits for its state file before it continues: a good part of the time
/// that a lease can spare, and far more than a healthy disk needs.
pub(super) const STATE_FILE_PATIENCE: Duration = Duration::from_secs(1);
/// Time for removing the state file of a finished job. Nothing else waits for the disk then.
pub(super) const STATE_FILE_REMOVAL: Duration = Duration::from_secs(10);
/// Interval at which a coordinator rewrites its state file. The file's age shows whether agents may
/// still wait for the job. One small write in place, far more often than agents give up.
pub(super) const STATE_FILE_INTERVAL: Duration = Duration::from_secs(10);
/// Age at which a file without a job is removed from the folder of state files: longer than any process needs between two files that belong
/// together.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// The time since the last change for which a list of ended jobs is kept: longer than any job waits for its nodes.
pub(super) const ENDED_JOBS_KEPT: Duration = Duration::from_secs(7 * 86_400);
