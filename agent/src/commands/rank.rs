//! Starts one rank under a launcher that starts every rank itself: `ragent rank`.
//!
//! 1. Translates the launcher's variables into PyTorch's.
//! 2. Executes the program.
//!
//! No argument grows with the size of the job.

use std::{
    collections::BTreeMap, ffi::OsString, io, os::unix::process::CommandExt, path::Path,
    process::Command,
};

use ragent_base::{
    net::{self, Endpoint},
    sys::host::{Host, ThisHost},
};
use ragent_options::{
    cli::RankArgs,
    scheduler::{Head, Placement},
    spec::{Argument, UsageError, port_of},
};

use super::{error::LaunchError, runtime};

/// Replaces this process with the program of `args`.
///
/// # Errors
///
/// Returns [`LaunchError`] if no launcher provides the rank, or there is no such program.
pub fn become_program(args: &RankArgs) -> Result<std::process::ExitCode, LaunchError> {
    let environment = environment(args, &ThisHost)?;
    // An address that the user gives is not checked. It may reach this machine by a route that is not visible here.
    if args.master_addr.is_none() && set(&ThisHost, "MASTER_ADDR").is_none() {
        check_master(&environment)?;
    }
    let Some((program, words)) = args.command.split_first() else {
        return Err(UsageError::new("no program is given")
            .with_hint("see `ragent rank --help`")
            .into());
    };
    let error = Command::new(program).args(words).envs(environment).exec();
    Err(not_executed(Path::new(program), &error).into())
}

fn not_executed(program: &Path, error: &io::Error) -> UsageError {
    let name = program.display();
    let message = UsageError::new(format!("the program `{name}` cannot be executed: {error}"));
    let is_python = program.extension().is_some_and(|it| it == "py");
    if is_python && ThisHost.is_readable_file(program) {
        return message.with_hint(format!("use `ragent rank -- python {name}`"));
    }
    message
}

/// Fails if the master's address is not this machine's. Rank 0 serves the store there, and otherwise all other ranks would wait in vain. A
/// name that does not resolve here is left to the program.
fn check_master(environment: &BTreeMap<&'static str, OsString>) -> Result<(), UsageError> {
    if environment["RANK"] != "0" {
        return Ok(());
    }
    let master = environment["MASTER_ADDR"].to_string_lossy().into_owned();
    let endpoint = Endpoint { host: master.clone(), port: 0 };
    // If there is no runtime, the address is not checked.
    if runtime::block_on(net::may_lead_here(&endpoint)).unwrap_or(true) {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "rank 0 runs on {}, but the other ranks would connect to {master}",
        ThisHost.name()
    ))
    .with_hint("give the host of rank 0 as `--master-addr` or in MASTER_ADDR"))
}

/// Returns the variables for PyTorch and its libraries.
fn environment(
    args: &RankArgs,
    host: &impl Host,
) -> Result<BTreeMap<&'static str, OsString>, UsageError> {
    let mut placement = placement(host)?;
    let port = given_port(args, host)?;
    let master = match given_master(args, host)? {
        Some(address) => address,
        None => {
            placement = placement.ask_launcher(host);
            implied_master(&placement)?
        }
    };
    let number = |number: u32| OsString::from(number.to_string());
    let port = number(port.unwrap_or_else(|| port_of(&placement)).into());
    let Placement { rank, size, local_rank, local_size, .. } = placement;
    let mut variables = BTreeMap::from([
        ("RANK", number(rank)),
        ("WORLD_SIZE", number(size)),
        ("LOCAL_RANK", number(local_rank)),
        ("LOCAL_WORLD_SIZE", number(local_size)),
        ("ROLE_RANK", number(rank)),
        ("ROLE_WORLD_SIZE", number(size)),
        ("ROLE_NAME", "default".into()),
        ("MASTER_ADDR", master),
        ("MASTER_PORT", port),
        // The workers' store is served by rank 0, not by an agent.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ("TORCHELASTIC_RESTART_COUNT", number(0)),
        ("TORCHELASTIC_MAX_RESTARTS", number(0)),
        ("TORCHELASTIC_RUN_ID", placement.name.as_deref().unwrap_or("none").into()),
    ]);
    if let Some((node, nodes)) = placement.node {
        variables.extend([("GROUP_RANK", number(node)), ("GROUP_WORLD_SIZE", number(nodes))]);
    }
    if local_size > 1 && host.env("OMP_NUM_THREADS").is_none() {
        variables.insert("OMP_NUM_THREADS", number(1));
    }
    if host.env("TORCH_NCCL_ASYNC_ERROR_HANDLING").is_none() {
        variables.insert("TORCH_NCCL_ASYNC_ERROR_HANDLING", number(1));
    }
    Ok(variables)
}

/// Returns the place of this rank, by the launcher's variables.
fn placement(host: &impl Host) -> Result<Placement, UsageError> {
    let found = Placement::find(host).map_err(|error| {
        UsageError::new(error.to_string()).with_hint(
            "start it directly with `mpirun` or `srun`; a wrapper in between must not change the \
             variables that they set",
        )
    });
    found?.ok_or_else(|| {
        UsageError::new("this process was not started by a supported launcher").with_hint(
            "start it with `mpirun` or `srun`; without these, `ragent --nproc-per-node N SCRIPT` \
             starts N workers on this node",
        )
    })
}

/// Returns the address of rank 0, if the user has given it.
fn given_master(args: &RankArgs, host: &impl Host) -> Result<Option<OsString>, UsageError> {
    let (source, address) = match &args.master_addr {
        Some(typed) => ("--master-addr", typed.into()),
        None => match set(host, "MASTER_ADDR") {
            Some(address) => ("MASTER_ADDR", address),
            None => return Ok(None),
        },
    };
    let is_sound =
        |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control());
    if address.to_str().is_some_and(is_sound) {
        return Ok(Some(address));
    }
    Err(Argument::new(source, &address.to_string_lossy())
        .is_not("a valid address of rank 0")
        .with_hint("give the name or the address of a host"))
}

/// Returns the port of rank 0, if the user has given it.
fn given_port(args: &RankArgs, host: &impl Host) -> Result<Option<u16>, UsageError> {
    let variable = || {
        let port = set(host, "MASTER_PORT")?;
        Some(Argument::new("MASTER_PORT", &port.to_string_lossy()))
    };
    let flag = Argument::of_flag("--master-port", &args.master_port);
    let Some(given) = flag.or_else(variable) else { return Ok(None) };
    // PyTorch ignores surrounding white space, as Python's `int` does.
    match given.text.trim().parse() {
        Ok(port @ 1..) => Ok(Some(port)),
        Ok(0) | Err(_) => Err(given
            .is_not("a valid port of rank 0: it must be a number from 1 to 65535")
            .with_hint("without it, the port is derived from the job's name")),
    }
}

/// Returns the address of rank 0, by the launcher's variables.
fn implied_master(placement: &Placement) -> Result<OsString, UsageError> {
    match &placement.head {
        Head::Here => Ok("127.0.0.1".into()),
        Head::There(head) => Ok(head.into()),
        Head::Unknown => Err(UsageError::new(format!(
            "{} has started this rank, but does not provide the host of rank 0",
            placement.launcher
        ))
        .with_hint("give it as `--master-addr` or in MASTER_ADDR")),
    }
}

fn set(host: &impl Host, name: &str) -> Option<OsString> {
    host.env(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::host::FakeHost;

    use super::*;

    fn environment_of(env: &[(&str, &str)], line: &str) -> Result<Vec<String>, UsageError> {
        let mut host = FakeHost::default();
        host.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
        let words = line.split_whitespace().map(OsString::from);
        let Some(ragent_options::cli::Command::Rank(args)) =
            ragent_options::cli::Cli::read(words).unwrap().command
        else {
            panic!("{line}")
        };
        let pairs = environment(&args, &host)?.into_iter();
        Ok(pairs.map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect())
    }

    const LAST_OF_MANY: [(&str, &str); 5] = [
        ("OMPI_COMM_WORLD_RANK", "99999"),
        ("OMPI_COMM_WORLD_SIZE", "100000"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "7"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
        ("PMIX_NAMESPACE", "17"),
    ];

    /// The launcher's variables determine all that PyTorch reads, in a job of any size.
    #[test]
    fn last_of_a_hundred_thousand() {
        let env = environment_of(&LAST_OF_MANY, "ragent rank --master-addr n0 -- python t.py --x");
        assert_eq!(
            env.unwrap(),
            [
                "GROUP_RANK=12499",
                "GROUP_WORLD_SIZE=12500",
                "LOCAL_RANK=7",
                "LOCAL_WORLD_SIZE=8",
                "MASTER_ADDR=n0",
                "MASTER_PORT=28578",
                "OMP_NUM_THREADS=1",
                "RANK=99999",
                "ROLE_NAME=default",
                "ROLE_RANK=99999",
                "ROLE_WORLD_SIZE=100000",
                "TORCHELASTIC_MAX_RESTARTS=0",
                "TORCHELASTIC_RESTART_COUNT=0",
                "TORCHELASTIC_RUN_ID=mpi-17",
                "TORCHELASTIC_USE_AGENT_STORE=False",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                "WORLD_SIZE=100000",
            ]
        );
    }

    /// The user's values are kept. It is an error if neither user nor launcher provides the host of rank 0.
    #[test]
    fn master_is_given_or_known() {
        let mut env = LAST_OF_MANY.to_vec();
        let unknown = environment_of(&env, "ragent rank true");
        assert_eq!(
            unknown.unwrap_err().to_string(),
            "Open MPI has started this rank, but does not provide the host of rank 0"
        );
        env.extend([("MASTER_ADDR", "n1"), ("MASTER_PORT", "4000"), ("OMP_NUM_THREADS", "4")]);
        let set = environment_of(&env, "ragent rank true").unwrap();
        assert!(set.contains(&"MASTER_ADDR=n1".to_owned()), "{set:?}");
        assert!(set.contains(&"MASTER_PORT=4000".to_owned()), "{set:?}");
        assert!(!set.iter().any(|pair| pair.starts_with("OMP_")), "{set:?}");
        let typed = environment_of(&env, "ragent rank --master-port 5000 true").unwrap();
        assert!(typed.contains(&"MASTER_PORT=5000".to_owned()), "{typed:?}");
        assert_eq!(
            environment_of(&[], "ragent rank true").unwrap_err().to_string(),
            "this process was not started by a supported launcher"
        );
    }

    /// An invalid address or port of rank 0 is refused, from a flag and from a variable. An empty variable counts as unset.
    #[test]
    fn master_must_mean_something() {
        let refused = |env: &[(&str, &str)], flag: &str, expected: &str| {
            let env = [&LAST_OF_MANY, env].concat();
            let error = environment_of(&env, &format!("ragent rank {flag} true")).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        for port in ["abc", "99999", "0", "-1", "4000x"] {
            let wrong = |source: &str| format!("`{source}{port}` is not a valid port of rank 0");
            refused(&[("MASTER_PORT", port)], "", &wrong("MASTER_PORT="));
            refused(&[], &format!("--master-port {port}"), &wrong("--master-port "));
        }
        for address in ["a b", "a\tb", "\u{7f}"] {
            refused(&[("MASTER_ADDR", address)], "", "`MASTER_ADDR=");
        }
        refused(&[], "--master-addr=", "`--master-addr ` is not a valid address of rank 0");
        refused(&[("MASTER_ADDR", "")], "", "does not provide the host of rank 0");
    }
}
