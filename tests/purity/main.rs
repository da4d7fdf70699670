//! The rendezvous machine links nothing that could do I/O or read a clock for it.

use std::process::Command;

/// `ragent-rendezvous` depends on neither tokio, tonic nor prost, not even indirectly.
#[test]
fn rendezvous_is_pure() {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            "ragent-rendezvous",
            "--edges",
            "normal,build",
        ])
        .args(["--prefix", "none", "--offline"])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("names are text");
    assert!(
        tree.starts_with("ragent-rendezvous "),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for forbidden in ["tokio", "tonic", "prost"] {
        let found = tree.lines().find(|line| line.starts_with(forbidden));
        assert_eq!(found, None, "ragent-rendezvous depends on {forbidden}");
    }
}
