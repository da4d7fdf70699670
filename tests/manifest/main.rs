//! Tests that the output of `ragent manifest k8s` is valid by the official schemas of Kubernetes.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod bad_input;
#[path = "../support/mod.rs"]
mod support;

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use serde_json::{Value, json};
use support::{Sandbox, skip};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The oldest version that has all used fields, and the newest one with schemas.
const VERSIONS: &str = "1.33,1.37";

/// The Python with the schemas. `None` if it is missing.
fn python() -> Option<PathBuf> {
    let folder = PathBuf::from(format!("{REPOSITORY}/.venv"));
    let libraries = fs::read_dir(folder.join("lib")).into_iter().flatten().flatten();
    let mut libraries = libraries.map(|entry| entry.path().join("site-packages"));
    if libraries.any(|library| library.join("kubernetes_validate").exists()) {
        return Some(folder.join("bin/python"));
    }
    skip("there is no .venv with kubernetes-validate; `scripts/setup-venv.sh` makes it");
    None
}

/// Makes a manifest of each of these command lines, and validates every document. Returns the documents of each manifest.
fn manifests(sandbox: &Sandbox, lines: &[&str]) -> Option<Vec<Vec<Value>>> {
    let python = python()?;
    let script = format!("{REPOSITORY}/tests/manifest/validate.py");
    let mut validate = sandbox.program(&python.to_string_lossy()).arg(script).arg(VERSIONS);
    for (at, line) in lines.iter().enumerate() {
        let path = sandbox.path(&format!("{at}.yaml"));
        let mut start = sandbox.ragent("manifest k8s --name digits --image registry/torch:1");
        // Arguments may contain any other white space, so only spaces split them.
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            start = start.arg(word);
        }
        let end = start.run();
        assert_eq!(end.code, Some(0), "{line}:\n{}", end.stderr);
        // The default needs a Secret.
        let is_of_several = line.contains("--nnodes") && !line.contains("--nnodes 1 ");
        let is_noted = is_of_several && !line.contains("--secret");
        assert_eq!(
            end.stderr.contains("the pods wait for the Secret `digits-ragent`"),
            is_noted,
            "{line}"
        );
        assert_eq!(end.stderr.lines().count(), usize::from(is_noted), "{}", end.stderr);
        fs::write(&path, &end.stdout).unwrap();
        validate = validate.arg(path);
    }
    let end = validate.run();
    assert_eq!(end.code, Some(0), "{}\n{}", end.stdout, end.stderr);
    let manifests: Vec<Vec<Value>> =
        end.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(manifests.len(), lines.len());
    Some(manifests)
}

fn kinds(manifest: &[Value]) -> Vec<&str> {
    manifest.iter().map(|document| document["kind"].as_str().unwrap()).collect()
}

fn pod(manifest: &[Value]) -> &Value {
    &manifest.last().unwrap()["spec"]["template"]["spec"]
}

fn args(manifest: &[Value]) -> Vec<&str> {
    let args = pod(manifest)["containers"][0]["args"].as_array().unwrap();
    args.iter().map(|arg| arg.as_str().expect("an argument is a text")).collect()
}

/// Every document of every combination of flags is valid.
#[test]
fn every_manifest_is_valid() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("ds.json"), "{\n  \"train_batch_size\": 8\n}\n").unwrap();
    let lines = [
        "train.py",
        "--namespace ml --image-pull-policy Always --image-pull-secret regcred train.py --lr 3",
        "--nnodes 2:8 --gpus-per-pod 8 --max-restarts 3 --pod-restarts 0 train.py",
        "--nnodes 4 --gpus-per-pod 1 --gpu-resource amd.com/gpu --node-selector gpu=mi300 train.py",
        "--gpus-per-pod 1 --resource nvidia.com/gpumem=8000 --resource nvidia.com/gpucores=30 t.py",
        "--resource cpu=500m --resource memory=64Gi --nproc-per-node auto train.py",
        "--nnodes 2:8:2 --launch-method basic train.py",
        "--launch-method basic --shared-file auto --volume pvc:data:/data train.py",
        "--launch-method basic --shared-file /data/x --volume host:/nfs:/data train.py",
        "--launch-method torchrun -m pkg.train",
        "--launch-method deepspeed --deepspeed-config ds.json --volume pvc:data:/data train.py",
        "--launch-method deepspeed --save-path /out train.py",
        "--save-path auto --checkpoint-path auto --volume pvc:a:/a --volume pvc:b:/b train.py",
        "--nnodes 2:8 --env PET_RDZV_CONF=voters=3 train.py",
        "--nnodes 5 --env PET_RDZV_CONF=voters=5,join_timeout=3600 train.py",
        "--nnodes 2:4 --rdzv-backend etcd --rdzv-endpoint etcd-0.etcd,etcd-1.etcd \
         --env RAGENT_ETCD_USER=me --env RAGENT_ETCD_PASSWORD_FILE=/etc/etcd/password \
         --volume pvc:etcd:/etc/etcd \
         --env PET_RDZV_CONF=protocol=https,cacert=/etc/etcd/ca.pem train.py",
        "--nnodes 2 --secret new --run-as 1000 train.py",
        "--nnodes 2 --metrics-listen [::]:9400 --run-as 1000 train.py",
        "--nnodes 2 --secret none --allow-from monitoring --allow-from ml train.py",
        "--no-python --ragent /opt/ragent --shutdown-timeout 0 --env A=1 --env PET_TEE=3 ./run.sh",
    ];
    let Some(manifests) = manifests(&sandbox, &lines) else { return };
    for (manifest, line) in manifests.iter().zip(lines) {
        let first = [("ds.json", "ConfigMap"), ("--secret new", "Secret")];
        let first = first.into_iter().filter(|(flag, _)| line.contains(flag)).map(|(_, kind)| kind);
        let expected: Vec<&str> = first.chain(["NetworkPolicy", "Service", "Job"]).collect();
        assert_eq!(kinds(manifest), expected, "{line}");
        let namespace = line.contains("--namespace").then_some("ml");
        for document in manifest {
            assert_eq!(document["metadata"]["namespace"].as_str(), namespace, "{line}");
        }
    }
}

/// With a port for the metrics, pods have its annotations. The network policy admits the pods of the cluster to that port, or only those of
/// `--allow-from`. The pods still comply with the profile `restricted`.
#[test]
fn metrics_are_scraped() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 2 --metrics-listen 0.0.0.0:9400 --run-as 1000";
    let from = format!("{flags} --allow-from monitoring train.py");
    let lines = [&format!("{flags} train.py"), &from, "--nnodes 2 --run-as 1000 train.py"];
    let Some(manifests) = manifests(&sandbox, &lines) else { return };
    let own_rule = 1;
    for (manifest, rules) in manifests.iter().zip([own_rule + 1, own_rule, own_rule]) {
        let policy = manifest.iter().find(|document| document["kind"] == "NetworkPolicy").unwrap();
        let ingress = policy["spec"]["ingress"].as_array().unwrap();
        assert_eq!(ingress.len(), rules, "{policy}");
        if let Some(rule) = ingress.get(own_rule) {
            assert_eq!(rule["ports"], json!([{"port": 9400, "protocol": "TCP"}]));
            assert_eq!(rule["from"], json!([{"namespaceSelector": {}}]));
        }
    }
    let annotations = json!({
        "prometheus.io/scrape": "true", "prometheus.io/port": "9400", "prometheus.io/path": "/metrics",
    });
    let annotated = |manifest: &[Value]| {
        manifest.last().unwrap()["spec"]["template"]["metadata"]["annotations"].clone()
    };
    for manifest in &manifests[..2] {
        assert_eq!(annotated(manifest), annotations);
        assert!(args(manifest).contains(&"--metrics-listen=0.0.0.0:9400"));
        let container = &pod(manifest)["containers"][0];
        assert_eq!(container["ports"][1], json!({"containerPort": 9400, "name": "metrics"}));
        let without = &pod(&manifests[2])["containers"][0];
        assert_eq!(container["securityContext"], without["securityContext"]);
        assert_eq!(pod(manifest)["securityContext"], pod(&manifests[2])["securityContext"]);
    }
    assert_eq!(annotated(&manifests[2]), Value::Null);
}

/// Pods share a secret that agents accept, and admit connections of the job only. With a user, they comply with the profile `restricted`.
/// Two prints are equal, so the manifest can be applied twice.
#[test]
fn pods_are_restricted() {
    let sandbox = Sandbox::new();
    let line = "--nnodes 2 --run-as 1000:2000 --allow-from monitoring train.py";
    let lines =
        [line, line, "--nnodes 2 --secret new train.py", "--nnodes 2 --secret new train.py"];
    let Some(manifests) = manifests(&sandbox, &lines) else { return };
    assert_eq!(manifests[0], manifests[1]);
    let pod_spec = pod(&manifests[0]);
    let context = json!({
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 2000,
    });
    assert_eq!(pod_spec["securityContext"], context);
    let container = &pod_spec["containers"][0];
    let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], context);
    let of_secret = |value: &&Value| value["name"] == "secret";
    let volume = pod_spec["volumes"].as_array().unwrap().iter().find(of_secret).unwrap();
    assert_eq!(volume["secret"], json!({"secretName": "digits-ragent", "defaultMode": 0o440}));
    let mount = container["volumeMounts"].as_array().unwrap().iter().find(of_secret).unwrap();
    assert_eq!(
        (&mount["mountPath"], &mount["readOnly"]),
        (&json!("/etc/ragent-secret"), &json!(true))
    );
    assert!(args(&manifests[0]).contains(&"--secret-file=/etc/ragent-secret/secret"));
    let own = json!({"matchLabels": {"batch.kubernetes.io/job-name": "digits"}});
    let other = json!({"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}});
    let policy = json!({
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}, {"namespaceSelector": other}]}],
    });
    assert_eq!(manifests[0][0]["spec"], policy);
    let value = |at: usize| manifests[at][0]["stringData"]["secret"].as_str().unwrap();
    assert!(value(2).starts_with("ragent1_") && value(2) != value(3));
    assert_eq!(manifests[2][0]["immutable"], true);
    assert_eq!(
        pod(&manifests[2])["securityContext"],
        json!({"seccompProfile": {"type": "RuntimeDefault"}})
    );
}

/// Pods find the first pod by the name that the service gives it, and the service selects the pods.
#[test]
fn first_pod_is_found() {
    let sandbox = Sandbox::new();
    let Some(manifests) = manifests(&sandbox, &["--nnodes 2 train.py"]) else { return };
    let [_, service, job] = manifests[0].as_slice() else {
        panic!("a policy, a service and a job")
    };
    let name = service["metadata"]["name"].as_str().unwrap();
    assert_eq!(pod(&manifests[0])["subdomain"].as_str(), Some(name));
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    let selected = service["spec"]["selector"]["batch.kubernetes.io/job-name"].as_str();
    assert_eq!(selected, job["metadata"]["name"].as_str());
    let endpoint = format!("--rdzv-endpoint={name}-0.{name}:29400");
    assert!(args(&manifests[0]).contains(&endpoint.as_str()));
}

/// Pods get arguments and variables unchanged, even if YAML could read them as another type.
#[test]
fn words_are_not_changed() {
    let words = "1:20 2:4 0x10 0o14 012 1e3 1_000 .5 -1 +1 yes No on null ~ true .inf .nan \
                 2026-11-21 = << - -- ? | > !x &x *x %x @x `x #x a: a:b : [x] {a:1} ' \" \\n \
                 a,b \t line\nline\n \u{e9}\u{4e2d} \u{7f} x'y\"z --- ... \n y n";
    let sandbox = Sandbox::new();
    let line = format!("--env X=1:20 --env Y=yes --env Z= -- train.py {words}");
    let Some(manifests) = manifests(&sandbox, &[&line]) else { return };
    let args = args(&manifests[0]);
    let script = args.iter().position(|arg| *arg == "train.py").unwrap();
    assert_eq!(args[script + 1..], words.split(' ').collect::<Vec<_>>());
    let env = pod(&manifests[0])["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|env| env["name"] == name).unwrap()["value"].as_str();
    assert_eq!([value("X"), value("Y"), value("Z")], [Some("1:20"), Some("yes"), Some("")]);
}

/// The agent accepts the arguments that the manifest gives it.
#[test]
fn agent_takes_its_words() {
    let sandbox = Sandbox::new();
    let line = "--nnodes 1 --nproc-per-node 2 --max-restarts 1 --launch-method basic --shared-file \
                auto:shared --save-path auto:out --no-python args.sh --lr 3";
    let Some(manifests) = manifests(&sandbox, &[line]) else { return };
    let mut start = sandbox.ragent("");
    for word in args(&manifests[0]) {
        // There is no such service here.
        start = start.arg(word.replace("digits-0.digits:29400", "127.0.0.1:0"));
    }
    let end = start.run();
    end.assert_code(0);
    for flag in ["--lr", "--rank", "--world_size", "--init_method", "--save_path"] {
        assert!(end.stdout.contains(&format!(" {flag}\n")), "{flag}:\n{}", end.stdout);
    }
    assert!(sandbox.path("out/ragent-digits/save").is_dir());
}

/// The configuration of DeepSpeed is included unchanged, and its path is passed to the workers.
#[test]
fn deepspeed_config_is_carried_along() {
    let sandbox = Sandbox::new();
    let texts = [
        "{\n  \"train_batch_size\": 8,\n  \"fp16\": {\"enabled\": true}\n}\n",
        "{}",
        "\n\n  {\r\n\t\"a: b\": \"# \u{e9}\",\n \"---\": 1}  \n\n",
    ];
    for (at, text) in texts.iter().enumerate() {
        fs::write(sandbox.path(&format!("ds{at}.json")), text).unwrap();
    }
    let lines = ["ds0.json", "ds1.json", "ds2.json"]
        .map(|file| format!("--launch-method deepspeed --deepspeed-config {file} train.py"));
    let lines = [&*lines[0], &*lines[1], &*lines[2]];
    let Some(manifests) = manifests(&sandbox, &lines) else { return };
    for (manifest, text) in manifests.iter().zip(texts) {
        assert_eq!(manifest[0]["data"]["deepspeed.json"], text);
    }
    let manifest = &manifests[0];
    let volumes = pod(manifest)["volumes"].as_array().unwrap();
    let is_config =
        |volume: &&Value| volume["configMap"]["name"] == manifest[0]["metadata"]["name"];
    let volume = volumes.iter().find(is_config).expect("a volume of the ConfigMap");
    let mounts = pod(manifest)["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).unwrap();
    let path = format!("{}/deepspeed.json", mount["mountPath"].as_str().unwrap());
    assert!(args(manifest).contains(&format!("--deepspeed-config={path}").as_str()));
}

/// A manifest may be written to a file instead.
#[test]
fn output_file() {
    let sandbox = Sandbox::new();
    let words = "manifest k8s --name a --image b";
    let printed = sandbox.ragent(&format!("{words} t.py")).run();
    let end = sandbox.ragent(&format!("{words} --output a.yaml t.py")).run();
    end.assert_code(0);
    assert_eq!(end.stdout, "");
    let written = fs::read_to_string(sandbox.path("a.yaml")).unwrap();
    assert_eq!(written.trim_end(), printed.stdout.trim_end());
    assert!(written.starts_with("---\napiVersion: networking.k8s.io/v1\n"), "{written}");
    let mode = || fs::metadata(sandbox.path("a.yaml")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    let secret = format!("{words} --nnodes 2 --secret new --output a.yaml t.py");
    sandbox.ragent(&secret).run().assert_code(0);
    assert_eq!(mode(), 0o600, "it contains a secret");
}

/// The schemas are strict: they find an unknown field, and a number in place of a string.
#[test]
fn schemas_are_strict() {
    let Some(python) = python() else { return };
    let sandbox = Sandbox::new();
    let script = format!("{REPOSITORY}/tests/manifest/validate.py");
    let manifest = sandbox.ragent("manifest k8s --name a --image b t.py 1").run().stdout;
    for (from, to) in [
        ("completionMode:", "completionsMode:"),
        ("- \"1\"", "- 1"),
        ("parallelism: 1", "parallelism: x"),
    ] {
        assert!(manifest.contains(from), "{manifest}");
        fs::write(sandbox.path("a.yaml"), manifest.replace(from, to)).unwrap();
        let validate = sandbox.program(&python.to_string_lossy()).arg(&script).arg(VERSIONS);
        let end = validate.arg(sandbox.path("a.yaml")).run();
        assert_ne!(end.code, Some(0), "{to}");
        assert!(end.stderr.contains("Job in 1.33"), "{}", end.stderr);
    }
}

/// Every command of the page makes a manifest.
#[test]
fn page_can_be_copied() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("ds.json"), "{}").unwrap();
    let page = include_str!("../../docs/kubernetes.md");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("    ragent manifest k8s")).collect();
    for command in &commands {
        let words = command.split('|').next().unwrap_or_default();
        let end = sandbox.ragent(&format!("manifest k8s{words}")).run();
        assert_eq!(end.code, Some(0), "{command}:\n{}", end.stderr);
        assert!(end.stdout.contains("kind: Job\n"), "{command}:\n{}", end.stdout);
    }
    assert!(commands.len() > 3, "{commands:?}");
}
