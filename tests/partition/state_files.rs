//! Tests voters that cannot use their state file or its folder. Their job goes on, and no second one begins.

use std::{fs, path::Path};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    elected_job::{ElectedJob, WITNESS},
    support::{Network, Program, Stream, may_make_networks},
};

/// The role of the voter whose file is spoiled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Leader,
    Follower,
}

/// The content of a state file that the next agent of the host does not accept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Content {
    Empty,
    /// Bytes that are not text.
    Garbage,
    /// The first bytes of the right content.
    Truncated,
    /// The file of another voter of the same job.
    OfOtherVoter,
}

impl Content {
    const ALL: [Self; 4] = [Self::Empty, Self::Garbage, Self::Truncated, Self::OfOtherVoter];

    fn write(self, own: &Path, other: &Path) {
        let text = fs::read(own).expect("the voter has written it");
        let text = match self {
            Self::Empty => Vec::new(),
            Self::Garbage => vec![0xFF; text.len()],
            Self::Truncated => text[..200].to_vec(),
            Self::OfOtherVoter => fs::read(other).expect("that voter has written it"),
        };
        fs::write(own, text).expect("the sandbox is writable");
    }
}

/// A state folder in which no file can be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Folder {
    Full,
    /// It has the file of the agent before, if there was one.
    ReadOnly,
    /// It does not exist, and cannot be created.
    Missing,
}

impl Folder {
    const ALL: [Self; 3] = [Self::Full, Self::ReadOnly, Self::Missing];

    /// The commands that make it the folder of an agent.
    fn mounts(self) -> &'static str {
        match self {
            Self::Full => {
                "mount -t tmpfs -o size=4k,mode=700 none $XDG_RUNTIME_DIR && \
                 head -c 4096 /dev/zero >$XDG_RUNTIME_DIR/filler"
            }
            Self::ReadOnly => {
                "mount --bind $XDG_RUNTIME_DIR $XDG_RUNTIME_DIR && \
                 mount -o remount,bind,ro $XDG_RUNTIME_DIR"
            }
            Self::Missing => "export XDG_RUNTIME_DIR=/proc/none",
        }
    }
}

/// The warnings in an agent's log that name a state file, so far.
fn warnings(agent: &mut Program) -> Vec<String> {
    agent.receive_pending();
    let log = agent.text(Stream::Stderr);
    let names_a_file = |line: &&str| line.contains(" WARN ") && line.contains("/job-");
    log.lines().filter(names_a_file).map(str::to_owned).collect()
}

/// Fails unless the agent has printed one warning that names a state file, with these words.
#[track_caller]
fn assert_one_warning(agent: &mut Program, words: &str) {
    let warnings = warnings(agent);
    let [warning] = &warnings[..] else { panic!("one warning was expected: {warnings:?}") };
    assert!(warning.contains(words), "{warning}");
}

/// Starts a job, kills the agent of a voter, and waits until the others run without it. Returns the job, its identity, the node of that
/// voter, and the node of another voter that does not lead at first.
fn job_without_a_voter(name: &str, role: Role) -> (ElectedJob, String, u32, u32) {
    let (mut job, _) = ElectedJob::start(name);
    let uid = job.uid();
    let leader = job.leader(WITNESS);
    let [follower, other] = ElectedJob::followers(leader);
    let node = match role {
        Role::Leader => leader.node,
        Role::Follower => follower,
    };
    job.kill_agent(node);
    job.wait_for_end(node);
    job.runs_on(&ElectedJob::without(&[node]));
    (job, uid, node, other)
}

/// A voter returns with a file of each content.
fn bad_contents(role: Role) {
    if !may_make_networks() {
        return;
    }
    for content in Content::ALL {
        let (mut job, uid, node, other) = job_without_a_voter(&format!("sc{role:?}"), role);
        content.write(&job.state_file(node), &job.state_file(other));
        job.start_agent(node);
        job.runs_on(&ElectedJob::all());
        assert_eq!(job.uid(), uid, "{content:?}");
        let words = match content {
            Content::OfOtherVoter => "ignored the state file of another voter; the job continues",
            _ => "ignored a state file that cannot be read or is malformed; the job continues",
        };
        assert_one_warning(job.agent(node), words);
        // It has another voter now, which takes the place of the lost one.
        let leader = job.leader(WITNESS);
        job.agent(leader.node).logs("the voters have changed");
        job.end();
    }
}

/// A leader whose state file was spoiled joins its job again as another voter, and reports the file once.
#[test]
fn leader_returns_with_a_bad_file() {
    bad_contents(Role::Leader);
}

/// The same for a voter that did not lead.
#[test]
fn follower_returns_with_a_bad_file() {
    bad_contents(Role::Follower);
}

/// A voter returns with its file from before two changes of the voters.
fn outdated_file(name: &str, role: Role) {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start(name);
    let uid = job.uid();
    let leader = job.leader(WITNESS);
    let [follower, other] = ElectedJob::followers(leader);
    let node = match role {
        Role::Leader => leader.node,
        Role::Follower => follower,
    };
    let file = job.state_file(node);
    let outdated = fs::read(&file).expect("the voter has written it");
    // The first change: a voter's host is lost with its state, and returns.
    job.lose_host(other);
    job.runs_on(&ElectedJob::without(&[other]));
    job.start_agent(other);
    let line = job.agent(leader.node).logs("the voters have changed");
    job.runs_on(&ElectedJob::all());
    // The second change: the present voter leaves.
    let stay = [leader.node, node];
    let is_voter = |other: &u32| line.contains(&format!("{}:", Network::address(*other)));
    let other =
        ElectedJob::without(&stay).into_iter().find(is_voter).expect("there are three voters");
    job.agent(other).signal(Signal::SIGTERM);
    job.agent(leader.node).logs("the voters have changed");
    job.runs_on(&ElectedJob::without(&[other]));
    job.kill_agent(node);
    job.wait_for_end(node);
    job.runs_on(&ElectedJob::without(&[other, node]));
    fs::write(&file, outdated).expect("the sandbox is writable");
    job.start_agent(node);
    job.runs_on(&ElectedJob::without(&[other]));
    job.replace_agent(other);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.uid(), uid);
    assert_eq!(warnings(job.agent(node)), Vec::<String>::new());
    job.end();
}

/// A leader that returns with a state file of some changes ago joins its job again.
#[test]
fn leader_returns_with_an_outdated_file() {
    outdated_file("soleader", Role::Leader);
}

/// The same for a voter that did not lead.
#[test]
fn follower_returns_with_an_outdated_file() {
    outdated_file("sofollower", Role::Follower);
}

/// A voter returns to a folder in which no file can be written. The voters may change afterwards.
fn bad_folders(role: Role) {
    if !may_make_networks() {
        return;
    }
    for folder in Folder::ALL {
        let (mut job, uid, node, other) = job_without_a_voter(&format!("sf{role:?}"), role);
        job.start_agent_after(node, folder.mounts());
        job.runs_on(&ElectedJob::all());
        job.agent(node).logs("failed to write the state of the job");
        if folder != Folder::ReadOnly {
            let leader = job.leader(WITNESS);
            job.agent(leader.node).logs("the voters have changed");
        }
        job.agent(other).signal(Signal::SIGTERM);
        job.runs_on(&ElectedJob::without(&[other]));
        job.replace_agent(other);
        job.runs_on(&ElectedJob::all());
        assert_eq!(job.uid(), uid, "{folder:?}");
        assert_one_warning(job.agent(node), "this process will not know it after a restart");
        job.end();
    }
}

/// A leader that returns to a full, read-only or missing folder joins its job again, and reports the file once.
#[test]
fn leader_returns_to_a_bad_folder() {
    bad_folders(Role::Leader);
}

/// The same for a voter that did not lead.
#[test]
fn follower_returns_to_a_bad_folder() {
    bad_folders(Role::Follower);
}

/// A job starts and survives the loss of its leader although no voter can write its state file. Each of them reports that once.
#[test]
fn job_starts_without_files() {
    if !may_make_networks() {
        return;
    }
    for folder in Folder::ALL {
        let mut job = ElectedJob::start_after("snofiles", folder.mounts());
        let leader = job.leader(WITNESS);
        for node in ElectedJob::followers(leader) {
            job.agent(node).logs("failed to write the state of the job");
        }
        job.kill_agent(leader.node);
        job.next_leader(WITNESS, leader);
        job.runs_on(&ElectedJob::without(&[leader.node]));
        for node in ElectedJob::followers(leader) {
            assert_one_warning(job.agent(node), "this process will not know it after a restart");
        }
        job.end();
    }
}

/// Converts a state file into a file of another job with the same name and hosts. That job was born this number of milliseconds later.
fn of_another_job(path: &Path, later_ms: i64) {
    let text = fs::read_to_string(path).expect("the voter has written it");
    let mut state: Value = serde_json::from_str(&text).expect("it is JSON");
    let born_ms = state["born_ms"].as_u64().expect("the job has a birth");
    state["job_uid"] = json!("0123456789abcdef");
    state["born_ms"] = json!(born_ms.saturating_add_signed(later_ms));
    let other = |voter: &Value| json!(voter.as_u64().expect("each slot has a voter") ^ 1);
    let copy = &mut state["copy"];
    copy["voter"] = other(&copy["voter"]);
    for slot in copy["last"].as_array_mut().expect("there are voters") {
        slot["voter"] = other(&slot["voter"]);
    }
    fs::write(path, state.to_string()).expect("the sandbox is writable");
}

/// A voter returns with the file of another job.
fn file_of_another_job(name: &str, role: Role, later_ms: i64) {
    if !may_make_networks() {
        return;
    }
    let (mut job, uid, node, _) = job_without_a_voter(name, role);
    of_another_job(&job.state_file(node), later_ms);
    job.start_agent(node);
    let end = job.wait_for_end(node);
    end.assert_code(3);
    end.assert_stderr(&["another job of this name", "hint: start the agents again"]);
    job.start_agent(node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.uid(), uid);
    assert_eq!(warnings(job.agent(node)), Vec::<String>::new());
    job.end();
}

/// A leader returns with the state file of a younger job of the same name. It ends, and its next agent joins the job that goes on.
#[test]
fn leader_returns_with_the_file_of_a_younger_job() {
    file_of_another_job("syounger", Role::Leader, 10_000);
}

/// A voter that did not lead returns with the file of an elder job. The leader of that job might come back, so the voter ends only after 30
/// s.
#[test]
fn follower_returns_with_the_file_of_an_elder_job() {
    file_of_another_job("selder", Role::Follower, -10_000);
}
