//! Tests that bad input makes no manifest: it is reported before anything is printed, with exit code 2 and without a file.

use std::fs;

use crate::support::Sandbox;

/// Each mistake is repeated as typed, with the valid form, and nothing is printed.
#[test]
fn mistakes() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("bad.json"), "{").unwrap();
    for (words, parts) in [
        ("--name a --image b --launch-method mpi t.py", ["`--launch-method mpi`", "`deepspeed`"]),
        ("--name a t.py", ["`--image` is not given", "--help"]),
        ("--image b t.py", ["`--name` is not given", "--help"]),
        ("--name a --image b", ["no training script is given", "--help"]),
        ("--name A --image b t.py", ["`--name A`", "lowercase letters"]),
        ("--name a --image b --nnodes 4:2 t.py", ["`--nnodes 4:2`", "1 <= MIN <= MAX"]),
        ("--name a --image b --gpus-per-pod -1 t.py", ["`--gpus-per-pod -1`", "a positive number"]),
        ("--name a --image b --image-pull-policy x t.py", ["`--image-pull-policy x`", "`Never`"]),
        ("--name a --image b --resource gpu t.py", ["`--resource gpu`", "NAME=VALUE"]),
        ("--name a --image b --volume x:y:/z t.py", ["`--volume x:y:/z`", "`pvc:CLAIM:/PATH`"]),
        ("--name a --image b --save-path auto t.py", ["needs a volume", "--volume pvc:"]),
        (
            "--name a --image b --launch-method deepspeed --deepspeed-config bad.json t.py",
            ["`--deepspeed-config bad.json` is not valid JSON", "PET_DEEPSPEED_CONFIG"],
        ),
        (
            "--name a --image b --deepspeed-config bad.json t.py",
            ["requires `--launch-method deepspeed`", "hint: "],
        ),
        ("--name a --image b --rdzv-backend static t.py", ["`--rdzv-backend static`", "`etcd-v2`"]),
        (
            "--name a --image b --rdzv-backend etcd t.py",
            ["`--rdzv-endpoint` is not given", "hint: "],
        ),
        ("--name a --image b --rdzv-endpoint e t.py", ["`--rdzv-backend` is not given", "hint: "]),
        (
            "--name a --image b --rdzv-backend etcd --rdzv-endpoint e,,f t.py",
            ["is not a valid list of etcd's members", "hint: "],
        ),
        (
            "--name a --image b --env PET_RDZV_BACKEND=etcd t.py",
            ["`--env PET_RDZV_BACKEND` selects etcd", "`--rdzv-endpoint`"],
        ),
        (
            "--name a --image b --nnodes 2 --rdzv-backend etcd --rdzv-endpoint e \
             --env PET_RDZV_CONF=voters=3 t.py",
            ["`voters=3`, but with an etcd backend there are no voters", "hint: omit it"],
        ),
        ("--name a --image b --output /proc/no/x t.py", ["`--output /proc/no/x`", "hint: "]),
        ("--bogus t.py", ["--bogus", "--help"]),
    ] {
        let end = sandbox.ragent(&format!("manifest k8s {words}")).run();
        end.assert_code(2);
        end.assert_stderr(&parts);
        assert_eq!(end.stdout, "", "{words}");
        assert_eq!(end.stderr.matches("error:").count(), 1, "{words}:\n{}", end.stderr);
    }
}

/// An unknown or missing target is reported with the list of targets.
#[test]
fn targets() {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent("manifest nomad t.py").run();
    end.assert_code(2);
    end.assert_stderr(&["nomad"]);
    let end = sandbox.ragent("manifest").run();
    end.assert_code(2);
    end.assert_stderr(&["k8s"]);
}

/// The subcommand has its own help, and flags after the script belong to the script.
#[test]
fn help() {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent("manifest k8s --help").run();
    end.assert_code(0);
    assert!(end.stdout.contains("--gpus-per-pod"), "{}", end.stdout);
    let end = sandbox.ragent("manifest k8s --name a --image b t.py --help").run();
    end.assert_code(0);
    assert!(end.stdout.contains("- t.py\n"), "{}", end.stdout);
}

/// A variable is refused if the manifest passes the same flag, and the error names that flag. A value that would end every pod is refused
/// too.
#[test]
fn variables_of_agents() {
    let sandbox = Sandbox::new();
    let refused = |words: &str, parts: &[&str]| {
        let words = format!("manifest k8s --name a --image b {words}");
        let end = sandbox.ragent(&words).run();
        end.assert_code(2);
        end.assert_stderr(parts);
        assert_eq!(end.stdout, "", "{words}");
        assert_eq!(end.stderr.matches("error:").count(), 1, "{words}:\n{}", end.stderr);
    };
    for (variable, flag) in [
        ("PET_NNODES=2", "--nnodes"),
        ("PET_NPROC_PER_NODE=2", "--nproc-per-node"),
        ("PET_RDZV_ID=x", "--name"),
        ("PET_MAX_RESTARTS=3", "--max-restarts"),
        ("PET_SHUTDOWN_TIMEOUT=x", "--shutdown-timeout"),
        ("PET_SAVE_PATH=/x", "--save-path"),
    ] {
        let name = variable.split('=').next().unwrap();
        let words = format!("--save-path /y --env {variable} t.py");
        let expected = format!("`--env {name}` would have no effect");
        refused(&words, &[&expected, &format!("hint: give `{flag}` instead")]);
    }
    refused("--env PET_RDZV_ENDPOINT=h:1 t.py", &["`--env PET_RDZV_ENDPOINT`", "the first pod"]);
    let etcd = "--rdzv-backend etcd --rdzv-endpoint e";
    for (variable, flag) in
        [("PET_RDZV_ENDPOINT=h", "--rdzv-endpoint"), ("PET_RDZV_BACKEND=c10d", "--rdzv-backend")]
    {
        let hint = format!("hint: give `{flag}` instead");
        refused(&format!("{etcd} --env {variable} t.py"), &["would have no effect", &hint]);
    }
    for (words, part) in [
        ("--env PET_HANG_TIMEOUT=abc t.py", "`PET_HANG_TIMEOUT=abc`"),
        ("--env PET_RDZV_CONF=foo=1 t.py", "unknown key `foo`"),
        ("--env PET_NO_PYTHON=x t.py", "`PET_NO_PYTHON=x` is neither 0 nor 1"),
        ("--env PET_SHARED_FILE=/x t.py", "requires `--launch-method basic`"),
    ] {
        refused(words, &[part]);
    }
    // All mistakes are reported at once.
    let words = "manifest k8s --name a --image b --env PET_TEE=x --env PET_NNODES=2 t.py";
    sandbox.ragent(words).run().assert_stderr(&["`PET_TEE=x`", "`--env PET_NNODES`"]);
}

/// Variables that have an effect are passed on, and so are variables unknown to the agent.
#[test]
fn other_variables_pass() {
    let sandbox = Sandbox::new();
    for words in [
        "--env PET_HANG_TIMEOUT=600 --env PET_RDZV_CONF=join_timeout=3600 t.py",
        "--env PET_BOGUS=1 t.py",
        "--launch-method deepspeed --env PET_DEEPSPEED_CONFIG=/in/the/image.json t.py",
        "--nproc-per-node gpu --env PET_VIRTUAL_LOCAL_RANK=1 --env PET_NODE_RANK=x t.py",
        "--env PET_STANDALONE=0 --env TORCHELASTIC_ENABLE_FILE_TIMER=1 -m t",
    ] {
        let end = sandbox.ragent(&format!("manifest k8s --name a --image b {words}")).run();
        assert_eq!(end.code, Some(0), "{words}:\n{}", end.stderr);
    }
}
