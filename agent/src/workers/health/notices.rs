//! Receives the progress reports of workers: `sd_notify`'s protocol, on a socket for each worker.
//!
//! `WATCHDOG=1` is a heartbeat, `WATCHDOG=trigger` reports a hang, and `STATUS=` is a line for
//! users. All other notifications of services are accepted and ignored.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ragent_rendezvous::{ids::LocalRank, message::PROGRESS_MAX};
use tokio::{net::UnixDatagram, sync::mpsc, task::AbortHandle};

use crate::{
    sys::{private_folder::PrivateFolder, proc},
    workers::limits,
};

/// The content of one datagram.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Notice {
    pub(crate) is_heartbeat: bool,
    pub(crate) is_trigger: bool,
    pub(crate) status: Option<String>,
}

impl Notice {
    fn parse(datagram: &[u8]) -> Self {
        let mut notice = Self::default();
        for line in String::from_utf8_lossy(datagram).lines() {
            match line.split_once('=') {
                Some(("WATCHDOG", "1")) => notice.is_heartbeat = true,
                Some(("WATCHDOG", "trigger")) => notice.is_trigger = true,
                Some(("STATUS", text)) => notice.status = Some(short(text)),
                _ => {}
            }
        }
        notice
    }
}

/// Returns `text` without control characters, up to the length limit.
fn short(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if short.len() + c.len_utf8() > PROGRESS_MAX {
            break;
        }
        short.push(c);
    }
    short
}

/// The sockets of this node's workers; dropping this removes them.
#[derive(Debug)]
pub(crate) struct NoticeSockets {
    folder: PathBuf,
    tasks: Vec<AbortHandle>,
    notices: mpsc::Receiver<(LocalRank, Notice)>,
}

impl NoticeSockets {
    /// Opens a socket for each worker, in a folder in `dir` that only this user can access.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub(crate) fn open(dir: &Path, local_world_size: u32) -> io::Result<Self> {
        PrivateFolder::make(dir)?;
        remove_left(dir);
        let folder = dir.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)?;
        let (sender, notices) = mpsc::channel(limits::TASK_QUEUE);
        let mut sockets = Self { folder, tasks: Vec::new(), notices };
        for local_rank in (0..local_world_size).map(LocalRank) {
            let socket = UnixDatagram::bind(sockets.path(local_rank))?;
            let task = tokio::spawn(receive(socket, local_rank, sender.clone()));
            sockets.tasks.push(task.abort_handle());
        }
        Ok(sockets)
    }

    /// The `NOTIFY_SOCKET` of the worker with `local_rank`.
    pub(crate) fn path(&self, local_rank: LocalRank) -> PathBuf {
        self.folder.join(local_rank.to_string())
    }

    /// Waits for the next notice.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has taken nothing.
    pub(crate) async fn next(&mut self) -> Option<(LocalRank, Notice)> {
        self.notices.recv().await
    }
}

impl Drop for NoticeSockets {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        // The folder has no other files; if it stays, it is harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the sockets of killed agents, including an agent that had this process's id.
fn remove_left(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_left = |pid: u32| pid == std::process::id() || proc::start_time(pid).is_none();
        if pid.is_some_and(is_left) {
            // A folder that stays is harmless.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

const PREFIX: &str = "sockets-";

async fn receive(
    socket: UnixDatagram,
    local_rank: LocalRank,
    notices: mpsc::Sender<(LocalRank, Notice)>,
) {
    let mut datagram = vec![0; limits::MAX_NOTICE];
    while let Ok(len) = socket.recv(&mut datagram).await {
        // Workers wait if the queue is full, as they would for a service manager.
        if notices.send((local_rank, Notice::parse(&datagram[..len]))).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heartbeats and status lines are parsed, alone and together; everything else is ignored.
    #[test]
    fn notices_are_sd_notifys() {
        let parse = |text: &str| Notice::parse(text.as_bytes());
        assert!(parse("WATCHDOG=1").is_heartbeat);
        assert!(parse("WATCHDOG=trigger\n").is_trigger);
        let both = parse("READY=1\nSTATUS=step 120 loss=0.31\nWATCHDOG=1\nX");
        assert!(both.is_heartbeat);
        assert_eq!(both.status.as_deref(), Some("step 120 loss=0.31"));
        assert_eq!(parse("STOPPING=1\nWATCHDOG=2\n=\n"), Notice::default());
        assert_eq!(Notice::parse(b"\xff\xfe=\0"), Notice::default());
    }

    /// A status line for other nodes is short, and has no control characters.
    #[test]
    fn status_is_bounded() {
        let notice = Notice::parse(format!("STATUS=\u{1b}[2J{}", "ä".repeat(4000)).as_bytes());
        let status = notice.status.expect("it was given");
        assert!(status.len() <= PROGRESS_MAX && status.starts_with("[2Jä"), "{status}");
    }
}
