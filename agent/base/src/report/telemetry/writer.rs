//! The thread that writes log lines to stderr.

use std::{
    io::{self, Write},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

/// An item for the writing thread.
#[derive(Debug)]
pub(super) enum TelemetryItem {
    Line(Vec<u8>),
    /// A request to reply once all earlier items are written.
    Flush(mpsc::SyncSender<()>),
}

/// Writes all items, until their senders are gone. A closed console (EPIPE) does not end it.
pub(super) fn write_all(items: &mpsc::Receiver<TelemetryItem>, dropped: &AtomicU64) {
    for item in items {
        match item {
            TelemetryItem::Line(line) => {
                let dropped = dropped.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    let text = format!(
                        "ragent: {dropped} log lines were lost while the console was blocked\n"
                    );
                    let _ = io::stderr().lock().write_all(text.as_bytes());
                }
                let _ = io::stderr().lock().write_all(&line);
            }
            TelemetryItem::Flush(done) => {
                // The caller may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }
}
