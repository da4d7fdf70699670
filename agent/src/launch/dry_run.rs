//! `--dry-run`: what would run where, as commands that a person can try by hand.

use std::fmt::Write;

use super::{
    order::{Destination, HostJob, HostNumber, Site},
    plan::Plan,
    tree, words,
};
use crate::job_spec::DEFAULT_PORT;

/// What would run where. Names of variables are shown, not their values.
pub(super) fn text(plan: &Plan) -> String {
    let site = |host_name: &String| Site {
        host_name: host_name.clone(),
        address: None,
        port: DEFAULT_PORT,
    };
    let sites: Vec<(HostNumber, Site)> = (0..).zip(plan.names().iter().map(site)).collect();
    let jobs = plan.host_jobs(&sites);
    let mut text = String::new();
    if plan.meeting.is_at_a_host()
        && let Some(first) = plan.hosts.first()
    {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# the address and a free port of {} are known when it is reached; its name stands for them",
            first.name
        );
    }
    describe(&mut text, plan, &jobs, plan.destinations(), None);
    text
}

/// Describes `hosts`, which are reached from here or from the host `by`.
fn describe(
    text: &mut String,
    plan: &Plan,
    jobs: &[HostJob],
    hosts: Vec<Destination>,
    by: Option<&str>,
) {
    for branch in tree::split(hosts, plan.way.fanout) {
        let Destination { number, target } = &branch.head;
        let name = &plan.hosts[*number as usize].name;
        let by = by.map(|by| format!(" (from {by})")).unwrap_or_default();
        let _ = writeln!(text, "{name}{by}");
        let _ = writeln!(text, "  {}", words::join(&plan.way.command(target)));
        if let Some(job) = jobs.iter().find(|job| job.number == *number) {
            let folder = words::quote(plan.job.folder.as_os_str());
            let mut agent = vec![plan.way.ragent.clone().into()];
            agent.extend(plan.job.words(job));
            let _ = writeln!(text, "    cd {folder} && {}", words::join(&agent));
            let names = plan.job.env.iter().chain(&job.env).map(|(name, _)| name.as_str());
            let names: Vec<&str> = names.collect();
            if !names.is_empty() {
                let _ = writeln!(text, "    with {}", names.join(" "));
            }
        }
        describe(text, plan, jobs, branch.below, Some(name));
    }
}
