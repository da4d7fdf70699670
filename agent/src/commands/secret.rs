//! Makes a secret for the nodes of a job: `ragent secret`.

use std::{io, path::PathBuf, process::ExitCode};

use ragent_base::{
    secret::{Secret, file, user_file},
    sys::{host::ThisHost, stdout},
};
use ragent_options::{cli::SecretArgs, spec::UsageError};
use zeroize::Zeroizing;

use super::error::{LaunchError, system};

/// Makes a secret, and prints it or writes it to a file.
///
/// # Errors
///
/// Returns [`LaunchError`] if the file cannot be written.
pub fn make(args: &SecretArgs) -> Result<ExitCode, LaunchError> {
    let secret =
        Secret::random().map_err(|error| system("get random bytes")(io::Error::other(error)))?;
    let text = match (args.init, args.rotate) {
        (false, false) if args.secret_file.is_some() => {
            let error = UsageError::new("`--secret-file` needs `--init` or `--rotate`");
            let hint = "without them, the secret is printed: `ragent secret > FILE`";
            return Err(error.with_hint(hint).into());
        }
        (false, false) => Zeroizing::new(format!("{}\n", secret.text())),
        (is_init, _) => {
            let path = file_of(args)?;
            let written =
                if is_init { file::create(&path, &secret) } else { file::add(&path, &secret) };
            written.map_err(|error| UsageError::new(error.to_string()).with_hint(error.hint()))?;
            Zeroizing::new(format!("secret {} is in {}\n", secret.id(), path.display()))
        }
    };
    stdout::print(&text).map_err(system("print the secret"))?;
    Ok(ExitCode::SUCCESS)
}

fn file_of(args: &SecretArgs) -> Result<PathBuf, UsageError> {
    let own = args.secret_file.clone().or_else(|| user_file(&ThisHost));
    own.ok_or_else(|| {
        let error = UsageError::new(
            "this user has no home folder: neither HOME nor XDG_CONFIG_HOME is set",
        );
        error.with_hint("give the file as `--secret-file FILE`")
    })
}
