//! `ragent status`: prints the state of a job, as text or JSON.

mod ask;

use std::{collections::BTreeSet, fmt::Write as _, net::IpAddr, process::ExitCode, time::Duration};

use ragent_proto::printable;
use ragent_rendezvous::{
    message::StandbyCounts,
    snapshot::{NodeSnapshot, PhaseName, RefusedPeer, Snapshot, StandingName, VoterStatus},
};

pub(crate) use self::ask::ask;
use super::{
    credentials,
    error::{self, LaunchError, system},
    runtime,
};
use crate::{
    cli::StatusArgs,
    coordinator::state_file::{self, RunningAgent, Stage},
    spec::{self, AskedEndpoint, JobEndpoint},
    sys::{host::ThisHost, stdout},
};

/// Asks for the state of a job and prints it.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, or no process answers.
pub fn print(args: &StatusArgs) -> Result<ExitCode, LaunchError> {
    let job = find(args)?;
    let credentials = credentials::of_job(&args.auth, Some(&job))?;
    let snapshot = runtime::block_on(ask(job, &credentials))??;
    let text = if args.json {
        let json = serde_json::to_string(&snapshot).expect("a snapshot has no odd keys");
        json + "\n"
    } else {
        text(&snapshot)
    };
    stdout::print(&text).map_err(system("print the status of the job"))?;
    Ok(ExitCode::SUCCESS)
}

fn find(args: &StatusArgs) -> Result<JobEndpoint, LaunchError> {
    match spec::asked_endpoint(args.rdzv_endpoint.clone(), &ThisHost)? {
        AskedEndpoint::At(job) => Ok(job),
        AskedEndpoint::Found | AskedEndpoint::NotGiven => {
            of_this_machine(state_file::running_agents())
        }
    }
}

/// Returns the endpoint of the only job with agents on this machine.
fn of_this_machine(agents: Vec<RunningAgent>) -> Result<JobEndpoint, LaunchError> {
    let mut jobs = one_for_each_job(agents);
    match jobs.as_slice() {
        [] => Err(LaunchError::NoJob("no job of this user is running on this machine".to_owned())),
        [RunningAgent { stage: Stage::Attending | Stage::Launching, endpoint, .. }] => {
            JobEndpoint::of_text(endpoint).ok_or_else(|| {
                LaunchError::NoJob(format!("`{endpoint}` is not a valid endpoint of a job"))
            })
        }
        [_] => Err(LaunchError::NotMet(jobs.remove(0))),
        several => {
            let list: Vec<String> = several
                .iter()
                .map(|agent| format!("\n  run id {}, endpoint {}", agent.run_id, agent.endpoint))
                .collect();
            let count = several.len();
            Err(LaunchError::NoJob(format!(
                "{count} jobs are running on this machine:{}",
                list.concat()
            )))
        }
    }
}

/// Returns one agent for each job: a registered one, if there is one.
fn one_for_each_job(mut agents: Vec<RunningAgent>) -> Vec<RunningAgent> {
    let attended: Vec<(String, String)> = agents
        .iter()
        .filter(|agent| agent.stage == Stage::Attending)
        .map(|agent| (agent.run_id.clone(), agent.endpoint.clone()))
        .collect();
    let launched: BTreeSet<String> = agents
        .iter()
        .filter(|agent| agent.stage != Stage::Launching)
        .map(|agent| agent.run_id.clone())
        .collect();
    agents.retain(|agent| match agent.stage {
        Stage::Attending => true,
        // An agent of the job on this machine has newer information.
        Stage::Launching => !launched.contains(&agent.run_id) && !agent.endpoint.is_empty(),
        Stage::Searching => attended.iter().all(|(run_id, _)| *run_id != agent.run_id),
        Stage::Waiting { .. } => attended.iter().all(|(_, endpoint)| *endpoint != agent.endpoint),
    });
    // Jobs without an endpoint differ only in their names.
    let key = |agent: &RunningAgent| {
        let is_searching = agent.stage == Stage::Searching;
        (agent.endpoint.clone(), is_searching.then(|| agent.run_id.clone()))
    };
    agents.sort_by_key(key);
    agents.dedup_by_key(|agent| key(agent));
    agents
}

/// Returns the state as text.
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
    if !snapshot.voters.is_empty() {
        let voters: Vec<_> = snapshot.voters.iter().map(voter).collect();
        let _ = writeln!(text, "voters: {}", voters.join(", "));
    } else if let Some(leader) = &snapshot.leader {
        let _ = writeln!(text, "leader: {leader} (term {})", snapshot.term);
    }
    let rows: Vec<[String; 6]> = snapshot.nodes.iter().map(row).collect();
    if !rows.is_empty() {
        let head = ["rank", "host", "address", "workers", "state", "seen"].map(str::to_owned);
        table(&mut text, &[vec![head], rows].concat());
    }
    if !snapshot.refused_clients.is_empty() {
        let addresses: Vec<_> = snapshot.refused_clients.iter().map(IpAddr::to_string).collect();
        let _ = writeln!(
            text,
            "the store of round {} refused connections from {}: not an address of another member, \
             nor a socket of the job's user; if a worker of this job connected from there, give its \
             address with `--local-addr` on its node, or `--store-access any` on all nodes",
            snapshot.round,
            addresses.join(", ")
        );
    }
    for RefusedPeer { address, count, reason } in &snapshot.refused_peers {
        let _ = writeln!(text, "refused: {count} from {address} ({reason})");
    }
    if let Some(outcome) = &snapshot.outcome {
        let _ = writeln!(text, "{}", error::closed(outcome, snapshot.run_id.as_str()));
    }
    // The answer may come from an untrusted process.
    printable(&text)
}

/// The minimum silence of a voter that is shown: by then several renewals are lost.
const SILENCE_SHOWN: Duration = Duration::from_secs(3);

fn voter(voter: &VoterStatus) -> String {
    let VoterStatus { endpoint, is_leader, silent_for } = voter;
    if *is_leader {
        format!("{endpoint} (leads)")
    } else if *silent_for >= SILENCE_SHOWN {
        format!("{endpoint} (no answer for {} s)", silent_for.as_secs())
    } else {
        endpoint.clone()
    }
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
    let state = match &node.progress {
        // A worker's text must not contain control characters, which could move the cursor.
        Some(text) => format!("{state}, progress \"{}\"", text.replace(char::is_control, " ")),
        None => state,
    };
    let state = match &node.standbys {
        Some(counts) => format!("{state}, {}", standbys(counts)),
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

fn standbys(counts: &StandbyCounts) -> String {
    let StandbyCounts { ready, importing, size, obstacle } = counts;
    match (importing, obstacle) {
        (0, None) => format!("standbys {ready}/{size}"),
        (0, Some(obstacle)) => format!("standbys {ready}/{size} ({obstacle})"),
        (importing, _) => format!("standbys {ready}/{size} ({importing} importing)"),
    }
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
        StandingName::Quarantined => "quarantined",
        StandingName::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::coordinator::driver::tests::empty_snapshot;

    fn agent(run_id: &str, endpoint: &str, stage: Stage) -> RunningAgent {
        let (run_id, endpoint) = (run_id.to_owned(), endpoint.to_owned());
        RunningAgent { run_id, endpoint, pid: 7, began: 0, stage, credentials: Default::default() }
    }

    fn waiting() -> Stage {
        Stage::Waiting { cause: Some("refused".to_owned()) }
    }

    /// Voters are listed on one line, with the leader and those that do not answer; programs read the milliseconds.
    #[test]
    fn voters_are_listed() {
        let voter = |endpoint: &str, is_leader, silent_ms| VoterStatus {
            endpoint: endpoint.to_owned(),
            is_leader,
            silent_for: Duration::from_millis(silent_ms),
        };
        let voters =
            vec![voter("n0:1", true, 0), voter("n1:1", false, 250), voter("n2:1", false, 12_345)];
        let mut snapshot = empty_snapshot();
        assert!(!text(&snapshot).contains("voters"));
        snapshot.set_voters(voters);
        let line = "voters: n0:1 (leads), n1:1, n2:1 (no answer for 12 s)";
        assert_eq!(text(&snapshot).lines().nth(1), Some(line));
        let json = serde_json::to_value(&snapshot).unwrap();
        let silent = serde_json::json!({
            "endpoint": "n2:1", "is_leader": false, "silent_ms": 12_345,
        });
        assert_eq!(json["voters"][2], silent);
        assert_eq!(json["leader"], "n0:1");
    }

    /// A leader that was chosen through etcd has a line of its own.
    #[test]
    fn leader_without_voters_is_shown() {
        let mut snapshot = empty_snapshot();
        snapshot.leader = Some("10.0.0.1:5".to_owned());
        assert_eq!(text(&snapshot).lines().nth(1), Some("leader: 10.0.0.1:5 (term 1)"));
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!((&json["leader"], &json["term"]), (&"10.0.0.1:5".into(), &1.into()));
    }

    /// A registered agent is asked, independently of other agents of its job; an unregistered one
    /// is reported.
    #[test]
    fn agents_of_this_machine() {
        let error = |agents: Vec<RunningAgent>| of_this_machine(agents).unwrap_err().to_string();
        let at = |endpoint| agent("j", endpoint, Stage::Attending);
        let found = |agents| match of_this_machine(agents).unwrap() {
            JobEndpoint::One(endpoint) => endpoint.to_string(),
            JobEndpoint::Voters(voters) => format!("voters {voters}"),
        };
        assert_eq!(found(vec![at("n:1"), agent("j", "n:1", waiting()), at("n:1")]), "n:1");
        assert_eq!(found(vec![agent("j", "auto:2", Stage::Searching), at("n:1")]), "n:1");
        let list = "n:1,m:1,k:1";
        assert_eq!(
            found(vec![at(list), agent("j", list, waiting()), at(list)]),
            format!("voters {list}")
        );
        assert_eq!(error(vec![at("n:1,m:1")]), "`n:1,m:1` is not a valid endpoint of a job");
        assert_eq!(error(vec![]), "no job of this user is running on this machine");
        let waits = "job j has no coordinator yet: its agent on this machine (process 7) ";
        let lone = vec![agent("j", "n:1", waiting()), agent("j", "n:1", waiting())];
        assert_eq!(error(lone), format!("{waits}is waiting for n:1 (refused)"));
        let searching = ["j", "j"].map(|job| agent(job, "auto:2", Stage::Searching));
        assert_eq!(error(searching.into()), format!("{waits}is searching for the others (auto:2)"));
        let two = ["j", "k"].map(|job| agent(job, "auto:2", Stage::Searching));
        assert_eq!(
            error(two.into()),
            "2 jobs are running on this machine:\n  run id j, endpoint auto:2\n  run id k, endpoint auto:2"
        );
        // A launch counts if no agent of its job runs on this machine.
        let launched = || agent("j", "m:1", Stage::Launching);
        assert_eq!(found(vec![launched()]), "m:1");
        assert_eq!(found(vec![launched(), at("n:1")]), "n:1");
        let unknown = agent("k", "", Stage::Launching);
        assert_eq!(found(vec![unknown, at("n:1")]), "n:1");
        let other = vec![at("n:1"), agent("j", "m:1", waiting())];
        assert_eq!(
            error(other),
            "2 jobs are running on this machine:\n  run id j, endpoint m:1\n  run id j, endpoint n:1"
        );
    }
}
