//! Prints the commands of each host in a form that you can run by hand: `--dry-run`.

use std::{collections::BTreeMap, fmt::Write};

use ragent_base::spec::DEFAULT_PORT;

use super::{
    order::{HostAddress, HostJob, HostNumber, TargetHost},
    plan::Plan,
    shell_words,
    tree::{self, Branch},
};

/// Returns the commands of each host. They have the names of variables, but not their values.
pub(super) fn text(plan: &Plan) -> String {
    let host_address = |host_name: &String| HostAddress {
        host_name: host_name.clone(),
        address: None,
        port: DEFAULT_PORT,
    };
    let host_addresses: Vec<(HostNumber, HostAddress)> =
        (0..).zip(plan.names().iter().map(host_address)).collect();
    let jobs = plan.host_jobs(&host_addresses);
    let mut text = String::new();
    let coordinators = plan.rendezvous.coordinators(&host_addresses);
    let names: Vec<&str> =
        coordinators.iter().map(|host| plan.hosts[*host as usize].name.as_str()).collect();
    // Writing to a string does not fail.
    let _ = match &names[..] {
        [] => Ok(()),
        [first] => writeln!(
            text,
            "# the address and a free port of {first} are determined when it is reached; its name is \
             shown instead"
        ),
        names => writeln!(
            text,
            "# the addresses and free ports of the voters {} are determined when they are reached; \
             their names are shown instead",
            names.join(", ")
        ),
    };
    if plan.job.secret.is_some() {
        text.push_str("# the secret of the job is sent to the agents, and is not shown\n");
    }
    let jobs: BTreeMap<HostNumber, HostJob> =
        jobs.into_iter().map(|job| (job.number, job)).collect();
    // Each host precedes those below it.
    let mut rest = branches(plan, plan.destinations(), None);
    while let Some((branch, by)) = rest.pop() {
        let number = branch.head.number;
        describe(&mut text, plan, &branch.head, jobs.get(&number), by);
        rest.extend(branches(plan, branch.below, Some(number)));
    }
    text
}

/// Returns the branches to `hosts` in reverse order. They are reached from this host or from the host `by`.
fn branches(
    plan: &Plan,
    hosts: Vec<TargetHost>,
    by: Option<HostNumber>,
) -> Vec<(Branch, Option<HostNumber>)> {
    let branches = tree::split(hosts, plan.way.fanout).into_iter().rev();
    branches.map(|branch| (branch, by)).collect()
}

/// Appends the commands of one host to `text`.
fn describe(
    text: &mut String,
    plan: &Plan,
    host: &TargetHost,
    job: Option<&HostJob>,
    by: Option<HostNumber>,
) {
    let name = |number: HostNumber| plan.hosts[number as usize].name.as_str();
    let by = by.map(|by| format!(" (from {})", name(by))).unwrap_or_default();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}{by}", name(host.number));
    let _ = writeln!(text, "  {}", shell_words::join(&plan.way.command(&host.target)));
    let Some(job) = job else { return };
    let folder = shell_words::quote(plan.job.folder.as_os_str());
    let mut agent = vec![plan.way.ragent.clone().into()];
    agent.extend(plan.job.words(job));
    let _ = writeln!(text, "    cd {folder} && {}", shell_words::join(&agent));
    let variables = plan.job.env.iter().chain(&job.env);
    let variables: Vec<&str> = variables.map(|(name, _)| name.as_str()).collect();
    if !variables.is_empty() {
        let _ = writeln!(text, "    with {}", variables.join(" "));
    }
}
