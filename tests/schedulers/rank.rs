//! Tests `ragent rank`, with the environments of launchers.

use std::collections::BTreeMap;

use crate::support::{End, Sandbox, Start};

fn rank(sandbox: &Sandbox, rank: u32, size: u32, words: &str) -> Start {
    let pairs = [
        ("OMPI_COMM_WORLD_RANK", rank),
        ("OMPI_COMM_WORLD_SIZE", size),
        ("OMPI_COMM_WORLD_LOCAL_RANK", rank % 8),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", size.min(8)),
        ("PMIX_NAMESPACE", 17),
    ];
    let start = sandbox.ragent(words).env("OMPI_MCA_orte_hnp_uri", "0.0;tcp://10.9.8.7:1");
    pairs.iter().fold(start, |start, (name, value)| start.env(name, value.to_string()))
}

fn variables(end: &End) -> BTreeMap<String, String> {
    let pairs = end.stdout.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The program is the same process, with the same command line, from one rank to a hundred thousand. Only a few digits in its environment
/// grow.
#[test]
fn command_line_does_not_grow() {
    let sandbox = Sandbox::new();
    let run = |number, size| {
        let start = rank(&sandbox, number, size, "rank -- sh -c");
        let end = start.arg("env; tr '\\0' _ </proc/$$/cmdline").arg("--lr").arg("3").run();
        end.assert_code(0);
        end
    };
    let (one, last) = (run(0, 1), run(99_999, 100_000));
    let line = |end: &End| end.stdout.lines().last().unwrap().to_owned();
    assert_eq!(line(&one), line(&last));
    assert!(line(&one).ends_with("_--lr_3_"), "{}", line(&one));
    let (one, last) = (variables(&one), variables(&last));
    assert_eq!(one["WORLD_SIZE"], "1");
    assert_eq!(one["MASTER_ADDR"], "127.0.0.1");
    assert_eq!(last["WORLD_SIZE"], "100000");
    assert_eq!(last["RANK"], "99999");
    assert_eq!(last["LOCAL_RANK"], "7");
    assert_eq!(last["GROUP_RANK"], "12499");
    assert_eq!(last["MASTER_ADDR"], "10.9.8.7");
    let length = |variables: &BTreeMap<String, String>| {
        variables.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    };
    assert!(length(&last) < length(&one) + 100);
}

/// The exit code is the program's, because the program replaces `ragent rank`.
#[test]
fn becomes_the_program() {
    let sandbox = Sandbox::new();
    rank(&sandbox, 0, 1, "rank -- sh -c").arg("exit 7").run().assert_code(7);
    rank(&sandbox, 0, 1, "rank true").run().assert_code(0);
}

/// All arguments after the program belong to it.
#[test]
fn flags_stand_before_the_program() {
    let sandbox = Sandbox::new();
    for (words, expected) in [
        ("rank -- echo -- --bogus --master-port 0", "-- --bogus --master-port 0\n"),
        ("rank echo -- --bogus", "-- --bogus\n"),
        ("rank --master_port 4000 echo -z --help", "-z --help\n"),
    ] {
        let end = rank(&sandbox, 0, 1, words).run();
        end.assert_code(0);
        assert_eq!(end.stdout, expected, "{words}");
    }
}

/// A script without its interpreter is found, and the hint names the interpreter.
#[test]
fn scripts_need_an_interpreter() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("e.py"), "").unwrap();
    for program in ["e.py", "./e.py"] {
        let end = rank(&sandbox, 0, 1, "rank --").arg(program).run();
        end.assert_code(2);
        end.assert_stderr(&[&format!("hint: use `ragent rank -- python {program}`")]);
    }
}
