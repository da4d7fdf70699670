//! Runs the tables of `docs/exit-codes.md`. Every row can be provoked, and prints its reason.

use std::{
    fs::{self, Permissions},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use nix::{sys::signal::Signal, unistd::geteuid};

use crate::support::{
    self, Authority, End, Issue, Sandbox, ScreenTerminal, Start, free_port, skip, tls_flags,
    write_certificates,
};

/// The runs that provoke a row, one or several.
type Provocation = fn(&Sandbox) -> Vec<End>;

/// The number of rows that are provoked at the same time. Most of them wait for timeouts.
const ROWS_AT_ONCE: usize = 6;

const PROVOCATIONS: [(&str, Provocation); 64] = [
    ("the job has succeeded, with or without this node", |sandbox| {
        vec![sandbox.ragent("--no-python true").run()]
    }),
    ("the job had succeeded before a service manager started this agent", |sandbox| {
        let service = sandbox.path("service");
        // A second worker would fail.
        let words = format!("--no-python mkdir {}", sandbox.path("once").display());
        let agent = || sandbox.ragent(&words).env("RUNTIME_DIRECTORY", &service).run();
        agent().assert_code(0);
        vec![agent(), agent()]
    }),
    (
        "`ragent status`, `ragent events`, `ragent explain`, `ragent logs` or `ragent stacks` has printed what was asked",
        |sandbox| {
            let mut agent = sandbox.ragent("--no-python stay.sh").start();
            agent.worker();
            ["status", "status --json", "events", "explain", "logs", "stacks"]
                .map(|words| sandbox.ragent(words).run())
                .into()
        },
    ),
    ("`ragent check` has found that all nodes are good", |sandbox| check(sandbox, "good")),
    ("`ragent check` has found a bad or slow node, or has failed to check a node", |sandbox| {
        check(sandbox, "not all nodes are good")
    }),
    ("`ragent check` is for fewer than two nodes, or Python has no torch", |sandbox| {
        let python = fake_python(sandbox, "False", "");
        ["check", "check --nnodes 1:4", "check --nnodes 2"]
            .map(|words| sandbox.ragent(words).env("PYTHON_EXEC", &python).run())
            .into()
    }),
    ("`ragent top` was quit with `q` or Ctrl-C", |sandbox| {
        let mut agent = sandbox.ragent("--no-python stay.sh").start();
        agent.worker();
        let quit = |key| {
            let mut terminal = ScreenTerminal::new(80, 24);
            let top = sandbox.ragent("top").stdin(terminal.stdio()).stdout(terminal.stdio());
            let top = top.start();
            terminal.shows("q quit");
            terminal.types(key);
            top.end()
        };
        vec![quit("q"), quit("\x03")]
    }),
    ("`ragent launch --dry-run` has printed its plan", |sandbox| {
        vec![launch(sandbox, "a\nb\n", "--dry-run --no-python true")]
    }),
    ("`ragent coordinator` or `ragent page` ended on a signal", |sandbox| {
        let signalled = |command: &str| {
            let mut server = sandbox.ragent(command).start();
            server.prints("127.0.0.1:");
            server.signal(Signal::SIGTERM);
            server.end()
        };
        let endpoint = format!("127.0.0.1:{}", free_port());
        let words = format!("--rdzv-endpoint {endpoint} --nnodes 1 --no-python stay.sh");
        let mut agent = sandbox.ragent(&words).start();
        agent.worker();
        let page = format!("page --port 0 --rdzv-endpoint {endpoint}");
        [voter(&voters()).as_str(), &page].map(signalled).into()
    }),
    ("the job of a `ragent coordinator` has ended", |sandbox| {
        let voters = voters();
        let mut coordinator = sandbox.ragent(&voter(&voters)).start();
        coordinator.prints("127.0.0.1:");
        let words = format!("--nnodes 1 --rdzv-endpoint {voters} --no-python fail.sh 1");
        sandbox.ragent(&words).run().assert_code(1);
        vec![coordinator.end()]
    }),
    ("`ragent notice` was accepted, or all ranks have saved with `--wait`", |sandbox| {
        let orders = sandbox.orders(0);
        let mut agent = sandbox.ragent("--notice 300 --no-python steps.py").start();
        agent.worker();
        let accepted = sandbox.ragent("notice save").run();
        orders.give("notice(2); saved(7, 2)");
        vec![accepted, sandbox.ragent("notice end --wait").run()]
    }),
    ("`ragent notice` found no agent, or not all ranks have saved", |sandbox| {
        let none = sandbox.ragent("notice end").run();
        let mut agent = sandbox.ragent("--notice 0.5 --no-python stay.sh").start();
        agent.worker();
        vec![none, sandbox.ragent("notice end --wait").run()]
    }),
    ("all ranks had saved when the job ended after a notice", |sandbox| {
        let orders = sandbox.orders(0);
        let mut agent = sandbox.ragent("--notice 300 --no-python steps.py").start();
        agent.worker();
        orders.give("notice(1); saved(7, 1)");
        agent.signal(Signal::SIGTERM);
        vec![agent.end()]
    }),
    ("too few nodes were back after a notice, and all ranks had saved", |sandbox| {
        let orders = [0, 1].map(|rank| sandbox.orders(rank));
        let words = format!(
            "--nnodes 2 --notice 300 --rdzv-endpoint 127.0.0.1:{} --rdzv-conf \
             join_timeout=1,voters=1 --no-python steps.py",
            free_port()
        );
        let mut host = sandbox.ragent(&words).start();
        host.endpoint();
        let guest = sandbox.ragent(&words).start();
        host.worker();
        orders.iter().for_each(|orders| orders.give("notice(1); saved(7, 1)"));
        guest.signal(Signal::SIGTERM);
        vec![host.end()]
    }),
    (
        "a signal ended the agent between two rounds, and all ranks had saved at the end of the last one",
        |sandbox| {
            let orders = [0, 1].map(|rank| sandbox.orders(rank));
            let words = format!(
                "--nnodes 2 --notice 300 --rdzv-endpoint 127.0.0.1:{} --rdzv-conf voters=1 --no-python steps.py",
                free_port()
            );
            let mut host = sandbox.ragent(&words).start();
            host.endpoint();
            let guest = sandbox.ragent(&words).start();
            host.worker();
            orders.iter().for_each(|orders| orders.give("notice(1); saved(7, 1)"));
            guest.signal(Signal::SIGTERM);
            host.logs("all ranks have saved step 7");
            guest.end().assert_code(8);
            host.signal(Signal::SIGTERM);
            vec![host.end()]
        },
    ),
    ("the job failed again and again before a new step", |sandbox| {
        let script = "import os, socket, time\n\
                      s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
                      s.sendto(b'X_RAGENT_STEP=1', os.environ['RAGENT_SOCKET'])\n\
                      time.sleep(1)\n\
                      exit(3)\n";
        fs::write(sandbox.path("fails.py"), script).unwrap();
        vec![sandbox.ragent("--max-restarts 9 --no-python python3 fails.py").run()]
    }),
    ("`ragent manifest k8s` has printed a manifest", |sandbox| {
        vec![sandbox.ragent("manifest k8s --name a --image b train.py").run()]
    }),
    ("`ragent secret` has printed a secret, or written it to a file", |sandbox| {
        ["secret", "secret --init --secret-file s", "secret --rotate --secret-file s"]
            .map(|words| sandbox.ragent(words).run())
            .into()
    }),
    ("`ragent install-torchrun` has created a link or removed it", |sandbox| {
        ["install-torchrun .", "install-torchrun --undo ."]
            .map(|words| sandbox.ragent(words).run())
            .into()
    }),
    ("help or the version was printed", |sandbox| {
        ["--help", "-h", "--version", "status --help"]
            .map(|words| sandbox.ragent(words).run())
            .into()
    }),
    ("`ragent doctor` has found no errors", |sandbox| {
        vec![sandbox.ragent("doctor").run(), sandbox.ragent("doctor --json").run()]
    }),
    ("a worker has failed and no restart is left", |sandbox| {
        vec![
            sandbox.ragent("--no-python fail.sh 3").run(),
            sandbox.ragent("--max-restarts 1 --no-python bash -c").arg("kill -9 $BASHPID").run(),
        ]
    }),
    ("a worker exited with one of `--no-restart-exit-codes`", |sandbox| {
        let words = "--max-restarts 9 --no-restart-exit-codes 3 --no-python fail.sh 3";
        vec![sandbox.ragent(words).run()]
    }),
    ("the agent left because of a signal", |sandbox| {
        let signalled = |signal| {
            let mut agent = sandbox.ragent("--no-python stay.sh").start();
            agent.worker();
            agent.signal(signal);
            agent.end()
        };
        vec![signalled(Signal::SIGTERM), signalled(Signal::SIGINT)]
    }),
    ("no coordinator served the endpoint within `join_timeout`", |sandbox| {
        let words = format!(
            "--nnodes 2 --rdzv-endpoint 127.0.0.1:{} --rdzv-conf is_host=0,join_timeout=1 \
             --no-python stay.sh",
            free_port()
        );
        vec![sandbox.ragent(&words).run()]
    }),
    ("etcd refuses this agent, or a file for the connection to etcd is wrong", |sandbox| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        fs::write(sandbox.path("wrong"), "no certificate").unwrap();
        let words = format!(
            "--nnodes 2 --rdzv-backend etcd --rdzv-id j --rdzv-endpoint {} \
             --rdzv-conf protocol=https,cacert=wrong,cert=wrong,key=wrong --no-python stay.sh",
            listener.local_addr().unwrap()
        );
        vec![sandbox.ragent(&words).run()]
    }),
    ("another program serves the endpoint, or holds its port", |sandbox| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = listener.local_addr().unwrap();
        vec![sandbox.ragent(&format!("--rdzv-endpoint {endpoint} --no-python stay.sh")).run()]
    }),
    ("the process at the endpoint has another secret, or only one of the two has one", |sandbox| {
        for name in ["a", "b"] {
            let words = format!("secret --init --secret-file {name}");
            sandbox.ragent(&words).run().assert_code(0);
        }
        let endpoint = format!("127.0.0.1:{}", free_port());
        let words = |auth: &str| {
            format!("--nnodes 2 {auth} --rdzv-endpoint {endpoint} --no-python stay.sh")
        };
        let mut host = sandbox.ragent(&words("--secret-file a")).start();
        host.endpoint();
        let status = format!("status --auth none --rdzv-endpoint {endpoint}");
        ["--secret-file b", "--auth none", ""]
            .map(words)
            .into_iter()
            .chain([status])
            .map(|words| sandbox.ragent(&words).run())
            .collect()
    }),
    (
        "the process at the endpoint and this one do not accept each other's certificates, or only one \
         of the two has one",
        |sandbox| {
            let (authority, foreign) = (Authority::new("ca"), Authority::new("foreign"));
            let flags = |name: &str, by: &Authority| {
                let issued = by.issue(&Issue::with_names(&["job"]));
                tls_flags(&write_certificates(&sandbox.path(name), &[by], &issued))
            };
            let endpoint = format!("127.0.0.1:{}", free_port());
            let words = |auth: &str| {
                format!("--nnodes 2 {auth} --rdzv-endpoint {endpoint} --no-python stay.sh")
            };
            let mut host = sandbox.ragent(&words(&flags("a", &authority))).start();
            host.endpoint();
            let other = flags("b", &foreign);
            let status = format!("status {other} --rdzv-endpoint {endpoint}");
            [words(&other), words("--auth none"), status]
                .map(|words| sandbox.ragent(&words).run())
                .into()
        },
    ),
    ("the process at the loopback endpoint belongs to another user of this machine", |sandbox| {
        if !geteuid().is_root() {
            skip("another uid needs root");
            return Vec::new();
        }
        let voters = voters();
        let other = ["--reuid=12003", "--clear-groups", env!("CARGO_BIN_EXE_ragent")];
        let other = other.into_iter().fold(sandbox.program("setpriv"), Start::arg);
        let other = other.env("XDG_RUNTIME_DIR", "/nowhere").env("TMPDIR", "/nowhere");
        let words = format!("{} --auth none", voter(&voters));
        let mut other = words.split(' ').fold(other, Start::arg).start();
        let endpoint = other.prints("127.0.0.1:");
        let words = format!("--nnodes 1 --rdzv-endpoint {endpoint} --no-python true");
        vec![sandbox.ragent(&words).run()]
    }),
    ("the job's other agents cannot be searched for: no multicast", |sandbox| {
        // The loopback interface of a new namespace is down.
        let words = "--rdzv-endpoint auto --rdzv-id a --no-python stay.sh";
        match support::may_make_networks() {
            true => {
                let start =
                    sandbox.program("unshare").arg("--net").arg(env!("CARGO_BIN_EXE_ragent"));
                vec![words.split(' ').fold(start, Start::arg).run()]
            }
            false => Vec::new(),
        }
    }),
    ("the job's other agents cannot be searched for: the port is taken", |sandbox| {
        let held = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let words = format!("--rdzv-endpoint auto:{port} --rdzv-id a --no-python stay.sh");
        vec![sandbox.ragent(&words).run()]
    }),
    ("a launcher has started the first agent on another machine than the host", |sandbox| {
        let start = sandbox.ragent("--no-python stay.sh").env("OMPI_COMM_WORLD_RANK", "0");
        let start = start.env("OMPI_COMM_WORLD_SIZE", "2").env("OMPI_COMM_WORLD_LOCAL_RANK", "0");
        let start = start.env("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
        vec![start.env("OMPI_MCA_orte_hnp_uri", "0.0;tcp://198.51.100.1:1").run()]
    }),
    ("the address of `--metrics-listen` is not one of this machine", |sandbox| {
        // This address is reserved for documentation.
        run_with_metrics(sandbox, "192.0.2.1:0")
    }),
    ("the address of `--metrics-listen` is in use", |sandbox| {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        run_with_metrics(sandbox, &held.local_addr().unwrap().to_string())
    }),
    ("no port of `store_port` is free", |sandbox| {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let words = format!("--rdzv-conf store_port={port} --no-python stay.sh");
        vec![sandbox.ragent(&words).run()]
    }),
    ("the coordinator refuses this node: another job, other flags, an earlier run", |sandbox| {
        let endpoint = format!("127.0.0.1:{}", free_port());
        let words = |more: &str| format!("--rdzv-endpoint {endpoint} {more} --no-python stay.sh");
        let mut host = sandbox.ragent(&words("--nnodes 2")).start();
        host.endpoint();
        ["--nnodes 3", "--nnodes 2 --rdzv-id b"]
            .map(|more| sandbox.ragent(&words(more)).run())
            .into()
    }),
    ("a node of the same role runs another script at this endpoint", |sandbox| {
        let port = free_port();
        let agent = |script: &str| {
            sandbox.ragent(&format!(
                "--nnodes 2 --rdzv-endpoint 127.0.0.1:{port} --no-python {script}"
            ))
        };
        let mut host = agent("stay.sh").start();
        host.logs("waiting");
        vec![agent("true").run()]
    }),
    ("another node has this node's fixed `--node-rank`", |sandbox| {
        let words = |rank| format!("--nnodes 3 --node-rank {rank} --no-python stay.sh");
        let port = free_port().to_string();
        let agent = |rank| sandbox.ragent(&words(rank)).env("PET_MASTER_PORT", &port);
        let mut host = agent(0).start();
        host.endpoint();
        let mut guest = agent(1).start();
        guest.logs("waiting");
        vec![agent(1).run()]
    }),
    ("too few nodes were ready within `join_timeout`", |sandbox| {
        let words = format!(
            "--nnodes 2 --rdzv-endpoint 127.0.0.1:{} --rdzv-conf join_timeout=1 --no-python stay.sh",
            free_port()
        );
        vec![sandbox.ragent(&words).run()]
    }),
    (
        "rounds ended repeatedly without a charged failure, and none of them ran for 10 minutes",
        |sandbox| {
            let words =
                format!("--nnodes 2 --rdzv-endpoint 127.0.0.1:{} --no-python stay.sh", free_port());
            let mut host = sandbox.ragent(&words).start();
            host.endpoint();
            let mut guest = sandbox.ragent(&words).start();
            guest.worker();
            host.signal(Signal::SIGKILL);
            host.wait_until_silent();
            // As after 1000 free rounds in a row.
            let files = fs::read_dir(sandbox.path("run/ragent")).unwrap().flatten();
            let mut paths = files.map(|file| file.path());
            let path = paths.find(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with("job-") && name.ends_with(".json")
            });
            let path = path.expect("the host left its state file");
            let text = fs::read_to_string(&path).unwrap();
            let often = text.replace("\"free_rounds\":0", "\"free_rounds\":1000");
            assert_ne!(text, often);
            fs::write(&path, often).unwrap();
            let host = sandbox.ragent(&words).start();
            vec![host.end(), guest.end()]
        },
    ),
    (
        "the coordinator's host, or a majority of the voters or of etcd, was lost or left, and was not back within `join_timeout`",
        |sandbox| {
            let endpoint = format!("127.0.0.1:{}", free_port());
            let words = format!(
                "--nnodes 2 --rdzv-endpoint {endpoint} --rdzv-conf join_timeout=1 --no-python stay.sh"
            );
            let mut host = sandbox.ragent(&words).start();
            host.endpoint();
            let guest = || {
                let mut guest = sandbox.ragent(&words).start();
                guest.worker();
                guest
            };
            let stays = guest();
            host.signal(Signal::SIGKILL);
            let lost = stays.end();
            let mut host = sandbox.ragent(&words).start();
            host.endpoint();
            let stays = guest();
            host.signal(Signal::SIGTERM);
            vec![lost, stays.end()]
        },
    ),
    (
        "no member of etcd, or no majority of the voters, was reached within `join_timeout`",
        |sandbox| {
            let words = format!(
                "--nnodes 2 --rdzv-backend etcd --rdzv-id j --rdzv-endpoint 127.0.0.1:{} \
                 --rdzv-conf join_timeout=1 --no-python stay.sh",
                free_port()
            );
            let list = [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
            let voter = format!(
                "--nnodes 2 --rdzv-id j --rdzv-endpoint {list} --rdzv-conf join_timeout=1 --no-python stay.sh"
            );
            vec![sandbox.ragent(&words).run(), sandbox.ragent(&voter).run()]
        },
    ),
    (
        "the host restarted without its state, and too few nodes of the last round came back within \
         `join_timeout`",
        |sandbox| {
            let endpoint = format!("127.0.0.1:{}", free_port());
            let words = format!(
                "--nnodes 1:4 --rdzv-endpoint {endpoint} --rdzv-conf join_timeout=10 --no-python \
                 stay.sh"
            );
            let mut host = sandbox.ragent(&words).start();
            host.endpoint();
            let mut guests = [(); 3].map(|()| sandbox.ragent(&words).start());
            for guest in &mut guests {
                guest.worker();
            }
            let [stays, second, third] = guests;
            for agent in [&host, &second, &third] {
                agent.signal(Signal::SIGKILL);
            }
            host.wait_until_silent();
            let without = sandbox.path("rebooted");
            let host = sandbox.ragent(&words).env("XDG_RUNTIME_DIR", without).start();
            vec![host.end(), stays.end()]
        },
    ),
    ("the job had failed permanently before this agent started", |sandbox| {
        let service = sandbox.path("service");
        let agent = || sandbox.ragent("--no-python fail.sh 1").env("RUNTIME_DIRECTORY", &service);
        agent().run().assert_code(1);
        vec![agent().run(), agent().run()]
    }),
    ("`ragent launch` reached fewer hosts than the job needs", |sandbox| {
        vec![launch(sandbox, "a\nb\n", "--ssh false --no-python true")]
    }),
    (
        "`ragent status`, `ragent events`, `ragent explain`, `ragent logs`, `ragent page` or `ragent top` found no job, or got no answer",
        |sandbox| {
            let nobody = format!("status --rdzv-endpoint 127.0.0.1:{}", free_port());
            let asked = ["status", "events", "explain", "logs", "page", &nobody];
            let mut ends = Vec::from(asked.map(|words| sandbox.ragent(words).run()));
            let terminal = ScreenTerminal::new(80, 24);
            let top = sandbox.ragent("top").stdin(terminal.stdio()).stdout(terminal.stdio());
            ends.push(top.run());
            ends
        },
    ),
    (
        "`ragent stacks` found no job or no agent of it on this machine, or no node has answered",
        |sandbox| vec![sandbox.ragent("stacks").run()],
    ),
    ("`ragent doctor` has found an error", |sandbox| {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = held.local_addr().unwrap();
        let end = sandbox.ragent(&format!("doctor --rdzv-endpoint {endpoint}")).run();
        // The doctor prints its findings on stdout.
        vec![End { stderr: end.stdout.clone(), ..end }]
    }),
    ("`ragent page` cannot listen", |sandbox| {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let endpoint = format!("127.0.0.1:{}", free_port());
        let words = format!("--rdzv-endpoint {endpoint} --nnodes 1 --no-python stay.sh");
        let mut agent = sandbox.ragent(&words).start();
        agent.worker();
        vec![sandbox.ragent(&format!("page --rdzv-endpoint {endpoint} --port {port}")).run()]
    }),
    ("the command line has an unknown flag, or lacks a value", |sandbox| {
        ["--bogus stay.sh", "--nnodes", "status --bogus", ""]
            .map(|words| sandbox.ragent(words).run())
            .into()
    }),
    ("a flag or a variable has an invalid value", |sandbox| {
        let by_flag = sandbox.ragent("--nnodes 4:2 --no-python stay.sh").run();
        let by_variable = sandbox.ragent("--no-python stay.sh").env("PET_NPROC_PER_NODE", "x");
        let manifest = sandbox.ragent("manifest k8s --name A --image b train.py").run();
        let status = sandbox.ragent("status --rdzv-endpoint :1").run();
        vec![by_flag, by_variable.run(), manifest, status]
    }),
    (
        "a secret file does not exist, is invalid, or can be read by others; a required secret is \
         missing",
        |sandbox| {
            fs::write(sandbox.path("short"), "password\n").unwrap();
            let flags = ["--secret-file missing", "--secret-file short", "--auth secret"];
            flags.map(|flag| sandbox.ragent(&format!("{flag} --no-python stay.sh")).run()).into()
        },
    ),
    (
        "a file of certificates does not exist or is invalid, or others can read the key; not all files \
         are given, or a secret as well",
        |sandbox| {
            let authority = Authority::new("ca");
            let issued = authority.issue(&Issue::with_names(&["job"]));
            let files = write_certificates(&sandbox.path("tls"), &[&authority], &issued);
            let all = tls_flags(&files);
            let flags = [
                "--auth tls".to_owned(),
                "--tls-ca missing".to_owned(),
                all.replace("ca.pem", "missing"),
                all.replace("cert.pem", "key.pem"),
                format!("{all} --secret-file s"),
                format!("{all} --auth secret"),
            ];
            let run =
                |flags: &String| sandbox.ragent(&format!("{flags} --no-python stay.sh")).run();
            let mut ends: Vec<End> = flags.iter().map(run).collect();
            fs::set_permissions(&files[2], Permissions::from_mode(0o604)).unwrap();
            ends.push(run(&all));
            ends
        },
    ),
    ("`ragent secret` cannot write its file, or the file exists", |sandbox| {
        fs::write(sandbox.path("there"), "").unwrap();
        ["--init --secret-file there", "--rotate --secret-file missing", "--init"]
            .map(|words| sandbox.ragent(&format!("secret {words}")).run())
            .into()
    }),
    ("the list of hosts, a filter or a variable of `ragent launch` is invalid", |sandbox| {
        [("a\na\n", ""), ("a\n", "--include b"), ("a\n", "-x NOT_SET")]
            .map(|(hosts, words)| launch(sandbox, hosts, &format!("{words} --no-python true")))
            .into()
    }),
    (
        "a launcher's variables are missing or contradict each other, or it has started several \
         agents on a node",
        |sandbox| {
            let ranked = |rank| {
                let start = sandbox.ragent("--no-python stay.sh").env("OMPI_COMM_WORLD_RANK", rank);
                start.env("OMPI_COMM_WORLD_SIZE", "2")
            };
            let local = |rank| ranked(rank).env("OMPI_COMM_WORLD_LOCAL_RANK", rank);
            let several = |rank| local(rank).env("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
            vec![ranked("0").run(), several("2").run(), several("0").run()]
        },
    ),
    ("`ragent rank` finds no launcher, no host of rank 0, or no such program", |sandbox| {
        let last = sandbox.ragent("rank -- no-such-program").env("OMPI_COMM_WORLD_RANK", "0");
        vec![sandbox.ragent("rank -- true").run(), last.env("OMPI_COMM_WORLD_SIZE", "1").run()]
    }),
    ("`ragent top` has no terminal on stdin and stdout", |sandbox| {
        let terminal = ScreenTerminal::new(80, 24);
        let without_output = sandbox.ragent("top").stdin(terminal.stdio()).run();
        assert!(without_output.stderr.contains("`ragent status --watch`"));
        vec![without_output, sandbox.ragent("top").stdout(terminal.stdio()).run()]
    }),
    ("the script, its program or Python does not exist or cannot be run", |sandbox| {
        ["nothing.py", "--no-python nothing", "--no-python ./run"]
            .map(|words| sandbox.ragent(words).run())
            .into()
    }),
    ("an output file cannot be written: `--report`, `--journal`, timers", |sandbox| {
        let flags = ["--report /proc/no/x", "--journal /proc/no/x"];
        let mut ends: Vec<End> =
            flags.map(|flag| sandbox.ragent(&format!("{flag} --no-python stay.sh")).run()).into();
        let timers =
            sandbox.ragent("--no-python stay.sh").env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
        ends.push(timers.env("TORCHELASTIC_TIMER_FILE", "/proc/no/x").run());
        ends
    }),
    (
        "the file of `ragent events --journal` or `ragent explain --journal` cannot be read, or contains no events",
        |sandbox| {
            ["events", "explain"]
                .into_iter()
                .flat_map(|command| {
                    ["/proc/no/x", "/", "/dev/null"]
                        .map(|file| format!("{command} --journal {file}"))
                })
                .map(|words| sandbox.ragent(&words).run())
                .collect()
        },
    ),
    ("the limit of open files is too low", |sandbox| {
        let agent = env!("CARGO_BIN_EXE_ragent");
        let script = format!("ulimit -n 20; exec {agent} --no-python stay.sh");
        vec![sandbox.program("bash").arg("-c").arg(script).run()]
    }),
    ("the log folder cannot be created", |sandbox| {
        vec![sandbox.ragent("--log-dir /proc/no/logs --no-python stay.sh").run()]
    }),
];

/// Runs an agent and a coordinator with `--metrics-listen`.
fn run_with_metrics(sandbox: &Sandbox, address: &str) -> Vec<End> {
    let metrics = format!("--metrics-listen {address}");
    [format!("{metrics} --no-python stay.sh"), format!("{} {metrics}", voter(&voters()))]
        .map(|words| sandbox.ragent(&words).run())
        .into()
}

/// A list of voters on this machine.
fn voters() -> String {
    [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",")
}

/// The command of a voter without an agent.
fn voter(list: &str) -> String {
    format!("coordinator --nnodes 1 --rdzv-endpoint {list}")
}

/// Runs `ragent launch` on these hosts.
fn launch(sandbox: &Sandbox, hosts: &str, words: &str) -> End {
    fs::write(sandbox.path("hosts"), hosts).unwrap();
    sandbox.ragent(&format!("launch --hostfile hosts {words}")).run()
}

/// Checks two nodes. Their workers do nothing, and have this verdict.
fn check(sandbox: &Sandbox, verdict: &str) -> Vec<End> {
    let python = fake_python(sandbox, "True", verdict);
    let words = format!("check --nnodes 2 --rdzv-endpoint 127.0.0.1:{}", free_port());
    let start = || sandbox.ragent(&words).env("PYTHON_EXEC", &python).start();
    let agents = [start(), start()];
    agents.map(support::Program::end).into()
}

/// Writes a program in place of Python. It answers whether there is torch, and as a worker of `ragent check` it writes the verdict.
fn fake_python(sandbox: &Sandbox, has_torch: &str, verdict: &str) -> PathBuf {
    let path = sandbox.path("python");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -c ] && {{ echo {has_torch}; exit; }}\n\
         while [ \"$1\" != --verdict ]; do shift; done\nprintf '{verdict}' > \"$2\"\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

/// The rows of all tables: the exit code and its cause. They are ordered by code.
fn table() -> Vec<(i32, &'static str)> {
    let text = include_str!("../../docs/exit-codes.md");
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.parse().ok()?, cells.next()?))
    };
    text.lines().filter_map(row).collect()
}

/// Each row has its exit code, and each failure has a message.
#[test]
fn every_row_of_the_table_holds() {
    let (mut rows, mut provocations) = (table(), PROVOCATIONS);
    rows.sort_by_key(|(_, when)| *when);
    provocations.sort_by_key(|(when, _)| *when);
    let causes: Vec<&str> = rows.iter().map(|(_, when)| *when).collect();
    assert_eq!(causes, provocations.map(|(when, _)| when));
    let all: Vec<_> = rows.into_iter().zip(provocations).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..ROWS_AT_ONCE {
            scope.spawn(|| {
                while let Some(((code, when), (_, provoke))) =
                    all.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let sandbox = Sandbox::new();
                    for end in provoke(&sandbox) {
                        assert_eq!(end.code, Some(*code), "{when}:\n{}", end.stderr);
                        // Every failure prints its reason.
                        assert!(*code == 0 || !end.stderr.is_empty(), "{when}");
                    }
                }
            });
        }
    });
}
