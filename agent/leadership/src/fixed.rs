//! Makes this process the only possible leader: it has the only endpoint of the job.
//!
//! The state of the job is kept in a state file. A restarted process continues from it.

mod state_writer;

use std::path::PathBuf;

use ragent_base::sys::clock;
use ragent_election::election::message::Replica;
use ragent_rendezvous::settings::JobState;
use tokio::sync::{mpsc, oneshot, watch};

use self::state_writer::StateWriter;
use super::{
    Leader, Leadership, LeadershipCommand, Mandate, Means, RunningLeadership, StateNeed, Stored,
    limits,
};

/// The state of an earlier coordinator of the job, and the file that keeps it.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// The state file; `None` if the job has none.
    pub state_file: Option<PathBuf>,
    /// The state that an earlier coordinator has stored.
    pub job_state: Option<JobState>,
}

impl RecoveredState {
    /// Reads the state file of a job.
    pub fn from_file(path: PathBuf) -> Self {
        let job_state = super::state_file::read_job_state(&path);
        Self { state_file: Some(path), job_state }
    }
}

/// Makes this process lead, until the last sender of commands is dropped.
pub fn start(recovered: RecoveredState) -> RunningLeadership {
    let RecoveredState { state_file, job_state } = recovered;
    if let Some(own) = state_file.clone() {
        // A slow disk must not delay the start. Files that remain are removed next time.
        drop(tokio::task::spawn_blocking(move || super::state_file::clean(&own)));
    }
    let (commands, queue) = mpsc::channel(limits::COMMANDS);
    let (leader, leader_known) = watch::channel(Leader::here(job_state.clone()));
    let stored = watch::Sender::new(stored(job_state));
    let leadership =
        Leadership::without_voters(Means::Fixed, &commands, leader_known, stored.subscribe());
    let keeper =
        FixedDriver { file: StateWriter::new(state_file), waiting: Vec::new(), stored, leader };
    tokio::spawn(keeper.run(queue));
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

fn stored(job_state: Option<JobState>) -> Stored {
    Stored { replica: Replica { job_state, ..Replica::default() }, ..Stored::default() }
}

/// The driver, which keeps the state of the job in its file.
struct FixedDriver {
    file: StateWriter,
    /// Notified when the newest state is written, or when the disk is too slow.
    waiting: Vec<oneshot::Sender<()>>,
    stored: watch::Sender<Stored>,
    leader: watch::Sender<Leader>,
}

impl FixedDriver {
    async fn run(mut self, mut commands: mpsc::Receiver<LeadershipCommand>) {
        loop {
            if !self.file.is_awaited() {
                for waiting in self.waiting.drain(..) {
                    // The coordinator may have ended.
                    let _ = waiting.send(());
                }
            }
            let due = self.file.poll_timeout();
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                () = self.file.written() => {}
                () = clock::until(due) => self.file.handle_timeout(clock::now()),
            }
        }
    }

    async fn handle(&mut self, command: LeadershipCommand) {
        match command {
            LeadershipCommand::Remember { job_state, kept, copied, .. } => {
                self.stored.send_replace(stored(Some(*job_state.clone())));
                self.file.remember(*job_state, kept);
                self.waiting.push(copied);
            }
            // A later job of the same name must not recover a job that has ended or never begun.
            LeadershipCommand::JobOver(_) => self.file.forget().await,
            LeadershipCommand::StepDown(to) => {
                self.file.forget().await;
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
            | LeadershipCommand::Ended(_)
            | LeadershipCommand::Registered(_) => {}
        }
    }
}
