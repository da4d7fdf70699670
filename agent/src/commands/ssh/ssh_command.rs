//! Builds the command line of ssh, and interprets its messages.

use std::{
    ffi::{OsStr, OsString},
    process::ExitStatus,
    time::Duration,
};

use super::shell_words;
use crate::commands::ssh::limits;

/// The way in which hosts are reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Way {
    /// The ssh program and the user's options.
    pub(super) ssh: Vec<String>,
    /// The path of ragent on the other hosts.
    pub(super) ragent: String,
    /// The time limit to open a connection, in seconds.
    pub(super) connect_timeout_s: u64,
    /// The maximum number of connections that are opened at the same time.
    pub(super) fanout: u32,
}

impl Way {
    /// Returns the command that starts a relay on `target`.
    ///
    /// The user's options come first, so they take precedence. ssh takes all other options from its configuration.
    pub(super) fn command(&self, target: &str) -> Vec<OsString> {
        let connect_timeout = format!("ConnectTimeout={}", self.connect_timeout_s);
        let options = [
            // A password could not be typed.
            "BatchMode=yes",
            &connect_timeout,
            // A lost host is noticed within a minute.
            "ServerAliveInterval=15",
            "ServerAliveCountMax=4",
            // Forwardings in the configuration are for interactive use, and would collide on several connections.
            "ClearAllForwardings=yes",
            "RemoteCommand=none",
        ];
        let mut command: Vec<OsString> = self.ssh.iter().map(OsString::from).collect();
        command.push("-T".into());
        command.extend(options.iter().flat_map(|option| ["-o".into(), OsString::from(option)]));
        let relay = format!("exec {} __relay", shell_words::quote(OsStr::new(&self.ragent)));
        command.extend(["--".into(), target.into(), relay.into()]);
        command
    }

    /// Returns the time limit from the start of ssh to the relay's greeting.
    pub(super) fn greeting_timeout(&self) -> Duration {
        Duration::from_secs(self.connect_timeout_s).saturating_add(limits::GREETING_TIMEOUT)
    }
}

/// Returns the reason for the end of a connection, as far as it is known.
pub(super) fn why(status: Option<ExitStatus>, output: &str) -> String {
    let words: Vec<&str> = output.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let last = words[words.len().saturating_sub(LAST_LINES)..].join("; ");
    match status {
        Some(status) if last.is_empty() => format!("ssh has ended without output ({status})"),
        Some(status) => format!("{last} ({status})"),
        None if last.is_empty() => "ssh did not end".to_owned(),
        None => last,
    }
}

/// Returns a hint for a failure of ssh, if one is known.
pub(super) fn hint(why: &str) -> Option<&'static str> {
    let hints = [
        // It comes before the hints that its text would also match, because no host has been contacted.
        (
            "Can't open user config file",
            "that file is on this host: check the option `-F` in `--ssh`",
        ),
        (
            "account is currently not available",
            "that user may not log in there: give another user in the hostfile (`USER@HOST`)",
        ),
        (
            "Permission denied",
            "ssh cannot ask for a password here: install a key (`ssh-copy-id HOST`), and check \
             that `ssh -o BatchMode=yes HOST true` works",
        ),
        (
            "Host key verification failed",
            "log in manually once to confirm the host's key, or add it to known_hosts \
             (`ssh-keyscan HOST`)",
        ),
        ("not found", "install ragent on that host, or give its path with `--remote-ragent PATH`"),
        (
            "No such file",
            "install ragent on that host, or give its path with `--remote-ragent PATH`",
        ),
        (
            "runs ragent",
            "install the same version of ragent on all hosts, or give its path with \
             `--remote-ragent PATH`",
        ),
        ("Could not resolve", "check the spelling of the host name in the hostfile"),
        ("timed out", "check that the host is up and that no firewall blocks ssh"),
        ("No route", "check that the host is up and on this network"),
    ];
    hints.into_iter().find(|(part, _)| why.contains(part)).map(|(_, hint)| hint)
}

/// Returns true if the failure may be temporary. An sshd with too many new connections drops some before it sends its banner.
pub(super) fn may_pass(why: &str) -> bool {
    ["kex_exchange_identification", "ssh_exchange_identification", "banner exchange"]
        .iter()
        .any(|part| why.contains(part))
        && !why.contains("timed out")
}

/// The number of ssh's last lines that are reported. A jump host and its target print one line each.
const LAST_LINES: usize = 3;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// ssh never prompts, and the user's options take precedence. The command on the host is short and always the same.
    #[test]
    fn command_of_ssh() {
        let way = Way {
            ssh: ["ssh", "-F", "my conf"].map(str::to_owned).into(),
            ragent: "/opt/my tools/ragent".to_owned(),
            connect_timeout_s: 3,
            fanout: 32,
        };
        let command = shell_words::join(&way.command("me@node1"));
        assert!(command.starts_with("ssh -F 'my conf' -T -o BatchMode=yes -o ConnectTimeout=3 "));
        assert!(command.ends_with(" -- me@node1 'exec '\\''/opt/my tools/ragent'\\'' __relay'"));
    }

    /// The reason is ssh's output and its exit status. Known failures have a hint.
    #[test]
    fn words_of_ssh() {
        let denied = why(None, "Warning: x\r\n\nme@a: Permission denied (publickey,password).\r\n");
        assert_eq!(denied, "Warning: x; me@a: Permission denied (publickey,password).");
        let failed = Some(ExitStatus::from_raw(255 << 8));
        assert_eq!(why(failed, "a\nb\nc\nd\n"), "b; c; d (exit status: 255)");
        assert_eq!(why(failed, "\n"), "ssh has ended without output (exit status: 255)");
        assert!(hint(&denied).unwrap().contains("ssh-copy-id"));
        assert_eq!(hint(&why(None, "")), None);
        assert!(may_pass("kex_exchange_identification: Connection closed by remote host"));
        assert!(!may_pass(&denied));
    }
}
