//! Opens the terminal for the view, reads its keys, and restores it.

use std::{
    io::{self, Stdout},
    mem::ManuallyDrop,
    panic,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ratatui::{
    Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        event::{self, Event},
        execute,
        terminal::{
            Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
            enable_raw_mode,
        },
    },
};
use tokio::sync::mpsc;

use super::{keys::Key, model::Input};

/// True while the terminal shows the view.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// The keys that wait for the view. When the queue is full, the terminal keeps them.
const KEY_QUEUE: usize = 16;

/// The terminal while it shows the view. It is restored on drop. A panic restores it too, before its message is printed.
pub(super) struct TopScreen {
    /// Never dropped, because its destructor panics if the terminal is gone. It would only show the cursor, which [`restore`] does.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl TopScreen {
    /// Takes the terminal on stdin and stdout.
    ///
    /// # Errors
    ///
    /// Returns the error of the terminal, which is restored.
    pub(super) fn open() -> io::Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        IS_OPEN.store(true, Ordering::SeqCst);
        let screen = Self { terminal: ManuallyDrop::new(terminal) };
        let print_panic = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            restore();
            print_panic(what);
        }));
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws the view. Only cells that have changed are written.
    ///
    /// # Errors
    ///
    /// Returns the error of the terminal.
    pub(super) fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(view).map(|_| ())
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it shows the view.
fn restore() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        // The terminal may be gone.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Starts a thread that reads keys and changes of the size. It ends with the process, or with an error, which it sends.
///
/// # Errors
///
/// Returns the system's error if the thread cannot be started.
pub(super) fn read_keys() -> io::Result<mpsc::Receiver<io::Result<Input>>> {
    let (to, keys) = mpsc::channel(KEY_QUEUE);
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) => Key::of(key).map(Input::Key).map(Ok),
                Ok(Event::Resize(..)) => Some(Ok(Input::Tick)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            };
            let Some(input) = input else { continue };
            let is_error = input.is_err();
            if to.blocking_send(input).is_err() || is_error {
                return;
            }
        }
    })?;
    Ok(keys)
}
