//! Starts an agent on every host of a list, over ssh, from one host: `ragent launch`.
//!
//! ```text
//!  this host                     node1                          node2
//! ┌─────────────────┐  ssh  ┌───────────────────────┐   ┌───────────────────────┐
//! │ machine (pure)  │──────▶│ relay ──▶ agent       │   │ relay ──▶ agent       │
//! │ driver          │       │             └ keeper… │   │             └ keeper… │
//! │ connections     │──ssh──┼───────────────────────┼──▶│                       │
//! └─────────────────┘       └───────────────────────┘   └───────────────────────┘
//! ```
//!
//! 1. `plan` determines the command of each host, without network access.
//! 2. `machine` decides at run time which hosts to reach, and when to start and stop.
//! 3. Each `connection` is one ssh, which starts a `relay` on its host.
//! 4. The relay starts the agent.
//!
//! Agents find each other by themselves. ssh carries only orders and output, so a broken connection ends only the agent that is reached
//! through it.

mod agent_process;
mod connection;
mod connections;
mod driver;
mod dry_run;
mod filters;
mod frame;
#[cfg(any(test, feature = "testing"))]
#[path = "../../fuzz/src/launch.rs"]
pub(crate) mod fuzzing;
mod greeting;
mod host_address;
mod hostfile;
mod launch_result;
mod limits;
mod lines;
mod listener;
mod machine;
mod order;
mod output;
mod plan;
mod relay;
mod rendezvous;
mod shell_words;
mod ssh_command;
mod ssh_process;
mod variables;

use std::{
    env,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::ExitCode,
};

use tracing::info;

pub use self::relay::run as relay;
use ragent_base::{
    report::telemetry,
    secret::{AuthMode, Secret},
    sys::{
        host::{Host, ThisHost},
        random::random_id,
    },
};
use ragent_options::{
    cli::LaunchOverSshArgs,
    spec::{self, Argument, UsageError, UsageErrors},
};

use self::{
    launch_result::LaunchResult,
    plan::{Here, LaunchSecret, Plan},
};
use super::{
    error::{LaunchError, system},
    runtime,
};

/// Runs a job on the hosts of a list and waits for its end.
///
/// # Errors
///
/// Returns [`LaunchError`] unless the job has succeeded.
pub fn launch(args: LaunchOverSshArgs) -> Result<ExitCode, LaunchError> {
    // Before the secret is read or made.
    ThisHost.disable_core_dumps();
    let plan = Plan::resolve(&args, &read(&args)?, &ThisHost)?;
    if args.dry_run {
        io::stdout().write_all(dry_run::text(&plan).as_bytes()).map_err(system("print"))?;
        return Ok(ExitCode::SUCCESS);
    }
    ThisHost.raise_open_files();
    match runtime::block_on(driver::drive(&plan))?? {
        LaunchResult::Succeeded => {
            info!("the job has succeeded");
            telemetry::line("the job has succeeded");
            Ok(ExitCode::SUCCESS)
        }
        result => Err(LaunchError::Command { code: result.code(), report: result.report() }),
    }
}

/// Reads what the plan needs from this host: the given files, the folder and the program's path.
fn read(args: &LaunchOverSshArgs) -> Result<Here, Vec<UsageError>> {
    let mut errors = UsageErrors::default();
    let mut text = |flag, path: &String| {
        let unreadable =
            |error| Argument::new(flag, path).invalid(format_args!("cannot be read: {error}"));
        errors.or_default(read_list(path).map_err(unreadable))
    };
    let hostfile = text("--hostfile", &args.hostfile);
    let env_files =
        args.env_file.iter().map(|path| (path.clone(), text("--env-file", path))).collect();
    let secret = errors.ok(secret(args));
    errors.into_result(Here {
        hostfile,
        env_files,
        folder: current_folder(),
        program: env::current_exe().unwrap_or_else(|_| "ragent".into()),
        generated_id: random_id(),
        secret: secret.unwrap_or_default(),
    })
}

/// Returns the secret of a launch: from the given file, or a new one. With certificates there is none.
fn secret(args: &LaunchOverSshArgs) -> Result<LaunchSecret, UsageError> {
    let request = spec::auth_request(&args.launch.auth, &ThisHost)?;
    if let Some(certificates) = request.certificates {
        return Ok(LaunchSecret::Certificates(certificates));
    }
    if request.file.is_some() || request.mode == AuthMode::None {
        let credentials = spec::find_credentials(&request, &ThisHost)?;
        return Ok(credentials.newest().map_or(LaunchSecret::Declined, LaunchSecret::Given));
    }
    let generated = Secret::random();
    generated.map(LaunchSecret::Generated).map_err(|error| {
        UsageError::new(format!("failed to make a secret: {error}"))
            .with_hint("give one with `--secret-file`, or `--auth none`")
    })
}

fn read_list(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(limits::MAX_LIST_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > limits::MAX_LIST_FILE {
        return Err(io::Error::other(format!("it has more than {} bytes", limits::MAX_LIST_FILE)));
    }
    Ok(text)
}

/// Returns the current folder by the user's path to it (`PWD`). Its symbolic links may lead to other targets on other hosts.
fn current_folder() -> PathBuf {
    let real = ThisHost.current_dir();
    let called = ThisHost.env("PWD").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_real = |called: &PathBuf| {
        let identity = |path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
        identity(called) == identity(&real)
    };
    called.filter(is_real).unwrap_or(real)
}
