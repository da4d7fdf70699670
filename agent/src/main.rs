//! The program `ragent`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use ragent::{
    cli::{Cli, Command, LaunchArgs},
    error::LaunchError,
    host::ThisHost,
    job_spec::JobSpec,
    keeper, run, serve, status,
    telemetry::{self, LogFormat},
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::Keeper) => return keep(),
        Some(Command::Store(args)) => {
            telemetry::start(LogFormat::Text, &ThisHost);
            serve::store(&args)
        }
        Some(Command::Coordinator(args)) => {
            telemetry::start(LogFormat::Text, &ThisHost);
            serve::coordinator(&args)
        }
        Some(Command::Status(args)) => status::print(&args),
        None => launch(cli.launch),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // A console that is gone is no reason for another exit code.
            let _ = writeln!(io::stderr(), "{}", error.report());
            error.exit_code()
        }
    }
}

fn launch(args: LaunchArgs) -> Result<ExitCode, LaunchError> {
    let format = LogFormat::of(&args);
    telemetry::start(*format.as_ref().unwrap_or(&LogFormat::Text), &ThisHost);
    let spec = match (JobSpec::resolve(args, &ThisHost), format) {
        (Ok(spec), Ok(_)) => spec,
        (Ok(_), Err(error)) => return Err(LaunchError::Usage(vec![error])),
        (Err(mut errors), format) => {
            errors.extend(format.err());
            return Err(LaunchError::Usage(errors));
        }
    };
    run::launch(spec)
}

fn keep() -> ExitCode {
    match keeper::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ragent keeper: {error}");
            ExitCode::FAILURE
        }
    }
}
