//! Tests that a worker that was a standby differs from any other in nothing that it can find out.

use std::collections::BTreeMap;

use crate::{
    job::{Job, used_standbys, write},
    support::{Cgroup, End, Sandbox},
};

/// The modules that standbys import here.
const STANDBY: &str = "--standby=json,decimal";
const COLD: &str = "--standby=none";

/// Runs the same job with standbys and without.
fn both(sandbox: &Sandbox, words: &str) -> Option<[End; 2]> {
    let mut ends = Vec::new();
    for (flag, is_standby) in [(STANDBY, true), (COLD, false)] {
        let job = Job::new(sandbox)?;
        let start = job.node(&format!("{flag} {words}")).arg("two words");
        let end = if is_standby {
            let mut node = start.start();
            node.logs(crate::job::READY);
            job.finish(node)
        } else {
            job.finish(start.start())
        };
        assert_eq!(used_standbys(&end), is_standby, "{}", end.stderr);
        ends.push(end);
    }
    ends.try_into().ok()
}

fn portrait(end: &End) -> BTreeMap<&str, &str> {
    end.assert_code(0);
    assert!(end.stdout.contains("portrait is complete"), "{}{}", end.stdout, end.stderr);
    end.stdout.lines().filter_map(|line| line.strip_prefix("portrait ")?.split_once(": ")).collect()
}

#[track_caller]
fn assert_equal(sandbox: &Sandbox, words: &str) {
    let Some([standby, cold]) = both(sandbox, words) else { return };
    assert!(!standby.stderr.contains("Error in sitecustomize"), "{}", standby.stderr);
    let (standby, cold) = (portrait(&standby), portrait(&cold));
    assert!(cold.len() > 40, "{cold:?}");
    for (name, value) in &cold {
        assert_eq!(standby.get(name), Some(value), "{name}");
    }
    assert_eq!(standby.len(), cold.len());
}

fn portrait_script(sandbox: &Sandbox, name: &str) {
    write(sandbox, name, include_str!("portrait.py"));
}

/// A script has the same environment, arguments, streams, descriptors, signals and attributes.
#[test]
fn script() {
    let sandbox = Sandbox::new();
    portrait_script(&sandbox, "portrait.py");
    assert_equal(&sandbox, "portrait.py");
}

/// A module has the same.
#[test]
fn module() {
    let sandbox = Sandbox::new();
    portrait_script(&sandbox, "modules/package/portrait.py");
    write(&sandbox, "modules/package/__init__.py", "");
    assert_equal(&sandbox, "-m package.portrait");
}

/// A folder has the same.
#[test]
fn folder() {
    let sandbox = Sandbox::new();
    portrait_script(&sandbox, "folder/__main__.py");
    assert_equal(&sandbox, "folder");
}

/// A script that `runpy` runs has the same.
#[test]
fn run_path() {
    let sandbox = Sandbox::new();
    portrait_script(&sandbox, "portrait.py");
    assert_equal(&sandbox, "--run-path portrait.py");
}

/// In a delegated cgroup, the worker stays in the cgroup of its standby.
#[test]
fn cgroup() {
    let sandbox = Sandbox::new();
    let Some(cgroup) = Cgroup::delegated("equality") else { return };
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "where.py", "print('in', open('/proc/self/cgroup').read())");
    let start = cgroup.ragent(&sandbox, &format!("{} --node-rank 0 {STANDBY} where.py", job.flags));
    let mut node = start.start();
    node.logs(crate::job::READY);
    let standby = crate::job::ready_standby(node.pid());
    let own = std::fs::read_to_string(format!("/proc/{standby}/cgroup")).unwrap();
    assert!(own.contains("/standby-1\n"), "{own}");
    let end = job.finish(node);
    assert_eq!(end.stdout, format!("in {own}\n"));
    assert!(used_standbys(&end));
}

/// A script that fails has the same traceback and exit code.
#[test]
fn failure() {
    for words in ["fail.py", "-m fail", "--run-path fail.py"] {
        let sandbox = Sandbox::new();
        write(&sandbox, "fail.py", "import nested\ndef inner():\n    nested.fail()\ninner()\n");
        write(&sandbox, "nested.py", "def fail():\n    raise ValueError('it is broken')\n");
        let Some([standby, cold]) = both(&sandbox, words) else { return };
        assert_eq!(traceback(&standby), traceback(&cold));
        assert_eq!(standby.code, cold.code);
    }
    let sandbox = Sandbox::new();
    write(&sandbox, "exit.py", "import sys\nsys.exit(33)\n");
    let Some(ends) = both(&sandbox, "exit.py") else { return };
    for end in ends {
        assert!(end.report().contains("33"), "{}", end.report());
    }
}

/// The worker's traceback, without lines that the agent has logged in between.
#[track_caller]
fn traceback(end: &End) -> Vec<&str> {
    let (start, last) = ("Traceback", "ValueError: it is broken\n");
    let found = end.stderr.find(start).zip(end.stderr.find(last));
    let (start, last) = found.unwrap();
    end.stderr[start..last].lines().filter(|line| !line.contains(" INFO ")).collect()
}

/// Children that `multiprocessing` starts get the script, the rank and the arguments.
#[test]
fn children() {
    let sandbox = Sandbox::new();
    let script = "\
import multiprocessing, os, sys
def child(queue):
    queue.put((os.environ['RANK'], os.environ.get('PYTHONPATH'), sys.argv, sys.path, __name__))
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        process.join()
        print('child', method, process.exitcode, queue.get(), flush=True)
";
    write(&sandbox, "children.py", script);
    let Some([standby, cold]) = both(&sandbox, "children.py") else { return };
    let lines = |end: &End| {
        let lines = end.stdout.lines().filter(|line| line.starts_with("child"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&standby), lines(&cold));
    assert_eq!(lines(&cold).len(), 3, "{}", cold.stderr);
}
