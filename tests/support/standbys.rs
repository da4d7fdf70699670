//! Waits for standbys, and reads the variable that gives them to the jobs of a whole target.

use std::{ffi::OsString, fs, time::Duration};

use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};

use super::{PATIENCE, children, find_keeper, let_pass};

/// The variable that programs of a test inherit. With it, all jobs of the target have standbys.
pub const PET_STANDBY: &str = "PET_STANDBY";

/// The log line after which every local rank of a node has a standby.
pub const READY: &str = "all standbys are ready";

/// The value of `PET_STANDBY` with which the tests were started.
pub fn pet_standby() -> Option<OsString> {
    ThisHost.env(PET_STANDBY)
}

/// Returns the number of workers in a log that were started from standbys.
pub fn count_standbys(log: &str) -> usize {
    let is_used = |line: &&str| line.contains("worker started") && line.contains("is_standby=true");
    log.lines().filter(is_used).count()
}

/// Returns true if the process is a standby that has imported its modules.
pub fn is_standby(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "ragent-standby\n")
}

/// The standbys of an agent that have imported their modules.
pub fn standbys_of(agent: u32) -> Vec<u32> {
    let children = find_keeper(agent).map(children).unwrap_or_default();
    children.into_iter().filter(|pid| is_standby(*pid)).collect()
}

/// Waits until an agent has standbys that fulfil a condition. No event reports later standbys, so this polls.
#[track_caller]
pub fn wait_for_standbys(agent: u32, is_met: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let deadline = clock::now_blocking() + PATIENCE;
    loop {
        let standbys = standbys_of(agent);
        if is_met(&standbys) {
            return standbys;
        }
        assert!(clock::now_blocking() < deadline, "the standbys are {standbys:?}");
        let_pass(Duration::from_millis(5));
    }
}

/// Returns the field `name` of a log line.
#[track_caller]
pub fn field(line: &str, name: &str) -> String {
    let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    word.and_then(|word| word.strip_prefix('=')).expect("the line has the field").to_owned()
}
