//! Runs the program `ragent`: reads the command line, starts the log, and runs one command.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

#[cfg(feature = "top")]
use ragent::commands::top;
use ragent::commands::{
    check, completion, coordinator, doctor,
    error::LaunchError,
    events, explain, install_torchrun, logs, manifest, notice, page, parent, rank,
    run::{self, result_file},
    secret, ssh, stacks, status,
};
use ragent_base::{
    limits,
    report::telemetry::{self, DefaultLines, Log, LogFormat},
    sys::{clock, host::ThisHost, system_error::SystemError},
};
use ragent_options::{
    cli::{CheckArgs, Cli, Command, CoordinatorArgs, LaunchArgs, LaunchOverSshArgs, ProgramName},
    spec::{self, JobSpec},
};
use ragent_workers::keeper;

fn main() -> ExitCode {
    clock::include_suspensions();
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = Cli::read(words.clone()).unwrap_or_else(|error| {
        if let (2, Some(launch)) = (error.exit_code(), Cli::refused_launch(&words)) {
            report_refusal(spec::report_path(&launch, &ThisHost), 2, error.render().to_string());
        }
        error.exit()
    });
    // A program that replaces this process keeps the signal settings of its launcher.
    let is_passing = matches!(cli.command, Some(Command::Rank(_)));
    if !is_passing && let Err(source) = ThisHost.settle_signals() {
        let error =
            LaunchError::from(SystemError { attempt: "set the dispositions of signals", source });
        let _ = writeln!(io::stderr(), "{}", error.report());
        return error.exit_code(ProgramName::Ragent);
    }
    let name = cli.launch.name;
    let result = match cli.command {
        Some(Command::Keeper) => return keep(),
        Some(Command::Relay) => ssh::relay().map(|()| ExitCode::SUCCESS),
        Some(Command::Launch(args)) => launch_over_ssh(*args),
        Some(Command::Check(args)) => check_nodes(*args),
        Some(Command::Coordinator(args)) => coordinate(&args),
        Some(Command::Doctor(args)) => doctor::examine(&args),
        Some(Command::Events(args)) => events::print(&args),
        Some(Command::Explain(args)) => explain::print(&args),
        Some(Command::InstallTorchrun(args)) => install_torchrun::run(&args),
        Some(Command::Logs(args)) => logs::print(&args),
        Some(Command::Manifest(args)) => manifest::print(args, &ThisHost),
        Some(Command::Notice(args)) => notice::give(&args),
        Some(Command::Page(args)) => page::serve(&args),
        Some(Command::Secret(args)) => secret::make(&args),
        Some(Command::Stacks(args)) => stacks::print(&args),
        Some(Command::Status(args)) => status::print(&args),
        #[cfg(feature = "top")]
        Some(Command::Top(args)) => top::show(&args),
        Some(Command::Rank(args)) => rank::become_program(&args),
        None => match &cli.launch.print_completion {
            Some(shell) => completion::print(shell, cli.launch.name),
            None => launch_here(cli.launch),
        },
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // The exit code is the same if stderr is closed.
            let _ = writeln!(io::stderr(), "{}", error.report());
            error.exit_code(name)
        }
    }
}

fn launch_here(args: LaunchArgs) -> Result<ExitCode, LaunchError> {
    launch_with(args, run::launch)
}

fn check_nodes(args: CheckArgs) -> Result<ExitCode, LaunchError> {
    let check = check::Check::prepare(&args.flags)?;
    launch_with(check.launch_args(args.launch)?, |spec, log| check.run(spec, log))
}

/// Resolves the arguments of a launch, and runs it with log lines on stderr.
fn launch_with(
    args: LaunchArgs,
    launch: impl FnOnce(JobSpec, &Log) -> Result<ExitCode, LaunchError>,
) -> Result<ExitCode, LaunchError> {
    parent::watch(&ThisHost)?;
    let format = spec::log_format(&args);
    let name = args.name;
    let report = spec::report_path(&args, &ThisHost);
    let lines = match name {
        ProgramName::Ragent => DefaultLines::Few,
        ProgramName::Torchrun => DefaultLines::Warnings,
    };
    let (spec, format) = match (JobSpec::resolve(args, &ThisHost), format) {
        (Ok(spec), Ok(format)) => (spec, format),
        (spec, format) => {
            let mut errors = spec.err().unwrap_or_default();
            errors.extend(format.err());
            let error = LaunchError::from(errors);
            report_refusal(report, error.code(name), error.report());
            return Err(error);
        }
    };
    logged(format, lines, name, |log| launch(spec, log))
}

/// Writes the message of a refused launch to the file of `--report`, for a program that has started this one.
fn report_refusal(report: Option<PathBuf>, exit_code: u8, text: String) {
    if let Some(path) = report {
        result_file::write_refusal(&path, exit_code, text.trim_end().to_owned());
    }
}

fn launch_over_ssh(args: LaunchOverSshArgs) -> Result<ExitCode, LaunchError> {
    parent::watch(&ThisHost)?;
    // An invalid format is reported with the other usage errors.
    let format = spec::log_format(&args.launch).unwrap_or(LogFormat::Text);
    logged(format, DefaultLines::Few, ProgramName::Ragent, |_| ssh::launch(args))
}

fn coordinate(args: &CoordinatorArgs) -> Result<ExitCode, LaunchError> {
    logged(LogFormat::Text, DefaultLines::Info, ProgramName::Ragent, |_| coordinator::vote(args))
}

/// Runs `command` with log lines on stderr. All of them are written when it returns.
fn logged(
    format: LogFormat,
    default: DefaultLines,
    name: ProgramName,
    command: impl FnOnce(&Log) -> Result<ExitCode, LaunchError>,
) -> Result<ExitCode, LaunchError> {
    let log = telemetry::start(format, default, &ThisHost);
    let log = log.map_err(|source| SystemError { attempt: "start a thread", source })?;
    let result = command(&log);
    log.flush(limits::FLUSH_TIMEOUT);
    let code = match result {
        Ok(code) => code,
        Err(error) => {
            log.print(&error.report());
            if let Some(path) = log.kept() {
                log.print(&format!("ragent: the log of this agent is {}", path.display()));
            }
            error.exit_code(name)
        }
    };
    log.flush(limits::FLUSH_TIMEOUT);
    Ok(code)
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
