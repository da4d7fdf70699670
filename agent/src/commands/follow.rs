//! Follows a stream of a job from one coordinator to the next.

use std::{ops::ControlFlow, time::Duration};

use ragent_base::sys::clock;
use ragent_coordinator::client::{JobPage, PageLines, StateStream, StreamError};
use ragent_options::spec::JobEndpoint;
use ragent_rendezvous::{jitter::Pauses, snapshot::Snapshot};

use super::{
    credentials::AskerCredentials,
    error::LaunchError,
    find_coordinator::{FoundJob, find_coordinator},
};

/// The longest wait for the next coordinator, in commands that end without one. An election takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The first pause before the command asks for the next coordinator again. A random part of up to a half is subtracted.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// The longest such pause.
const PAUSE_LONGEST: Duration = Duration::from_secs(8);

/// Reads a stream that each coordinator of a job serves.
pub(super) trait Reader {
    /// The open stream.
    type Stream: JobStream;

    /// The longest wait for the next coordinator. No limit if `None`.
    const PATIENCE: Option<Duration>;

    /// Returns the page to request from a coordinator.
    fn page(&mut self, at: &FoundJob) -> JobPage;

    /// Handles a part. Returns `Break` if it is the last one.
    async fn receive(
        &mut self,
        part: <Self::Stream as JobStream>::Part,
    ) -> Result<ControlFlow<()>, LaunchError>;

    /// Handles the end of the stream, or the failure to open it or to find a coordinator. Returns `Break` to stop, and otherwise the next
    /// coordinator is asked.
    async fn end(&mut self, _failure: Option<&LaunchError>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A page that arrives in parts.
pub(super) trait JobStream: From<PageLines> {
    /// A part of the page.
    type Part;

    /// Returns the next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<Self::Part>, StreamError>;
}

impl JobStream for PageLines {
    type Part = String;

    async fn next(&mut self) -> Result<Option<String>, StreamError> {
        self.next().await
    }
}

impl JobStream for StateStream {
    type Part = Box<Snapshot>;

    async fn next(&mut self) -> Result<Option<Box<Snapshot>>, StreamError> {
        self.next().await
    }
}

/// Returns `Continue` if the condition is true.
pub(super) fn go_on_if(condition: bool) -> ControlFlow<()> {
    if condition { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Reads a stream at the coordinator `found`, and then at each later one.
///
/// # Errors
///
/// Only if the reader's patience is limited: returns [`LaunchError`] if the stream cannot be opened at the first coordinator, or at no
/// other one in time.
pub(super) async fn follow<R: Reader>(
    job: &JobEndpoint,
    credentials: &AskerCredentials,
    found: FoundJob,
    reader: &mut R,
) -> Result<(), LaunchError> {
    let mut found = Ok(found);
    // The first coordinator has just answered.
    let mut deadline = R::PATIENCE.map(|_| clock::now());
    let mut pauses = Pauses::new(PAUSE_FIRST, PAUSE_LONGEST, u64::from(std::process::id()));
    let mut is_first = true;
    loop {
        let opened = match found {
            Ok(found) => found.open(reader.page(&found)).await,
            Err(error) => Err(error),
        };
        let mut has_received = false;
        let failure = match opened {
            Ok(None) => None,
            Ok(Some(lines)) => {
                let mut stream = R::Stream::from(lines);
                // If the connection breaks, the next coordinator has the later parts.
                while let Ok(Some(part)) = stream.next().await {
                    if reader.receive(part).await?.is_break() {
                        return Ok(());
                    }
                    pauses.reset();
                    has_received = true;
                }
                None
            }
            Err(error) => Some(error),
        };
        if has_received || (is_first && failure.is_none()) {
            deadline = R::PATIENCE.map(|patience| clock::now() + patience);
        }
        is_first = false;
        if reader.end(failure.as_ref()).await.is_break() {
            return Ok(());
        }
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            let nobody = "each process that was asked names another one as the coordinator";
            return Err(failure.unwrap_or_else(|| LaunchError::NoJob(nobody.to_owned())));
        }
        clock::until(Some(clock::now() + pauses.after_failure())).await;
        found = find_coordinator(job.clone(), credentials).await;
    }
}
