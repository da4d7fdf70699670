//! Shows a job in the terminal, as it changes: `ragent top`.
//!
//! `model` is the state of the view, and `view` draws it. Both are pure. The loop here reads keys and the streams of the job.

mod events;
mod keys;
mod model;
mod nodes;
mod rates;
mod readers;
mod scroll;
mod terminal;
mod text;
mod view;

use std::{
    cell::Cell,
    io::{self, IsTerminal},
    ops::ControlFlow,
    pin::pin,
    process::ExitCode,
    rc::Rc,
    time::Duration,
};

use nix::sys::signal::Signal;
use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};
use ragent_options::{
    cli::TopArgs,
    spec::{JobEndpoint, UsageError},
};
use tokio::sync::mpsc;

use self::{
    model::{Input, Model},
    readers::{EventReader, StateReader},
    terminal::TopScreen,
    view::Palette,
};
use super::{
    asked_job::asked_job,
    credentials::AskerCredentials,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, find_coordinator},
    follow::follow,
    runtime,
};

/// The states and events that wait for the view. When the queue is full, the streams wait.
const QUEUE: usize = 16;

/// The interval at which ages are drawn again. They are shown in seconds.
const TICK: Duration = Duration::from_secs(1);

/// Shows a job until its user quits.
///
/// # Errors
///
/// Returns [`LaunchError`] if there is no terminal, the endpoint to ask is unknown, or no process answers.
pub fn show(args: &TopArgs) -> Result<ExitCode, LaunchError> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let what = "cannot show the job: stdin and stdout of `ragent top` must be a terminal";
        let hint = "`ragent status --watch` prints the state of a job after each change";
        return Err(UsageError::new(what).with_hint(hint).into());
    }
    let (job, credentials) = asked_job(&args.asked)?;
    runtime::block_on(async {
        let found = find_coordinator(job.clone(), &credentials).await?;
        run(&job, &credentials, found).await
    })?
}

async fn run(
    job: &JobEndpoint,
    credentials: &AskerCredentials,
    found: FoundJob,
) -> Result<ExitCode, LaunchError> {
    let mut signals = runtime::watch_signals(&[
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
    ])?;
    let (to, mut inputs) = mpsc::channel(QUEUE);
    let is_closed = Rc::new(Cell::new(found.snapshot.outcome.is_some()));
    let mut states = StateReader { to: to.clone(), is_closed: Rc::clone(&is_closed) };
    let mut events = EventReader { to, is_closed, after: None };
    let mut states = pin!(follow(job, credentials, found.clone(), &mut states));
    let mut events = pin!(follow(job, credentials, found.clone(), &mut events));
    let (mut has_states, mut has_events) = (true, true);

    let palette = Palette { has_colors: ThisHost.env("NO_COLOR").is_none_or(|no| no.is_empty()) };
    let mut screen = TopScreen::open().map_err(system("set up the terminal"))?;
    let mut keys = terminal::read_keys().map_err(system("start a thread"))?;
    let mut model = Model::new(Box::new(found.snapshot), clock::now());
    loop {
        let drawn = screen.draw(|frame| view::draw(frame, &mut model, palette));
        drawn.map_err(system("draw on the terminal"))?;
        let mut input = tokio::select! {
            Some(key) = keys.recv() => key.map_err(system("read from the terminal"))?,
            Some(input) = inputs.recv() => input,
            Some(signal) = signals.recv() => return Ok(code_after(signal)),
            ended = &mut states, if has_states => {
                ended?;
                has_states = false;
                continue;
            }
            ended = &mut events, if has_events => {
                ended?;
                has_events = false;
                continue;
            }
            () = clock::until(Some(clock::now() + TICK)) => Input::Tick,
        };
        // Everything that waits is drawn at once.
        for _ in 0..=QUEUE {
            if let ControlFlow::Break(()) = model.update(input, clock::now()) {
                return Ok(ExitCode::SUCCESS);
            }
            match inputs.try_recv() {
                Ok(next) => input = next,
                Err(_) => break,
            }
        }
    }
}

/// Returns the exit code after a signal. It is the code that a shell reports for a process that the signal has killed.
fn code_after(signal: Signal) -> ExitCode {
    ExitCode::from(128_u8.saturating_add(u8::try_from(signal as i32).unwrap_or(0)))
}
