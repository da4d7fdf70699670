//! Reads the activity of workers from `/proc`.

use std::{collections::BTreeMap, fs, time::Duration};

use nix::unistd::{Pid, SysconfVar, sysconf};
use ragent_core::hang::Activity;
use ragent_rendezvous::ids::LocalRank;

use crate::sys::tree;

/// Returns the activity so far of each worker, given by its process, with all processes below it.
/// Blocks.
pub(crate) fn activities(workers: &BTreeMap<LocalRank, u32>) -> BTreeMap<LocalRank, Activity> {
    workers.iter().map(|(&local_rank, &pid)| (local_rank, activity(pid))).collect()
}

fn activity(worker: u32) -> Activity {
    let worker = Pid::from_raw(worker.cast_signed());
    let mut all = tree::descendants_of(worker);
    all.insert(worker);
    all.iter().fold(Activity::default(), |sum, &pid| Activity {
        cpu: sum.cpu + cpu(pid),
        written: sum.written.wrapping_add(written(pid)),
        processes: sum.processes + 1,
    })
}

/// Returns the processor time of a process and of its reaped children; zero if it is gone.
fn cpu(pid: Pid) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain any character, and ends at the last parenthesis; the fields 14 to 17 are
    // added.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let numbers = fields.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = numbers.filter_map(|number| number.parse::<u64>().ok()).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let per_second = per_second.and_then(|ticks| u32::try_from(ticks).ok()).unwrap_or(100);
    Duration::from_secs(ticks) / per_second.max(1)
}

/// Returns the number of bytes that a process has written, to any destination.
fn written(pid: Pid) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let number = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
