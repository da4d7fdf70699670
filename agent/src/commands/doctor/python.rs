//! Checks the interpreter for workers, and its torch.

use std::{path::PathBuf, time::Duration};

use ragent_base::sys::host::ThisHost;
use ragent_options::spec;

use super::{
    Finding, Findings,
    child::{self, Unusable},
    within,
};
use crate::commands::doctor::limits;

pub(super) async fn examine(findings: &mut Findings) {
    let check = "python";
    let interpreter = match within(check, || spec::interpreter(&ThisHost)).await {
        Ok(Ok(path)) => path,
        Ok(Err(error)) => {
            let hint = error.hint().unwrap_or_default();
            return findings.report(Finding::fail(check, error.to_string(), hint));
        }
        Err(silent) => return findings.report(silent),
    };
    let path = interpreter.display();
    match ask(interpreter.clone(), limits::CHECK_TIMEOUT).await {
        Ok(Versions { python, torch: found, foreign }) => {
            findings.report(Finding::pass(check, format!("Python {python} at {path}")));
            findings.report(torch(found));
            if let Some(module) = foreign {
                findings.report(Finding::warn(
                    "module",
                    format!("`import ragent` imports another project, in {module}"),
                    "remove it, or the folder from PYTHONPATH, and install the wheel `ragent_launch-….whl` from its file",
                ));
            }
        }
        Err(Unusable::Broken(why)) => {
            let text = format!("{path} does not run: {why}");
            findings.report(Finding::fail(check, text, "set PYTHON_EXEC to another interpreter"));
        }
        Err(Unusable::Silent(waited)) => {
            let text = format!("{path} did not answer within {} s", waited.as_secs());
            let hint =
                "check the file system that it is on, or set PYTHON_EXEC to another interpreter";
            findings.report(Finding::fail(check, text, hint));
        }
    }
}

fn torch(version: Option<String>) -> Finding {
    match version {
        Some(version) => Finding::pass("torch", format!("torch {version}")),
        None => Finding::warn(
            "torch",
            "this Python has no torch",
            "activate the environment that has torch, or set PYTHON_EXEC to its interpreter",
        ),
    }
}

/// The versions that an interpreter reports.
#[derive(Debug, Eq, PartialEq)]
struct Versions {
    python: String,
    torch: Option<String>,
    /// The file of a module `ragent` that belongs to another project.
    foreign: Option<String>,
}

/// Asks an interpreter for the versions. Importing torch would take seconds, so only its metadata is read. A module `ragent` is not
/// imported either, because it may belong to another project in the public index.
async fn ask(interpreter: PathBuf, limit: Duration) -> Result<Versions, Unusable> {
    const QUESTION: &str = "\
import os, platform, importlib.metadata as m, importlib.util as u
print(platform.python_version())
try: print(m.version('torch'))
except m.PackageNotFoundError: print()
try: origin = u.find_spec('ragent').origin or ''
except Exception: origin = ''
if not os.path.exists(os.path.join(os.path.dirname(origin), '_program.py')): print(origin)
";
    let stdout = child::stdout_of(interpreter, &["-c", QUESTION], limit).await?;
    let mut lines = stdout.lines().map(str::to_owned);
    match lines.next() {
        Some(python) => {
            let mut next = || lines.next().filter(|line| !line.is_empty());
            let (torch, foreign) = (next(), next());
            Ok(Versions { python, torch, foreign })
        }
        None => Err(Unusable::Broken("it prints nothing".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interpreter that does not answer is abandoned after the time limit.
    #[tokio::test]
    async fn silence_has_an_end() {
        let stays = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/workers/stay.sh");
        let limit = Duration::from_millis(20);
        assert_eq!(ask(stays.into(), limit).await, Err(Unusable::Silent(limit)));
    }

    /// The error of an interpreter that cannot be started is reported.
    #[tokio::test]
    async fn refusals_are_reported() {
        let limit = Duration::from_secs(60);
        let missing = ask("/no/such/python".into(), limit).await;
        assert!(matches!(missing, Err(Unusable::Broken(why)) if why.contains("No such file")));
    }
}
