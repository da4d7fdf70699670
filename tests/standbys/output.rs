//! Tests that the worker's output contains everything that modules print while standbys import them.

use crate::{
    job::{Job, ready_standby, used_standbys, wait_for_standbys, write},
    support::{Sandbox, kill},
};
use nix::sys::signal::Signal;

const PRINTS: &str = "\
import os, sys
print('printed to stdout')
sys.stderr.write('printed to stderr\\n')
os.write(1, b'written to 1\\n')
os.write(2, b'written to 2\\n')
";

/// Both streams of every worker have the lines once, before those of the script, in the log files
/// too.
#[test]
fn printed_lines_arrive_once() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/prints.py", PRINTS);
    write(&sandbox, "train.py", "import prints\nprint('script')");
    let words =
        "--nproc-per-node 2 --log-dir logs --redirects 1:3 --tee 0:3 --standby=prints train.py";
    let end = job.finish(job.ready_node(words));
    end.assert_code(0);
    assert!(used_standbys(&end));
    let files = sandbox.files_below("logs");
    for rank in 0..2 {
        let text = |name: &str| {
            let name = format!("/{rank}/{name}.log");
            let file = files.iter().find(|file| file.ends_with(&name)).unwrap();
            std::fs::read_to_string(sandbox.path("logs").join(file)).unwrap()
        };
        assert_eq!(text("stdout"), "printed to stdout\nwritten to 1\nscript\n");
        assert_eq!(text("stderr"), "printed to stderr\nwritten to 2\n");
    }
    assert_eq!(end.stdout.matches("written to 1").count(), 1, "{}", end.stdout);
    assert_eq!(end.stderr.matches("written to 2").count(), 1, "{}", end.stderr);
}

/// An interpreter that was built for an old glibc has no `memfd_create`. It can be a standby, too.
#[test]
fn python_for_an_old_glibc() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let venv = sandbox.path("venv");
    let made = sandbox.program("/usr/bin/env").arg("python3").arg("-m").arg("venv");
    made.arg("--without-pip").arg(&venv).run().assert_code(0);
    let site = sandbox.program(venv.join("bin/python").to_str().unwrap()).arg("-c");
    let site = site.arg("import site; print(site.getsitepackages()[0])").run().stdout;
    // It is read before the hook.
    std::fs::write(format!("{}/old.pth", site.trim_end()), "import os; del os.memfd_create\n")
        .unwrap();
    write(&sandbox, "modules/prints.py", PRINTS);
    write(&sandbox, "train.py", "import os, prints\nprint(hasattr(os, 'memfd_create'))");
    let node = job.node("--standby=prints train.py").env("PYTHON_EXEC", venv.join("bin/python"));
    let mut node = node.start();
    node.logs(crate::job::READY);
    let end = job.finish(node);
    end.assert_code(0);
    assert!(used_standbys(&end));
    assert_eq!(end.stdout, "printed to stdout\nwritten to 1\nFalse\n");
}

/// Large outputs arrive completely, while their reader is slower than the standby.
#[test]
fn large_output_arrives() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/prints.py", "for number in range(50000):\n    print('line', number)");
    write(&sandbox, "train.py", "print('script')");
    let end = job.finish(job.ready_node("--standby=prints train.py"));
    end.assert_code(0);
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines.len(), 50_001);
    assert_eq!((lines[49_999], lines[50_000]), ("line 49999", "script"));
}

/// A worker whose standby was refused at the start of the round prints only what the script prints.
#[test]
fn abandoned_imports_print_nothing() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let setter = format!("{PRINTS}os.environ['WORLD_SIZE'] = '7'\n");
    write(&sandbox, "modules/prints.py", &setter);
    write(&sandbox, "train.py", "print('script')\nimport prints");
    let end = job.finish(job.ready_node("--standby=prints train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "script\nprinted to stdout\nwritten to 1\n");
    assert_eq!(end.stderr.matches("printed to stderr").count(), 1, "{}", end.stderr);
}

/// A standby that never becomes a worker prints nothing.
#[test]
fn unused_standbys_print_nothing() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/prints.py", PRINTS);
    write(&sandbox, "train.py", "");
    let node = job.ready_node("--standby=prints train.py");
    let first = ready_standby(node.pid());
    kill(first, Signal::SIGKILL);
    wait_for_standbys(node.pid(), |standbys| standbys.len() == 1 && standbys != [first]);
    node.signal(Signal::SIGTERM);
    let end = node.end();
    end.assert_code(8);
    assert!(!end.stdout.contains("printed") && !end.stderr.contains("written"), "{}", end.stdout);
    sandbox.assert_nothing_left();
}
