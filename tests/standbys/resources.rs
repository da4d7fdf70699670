//! Tests memory and files of standbys.

use std::fs;

use crate::{
    job::{Job, ready_standby, used_standbys, write},
    support::{Cgroup, Sandbox, children, is_there, keeper_of},
};

const SCRIPT: &str = "print('score', open('/proc/self/oom_score_adj').read())";

/// The kernel kills standbys first if memory is short. A worker has the score of its agent.
#[test]
fn score_of_standbys() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let script = format!(
        "echo 321 >/proc/self/oom_score_adj; exec {} {} --node-rank 0 --standby=json train.py",
        env!("CARGO_BIN_EXE_ragent"),
        job.flags
    );
    let mut node = job.prepared(sandbox.program("bash").arg("-c").arg(script)).start();
    node.logs(crate::job::READY);
    let standby = ready_standby(node.pid());
    assert_eq!(fs::read_to_string(format!("/proc/{standby}/oom_score_adj")).unwrap(), "1000\n");
    let end = job.finish(node);
    end.assert_code(0);
    assert!(used_standbys(&end));
    assert!(end.stdout.contains("score 321\n"), "{}", end.stdout);
}

/// In a cgroup with too little memory, no standby is started. One warning states that.
#[test]
fn short_memory() {
    let Some(cgroup) = Cgroup::delegated("memory") else { return };
    if !is_there("unshare") {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    // Its files, in a mount namespace of the test: the kernel may have no controller for them.
    let path = cgroup.path().display();
    let words = format!("{} --node-rank 0 --nproc-per-node 2 --standby=json train.py", job.flags);
    let script = format!(
        "echo 0 >{path}/cgroup.procs && mount --make-rprivate / && mount -t tmpfs none {path} && \
         echo 700000000 >{path}/memory.max && echo 200000000 >{path}/memory.current && \
         exec {} {words}",
        env!("CARGO_BIN_EXE_ragent")
    );
    let start = sandbox.program("unshare").arg("--mount").arg("bash").arg("-c").arg(script);
    let mut node = job.prepared(start).start();
    let line = node.logs("no standbys are started: ");
    assert!(line.contains("476 MiB of memory are available, and 800 MiB are required"), "{line}");
    assert!(children(keeper_of(node.pid())).is_empty());
    let end = job.finish(node);
    end.assert_code(0);
    assert!(!used_standbys(&end));
    assert_eq!(end.stderr.matches("no standbys are started").count(), 1, "{}", end.stderr);
}

/// After the end, only the stored hook remains. A second job uses the same file.
#[test]
fn stored_hook_remains() {
    let sandbox = Sandbox::new();
    let mut before = Vec::new();
    for _ in 0..2 {
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "train.py", SCRIPT);
        let node = job.ready_node("--nproc-per-node 2 --standby=json train.py");
        job.finish(node).assert_code(0);
        sandbox.assert_nothing_left();
        let left = [sandbox.files_below("run"), sandbox.files_below("tmp")].concat();
        let hooks: Vec<&String> =
            left.iter().filter(|path| path.ends_with("sitecustomize.py")).collect();
        assert_eq!(hooks.len(), 1, "{left:?}");
        assert!(hooks[0].contains("standby-"), "{left:?}");
        assert_eq!(left.len(), 1, "{left:?}");
        if !before.is_empty() {
            assert_eq!(before, left);
        }
        before = left;
    }
}
