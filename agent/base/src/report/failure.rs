//! The report that every node prints when the job has failed.

use std::{collections::BTreeSet, fmt::Write};

use ragent_proto::printable;
use ragent_rendezvous::message::{JobResult, Outcome, WorkerFailure};

use super::news;

/// Formats the report: which worker failed first, where, how, and its last output.
pub(crate) fn failure(outcome: &Outcome, title: &str) -> String {
    let mut text = format!("{RULE}\n{title} FAILED\n{THIN}\n");
    match &outcome.first_failure {
        Some(failure) => first_failure(&mut text, failure),
        None => text.push_str("No worker failure was recorded.\n"),
    }
    row(&mut text, "restarts", &restarts(outcome));
    if outcome.other_failures > 0 {
        let others = format!("{} more failed by themselves in that round", outcome.other_failures);
        row(&mut text, "others", &others);
    }
    for failure in &outcome.further_failures {
        let ended = news::failed(&failure.end, failure.oom, &failure.hardware_lines());
        let what = format!("rank {} on {}: {ended}", failure.global_rank, failure.host_name);
        row(&mut text, "also", &printable(&what));
    }
    text.push_str(RULE);
    printable(&text)
}

/// Describes the restarts that were used, and why no further one followed.
fn restarts(outcome: &Outcome) -> String {
    let (left, without_any) = match outcome.result {
        JobResult::FinalFailure => (
            "its exit code is listed in `--no-restart-exit-codes`",
            "its exit code is listed in `--no-restart-exit-codes`",
        ),
        JobResult::NoProgress { .. } => {
            ("another one would fail as well", "another one would fail as well")
        }
        // The first failure ends the job only if none is allowed.
        JobResult::BudgetSpent => ("none is left", "not enabled (`--max-restarts` is 0)"),
        JobResult::Succeeded
        | JobResult::Saved { .. }
        | JobResult::JoinTimeout { .. }
        | JobResult::RecoveryTimeout { .. }
        | JobResult::AllLeft
        | JobResult::OtherJob { .. }
        | JobResult::LoopbackMaster { .. }
        | JobResult::AllQuarantined
        | JobResult::RestartLoop { .. } => ("none is left", "none was used"),
    };
    match outcome.restarts_used {
        0 => without_any.to_owned(),
        1 => format!("1 restart was used, {left}"),
        used => format!("{used} restarts were used, {left}"),
    }
}

const RULE: &str = "============================================================";
const THIN: &str = "------------------------------------------------------------";

fn first_failure(text: &mut String, failure: &WorkerFailure) {
    text.push_str("Root cause (first observed failure):\n");
    for line in failure.hardware_lines() {
        row(text, "hardware", &line);
    }
    row(text, "host", &failure.host_name);
    let rank = format!("{} (local_rank: {})", failure.global_rank, failure.local_rank);
    row(text, "rank", &rank);
    row(text, "round", &failure.round.round.to_string());
    let ended = news::killed(&failure.end, failure.oom);
    // A process that could not be started has none.
    let pid = if failure.pid == 0 { String::new() } else { format!(" (pid: {})", failure.pid) };
    row(text, "ended", &format!("{ended}{pid}"));
    let error_file = failure.error_file.as_deref().unwrap_or("not written by the script");
    row(text, "error_file", error_file);
    if let Some(message) = &failure.message {
        block(text, "message", message);
    }
    let tail = &failure.stderr_tail;
    let rest = failure.message.as_deref().and_then(|message| without_message(tail, message));
    match rest {
        Some(rest) if rest.is_empty() => {}
        Some(rest) => block(text, "last lines of stderr, without that message", &rest),
        None if tail.is_empty() => {}
        None => block(text, "last lines of stderr", tail),
    }
}

/// Returns the last lines on stderr without the traceback that `message` repeats; `None` if they do
/// not contain it.
///
/// Python prints the traceback of an exception that torch's `@record` writes to the error file, with
/// further frames: in stderr's copy, lines of the message are in order, but not adjacent.
fn without_message(tail: &str, message: &str) -> Option<String> {
    let tail: Vec<&str> = tail.lines().collect();
    // The first line of a truncated message is incomplete.
    let mut lines: Vec<&str> = message.lines().filter(|line| !line.starts_with('…')).collect();
    // A single line is not a traceback.
    let last = lines.pop().filter(|_| !lines.is_empty())?;
    let end = tail.iter().rposition(|line| *line == last)?;
    let (mut begin, mut repeated) = (end, BTreeSet::from([end]));
    for (index, line) in tail[..end].iter().enumerate().rev() {
        if lines.pop_if(|wanted| wanted == line).is_some() {
            begin = index;
            repeated.insert(index);
        }
    }
    // The beginning of the traceback may be missing in stderr's copy, which is truncated as well.
    let is_found = lines.is_empty() || repeated.len() > 2;
    // Other processes and threads may write in between.
    let is_rest = |index: usize, line: &str| {
        !(begin..=end).contains(&index) || !repeated.contains(&index) && !line.starts_with(' ')
    };
    let rest = tail.iter().enumerate().filter(|(index, line)| is_rest(*index, line));
    is_found.then(|| rest.map(|(_, line)| *line).collect::<Vec<_>>().join("\n"))
}

fn row(text: &mut String, label: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {label:<10}: {value}");
}

fn block(text: &mut String, label: &str, lines: &str) {
    let _ = writeln!(text, "  {label}:");
    for line in lines.lines() {
        let _ = writeln!(text, "    {line}");
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{
        ids::{GlobalRank, LocalRank, Round, RoundId, Term},
        message::WorkerEnd,
    };

    use super::*;

    /// A traceback in the message is not repeated from stderr, where Python prints it with further
    /// frames; all other lines of stderr are.
    #[test]
    fn traceback_is_printed_once() {
        let message = "Traceback (most recent call last):\n  File \"t/__init__.py\"\n    result = f()\n  File \"a.py\"\n    raise x\nValueError: x";
        let tail = "step 1\nTraceback (most recent call last):\n  File \"a.py\"\n    main()\n  File \
                    \"t/__init__.py\"\n    result = f()\n  File \"a.py\"\n    raise \
                    x\nValueError: x\nbye";
        assert_eq!(without_message(tail, message).as_deref(), Some("step 1\nbye"));
        let frame = "  File \"a.py\"\n    main()";
        let begin = "Traceback (most recent call last):\n";
        let cut = format!("…call last):\n{}", message.strip_prefix(begin).unwrap());
        let rest = format!("step 1\n{begin}{frame}\nbye");
        assert_eq!(without_message(tail, &cut), Some(rest));
        let cut = tail.strip_prefix(&format!("step 1\n{begin}")).unwrap();
        assert_eq!(without_message(cut, message), Some(format!("{frame}\nbye")));
        assert_eq!(without_message("step 1\nValueError: x", message), None);
        assert_eq!(without_message("ValueError: x", "ValueError: x"), None);
        assert_eq!(without_message("", message), None);
    }

    /// The report names the first failure with everything that is known about it.
    #[test]
    fn report_of_a_failure() {
        let failure = WorkerFailure {
            message: Some("ValueError: x".into()),
            error_file: Some("/l/error.json".into()),
            stderr_tail: "one\n\u{1b}[31mtwo".into(),
            ..WorkerFailure::new(
                "node1",
                RoundId { term: Term(1), round: Round(3) },
                (GlobalRank(5), LocalRank(1)),
                4711,
                WorkerEnd::Signaled(9),
            )
        };
        let outcome = Outcome {
            result: JobResult::BudgetSpent,
            first_failure: Some(failure.clone()),
            other_failures: 2,
            further_failures: vec![WorkerFailure {
                host_name: "node2".into(),
                global_rank: GlobalRank(9),
                end: WorkerEnd::Exited(1),
                ..failure.clone()
            }],
            restarts_used: 1,
            complete_step: None,
        };
        let expected = "\
============================================================
train.py FAILED
------------------------------------------------------------
Root cause (first observed failure):
  host      : node1
  rank      : 5 (local_rank: 1)
  round     : 3
  ended     : killed by SIGKILL (signal 9) (pid: 4711)
  error_file: /l/error.json
  message:
    ValueError: x
  last lines of stderr:
    one
    [31mtwo
  restarts  : 1 restart was used, none is left
  others    : 2 more failed by themselves in that round
  also      : rank 9 on node2: exited with code 1
============================================================";
        assert_eq!(super::failure(&outcome, "train.py"), expected);
        let line =
            |result, restarts_used| restarts(&Outcome { result, restarts_used, ..outcome.clone() });
        assert_eq!(line(JobResult::BudgetSpent, 0), "not enabled (`--max-restarts` is 0)");
        assert_eq!(line(JobResult::BudgetSpent, 3), "3 restarts were used, none is left");
        assert_eq!(
            line(JobResult::FinalFailure, 0),
            "its exit code is listed in `--no-restart-exit-codes`"
        );
        assert_eq!(line(JobResult::AllQuarantined, 0), "none was used");
    }
}
