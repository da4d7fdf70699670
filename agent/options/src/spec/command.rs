//! Finds the command of a worker, before anything starts.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::UsageError;
use ragent_base::sys::host::Host;

use crate::cli;

/// The command of each worker.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct WorkerCommand {
    /// The path of the program.
    pub program: PathBuf,
    /// Its arguments, before macros are substituted.
    pub args: Vec<OsString>,
    /// The index of the first argument of the script itself.
    pub own_args_at: usize,
    /// The name for messages: the script.
    pub title: String,
    /// The script, or the folder, where Python searches for modules first; `None` if the command is
    /// not a Python script in a file.
    pub searched: Option<PathBuf>,
}

/// The kind of a script: how it is run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ScriptKind {
    /// A Python module: `--module`.
    Module,
    /// A program: `--no-python`.
    Program,
    /// A Python file.
    #[default]
    Script,
}

impl ScriptKind {
    /// Returns the kind that the two flags select.
    pub fn of(module: bool, no_python: bool) -> Result<Self, UsageError> {
        match (module, no_python) {
            (true, true) => {
                Err(UsageError::new("`--module` and `--no-python` cannot be used together"))
            }
            (true, false) => Ok(Self::Module),
            (false, true) => Ok(Self::Program),
            (false, false) => Ok(Self::Script),
        }
    }
}

impl WorkerCommand {
    /// Returns `python -u script args…`.
    pub(super) fn script(
        script: OsString,
        args: Vec<OsString>,
        host: &impl Host,
    ) -> Result<Self, UsageError> {
        let path = Path::new(&script);
        // Python runs a file of any kind, a folder with a main module, or its stdin.
        let main = path.join("__main__.py");
        let runs = |path: &Path| host.is_readable_file(path);
        if script != "-" && !runs(path) && !runs(&main) {
            return Err(missing_script(path, host));
        }
        let searched = (script != "-").then(|| path.to_owned());
        Ok(Self { searched, ..Self::python(&[], script, args, host)? })
    }

    /// Returns `python -u -m module args…`.
    pub(super) fn module(
        module: OsString,
        args: Vec<OsString>,
        host: &impl Host,
    ) -> Result<Self, UsageError> {
        let searched = Some(PathBuf::from("."));
        Ok(Self { searched, ..Self::python(&["-m"], module, args, host)? })
    }

    /// Returns a command that runs the script as `runpy.run_path` does; see [`RUN_PATH`].
    pub(super) fn run_path(
        script: OsString,
        args: Vec<OsString>,
        host: &impl Host,
    ) -> Result<Self, UsageError> {
        let plain = Self::script(script, args, host)?;
        let head = ["-u", "-c", RUN_PATH].map(OsString::from);
        // `plain` already begins with `-u`.
        let own_args_at = plain.own_args_at - 1 + head.len();
        let args = head.into_iter().chain(plain.args.into_iter().skip(1)).collect();
        let searched = plain.searched.is_some().then(|| PathBuf::from("."));
        Ok(Self { args, own_args_at, searched, ..plain })
    }

    /// Returns `program args…`.
    pub(super) fn program(
        program: OsString,
        args: Vec<OsString>,
        host: &impl Host,
    ) -> Result<Self, UsageError> {
        let title = program.to_string_lossy().into_owned();
        let found = host.find_program(&program);
        let program = found.ok_or_else(|| {
            let path = PathBuf::from(program);
            let problem = match (host.exists(&path), path.components().count()) {
                (true, _) => "is not an executable file",
                (false, 1) => "was not found in PATH",
                (false, _) => "does not exist",
            };
            UsageError::new(format!("the program `{}` {problem}", path.display()))
                .with_hint("without `--no-python`, Python runs it")
        })?;
        if let Some(interpreter) = missing_interpreter(&program, host) {
            return Err(no_interpreter(&program, &interpreter));
        }
        Ok(Self { program, args, own_args_at: 0, title, searched: None })
    }

    /// Returns the name by which nodes compare their scripts: that of the file, without its folder, or of the module.
    pub fn name(&self) -> String {
        let path = Path::new(&self.title);
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Returns the interpreter; `None` if the command is a program without one.
    pub fn interpreter(&self) -> Option<&Path> {
        // All arguments of a program are its own.
        (self.own_args_at > 0).then_some(&*self.program)
    }

    /// Returns the arguments with the name of a script, or a module, that does not exist in place of
    /// the own one; `None` if no script is run.
    pub fn args_without_script(&self) -> Option<Vec<OsString>> {
        let mut args = self.args.clone();
        let script = args.get_mut(self.own_args_at.checked_sub(1)?)?;
        let own = Path::new(&*script);
        let mut absent = own.with_file_name(ABSENT_SCRIPT);
        // `.py`, or the last part of a module's name.
        if let Some(extension) = own.extension() {
            absent.set_extension(extension);
        }
        *script = absent.into_os_string();
        Some(args)
    }

    fn python(
        flags: &[&str],
        script: OsString,
        args: Vec<OsString>,
        host: &impl Host,
    ) -> Result<Self, UsageError> {
        let program = interpreter(host)?;
        let title = script.to_string_lossy().into_owned();
        let own_args_at = flags.len() + 2;
        let flags = ["-u"].iter().chain(flags).map(OsString::from);
        let args = flags.chain([script]).chain(args).collect();
        Ok(Self { program, args, own_args_at, title, searched: None })
    }
}

fn missing_script(path: &Path, host: &impl Host) -> UsageError {
    let error = |problem| UsageError::new(format!("the script `{}` {problem}", path.display()));
    let hint = "use `-m` for a module, and `--no-python` for a program that is not Python";
    match (host.exists(path), host.exists(&path.join("."))) {
        (_, true) => error("is a folder without a `__main__.py`").with_hint(hint),
        (true, false) => error("cannot be read").with_hint(hint),
        (false, false) => {
            let name = path.to_str().unwrap_or_default();
            if name
                .strip_prefix("python")
                .is_some_and(|rest| rest.trim_matches(|c| matches!(c, '0'..='9' | '.')).is_empty())
            {
                let hint = format!(
                    "leave out `{name}`: ragent starts Python by itself, `ragent train.py`"
                );
                return error("does not exist").with_hint(hint);
            }
            if name == "store" {
                let hint = "`ragent store` was removed; `torch.distributed.TCPStore(HOST, PORT, is_master=True, \
                            wait_for_workers=False)` in Python serves a store";
                return error("does not exist").with_hint(hint);
            }
            let command = cli::similar_command(name);
            let command = command.map(|it| format!("a similar command exists: `ragent {it}`"));
            error("does not exist").with_hint(command.unwrap_or_else(|| hint.to_owned()))
        }
    }
}

fn no_interpreter(script: &Path, interpreter: &Path) -> UsageError {
    let hint = if interpreter.as_os_str().as_encoded_bytes().ends_with(b"\r") {
        "it has Windows line endings: remove them with `sed -i 's/\\r$//'`"
    } else {
        "install it, or correct the line"
    };
    UsageError::new(format!(
        "the first line of `{}` requests {interpreter:?}, which does not exist",
        script.display()
    ))
    .with_hint(hint)
}

/// Returns the interpreter in the first line of a script if it does not exist. The system's error
/// would not name it.
fn missing_interpreter(script: &Path, host: &impl Host) -> Option<PathBuf> {
    let text = host.read(script)?;
    let line = text.strip_prefix("#!")?.split('\n').next()?;
    let program = line.trim_start_matches([' ', '\t']).split([' ', '\t']).next()?;
    let program = PathBuf::from(program);
    (!program.as_os_str().is_empty() && !host.exists(&program)).then_some(program)
}

/// A name that no script and no module has.
const ABSENT_SCRIPT: &str = "ragent_standby_test";

/// Runs the file that is its first argument as `__main__`. As torch's `@record` does for a
/// function, it writes an exception to the error file. Then it waits until all workers of the node have
/// returned: otherwise the last collectives of the others would fail.
const RUN_PATH: &str = "\
import os, runpy, sys
reports = os.environ.get('RAGENT_SOCKET')
sys.argv = sys.argv[1:]
def main():
    runpy.run_path(sys.argv[0], run_name='__main__')
try:
    from torch.distributed.elastic.multiprocessing.errors import record
except ImportError:
    record = lambda function: function
record(main)()
def wait(path):
    import socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as answer:
        if os.path.exists(path + '.held'):
            os.unlink(path + '.held')
        os.fchmod(answer.fileno(), 0o600)
        answer.bind(path + '.held')
        answer.sendto(b'X_RAGENT_RETURNED=1', path)
        answer.recv(1)
try:
    if reports:
        wait(reports)
except OSError:
    pass
";

/// The interpreter that runs `python -m ragent`, which sets this variable.
pub const OWN_PYTHON: &str = "RAGENT_PYTHON";

/// Finds the Python that users expect: `PYTHON_EXEC`, that of `python -m ragent`, that of the environment where this
/// program is installed, as for torchrun, that of the active environment, `python3`, `python`.
pub fn interpreter(host: &impl Host) -> Result<PathBuf, UsageError> {
    let named = |variable: &str| host.env(variable).filter(|value| !value.is_empty());
    if let Some(program) = named("PYTHON_EXEC") {
        let found = host.find_program(&program);
        let path = Path::new(&program).display();
        return found.ok_or_else(|| {
            no_python(format!("PYTHON_EXEC is `{path}`, which cannot be executed"))
        });
    }
    let own = named(OWN_PYTHON).map(PathBuf::from);
    let installed = host.program_folders().into_iter().filter(|folder| {
        let environment = folder.parent();
        environment
            .is_some_and(|it| ENVIRONMENT_MARKS.iter().any(|mark| host.exists(&it.join(mark))))
    });
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(named);
    let folders = installed.chain(active.map(|folder| PathBuf::from(folder).join("bin")));
    own.into_iter()
        .chain(folders.map(|folder| folder.join("python")))
        .find(|program| host.is_executable(program))
        .or_else(|| ["python3", "python"].iter().find_map(|name| host.find_program(name.as_ref())))
        .ok_or_else(|| no_python("no Python was found: neither `python3` nor `python` is in PATH"))
}

/// The files that virtual environments and those of conda have in the folder above their programs.
const ENVIRONMENT_MARKS: [&str; 2] = ["pyvenv.cfg", "conda-meta/history"];

fn no_python(message: impl Into<String>) -> UsageError {
    UsageError::new(message)
        .with_hint("activate an environment, or set PYTHON_EXEC to an interpreter")
}
