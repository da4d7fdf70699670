use ragent_base::{
    secret::{CertificateRequest, PeerName, Secret},
    sys::host::FakeHost,
};
use ragent_options::cli::{Cli, Command};

use super::*;

fn plan(words: &str) -> Result<Plan, Vec<UsageError>> {
    plan_of("n1 slots=8\nme@n2\nn3 slots=4\n", words)
}

fn plan_of(hostfile: &str, words: &str) -> Result<Plan, Vec<UsageError>> {
    plan_with(hostfile, words, |here| here)
}

fn plan_with(
    hostfile: &str,
    words: &str,
    change: impl FnOnce(Here) -> Here,
) -> Result<Plan, Vec<UsageError>> {
    let line = format!("ragent launch --hostfile hosts {words}");
    let cli = Cli::read(line.split_ascii_whitespace().map(OsString::from)).unwrap();
    let Some(Command::Launch(args)) = cli.command else { panic!("{line} launches nothing") };
    let here = Here {
        hostfile: hostfile.to_owned(),
        env_files: Vec::new(),
        folder: "/work here".into(),
        program: "/bin/ragent".into(),
        generated_id: "generated".to_owned(),
        secret: LaunchSecret::Generated(Secret::new(&"k".repeat(43)).unwrap()),
    };
    let mut host = FakeHost { programs: vec!["/bin/ssh".into()], ..FakeHost::default() };
    host.env.insert("SECRET".to_owned(), "s3cret".into());
    Plan::resolve(&args, &change(here), &host)
}

fn host_address(address: Option<&str>) -> HostAddress {
    let address = address.map(|address| address.parse().unwrap());
    HostAddress { host_name: "self".to_owned(), address, port: 29401 }
}

/// Returns the command lines of all agents, if the hosts `reached` were reached.
fn agents(plan: &Plan, reached: &[HostNumber]) -> Vec<String> {
    let address = |host: &HostNumber| format!("10.0.0.{}", host + 1);
    let host_addresses: Vec<_> =
        reached.iter().map(|host| (*host, host_address(Some(&address(host))))).collect();
    let jobs = plan.host_jobs(&host_addresses);
    jobs.iter().map(|job| shell_words::join(&plan.job.words(job))).collect()
}

/// Each agent gets the job's flags as typed, and then its own flags.
#[test]
fn words_of_agents() {
    let plan = plan("-x SECRET --max_restarts 3 -m -r 0 train --lr 3 --hostfile x").unwrap();
    let common = "--module --max-restarts=3 --redirects=0 --nnodes=3 --first-node-lines --rdzv-id=generated \
                  --rdzv-backend=c10d";
    let script = "-- train --lr 3 --hostfile x";
    let own = |rank, slots: &str| {
        format!(
            "{common} --node-rank={rank} \
             --rdzv-endpoint=10.0.0.1:29401,10.0.0.2:29401,10.0.0.3:29401 \
             --rdzv-conf=voters=3{slots} {script}"
        )
    };
    let expected = [own(0, " --nproc-per-node=8"), own(1, ""), own(2, " --nproc-per-node=4")];
    assert_eq!(agents(&plan, &[0, 1, 2]), expected);
    // The printed commands lack the flag of a first start.
    let first = plan.first_job();
    assert_eq!(first.flags.last(), Some(&"--first-start".into()));
    assert_eq!(first.flags[..first.flags.len() - 1], plan.job.flags);
    assert_eq!(plan.job.env, [("SECRET".to_owned(), "s3cret".into())]);
    assert_eq!(plan.job.folder, PathBuf::from("/work here"));
}

/// Without flags for output, workers' lines begin with host and rank.
#[test]
fn lines_are_marked() {
    let words = agents(&plan("--nproc-per-node gpu t.py").unwrap(), &[0, 1, 2]).join("\n");
    assert!(words.contains("--mark-lines"), "{words}");
    assert!(words.contains("'--log-line-prefix-template=[n2:${rank}] '"), "{words}");
    assert!(!words.contains("--nproc-per-node=8"), "{words}");
    for own in ["-t 1", "-r 3", "--log-line-prefix-template x"] {
        let plan = plan(&format!("{own} t.py")).unwrap();
        let words = agents(&plan, &[0, 1, 2]).join("\n");
        assert!(!plan.marks_workers && !words.contains("[n2:"), "{words}");
    }
}

/// The first host that is reached is the endpoint. Hosts that were not reached are not waited for.
#[test]
fn first_reached_host_is_the_endpoint() {
    let plan = plan("--nnodes 2:3 --rdzv-conf join_timeout=60 t.py").unwrap();
    let words = agents(&plan, &[1, 2]);
    assert!(words[0].contains("--node-rank=0") && words[1].contains("--node-rank=1"));
    let conf = "--rdzv-conf=join_timeout=60,is_host=1,last_call_timeout=5 ";
    assert!(words[0].contains(conf), "{words:?}");
}

/// If the first host has no address that others can use, the next one hosts the coordinator. The ranks stay the same.
#[test]
fn coordinator_has_an_address() {
    let plan = plan("t.py").unwrap();
    let jobs = plan.host_jobs(&[(0, host_address(None)), (1, host_address(Some("10.0.0.2")))]);
    let words: Vec<String> = jobs.iter().map(|job| shell_words::join(&job.flags)).collect();
    assert!(words[0].contains("--node-rank=0 --rdzv-endpoint=10.0.0.2:29401"), "{words:?}");
    assert!(words[0].contains("is_host=0") && words[1].contains("is_host=1"), "{words:?}");
}

/// Hosts without addresses use the loopback address if all of them are this machine. Otherwise they use the name of the first host.
#[test]
fn hosts_without_an_address() {
    let plan = plan("t.py").unwrap();
    let other = HostAddress { host_name: "other".to_owned(), ..host_address(None) };
    let jobs = |second: HostAddress| plan.host_jobs(&[(0, host_address(None)), (1, second)]);
    assert!(
        shell_words::join(&jobs(host_address(None))[1].flags)
            .contains("--rdzv-endpoint=127.0.0.1:29401")
    );
    assert!(shell_words::join(&jobs(other)[1].flags).contains("--rdzv-endpoint=n1:29401"));
}

/// An endpoint, backend or name that the user has given is kept.
#[test]
fn given_endpoints_stay() {
    let given = plan("--rdzv-endpoint h:1 --rdzv-id mine t.py").unwrap();
    assert_eq!(given.first_job(), given.job);
    let words = agents(&given, &[0, 1, 2]).join("\n");
    assert!(!words.contains("is_host") && !words.contains("generated"), "{words}");
    assert_eq!(words.matches("--rdzv-endpoint").count(), 3);
    let voters = plan("--rdzv-endpoint n1,n2,n3 t.py").unwrap();
    for words in agents(&voters, &[0, 1, 2]) {
        assert!(words.contains("--rdzv-endpoint=n1,n2,n3 "), "{words}");
        assert!(words.contains("--rdzv-backend=c10d ") && !words.contains("is_host"), "{words}");
    }
    for backend in ["etcd", "etcd-v2"] {
        let line = format!("--rdzv-backend {backend} --rdzv-endpoint e0,e1 --rdzv-id mine t.py");
        for words in agents(&plan(&line).unwrap(), &[0, 1, 2]) {
            assert!(words.contains("--rdzv-endpoint=e0,e1 "), "{words}");
            assert!(words.contains(&format!("--rdzv-backend={backend} ")), "{words}");
            assert!(!words.contains("c10d") && !words.contains("is_host"), "{words}");
        }
    }
    let fixed = plan("--rdzv-backend static --nnodes 2 t.py").unwrap();
    assert_eq!(fixed.hosts.len(), 2);
    let words = agents(&fixed, &[0, 1]);
    assert!(words[1].contains("--node-rank=1 --master-addr=10.0.0.1"), "{words:?}");
    let alone = plan("--include n3 t.py").unwrap();
    assert!(!agents(&alone, &[0])[0].contains("--rdzv-endpoint"));
}

/// With `voters=3`, the first, the middle and the last reached host are the voters, at their own addresses and ports. The agents get the
/// number of voters that are in the list.
#[test]
fn voters_are_chosen_among_the_reached() {
    let own = |host: HostNumber| {
        let address = Some(format!("10.0.0.{}", host + 1).parse().unwrap());
        (host, HostAddress { address, port: 29400 + host as u16, ..host_address(None) })
    };
    let endpoints = |plan: &Plan, reached: &[(HostNumber, HostAddress)]| {
        let jobs = plan.host_jobs(reached);
        let words = jobs.iter().map(|job| {
            let words = shell_words::join(&job.flags);
            let words = words.split(' ').filter(|word| word.starts_with("--rdzv-"));
            words.collect::<Vec<_>>().join(" ")
        });
        let mut words: Vec<String> = words.collect();
        words.dedup();
        words.join("; ")
    };
    let five =
        plan_of("n1\nn2\nn3\nn4\nn5\n", "--nnodes 2:5 --rdzv-conf voters=3,join_timeout=9 t.py");
    let all: Vec<_> = (0..5).map(own).collect();
    let expected = "--rdzv-endpoint=10.0.0.1:29400,10.0.0.3:29402,10.0.0.5:29404 \
                    --rdzv-conf=join_timeout=9,voters=3";
    assert_eq!(endpoints(&five.clone().unwrap(), &all), expected);
    let expected = "--rdzv-endpoint=10.0.0.2:29401,10.0.0.3:29402,10.0.0.5:29404 \
                    --rdzv-conf=join_timeout=9,voters=3,last_call_timeout=5";
    assert_eq!(endpoints(&five.clone().unwrap(), &[own(1), own(2), own(3), own(4)]), expected);
    // A host without an address that others can use cannot be a voter.
    let mut one_here = all.clone();
    one_here[0].1.address = None;
    let expected = "--rdzv-endpoint=10.0.0.2:29401,10.0.0.3:29402,10.0.0.5:29404 \
                    --rdzv-conf=join_timeout=9,voters=3";
    assert_eq!(endpoints(&five.clone().unwrap(), &one_here), expected);
    // With two hosts there is one coordinator.
    let two = [own(1), own(2)];
    let expected = "--rdzv-endpoint=10.0.0.2:29401 \
                    --rdzv-conf=join_timeout=9,is_host=1,last_call_timeout=5; \
                    --rdzv-endpoint=10.0.0.2:29401 \
                    --rdzv-conf=join_timeout=9,is_host=0,last_call_timeout=5";
    let rendezvous = five.clone().unwrap().rendezvous;
    assert_eq!(endpoints(&five.unwrap(), &two), expected);
    let warning = "too few hosts were reached: the job has one coordinator, which is not elected, \
                   instead of 3 voters";
    assert_eq!(rendezvous.voters_warning(&rendezvous.coordinators(&two)).as_deref(), Some(warning));
    assert_eq!(rendezvous.voters_warning(&rendezvous.coordinators(&all)), None);
    // A variable of the agents has the same meaning as the flag.
    let variable = plan_of("n1\nn2\nn3\n", "-x PET_RDZV_CONF=join_settle=2,voters=3 t.py").unwrap();
    let expected = "--rdzv-endpoint=10.0.0.1:29400,10.0.0.2:29401,10.0.0.3:29402 \
                    --rdzv-conf=join_settle=2,voters=3";
    assert_eq!(endpoints(&variable, &all[..3]), expected);
    let listed = plan("--rdzv-conf voters=3 --rdzv-endpoint n1,n2,n3 t.py").unwrap();
    assert_eq!(endpoints(&listed, &all[..3]), "");
    assert_eq!(agents(&listed, &[0, 1, 2])[0].matches("--rdzv-conf=voters=3").count(), 1);
}

/// A number of voters that the job cannot have is a mistake.
#[test]
fn mistakes_in_the_number_of_voters() {
    for (words, error) in [
        ("--rdzv-conf voters=5 t.py", "`voters=5`, but the number of hosts is 3"),
        ("--rdzv-conf voters=2 t.py", "`voters=2`, which is not 1, 3 or 5"),
        ("-x PET_RDZV_CONF=voters=5 t.py", "`voters=5`, but the number of hosts is 3"),
        (
            "--rdzv-conf voters=3,is_host=1 t.py",
            "`voters=3`, whose hosts elect the coordinator, so `is_host` has no meaning",
        ),
        (
            "--rdzv-conf voters=5 --rdzv-endpoint n1 t.py",
            "`voters=5`, but `--nnodes 3` allows fewer nodes",
        ),
        (
            "--rdzv-conf voters=5 --rdzv-endpoint n1,n2,n3 t.py",
            "`voters=5`, but `--rdzv-endpoint` lists 3 hosts",
        ),
        (
            "--rdzv-conf voters=3 --rdzv-backend static t.py",
            "`voters=3`, but with the backend `static` the coordinator is always that of node 0",
        ),
    ] {
        let errors = plan(words).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [format!("`--rdzv-conf` has {error}")], "{words}");
        assert!(errors[0].hint().is_some(), "{words}");
    }
}

/// The chosen accelerators of a host are the devices of its workers.
#[test]
fn devices() {
    let plan = plan("--include n1:0,2@n2 t.py").unwrap();
    let jobs = plan.host_jobs(&[(0, host_address(None)), (1, host_address(None))]);
    assert_eq!(jobs[0].env, [("CUDA_VISIBLE_DEVICES".to_owned(), "0,2".into())]);
    assert!(shell_words::join(&jobs[0].flags).contains("--nproc-per-node=2"));
    assert_eq!(jobs[1].env, []);
}

/// All mistakes that are found without network access are reported at once.
#[test]
fn mistakes_are_reported_at_once() {
    let mistakes = |words| -> Vec<String> {
        plan(words).unwrap_err().iter().map(ToString::to_string).collect()
    };
    let texts = mistakes("-x UNSET --fanout 0 --nnodes 4 --node-rank 1 --ssh ' ");
    let parts = ["a quote is not closed", "UNSET is not set", "no training script", "--node-rank"];
    for part in parts {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
    }
    for (words, text) in [
        ("--ssh rsh t.py", "`rsh` was not found in PATH"),
        ("--nnodes 4:8 t.py", "3 hosts are fewer than the 4 that `--nnodes` needs"),
        ("--exclude n[1-3] t.py", "`--include` and `--exclude` leave none of the 3 hosts"),
        ("--log-format xml t.py", "`--log-format xml` is neither `text` nor `json`"),
        ("--fanout 0 t.py", "`--fanout 0` is not a number from 1 to 1000"),
        ("--nnodes 3:2 t.py", "`--nnodes 3:2` must satisfy 1 <= MIN <= MAX"),
        (
            "--print-completion bash t.py",
            "`--print-completion` cannot be used with `ragent launch`",
        ),
    ] {
        assert_eq!(mistakes(words), [text], "{words}");
    }
}

/// More hosts than one process can connect to are refused. The filters may choose some of a longer list.
#[test]
fn number_of_hosts_is_bounded() {
    let hostfile: String = (0..=limits::MAX_HOSTS).map(|host| format!("n{host}\n")).collect();
    let errors = plan_of(&hostfile, "t.py").unwrap_err();
    let text = "1001 hosts are more than the 1000 that `ragent launch` can connect to";
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    assert!(errors[0].hint().is_some_and(|hint| hint.contains("Slurm, MPI or a systemd unit")));
    assert_eq!(plan_of(&hostfile, "--exclude n0 t.py").unwrap().hosts.len(), limits::MAX_HOSTS);
}

/// Defaults that depend on the job's name use the name that the launch assigns. Files on the hosts are not required on this host.
#[test]
fn names_and_files_of_the_hosts() {
    for words in [
        "--launch-method deepspeed --deepspeed-config there.json t.py",
        "--save-path auto --checkpoint-path auto t.py",
        "--rdzv-endpoint auto t.py",
    ] {
        let words = agents(&plan(words).unwrap(), &[0, 1, 2]).join("\n");
        assert!(words.contains("--rdzv-id=generated"), "{words}");
    }
}

/// Hosts beyond the number of nodes are spares of the same job, even if that number is one.
#[test]
fn more_hosts_than_one_node() {
    let words = agents(&plan("--nnodes 1 t.py").unwrap(), &[0, 1, 2]);
    let endpoint = "--rdzv-endpoint=10.0.0.1:29401";
    assert!(words.iter().all(|words| words.contains(endpoint)), "{words:?}");
    let alone = agents(&plan("--include n1 t.py").unwrap(), &[0]);
    assert!(!alone[0].contains("--rdzv-endpoint"), "{alone:?}");
}

/// A relative folder is resolved in this host's current folder. Variables that are passed to the hosts determine the time that agents may
/// take to end.
#[test]
fn folders_and_variables_mean_what_they_mean_here() {
    let relative = plan("--chdir sub t.py").unwrap();
    assert_eq!(relative.job.folder, PathBuf::from("/work here/sub"));
    assert_eq!(plan("--chdir /else t.py").unwrap().job.folder, PathBuf::from("/else"));
    let patient = plan("-x PET_SHUTDOWN_TIMEOUT=600 t.py").unwrap();
    assert!(patient.stop() > Duration::from_secs(1200), "{:?}", patient.stop());
}

/// The signals that the user has given are watched, both for leaving and for passing on.
#[test]
fn signals_of_the_user() {
    let plan = plan("--signals-to-handle SIGUSR2 --signals-to-forward SIGUSR1 t.py").unwrap();
    assert_eq!(plan.spec.forwarded, [Signal::SIGUSR1]);
    assert!(plan.signals.contains(&Signal::SIGUSR2) && plan.signals.contains(&Signal::SIGINT));
}

/// A secret is sent to the agents, unless the user declines it or their variables name another one. It is not a flag.
#[test]
fn secret_is_sent() {
    let flags = |words: &str| {
        let plan = plan(words).unwrap();
        let flags: Vec<String> =
            plan.job.flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
        (plan.job.secret.is_some(), flags.join(" "))
    };
    let (is_sent, words) = flags("train.py");
    assert!(is_sent && !words.contains("secret") && !words.contains("auth"), "{words}");
    let (is_sent, words) = flags("--secret-file here train.py");
    assert!(is_sent && !words.contains("here"), "{words}");
    for variable in ["PET_SECRET_FILE=/s", "PET_AUTH=none", CERTIFICATES] {
        assert!(!flags(&format!("-x {variable} train.py")).0, "{variable}");
    }
    let declined = |words: &str| {
        let here = |here: Here| Here { secret: LaunchSecret::Declined, ..here };
        let plan = plan_with("n1\nn2\n", words, here).unwrap();
        assert_eq!(plan.job.secret, None);
        plan.job.flags.iter().filter(|flag| *flag == "--auth=none").count()
    };
    assert_eq!((declined("train.py"), declined("--auth none train.py")), (1, 1));
}

/// Variables of agents that have certificates on their hosts.
const CERTIFICATES: &str = "PET_TLS_CA=/ca -x PET_TLS_CERT=/cert -x PET_TLS_KEY=/key";

/// With certificates, no secret is sent. The agents get the flags, also for variables of the launching host.
#[test]
fn certificates_are_flags() {
    let certificates = || CertificateRequest {
        authorities: "/ca".into(),
        certificate: "cert".into(),
        key: "/key".into(),
        peer: PeerName::parse("node"),
    };
    for words in ["train.py", "--auth tls --tls-ca /ca --tls-peer node train.py"] {
        let here = |here: Here| Here { secret: LaunchSecret::Certificates(certificates()), ..here };
        let plan = plan_with("n1\nn2\n", words, here).unwrap();
        assert_eq!(plan.job.secret, None);
        let is_auth = |flag: &&String| flag.starts_with("--auth") || flag.starts_with("--tls");
        let flags: Vec<String> =
            plan.job.flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
        let flags: Vec<&String> = flags.iter().filter(is_auth).collect();
        let expected =
            ["--auth=tls", "--tls-ca=/ca", "--tls-cert=cert", "--tls-key=/key", "--tls-peer=node"];
        assert_eq!(flags, expected);
    }
}
