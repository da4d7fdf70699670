//! The thread that writes log lines and the block of a start to stderr.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Instant,
};

use crate::{
    output::screen::Screen,
    report::{limits, start::Start},
    sys::clock,
};

/// An item for the writing thread.
#[derive(Debug)]
pub(super) enum TelemetryItem {
    Line(Vec<u8>),
    /// A notice that another start, or none, is to be shown.
    Start,
    /// A request to reply once all earlier items are written.
    Flush(mpsc::SyncSender<()>),
}

/// The start to show: a slot rather than a queue, as only the newest one counts.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedStart(Arc<Mutex<Option<Start>>>);

impl WantedStart {
    /// Replaces the start; returns true if it differs from the one before.
    pub(super) fn set(&self, start: Option<Start>) -> bool {
        let mut slot = self.slot();
        let differs = *slot != start;
        *slot = start;
        differs
    }

    fn slot(&self) -> MutexGuard<'_, Option<Start>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block of a start on the terminal.
#[derive(Debug)]
pub(super) struct Display {
    screen: Arc<Screen>,
    wanted: WantedStart,
    /// The start that is shown, or will be.
    start: Option<Start>,
    /// The time at which the block is to be drawn, if it is.
    due: Option<Instant>,
}

impl Display {
    pub(super) fn new(screen: Arc<Screen>, wanted: WantedStart) -> Self {
        Self { screen, wanted, start: None, due: None }
    }

    /// Prints a line. The block is drawn again at the next [`Display::handle_idle`].
    fn print(&mut self, now: Instant, line: &[u8]) -> io::Result<()> {
        let begins = self.start.as_ref().map(|start| start.since + limits::START_DELAY);
        self.due = begins.map(|begins| begins.max(now));
        self.screen.print(line)
    }

    /// Takes up a change of the start.
    fn handle_change(&mut self, now: Instant) -> io::Result<()> {
        let wanted = self.wanted.slot().clone();
        if wanted == self.start {
            return Ok(());
        }
        let is_new =
            |start: &&Start| self.start.as_ref().is_none_or(|before| before.since != start.since);
        if let Some(start) = wanted.as_ref().filter(is_new) {
            self.screen.handle_start(start.follows_workers);
        }
        self.due = wanted.as_ref().map(|start| now.max(start.since + limits::START_DELAY));
        let removed = if wanted.is_none() { self.screen.erase() } else { Ok(()) };
        self.start = wanted;
        removed
    }

    /// Draws the block if it is due.
    fn handle_idle(&mut self, now: Instant) -> io::Result<()> {
        let Some(start) = self.start.as_ref().filter(|_| self.due.is_some_and(|due| due <= now))
        else {
            return Ok(());
        };
        self.due = Some(now + limits::START_INTERVAL);
        self.screen.draw(|columns| start.lines(columns, now))
    }
}

/// Writes all items, until their senders are gone. A closed console (EPIPE) does not end it.
pub(super) fn write_all(
    items: &mpsc::Receiver<TelemetryItem>,
    dropped: &AtomicU64,
    display: &mut Display,
) {
    loop {
        let now = clock::now_blocking();
        let first = match display.due {
            None => items.recv().map_err(RecvTimeoutError::from),
            Some(due) => items.recv_timeout(due.saturating_duration_since(now)),
        };
        match first {
            Ok(item) => {
                write(item, dropped, display);
                // The block is drawn once after lines that arrive together.
                let more = items.try_iter().take(limits::LOG_QUEUE);
                more.for_each(|item| write(item, dropped, display));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let _ = display.handle_idle(clock::now_blocking());
    }
}

fn write(item: TelemetryItem, dropped: &AtomicU64, display: &mut Display) {
    let now = clock::now_blocking();
    let _ = display.handle_change(now);
    match item {
        TelemetryItem::Line(line) => {
            let dropped = dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let text = format!(
                    "ragent: {dropped} log lines were lost while the console was blocked\n"
                );
                let _ = display.print(now, text.as_bytes());
            }
            let _ = display.print(now, &line);
        }
        TelemetryItem::Start => {}
        TelemetryItem::Flush(done) => {
            // The caller may have stopped waiting.
            let _ = done.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::settings::NodeRange;

    use super::*;
    use crate::report::start::StartStage;

    fn start(since: Instant, endpoint: &str) -> Start {
        Start {
            run_id: "j".to_owned(),
            nodes: NodeRange::new(2, 2).unwrap(),
            since,
            follows_workers: false,
            stage: StartStage::Registered { endpoint: endpoint.to_owned(), job: None },
            standbys: None,
        }
    }

    /// A start is drawn after a while, then every second and after changes; nothing is drawn while none is shown.
    #[test]
    fn block_is_drawn_when_due() {
        let wanted = WantedStart::default();
        let mut display = Display::new(Arc::default(), wanted.clone());
        let now = clock::now();
        display.handle_change(now).unwrap();
        assert_eq!(display.due, None);
        assert!(wanted.set(Some(start(now, "n:1"))));
        assert!(!wanted.set(Some(start(now, "n:1"))));
        display.handle_change(now).unwrap();
        let first = now + limits::START_DELAY;
        assert_eq!(display.due, Some(first));
        display.handle_idle(now).unwrap();
        assert_eq!(display.due, Some(first), "it is not due");
        wanted.set(Some(start(now, "n:2")));
        display.handle_change(now).unwrap();
        assert_eq!(display.due, Some(first));
        let later = first + limits::START_INTERVAL;
        wanted.set(Some(start(now, "n:3")));
        display.handle_change(later).unwrap();
        assert_eq!(display.due, Some(later));
        wanted.set(None);
        display.handle_change(later).unwrap();
        assert_eq!(display.due, None);
    }
}
