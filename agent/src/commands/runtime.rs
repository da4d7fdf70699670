//! Runs the futures of a command, and receives its signals.

use nix::sys::signal::Signal;
use ragent_base::{limits, sys::host::ThisHost};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::error::{LaunchError, system};

/// The signals that end a command which serves something.
pub(super) const END_SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Runs `future` on a current-thread runtime.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, LaunchError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("start the runtime"))?;
    let output = runtime.block_on(future);
    // A name lookup may hang in a resolver. It must not delay the end of the process.
    runtime.shutdown_background();
    Ok(output)
}

/// Returns a queue for all signals on which the agent shuts down.
///
/// If SIGHUP was ignored at the start, it stays ignored, as `nohup` requires. SIGINT does not stay ignored, because shells ignore it in
/// every job that a script puts into the background.
pub(crate) fn watch_signals(signals: &[Signal]) -> Result<mpsc::Receiver<Signal>, LaunchError> {
    let (sender, queue) = mpsc::channel(limits::STREAM_QUEUE);
    let is_watched = |signal: &&Signal| **signal != Signal::SIGHUP || !ThisHost.ignores(**signal);
    for &kind in signals.iter().filter(is_watched) {
        let stream = signal(SignalKind::from_raw(kind as i32));
        let mut stream = stream.map_err(system("watch for signals"))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if sender.send(kind).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(queue)
}
