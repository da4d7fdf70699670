//! What makes no manifest is told before anything is printed: exit code 2, no file.

use std::fs;

use crate::support::Sandbox;

/// Each mistake is repeated as typed, with what would be right, and nothing is printed.
#[test]
fn mistakes() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("bad.json"), "{").unwrap();
    for (words, parts) in [
        ("--name a --image b --launch-method mpi t.py", ["`--launch-method mpi`", "`deepspeed`"]),
        ("--name a t.py", ["`--image` is not given", "--help"]),
        ("--image b t.py", ["`--name` is not given", "--help"]),
        ("--name a --image b", ["no training script is given", "--help"]),
        ("--name A --image b t.py", ["`--name A`", "small letters"]),
        ("--name a --image b --nnodes 4:2 t.py", ["`--nnodes 4:2`", "1 <= MIN <= MAX"]),
        ("--name a --image b --gpus-per-pod -1 t.py", ["`--gpus-per-pod -1`", "a number from 1"]),
        ("--name a --image b --image-pull-policy x t.py", ["`--image-pull-policy x`", "`Never`"]),
        ("--name a --image b --resource gpu t.py", ["`--resource gpu`", "NAME=VALUE"]),
        ("--name a --image b --volume x:y:/z t.py", ["`--volume x:y:/z`", "`pvc:CLAIM:/PATH`"]),
        ("--name a --image b --save-path auto t.py", ["needs a volume", "--volume pvc:"]),
        (
            "--name a --image b --launch-method deepspeed --deepspeed-config bad.json t.py",
            ["`--deepspeed-config bad.json` is no JSON", "PET_DEEPSPEED_CONFIG"],
        ),
        (
            "--name a --image b --deepspeed-config bad.json t.py",
            ["belongs to `--launch-method deepspeed`", "hint: "],
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

/// Another system than Kubernetes, and none, are told with those that there are.
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

/// The help of the subcommand is found, and flags behind the script are the script's.
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
