//! Tests that the state machines link nothing that could do I/O, wait, or read a clock.

use std::{fs, process::Command};

/// The crates of the state machines depend on no runtime, no wire format and no system interface,
/// not even indirectly.
#[test]
fn machines_link_no_runtime() {
    for (package, forbidden) in [
        ("ragent-rendezvous", &["tokio", "tonic", "prost"][..]),
        ("ragent-election", &["tokio", "tonic", "prost"]),
        ("ragent-core", &["tokio", "tonic", "prost", "nix", "mio", "libc", "socket2"][..]),
    ] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--package", package, "--edges", "normal,build"])
            .args(["--prefix", "none", "--offline"])
            .output()
            .expect("cargo runs");
        let tree = String::from_utf8(output.stdout).expect("names are text");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(tree.starts_with(&format!("{package} ")), "{errors}");
        for forbidden in forbidden {
            let found = tree.lines().find(|line| line.starts_with(forbidden));
            assert_eq!(found, None, "{package} depends on {forbidden}");
        }
    }
}

/// The machines that share a crate with their driver use neither the runtime nor the protocol.
#[test]
fn machines_next_to_their_driver_are_pure() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent");
    for machine in [
        "src/commands/ssh/machine.rs",
        "src/commands/top/events.rs",
        "src/commands/top/model.rs",
        "src/commands/top/nodes.rs",
        "src/commands/top/rates.rs",
        "src/commands/top/scroll.rs",
        "coordinator/src/driver/pause.rs",
        "node/src/endpoint/locator.rs",
        "node/src/endpoint/search/choice.rs",
        "node/src/endpoint/search/choice/places.rs",
        "base/src/net/connection_quota.rs",
    ] {
        let text = fs::read_to_string(format!("{sources}/{machine}")).expect("it is there");
        for forbidden in ["tokio", "tonic", "ragent_proto", "async ", "now()"] {
            // Tests are after the machine in the file, and read a clock once.
            let machine_itself = text.split("#[cfg(test)]").next().unwrap_or_default();
            assert!(!machine_itself.contains(forbidden), "{machine} has `{forbidden}`");
        }
    }
}
