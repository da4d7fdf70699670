//! Tests scripts that change a variable which modules of the standby have read. They run as in a new process.

use std::process::Command;

use crate::{
    job::{Job, field, used_standbys, write},
    support::{End, Sandbox, skip},
};

/// The value of the variable when a module is imported.
const READER: &str = "import os\nSEEN = os.environ.get('MODE')\n";

/// A module that imports the reader, and copies the environment.
const OUTER: &str = "\
import os, reader
COPIES = [os.environ.copy(), dict(os.environ), {**os.environ}, dict(os.environ.items())]
";

/// Returns true if each worker of the first node was started from a standby, and then once more as a new process.
fn started_again(end: &End, workers: usize) -> bool {
    let lines = end.stderr.lines().filter(|line| line.contains("worker started"));
    let kinds: Vec<String> = lines.map(|line| field(line, "is_standby")).collect();
    kinds == [vec!["true"; workers], vec!["false"; workers]].concat()
}

fn warnings(end: &End) -> Vec<&str> {
    end.stderr.lines().filter(|line| line.contains("the workers start again")).collect()
}

/// The workers start again without a charge, and the script sees what it would see in a new process. One warning names the module, the
/// variable and the line of the script.
#[test]
fn variable_set_before_the_import() {
    let changes = [
        ("os.environ['MODE'] = 'new'", "sets", "new"),
        ("os.environ.update(MODE='new')", "sets", "new"),
        ("os.environb[b'MODE'] = b'new'", "sets", "new"),
        ("os.putenv('MODE', 'new')", "sets", "old"),
        ("del os.environ['MODE']", "removes", "None"),
        ("os.environ.pop('MODE')", "removes", "None"),
    ];
    for (change, verb, seen) in changes {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/reader.py", READER);
        let script = format!(
            "import os, sys\n{change}\nimport reader\nsys.stdout.write('seen %s\\n' % reader.SEEN)\n"
        );
        write(&sandbox, "train.py", &script);
        let words = "--nproc-per-node 2 --standby=json,reader train.py";
        let mut node = job.node(words).env("MODE", "old").start();
        node.logs(crate::job::READY);
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(end.stdout, format!("seen {seen}\n").repeat(2), "{change}");
        assert!(started_again(&end, 2), "{change}: {}", end.stderr);
        let warnings = warnings(&end);
        assert_eq!(warnings.len(), 1, "{change}: {}", end.stderr);
        let place = format!("train.py {verb} MODE");
        let import = "before it imports reader, which had read it already";
        for part in ["`reader`", "line 2 of ", &place, import] {
            assert!(warnings[0].contains(part), "{change}: {}", warnings[0]);
        }
        assert!(!warnings[0].contains("json"), "{}", warnings[0]);
    }
}

/// A function of another module that the script calls counts as the script's line. So does a module that imports the reader.
#[test]
fn variable_set_by_a_function() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/reader.py", READER);
    write(&sandbox, "modules/outer.py", "import reader\n");
    write(
        &sandbox,
        "modules/loader.py",
        "import os\ndef load():\n    os.environ['MODE'] = 'new'\n",
    );
    let script = "import loader\n\nloader.load()\nimport outer\nprint(outer.reader.SEEN)\n";
    write(&sandbox, "train.py", script);
    let end = job.finish(job.ready_node("--standby=reader,outer train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "new\n");
    assert!(started_again(&end, 1), "{}", end.stderr);
    let warnings = warnings(&end);
    assert_eq!(warnings.len(), 1, "{}", end.stderr);
    assert!(warnings[0].contains("`outer`, `reader`"), "{}", warnings[0]);
    assert!(warnings[0].contains("line 3 of "), "{}", warnings[0]);
}

/// A worker that handles SIGTERM does not delay the restart until the end of its grace period.
#[test]
fn script_that_handles_sigterm() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/reader.py", READER);
    let script = "\
import os, signal
signal.signal(signal.SIGTERM, lambda *_: None)
os.environ['MODE'] = 'new'
import reader
print(reader.SEEN)
";
    write(&sandbox, "train.py", script);
    // Longer than the deadline of the test.
    let job = job.with("--shutdown-timeout 3600");
    let end = job.finish(job.ready_node("--standby=reader train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "new\n");
    assert!(started_again(&end, 1), "{}", end.stderr);
}

/// A change that a new process would not notice either interrupts nothing.
#[test]
fn change_without_effect() {
    let scripts = [
        "import reader\nos.environ['MODE'] = 'new'",
        "from reader import SEEN\nos.environ['MODE'] = 'new'",
        "import outer\nos.environ['MODE'] = 'new'",
        "import importer\nos.environ['MODE'] = 'new'",
        "os.environ['MODE'] = 'old'",
        "os.environ['OTHER'] = 'new'",
        "os.environ['LISTED'] = 'new'",
        "os.environ.pop('OTHER', None)",
        "if os.fork() == 0:\n    os.environ['MODE'] = 'new'\n    os._exit(0)\nos.wait()",
    ];
    for script in scripts {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/reader.py", READER);
        write(&sandbox, "modules/outer.py", OUTER);
        // Not imported by the standby.
        write(&sandbox, "modules/importer.py", "import reader\n");
        let end = "\nimport outer\nprint('seen', outer.reader.SEEN)\n";
        write(&sandbox, "train.py", &format!("import os\n{script}{end}"));
        let words = "--standby=reader,outer train.py";
        let mut node = job.node(words).env("MODE", "old").env("LISTED", "old").start();
        node.logs(crate::job::READY);
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(end.stdout, "seen old\n", "{script}");
        assert!(used_standbys(&end), "{script}: {}", end.stderr);
        assert_eq!(warnings(&end).len(), 0, "{script}: {}", end.stderr);
    }
}

/// The same holds for variables that a library of threads reads when it is loaded.
#[test]
fn variable_of_a_library() {
    let library = "import ctypes; ctypes.CDLL('libgomp.so.1')";
    let loads = Command::new("python3").args(["-c", library]).output();
    if !loads.is_ok_and(|end| end.status.success()) {
        return skip("python3 does not load libgomp.so.1");
    }
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(
        &sandbox,
        "modules/threads.py",
        "import ctypes\nCOUNT = ctypes.CDLL('libgomp.so.1').omp_get_max_threads()\n",
    );
    let script =
        "import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport threads\nprint(threads.COUNT)\n";
    write(&sandbox, "train.py", script);
    let mut node = job.node("--standby=threads train.py").env("OMP_NUM_THREADS", "1").start();
    node.logs(crate::job::READY);
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, "3\n");
    assert!(started_again(&end, 1), "{}", end.stderr);
}
