//! `ragent rank`: starts one rank, under a launcher that starts every rank itself.
//!
//! Translates the launcher's variables into PyTorch's, and executes the program. No argument grows
//! with the size of the job.

use std::{
    collections::BTreeMap, ffi::OsString, os::unix::process::CommandExt, path::Path,
    process::Command,
};

use super::{error::LaunchError, runtime};
use crate::{
    cli::RankArgs,
    net,
    scheduler::{Head, Placement},
    spec::{Endpoint, JobSpecError, port_of},
    sys::host::{Host, ThisHost},
};

/// Replaces this process with the program of `args`.
///
/// # Errors
///
/// Returns [`LaunchError`] if no launcher provides the rank, or there is no such program.
pub fn become_program(args: &RankArgs) -> Result<std::process::ExitCode, LaunchError> {
    let usage = |error| LaunchError::Usage(vec![error]);
    let environment = environment(args, &ThisHost).map_err(usage)?;
    // The user's own address is not checked: it may reach this machine by a route that is not
    // visible here.
    if args.master_addr.is_none() && set(&ThisHost, "MASTER_ADDR").is_none() {
        check_master(&environment).map_err(usage)?;
    }
    let Some((program, words)) = args.command.split_first() else {
        return Err(usage(JobSpecError::NoScript));
    };
    let error = Command::new(program).args(words).envs(environment).exec().to_string();
    let path = Path::new(program);
    let is_script =
        path.extension().is_some_and(|it| it == "py") && ThisHost.is_readable_file(path);
    let program = program.to_string_lossy().into_owned();
    Err(usage(JobSpecError::NotExecuted { program, error, is_script }))
}

/// Rank 0 serves the store at the master's address, which must therefore be this machine's:
/// otherwise all other ranks would wait in vain. A name that does not resolve here is left to the
/// program.
fn check_master(environment: &BTreeMap<&'static str, OsString>) -> Result<(), JobSpecError> {
    if environment["RANK"] != "0" {
        return Ok(());
    }
    let master = environment["MASTER_ADDR"].to_string_lossy().into_owned();
    let endpoint = Endpoint { host: master.clone(), port: 0 };
    // Without a runtime, the address is not checked.
    if runtime::block_on(net::may_lead_here(&endpoint)).unwrap_or(true) {
        return Ok(());
    }
    Err(JobSpecError::MasterElsewhere { master, here: ThisHost.name() })
}

/// Returns the variables for PyTorch and its libraries.
fn environment(
    args: &RankArgs,
    host: &impl Host,
) -> Result<BTreeMap<&'static str, OsString>, JobSpecError> {
    let placement = Placement::find(host).map_err(JobSpecError::RankPlacement)?;
    let mut placement = placement.ok_or(JobSpecError::NoLauncher)?;
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
        // Rank 0 serves the workers' store, not an agent.
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

/// Returns the value of a flag, else that of its variable, with the name of either.
fn given(
    typed: &Option<String>,
    names: [&'static str; 2],
    host: &impl Host,
) -> Option<(&'static str, OsString)> {
    let [flag, variable] = names;
    let typed = typed.as_deref().map(|text| (flag, text.into()));
    typed.or_else(|| Some((variable, set(host, variable)?)))
}

/// Returns the address of rank 0, if the user has given it.
fn given_master(args: &RankArgs, host: &impl Host) -> Result<Option<OsString>, JobSpecError> {
    let Some((source_, address)) = given(&args.master_addr, ["--master-addr", "MASTER_ADDR"], host)
    else {
        return Ok(None);
    };
    let is_sound =
        |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control());
    if address.to_str().is_some_and(is_sound) {
        return Ok(Some(address));
    }
    let value = address.to_string_lossy().into_owned();
    Err(JobSpecError::MasterAddress { source_, value })
}

/// Returns the port of rank 0, if the user has given it.
fn given_port(args: &RankArgs, host: &impl Host) -> Result<Option<u16>, JobSpecError> {
    let Some((source_, port)) = given(&args.master_port, ["--master-port", "MASTER_PORT"], host)
    else {
        return Ok(None);
    };
    let value = port.to_string_lossy().into_owned();
    // As Python's `int`, PyTorch ignores surrounding white space.
    match value.trim().parse() {
        Ok(port @ 1..) => Ok(Some(port)),
        Ok(0) | Err(_) => Err(JobSpecError::MasterPort { source_, value }),
    }
}

/// Returns the address of rank 0 that follows from the launcher.
fn implied_master(placement: &Placement) -> Result<OsString, JobSpecError> {
    match &placement.head {
        Head::Here => Ok("127.0.0.1".into()),
        Head::There(head) => Ok(head.into()),
        Head::Unknown => Err(JobSpecError::NoMaster { launcher: placement.launcher }),
    }
}

fn set(host: &impl Host, name: &str) -> Option<OsString> {
    host.env(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::MadeUpHost;

    fn environment_of(env: &[(&str, &str)], line: &str) -> Result<Vec<String>, JobSpecError> {
        let mut host = MadeUpHost::default();
        host.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
        let words = line.split_whitespace().map(OsString::from);
        let Some(crate::cli::Command::Rank(args)) = crate::cli::Cli::read(words).unwrap().command
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

    /// The user's values are kept; it is an error if neither user nor launcher provides the host of
    /// rank 0.
    #[test]
    fn master_is_given_or_known() {
        let mut env = LAST_OF_MANY.to_vec();
        let unknown = environment_of(&env, "ragent rank true");
        let launcher = crate::scheduler::Launcher::OpenMpi;
        assert_eq!(unknown, Err(JobSpecError::NoMaster { launcher }));
        env.extend([("MASTER_ADDR", "n1"), ("MASTER_PORT", "4000"), ("OMP_NUM_THREADS", "4")]);
        let set = environment_of(&env, "ragent rank true").unwrap();
        assert!(set.contains(&"MASTER_ADDR=n1".to_owned()), "{set:?}");
        assert!(set.contains(&"MASTER_PORT=4000".to_owned()), "{set:?}");
        assert!(!set.iter().any(|pair| pair.starts_with("OMP_")), "{set:?}");
        let typed = environment_of(&env, "ragent rank --master-port 5000 true").unwrap();
        assert!(typed.contains(&"MASTER_PORT=5000".to_owned()), "{typed:?}");
        assert_eq!(environment_of(&[], "ragent rank true"), Err(JobSpecError::NoLauncher));
    }
}
