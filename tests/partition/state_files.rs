//! Tests how a voter reads a damaged state file, and writes into a read-only folder.

use std::fs;

use crate::{
    elected_job::{ElectedJob, WITNESS},
    support::{Stream, may_make_networks},
};

/// A voter returns with a damaged state file, in a folder in which it can write none. It joins its job again as another voter, and reports
/// each of the two once.
#[test]
fn voter_cannot_use_its_state_file() {
    const MOUNTS: &str = "mount --bind $XDG_RUNTIME_DIR $XDG_RUNTIME_DIR && \
                          mount -o remount,bind,ro $XDG_RUNTIME_DIR";
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start("sfile");
    let uid = job.uid();
    let node = job.leader(WITNESS).node;
    job.kill_agent(node);
    job.wait_for_end(node);
    job.runs_on(&ElectedJob::without(&[node]));
    fs::write(job.state_file(node), [0xFF; 200]).expect("the sandbox is writable");
    job.start_agent_after(node, MOUNTS);
    job.runs_on(&ElectedJob::all());
    let agent = job.agent(node);
    agent.logs("failed to write the state of the job");
    let log = agent.text(Stream::Stderr);
    let names_a_file = |line: &&str| line.contains(" WARN ") && line.contains("/job-");
    let warnings: Vec<&str> = log.lines().filter(names_a_file).collect();
    let [read, write] = warnings[..] else { panic!("two warnings were expected: {warnings:?}") };
    assert!(read.contains("ignored a state file that cannot be read or is malformed"), "{read}");
    assert!(write.contains("this process will not know it after a restart"), "{write}");
    assert_eq!(job.uid(), uid);
    job.end();
}
