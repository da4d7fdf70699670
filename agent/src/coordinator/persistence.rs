//! The state of a coordinator that outlives its process: in a file, or at a majority of the voters.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use ragent_rendezvous::{heir::Successor, ids::Term, settings::Memory};
use tokio::sync::oneshot;

use super::state_writer::StateWriter;
use crate::voter::{Command, Commands};

/// The state of a coordinator that outlives its process. No effect of a change is carried out before the
/// change is stored.
#[derive(Debug)]
pub(crate) enum Persistence {
    /// The state file of a coordinator that no other one can replace.
    File(Box<StateWriter>),
    /// The copies of an elected coordinator.
    Voters(Copies),
}

/// The copies of a coordinator's memory at the voters.
#[derive(Debug)]
pub(crate) struct Copies {
    commands: Commands,
    /// The coordinator's term.
    term: Term,
    /// Notified when a majority has the newest memory.
    copying: Option<oneshot::Receiver<()>>,
    /// True if this process no longer leads, so that nothing more will be copied.
    is_over: bool,
}

impl Persistence {
    pub(crate) fn file(path: Option<PathBuf>) -> Self {
        Self::File(Box::new(StateWriter::new(path)))
    }

    pub(crate) fn voters(commands: Commands, term: Term) -> Self {
        Self::Voters(Copies { commands, term, copying: None, is_over: false })
    }

    /// Begins to store `memory`. `kept` is the time for which agents may wait for the next coordinator, and `successors`
    /// are the processes that may succeed an elected one.
    pub(super) fn remember(&mut self, memory: Memory, kept: Duration, successors: Vec<Successor>) {
        match self {
            Self::File(file) => file.remember(memory, kept),
            Self::Voters(copies) => copies.remember(memory, successors),
        }
    }

    /// Returns true if nothing more can be stored: this process no longer leads.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Voters(copies) => copies.is_over,
        }
    }

    /// Returns true if effects must wait until a change is stored.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Self::File(file) => file.is_awaited(),
            Self::Voters(copies) => copies.copying.is_some() || copies.is_over,
        }
    }

    /// Returns the next deadline: the end of the wait for a slow disk, or the time to write the file again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::File(file) => [file.poll_timeout(), file.touch_at()].into_iter().flatten().min(),
            Self::Voters(_) => None,
        }
    }

    /// Applies the deadlines that have passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Self::File(file) = self {
            if file.poll_timeout().is_some_and(|at| at <= now) {
                file.handle_timeout();
            }
            if file.touch_at().is_some_and(|at| at <= now) {
                file.touch();
            }
        }
    }

    /// Waits until a change is stored; never returns if none is under way.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn stored(&mut self) {
        match self {
            Self::File(file) => file.written().await,
            Self::Voters(copies) => copies.copied().await,
        }
    }

    /// Deletes the state of a job that has ended. Voters delete their copies when they end.
    pub(super) async fn forget(self) {
        match self {
            Self::File(file) => file.forget().await,
            Self::Voters(_) => {}
        }
    }

    /// Reports a higher term to the election, so that this process resigns.
    pub(super) fn report_term(&self, term: Term) {
        match self {
            // A sole coordinator raises its own term, and never resigns.
            Self::File(_) => {}
            Self::Voters(copies) => {
                // This coordinator has ended, so the process resigns in any case.
                let _ = copies.commands.try_send(Command::Highest(term));
            }
        }
    }
}

impl Copies {
    fn remember(&mut self, memory: Memory, successors: Vec<Successor>) {
        let (copied, copying) = oneshot::channel();
        let (term, memory) = (self.term, Box::new(memory));
        let command = Command::Remember { term, memory, successors, copied };
        // A newer memory replaces an older one, so only the newest copy is awaited.
        self.copying = Some(copying);
        if self.commands.try_send(command).is_err() {
            self.copying = None;
            self.is_over = true;
        }
    }

    async fn copied(&mut self) {
        let Some(copying) = &mut self.copying else { return std::future::pending().await };
        let is_lost = copying.await.is_err();
        self.copying = None;
        self.is_over |= is_lost;
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::ids::JobUid;
    use tokio::sync::mpsc;

    use super::*;

    fn memory() -> Memory {
        Memory::fresh(JobUid::new("u"))
    }

    /// Effects wait until a majority has the newest memory.
    #[tokio::test]
    async fn copies_are_awaited() {
        let (commands, mut queue) = mpsc::channel(4);
        let mut copies = Persistence::voters(commands, Term(1));
        assert!(!copies.is_awaited());
        copies.remember(memory(), Duration::ZERO, Vec::new());
        copies.remember(memory(), Duration::ZERO, Vec::new());
        let (Some(Command::Remember { copied: first, .. }), Some(Command::Remember { copied, .. })) =
            (queue.recv().await, queue.recv().await)
        else {
            panic!("two commands are sent")
        };
        drop(first);
        assert!(copies.is_awaited());
        copied.send(()).unwrap();
        copies.stored().await;
        assert!(!copies.is_awaited());
    }

    /// If this process no longer leads, no further effect is carried out.
    #[tokio::test]
    async fn lost_leadership_ends_the_effects() {
        let (commands, mut queue) = mpsc::channel(4);
        let mut copies = Persistence::voters(commands, Term(1));
        copies.remember(memory(), Duration::ZERO, Vec::new());
        drop(queue.recv().await);
        copies.stored().await;
        assert!(copies.is_awaited() && copies.is_over());
        drop(queue);
        copies.remember(memory(), Duration::ZERO, Vec::new());
        assert!(copies.is_awaited());
    }
}
