//! Prints the commands of each host in a form that you can run by hand: `--dry-run`.

use std::{collections::BTreeMap, fmt::Write};

use ragent_base::net::DEFAULT_PORT;

use super::{
    filters::ChosenHost,
    order::{HostAddress, HostJob, HostNumber},
    plan::Plan,
    shell_words,
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
    for (number, host) in (0..).zip(&plan.hosts) {
        describe(&mut text, plan, host, jobs.get(&number));
    }
    text
}

/// Appends the commands of one host to `text`.
fn describe(text: &mut String, plan: &Plan, host: &ChosenHost, job: Option<&HostJob>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}", host.name);
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
