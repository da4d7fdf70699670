//! `ragent status`: how a job stands, for people and for programs.

use std::{fmt::Write as _, process::ExitCode};

use ragent_proto::convert::StatusAnswer;
use ragent_rendezvous::snapshot::{NodeSnapshot, PhaseName, Snapshot, StandingName};

use crate::{
    cli::StatusArgs,
    coordinator::{
        client::{self, AttendError},
        discovery,
    },
    error::{self, LaunchError, system},
    host::{Host, ThisHost},
    job_spec::{Endpoint, JobSpecError},
    run, state_file, stdout,
};

/// Asks and prints.
///
/// # Errors
///
/// Returns [`LaunchError`] if it is not clear whom to ask, or nobody answers.
pub fn print(args: &StatusArgs) -> Result<ExitCode, LaunchError> {
    let endpoint = find(args)?;
    let snapshot = run::block_on(ask(endpoint))??;
    let text = if args.json {
        let json = serde_json::to_string(&snapshot).expect("a snapshot has no odd keys");
        json + "\n"
    } else {
        text(&snapshot)
    };
    stdout::print(&text).map_err(system("print how the job stands"))?;
    Ok(ExitCode::SUCCESS)
}

fn find(args: &StatusArgs) -> Result<Endpoint, LaunchError> {
    let variable = "PET_RDZV_ENDPOINT";
    let from_env = || {
        let text = ThisHost.env(variable)?.to_string_lossy().into_owned();
        (!text.is_empty()).then_some((variable, text))
    };
    let typed = args.rdzv_endpoint.clone().map(|text| ("--rdzv-endpoint", text));
    if let Some((source, value)) = typed.or_else(from_env) {
        return value.parse().map_err(|error| {
            let source_ = source.to_owned();
            LaunchError::Usage(vec![JobSpecError::Endpoint { source_, value, error }])
        });
    }
    let mut agents = state_file::running_agents();
    agents.sort_by(|one, other| one.endpoint.cmp(&other.endpoint));
    agents.dedup_by(|one, other| one.endpoint == other.endpoint);
    match agents.as_slice() {
        [] => Err(LaunchError::NoJob("no job of this user runs on this machine".to_owned())),
        [agent] => agent.endpoint.parse().map_err(|_| {
            LaunchError::NoJob(format!("`{}` is no endpoint of a job", agent.endpoint))
        }),
        several => {
            let list: Vec<String> = several
                .iter()
                .map(|agent| format!("{} at {}", agent.run_id, agent.endpoint))
                .collect();
            let count = several.len();
            Err(LaunchError::NoJob(format!(
                "{count} jobs run on this machine: {}",
                list.join(", ")
            )))
        }
    }
}

/// Asks at `endpoint`, or where whoever answers there says that the coordinator is.
pub(crate) async fn ask(endpoint: Endpoint) -> Result<Snapshot, LaunchError> {
    let failed = |endpoint: &Endpoint| {
        let endpoint = endpoint.to_string();
        move |source| LaunchError::Status { endpoint, source }
    };
    let not_here = match ask_at(&endpoint).await.map_err(failed(&endpoint))? {
        StatusAnswer::Snapshot(snapshot) => return Ok(*snapshot),
        StatusAnswer::NotHere(not_here) => not_here,
    };
    let Ok(elsewhere) = not_here.endpoint.parse::<Endpoint>() else {
        let what = format!("{endpoint} does not know who coordinates its job");
        return Err(LaunchError::NoJob(what));
    };
    match ask_at(&elsewhere).await.map_err(failed(&elsewhere))? {
        StatusAnswer::Snapshot(snapshot) => Ok(*snapshot),
        StatusAnswer::NotHere(_) => {
            Err(LaunchError::NoJob(format!("neither {endpoint} nor {elsewhere} coordinates a job")))
        }
    }
}

/// Asks at `endpoint`. Where something answers that does not speak our protocol, it is asked what it is.
async fn ask_at(endpoint: &Endpoint) -> Result<StatusAnswer, AttendError> {
    match client::status(endpoint).await {
        Err(AttendError::Protocol { address, source }) => {
            Err(match discovery::stranger(address).await {
                Some(what) => AttendError::Other { address, what },
                None => AttendError::Protocol { address, source },
            })
        }
        answer => answer,
    }
}

/// What people read.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let nodes = if snapshot.min_nodes == snapshot.max_nodes {
        snapshot.min_nodes.to_string()
    } else {
        format!("{}:{}", snapshot.min_nodes, snapshot.max_nodes)
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "job {}  round {}  {}  nodes {nodes}  workers {}  restarts {}/{}",
        snapshot.run_id,
        snapshot.round,
        phase(snapshot.phase),
        snapshot.world_size,
        snapshot.restarts_used,
        snapshot.max_restarts,
    );
    if let Some(why) = &snapshot.incomplete {
        let _ = writeln!(text, "not complete: {}", why.text);
    }
    let rows: Vec<[String; 6]> = snapshot.nodes.iter().map(row).collect();
    if !rows.is_empty() {
        let head = ["rank", "host", "address", "workers", "state", "seen"].map(str::to_owned);
        table(&mut text, &[vec![head], rows].concat());
    }
    if let Some(outcome) = &snapshot.outcome {
        let _ = writeln!(text, "{}", error::closed(outcome, snapshot.run_id.as_str()));
    }
    text
}

fn row(node: &NodeSnapshot) -> [String; 6] {
    let workers = match node.first_global_rank {
        Some(first) if node.local_world_size > 1 => {
            format!("{first}-{}", first.0.saturating_add(node.local_world_size - 1))
        }
        Some(first) => first.to_string(),
        None => format!("({})", node.local_world_size),
    };
    let state = match &node.reason {
        Some(reason) => format!("{}: {reason}", standing(node.standing)),
        None => standing(node.standing).to_owned(),
    };
    let state = match &node.said {
        // A worker's words must not move the reader's cursor.
        Some(said) => format!("{state}, says \"{}\"", said.replace(char::is_control, " ")),
        None => state,
    };
    [
        node.group_rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
        node.host_name.clone(),
        node.address.clone(),
        workers,
        state,
        format!("{:.1} s ago", node.last_seen_ms as f64 / 1000.0),
    ]
}

fn table<const N: usize>(text: &mut String, rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "  {}", line.trim_end());
    }
}

fn phase(phase: PhaseName) -> &'static str {
    match phase {
        PhaseName::Recovering => "recovering",
        PhaseName::Gathering => "gathering",
        PhaseName::Running => "running",
        PhaseName::Stopping => "stopping",
        PhaseName::Closed => "closed",
    }
}

fn standing(standing: StandingName) -> &'static str {
    match standing {
        StandingName::Preparing => "preparing",
        StandingName::Joined => "joined",
        StandingName::Running => "running",
        StandingName::Stopping => "stopping",
        StandingName::Failed => "failed",
        StandingName::Succeeded => "succeeded",
        StandingName::Leaving => "leaving",
        StandingName::Waiting => "waiting",
        StandingName::Spare => "spare",
        StandingName::SetAside => "set aside",
        StandingName::Lost => "lost",
    }
}
