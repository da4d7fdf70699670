//! Tests of one command line and one assertion each.

use std::ffi::{OsStr, OsString};

use ragent_base::sys::host::{FakeHost, Gpu};
use ragent_rendezvous::settings::StoreAccess;

use super::*;
use crate::cli::Cli;

fn machine(env: &[(&str, &str)]) -> FakeHost {
    let mut host = FakeHost {
        cpus: 6,
        programs: vec!["/usr/bin/python3".into(), "/usr/bin/true".into(), "/v/bin/python".into()],
        files: vec!["t.py".into()],
        ..FakeHost::default()
    };
    host.env.insert("PATH".into(), "/bin:/usr/bin".into());
    host.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
    host
}

fn read(line: &str) -> Result<Cli, clap::Error> {
    Cli::read(line.split_whitespace().map(OsString::from))
}

/// Returns the texts of all mistakes.
fn mistakes_on(host: &FakeHost, line: &str) -> Vec<String> {
    resolve_on(host, line).unwrap_err().iter().map(ToString::to_string).collect()
}

fn mistakes(line: &str) -> Vec<String> {
    mistakes_on(&machine(&[]), line)
}

fn resolve_on(host: &FakeHost, line: &str) -> Result<JobSpec, Vec<UsageError>> {
    JobSpec::resolve(read(line).unwrap().launch, host)
}

fn resolve(line: &str) -> Result<JobSpec, Vec<UsageError>> {
    resolve_on(&machine(&[]), line)
}

fn args(spec: &JobSpec) -> Vec<&str> {
    spec.command.args.iter().map(|arg| arg.to_str().unwrap()).collect()
}

/// A bare script is one worker of one standalone node, as with torchrun.
#[test]
fn bare_script_is_standalone() {
    let spec = resolve("ragent t.py --lr 3 -h").unwrap();
    assert_eq!(spec.rendezvous, RendezvousMethod::Standalone);
    assert_eq!(spec.local_world_size.get(), 1);
    assert_eq!(spec.command.program, PathBuf::from("/usr/bin/python3"));
    assert_eq!(args(&spec), ["-u", "t.py", "--lr", "3", "-h"]);
}

/// All words after the script are its own, including flags of ragent and `--`.
#[test]
fn words_behind_the_script_are_its_own() {
    for (line, expected) in [
        ("--nproc-per-node 2 t.py --role x -t 3", vec!["--role", "x", "-t", "3"]),
        ("-r3 t.py --help", vec!["--help"]),
        ("-r 3 -- t.py -h", vec!["-h"]),
        ("--nproc 2 --tee=1 t.py -- -x --", vec!["-x", "--"]),
        ("-- t.py -x --", vec!["-x", "--"]),
        ("-mr 3 t.py status --version", vec!["status", "--version"]),
        ("--max-restarts -0 t.py", vec![]),
    ] {
        let launch = read(&format!("ragent {line}")).unwrap().launch;
        assert_eq!(launch.job.script[0], "t.py", "{line}");
        assert_eq!(launch.job.script[1..], expected, "{line}");
    }
}

/// Both spellings, both value forms and unique prefixes mean the same.
#[test]
fn spellings() {
    for line in [
        "ragent --nproc-per-node 4 --max-restarts 3 t.py",
        "ragent --nproc_per_node=4 --max_restarts=3 t.py",
        "ragent --nproc-p 4 --max-r=3 t.py",
    ] {
        let spec = resolve(line).unwrap();
        assert_eq!((spec.local_world_size.get(), spec.shared.max_restarts), (4, 3), "{line}");
    }
}

/// A flag that is not given is read from its `PET_*` variable; the flag takes precedence.
#[test]
fn pet_variables_are_defaults() {
    let host = machine(&[
        ("PET_NNODES", "2:4"),
        ("PET_RDZV_ENDPOINT", "node0:7"),
        ("PET_MAX_RESTARTS", "9"),
        ("PET_STANDALONE", "0"),
    ]);
    let spec = resolve_on(&host, "ragent --max-restarts 1 t.py").unwrap();
    assert_eq!((spec.shared.nodes.min(), spec.shared.nodes.max()), (2, 4));
    assert_eq!(spec.shared.max_restarts, 1);
    let endpoint = Endpoint { host: "node0".into(), port: 7 };
    assert_eq!(spec.rendezvous, RendezvousMethod::Endpoint { endpoint, is_host: None });
    let host = machine(&[("PET_STANDALONE", "true")]);
    assert_eq!(mistakes_on(&host, "ragent t.py"), ["`PET_STANDALONE=true` is neither 0 nor 1"]);
}

/// All mistakes are reported at once, with the words that were typed.
#[test]
fn all_mistakes_at_once() {
    assert_eq!(
        mistakes("ragent --nnodes 4:2 --nproc-per-node gpu --rdzv-endpoint :1 x.py"),
        [
            "`--nnodes 4:2` must satisfy 1 <= MIN <= MAX",
            "`--nproc-per-node gpu` needs a GPU, but this machine has none that is visible",
            "`--rdzv-endpoint :1` is not a valid endpoint: it has no host",
            "the script `x.py` does not exist",
        ]
    );
}

/// The hint for an empty range of nodes is one that was probably meant.
#[test]
fn empty_range_of_nodes_has_a_hint() {
    let hint = |nodes: &str| {
        let errors = resolve(&format!("ragent --nnodes {nodes} t.py")).unwrap_err();
        errors[0].hint().unwrap_or_default().to_owned()
    };
    assert_eq!(hint("3:2"), "give the smaller number first: `--nnodes 2:3`");
    assert!(hint("0:2").starts_with("give at least 1 node"));
    assert!(hint("0").starts_with("give at least 1 node"));
}

/// The interpreter is that of the active environment, unless `PYTHON_EXEC` names another one.
#[test]
fn interpreter_is_found() {
    let host = machine(&[("VIRTUAL_ENV", "/v")]);
    let spec = resolve_on(&host, "ragent -m pkg.train").unwrap();
    assert_eq!(spec.command.program, PathBuf::from("/v/bin/python"));
    assert_eq!(args(&spec), ["-u", "-m", "pkg.train"]);
    let host = machine(&[("PYTHON_EXEC", "/no/python"), ("VIRTUAL_ENV", "/v")]);
    let wrong = "PYTHON_EXEC is `/no/python`, which cannot be executed";
    assert_eq!(mistakes_on(&host, "ragent t.py"), [wrong]);
}

/// A program in an environment runs scripts with the Python of that environment, as `/venv/bin/torchrun` does, and a program
/// in another folder with that of the active environment.
#[test]
fn interpreter_of_the_installation() {
    let mut host = machine(&[("VIRTUAL_ENV", "/v")]);
    host.programs.extend(["/a/bin/python", "/b/bin/python", "/m/python"].map(PathBuf::from));
    let chosen = |host: &FakeHost| resolve_on(host, "ragent t.py").unwrap().command.program;
    // A link in /usr/local/bin, to a file in an environment.
    host.program_folders = vec!["/usr/local/bin".into(), "/a/bin".into()];
    assert_eq!(chosen(&host), PathBuf::from("/v/bin/python"));
    host.put("/a/pyvenv.cfg", "home = /usr/bin");
    assert_eq!(chosen(&host), PathBuf::from("/a/bin/python"));
    // A link in another environment.
    host.program_folders[0] = "/b/bin".into();
    host.put("/b/conda-meta/history", "");
    assert_eq!(chosen(&host), PathBuf::from("/b/bin/python"));
    host.env.insert("RAGENT_PYTHON".to_owned(), "/m/python".into());
    assert_eq!(chosen(&host), PathBuf::from("/m/python"));
    host.env.insert("PYTHON_EXEC".to_owned(), "/v/bin/python".into());
    assert_eq!(chosen(&host), PathBuf::from("/v/bin/python"));
}

/// As torchrun, the program uses `static` by default, and no values of a launcher; a list of endpoints is one of
/// voters in any case.
#[test]
fn defaults_of_torchrun() {
    let standalone = |host: &FakeHost, line: &str| {
        matches!(resolve_on(host, line).unwrap().rendezvous, RendezvousMethod::Standalone)
    };
    assert!(standalone(&slurm_step(4), "torchrun t.py"));
    assert!(!standalone(&slurm_step(4), "ragent t.py"));
    let host = machine(&[]);
    let method = |line: &str| resolve_on(&host, line).unwrap().rendezvous;
    let line = "--nnodes 2 --rdzv-endpoint n0:29400 t.py";
    assert!(matches!(method(&format!("/a/torchrun {line}")), RendezvousMethod::Static { .. }));
    assert!(matches!(method(&format!("ragent {line}")), RendezvousMethod::Endpoint { .. }));
    let list = "torchrun --nnodes 3 --rdzv-endpoint n0,n1,n2 --rdzv-id j t.py";
    assert!(matches!(method(list), RendezvousMethod::Voters(_)));
    let signaled = |line: &str| resolve_on(&host, line).map(|spec| spec.signaled);
    assert_eq!(signaled("torchrun t.py"), Ok(Signaled::Group));
    assert_eq!(signaled("ragent t.py"), Ok(Signaled::Auto));
    assert_eq!(signaled("torchrun --signal-workers main t.py"), Ok(Signaled::Main));
    let errors = signaled("ragent --signal-workers all t.py").unwrap_err();
    assert_eq!(errors[0].to_string(), "`--signal-workers all` is not `auto`, `main` or `group`");
}

/// The hint for a script that does not exist is the command that was probably meant.
#[test]
fn mistyped_commands() {
    let hint = |line| resolve(line).unwrap_err()[0].hint().unwrap().to_owned();
    assert_eq!(hint("ragent staus"), "a similar command exists: `ragent status`");
    assert!(hint("ragent train").contains("`-m` for a module"));
    for line in ["ragent python train.py", "ragent python3.11 train.py"] {
        assert!(hint(line).starts_with("leave out `python"), "{}", hint(line));
    }
}

/// `--no-python` runs a program that is found as a shell would find it.
#[test]
fn programs_without_python() {
    let spec = resolve("ragent --no-python true -x").unwrap();
    assert_eq!(spec.command.program, PathBuf::from("/usr/bin/true"));
    assert_eq!(args(&spec), ["-x"]);
    for (line, error) in [
        ("ragent --no-python t.py", "the program `t.py` is not an executable file"),
        ("ragent --no-python -m true", "`--module` and `--no-python` cannot be used together"),
    ] {
        assert_eq!(mistakes(line), [error]);
    }
}

/// `--hang-timeout` is a time for each node, or `auto` for the whole job.
#[test]
fn hang_timeout_may_be_auto() {
    let of = |line: &str| {
        let spec = resolve(line).unwrap();
        (spec.hang.map(|hang| hang.timeout.as_secs()), spec.shared.hang_auto)
    };
    assert_eq!(of("ragent t.py"), (None, false));
    assert_eq!(of("ragent --hang-timeout 600 t.py"), (Some(600), false));
    assert_eq!(of("ragent --hang-timeout auto t.py"), (None, true));
    let wrong = mistakes("ragent --hang-timeout often t.py");
    assert!(wrong[0].starts_with("`--hang-timeout often` "), "{wrong:?}");
}

/// `auto` is the number of accelerators, else that of processors.
#[test]
fn workers_per_node() {
    assert_eq!(resolve("ragent --nproc-per-node auto t.py").unwrap().local_world_size.get(), 6);
    let host = FakeHost { gpus: vec![Gpu::default(); 8], ..machine(&[]) };
    let spec = resolve_on(&host, "ragent --nproc-per-node auto t.py").unwrap();
    assert_eq!(spec.local_world_size.get(), 8);
    assert_eq!(resolve("ragent --nproc-per-node 1_2 t.py").unwrap().local_world_size.get(), 12);
    for wrong in ["0", "-1", "1.5", "CPU", "1000000", "1__2", " gpu"] {
        let host = machine(&[("PET_NPROC_PER_NODE", wrong)]);
        let error = format!(
            "`PET_NPROC_PER_NODE={wrong}` is neither a positive number nor `auto`, `cpu`, `gpu` \
             or `xpu`"
        );
        assert_eq!(mistakes_on(&host, "ragent t.py"), [error]);
    }
}

/// The hint for a wrong number of workers has a right one.
#[test]
fn wrong_number_of_workers_has_a_hint() {
    let errors = resolve("ragent --nproc-per-node two t.py").unwrap_err();
    assert!(errors[0].hint().is_some_and(|hint| hint.contains("`--nproc-per-node 8`")));
}

/// Several workers have one thread each, unless the user has set the number.
#[test]
fn omp_num_threads() {
    assert_eq!(resolve("ragent t.py").unwrap().omp_num_threads, None);
    assert_eq!(resolve("ragent --nproc-per-node 2 t.py").unwrap().omp_num_threads, Some(1));
    let host = machine(&[("OMP_NUM_THREADS", "")]);
    let spec = resolve_on(&host, "ragent --nproc-per-node 2 t.py").unwrap();
    assert_eq!(spec.omp_num_threads, None);
}

/// Keys of `--rdzv-conf` are read. Those of torchrun for features that do not exist are accepted,
/// and the hint for an unknown one lists all.
#[test]
fn rdzv_conf() {
    let line = "ragent --rdzv-endpoint h --rdzv-conf \
                join_timeout=60,shrink_timeout=0,join_settle=0.5,read_timeout=5,is_host=n,\
                store_port=40000-40009 t.py";
    let spec = resolve(line).unwrap();
    assert_eq!(spec.shared.timeouts.join, Duration::from_secs(60));
    assert_eq!(spec.shared.timeouts.shrink, Duration::ZERO);
    assert_eq!(spec.shared.timeouts.join_settle, Duration::from_millis(500));
    assert!(matches!(spec.rendezvous, RendezvousMethod::Endpoint { is_host: Some(false), .. }));
    assert!(matches!(spec.store_ports, StorePorts::Range { first, .. } if first.get() == 40000));
    let errors = resolve("ragent --rdzv-conf jointimeout=1 t.py").unwrap_err();
    assert_eq!(errors[0].to_string(), "`--rdzv-conf` has the unknown key `jointimeout`");
    assert!(errors[0].hint().unwrap().contains("join_timeout"));
    for wrong in
        ["join_timeout", "join_timeout=0", "join_settle=-1", "=1", "store_port=9-3", "a=1,"]
    {
        assert!(resolve(&format!("ragent --rdzv-conf {wrong} t.py")).is_err(), "{wrong}");
    }
}

/// Values that are sent to other nodes are short and on one line, and an endpoint means the same on
/// all.
#[test]
fn values_sent_to_others_are_checked() {
    let long = "x".repeat(201);
    for line in [
        format!("ragent --role {long} t.py"),
        format!("ragent --local-addr {long} t.py"),
        format!("ragent --rdzv-id {long} t.py"),
        "ragent --nnodes 2 --rdzv-endpoint 0.0.0.0:29400 t.py".to_owned(),
        "ragent --nnodes 2 --rdzv-endpoint node0:0 t.py".to_owned(),
        "ragent --max-restarts -1 t.py".to_owned(),
    ] {
        assert_eq!(resolve(&line).unwrap_err().len(), 1, "{line}");
    }
}

/// Times, signals, exit codes and other values that are not valid are repeated as typed.
#[test]
fn wrong_values_are_repeated() {
    for line in [
        "--hang-timeout 0",
        "--hang-timeout inf",
        "--hang-signal QUIT",
        "--signal-workers all",
        "--signals-to-forward SIGTERM",
        "--signals-to-forward SIGKILL",
        "--signals-to-forward SIGUSR1,USR2",
        "--held-gpu-timeout -1",
        "--no-restart-exit-codes 0",
        "--no-restart-exit-codes 3,x",
        "--no-restart-exit-codes 256",
        "--notice -1",
        "--notice soon",
        "--notice-on SIGTERM",
        "--notice-on SIGKILL",
        "--notice-on SIGNOPE",
        "--notice-on SIGUSR1=members",
        "--notice-on SIGUSR1,USR1=save",
        "--notice-command no-such-program",
        "--notice-command 'open",
        "--exclude-command no-such-program",
        "--health gpu,disks",
        "--health off,gpu",
        "--health-check no-such-program",
        "--health-check 'open",
        "--health-timeout 0",
        "--health-timeout 3601",
        "--health-timeout soon",
        "--no-progress-limit 1",
        "--no-progress-limit 9",
        "--no-progress-limit many",
    ] {
        let errors = mistakes(&format!("ragent {line} t.py"));
        let [error] = &errors[..] else { panic!("{line}: {errors:?}") };
        assert!(error.contains(&format!("`{line}`")), "{line}: {error}");
    }
    let fixed = "--rdzv-backend static --nnodes 2 --rdzv-endpoint h:9 --exclude-command true";
    let errors = mistakes(&format!("ragent {fixed} t.py"));
    assert!(errors[0].contains("fixed ranks"), "{errors:?}");
    let none = resolve("ragent").unwrap_err();
    assert!(none[0].to_string().contains("no training script is given"), "{none:?}");
    for (line, expected) in [
        ("--rdzv-endpoint auto", "by `--rdzv-id`, which is not given"),
        ("--rdzv-endpoint auto:0 --rdzv-id x", "is not a valid port: it must be a number from 1"),
        ("--rdzv-endpoint auto --rdzv-id x --rdzv-backend static", "requires the backend `c10d`"),
        ("--rdzv-endpoint auto --rdzv-id x --rdzv-conf discover_ttl=99", "from 1 to 32"),
        ("--rdzv-endpoint auto --rdzv-id x --discover-hosts a,,b", "it has no host"),
        ("--rdzv-endpoint n0 --discover-hosts a", "requires `--rdzv-endpoint auto`"),
    ] {
        let errors = mistakes(&format!("ragent {line} t.py"));
        assert!(errors.iter().any(|error| error.contains(expected)), "{line}: {errors:?}");
    }
    // A mistake that is found twice is reported once.
    let search = "--nnodes 2 --rdzv-endpoint auto --rdzv-id x --node-rank abc";
    let expected = ["`--node-rank abc` is not a whole number, 0 or greater"];
    assert_eq!(mistakes(&format!("ragent {search} t.py")), expected);
}

/// An unknown flag is an error, and is never taken for the script.
#[test]
fn unknown_flags_are_refused() {
    for line in ["ragent --bogus t.py", "ragent -x t.py", "ragent --nnodes"] {
        assert!(read(line).is_err(), "{line}");
    }
}

/// A subcommand is recognised only as the first word: a script may be called `status`.
#[test]
fn subcommands_are_first_words() {
    let cli = read("ragent --standalone status x").unwrap();
    assert!(cli.command.is_none());
    assert_eq!(cli.launch.job.script, ["status", "x"]);
    for line in ["ragent -- status", "ragent t.py status", "ragent --nnodes 1 help"] {
        assert!(read(line).unwrap().command.is_none(), "{line}");
    }
    assert!(read("ragent status").unwrap().command.is_some());
}

fn static_at(host: &str, port: u16, node_rank: u32) -> RendezvousMethod {
    RendezvousMethod::Static { master: Endpoint { host: host.to_owned(), port }, node_rank }
}

/// The flags that only torchrun's static backend has imply it; one node without a port is
/// standalone.
#[test]
fn static_backend() {
    for (line, rendezvous) in [
        ("--nnodes 2 --node-rank 1 --master-addr node0", static_at("node0", 29500, 1)),
        ("--nnodes 2 --master_addr=[::1] --master_port=7", static_at("::1", 7, 0)),
        ("--nnodes 2 --rdzv-backend static --rdzv-endpoint a:9", static_at("a", 9, 0)),
        ("--master-port 1234", static_at("127.0.0.1", 1234, 0)),
        ("--nnodes 1:3 --node-rank 2", static_at("127.0.0.1", 29500, 2)),
        ("--node-rank 0 --master-addr node0", RendezvousMethod::Standalone),
        ("--rdzv-backend static", RendezvousMethod::Standalone),
    ] {
        let spec = resolve(&format!("ragent {line} t.py")).unwrap();
        assert_eq!(spec.rendezvous, rendezvous, "{line}");
        let is_static = matches!(rendezvous, RendezvousMethod::Static { .. });
        assert_eq!(spec.shared.fixed_ranks, is_static, "{line}");
        assert_eq!(spec.shared.nodes.min(), spec.shared.nodes.max(), "{line}");
    }
    let spec = resolve("ragent --nnodes 2 --rdzv-backend c10d --node-rank 1 t.py").unwrap();
    assert!(
        matches!(spec.rendezvous, RendezvousMethod::Endpoint { .. }) && spec.node_rank == Some(1)
    );
}

/// A list of endpoints is one of voters, also where a single endpoint would be static, where one
/// node would be standalone, or where a launcher has started the agent.
#[test]
fn lists_of_voters() {
    let variable = machine(&[("PET_RDZV_ENDPOINT", "a,b,c:7")]);
    let slurm = machine(&[
        ("SLURM_JOB_ID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ("SLURM_STEP_NODELIST", "n[0-1]"),
    ]);
    for (host, line) in [
        (&machine(&[]), "--nnodes 3 --rdzv-endpoint a,b,c:7"),
        (&machine(&[]), "--rdzv-endpoint a,b,c:7"),
        (&machine(&[]), "--rdzv-backend c10d --rdzv-endpoint a,b,c:7"),
        (&machine(&[]), "--nnodes 2:4 --node-rank 1 --rdzv-endpoint a,b,c:7"),
        (&variable, "--nnodes 2"),
        (&slurm, "--nnodes 2 --rdzv-endpoint a,b,c:7"),
    ] {
        let spec = resolve_on(host, &format!("ragent {line} t.py")).unwrap();
        assert_eq!(spec.rendezvous, RendezvousMethod::Voters("a,b,c:7".parse().unwrap()), "{line}");
        assert_eq!(spec.rendezvous.endpoint_text(), "a:7,b:7,c:7");
        assert_eq!((spec.shared.fixed_ranks, &spec.launcher_group), (false, &None), "{line}");
    }
    let alone = resolve("ragent --standalone --rdzv-endpoint a,b,c t.py").unwrap();
    assert_eq!(alone.rendezvous, RendezvousMethod::Standalone);
}

/// A task of a Slurm step of `nodes` nodes `n1`, `n2`, ….
fn slurm_step(nodes: u32) -> FakeHost {
    let tasks = format!("1(x{nodes})");
    let list = format!("n[1-{nodes}]");
    let nodes = nodes.to_string();
    machine(&[
        ("SLURM_JOB_ID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_TASKS", &nodes),
        ("SLURM_STEP_NUM_NODES", &nodes),
        ("SLURM_STEP_TASKS_PER_NODE", &tasks),
        ("SLURM_STEP_NODELIST", &list),
    ])
}

/// Voters are chosen from the nodes of a Slurm step, on the port of the job: as many as MIN allows, or as `voters` asks
/// for. A list that is given takes precedence.
#[test]
fn voters_of_a_step() {
    let endpoint = |nodes, flags: &str| {
        let line = format!("ragent {flags} t.py");
        let spec = resolve_on(&slurm_step(nodes), &line).unwrap();
        assert_eq!(spec.node_rank, Some(1).filter(|_| spec.launcher_group.is_some()), "{line}");
        let text = spec.rendezvous.endpoint_text();
        text.replace(&format!(":{}", port_of_step(nodes)), "")
    };
    for (nodes, flags, expected) in [
        (2, "", "n1"),
        (3, "", "n1,n2,n3"),
        (4, "--nnodes 2:4", "n1,n2,n4"),
        (4, "--nnodes 1:4", "n1"),
        (1000, "--nnodes 500:1000", "n1,n250,n500,n750,n1000"),
        (1000, "--rdzv-conf voters=1", "n1"),
        (3, "--rdzv-conf voters=3", "n1,n2,n3"),
        (3, "--nnodes 1:3 --rdzv-conf voters=3", "n1,n2,n3"),
        (16, "--rdzv-conf voters=3", "n1,n8,n16"),
        (16, "--rdzv-conf voters=5", "n1,n4,n8,n12,n16"),
        (5, "--nnodes 2 --rdzv-conf voters=5", "n1,n2,n3,n4,n5"),
        (4, "--rdzv-conf voters=3 --rdzv-endpoint n2,n3,n4:7", "n2:7,n3:7,n4:7"),
    ] {
        assert_eq!(endpoint(nodes, flags), expected, "{nodes} {flags}");
    }
}

/// The name of a Slurm step is new to a task of the step, and `ragent launch` reports that its own is. A name that the user has
/// given is not, nor is a default one.
#[test]
fn new_names() {
    let started_by = |parent: &str| FakeHost { parent: Some(parent.to_owned()), ..slurm_step(3) };
    let (none, task, in_script) = (machine(&[]), started_by("slurmstepd"), started_by("bash"));
    for (host, flags, is_new) in [
        (&task, "", true),
        (&in_script, "", false),
        (&slurm_step(3), "", false),
        (&task, "--rdzv-id a", false),
        (&task, "--nnodes 3 --rdzv-endpoint n1", false),
        (&none, "--nnodes 3 --rdzv-endpoint n1", false),
        (&none, "--nnodes 3 --rdzv-endpoint n1 --rdzv-id a", false),
        (&none, "--nnodes 3 --rdzv-endpoint n1 --rdzv-id a --first-start", true),
    ] {
        let spec = resolve_on(host, &format!("ragent {flags} t.py")).unwrap();
        assert_eq!((spec.is_new_name, spec.is_first_start()), (is_new, is_new), "{flags}");
    }
}

/// Returns the port that a Slurm step of `nodes` nodes gets.
fn port_of_step(nodes: u32) -> u16 {
    let spec = resolve_on(&slurm_step(nodes), "ragent --rdzv-conf voters=1 t.py").unwrap();
    let RendezvousMethod::Endpoint { endpoint, .. } = spec.rendezvous else { panic!("one host") };
    endpoint.port
}

/// The example for systemd is a valid command line, whose job has three voters.
#[test]
fn example_for_systemd() {
    let text = include_str!("../../../../packaging/systemd/job.env.example");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let env: Vec<(&str, &str)> = lines.map(|line| line.split_once('=').unwrap()).collect();
    let value = |name: &str| env.iter().find(|(given, _)| *given == name).unwrap().1;
    let mut host = machine(&env);
    host.programs.push(value("PYTHON_EXEC").into());
    host.files.push("/srv/train/train.py".into());
    host.gpus.push(Gpu::default());
    let line = format!("ragent {} {}", value("RAGENT_ARGS"), value("RAGENT_SCRIPT"));
    let spec = resolve_on(&host, &line).unwrap();
    let RendezvousMethod::Voters(list) = spec.rendezvous else { panic!("there are voters") };
    assert_eq!(list.endpoints().len(), 3);
    assert_eq!(list.majority_warning(spec.shared.nodes), None);
}

/// An impossible number of voters, or one that contradicts other flags, is refused with a hint.
#[test]
fn mistakes_in_the_number_of_voters() {
    let none = machine(&[]);
    let mpi = machine(&[
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "1"),
    ]);
    for (host, flags, error) in [
        (&none, "--rdzv-conf voters=2", "`voters=2`, which is not 1, 3 or 5"),
        (&none, "--rdzv-conf voters=0", "`voters=0`, which is not 1, 3 or 5"),
        (&none, "--rdzv-conf voters=many", "`voters=many`, which is not 1, 3 or 5"),
        (&none, "--rdzv-conf voters=7", "`voters=7`, which is not 1, 3 or 5"),
        (
            &none,
            "--rdzv-conf voters=5 --rdzv-endpoint a,b,c",
            "`voters=5`, but `--rdzv-endpoint` lists 3 hosts",
        ),
        (
            &none,
            "--rdzv-conf voters=1 --rdzv-endpoint a,b,c",
            "`voters=1`, but `--rdzv-endpoint` lists 3 hosts",
        ),
        (
            &none,
            "--nnodes 2 --rdzv-conf voters=3 --rdzv-endpoint a",
            "`voters=3`, but `--nnodes 2` allows fewer nodes",
        ),
        (
            &none,
            "--nnodes 4 --rdzv-conf voters=5",
            "`voters=5`, but `--nnodes 4` allows fewer nodes",
        ),
        (
            &none,
            "--nnodes 3 --rdzv-conf voters=3,is_host=1 --rdzv-endpoint a",
            "`voters=3`, whose hosts elect the coordinator, so `is_host` has no meaning",
        ),
        (
            &none,
            "--nnodes 3 --rdzv-id x --rdzv-conf voters=5 --rdzv-endpoint auto",
            "`voters=5`, but `--nnodes 3` allows fewer nodes",
        ),
        (
            &none,
            "--standalone --rdzv-conf voters=3",
            "`voters=3`, but one node alone has no other voters",
        ),
        (
            &none,
            "--nnodes 3 --rdzv-conf voters=3 --master-addr a",
            "`voters=3`, but with the backend `static` the coordinator is always that of node 0",
        ),
        (
            &none,
            "--nnodes 3 --rdzv-id x --rdzv-backend etcd --rdzv-conf voters=3 --rdzv-endpoint a",
            "`voters=3`, but with an etcd backend there are no voters: any agent can become the \
             coordinator",
        ),
        (
            &slurm_step(2),
            "--rdzv-conf voters=3",
            "`voters=3`, but Slurm has started only 2 agents, one on each host",
        ),
        (
            &slurm_step(4),
            "--rdzv-conf voters=5",
            "`voters=5`, but Slurm has started only 4 agents, one on each host",
        ),
        (
            &slurm_step(4),
            "--rdzv-conf voters=3,is_host=1",
            "`voters=3`, whose hosts elect the coordinator, so `is_host` has no meaning",
        ),
        (&mpi, "--rdzv-conf voters=3", "`voters=3`, but a job under Hydra has one coordinator"),
    ] {
        let errors = resolve_on(host, &format!("ragent {flags} t.py")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [format!("`--rdzv-conf` has {error}")], "{flags}");
        assert!(errors[0].hint().is_some(), "{flags}");
    }
}

/// The number of voters of a job is what the user asked for, or follows from the nodes and the list.
#[test]
fn number_of_voters() {
    for (flags, expected) in [
        ("--nnodes 3 --rdzv-endpoint a --rdzv-conf voters=3", 3),
        ("--nnodes 3 --rdzv-endpoint a --rdzv-conf voters=1", 1),
        ("--nnodes 3 --rdzv-endpoint a", 3),
        ("--nnodes 2:9 --rdzv-endpoint a", 3),
        ("--nnodes 3:9 --rdzv-endpoint a", 5),
        ("--nnodes 1:9 --rdzv-endpoint a", 1),
        ("--nnodes 2 --rdzv-endpoint a", 1),
        ("--nnodes 1:9 --rdzv-endpoint a --rdzv-conf voters=5", 5),
        ("--nnodes 3 --rdzv-endpoint a --rdzv-conf is_host=1", 1),
        ("--nnodes 1:3 --rdzv-endpoint a,b,c", 3),
        ("--nnodes 3:8 --rdzv-endpoint a,b,c", 5),
        ("--nnodes 3:8 --rdzv-endpoint a,b,c --rdzv-conf voters=3", 3),
        ("--nnodes 3 --rdzv-id x --rdzv-endpoint auto", 3),
        ("--nnodes 3:5 --rdzv-id x --rdzv-endpoint auto", 5),
        ("--nnodes 1:5 --rdzv-id x --rdzv-endpoint auto", 1),
        ("--nnodes 3:5 --rdzv-id x --rdzv-endpoint auto --rdzv-conf voters=1", 1),
        ("--nnodes 3 --rdzv-id x --rdzv-endpoint auto --rdzv-conf is_host=0", 3),
        ("--nnodes 3 --rdzv-id x --rdzv-endpoint auto --rdzv-conf is_host=1,voters=3", 3),
        ("--nnodes 3 --master-addr a", 1),
        ("--standalone", 1),
    ] {
        let spec = resolve(&format!("ragent {flags} t.py")).unwrap();
        assert_eq!(spec.voters.number(), expected, "{flags}");
    }
}

/// `voters=1` changes nothing in a job that has one voter anyway.
#[test]
fn one_voter_is_always_right() {
    for flags in [
        "",
        "--standalone",
        "--nnodes 2 --rdzv-endpoint a",
        "--nnodes 1:3 --rdzv-endpoint a",
        "--nnodes 2 --rdzv-id x --rdzv-endpoint auto",
        "--nnodes 3 --master-addr a",
        "--nnodes 3 --rdzv-id x --rdzv-backend etcd --rdzv-endpoint a",
    ] {
        let plain = resolve(&format!("ragent {flags} t.py")).unwrap();
        let asked = resolve(&format!("ragent {flags} --rdzv-conf voters=1 t.py")).unwrap();
        assert_eq!(asked, plain, "{flags}");
    }
    let same = resolve("ragent --rdzv-conf voters=3 --rdzv-endpoint a,b,c t.py").unwrap();
    assert_eq!(same.rendezvous, RendezvousMethod::Voters("a,b,c".parse().unwrap()));
}

/// A list that is not one of voters, and flags that contradict a list, are reported with a hint.
#[test]
fn mistakes_in_lists() {
    for (line, error) in [
        (
            "--rdzv-endpoint a,b,c,d",
            "`--rdzv-endpoint a,b,c,d` is not a valid list of endpoints: 4 hosts tolerate no more \
             failures than 3",
        ),
        (
            "--rdzv-endpoint auto:1,b,c",
            "`--rdzv-endpoint auto:1,b,c` is not a valid list of endpoints: it contains `auto`, \
             which is not the address of a host",
        ),
        (
            "--rdzv-endpoint a,,b",
            "`--rdzv-endpoint a,,b` is not a valid list of endpoints: one of its entries is empty",
        ),
        (
            "--rdzv-backend static --rdzv-endpoint a,b,c",
            "`--rdzv-endpoint a,b,c` is a list, which requires the backend `c10d`, not `static`",
        ),
        (
            "--rdzv-conf is_host=1 --rdzv-endpoint a,b,c",
            "`--rdzv-endpoint a,b,c` is a list, whose hosts elect the coordinator, so `is_host` \
             in `--rdzv-conf` has no meaning",
        ),
        (
            "--discover-hosts h --rdzv-endpoint a,b,c",
            "`--discover-hosts` requires `--rdzv-endpoint auto`",
        ),
    ] {
        let errors = resolve(&format!("ragent --nnodes 3 {line} t.py")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [error], "{line}");
        assert!(errors[0].hint().is_some(), "{line}");
    }
}

/// All nodes of a static job wait for each other as long as with torch, unless configured
/// otherwise.
#[test]
fn static_waits() {
    for (conf, seconds) in [("", 900), ("timeout=60", 60), ("timeout=60,join_timeout=5", 5)] {
        let host = machine(&[("PET_RDZV_CONF", conf)]);
        let spec = resolve_on(&host, "ragent --master-port 7 t.py").unwrap();
        assert_eq!(spec.shared.timeouts.join, Duration::from_secs(seconds), "{conf}");
    }
}

/// Invalid combinations with the static backend are reported before anything starts.
#[test]
fn static_mistakes() {
    for (line, error) in [
        (
            "--nnodes 2 --node-rank 2",
            "`--node-rank 2` is out of range: the job has 2 nodes, and ranks begin at 0",
        ),
        (
            "--master-port 70000",
            "`--master-port 70000` is not a valid port: it must be a number from 0 to 65535",
        ),
        (
            "--rdzv-backend static --rdzv-endpoint a",
            "`--rdzv-endpoint a` is not a valid endpoint: it has no port",
        ),
        (
            "--master-addr a:5 --master-port 7",
            "`--master-addr a:5` is not a valid endpoint: it contains a port, which has its own \
             flag",
        ),
        (
            "--nnodes 2 --master-addr 0.0.0.0",
            "`--master-addr 0.0.0.0:29500` refers to a different machine on each node, but the \
             job has several nodes",
        ),
    ] {
        let errors = resolve(&format!("ragent {line} t.py")).unwrap_err();
        assert_eq!(errors[0].to_string(), error, "{line}");
    }
}

/// Workers that see one device each get them from the variable that restricts the visible devices.
#[test]
fn virtual_local_rank() {
    let line = "ragent --nproc-per-node 2 --virtual-local-rank t.py";
    let devices = |env: &[(&str, &str)]| resolve_on(&machine(env), line).unwrap().virtual_devices;
    let visible = |visible: [&str; 2], hip| {
        Some(VirtualDevices { visible: visible.map(str::to_owned).to_vec(), hip })
    };
    assert_eq!(devices(&[]), visible(["0", "1"], false));
    assert_eq!(devices(&[("CUDA_VISIBLE_DEVICES", "5, 3,1")]), visible(["5", "3"], false));
    let both = [("HIP_VISIBLE_DEVICES", "7,6"), ("CUDA_VISIBLE_DEVICES", "0")];
    assert_eq!(devices(&both), visible(["7", "6"], true));
    let errors = resolve_on(&machine(&[("CUDA_VISIBLE_DEVICES", "0")]), line).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "`--virtual-local-rank` needs a device for each of 2 workers, but CUDA_VISIBLE_DEVICES \
         is `0`"
    );
}

/// The file is run inside the interpreter, even with `-m`.
#[test]
fn run_path() {
    let spec = resolve("ragent --run-path -m t.py --lr 3").unwrap();
    let args = args(&spec);
    assert_eq!([args[0], args[1]], ["-u", "-c"]);
    assert_eq!(args[3..], ["t.py", "--lr", "3"]);
    assert_eq!(spec.command.title, "t.py");
}

/// The error for a word that is not one of a few lists those.
#[test]
fn choices() {
    for (line, error) in [
        ("--start-method thread", "`--start-method thread` is not `spawn`, `fork` or `forkserver`"),
        ("--event-log-handler file:x", "`--event-log-handler file:x` is not `null` or `console`"),
        (
            "--local-ranks-filter 0,x",
            "`--local-ranks-filter 0,x` is not a list of local ranks, such as `0,1`",
        ),
        ("--ranks-filter 8-x", "`--ranks-filter 8-x` is not a list of ranks, such as `0,8-15`"),
        (
            "--signals-to-handle SIGKILL",
            "`--signals-to-handle SIGKILL` contains SIGKILL, which cannot be handled",
        ),
        ("--logs-specs mine", "`--logs-specs mine` is a Python plug-in, which ragent cannot load"),
        ("--rdzv-backend zookeeper", "`--rdzv-backend zookeeper` is not supported"),
        (
            "--numa-binding near",
            "`--numa-binding near` is not `node`, `socket`, `exclusive` or `core-complex`",
        ),
    ] {
        let errors = resolve(&format!("ragent {line} t.py")).unwrap_err();
        assert_eq!(errors[0].to_string(), error, "{line}");
    }
    for line in [
        "--start-method fork",
        "--event-log-handler null",
        "--event-log-handler console",
        "--logs-specs default",
    ] {
        assert!(resolve(&format!("ragent {line} t.py")).is_ok(), "{line}");
    }
}

/// `--store-access user` has demanded a protection that does not exist any more, so it is refused, also as a variable.
#[test]
fn store_access_by_user_is_refused() {
    let host = machine(&[("PET_STORE_ACCESS", "user")]);
    for (result, given) in [
        (resolve("ragent --store-access user t.py"), "`--store-access user`"),
        (resolve_on(&host, "ragent t.py"), "`PET_STORE_ACCESS=user`"),
    ] {
        let errors = result.unwrap_err();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].to_string(), format!("{given} is not supported any more"));
        let hint = errors[0].hint().unwrap();
        assert!(hint.contains("`members`") && hint.contains("machines of its own"), "{hint}");
    }
    let access = |who| resolve(&format!("ragent --store-access {who} t.py"));
    assert_eq!(access("members").unwrap().shared.store_access, StoreAccess::Members);
    assert_eq!(access("any").unwrap().shared.store_access, StoreAccess::Any);
    assert_eq!(
        access("all").unwrap_err()[0].to_string(),
        "`--store-access all` is not `members` or `any`"
    );
}

/// The prefix of lines is the flag's template, else the variable's.
#[test]
fn prefix_template() {
    let host = machine(&[("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "b")]);
    let prefix = |line| resolve_on(&host, line).unwrap().output.prefix;
    assert_eq!(prefix("ragent --log-line-prefix-template a t.py").as_deref(), Some("a"));
    assert_eq!(prefix("ragent t.py").as_deref(), Some("b"));
}

/// The unit of nodes may be given in `--nnodes` or in `--rdzv-conf`, but not differently in both.
#[test]
fn units_of_nodes() {
    for line in ["--nnodes 1:7:2", "--nnodes 1:7 --rdzv-conf node_unit=2"] {
        let nodes = resolve(&format!("ragent {line} t.py")).unwrap().shared.nodes;
        assert_eq!((nodes.min(), nodes.max(), nodes.unit()), (2, 6, 2), "{line}");
    }
    for (line, error) in [
        (
            "--nnodes 2:8:2 --rdzv-conf node_unit=4",
            "`--nnodes 2:8:2` and `node_unit=4` contradict each other",
        ),
        (
            "--nnodes 3 --rdzv-conf node_unit=2",
            "`--nnodes 3` allows no number of nodes: no multiple of 2 is between 3 and 3",
        ),
        (
            "--rdzv-conf node_unit=0",
            "`--rdzv-conf` has `node_unit=0`, which is not a positive number",
        ),
    ] {
        let errors = resolve(&format!("ragent {line} t.py")).unwrap_err();
        assert_eq!(errors[0].to_string(), error, "{line}");
    }
}

/// Workers receive what their launch method determines; paths of the job are named after it.
#[test]
fn launch_methods() {
    let mut host = machine(&[("PET_LAUNCH_METHOD", "deepspeed")]);
    host.put("ds.json", "{}");
    let method = |line| resolve_on(&host, line).unwrap().launch_method;
    let config = |path: Option<&str>| LaunchMethod::DeepSpeed { config: path.map(PathBuf::from) };
    assert_eq!(method("ragent t.py"), config(None));
    assert_eq!(method("ragent --deepspeed_config ds.json t.py"), config(Some("ds.json")));
    assert_eq!(method("ragent --launch-method torchrun t.py"), LaunchMethod::Torchrun);
    assert_eq!(resolve("ragent t.py").unwrap().launch_method, LaunchMethod::Torchrun);
    let line = "ragent --rdzv-id job7 --launch-method basic --shared-file x --save-path auto \
                --checkpoint_path=/c t.py";
    let spec = resolve(line).unwrap();
    assert_eq!(spec.files.shared_file(&spec.launch_method), Some("/here/x".into()));
    assert_eq!(spec.files.save_path(), Some("/here/ragent-job7/save".into()));
    assert_eq!(spec.files.checkpoint_path(), Some("/c".into()));
}

/// A flag of another launch method, an `auto` path of a job without a name, and an invalid
/// configuration are reported before anything starts.
#[test]
fn launch_method_mistakes() {
    for (line, error) in [
        (
            "--launch-method horovod",
            "`--launch-method horovod` is not `basic`, `torchrun` or `deepspeed`",
        ),
        ("--shared-file auto", "`--shared-file auto` requires `--launch-method basic`"),
        (
            "--launch-method basic --deepspeed-config t.py",
            "`--deepspeed-config t.py` requires `--launch-method deepspeed`",
        ),
        (
            "--launch-method deepspeed --deepspeed-config no.json",
            "`--deepspeed-config no.json` does not exist",
        ),
        (
            "--nnodes 2 --save-path auto",
            "`--save-path auto` derives a name from `--rdzv-id`, which is not given",
        ),
        (
            "--launch-method basic --shared-file /a?b",
            "`--shared-file /a?b` cannot be used in a `file://` address: it contains `?` or `#`",
        ),
        (
            "--launch-method basic --shared-file auto --rdzv-id a#b",
            "`--shared-file /here/ragent-a#b/` cannot be used in a `file://` address: it \
             contains `?` or `#`",
        ),
    ] {
        let errors = resolve(&format!("ragent {line} t.py")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [error], "{line}");
        assert!(line.contains("horovod") || errors[0].hint().is_some(), "{line}");
    }
}

/// The script's own arguments begin after the script, with every way to run it.
#[test]
fn own_arguments_begin_behind_the_script() {
    for (line, at) in [
        ("ragent t.py -x", 2),
        ("ragent -m pkg.train -x", 3),
        ("ragent --run-path t.py -x", 4),
        ("ragent --no-python true -x", 0),
    ] {
        let spec = resolve(line).unwrap();
        assert_eq!(spec.command.own_args_at, at, "{line}");
        assert_eq!(args(&spec)[at], "-x", "{line}");
    }
}

/// Every kind of script is replaced by a missing one; nothing else of the command changes.
#[test]
fn script_is_replaced_by_an_absent_one() {
    for (line, expected) in [
        ("ragent t.py -x", Some("-u ragent_standby_test.py -x")),
        ("ragent -m pkg.sub.train -x", Some("-u -m ragent_standby_test.train -x")),
        ("ragent -m train", Some("-u -m ragent_standby_test")),
        ("ragent --no-python true -x", None),
    ] {
        let absent = resolve(line).unwrap().command.args_without_script();
        let absent = absent.map(|args| args.join(OsStr::new(" ")).into_string().unwrap());
        assert_eq!(absent.as_deref(), expected, "{line}");
    }
    let args = ["-u", "/a/train", "t.py"].map(OsString::from).into();
    let command = WorkerCommand { args, own_args_at: 2, ..WorkerCommand::default() };
    assert_eq!(command.args_without_script().unwrap(), ["-u", "/a/ragent_standby_test", "t.py"]);
    let command = resolve("ragent --run-path t.py -x").unwrap().command;
    let absent = command.args_without_script().unwrap();
    assert_eq!(absent[..3], command.args[..3]);
    assert_eq!(absent[3..], ["ragent_standby_test.py", "-x"]);
}

/// If a launcher provides neither the first agent's host nor a name, agents search for each other
/// by the user's name; if that is not given either, it is an error.
#[test]
fn agents_of_a_silent_launcher() {
    let host = machine(&[
        ("MV2_COMM_WORLD_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "4"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "0"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "1"),
    ]);
    let spec = resolve_on(&host, "ragent --rdzv-id x t.py").unwrap();
    assert_eq!((spec.shared.nodes.min(), spec.node_rank), (4, Some(1)));
    let RendezvousMethod::Search(search) = spec.rendezvous else { panic!("{:?}", spec.rendezvous) };
    assert_eq!(search.eligible, Eligible::Never);
    assert_eq!(
        mistakes_on(&host, "ragent t.py"),
        ["MVAPICH has started this agent, but does not provide the host of the first agent"]
    );
}

/// The address of the metrics is an IP address with a port, which may be 0.
#[test]
fn addresses_of_the_metrics() {
    let given = |value: &str| resolve(&format!("ragent --metrics-listen {value} t.py"));
    for value in ["127.0.0.1:9400", "[::]:0"] {
        assert_eq!(given(value).unwrap().metrics_listen, value.parse().ok(), "{value}");
    }
    assert_eq!(resolve("ragent t.py").unwrap().metrics_listen, None);
    let host = machine(&[("PET_METRICS_LISTEN", "0.0.0.0:9400")]);
    let spec = resolve_on(&host, "ragent t.py").unwrap();
    assert_eq!(spec.metrics_listen, "0.0.0.0:9400".parse().ok());
    for value in ["9400", ":9400", "node0:9400", "0.0.0.0", "0.0.0.0:65536"] {
        let error = format!("`--metrics-listen {value}` is not an address and a port");
        assert_eq!(given(value).unwrap_err()[0].to_string(), error);
    }
}

/// Quotes around the whole of `--rdzv-conf` are ignored: a list of arguments in YAML keeps them. Others are part of a key.
#[test]
fn quoted_rdzv_conf() {
    let conf = |text: &str| RdzvConf::parse(text);
    let plain = conf("join_timeout=5,is_host=1").unwrap();
    for text in [
        "'join_timeout=5,is_host=1'",
        "\"join_timeout=5,is_host=1\"",
        " 'join_timeout=5,is_host=1' ",
    ] {
        assert_eq!(conf(text), Ok(plain.clone()), "{text}");
    }
    for text in
        ["'join_timeout=5,is_host=1", "join_timeout=5,is_host=1\"", "'join_timeout=5\"", "'"]
    {
        assert!(conf(text).is_err(), "{text}");
    }
    assert_eq!(conf("''"), Ok(RdzvConf::default()));
}

/// With an etcd backend, a job of one node needs no name. A job of several nodes needs one, unless the command line is one of
/// torchrun.
#[test]
fn etcd_without_a_name() {
    let of_main = machine(&[("RAGENT_MAIN", "1")]);
    let line = |name: &str, nodes: &str| {
        format!("{name} --nnodes {nodes} --rdzv-backend etcd --rdzv-endpoint e:2379 t.py")
    };
    let expected = "etcd backends find agents by `--rdzv-id`, which is not given";
    assert_eq!(mistakes(&line("ragent", "1:2")), [expected]);
    assert!(resolve(&line("ragent", "1")).is_ok());
    for spec in [resolve(&line("torchrun", "1:2")), resolve_on(&of_main, &line("ragent", "1:2"))] {
        assert_eq!(spec.unwrap().run_id.as_str(), NO_NAME);
    }
}

/// torch's worker server is started by standbys, so `--observe` needs them.
#[test]
fn observe_needs_standbys() {
    assert!(!resolve("ragent --standby t.py").unwrap().observe);
    assert!(resolve("ragent --standby --observe t.py").unwrap().observe);
    for line in ["ragent --observe t.py", "ragent --observe --standby=none t.py"] {
        assert_eq!(mistakes(line), ["`--observe` needs `--standby`"]);
    }
    let host = machine(&[("PET_OBSERVE", "1")]);
    assert_eq!(mistakes_on(&host, "ragent t.py"), ["`--observe` needs `--standby`"]);
}
