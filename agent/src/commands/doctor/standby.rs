//! Measures what standbys would import early: how long it takes, how much memory, and whether they can.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use ragent_base::{
    report::news,
    spec::{self, Signaled, WorkerCommand},
    sys::{
        clock,
        host::{Host, ThisHost},
    },
};
use ragent_node::{
    keeper::{
        order::{KeeperReport, Program},
        standbys::KeptStandbys,
    },
    workers::standby::{Hook, LeftOut, Ready, StandbyReport, StandbySpec},
};
use tokio::task::spawn_blocking;

use super::{Finding, Findings};
use crate::commands::doctor::limits;

const CHECK: &str = "standby";

/// Reports what each of `modules` costs.
pub(super) async fn examine(
    modules: Vec<String>,
    script: Option<&Path>,
    workers: Option<NonZeroU32>,
    findings: &mut Findings,
) {
    if modules.is_empty() {
        return;
    }
    // Another check reports that there is no interpreter.
    let Ok(python) = spec::interpreter(&ThisHost) else { return };
    let command = command(python, script);
    let spec = StandbySpec {
        modules: modules.clone(),
        is_observed: false,
        state_dir: ThisHost.state_dir(),
        python_path: ThisHost.env("PYTHONPATH"),
    };
    let hook = match Hook::install(&spec, &command).await {
        Ok(hook) => hook,
        Err(reason) => {
            let text = format!("workers cannot have standbys: {reason}");
            return findings.report(Finding::warn(
                CHECK,
                text,
                "start the job without `--standby`",
            ));
        }
    };
    let mut left = modules;
    while !left.is_empty() {
        let (program, variables) = (program(&command), hook.variables(&left.join(",")));
        let measured = spawn_blocking(move || import(program, variables)).await;
        match measured.unwrap_or_else(|error| StandbyOutcome::Ended(error.to_string())) {
            StandbyOutcome::Ready(ready) => return report(&ready, workers, findings),
            StandbyOutcome::Refused(LeftOut { module, reason }) if left.contains(&module) => {
                findings.report(left_out(&module, &reason));
                left.retain(|name| *name != module);
            }
            StandbyOutcome::Refused(LeftOut { reason, .. }) | StandbyOutcome::Ended(reason) => {
                let text = format!("a standby does not become ready: {reason}");
                return findings.report(Finding::warn(CHECK, text, "import the modules in `python3` to see the error, or leave them out of `--standby`"));
            }
        }
    }
}

fn command(python: PathBuf, script: Option<&Path>) -> WorkerCommand {
    let words: [OsString; 2] = match script {
        Some(script) => ["-u".into(), script.into()],
        None => ["-c".into(), "pass".into()],
    };
    let searched = script.unwrap_or_else(|| Path::new("."));
    WorkerCommand {
        program: python,
        own_args_at: words.len(),
        args: words.into(),
        searched: Some(searched.to_owned()),
        ..WorkerCommand::default()
    }
}

fn program(command: &WorkerCommand) -> Program {
    Program {
        local_rank: 0,
        program: command.program.clone(),
        args: command.args.clone(),
        cpus: Default::default(),
        env: vec![("LOCAL_RANK".to_owned(), "0".into())],
        unset: Vec::new(),
        open_files: u64::MAX,
        ignored: Vec::new(),
        core_dump: 0,
        nice: 0,
        signaled: Signaled::Group,
        flows: Vec::new(),
    }
}

/// The result of one standby.
enum StandbyOutcome {
    Ready(Ready),
    Refused(LeftOut),
    /// It has ended, or has not become ready in time.
    Ended(String),
}

/// Starts a standby, waits for its report, and ends it. Blocks.
fn import(program: Program, variables: Vec<(String, OsString)>) -> StandbyOutcome {
    let mut standbys = KeptStandbys::default();
    if let Err(error) = standbys.stand(program, variables, None) {
        return StandbyOutcome::Ended(error.to_string());
    }
    let until = clock::now_blocking() + limits::STANDBY_IMPORT_TIMEOUT;
    let mut outcome = None;
    while outcome.is_none() {
        if let Err(error) = wait(&standbys, until) {
            outcome = Some(StandbyOutcome::Ended(error.to_string()));
        }
        let mut take = |report: KeeperReport| match report {
            KeeperReport::Standby { text, .. } => match StandbyReport::parse(&text) {
                Some(StandbyReport::Ready(ready)) => outcome = Some(StandbyOutcome::Ready(ready)),
                Some(StandbyReport::Refused(left_out)) => {
                    outcome = Some(StandbyOutcome::Refused(left_out));
                }
                Some(StandbyReport::Taken) | None => {
                    outcome = Some(StandbyOutcome::Ended(format!("it reports `{text}`")));
                }
            },
            KeeperReport::StandbyEnded { end, .. } => {
                outcome = Some(StandbyOutcome::Ended(news::ended(&end.into())));
            }
            KeeperReport::StandbyNotStarted { reason, .. } => {
                outcome = Some(StandbyOutcome::Ended(reason))
            }
            KeeperReport::Spawned { .. }
            | KeeperReport::NotSpawned { .. }
            | KeeperReport::Ended { .. }
            | KeeperReport::Quiet
            | KeeperReport::Reaped { .. }
            | KeeperReport::LeaseOver
            | KeeperReport::Signal { .. }
            | KeeperReport::Pong => {}
        };
        standbys.receive(&mut take);
        standbys.reap(&mut take);
    }
    standbys.dismiss(0);
    outcome.unwrap_or_else(|| StandbyOutcome::Ended(String::new()))
}

/// Waits until a standby has a report or has ended.
fn wait(standbys: &KeptStandbys, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(clock::now_blocking());
    let mut fds: Vec<_> = standbys.sockets().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // The process of a closed socket is about to end.
    let left = if fds.is_empty() { left.min(limits::REAP_TIMEOUT) } else { left };
    let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, limit) {
        Ok(0) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no report within {} s", limits::STANDBY_IMPORT_TIMEOUT.as_secs()),
        )),
        // The end of another process interrupts the call. The caller waits again.
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn report(ready: &Ready, workers: Option<NonZeroU32>, findings: &mut Findings) {
    for LeftOut { module, reason } in &ready.missing {
        let text = format!("`{module}` is not imported: {reason}");
        findings.report(Finding::warn(CHECK, text, "leave it out of `--standby`"));
    }
    let mut early: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for LeftOut { module, reason } in &ready.early {
        early.entry(module).or_default().push(reason);
    }
    for (module, reasons) in &early {
        findings.report(left_out(module, &reasons.join(", ")));
    }
    let useful = || ready.imported.iter().filter(|one| !early.contains_key(one.module.as_str()));
    for one in useful() {
        let text =
            format!("`{}` takes {:.1} s and {} MiB", one.module, one.seconds, one.bytes >> 20);
        findings.report(Finding::pass(CHECK, text));
    }
    let seconds: f64 = useful().map(|one| one.seconds).sum();
    let each = match workers {
        Some(workers) if workers.get() > 1 => format!("each of {workers} workers"),
        Some(_) | None => "each worker".to_owned(),
    };
    let memory = ready.bytes >> 20;
    let text = format!("a restart is {seconds:.1} s shorter; {memory} MiB of memory for {each}");
    findings.report(Finding::pass(CHECK, text));
}

fn left_out(module: &str, reason: &str) -> Finding {
    let text = format!("standbys would not import `{module}`: {reason}");
    Finding::warn(CHECK, text, "leave it out of `--standby`")
}
