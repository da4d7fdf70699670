//! Tests manifests: one command line, one assertion.

use std::ffi::OsString;

use ragent_base::sys::host::FakeHost;
use ragent_options::{cli::Cli, spec::UsageError};
use serde_json::json;

use super::*;

fn args(line: &str) -> K8sArgs {
    let words = format!("ragent manifest k8s {line}");
    let cli = Cli::read(words.split_whitespace().map(OsString::from)).unwrap();
    let Some(ragent_options::cli::Command::Manifest(args)) = cli.command else { panic!("{line}") };
    let ManifestTarget::K8s(args) = args.target;
    *args
}

fn resolve(line: &str) -> Result<ManifestSpec, Vec<UsageError>> {
    let mut host = FakeHost::default();
    host.put("ds.json", "{}");
    ManifestSpec::resolve(args(line), &host)
}

fn spec(line: &str) -> ManifestSpec {
    resolve(&format!("--name digits --image i {line}")).unwrap()
}

fn words(line: &str) -> String {
    container::agent_args(&spec(line)).join(" ")
}

/// The agent of each pod gets the flags of the job, and after `--` the script and its arguments.
#[test]
fn words_of_the_agent() {
    assert_eq!(
        words("train.py --lr 3 -h"),
        "--nnodes=1 --nproc-per-node=1 --rdzv-endpoint=digits-0.digits:29400 --rdzv-id=digits \
         --max-restarts=0 --shutdown-timeout=30 -- train.py --lr 3 -h"
    );
    assert_eq!(
        words("--nnodes 2:4 --gpus_per=8 --max-re 3 -m pkg.train -- --image x"),
        "--nnodes=2:4 --nproc-per-node=8 \
         --rdzv-endpoint=digits-0.digits,digits-1.digits,digits-2.digits:29400 --rdzv-id=digits \
         --max-restarts=3 --shutdown-timeout=30 --secret-file=/etc/ragent-secret/secret --module -- pkg.train \
         --image x"
    );
}

/// Several pods share a secret, unless the user declines it or names it in variables.
#[test]
fn secrets() {
    let flags = |line: &str| {
        let words = words(line);
        let is_auth = |word: &&str| word.starts_with("--auth") || word.starts_with("--secret");
        words.split(' ').filter(is_auth).collect::<Vec<_>>().join(" ")
    };
    let file = "--secret-file=/etc/ragent-secret/secret";
    assert_eq!(flags("t.py"), "");
    assert_eq!(flags("--nnodes 2 t.py"), file);
    assert_eq!(flags("--nnodes 2 --secret new t.py"), file);
    assert_eq!(flags("--secret mine t.py"), file);
    assert_eq!(flags("--nnodes 2 --secret none t.py"), "--auth=none");
    assert_eq!(flags("--nnodes 2 --env PET_SECRET_FILE=/run/s t.py"), "");
    assert_eq!(flags("--nnodes 2 --env PET_AUTH=none t.py"), "");
    let tls = "--env PET_TLS_CA=/a --env PET_TLS_CERT=/c --env PET_TLS_KEY=/k";
    assert_eq!(flags(&format!("--nnodes 2 {tls} t.py")), "");
    let note = |line: &str| spec(line).secret.note(Some("ml"));
    assert_eq!(note("--nnodes 2 --secret mine t.py"), None);
    let text = note("--nnodes 2 t.py").unwrap();
    assert!(
        text.contains(
            "create secret generic digits-ragent --from-file=secret=/dev/stdin --namespace ml"
        ),
        "{text}"
    );
    let error = |line: &str| {
        let errors = resolve(&format!("--name a --image i {line}")).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].to_string()
    };
    assert_eq!(
        error("--secret mine --env PET_AUTH=secret t.py"),
        "`--secret` and `--env PET_AUTH` both select the authentication"
    );
    assert!(error("--secret Mine t.py").starts_with("`--secret Mine` is not a name of a secret"));
    for wrong in ["0", "1:0", "me", "1:2:3", "-1", ""] {
        let text = error(&format!("--run-as={wrong} t.py"));
        assert!(text.contains("is not `UID` or `UID:GID`"), "{text}");
    }
    assert!(error("--allow-from A t.py").starts_with("`--allow-from A` is not a namespace"));
}

/// The members of etcd replace the first pod as the endpoint.
#[test]
fn members_of_etcd() {
    assert_eq!(
        words(
            "--nnodes 2 --rdzv-backend etcd --rdzv-endpoint e0:2379,e1:2379 \
             --env PET_RDZV_CONF=etcd_prefix=/a t.py"
        ),
        "--nnodes=2 --nproc-per-node=1 --rdzv-backend=etcd --rdzv-endpoint=e0:2379,e1:2379 \
         --rdzv-id=digits --max-restarts=0 --shutdown-timeout=30 \
         --secret-file=/etc/ragent-secret/secret -- t.py"
    );
}

/// With etcd any pod can lead, so the first pod that succeeds is enough. Only `voters=1` is accepted.
#[test]
fn no_voters_with_etcd() {
    let etcd = "--nnodes 2:4 --rdzv-backend etcd-v2 --rdzv-endpoint e0,e1,e2";
    for conf in ["join_timeout=9", "voters=1"] {
        let spec = spec(&format!("{etcd} --env PET_RDZV_CONF={conf} t.py"));
        let words = container::agent_args(&spec).join(" ");
        assert!(words.contains(" --rdzv-backend=etcd-v2 --rdzv-endpoint=e0,e1,e2 "), "{words}");
        assert_eq!(
            job::job(&spec)["spec"]["successPolicy"],
            json!({"rules": [{"succeededCount": 1}]})
        );
    }
    // The same if there are too few pods for the voters.
    for voters in [3, 5] {
        let line = format!("--name a --image i {etcd} --env PET_RDZV_CONF=voters={voters} t.py");
        let errors = resolve(&line).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected = format!(
            "`--rdzv-conf` has `voters={voters}`, but with an etcd backend there are no voters: any \
             agent can become the coordinator"
        );
        assert_eq!(texts, [expected]);
        assert_eq!(errors[0].hint(), Some("omit it"));
    }
}

/// The flags of a launch method reach the agent. `auto` becomes a path on the first volume. A configuration becomes the path at which the
/// manifest mounts it.
#[test]
fn launch_methods() {
    let basic = words(
        "--launch-method basic --shared-file auto --save-path auto --checkpoint-path auto:/b/x \
         --volume pvc:a:/a --volume pvc:b:/b t.py",
    );
    assert!(
        basic.ends_with(
            " --launch-method=basic --shared-file=auto:/a --save-path=auto:/a \
             --checkpoint-path=auto:/b/x -- t.py"
        ),
        "{basic}"
    );
    let deepspeed = words("--launch-method deepspeed --deepspeed-config ds.json t.py");
    let flags = " --launch-method=deepspeed --deepspeed-config=/etc/ragent/deepspeed.json -- t.py";
    assert!(deepspeed.ends_with(flags), "{deepspeed}");
    assert!(!words("--launch-method torchrun t.py").contains("--launch-method"));
}

/// The number of whole GPUs is the number of workers. A number of shares of a GPU is not.
#[test]
fn resources() {
    let whole = spec("--gpus-per-pod 4 --gpu-resource amd.com/gpu --resource cpu=0.5 t.py");
    assert_eq!(whole.workers_per_pod, "4");
    let amounts: Vec<_> = whole.resources.iter().map(|(n, a)| format!("{n}={a}")).collect();
    assert_eq!(amounts, ["amd.com/gpu=4", "cpu=0.5"]);
    let shares = spec("--resource nvidia.com/gpumem=8000 --resource nvidia.com/gpucores=30 t.py");
    assert_eq!(shares.workers_per_pod, "1");
    assert_eq!(spec("--gpus-per-pod +08 t.py").resources["nvidia.com/gpu"], "8");
    assert_eq!(spec("--gpus-per-pod 4 --nproc-per-node gpu t.py").workers_per_pod, "gpu");
}

/// A job has succeeded if the agent of a voter has. It tolerates the loss of pods above the minimum, fails on exit codes that would occur
/// again, and ignores disruptions by the cluster.
#[test]
fn policies() {
    let job = &job::job(&spec("--nnodes 3:5 --pod-restarts 7 t.py"))["spec"];
    assert_eq!([&job["completions"], &job["parallelism"]], [5, 5]);
    assert_eq!([&job["backoffLimitPerIndex"], &job["maxFailedIndexes"]], [7, 2]);
    let success = json!([{"succeededIndexes": "0-4", "succeededCount": 1}]);
    assert_eq!(job["successPolicy"]["rules"], success);
    let rules = &job["podFailurePolicy"]["rules"];
    assert_eq!(rules[0]["action"], "FailJob");
    assert_eq!(rules[0]["onExitCodes"]["values"], json!([2, 4, 6]));
    assert_eq!(rules[1]["action"], "Ignore");
    // Both policies require it.
    assert_eq!(job["template"]["spec"]["restartPolicy"], "Never");
}

/// The first pods are the endpoints of the voters, as many as MIN allows or as `voters` asks for. The first of them that succeeds is
/// enough. The agents are given the same number.
#[test]
fn voters() {
    let endpoint = |line: &str| {
        let words = words(line);
        let endpoint = words.split(' ').find_map(|word| word.strip_prefix("--rdzv-endpoint="));
        endpoint.unwrap().to_owned()
    };
    let success = |line: &str| job::job(&spec(line))["spec"]["successPolicy"]["rules"].clone();
    let any_of = |pods: &str| json!([{"succeededIndexes": pods, "succeededCount": 1}]);
    for (line, pods, rules) in [
        ("--nnodes 1:4", "digits-0.digits:29400", json!([{"succeededIndexes": "0"}])),
        ("--nnodes 2:8", "digits-0.digits,digits-1.digits,digits-2.digits:29400", any_of("0-2")),
        (
            "--nnodes 4 --env PET_RDZV_CONF=voters=1",
            "digits-0.digits:29400",
            json!([{"succeededIndexes": "0"}]),
        ),
        (
            "--nnodes 2:4 --env PET_RDZV_CONF=join_timeout=9,voters=3",
            "digits-0.digits,digits-1.digits,digits-2.digits:29400",
            any_of("0-2"),
        ),
        (
            "--nnodes 5 --env PET_RDZV_CONF=voters=5",
            "digits-0.digits,digits-1.digits,digits-2.digits,digits-3.digits,digits-4.digits:29400",
            any_of("0-4"),
        ),
    ] {
        let line = format!("{line} t.py");
        assert_eq!(endpoint(&line), pods, "{line}");
        assert_eq!(success(&line), rules, "{line}");
    }
    for (line, error) in [
        (
            "--nnodes 2 --env PET_RDZV_CONF=voters=3",
            "`--env PET_RDZV_CONF` has `voters=3`, but `--nnodes` is 2",
        ),
        (
            "--nnodes 9 --env PET_RDZV_CONF=voters=4",
            "`--rdzv-conf` has `voters=4`, which is not 1, 3 or 5",
        ),
        (
            "--nnodes 9 --env PET_RDZV_CONF=voters=3 --env PET_RDZV_ENDPOINT=a,b,c",
            "`--env PET_RDZV_ENDPOINT` would have no effect: the manifest passes the flag to agents",
        ),
        (
            "--nnodes 9 --env PET_RDZV_CONF=voters=3 --env PET_RDZV_BACKEND=static",
            "`--rdzv-endpoint digits-0.digits,digits-1.digits,digits-2.digits:29400` is a list, \
             which requires the backend `c10d`, not `static`",
        ),
    ] {
        let errors = resolve(&format!("--name digits --image i {line} t.py")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [error], "{line}");
        assert!(errors[0].hint().is_some(), "{line}");
    }
}

/// A pod has more time to stop than its agent needs, even if the agent waits for the workers of others.
#[test]
fn time_to_stop() {
    let grace = |line| {
        job::job(&spec(line))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone()
    };
    assert_eq!(grace("t.py"), 90);
    assert_eq!(grace("--shutdown-timeout 300 t.py"), 630);
    let timeouts = ragent_rendezvous::settings::Timeouts {
        stop_grace: std::time::Duration::from_secs(30),
        ..ragent_rendezvous::settings::Timeouts::default()
    };
    let longest =
        timeouts.stop_grace + timeouts.rejoin() + ragent_base::limits::COORDINATOR_END_MARGIN;
    assert!(longest.as_secs() < 90);
}

/// Text that Kubernetes would replace is escaped.
#[test]
fn dollar_signs_stay() {
    let container = container::container(&spec("--env A=$(HOME) t.py $local_rank $(x) $$"));
    let args = container["args"].as_array().unwrap();
    assert_eq!(args[args.len() - 3..], ["$$local_rank", "$$(x)", "$$$$"]);
    let env = container["env"].as_array().unwrap();
    assert_eq!(env.last().unwrap()["value"], "$$(HOME)");
}

/// A variable that the user sets is not set twice.
#[test]
fn variables_of_the_user_win() {
    let container = container::container(&spec("--env POD_NAME=x t.py"));
    let names: Vec<_> =
        container["env"].as_array().unwrap().iter().map(|env| &env["name"]).collect();
    assert_eq!(names, ["NODE_NAME", "POD_NAME"]);
}

/// A mistake is reported with the words that were typed.
#[test]
fn mistakes() {
    let long = "x".repeat(62);
    for (line, error) in [
        ("--nnodes 4:2", "`--nnodes 4:2` must satisfy 1 <= MIN <= MAX"),
        ("--nnodes 20000", "`--nnodes 20000` is not a number of pods up to 10000"),
        (
            "--namespace A",
            "`--namespace A` is not a namespace: at most 63 lowercase letters, digits and `-`, \
             not beginning or ending with `-`",
        ),
        (
            "--image-pull-policy always",
            "`--image-pull-policy always` is not `Always`, `IfNotPresent` or `Never`",
        ),
        (
            "--gpus-per-pod 0.5",
            "`--gpus-per-pod 0.5` is not a positive number; for shares of a GPU, use `--resource`",
        ),
        ("--gpu-resource amd.com/gpu", "`--gpus-per-pod` is not given"),
        (
            "--resource memory=64GB",
            "`--resource 64GB` is not an amount, such as `8`, `0.5` or `64Gi`",
        ),
        (
            "--resource nvidia.com/gpumem=8Gi",
            "`--resource 8Gi` is not a whole number, as required for devices",
        ),
        (
            "--resource gpu=1",
            "`--resource gpu` is not a resource, such as `cpu`, `memory` or `nvidia.com/gpu`",
        ),
        ("--resource cpu", "`--resource cpu` is not `NAME=VALUE`"),
        (
            "--gpus-per-pod 1 --resource nvidia.com/gpu=2",
            "`--resource` gives `nvidia.com/gpu` twice",
        ),
        (
            "--env 1=2",
            "`--env 1` is not a variable's name: letters, digits, `-`, `_` and `.`, not \
             beginning with a digit",
        ),
        ("--launch-method mpi", "`--launch-method mpi` is not `basic`, `torchrun` or `deepspeed`"),
        ("--shared-file /x", "`--shared-file /x` requires `--launch-method basic`"),
        ("--save-path auto", "`--save-path auto` needs a volume that all pods share"),
        (
            "--launch-method deepspeed --deepspeed-config no.json",
            "`--deepspeed-config no.json` does not exist",
        ),
        ("--pod-restarts many", "`--pod-restarts many` is not a whole number, 0 or greater"),
        ("--max-restarts -1", "`--max-restarts -1` is not a whole number, 0 or greater"),
        ("--volume data", "`--volume data` is not `pvc:CLAIM:/PATH` or `host:/FOLDER:/PATH`"),
        (
            "--volume pvc:data:/dev/shm",
            "`--volume pvc:data:/dev/shm` uses the path `/dev/shm`, which pods need for other \
             files",
        ),
        (
            "--volume host:/nfs:/etc/ragent",
            "`--volume host:/nfs:/etc/ragent` uses the path `/etc/ragent`, which pods need for \
             other files",
        ),
        (
            "--volume pvc:data:/",
            "`--volume pvc:data:/` uses the path `/`, which pods need for other files",
        ),
        ("-m --no-python", "`--module` and `--no-python` cannot be used together"),
    ] {
        let errors = resolve(&format!("--name digits --image i {line} t.py")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [error], "{line}");
    }
    for name in ["7", "Digits", "a_b", "a-", &long] {
        let errors = resolve(&format!("--name {name} --image i --nnodes 2 t.py")).unwrap_err();
        assert_eq!(errors.len(), 1, "{name}");
    }
}

/// A variable is refused if the manifest passes the same flag, and the error names that flag. A value that would end every pod is refused
/// too.
#[test]
fn variables_of_agents() {
    let refused = |words: &str, part: &str, hint: &str| {
        let errors = resolve(&format!("--name a --image b {words}")).unwrap_err();
        let [error] = &errors[..] else { panic!("{words}: {errors:?}") };
        assert!(error.to_string().contains(part), "{words}: {error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{words}: {errors:?}");
    };
    let etcd = "--rdzv-backend etcd --rdzv-endpoint e";
    for (flags, variable, flag) in [
        ("", "PET_NNODES=2", "--nnodes"),
        ("", "PET_NPROC_PER_NODE=2", "--nproc-per-node"),
        ("", "PET_RDZV_ID=x", "--name"),
        ("", "PET_MAX_RESTARTS=3", "--max-restarts"),
        ("", "PET_SHUTDOWN_TIMEOUT=x", "--shutdown-timeout"),
        ("--save-path /y", "PET_SAVE_PATH=/x", "--save-path"),
        (etcd, "PET_RDZV_ENDPOINT=h", "--rdzv-endpoint"),
        (etcd, "PET_RDZV_BACKEND=c10d", "--rdzv-backend"),
    ] {
        let name = variable.split('=').next().unwrap();
        let part = format!("`--env {name}` would have no effect");
        let hint = format!("give `{flag}` instead");
        refused(&format!("{flags} --env {variable} t.py"), &part, &hint);
    }
    for (words, part) in [
        ("--env PET_RDZV_ENDPOINT=h:1", "`--env PET_RDZV_ENDPOINT`"),
        ("--env PET_RDZV_BACKEND=etcd", "`--env PET_RDZV_BACKEND` selects etcd"),
        ("--env PET_HANG_TIMEOUT=abc", "`PET_HANG_TIMEOUT=abc`"),
        ("--env PET_RDZV_CONF=foo=1", "unknown key `foo`"),
        ("--env PET_NO_PYTHON=x", "`PET_NO_PYTHON=x` is neither 0 nor 1"),
        ("--env PET_SHARED_FILE=/x", "requires `--launch-method basic`"),
        ("--rdzv-backend static", "`--rdzv-backend static`"),
        ("--rdzv-backend etcd", "`--rdzv-endpoint` is not given"),
        ("--rdzv-endpoint e", "`--rdzv-backend` is not given"),
        ("--rdzv-backend etcd --rdzv-endpoint e,,f", "is not a valid list of etcd's members"),
    ] {
        refused(&format!("{words} t.py"), part, "");
    }
    for words in [
        "--env PET_HANG_TIMEOUT=600 --env PET_RDZV_CONF=join_timeout=3600 t.py",
        "--env PET_BOGUS=1 t.py",
        "--launch-method deepspeed --env PET_DEEPSPEED_CONFIG=/in/the/image.json t.py",
        "--nproc-per-node gpu --env PET_VIRTUAL_LOCAL_RANK=1 --env PET_NODE_RANK=x t.py",
        "--env PET_STANDALONE=0 --env TORCHELASTIC_ENABLE_FILE_TIMER=1 -m t",
    ] {
        resolve(&format!("--name a --image b {words}")).expect(words);
    }
}

/// All mistakes are reported at once.
#[test]
fn all_mistakes_at_once() {
    let errors = resolve("--nnodes x --volume y").unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "`--nnodes x` is not of the form `N`, `MIN:MAX` or `MIN:MAX:UNIT`",
            "`--name` is not given",
            "`--image` is not given",
            "`--volume y` is not `pvc:CLAIM:/PATH` or `host:/FOLDER:/PATH`",
            "no training script is given",
        ]
    );
}

/// The port of the metrics is passed to the agent. In a pod it is a port of all addresses.
#[test]
fn metrics_of_pods() {
    assert!(
        words("--metrics-listen 0.0.0.0:9400 t.py").contains(" --metrics-listen=0.0.0.0:9400 ")
    );
    assert!(!words("t.py").contains("metrics"));
    for value in ["127.0.0.1:9400", "0.0.0.0:0", "[::]:29400", "9400"] {
        let line = format!("--name a --image i --metrics-listen {value} t.py");
        let errors = resolve(&line).unwrap_err();
        let flag = format!("`--metrics-listen {value}` ");
        assert!(errors.len() == 1 && errors[0].to_string().starts_with(&flag), "{errors:?}");
    }
    let errors = resolve(
        "--name a --image i --metrics-listen 0.0.0.0:1 --env PET_METRICS_LISTEN=0.0.0.0:2 t.py",
    );
    assert!(errors.unwrap_err()[0].to_string().contains("would have no effect"));
}
