//! Gives the agents of this machine a notice: `ragent notice`.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use nix::unistd::{Uid, User, geteuid, setgid, setgroups, setuid};
use ragent_base::{
    report::status_text::progress::grouped,
    sys::{host::ThisHost, stdout},
};
use ragent_leadership::state_file::{RunningAgent, Stage, running_agents_in};
use ragent_node::notices::{Answer, Request, ask};
use ragent_options::{
    cli::{AskedKind, NoticeArgs},
    spec::{Argument, RequestKind, UsageError},
};
use tokio::task::JoinSet;

use super::{
    error::{LaunchError, system},
    runtime::block_on,
};

/// The longest time of a notice: a day.
const WITHIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// Gives the agents a notice, and waits until all ranks have saved if that is asked.
///
/// # Errors
///
/// Returns [`LaunchError`] if no agent takes the notice, or if not all ranks have saved.
pub fn give(args: &NoticeArgs) -> Result<ExitCode, LaunchError> {
    let within = args.within.as_deref().map(within).transpose()?;
    let agents: Vec<RunningAgent> = folders(args)?
        .iter()
        .flat_map(|folder| running_agents_in(folder))
        .filter(|agent| agent.stage != Stage::Launching)
        .filter(|agent| args.rdzv_id.as_ref().is_none_or(|id| *id == agent.run_id))
        .collect();
    if agents.is_empty() {
        let of_job = args.rdzv_id.as_ref().map(|id| format!(" of the job `{id}`"));
        return Err(failed(&format!(
            "error: no agent{} of this user runs on this machine\nhint: type `ragent notice` on a machine where an agent runs; for the agents \
             of another user, root adds `--user NAME`",
            of_job.unwrap_or_default()
        )));
    }
    let request = Request {
        kind: match args.kind {
            AskedKind::Leave => RequestKind::Leave,
            AskedKind::End => RequestKind::End,
            AskedKind::Save => RequestKind::Save,
        },
        within_ms: within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX)),
        text: if args.text.is_empty() { "ragent notice".to_owned() } else { args.text.join(" ") },
        waits: args.wait,
    };
    block_on(ask_all(agents, request))?
}

async fn ask_all(agents: Vec<RunningAgent>, request: Request) -> Result<ExitCode, LaunchError> {
    let mut asked = JoinSet::new();
    for agent in agents {
        asked.spawn(ask_one(agent, request.clone()));
    }
    let (mut failures, mut count) = (Vec::new(), 0);
    while let Some(result) = asked.join_next().await {
        match result.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) => count += 1,
            Err(why) => failures.push(why),
        }
    }
    if failures.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    failures.sort();
    let others = if count == 0 {
        String::new()
    } else {
        format!("\n  it took effect on {count} other agent(s)")
    };
    Err(failed(&format!(
        "error: a notice did not have the effect that you asked for\n  {}{others}",
        failures.join("\n  ")
    )))
}

/// Asks one agent, and prints its answers. Returns the reason if the notice did not count, or if not all ranks
/// have saved.
async fn ask_one(agent: RunningAgent, request: Request) -> Result<(), String> {
    let RunningAgent { run_id, pid, notices, .. } = agent;
    let name = format!("agent of job {run_id} (process {pid})");
    let Some(path) = notices else {
        return Err(format!("{name}: it has no socket for notices; its log has the reason"));
    };
    // A job that goes on has no step that its ranks on all nodes are known to have saved.
    let ranks =
        if request.kind == RequestKind::Save { "all ranks of this node" } else { "all ranks" };
    let mut last = None;
    let handle = |answer: Answer| {
        let line = match &answer {
            Answer::Taken => Some(format!("{name}: notice given\n")),
            Answer::Saved(step) => {
                Some(format!("{name}: {ranks} have saved step {}\n", grouped(*step)))
            }
            Answer::Refused(_) | Answer::Over => None,
        };
        // A closed stdout changes nothing for the agent.
        line.iter().for_each(|line| drop(stdout::print(line)));
        last = Some(answer);
    };
    let asked = ask(&path, &request, handle).await;
    match (last, asked) {
        (Some(Answer::Saved(_)), _) => Ok(()),
        (Some(Answer::Taken), Ok(())) if !request.waits => Ok(()),
        (Some(Answer::Refused(why)), _) => Err(format!("{name}: {why}")),
        (Some(Answer::Over), _) => Err(format!(
            "{name}: not all ranks had saved at the end of the round; `ragent events` names them"
        )),
        (_, Err(error)) => Err(format!("{name}: {error}")),
        (Some(Answer::Taken) | None, Ok(())) => Err(format!("{name}: it has ended")),
    }
}

fn within(given: &str) -> Result<Duration, UsageError> {
    let range = 0.0..=WITHIN_MAX.as_secs_f64();
    let seconds = Argument::new("--in", given).seconds(|seconds| range.contains(&seconds));
    let hint = "give the time for which ranks may save, such as `--in 110`";
    Ok(Duration::from_secs_f64(seconds.map_err(|error| error.with_hint(hint))?))
}

/// Returns the folders in which agents are registered. Becomes the user whose folders these are, if root asks for
/// another user's.
fn folders(args: &NoticeArgs) -> Result<Vec<PathBuf>, LaunchError> {
    let (flag, value, user) = match (&args.user, &args.runtime_dir) {
        (None, None) => return Ok(vec![ThisHost.runtime_dir()]),
        (Some(name), _) => ("--user", name.clone(), User::from_name(name)),
        (None, Some(folder)) => {
            let text = folder.to_string_lossy().into_owned();
            let about = fs::metadata(folder).map_err(|error| {
                Argument::new("--runtime-dir", &text)
                    .invalid(format_args!("cannot be read: {error}"))
                    .with_hint("give the folder of the agents, such as /run/user/1000/ragent")
            })?;
            ("--runtime-dir", text, User::from_uid(Uid::from_raw(about.uid())))
        }
    };
    let user = user.ok().flatten().ok_or_else(|| {
        Argument::new(flag, &value)
            .invalid("belongs to no user of this machine")
            .with_hint("give the name of the user that has started the agents")
    })?;
    if user.uid != geteuid() {
        if !geteuid().is_root() {
            return Err(Argument::new(flag, &value)
                .invalid(format_args!(
                    "is of user {}, and only root may give their agents a notice",
                    user.name
                ))
                .with_hint("leave it out, or use sudo")
                .into());
        }
        // As that user, so that nothing of theirs can lead to a file of root.
        let become_user = || {
            setgroups(&[user.gid])?;
            setgid(user.gid)?;
            setuid(user.uid)
        };
        become_user().map_err(|errno| system("become the user of the agents")(errno.into()))?;
    }
    Ok(match &args.runtime_dir {
        Some(folder) => vec![folder.clone()],
        None => {
            let uid = user.uid;
            let places = [format!("/run/user/{uid}/ragent"), format!("/tmp/ragent-{uid}")];
            places.into_iter().map(PathBuf::from).filter(|place| Path::is_dir(place)).collect()
        }
    })
}

fn failed(report: &str) -> LaunchError {
    LaunchError::Command { code: 1, report: report.to_owned() }
}
