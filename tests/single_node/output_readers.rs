//! Tests `ragent logs` with one node.

use std::{
    fs::{self, File},
    time::Duration,
};

use nix::sys::signal::Signal;
use ragent_base::sys::clock;
use serde_json::Value;

use crate::support::{Orders, PATIENCE, Program, Sandbox, Stream, let_pass, skip};

/// The flags of a job whose workers take orders.
const JOB: &str = "--rdzv-endpoint 127.0.0.1:0 --log-dir logs -r 3 --max-restarts 1";

/// Waits until something is true that no event reports.
#[track_caller]
fn until(is_true: impl Fn() -> bool) {
    let deadline = clock::now_blocking() + PATIENCE;
    while !is_true() {
        assert!(clock::now_blocking() < deadline, "it does not become true");
        let_pass(Duration::from_millis(10));
    }
}

/// Starts an agent whose two workers take orders.
fn start(sandbox: &Sandbox, flags: &str) -> Program {
    sandbox.ragent(&format!("--nproc-per-node 2 {flags} --no-python obey.sh")).start()
}

/// Lets each worker write lines to stdout, and waits until all files have them.
fn write(sandbox: &Sandbox, orders: &[Orders], lines: &str) {
    for orders in orders {
        orders.give(&format!("{lines}; echo written"));
    }
    until(|| {
        let files = sandbox.files_below("logs").into_iter();
        let files = files.filter(|file| file.ends_with("stdout.log"));
        let text = |file: String| fs::read_to_string(sandbox.path("logs").join(file)).unwrap();
        files.filter(|file| text(file.clone()).contains("written\n")).count() == orders.len()
    });
}

/// The same line of two ranks is one line. A reader follows the job over a restart to its end, and then ends itself.
#[test]
fn output_is_followed() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let mut agent = start(&sandbox, JOB);
    agent.endpoint();
    write(&sandbox, &orders, "echo step 1");
    let mut reader = sandbox.ragent("logs --follow").default_lines().start();
    reader.prints("0-1        | step 1");
    orders[1].give("echo slow; echo WARNING >&2");
    reader.prints("1          | slow");
    reader.prints("1          | WARNING");
    orders[0].give("printf 'Traceback (most recent call last):\\n  File\\nE: no\\n' >&2; exit 3");
    reader.prints("0          | Traceback (most recent call last): … 3 lines, ending E: no");
    reader.prints("           | (round 2)");
    reader.prints("0          | worker rank=0");
    for orders in &orders {
        orders.give("echo bye; exit 0");
    }
    agent.end().assert_code(0);
    let end = reader.end();
    end.assert_code(0);
    assert_eq!(end.stderr, "");
    // They may end at different times.
    let bye = |ranks: &str| end.stdout.contains(&format!("{ranks:<10} | bye\n"));
    assert!(bye("0-1") || bye("0") && bye("1"), "{}", end.stdout);
    let none = sandbox.ragent("logs").default_lines().run();
    none.assert_code(1);
    none.assert_stderr(&["no job of this user is running on this machine"]);
}

/// Without `--follow`, the output so far is printed: of some ranks, some lines, or as JSON.
#[test]
fn output_so_far_is_printed() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let mut agent = start(&sandbox, JOB);
    agent.endpoint();
    write(&sandbox, &orders, "echo step 1; printf 'loss 7\\r'; echo $RANK");
    let lines = |words: &str| {
        let end = sandbox.ragent(words).default_lines().run();
        end.assert_code(0);
        assert_eq!(end.stderr, "");
        end.stdout
    };
    assert!(
        lines("logs").ends_with(
            "0-1        | step 1\n0          | 0\n1          | 1\n0-1        | written\n"
        )
    );
    assert_eq!(lines("logs 1 --grep ^step --raw"), "1          | step 1\n");
    let json = lines("logs --json --grep step");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["text"], &json["stream"]), (&"step 1".into(), &"stdout".into()));
    assert_eq!(
        (json["round"].as_u64(), json["ranks"].to_string()),
        (Some(1), "[[0,1]]".to_owned())
    );
    for orders in &orders {
        orders.give("exit 0");
    }
    agent.end().assert_code(0);
}

/// A stdout that the workers write to directly cannot be read. The end of stderr can.
#[test]
fn unread_streams_are_named() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let mut agent = sandbox.ragent("--rdzv-endpoint 127.0.0.1:0 --no-python obey.sh").start();
    agent.endpoint();
    orders.give("echo out; echo err >&2");
    agent.logs("err");
    let end = sandbox.ragent("logs").default_lines().run();
    end.assert_code(0);
    assert_eq!(end.stdout, "0          | err\n");
    end.assert_stderr(&[
        "stdout not read: it does not pass through the agent (start with -r 3 or -t 3)",
    ]);
    let none = sandbox.ragent("logs 7").default_lines().run();
    none.assert_code(1);
    none.assert_stderr(&["no such rank or host is in the newest round"]);
    for (words, message) in [
        ("logs x", "`RANKS=x` is not a list of ranks"),
        ("logs --host n[1", "`--host n[1` is not a list of hosts"),
        ("logs --grep (", "`--grep (` is not a valid pattern"),
    ] {
        let end = sandbox.ragent(words).default_lines().run();
        end.assert_code(2);
        end.assert_stderr(&[message]);
    }
    orders.give("exit 0");
    agent.end().assert_code(0);
}

/// Eight ranks that flood end although a reader is stopped, and each line is printed or counted.
#[test]
fn slow_readers_delay_nobody() {
    const LINES: u64 = 100_000;
    let sandbox = Sandbox::new();
    let orders: Vec<_> = (0..8).map(|rank| sandbox.orders(rank)).collect();
    let words =
        "--nproc-per-node 8 --rdzv-endpoint 127.0.0.1:0 --log-dir logs -r 1 --no-python obey.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.endpoint();
    let printed = sandbox.path("printed");
    let reader = sandbox.ragent("logs --follow --raw --json --grep flood").default_lines();
    let mut reader = reader.stdout(File::create(&printed).unwrap()).start();
    for orders in &orders {
        orders.give("echo flood begins");
    }
    let text = || fs::read_to_string(&printed).unwrap();
    until(|| text().lines().count() == 8);
    reader.signal(Signal::SIGSTOP);
    let folder = sandbox.path("");
    for orders in &orders {
        orders.give(&format!(
            "seq -f 'line %.0f of a flood of many words' {LINES}; touch {}done$RANK",
            folder.display()
        ));
    }
    for rank in 0..8 {
        until(|| sandbox.path(&format!("done{rank}")).exists());
    }
    reader.signal(Signal::SIGCONT);
    let end = format!("line {LINES} of a flood");
    let deadline = clock::now_blocking() + PATIENCE;
    while text().matches(&end).count() < 8 {
        reader.receive_pending();
        if reader.text(Stream::Stderr).contains("lines may be missing") {
            return skip("the flood took so long that the reader has lost its place");
        }
        assert!(clock::now_blocking() < deadline, "the ends of the floods are not printed");
        let_pass(Duration::from_millis(10));
    }
    for orders in &orders {
        orders.give("exit 0");
    }
    agent.end().assert_code(0);
    reader.end().assert_code(0);
    let lines: Vec<Value> =
        text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let skipped: u64 = lines.iter().filter_map(|line| line["skipped"].as_u64()).sum();
    let shown = lines.iter().filter(|line| line["text"].is_string()).count() as u64;
    assert!(skipped > 0, "the reader was not too slow");
    assert_eq!(shown + skipped, 8 * (LINES + 1));
}

/// The console shows the output of the chosen global ranks. Files are complete.
#[test]
fn ranks_are_filtered() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 3 --log-dir logs -t 1 --ranks-filter 0,2 --no-python bash -c";
    let end = sandbox.ragent(words).arg("echo out $RANK").run();
    end.assert_code(0);
    let mut lines: Vec<&str> = end.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[default0]:out 0", "[default2]:out 2"]);
    assert_eq!(sandbox.files_below("logs").len(), 3);
    let end = sandbox.ragent("--nproc-per-node 2 --ranks-filter 1 --no-python bash -c");
    assert_eq!(end.arg("echo out $RANK").run().stdout, "out 1\n");
    let wrong = sandbox.ragent("--ranks-filter x --no-python true").run();
    wrong.assert_code(2);
    wrong.assert_stderr(&["`--ranks-filter x` is not a list of ranks, such as `0,8-15`"]);
}
