//! Records the commit of a release build, which `ragent --version` prints.
//!
//! It is that of `RAGENT_COMMIT`, else of the git checkout; a build from sources without git has none. Debug
//! builds have none either, as all tests would be compiled again after each commit.

#![expect(clippy::disallowed_methods, reason = "cargo passes values to build scripts in variables")]

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RAGENT_COMMIT");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = env::var("RAGENT_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(|| is_release.then(commit_of_checkout).flatten()) {
        println!("cargo::rustc-env=RAGENT_COMMIT={commit}");
    }
}

/// Returns the abbreviated hash of the commit that is checked out; `None` if the sources are not a checkout, but may be in a folder
/// of another one.
fn commit_of_checkout() -> Option<String> {
    let checkout = git(&["rev-parse", "--show-toplevel"])?;
    let sources =
        Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).ancestors().nth(2)?.canonicalize().ok()?;
    if Path::new(&checkout) != sources {
        return None;
    }
    // The log of HEAD changes with each commit and each checkout.
    for file in ["HEAD", "logs/HEAD"] {
        println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", file])?);
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns what git prints; `None` if it fails or is not installed.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
