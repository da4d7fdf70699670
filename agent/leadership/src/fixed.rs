//! Makes this process the only possible leader: it has the only endpoint of the job.
//!
//! The state of the job is kept in a state file, which [`replica_file`] writes. A restarted process continues from it.
//!
//! A new state is written before any node acts on it. But a disk that needs longer than `limits::STATE_FILE_PATIENCE` is not waited for,
//! so that agents keep their leases.

use std::{future, sync::Arc, time::Instant};

use ragent_base::sys::clock;
use ragent_election::election::message::{Replica, Version};
use ragent_rendezvous::settings::JobState;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};
use tracing::warn;

use super::{
    Leader, Leadership, LeadershipCommand, Mandate, Means, RunningLeadership, StateNeed, Stored,
    limits,
    replica_file::{self, ReplicaFile},
};

/// Makes this process lead, until the last sender of commands is dropped. It continues from `job_state`, which an earlier coordinator has
/// stored, and keeps the state in `file`, if the job has one.
pub fn start(file: Option<ReplicaFile>, job_state: Option<JobState>) -> RunningLeadership {
    let file = file.map(Arc::new);
    let (commands, queue) = mpsc::channel(limits::COMMANDS);
    let (leader, leader_known) = watch::channel(Leader::here(job_state.clone()));
    let replica = Replica { job_state, ..Replica::default() };
    let stored = watch::Sender::new(Stored { replica, is_led: true, ..Stored::default() });
    let leadership =
        Leadership::without_voters(Means::Fixed, &commands, leader_known, stored.subscribe());
    let attempted = file.as_ref().map(|file| file.attempted());
    if let Some(file) = file.clone() {
        tokio::spawn(replica_file::keep(file, stored.subscribe()));
    }
    let driver =
        FixedDriver { file, attempted, waiting: Vec::new(), patience: None, stored, leader };
    tokio::spawn(driver.run(queue));
    RunningLeadership { leadership, commands, connections: None }
}

impl Leader {
    /// Returns the leader of a job that only this process can lead.
    fn here(job_state: Option<JobState>) -> Self {
        let until = watch::channel(clock::now()).1;
        let mandate = Mandate { grant: None, until, job_state, voters: Vec::new() };
        Self::Here(mandate.into())
    }
}

/// The driver, which keeps the state of the job in its file.
struct FixedDriver {
    file: Option<Arc<ReplicaFile>>,
    /// The newest version that the file has, or that could not be written; `None` without a file.
    attempted: Option<watch::Receiver<Version>>,
    /// Notified when the newest state is written, or when the disk is too slow.
    waiting: Vec<oneshot::Sender<()>>,
    /// The time until which they wait; `None` if the newest state is written, or if the disk is too slow.
    patience: Option<Instant>,
    stored: watch::Sender<Stored>,
    leader: watch::Sender<Leader>,
}

impl FixedDriver {
    async fn run(mut self, mut commands: mpsc::Receiver<LeadershipCommand>) {
        loop {
            if self.is_written() {
                self.patience = None;
            }
            if self.patience.is_none() {
                for waiting in self.waiting.drain(..) {
                    // The coordinator may have ended.
                    let _ = waiting.send(());
                }
            }
            let due = self.patience;
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                () = changed(&mut self.attempted) => {}
                () = clock::until(due) => self.give_up_waiting(),
            }
        }
    }

    fn is_written(&self) -> bool {
        let newest = self.stored.borrow().replica.version;
        self.attempted.as_ref().is_none_or(|attempted| *attempted.borrow() == newest)
    }

    fn give_up_waiting(&mut self) {
        self.patience = None;
        warn!(
            "the disk of the state file is slow; continuing before the state is written: a \
             coordinator that is restarted now may not know the newest round"
        );
    }

    async fn handle(&mut self, command: LeadershipCommand) {
        match command {
            LeadershipCommand::Remember { job_state, copied, .. } => {
                // If an earlier state is not written yet, its patience lasts, or is already over.
                if self.attempted.is_some() && self.is_written() {
                    self.patience = Some(clock::now() + limits::STATE_FILE_PATIENCE);
                }
                self.stored.send_modify(|stored| {
                    stored.replica.version.number += 1;
                    stored.replica.job_state = Some(*job_state);
                });
                self.waiting.push(copied);
            }
            // A later job of the same name must not recover a job that has ended or never begun.
            LeadershipCommand::JobOver(_) => self.forget().await,
            LeadershipCommand::StepDown(to) => {
                self.forget().await;
                self.leader.send_replace(Leader::At(to.endpoint, to.term));
            }
            LeadershipCommand::Resign(_) => drop(self.leader.send_replace(Leader::Unknown)),
            LeadershipCommand::Leave { left, .. } => {
                self.leader.send_replace(Leader::Unknown);
                // The agent may have stopped waiting.
                let _ = left.send(StateNeed::Needed);
            }
            // No other process can lead.
            LeadershipCommand::Highest(_)
            | LeadershipCommand::DeathNotice(_)
            | LeadershipCommand::Members(_)
            | LeadershipCommand::Forget
            | LeadershipCommand::KnownJob(_)
            | LeadershipCommand::Found(_)
            | LeadershipCommand::Ended(_)
            | LeadershipCommand::Registered(_) => {}
        }
    }

    /// Deletes the state file, but waits at most [`limits::STATE_FILE_REMOVAL`] for a slow disk. Nothing is written any more.
    async fn forget(&mut self) {
        self.attempted = None;
        let Some(file) = self.file.take() else { return };
        let removing = spawn_blocking(move || file.remove());
        let _ = timeout(limits::STATE_FILE_REMOVAL, removing).await;
    }
}

/// Waits until a write has ended. Never returns without a file.
async fn changed(attempted: &mut Option<watch::Receiver<Version>>) {
    if let Some(attempted) = attempted
        && attempted.changed().await.is_ok()
    {
        return;
    }
    future::pending().await
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use ragent_rendezvous::ids::{JobUid, Round, Term};

    use super::*;
    use crate::{Commands, state_file};

    fn job_state(round: u64) -> JobState {
        JobState { round: Round(round), ..JobState::new(JobUid::new("u")) }
    }

    fn started(path: &Path) -> Commands {
        let file = ReplicaFile::new(path.to_owned(), Duration::from_secs(600));
        start(Some(file), None).commands
    }

    /// Sends a state. The result is notified when it is stored.
    async fn remember(commands: &Commands, round: u64) -> oneshot::Receiver<()> {
        let (copied, stored) = oneshot::channel();
        let (term, job_state) = (Term(1), Box::new(job_state(round)));
        let successors = Vec::new();
        let command = LeadershipCommand::Remember { term, job_state, successors, copied };
        commands.send(command).await.unwrap();
        stored
    }

    /// Effects wait until the newest state is written. The file of a job that is over is removed, and no later state is written.
    #[tokio::test]
    async fn writing_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/job.json");
        let commands = started(&path);
        for rounds in [1..=1, 2..=4] {
            let newest = *rounds.end();
            let mut stored = Vec::new();
            for round in rounds {
                stored.push(remember(&commands, round).await);
            }
            for stored in stored {
                stored.await.unwrap();
            }
            assert_eq!(state_file::read_job_state(&path), Some(job_state(newest)));
        }
        commands.send(LeadershipCommand::JobOver(Term(1))).await.unwrap();
        remember(&commands, 5).await.await.unwrap();
        assert_eq!(state_file::read_job_state(&path), None);
    }

    /// Effects do not wait for a failing disk. Without a state file they never wait.
    #[tokio::test]
    async fn failing_disk_keeps_nobody() {
        let commands = started(Path::new("/proc/no/job.json"));
        remember(&commands, 1).await.await.unwrap();
        remember(&commands, 2).await.await.unwrap();
        let nowhere = start(None, None).commands;
        remember(&nowhere, 1).await.await.unwrap();
    }

    /// Effects wait for a slow disk only for a while, and not again until it has written.
    #[tokio::test(start_paused = true)]
    async fn slow_disk_keeps_nobody() {
        let (disk, attempted) = watch::channel(Version::default());
        let stored = watch::Sender::new(Stored::default());
        let driver = FixedDriver {
            file: None,
            attempted: Some(attempted),
            waiting: Vec::new(),
            patience: None,
            stored,
            leader: watch::Sender::new(Leader::Unknown),
        };
        let (commands, queue) = mpsc::channel(limits::COMMANDS);
        tokio::spawn(driver.run(queue));
        let begin = clock::now();
        remember(&commands, 1).await.await.unwrap();
        let waited = clock::now() - begin;
        assert!(waited >= limits::STATE_FILE_PATIENCE, "{waited:?}");
        remember(&commands, 2).await.await.unwrap();
        assert_eq!(clock::now() - begin, waited);
        disk.send_replace(Version { number: 2, ..Version::default() });
        let mut third = remember(&commands, 3).await;
        let early = timeout(limits::STATE_FILE_PATIENCE / 2, &mut third).await;
        assert!(early.is_err(), "the state is not written");
        disk.send_replace(Version { number: 3, ..Version::default() });
        third.await.unwrap();
    }
}
