//! Receives reports of workers: the protocol of `sd_notify`, on a socket for each worker.
//!
//! | line | meaning |
//! |---|---|
//! | `WATCHDOG=1` | a heartbeat |
//! | `WATCHDOG=trigger` | the worker reports a hang |
//! | `STATUS=` | a line for users |
//! | `X_RAGENT_STEP=`, `X_RAGENT_STEPS=` | the training step, and the number of all steps |
//! | `X_RAGENT_SAVED=` | the worker has saved its part of this step |
//! | `X_RAGENT_SAVED_WHOLE=1` | it has saved the parts of all ranks |
//! | `X_RAGENT_NOTICE=` | the number of the notice that this answers |
//! | `X_RAGENT_SAVE_MS=` | training stood still so long; without a step, for the last checkpoint |
//! | `X_RAGENT_SAVE_FAILED=` | the last checkpoint could not be written, for this reason |
//! | `X_RAGENT_RETURNED=1` | the worker has returned, and waits for an answer |
//! | `X_RAGENT_UNFIT=` | the hook of standbys reports that the script does not fit |
//!
//! All other lines are ignored.

use std::{
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv};
use ragent_core::{saves::SaveReport, steps::Step};
use ragent_rendezvous::{ids::LocalRank, message::PROGRESS_MAX};
use tokio::{net::UnixDatagram, sync::mpsc, task::AbortHandle};

use crate::{limits, socket_folder::SocketFolder};

/// The content of one datagram.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkerReport {
    pub(crate) is_heartbeat: bool,
    pub(crate) is_trigger: bool,
    pub(crate) status: Option<String>,
    pub(crate) step: Option<Step>,
    /// The checkpoint that the worker reports, if it does.
    pub(crate) save: Option<SaveReport>,
    pub(crate) unfit: Option<Unfit>,
    /// True if the worker has returned, and waits for the others of its node.
    pub(crate) has_returned: bool,
}

/// A checkpoint does not take longer. A greater value is a mistake of the script.
const SAVE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A report of the hook: the script changes a variable that modules of its standby had already read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Unfit {
    pub(crate) modules: Vec<String>,
    /// The place in the script and the variable, as a clause.
    pub(crate) reason: String,
}

impl Unfit {
    fn parse(text: &str) -> Option<Self> {
        let (reason, modules) = text.split_once('\t')?;
        let modules = modules.split(',').map(short).collect();
        Some(Self { modules, reason: short(reason) })
    }
}

impl WorkerReport {
    fn parse(datagram: &[u8]) -> Self {
        let mut report = Self::default();
        let (mut step, mut total) = (None, None);
        let (mut save, mut saves) = (SaveReport::default(), false);
        for line in String::from_utf8_lossy(datagram).lines() {
            match line.split_once('=') {
                Some(("WATCHDOG", "1")) => report.is_heartbeat = true,
                Some(("WATCHDOG", "trigger")) => report.is_trigger = true,
                Some(("STATUS", text)) => report.status = Some(short(text)),
                Some(("X_RAGENT_STEP", number)) => step = number.trim().parse().ok(),
                Some(("X_RAGENT_STEPS", number)) => total = number.trim().parse().ok(),
                Some(("X_RAGENT_SAVED", number)) => {
                    save.step = number.trim().parse().ok();
                    saves |= save.step.is_some();
                }
                Some(("X_RAGENT_SAVED_WHOLE", "1")) => save.is_whole = true,
                Some(("X_RAGENT_NOTICE", number)) => {
                    save.notice = number.trim().parse().unwrap_or(0);
                }
                Some(("X_RAGENT_SAVE_MS", ms)) => {
                    save.cost = ms.trim().parse().ok().map(Duration::from_millis);
                    saves |= save.cost.is_some();
                }
                Some(("X_RAGENT_SAVE_FAILED", text)) => save.failed = Some(short(text)),
                Some(("X_RAGENT_RETURNED", "1")) => report.has_returned = true,
                Some(("X_RAGENT_UNFIT", text)) => report.unfit = Unfit::parse(text),
                _ => {}
            }
        }
        report.step = step.and_then(|step| Step::new(step, total));
        save.cost = save.cost.filter(|cost| *cost <= SAVE_MAX);
        report.save = (saves || save.failed.is_some()).then_some(save);
        report
    }
}

/// Returns `text` without control characters, up to the length limit.
fn short(text: &str) -> String {
    let mut short: String = text.chars().filter(|c| !c.is_control()).collect();
    short.truncate(short.floor_char_boundary(PROGRESS_MAX));
    short
}

/// The sockets of this node's workers. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct ReportSockets {
    folder: SocketFolder,
    sockets: Vec<Arc<UnixDatagram>>,
    tasks: Vec<AbortHandle>,
    reports: mpsc::Receiver<(LocalRank, WorkerReport)>,
}

impl ReportSockets {
    /// Opens a socket for each worker, in a folder in `dir` that only this user can access.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub(crate) fn open(dir: &Path, local_world_size: u32) -> io::Result<Self> {
        let (folder, (_, reports)) = (SocketFolder::make(dir)?, mpsc::channel(1));
        let (sockets, tasks) = (Vec::new(), Vec::new());
        let mut opened = Self { folder, sockets, tasks, reports };
        for local_rank in (0..local_world_size).map(LocalRank) {
            let socket = UnixDatagram::bind(opened.path(local_rank))?;
            opened.sockets.push(Arc::new(socket));
        }
        opened.receive_all();
        Ok(opened)
    }

    /// Drops all reports that were not taken. They are from the last round, and no process of it is left.
    pub(crate) fn forget(&mut self) {
        self.stop();
        for local_rank in (0..).map(LocalRank).take(self.sockets.len()) {
            // torch starts no server where there is a socket. Usually there is none.
            let _ = fs::remove_file(self.worker_server(local_rank));
        }
        let mut datagram = [0; 1];
        for socket in &self.sockets {
            for _ in 0..limits::MAX_QUEUED_NOTICES {
                if recv(socket.as_raw_fd(), &mut datagram, MsgFlags::MSG_DONTWAIT).is_err() {
                    break;
                }
            }
        }
        self.receive_all();
    }

    fn receive_all(&mut self) {
        let (sender, reports) = mpsc::channel(limits::TASK_QUEUE);
        self.reports = reports;
        for (local_rank, socket) in (0..).map(LocalRank).zip(&self.sockets) {
            let task = tokio::spawn(receive(Arc::clone(socket), local_rank, sender.clone()));
            self.tasks.push(task.abort_handle());
        }
    }

    fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }

    /// Returns the path for `RAGENT_SOCKET` of a worker.
    pub(crate) fn path(&self, local_rank: LocalRank) -> PathBuf {
        self.folder.path().join(local_rank.to_string())
    }

    /// Returns the path for `RAGENT_NOTICE_FILE` of all workers.
    pub(crate) fn notice_file(&self) -> PathBuf {
        self.folder.path().join("notice.json")
    }

    /// Returns the path for the socket of torch's worker server in a worker.
    pub(crate) fn worker_server(&self, local_rank: LocalRank) -> PathBuf {
        self.folder.path().join(format!("{local_rank}.torch"))
    }

    /// Allows a worker to end that has returned: sends a datagram to the second socket that the worker has opened.
    pub(crate) fn release(&self, local_rank: LocalRank) {
        let mut path = self.path(local_rank).into_os_string();
        path.push(HELD);
        let socket = self.sockets.get(local_rank.0 as usize);
        // A worker that has ended has no socket. The queue of a waiting worker is empty.
        let _ = socket.map(|socket| socket.try_send_to(b"1", path));
    }

    /// Takes all reports that have arrived. Some may still be in the sockets.
    pub(crate) fn take_all(&mut self) -> Vec<(LocalRank, WorkerReport)> {
        let mut taken = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            taken.push(report);
        }
        let mut datagram = vec![0; limits::MAX_WORKER_REPORT];
        for (local_rank, socket) in (0..).map(LocalRank).zip(&self.sockets) {
            for _ in 0..limits::MAX_QUEUED_NOTICES {
                let Ok(len) = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::MSG_DONTWAIT)
                else {
                    break;
                };
                taken.push((local_rank, WorkerReport::parse(&datagram[..len])));
            }
        }
        taken
    }

    /// Waits for the next report.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has taken nothing.
    pub(crate) async fn next(&mut self) -> Option<(LocalRank, WorkerReport)> {
        self.reports.recv().await
    }
}

impl Drop for ReportSockets {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The suffix of the socket on which a worker waits until the others have returned.
const HELD: &str = ".held";

async fn receive(
    socket: Arc<UnixDatagram>,
    local_rank: LocalRank,
    reports: mpsc::Sender<(LocalRank, WorkerReport)>,
) {
    let mut datagram = vec![0; limits::MAX_WORKER_REPORT];
    while let Ok(len) = socket.recv(&mut datagram).await {
        // If the queue is full, workers wait, as they would for a service manager.
        if reports.send((local_rank, WorkerReport::parse(&datagram[..len]))).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heartbeats and status lines are parsed, alone and together. Everything else is ignored.
    #[test]
    fn notices_are_sd_notifys() {
        let parse = |text: &str| WorkerReport::parse(text.as_bytes());
        assert!(parse("WATCHDOG=1").is_heartbeat);
        assert!(parse("WATCHDOG=trigger\n").is_trigger);
        let both = parse("READY=1\nSTATUS=step 120 loss=0.31\nWATCHDOG=1\nX");
        assert!(both.is_heartbeat);
        assert_eq!(both.status.as_deref(), Some("step 120 loss=0.31"));
        assert_eq!(parse("STOPPING=1\nWATCHDOG=2\n=\n"), WorkerReport::default());
        assert_eq!(WorkerReport::parse(b"\xff\xfe=\0"), WorkerReport::default());
    }

    /// A training step is parsed, in any order with the number of all steps. Numbers that are malformed or out of range are ignored.
    #[test]
    fn steps_are_parsed() {
        let step = |text: &str| WorkerReport::parse(text.as_bytes()).step;
        assert_eq!(step("X_RAGENT_STEP=120"), Step::new(120, None));
        assert_eq!(step("X_RAGENT_STEPS=1000\nX_RAGENT_STEP=120\n"), Step::new(120, Some(1000)));
        let both = WorkerReport::parse(b"WATCHDOG=1\nX_RAGENT_STEP=0\nX_RAGENT_OTHER=1");
        assert!(both.is_heartbeat && both.step == Step::new(0, None));
        assert_eq!(step("X_RAGENT_STEP=1\nX_RAGENT_STEPS=many"), Step::new(1, None));
        for text in ["X_RAGENT_STEP=", "X_RAGENT_STEP=-1", "X_RAGENT_STEP=1e3", "X_RAGENT_STEPS=9"]
        {
            assert_eq!(step(text), None, "{text}");
        }
        assert_eq!(step("X_RAGENT_STEP=18446744073709551615"), None);
        assert_eq!(step("X_RAGENT_STEP=99999999999999999999999"), None);
    }

    /// The hook's report names modules and a reason, which are shortened. A malformed report is ignored.
    #[test]
    fn unfit_modules_are_parsed() {
        let unfit = |text: &str| WorkerReport::parse(text.as_bytes()).unfit;
        let modules = vec!["torch".to_owned(), "torch._dynamo".to_owned()];
        let reason = "line 1 of train.py sets X".to_owned();
        let report = "X_RAGENT_UNFIT=line 1 of train.py sets X\ttorch,torch._dynamo";
        assert_eq!(unfit(report), Some(Unfit { modules, reason }));
        assert_eq!(unfit("X_RAGENT_UNFIT=torch"), None);
        let long = unfit(&format!("X_RAGENT_UNFIT={}\tm", "x".repeat(3000))).unwrap();
        assert!(long.reason.len() <= PROGRESS_MAX);
    }

    /// A status line for other nodes is shortened, and has no control characters.
    #[test]
    fn status_is_bounded() {
        let report =
            WorkerReport::parse(format!("STATUS=\u{1b}[2J{}", "ä".repeat(4000)).as_bytes());
        let status = report.status.expect("it was given");
        assert!(status.len() <= PROGRESS_MAX && status.starts_with("[2Jä"), "{status}");
    }

    /// Reports from the last round are dropped. Later ones are received.
    #[tokio::test]
    async fn notices_of_the_last_round_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut sockets = ReportSockets::open(&folder.path().join("sockets"), 2).unwrap();
        let (sender, path) = (UnixDatagram::unbound().unwrap(), sockets.path(LocalRank(1)));
        let send = async |step: u64| {
            let datagram = format!("X_RAGENT_STEP={step}");
            sender.send_to(datagram.as_bytes(), &path).await.unwrap();
        };
        send(1).await;
        let (local_rank, report) = sockets.next().await.unwrap();
        assert_eq!((local_rank, report.step), (LocalRank(1), Step::new(1, None)));
        // One of them may have been received already.
        for step in 2..5 {
            send(step).await;
        }
        sockets.forget();
        send(9).await;
        assert_eq!(sockets.next().await.unwrap().1.step, Step::new(9, None));
    }
}
