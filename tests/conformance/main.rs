//! Runs ragent with a command line, and compares it with what torchrun did with the same one (`record.rs`): everything that is visible to the
//! worker, its user or a surrounding program.
//!
//! The table is in `cases.rs`. A difference that the table does not name is a failure. So is a named difference that is not found.
//!
//! `CASE=word` runs the cases whose name contains that word. Under `PET_STANDBY=1` the workers of ragent are started from standbys.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod case;
#[rustfmt::skip] // one line a case
mod cases;
mod compat_page;
mod launcher;
mod record;
mod traces;

#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use nix::sys::stat::{self, Mode};
use ragent_base::sys::host::{Host, ThisHost};

use self::{
    case::Case,
    launcher::{Process, Torchrun},
    record::Record,
    support::pet_standby,
    traces::Traces,
};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The number of cases at once. Each spends most of its time waiting for processes.
const THREADS: usize = 3;

/// The folder of the Python environment with torch. `None` if there is none.
fn venv() -> Option<PathBuf> {
    let venv = PathBuf::from(format!("{REPOSITORY}/.venv")).canonicalize().ok();
    let venv = venv.filter(|venv| venv.join("bin/torchrun").exists());
    if venv.is_none() {
        support::skip("there is no .venv; `scripts/setup-venv.sh` makes it");
    }
    venv
}

/// Sets the umask with which torchrun's traces were recorded.
fn set_umask() {
    stat::umask(Mode::S_IWGRP | Mode::S_IWOTH);
}

/// Every case of the table shows the differences that it names, and no other.
#[test]
fn both_worlds() {
    let Some(venv) = venv() else { return };
    set_umask();
    let record = Record::read(venv.clone());
    let ragent = Process { path: env!("CARGO_BIN_EXE_ragent").into() };
    let wanted = ThisHost.env("CASE").map(|word| word.to_string_lossy().into_owned());
    let is_wanted = |case: &Case| wanted.as_ref().is_none_or(|word| case.name.contains(word));
    let cases: Vec<Case> = cases::all().into_iter().filter(is_wanted).collect();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases have the same name");
    let next = AtomicUsize::new(0);
    let standbys = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS.min(cases.len()) {
            scope.spawn(|| {
                let torchrun = Torchrun::new(&venv);
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let judged = panic::catch_unwind(AssertUnwindSafe(|| {
                        let theirs = record.of(case, &torchrun)?;
                        let ours = Traces::of(case, &venv, &ragent);
                        standbys.fetch_add(ours.standbys, Ordering::Relaxed);
                        case.judge(&theirs, &ours)
                    }));
                    let why = match judged {
                        Ok(Ok(())) => continue,
                        Ok(Err(why)) => why,
                        Err(_) => "it came to no end; see above".to_owned(),
                    };
                    failures.lock().unwrap().push(format!("{}: {why}", case.name));
                }
            });
        }
    });
    record.write();
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    let (failed, all) = (failures.len(), cases.len());
    assert!(failures.is_empty(), "{failed} of {all} cases:\n\n{}", failures.join("\n\n"));
    let standbys = standbys.into_inner();
    let must_use = pet_standby().is_some() && wanted.is_none();
    assert!(!must_use || standbys > 0, "no worker was started from a standby");
}

/// The program `torchrun` leaves the same traces as the record. With `RECORD=0`, they are compared with those of a fork, as `both_worlds` uses it.
///
/// There is no case with a signal: torchrun leaves its workers behind if the signal comes before it has noted that they run, and it takes
/// longer than usual to note that on a busy machine.
#[test]
fn torchrun_is_as_recorded() {
    let Some(venv) = venv() else { return };
    set_umask();
    let program = Process { path: venv.join("bin/torchrun") };
    let (record, fork) = (Record::read(venv.clone()), Torchrun::new(&venv));
    let names = ["threads", "restarts used up", "unknown flag"];
    for case in cases::all().iter().filter(|case| names.contains(&case.name)) {
        let forked = record.of(case, &fork).unwrap();
        let found = Traces::of(case, &venv, &program).differences(&forked);
        assert!(found.is_empty(), "{}: {found:?}", case.name);
    }
}

/// The table has at least as many cases as documented.
#[test]
fn table_is_long_enough() {
    assert!(cases::all().len() > 200, "{}", cases::all().len());
}
