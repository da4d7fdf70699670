//! Tests the texts that users see.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use super::*;

/// Returns the text that is printed for a command line that starts nothing.
fn printed(line: &str) -> String {
    let words = line.split_whitespace().map(OsString::from);
    Cli::read(words).unwrap_err().to_string()
}

/// The help of `ragent launch` shows the defaults for a list of hosts, and no flag that is always
/// refused.
#[test]
fn defaults_of_a_list_of_hosts() {
    let text = printed("ragent launch --help");
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["UNIT [default: all hosts]", "[default: a unique name]", "slots, else 1]"] {
        assert!(joined.contains(part), "no `{part}` in:\n{text}");
    }
    let headings = ["Hosts:", "Nodes and rendezvous:", "Workers:"].map(|it| text.find(it).unwrap());
    assert!(headings.is_sorted(), "{text}");
    for part in ["UNIT [default: 1]", "localhost:29400", "--node-rank <", "--print-completion"] {
        assert!(!joined.contains(part), "`{part}` in:\n{text}");
    }
    let text = printed("ragent --help");
    for part in ["[default: localhost:29400]", "--node-rank <N>", "--print-completion"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

/// By the name of torchrun, the version names both programs. It includes the version of the protocol.
#[test]
fn versions() {
    let number = env!("CARGO_PKG_VERSION");
    assert!(printed("ragent --version").starts_with(&format!("ragent {number} (")));
    let text = printed("/venv/bin/torchrun --version");
    assert_eq!(text, format!("torchrun is ragent {}\n", version()));
    assert!(text.ends_with(&format!("protocol {PROTOCOL_VERSION})\n")), "{text}");
    assert_eq!(printed("ragent -V"), format!("ragent {number}\n"));
}

/// The help shows how to start a job, each example on one line.
#[test]
fn examples() {
    let text = printed("ragent --help");
    let examples: Vec<&str> =
        text.lines().skip_while(|line| *line != "Examples:").skip(1).take(3).collect();
    assert_eq!(examples.len(), 3, "{text}");
    for example in examples {
        assert!(example.starts_with("  ragent ") && example.contains("train.py"), "{example}");
    }
    assert!(text.contains("PYTHON_EXEC"), "{text}");
    assert!(!printed("ragent -h").contains("Examples:"));
}

/// An unknown flag is not suggested as a script. Similar flags are suggested.
#[test]
fn tips_for_unknown_flags() {
    for line in ["ragent --bogus t.py", "ragent launch --hostfile h --bogus t.py"] {
        let text = printed(line);
        assert!(text.contains("'--bogus'") && !text.contains("-- --bogus"), "{text}");
    }
    let text = printed("ragent --max-restart-s 3 t.py");
    assert!(text.contains("--max-restarts") && !text.contains("as a value"), "{text}");
    let text = printed("ragent --lr 3 t.py");
    assert!(text.contains("'--lr'") && !text.contains("local"), "{text}");
    for line in ["ragent --use-env t.py", "torchrun --use_env t.py", "ragent --use-env=1 t.py"] {
        let text = printed(line);
        assert!(text.contains("omit it: scripts always find LOCAL_RANK"), "{text}");
    }
}

/// Flags of subcommands have both spellings too.
#[test]
fn underscores_of_subcommands() {
    for line in [
        "ragent doctor --rdzv_endpoint n0:1",
        "ragent launch --hostfile h --env_file e --max_restarts 1 t.py",
        "ragent manifest k8s --image_pull_policy Always --nproc_per_node 2 t.py",
        "ragent status --rdzv_endpoint n0:1 --secret_file s",
    ] {
        let read = Cli::read(line.split_whitespace().map(OsString::from));
        assert!(read.is_ok(), "{line}: {}", read.unwrap_err());
    }
}

/// The error about a word that is not UTF-8 names it, with its flag.
#[test]
fn invalid_words_are_named() {
    let printed = |words: &[&[u8]]| {
        let words = words.iter().map(|word| OsStr::from_bytes(word).to_owned());
        Cli::read(words).unwrap_err().to_string()
    };
    let text = printed(&[b"ragent", b"--rdzv-id", b"a\xff", b"t.py"]);
    assert_eq!(text, "error: `--rdzv-id a\u{fffd}` is not valid UTF-8\n");
    let text = printed(&[b"torchrun", b"--rdzv_id=\xff", b"t.py"]);
    assert_eq!(text, "error: `--rdzv_id=\u{fffd}` is not valid UTF-8\n");
}

/// A journal is read from a file or from a process, not both.
#[test]
fn journals_have_one_source() {
    for flag in ["--rdzv-endpoint n0:1", "--secret-file s", "--auth none"] {
        for command in ["events", "explain"] {
            let text = printed(&format!("ragent {command} --journal f {flag}"));
            assert!(text.contains("cannot be used with"), "{text}");
        }
    }
    for flag in ["--follow", "--since 1.1"] {
        let text = printed(&format!("ragent events --journal f {flag}"));
        assert!(text.contains("cannot be used with"), "{text}");
    }
}

/// A command with a few wrong letters is recognized, and other words are not.
#[test]
fn similar_commands() {
    for (word, command) in [("staus", "status"), ("lanuch", "launch"), ("doctr", "doctor")] {
        assert_eq!(similar_command(word).as_deref(), Some(command), "{word}");
    }
    for word in ["train", "x", "", "__keepe", "rankings"] {
        assert_eq!(similar_command(word), None, "{word}");
    }
}
