//! Tests modules that must not be imported before the round. The worker runs as without standbys, and the module is named once.

use std::{
    fs::{File, FileTimes},
    os::unix::fs::symlink,
};

use crate::{
    job::{Job, READY, ready_standby, used_standbys, write},
    support::{End, Sandbox, is_there, skip},
};

/// Returns the number of warnings that a module is not imported from now on.
fn named(end: &End, module: &str, reason: &str) -> usize {
    let warning = format!("standbys do not import `{module}` from now on: ");
    let lines = end.stderr.lines().filter(|line| line.contains(&warning));
    lines.inspect(|line| assert!(line.contains(reason), "{line}")).count()
}

/// A module that reads the rank while it is imported is not imported early. All workers have their own rank.
#[test]
fn module_that_reads_the_rank() {
    let readers = [
        "os.environ.get('RANK')",
        "os.getenv('RANK')",
        "os.environ.pop('RANK', None)",
        "os.environ.setdefault('RANK', '7')",
        "'RANK' in os.environ and os.environ['RANK']",
        "int(os.environb.get(b'RANK', 7))",
    ];
    for reader in readers {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/reader.py", &format!("import os\nSEEN = {reader}\n"));
        let script = "\
import os, sys
assert 'json' in sys.modules and 'reader' not in sys.modules
rank = os.environ['RANK']
import reader
sys.stdout.write('rank %s seen %s\\n' % (rank, reader.SEEN))
";
        write(&sandbox, "train.py", script);
        let end = job.finish(job.ready_node("--nproc-per-node 2 --standby=reader,json train.py"));
        end.assert_code(0);
        assert_eq!(named(&end, "reader", "it reads RANK while it is imported"), 1, "{reader}");
        for rank in 0..2 {
            let line = format!("rank {rank} seen {rank}\n");
            assert!(end.stdout.contains(&line), "{reader}: {}", end.stdout);
        }
        assert!(used_standbys(&end));
    }
}

/// If a module sets a variable of the round while it is imported, a new process becomes the worker.
#[test]
fn module_that_sets_a_variable_of_the_round() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let module = "\
import os
os.environ['WORLD_SIZE'] = '1'
os.environ['OF_MODULE'] = '1'
print('set')
";
    write(&sandbox, "modules/setter.py", module);
    write(&sandbox, "train.py", include_str!("portrait.py"));
    let words = "train.py";
    let node = job.ready_node(&format!("--standby=setter,json {words}"));
    let standby = ready_standby(node.pid());
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(
        named(&end, "setter", "it sets WORLD_SIZE while it is imported"),
        1,
        "{}",
        end.stderr
    );
    assert!(end.stderr.contains(&format!("pid={} is_standby=true", standby)), "{}", end.stderr);
    assert_eq!(end.stderr.matches("is_standby=false").count(), 1, "{}", end.stderr);
    assert!(!end.stdout.contains("set\n"), "{}", end.stdout);

    let job = Job::new(&sandbox).unwrap();
    let cold = job.finish(job.node(&format!("--standby=none {words}")).start());
    assert_eq!(end.stdout, cold.stdout);
    assert!(cold.stdout.contains("'WORLD_SIZE': '2'"), "{}", cold.stdout);
}

/// A module that changes the working directory while it is imported is left out. The worker starts in the folder of the agent.
#[test]
fn module_that_changes_the_folder() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/mover.py", "import os\nos.chdir('/')");
    write(&sandbox, "train.py", "import os\nprint('in', os.getcwd())");
    let end = job.finish(job.ready_node("--standby=mover,json train.py"));
    end.assert_code(0);
    let reason = "it changes the working directory while it is imported";
    assert_eq!(named(&end, "mover", reason), 1, "{}", end.stderr);
    assert!(!end.stdout.contains("in /\n"), "{}", end.stdout);
    assert!(used_standbys(&end));
}

/// A module whose error has several fields and lines is left out like any other.
#[test]
fn module_with_an_odd_error() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/odd.py", "raise RuntimeError('code\\t3\\nline\\t2')");
    write(&sandbox, "train.py", "print('runs')");
    let end = job.finish(job.ready_node("--standby=odd,json train.py"));
    end.assert_code(0);
    let reason = "its import fails: RuntimeError: code 3 line 2";
    assert_eq!(named(&end, "odd", reason), 1, "{}", end.stderr);
    assert!(used_standbys(&end));
}

/// A module removes a variable of the worker while it is imported. The round would set it again, so a new process becomes the worker.
#[test]
fn module_that_removes_a_variable() {
    for removal in ["del os.environ['LOCAL_WORLD_SIZE']", "os.environ.pop('LOCAL_WORLD_SIZE')"] {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/remover.py", &format!("import os\n{removal}\n"));
        let script = "\
import os
before = os.environ.get('LOCAL_WORLD_SIZE')
import remover
print(before, os.environ.get('LOCAL_WORLD_SIZE'))
";
        write(&sandbox, "train.py", script);
        let end = job.finish(job.ready_node("--standby=remover,json train.py"));
        end.assert_code(0);
        assert_eq!(end.stdout, "1 None\n", "{removal}");
        let reason = "removes LOCAL_WORLD_SIZE while it is imported";
        assert_eq!(named(&end, "remover", reason), 1, "{}", end.stderr);
    }
}

/// A module that reads stdin while it is imported finds it empty. It does not take the message to the standby.
#[test]
fn module_that_reads_stdin() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/reader.py", "import os, sys\nSEEN = os.read(0, 9), sys.stdin.read()");
    write(&sandbox, "train.py", "import reader\nprint(reader.SEEN)");
    let end = job.finish(job.ready_node("--standby=reader train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "(b'', '')\n");
    assert!(used_standbys(&end));
}

/// Workers without a seed have different random numbers and hashes.
#[test]
fn random_numbers_differ() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let script = "\
import random, sys
sys.stdout.write('number %s\\n' % random.random())
sys.stdout.write('hash %s\\n' % hash('a'))
";
    write(&sandbox, "train.py", script);
    let end = job.finish(job.ready_node("--nproc-per-node 2 --standby=random train.py"));
    end.assert_code(0);
    assert!(used_standbys(&end));
    for kind in ["number", "hash"] {
        let mut lines: Vec<&str> =
            end.stdout.lines().filter(|line| line.starts_with(kind)).collect();
        assert_eq!(lines.len(), 2);
        lines.dedup();
        assert_eq!(lines.len(), 2, "{lines:?}");
    }
}

/// A module that opens a GPU while it is imported is not imported early, and no standby that has imported it waits.
#[test]
fn module_that_opens_a_device() {
    if !nix::unistd::geteuid().is_root() {
        return skip("mount namespaces want root");
    }
    if !is_there("unshare") || !is_there("mount") {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let modules = "modules/opener.py";
    write(&sandbox, modules, "HELD = open('/dev/nvidia0')\n");
    write(
        &sandbox,
        "train.py",
        "import sys\nprint('opener' in sys.modules, 'json' in sys.modules)",
    );
    // A /dev of its own, with everything that Python needs.
    let script = format!(
        "mount --make-rprivate / && mkdir dev && mount -t tmpfs none dev && \
         for name in null urandom zero; do touch dev/$name && mount --bind /dev/$name dev/$name; done && \
         touch dev/nvidia0 && mount --rbind dev /dev && \
         exec {} {} --node-rank 0 --standby=json,opener train.py",
        env!("CARGO_BIN_EXE_ragent"),
        job.flags
    );
    let start = sandbox.program("unshare").arg("--mount").arg("bash").arg("-c").arg(script);
    let mut node = job.prepared(start).start();
    node.logs(READY);
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(
        named(&end, "opener", "opens /dev/nvidia0 while it is imported"),
        1,
        "{}",
        end.stderr
    );
    assert_eq!(end.stdout, "False True\n");
    assert!(used_standbys(&end));
}

/// A module in the script's folder hides a module that standbys import. The worker imports the script's module.
#[test]
fn module_beside_the_script() {
    let cases = [("", "__main__.py"), ("folder/", "folder"), ("folder/", "link.py")];
    for (place, words) in cases {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        symlink("folder/__main__.py", sandbox.path("link.py")).unwrap();
        write(&sandbox, &format!("{place}decimal.py"), "OWN = True\n");
        let script = "import sys\nassert 'json' in sys.modules\nimport decimal\nprint(decimal.OWN)";
        write(&sandbox, &format!("{place}__main__.py"), script);
        let end = job.finish(job.ready_node(&format!("--standby=decimal,json {words}")));
        end.assert_code(0);
        assert_eq!(end.stdout, "True\n");
        assert!(end.stderr.contains("standbys do not import `decimal`: "), "{}", end.stderr);
        assert!(used_standbys(&end));
    }
}

/// The same holds for a module that another one imports.
#[test]
fn imported_module_beside_the_script() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/outer.py", "import helper\n");
    write(&sandbox, "modules/helper.py", "OWN = False\n");
    write(&sandbox, "helper.py", "OWN = True\n");
    // It is left out before the round, and the standby becomes the worker.
    let script = "import sys\nassert 'json' in sys.modules\nimport outer\nprint(outer.helper.OWN)";
    write(&sandbox, "train.py", script);
    let end = job.finish(job.ready_node("--standby=outer,json train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "True\n");
    assert_eq!(named(&end, "outer", "imports helper, and"), 1, "{}", end.stderr);
    assert!(used_standbys(&end));
}

/// The same holds for a module that is written while the standby waits.
#[test]
fn module_written_beside_the_script_later() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/helper.py", "OWN = False\n");
    write(&sandbox, "train.py", "import helper\nprint(helper.OWN)");
    // The file system may measure times in seconds, so the folder seems unchanged.
    let folder = File::open(sandbox.path("")).unwrap();
    let node = job.ready_node("--standby=helper,json train.py");
    let times = FileTimes::new().set_modified(folder.metadata().unwrap().modified().unwrap());
    write(&sandbox, "helper.py", "OWN = True\n");
    folder.set_times(times).unwrap();
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, "True\n");
    assert_eq!(named(&end, "helper", "imports helper, and"), 1, "{}", end.stderr);
}

/// A module that is replaced while the standby waits is imported again by the worker.
#[test]
fn replaced_module() {
    let old = ["versions.py", "package/__init__.py", "package/inner.py"];
    for file in old {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/package/__init__.py", "VERSION = 'old'\n");
        write(&sandbox, "modules/package/inner.py", "VERSION = 'old'\n");
        write(&sandbox, "modules/versions.py", "VERSION = 'old'\n");
        let module = file.trim_end_matches(".py").replace('/', ".").replace(".__init__", "");
        write(&sandbox, "train.py", &format!("import {module} as it\nprint(it.VERSION)"));
        let node = job.ready_node(&format!("--standby={module} train.py"));
        write(&sandbox, &format!("modules/{file}"), "VERSION = 'newer'\n");
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(end.stdout, "newer\n");
        assert_eq!(named(&end, &module, "has changed"), 1, "{}", end.stderr);
    }
}

/// The script itself is read when the round starts.
#[test]
fn replaced_script() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", "print('old')");
    let node = job.ready_node("--standby=json train.py");
    write(&sandbox, "train.py", "print('newer')");
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, "newer\n");
    assert!(used_standbys(&end));
}

/// A module that fails or ends its process is not imported early, and costs the workers nothing.
#[test]
fn module_that_fails() {
    for failure in ["raise RuntimeError('not here')", "import sys; sys.exit(3)", "import absent"] {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/failing.py", failure);
        write(&sandbox, "train.py", "import sys\nprint('json' in sys.modules)");
        let end = job.finish(job.ready_node("--standby=failing,json train.py"));
        end.assert_code(0);
        assert_eq!(end.stdout, "True\n");
        assert_eq!(named(&end, "failing", "its import fails: "), 1, "{}", end.stderr);
        assert!(used_standbys(&end));
    }
}

/// A module that is not installed is named once.
#[test]
fn missing_module() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", "");
    let node = job.ready_node("--nproc-per-node 2 --standby=absent,json,json.absent train.py");
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stderr.matches("import `absent`: not installed").count(), 1, "{}", end.stderr);
    assert!(end.stderr.contains("import `json.absent`: not installed"), "{}", end.stderr);
    assert!(used_standbys(&end));
}
