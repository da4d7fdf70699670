//! Reads the activity of workers from `/proc`.

use std::{collections::BTreeMap, time::Duration};

use nix::unistd::{Pid, SysconfVar, sysconf};
use ragent_base::sys::{proc, tree};
use ragent_core::hang::Activity;
use ragent_rendezvous::ids::LocalRank;

/// Returns the activity of each worker so far, with all processes below it. `workers` are process ids. Blocks.
pub(crate) fn activities(workers: &BTreeMap<LocalRank, u32>) -> BTreeMap<LocalRank, Activity> {
    workers.iter().map(|(&local_rank, &pid)| (local_rank, activity(pid))).collect()
}

fn activity(worker: u32) -> Activity {
    let worker = Pid::from_raw(worker.cast_signed());
    let mut all = tree::descendants_of(worker);
    all.insert(worker);
    let all = all.iter().map(|pid| pid.as_raw().cast_unsigned());
    all.fold(Activity::default(), |sum, pid| Activity {
        cpu: sum.cpu + cpu(pid),
        written: sum.written.wrapping_add(written(pid)),
        processes: sum.processes + 1,
    })
}

/// Returns the processor time of a process and its reaped children; zero if it is gone.
fn cpu(pid: u32) -> Duration {
    let ticks = proc::stat(pid).map_or(0, |stat| stat.cpu_ticks);
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let per_second = per_second.and_then(|ticks| u32::try_from(ticks).ok()).unwrap_or(100);
    Duration::from_secs(ticks) / per_second.max(1)
}

/// Returns the number of bytes that a process has written, to any destination.
fn written(pid: u32) -> u64 {
    proc::field(&format!("{pid}/io"), "wchar").and_then(|number| number.parse().ok()).unwrap_or(0)
}
