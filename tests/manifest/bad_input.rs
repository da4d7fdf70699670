//! Tests that bad input makes no manifest: it is reported before anything is printed, with exit code 2 and without a file. Unit tests check
//! each argument.

use crate::support::Sandbox;

/// All mistakes are reported at once, and nothing is printed.
#[test]
fn mistakes() {
    let sandbox = Sandbox::new();
    for (words, parts) in [
        ("k8s --name A --nnodes 4:2 t.py", ["`--name A`", "`--nnodes 4:2`"]),
        ("k8s --name a --image b --output /proc/no/x t.py", ["`--output /proc/no/x`", "hint: "]),
        ("nomad t.py", ["nomad", "--help"]),
    ] {
        let end = sandbox.ragent(&format!("manifest {words}")).run();
        end.assert_code(2);
        end.assert_stderr(&parts);
        assert_eq!(end.stdout, "", "{words}");
    }
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
