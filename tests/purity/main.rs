//! The rendezvous machine links nothing that could do I/O or read a clock for it.

use std::{fs, process::Command};

/// `ragent-rendezvous` depends on neither tokio, tonic nor prost, not even indirectly.
#[test]
fn rendezvous_is_pure() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "ragent-rendezvous", "--edges", "normal,build"])
        .args(["--prefix", "none", "--offline"])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("names are text");
    assert!(tree.starts_with("ragent-rendezvous "), "{}", String::from_utf8_lossy(&output.stderr));
    for forbidden in ["tokio", "tonic", "prost"] {
        let found = tree.lines().find(|line| line.starts_with(forbidden));
        assert_eq!(found, None, "ragent-rendezvous depends on {forbidden}");
    }
}

/// The machines of the agent know neither the runtime nor the wire: they cannot wait for anything.
#[test]
fn machines_of_the_agent_are_pure() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/src");
    for machine in [
        "agent/machine.rs",
        "agent/link.rs",
        "launch/machine.rs",
        "search/election.rs",
        "supervisor/machine.rs",
    ] {
        let text = fs::read_to_string(format!("{sources}/{machine}")).expect("it is there");
        for forbidden in ["tokio", "tonic", "ragent_proto", "async ", "now()"] {
            // Their tests begin where the machine ends, and read a clock once.
            let machine_itself = text.split("#[cfg(test)]").next().unwrap_or_default();
            assert!(!machine_itself.contains(forbidden), "{machine} has `{forbidden}`");
        }
    }
}
