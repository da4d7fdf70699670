//! Tests the environment of a worker.

use std::{collections::BTreeMap, fs};

use crate::support::{self, End, Sandbox};

/// The environment of each worker that ran `environment.sh`.
fn environments(end: &End) -> BTreeMap<u32, BTreeMap<String, String>> {
    let mut environments: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    for line in end.stdout.lines() {
        let Some(rest) = line.strip_prefix("env rank=") else { continue };
        let Some((rank, pair)) = rest.split_once(' ') else { continue };
        let Some((name, value)) = pair.split_once('=') else { continue };
        let environment = environments.entry(rank.parse().unwrap()).or_default();
        environment.insert(name.to_owned(), value.to_owned());
    }
    environments
}

/// A worker gets the agent's environment, the variables of torchrun and a socket, and nothing else.
#[test]
fn worker_gets_torchruns_variables_and_nothing_else() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 2 --rdzv-id job7 --rdzv-endpoint 127.0.0.1:0 --max-restarts 3 --log-dir logs --no-python \
                 environment.sh";
    let end = sandbox.ragent(words).env("MINE", "kept").run();
    end.assert_code(0);
    for (rank, mut environment) in environments(&end) {
        // The variables of the sandbox and of the shell.
        for name in [
            "PATH",
            "XDG_RUNTIME_DIR",
            "TMPDIR",
            "SCRATCH",
            "RAGENT_LOG",
            "PET_STANDBY",
            "PWD",
            "SHLVL",
            "_",
        ] {
            environment.remove(name);
        }
        environment.retain(|name, _| !name.starts_with("RAGENT_TEST"));
        // The variables that are ragent's own.
        let memory = environment.remove("RAGENT_MEMORY_SOCKET").unwrap();
        assert!(memory.ends_with(&format!("/{rank}.memory")), "{memory}");
        let notices = environment.remove("RAGENT_NOTICE_FILE").unwrap();
        assert!(notices.ends_with("/notice.json"), "{notices}");
        assert_eq!(environment.remove("RAGENT_ROUNDS_WITHOUT_PROGRESS").as_deref(), Some("0"));
        assert_eq!(environment.remove("RAGENT_SAVED_STEP").as_deref(), Some(""));
        let socket = environment.remove("RAGENT_SOCKET").unwrap();
        assert!(socket.ends_with(&format!("/{rank}")), "{socket}");
        let server = environment.remove("TORCH_WORKER_SERVER_SOCKET").unwrap();
        assert!(server.ends_with(&format!("/{rank}.torch")), "{server}");
        let records = environment.remove("TORCH_FR_DUMP_TEMP_FILE").unwrap();
        assert!(records.ends_with("/attempt_0/nccl_trace_rank_"), "{records}");
        assert_eq!(environment.remove("MINE").unwrap(), "kept");
        let port: u16 = environment.remove("MASTER_PORT").unwrap().parse().unwrap();
        assert_ne!(port, 0);
        let error_file = environment.remove("TORCHELASTIC_ERROR_FILE").unwrap();
        assert!(error_file.ends_with(&format!("/attempt_0/{rank}/error.json")), "{error_file}");
        let rank = rank.to_string();
        let expected = [
            ("GROUP_RANK", "0"),
            ("GROUP_WORLD_SIZE", "1"),
            ("LOCAL_RANK", &rank),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("OMP_NUM_THREADS", "1"),
            ("RANK", &rank),
            ("ROLE_NAME", "default"),
            ("ROLE_RANK", &rank),
            ("ROLE_WORLD_SIZE", "2"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_RUN_ID", "job7"),
            ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "2"),
        ];
        let expected: BTreeMap<String, String> =
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(environment, expected);
    }
    assert_eq!(environments(&end).len(), 2);
}

/// The variables of a service manager are for the agent only.
#[test]
fn service_managers_variables_are_not_inherited() {
    let sandbox = Sandbox::new();
    let start = sandbox.ragent("--no-python environment.sh");
    let start = start.env("NOTIFY_SOCKET", "/run/x").env("WATCHDOG_USEC", "1");
    let start = start.env("RAGENT_SOCKET", "/run/x").env("RAGENT_PYTHON", "/usr/bin/python3");
    let start = start.env("RAGENT_NOTICE_FILE", "/run/x").env("RAGENT_SAVED_STEP", "7");
    // The parent of an agent is this process.
    let parent = std::process::id().to_string();
    let start = start.env("RAGENT_ETCD_USER", "me").env("RAGENT_ETCD_PASSWORD_FILE", "/password");
    let end = start.env("RAGENT_EXIT_WITH_PARENT", parent).run();
    let environment = &environments(&end)[&0];
    let of_etcd = ["RAGENT_ETCD_USER", "RAGENT_ETCD_PASSWORD_FILE"];
    for name in ["RAGENT_PYTHON", "RAGENT_EXIT_WITH_PARENT"].into_iter().chain(of_etcd) {
        assert!(!environment.contains_key(name), "{environment:?}");
    }
    assert!(!environment.contains_key("NOTIFY_SOCKET"), "{environment:?}");
    assert!(!environment.contains_key("WATCHDOG_USEC"), "{environment:?}");
    for name in ["RAGENT_SOCKET", "RAGENT_NOTICE_FILE"] {
        assert_ne!(environment[name], "/run/x", "{name} is that of the worker's own agent");
    }
    assert_eq!(environment["RAGENT_SAVED_STEP"], "");
}

/// Descriptors that the agent inherited are not open in its workers. Workers have the limit of open files that the agent was started with,
/// not its raised one.
#[test]
fn workers_get_no_foreign_descriptors_and_the_old_limit() {
    let sandbox = Sandbox::new();
    let script = format!(
        "ulimit -Sn 500; exec 7</dev/null 50</dev/null; exec {} --no-python bash -c \"$1\"",
        env!("CARGO_BIN_EXE_ragent")
    );
    let worker = "ls /proc/$BASHPID/fd; ulimit -Sn";
    let shell = sandbox.program("/bin/bash").arg("-c").arg(script);
    let end = shell.arg("bash").arg(worker).run();
    end.assert_code(0);
    assert_eq!(end.stdout, "0\n1\n2\n500\n");
}

/// The agent and its keeper run with a higher priority if they may. Workers and standbys have the agent's former priority. A warning
/// reports a low priority at the start that cannot be raised.
#[test]
fn priority_is_raised_for_the_agent_alone() {
    if !nix::unistd::geteuid().is_root() {
        return support::skip("only root may raise a priority");
    }
    let nice = "
import os
def nice(pid): return os.getpriority(os.PRIO_PROCESS, pid)
keeper = os.getppid()
agent = int(open(f'/proc/{keeper}/stat').read().rsplit(')', 1)[1].split()[1])
print(nice(0), nice(keeper), nice(agent))
";
    let run = |command: &str| {
        let sandbox = Sandbox::new();
        fs::write(sandbox.path("t.py"), nice).unwrap();
        let agent = env!("CARGO_BIN_EXE_ragent");
        let script = format!("{command} {agent} --standalone t.py");
        sandbox
            .program("/bin/sh")
            .arg("-c")
            .arg(script)
            .env("PYTHON_EXEC", "/usr/bin/python3")
            .run()
    };
    // Relative to the priority of the test itself.
    let nice = "nice -n $((15 - $(nice)))";
    let end = run(&format!("exec {nice}"));
    end.assert_code(0);
    assert_eq!(end.stdout, "15 -10 -10\n");
    assert!(!end.stderr.contains("nice value"), "{}", end.stderr);
    let end = run(&format!("exec setpriv --bounding-set=-sys_nice {nice}"));
    end.assert_code(0);
    assert_eq!(end.stdout, "15 15 15\n");
    end.assert_stderr(&["this agent runs with the nice value 15: on a busy machine"]);
}

/// A script that refuses a flag of ragent gets a hint where the flag belongs. A module that does not exist gets one, too.
#[test]
fn misplaced_words_have_a_hint() {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent("--no-python bash -c").arg("exit 2").arg("--nproc_per_node=2").run();
    end.assert_code(1);
    end.assert_stderr(&["hint: `--nproc_per_node=2` is after the script", "before the script"]);
    let end = sandbox.ragent("--no-python bash -c").arg("exit 3").arg("--nproc_per_node=2").run();
    assert!(!end.stderr.contains("after the script"), "{}", end.stderr);
    let start = sandbox.ragent("-m no_such_module_7").env("PYTHON_EXEC", "/usr/bin/python3");
    let end = start.run();
    end.assert_code(1);
    end.assert_stderr(&["hint: check the name `no_such_module_7` after `-m`", "PYTHONPATH"]);
}

/// The report of a script that lacks a module names the interpreter, and how to choose another one.
#[test]
fn missing_module_has_a_hint() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("t.py"), "import no_such_module_7").unwrap();
    let start = sandbox.ragent("--report r.json t.py");
    let end = start.env("PYTHON_EXEC", "/usr/bin/python3").run();
    end.assert_code(1);
    let report = fs::read_to_string(sandbox.path("r.json")).unwrap();
    assert!(report.contains(r#""interpreter": "/usr/bin/python3""#), "{report}");
    end.assert_stderr(&[
        "ModuleNotFoundError: No module named 'no_such_module_7'",
        "hint: install 'no_such_module_7' for the interpreter of the workers, which is /usr/bin/python3 on this node",
        "if the module is your own, add its folder to PYTHONPATH",
    ]);
}
