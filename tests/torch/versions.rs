//! Tests workers with other releases of torch: the usual operations of training scripts and `ragent check` work, or the client is refused.

use ragent_base::sys::host::{Host, ThisHost};

use super::{
    REPOSITORY, check, python_of,
    support::{Sandbox, Start},
    venv,
};

/// An agent with four workers that run a script with this Python.
fn agent(sandbox: &Sandbox, python: &str, words: &str, script: &str) -> Start {
    let start =
        sandbox.ragent(&format!("--nproc-per-node 4 {words} {REPOSITORY}/tests/torch/{script}"));
    // torch resolves the names of its peers, and waits if there is no answer.
    start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1")
}

/// Four workers sum their ranks, pass a barrier, form a group of two and destroy it, in two rounds.
fn collectives_work(python: &str, version: &str) {
    let sandbox = Sandbox::new();
    let end = agent(&sandbox, python, "--max-restarts 1", "collectives.py").run();
    end.assert_code(0);
    let mut lines: Vec<&str> = end
        .stdout
        .lines()
        .filter_map(|line| line.split_once(" torch="))
        .map(|(line, _)| line)
        .collect();
    lines.sort_unstable();
    let product = |rank: u32| if rank == 0 || rank == 3 { 10 } else { rank + 2 };
    let line =
        |attempt, rank| format!("attempt={attempt} rank={rank} sum=6 product={}", product(rank));
    let expected: Vec<String> =
        (0..2).flat_map(|attempt| (0..4).map(move |rank| line(attempt, rank))).collect();
    assert_eq!(lines, expected, "{}", end.stderr);
    assert!(end.stdout.contains(&format!(" torch={version}.")), "{}", end.stdout);
    sandbox.assert_nothing_left();
}

/// torch 2.4 and newer have a worker server. Otherwise `observe` returns False.
fn observes(python: &str, is_able: bool) {
    let sandbox = Sandbox::new();
    let script = "import ragent; print('observes', ragent.observe())";
    let end = sandbox
        .ragent(&format!("--no-python {python} -c"))
        .arg(script)
        .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
        .run();
    end.assert_code(0);
    let expected = if is_able { "observes True" } else { "observes False" };
    assert!(end.stdout.contains(expected), "{}", end.stdout);
}

/// The newest torch.
#[test]
fn newest_torch() {
    let Some(python) = venv("python") else { return };
    collectives_work(&python, "2.15");
    check::works_with(&python);
    observes(&python, true);
}

/// The older releases in `TORCH_VERSIONS`: `make test-torch-versions`.
#[test]
fn older_torch() {
    let versions = ThisHost.env("TORCH_VERSIONS").unwrap_or_default();
    for version in versions.to_string_lossy().split_ascii_whitespace() {
        let Some(python) = python_of(&format!("torch-{version}")) else { continue };
        if version == "2.1" {
            is_refused(&python);
        } else {
            collectives_work(&python, version);
            check::works_with(&python);
            observes(&python, !matches!(version, "2.2" | "2.3"));
        }
    }
}

/// An older client uses other operation codes. It is refused at once, and the log has the reason.
fn is_refused(python: &str) {
    let sandbox = Sandbox::new();
    let end = agent(&sandbox, python, "", "collectives.py").run();
    end.assert_code(1);
    end.assert_stderr(&["this is a client of torch 2.1 or older", "2.2 or newer is needed"]);
}
