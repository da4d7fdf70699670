//! Installs the hook that makes a Python interpreter a standby, and parses the reports of standbys.
//!
//! Python reads the hook by its path. So there are no standbys if other users could put another folder in its place: they own a folder
//! above it, or can write to such a folder without a sticky bit.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    process::Stdio,
};

use ragent_base::sys::{
    host::{Host, ThisHost},
    private_folder::PrivateFolder,
    unix,
};
use ragent_options::spec::WorkerCommand;
use sha2::{Digest, Sha256};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::launch::environment::{NOT_INHERITED, OF_ROUND};
use crate::limits;

/// The hook: a folder with a `sitecustomize.py`. If the folder is the first one in `PYTHONPATH`,
/// Python imports the file before the script.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    folder: PathBuf,
    python_path: Option<OsString>,
    script: PathBuf,
    is_observed: bool,
}

const SOURCE: &str = include_str!("sitecustomize.py");
/// Variables that the hook removes first.
const POISONED: [&str; 3] = ["MASTER_PORT", "RANK", "WORLD_SIZE"];
/// The answer of the hook to a test.
const ANSWER: &[u8] = b"ragent-standby";

impl Hook {
    /// Stores the hook, and tests that the interpreter of `command` runs it. If `is_observed` is true, standbys start torch's worker server
    /// when they become workers.
    ///
    /// # Errors
    ///
    /// Returns the reason why standbys are impossible.
    pub(crate) async fn install(
        command: &WorkerCommand,
        is_observed: bool,
    ) -> Result<Self, String> {
        let args = command.args_without_script();
        let (script, args) =
            command.searched.clone().zip(args).ok_or("the command is not a Python script")?;
        let state_dir = ThisHost.state_dir();
        let stored = store(&state_dir).map_err(|error| {
            format!("their hook cannot be written to {}: {error}", state_dir.display())
        });
        let python_path = ThisHost.env("PYTHONPATH");
        let hook = Self { folder: stored?, python_path, script, is_observed };
        let answer = timeout(limits::PROBE_TIMEOUT, hook.probe(&command.program, &args)).await;
        let python = command.program.display();
        match answer {
            Ok(Ok(answer)) if answer == ANSWER => Ok(hook),
            Ok(Ok(_)) => Err(format!(
                "{python} ignores PYTHONPATH or does not import `sitecustomize` (check PYTHON_EXEC)"
            )),
            Ok(Err(error)) => Err(format!("{python} cannot be executed: {error}")),
            Err(_) => {
                Err(format!("{python} did not start within {} s", limits::PROBE_TIMEOUT.as_secs()))
            }
        }
    }

    /// Stores the hook again if its file is gone, for example after the end of a login session.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub(crate) fn ensure(&self) -> io::Result<()> {
        store_in(&self.folder)
    }

    /// Returns the variables of a standby that imports `modules`.
    pub(crate) fn variables(&self, modules: &str) -> Vec<(String, OsString)> {
        let mut path = self.folder.clone().into_os_string();
        if let Some(given) = self.python_path.as_ref().filter(|given| !given.is_empty()) {
            path.push(":");
            path.push(given);
        }
        let mut variables = vec![
            ("PYTHONPATH".to_owned(), path),
            ("RAGENT_STANDBY".to_owned(), modules.into()),
            ("RAGENT_STANDBY_SCRIPT".to_owned(), self.script.clone().into()),
        ];
        if self.is_observed {
            variables.push(("RAGENT_STANDBY_OBSERVE".to_owned(), "1".into()));
        }
        // A script that runs without the hook must fail, instead of running as a job of one worker.
        variables.extend(POISONED.map(|name| (name.to_owned(), "unknown".into())));
        let given = self.python_path.clone();
        variables.extend(given.map(|path| ("RAGENT_STANDBY_PATH".to_owned(), path)));
        variables
    }

    /// Runs the interpreter with a script that does not exist. Returns its output, up to [`limits::MAX_ANSWER`].
    ///
    /// `args` are the worker's, because a wrapper may handle another command differently. The test matters: an
    /// interpreter that does not run the hook would run the script without its round.
    async fn probe(&self, python: &Path, args: &[OsString]) -> io::Result<Vec<u8>> {
        let mut command = Command::new(python);
        command.args(args).kill_on_drop(true);
        unix::end_with_this_thread(&mut command);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command.envs(self.variables("?")).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take();
        let answer = async {
            let mut bytes = Vec::new();
            if let Some(pipe) = stdout {
                pipe.take(limits::MAX_ANSWER).read_to_end(&mut bytes).await?;
            }
            Ok(bytes)
        };
        let (_, answer) = tokio::try_join!(child.wait(), answer)?;
        Ok(answer)
    }
}

/// Writes the hook to a folder, unless it is there, and returns the folder. Its name depends on the
/// content of the hook.
fn store(state_dir: &Path) -> io::Result<PathBuf> {
    let digest = Sha256::digest(SOURCE);
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = state_dir.join(format!("standby-{digest}"));
    store_in(&path)?;
    Ok(path)
}

fn store_in(path: &Path) -> io::Result<()> {
    if let Some(state_dir) = path.parent() {
        PrivateFolder::make(state_dir)?;
    }
    // Python reads the hook by its path.
    let folder = PrivateFolder::make_for_paths(path)?;
    let name = OsStr::new("sitecustomize.py");
    if folder.read(name).ok().as_deref() != Some(SOURCE) {
        folder.replace(name, SOURCE.as_bytes())?;
    }
    Ok(())
}

/// A report of a standby, as the hook sends it: lines with fields that tabs separate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum StandbyReport {
    /// The standby has imported its modules and waits.
    Ready(Ready),
    /// The standby has ended, because a module must not be imported early.
    Refused(LeftOut),
    /// The standby has become the worker.
    Taken,
}

/// The state of a waiting standby.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ready {
    /// The memory that it shares with no other process, in bytes.
    pub(crate) bytes: u64,
    /// The modules that it has not imported, because they are not installed or are hidden.
    pub(crate) missing: Vec<LeftOut>,
    /// The modules that have read a variable of a round.
    pub(crate) early: Vec<LeftOut>,
}

/// A module that is not imported early, and the reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LeftOut {
    /// Its name.
    pub(crate) module: String,
    /// The reason, for the user.
    pub(crate) reason: String,
}

impl StandbyReport {
    /// Parses a report; `None` if it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(|line| line.splitn(4, '\t').collect::<Vec<_>>());
        let left_out = |module: &str, reason: &str| LeftOut {
            module: module.to_owned(),
            reason: reason.to_owned(),
        };
        match lines.next()?.as_slice() {
            ["taken"] => Some(Self::Taken),
            ["refused", module, reason] => Some(Self::Refused(left_out(module, reason))),
            ["ready", kib] => {
                let bytes = kib.parse::<u64>().ok()?.saturating_mul(1024);
                let mut ready = Ready { bytes, ..Ready::default() };
                for line in lines {
                    match line.as_slice() {
                        ["missing", module, reason] => {
                            ready.missing.push(left_out(module, reason));
                        }
                        ["read", module, name] if OF_ROUND.contains(name) => {
                            let reason = format!("it reads {name} while it is imported");
                            ready.early.push(left_out(module, &reason));
                        }
                        // Other kinds of lines, and variables that do not depend on the round.
                        _ => {}
                    }
                }
                Some(Self::Ready(ready))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn left_out(module: &str, reason: &str) -> LeftOut {
        LeftOut { module: module.to_owned(), reason: reason.to_owned() }
    }

    /// Reports are parsed. A variable that does not depend on the round is ignored.
    #[test]
    fn reports() {
        let text = "ready\t100\nmissing\tfoo\tnot installed\n\
                    read\ttorch\tHOME\nread\tlightning\tRANK";
        let ready = Ready {
            bytes: 100 * 1024,
            missing: vec![left_out("foo", "not installed")],
            early: vec![left_out("lightning", "it reads RANK while it is imported")],
        };
        assert_eq!(StandbyReport::parse(text), Some(StandbyReport::Ready(ready)));
        assert_eq!(StandbyReport::parse("taken"), Some(StandbyReport::Taken));
        let refused = StandbyReport::Refused(left_out("x", "it sets RANK"));
        assert_eq!(StandbyReport::parse("refused\tx\tit sets RANK"), Some(refused));
        for wrong in ["", "ready", "ready\tx", "refused\tx", "other\t1"] {
            assert_eq!(StandbyReport::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        /// Every text is either parsed or refused.
        #[test]
        fn never_panics(text in "(ready|refused|missing|read|[a-z0-9\t\n]){0,20}") {
            let _ = StandbyReport::parse(&text);
        }
    }

    /// The folder of the hook comes first in the path of modules. The value for the script is passed separately.
    #[test]
    fn variables_of_the_hook() {
        let hook = |path: Option<&str>| Hook {
            folder: "/hook".into(),
            python_path: path.map(OsString::from),
            script: "train.py".into(),
            is_observed: false,
        };
        let path = |hook: Hook| {
            let all = hook.variables("torch");
            let value = |name: &str| {
                let found = all.iter().find(|(variable, _)| variable == name);
                found.map(|(_, value)| value.to_string_lossy().into_owned())
            };
            (value("PYTHONPATH"), value("RAGENT_STANDBY_PATH"))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(path(hook(None)), (text("/hook"), None));
        assert_eq!(path(hook(Some(""))), (text("/hook"), text("")));
        assert_eq!(path(hook(Some("/a:/b"))), (text("/hook:/a:/b"), text("/a:/b")));
    }

    /// If an interpreter or a wrapper prints a lot, only the beginning is read.
    #[tokio::test]
    async fn long_answer_is_cut() {
        let hook = Hook {
            folder: "/hook".into(),
            python_path: None,
            script: "train.py".into(),
            is_observed: false,
        };
        let args = ["-c", "head -c 1000000 /dev/zero; exit 0"].map(OsString::from);
        let answer = hook.probe(Path::new("/bin/sh"), &args).await.unwrap();
        assert_eq!(answer.len() as u64, limits::MAX_ANSWER);
    }
}
