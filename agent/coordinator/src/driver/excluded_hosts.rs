//! Runs the program of `--exclude-command` while this process coordinates, and passes on the hosts that it prints.
//!
//! Each line has a host and a reason, such as `node7 drained by root: disk`. The program runs every minute. If it fails, the last list
//! stays. A process that has just begun to coordinate has none, and tries again soon.

use ragent_base::{
    report::news::with_causes,
    sys::{clock, user_command},
};
use ragent_proto::printable;
use ragent_rendezvous::{ExcludedHosts, jitter::Jitter, message::LINE_MAX};
use tracing::warn;

use super::{Input, Inputs};
use crate::limits;

/// Runs the program again and again. Never returns. Dropping the future kills the program.
pub(crate) async fn follow(command: &[String], inputs: &Inputs) {
    let mut jitter = Jitter::new(rand::random());
    let (mut has_failed, mut has_list) = (false, false);
    while !command.is_empty() {
        match user_command::lines(command, limits::EXCLUDE_TIMEOUT).await {
            Ok(lines) => {
                (has_failed, has_list) = (false, true);
                // The coordinator may have ended.
                let _ = inputs.send(Input::Excluded(Some(parse(&lines)))).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    warn!(
                        command = command.join(" "),
                        error = with_causes(&error),
                        "failed to run the program of `--exclude-command`; the last list of excluded hosts stays"
                    );
                }
                let _ = inputs.send(Input::Excluded(None)).await;
            }
        }
        let pause = if has_list { limits::EXCLUDE_INTERVAL } else { limits::EXCLUDE_RETRY };
        clock::until(Some(clock::now() + jitter.spread(pause))).await;
    }
    std::future::pending().await
}

/// Returns the hosts. Empty lines and lines that begin with `#` are no hosts.
fn parse(lines: &[String]) -> ExcludedHosts {
    let host = |line: &String| {
        let line = line.trim();
        let (host, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if host.is_empty() || host.starts_with('#') {
            return None;
        }
        let mut reason = printable(reason.trim());
        reason.truncate(reason.floor_char_boundary(LINE_MAX));
        if reason.is_empty() {
            reason.push_str("listed by `--exclude-command`");
        }
        Some((host.to_owned(), reason))
    };
    lines.iter().filter_map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line has a host and perhaps a reason. A reason may come from a terminal.
    #[test]
    fn lines_are_hosts_with_reasons() {
        let lines = [
            "node7.cluster drained by root: disk",
            "",
            "# node1",
            " node8\t\u{1b}[31mbad",
            "node9",
        ];
        let hosts = parse(&lines.map(str::to_owned));
        let hosts: Vec<(&str, &str)> =
            hosts.iter().map(|(host, reason)| (host.as_str(), reason.as_str())).collect();
        let by_command = "listed by `--exclude-command`";
        assert_eq!(hosts[0], ("node7.cluster", "drained by root: disk"));
        assert!(hosts[1].0 == "node8" && !hosts[1].1.contains('\u{1b}'), "{hosts:?}");
        assert_eq!((hosts[2], hosts.len()), (("node9", by_command), 3));
    }
}
