//! Finds bad and slow nodes before a job: `ragent check`.
//!
//! It is a launch whose script is part of this program (`check/pairs.py`):
//!
//! 1. The script is written to a folder of this user, for this run only.
//! 2. The workers let nodes work in pairs. They exit with 0, also if a node is bad.
//! 3. A worker leaves the verdict in that folder, and the exit code follows from it.
//! 4. If the job does not end after that, because a process cannot be killed, this agent ends alone.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::mpsc::{self, RecvTimeoutError, SyncSender},
    thread,
    time::Duration,
};

use ragent_base::{
    report::telemetry::Log,
    sys::{host::ThisHost, parents, private_folder::PrivateFolder, random::random_id},
};
use ragent_options::{
    cli::{CheckFlags, LaunchArgs},
    spec::{Argument, JobSpec, UsageError, UsageErrors},
};

use ragent_proto::printable;

use super::{
    doctor::child::{self, Unusable},
    error::{LaunchError, system},
    run, runtime,
};

const SOURCE: &str = include_str!("check/pairs.py");
const SCRIPT: &str = "ragent_check.py";
const VERDICT: &str = "verdict";
/// The verdict if all nodes are good. Another one is an error message.
const GOOD: &str = "good";
const DEFAULT_TIMEOUT: u32 = 120;
/// The longest time of a pair: a day.
const MAX_TIMEOUT: u32 = 86_400;
/// The parts of a check that last up to the time of a pair and a margin: nodes announce themselves, and work in two passes. Two margins
/// are added, as in `pairs.py`.
const PARTS: u32 = 3;
const MARGIN: Duration = Duration::from_secs(30);
/// How often the verdict is looked for. It matters only for the time at which an agent ends alone.
const VERDICT_INTERVAL: Duration = Duration::from_secs(1);
const DEFAULT_OUT: &str = "bad-hosts";
/// The time in which Python may find torch. It takes seconds on a cold network file system.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// Finds torch without importing it, which takes seconds.
const QUESTION: &str =
    "import importlib.util; print(importlib.util.find_spec('torch') is not None)";

/// A check of nodes that has not begun. Dropping it removes its folder.
#[derive(Debug)]
pub struct Check {
    folder: PathBuf,
    flags: Vec<OsString>,
    longest: Duration,
}

impl Check {
    /// Examines the flags, and writes the script to a new folder.
    ///
    /// # Errors
    ///
    /// Returns [`LaunchError`] if a flag is invalid, or the folder cannot be written.
    pub fn prepare(flags: &CheckFlags) -> Result<Self, LaunchError> {
        let mut errors = UsageErrors::default();
        let backend = errors.or_default(backend(flags));
        let timeout = errors.or_default(timeout(flags));
        let out = errors.or_default(out(flags));
        errors.into_result(())?;
        let folder = ThisHost.state_dir().join(format!("check-{}", random_id()));
        let longest = PARTS * (Duration::from_secs(timeout.into()) + MARGIN) + 2 * MARGIN;
        let mut check = Self { folder, flags: Vec::new(), longest };
        check.write_script().map_err(system("write the script of `ragent check`"))?;
        let verdict = check.folder.join(VERDICT).into_os_string();
        let mut flags: Vec<OsString> = ["--timeout", &timeout.to_string(), "--out", &out]
            .map(OsString::from)
            .into_iter()
            .chain(["--verdict".into(), verdict])
            .collect();
        if let Some(backend) = backend {
            flags.extend(["--backend".into(), backend.into()]);
        }
        check.flags = flags;
        Ok(check)
    }

    /// Returns the arguments of the launch, with the script in its place.
    ///
    /// # Errors
    ///
    /// Returns [`UsageError`] if the flags select another kind of script.
    pub fn launch_args(&self, mut args: LaunchArgs) -> Result<LaunchArgs, UsageError> {
        if args.job.module || args.job.no_python || args.run_path {
            return Err(other_script());
        }
        let script = self.script().into_os_string();
        args.job.script = [script].into_iter().chain(self.flags.iter().cloned()).collect();
        Ok(args)
    }

    /// Runs this node's part of the check.
    ///
    /// # Errors
    ///
    /// Returns [`LaunchError`] if a node is bad, or the nodes cannot be checked.
    pub fn run(self, mut spec: JobSpec, log: &Log) -> Result<ExitCode, LaunchError> {
        if spec.shared.nodes.min() < 2 {
            let nodes = spec.shared.nodes;
            return Err(UsageError::new(format!("`ragent check` compares at least 2 nodes with each other, but `--nnodes` is {nodes}"))
                .with_hint("type it on all nodes, with `--nnodes` and the same `--rdzv-endpoint`; `ragent doctor` examines one node")
                .into());
        }
        // PET_MODULE selects it too.
        if spec.command.args.get(1).map(OsString::as_os_str) != Some(self.script().as_os_str()) {
            return Err(other_script().into());
        }
        find_torch(&spec)?;
        // Its workers are started once, so PET_STANDBY would only delay them.
        spec.standby.clear();
        spec.command.title = "ragent check".to_owned();
        spec.output.announces_success = false;
        let _is_running = self.limit_end()?;
        let code = run::launch(spec, log)?;
        match fs::read_to_string(self.folder.join(VERDICT)) {
            Ok(verdict) if verdict == GOOD => Ok(code),
            Ok(why) => {
                Err(LaunchError::Command { code: 1, report: format!("error: {}", printable(&why)) })
            }
            // No worker has run here, for example if the job has enough other nodes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(code),
            Err(error) => Err(system("read the verdict of `ragent check`")(error)),
        }
    }

    /// Ends this process if it still runs when all nodes have long had their verdicts: the job waits for a process that hangs in the kernel,
    /// which no signal ends. Dropping the result removes the limit.
    fn limit_end(&self) -> Result<SyncSender<()>, LaunchError> {
        let (is_running, end) = mpsc::sync_channel(0);
        let (folder, longest) = (self.folder.clone(), self.longest);
        let runs_after =
            move |time| matches!(end.recv_timeout(time), Err(RecvTimeoutError::Timeout));
        let watch = move || {
            while !folder.join(VERDICT).exists() {
                if !runs_after(VERDICT_INTERVAL) {
                    return;
                }
            }
            // A node may have its verdict at once, for example because it lacks torch, and others need its agent until they have theirs.
            if runs_after(longest) {
                end_alone(&folder, longest);
            }
        };
        let thread = thread::Builder::new().name("verdict".to_owned()).spawn(watch);
        thread.map_err(system("start the thread that limits `ragent check`"))?;
        Ok(is_running)
    }

    fn script(&self) -> PathBuf {
        self.folder.join(SCRIPT)
    }

    fn write_script(&self) -> io::Result<()> {
        if let Some(state_dir) = self.folder.parent() {
            PrivateFolder::make(state_dir)?;
        }
        let folder = PrivateFolder::make(&self.folder)?;
        // Python reads the script by its path.
        if let Some(why) = parents::unsound(&self.folder)? {
            return Err(io::Error::other(format!(
                "other users can put another folder in the place of {}, because {why}; name another one with XDG_RUNTIME_DIR or TMPDIR",
                self.folder.display()
            )));
        }
        folder.replace(OsStr::new(SCRIPT), SOURCE.as_bytes())
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // A folder that stays is harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Prints the verdict, and ends this process without its job.
#[expect(clippy::exit, reason = "the thread of the agent waits for a process that never ends")]
fn end_alone(folder: &Path, waited: Duration) -> ! {
    let mut report = format!(
        "error: the check is over, but its job still runs {} s later: one of its processes cannot be killed, on this node or another one\n\
         hint: look on all nodes for a process in state D (`ps -eo pid,stat,args`), and restart the machine on which you find one",
        waited.as_secs()
    );
    if let Ok(why) = fs::read_to_string(folder.join(VERDICT))
        && why != GOOD
    {
        report = format!("error: {}\n{report}", printable(&why));
    }
    let _ = fs::remove_dir_all(folder);
    let _ = writeln!(io::stderr(), "{report}");
    process::exit(1)
}

fn other_script() -> UsageError {
    let message =
        "`ragent check` runs a Python script of its own, and cannot run a module or a program";
    let hint = "leave out `--module`, `--no-python` and `--run-path`, and PET_MODULE, PET_NO_PYTHON and PET_RUN_PATH";
    UsageError::new(message).with_hint(hint)
}

fn backend(flags: &CheckFlags) -> Result<Option<String>, UsageError> {
    let Some(given) = Argument::of_flag("--backend", &flags.backend) else { return Ok(None) };
    let choose = |text: &str| ["nccl", "gloo"].contains(&text).then(|| text.to_owned());
    given.choice("`nccl` or `gloo`", choose).map(Some).map_err(|error| {
        error.with_hint("without it, nccl is used if torch finds a GPU on any node, else gloo")
    })
}

fn timeout(flags: &CheckFlags) -> Result<u32, UsageError> {
    let given = Argument::of_flag("--timeout", &flags.timeout);
    let hint = "give the seconds after which a pair of nodes has failed, as in `--timeout 120`";
    given.map_or(Ok(DEFAULT_TIMEOUT), |given| {
        given.whole_seconds(1..=MAX_TIMEOUT).map_err(|error| error.with_hint(hint))
    })
}

fn out(flags: &CheckFlags) -> Result<String, UsageError> {
    match Argument::of_flag("--out", &flags.out) {
        None => Ok(DEFAULT_OUT.to_owned()),
        Some(given) if given.text.is_empty() => {
            Err(given.is_not("a path").with_hint("give a file, as in `--out bad-hosts`"))
        }
        Some(given) => Ok(given.text),
    }
}

/// Asks the interpreter of the workers for torch. A slow one is not waited for: its worker will report what is missing.
fn find_torch(spec: &JobSpec) -> Result<(), LaunchError> {
    let python = spec.command.program.clone();
    let path = python.display().to_string();
    let answer = child::stdout_of(python, &["-c", QUESTION], PROBE_TIMEOUT);
    match runtime::block_on(answer)? {
        Ok(answer) if answer.trim() == "False" => {
            Err(UsageError::new(format!("`ragent check` needs torch, which {path} does not have"))
                .with_hint("install it (`pip install torch`), activate the environment that has it, or set PYTHON_EXEC to its interpreter")
                .into())
        }
        Ok(_) | Err(Unusable::Silent(_)) => Ok(()),
        Err(Unusable::Broken(why)) => Err(UsageError::new(format!("{path} does not run: {why}"))
            .with_hint("set PYTHON_EXEC to another interpreter")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(flags: &CheckFlags) -> String {
        match Check::prepare(flags) {
            Err(error) => error.report(),
            Ok(check) => panic!("{check:?}"),
        }
    }

    /// All mistakes in the flags are reported at once, with what to give instead.
    #[test]
    fn flags_are_examined() {
        let text = |text: &str| Some(text.to_owned());
        let report =
            refused(&CheckFlags { backend: text("mpi"), timeout: text("soon"), out: text("") });
        for part in [
            "`--backend mpi` is not `nccl` or `gloo`",
            "`--timeout soon` is not a number from 1 to 86400",
            "`--out ` is not a path",
        ] {
            assert!(report.contains(part), "{report}");
        }
    }

    /// The folder of a check is removed with it.
    #[test]
    fn folder_is_removed() {
        let check = Check::prepare(&CheckFlags::default()).unwrap();
        let args = check.launch_args(LaunchArgs::default()).unwrap();
        let script = PathBuf::from(&args.job.script[0]);
        assert_eq!(fs::read_to_string(&script).unwrap(), SOURCE);
        assert_eq!(args.job.script[1..3], ["--timeout", "120"]);
        drop(check);
        assert!(!script.exists());
    }
}
