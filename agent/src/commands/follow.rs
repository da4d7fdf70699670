//! Following a stream of a job from one coordinator to the next.

use std::{ops::ControlFlow, time::Duration};

use ragent_base::{spec::JobEndpoint, sys::clock};
use ragent_coordinator::client::StreamError;
use ragent_rendezvous::jitter::Pauses;

use super::{
    credentials::AskerCredentials,
    error::LaunchError,
    find_coordinator::{FoundJob, find_coordinator},
};

/// The time for which the next coordinator is awaited by commands that end without one: an election takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The first pause before a question for the next coordinator. A random part of up to a half is subtracted.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// The longest such pause.
const PAUSE_LONGEST: Duration = Duration::from_secs(8);

/// A reader of a stream that each coordinator of a job serves.
pub(super) trait Reader {
    /// The open stream.
    type Stream;

    /// A part of the stream.
    type Part;

    /// The time for which the next coordinator is awaited; without a limit if `None`.
    const PATIENCE: Option<Duration>;

    /// Opens the stream; `None` if the process does not coordinate the job any more.
    async fn open(&mut self, at: &FoundJob) -> Result<Option<Self::Stream>, LaunchError>;

    /// Returns the next part; `None` at the end.
    async fn next(stream: &mut Self::Stream) -> Result<Option<Self::Part>, StreamError>;

    /// Handles a part; `Break` if it is the last one.
    async fn receive(&mut self, part: Self::Part) -> Result<ControlFlow<()>, LaunchError>;

    /// Handles the end of the stream at one coordinator, or the failure to open it or to find a coordinator; `Break` if no
    /// other one is to be asked.
    async fn end(&mut self, failure: Option<&LaunchError>) -> ControlFlow<()>;
}

/// Reads a stream at the coordinator `found`, and at each later one.
///
/// # Errors
///
/// If the patience of the reader has a limit: returns [`LaunchError`] if the stream cannot be opened at the first coordinator, or
/// at no other one in time.
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
            Ok(found) => reader.open(&found).await,
            Err(error) => Err(error),
        };
        let mut has_received = false;
        let failure = match opened {
            Ok(None) => None,
            Ok(Some(mut stream)) => {
                // The next coordinator has the later parts if the connection breaks.
                while let Ok(Some(part)) = R::next(&mut stream).await {
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
