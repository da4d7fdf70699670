//! A state file that another program has written.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use ragent_base::{
    sys::{clock, proc},
    testing::{self, assert_shown},
};
use ragent_election::election::message::Replica;
use ragent_leadership::{
    Stored,
    state_file::{has_death_notice, read_copy, read_job_state, write_copy},
};
use ragent_rendezvous::{limits::NUMBER_MAX, settings::JobState};

use super::registration::assert_status_is_accepted;

/// Text of an input that is replaced by the identity of this machine's boot.
pub(super) const BOOT: &str = "BOOT";

/// The time for which agents wait for a coordinator.
const KEPT: Duration = Duration::from_secs(600);

/// The time for which a coordinator runs.
const RUN: Duration = Duration::from_secs(3600);

/// The steps of that coordinator.
const STEPS_MAX: usize = 1000;

/// Reads a state file, as a coordinator and as a voter, and continues from it.
pub fn state_file(input: &[u8]) {
    let boot = proc::read("sys/kernel/random/boot_id").unwrap_or_default();
    let text = String::from_utf8_lossy(input).replace(BOOT, boot.trim());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("job-1.json");
    fs::write(&path, &text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a file");
    if let Some(job_state) = read_job_state(&path) {
        assert!(!has_death_notice(&path, &job_state), "there is no death notice");
        check(&job_state);
        survive(&path, &job_state);
        run(job_state);
    }
    fs::write(&path, &text).expect("a file");
    if let Some(stored) = read_copy(&path) {
        let version = stored.replica.version;
        assert!(version.term.0.max(version.number).max(stored.highest.0) <= NUMBER_MAX);
        check(stored.replica.job_state.as_ref().expect("a copy has a state"));
        if write_copy(&path, &stored, KEPT).is_ok() && is_whole(&path) {
            assert_eq!(read_copy(&path), Some(stored));
        }
    }
}

/// Checks the numbers, to which others are added, and the texts.
fn check(job_state: &JobState) {
    assert_shown(job_state);
    assert!(
        job_state.term.0.max(job_state.round.0).max(job_state.charged_through.0) <= NUMBER_MAX,
        "{job_state:?}"
    );
}

/// Checks that a job's state is read as it was written.
fn survive(path: &Path, job_state: &JobState) {
    write_copy(path, &sole(job_state), KEPT).expect("the folder is writable");
    if is_whole(path) {
        assert_eq!(read_job_state(path).as_ref(), Some(job_state));
    }
}

/// Returns what a coordinator without voters stores.
pub(super) fn sole(job_state: &JobState) -> Stored {
    let replica = Replica { job_state: Some(job_state.clone()), ..Replica::default() };
    Stored { replica, is_led: true, ..Stored::default() }
}

/// Returns true unless a part of a very long file was left out.
fn is_whole(path: &Path) -> bool {
    fs::metadata(path).expect("a file").len() < 32 * 1024
}

/// Runs a coordinator that continues from the state, for an hour without any agent.
fn run(job_state: JobState) {
    let begin = clock::now();
    let mut rendezvous = testing::coordinator(begin, job_state, None);
    let mut now = begin;
    for _ in 0..STEPS_MAX {
        while rendezvous.poll_effect().is_some() {}
        assert_status_is_accepted(&rendezvous, now);
        match rendezvous.poll_timeout() {
            Some(due) if due <= begin + RUN => now = now.max(due),
            Some(_) | None => return,
        }
        rendezvous.handle_timeout(now);
    }
    panic!("the coordinator does not come to rest");
}
