//! Looks at processes, as `/proc` shows them.

use std::{collections::BTreeSet, fs};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

/// Signals one process.
pub fn kill(pid: u32, signal: Signal) {
    // The process may have ended already.
    let _ = signal::kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// The fields of `/proc/<pid>/stat` after the name. `None` if there is no such process.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character, and ends at the last parenthesis.
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Returns true if the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z" && fields[0] != "X")
}

/// The session of a process.
pub fn session_of(pid: u32) -> Option<u32> {
    stat(pid)?[3].parse().ok()
}

/// The command line of a process.
pub fn command_line(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ").trim_end().to_owned()
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// The keeper of an agent.
pub fn keeper_of(agent: u32) -> u32 {
    find_keeper(agent).expect("an agent has a keeper")
}

/// The keeper of an agent. `None` while the agent is starting, or if its keeper is gone.
pub fn find_keeper(agent: u32) -> Option<u32> {
    let is_keeper = |pid: &u32| is_alive(*pid) && command_line(*pid).ends_with("__keeper");
    children(agent).into_iter().find(is_keeper)
}

/// The ports on which a process listens.
pub fn listening_ports(pid: u32) -> BTreeSet<u16> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links =
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()?.into_os_string().into_string().ok());
    let own: BTreeSet<String> = links.collect();
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let tables = tables.map(Result::unwrap_or_default);
    let port = |line: &str| {
        // The line number, the local address, the remote one, the state, …, the inode.
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_listening = *fields.get(3)? == "0A";
        let is_own = own.contains(&format!("socket:[{}]", fields.get(9)?));
        let (_, port) = fields[1].rsplit_once(':')?;
        (is_listening && is_own).then(|| u16::from_str_radix(port, 16).ok())?
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(port).collect()
}

/// All live processes whose environment contains `marker`.
pub(super) fn marked(marker: &str) -> Vec<u32> {
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == marker.as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).filter(|pid| is_alive(*pid)).collect()
}
