//! Tells a service manager how the agent stands, as systemd's `Type=notify` wants it: ready when it
//! attends, a line of status, and a sign of life from the loop that does the work.

use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use ragent_core::agent::News;
use sd_notify::NotifyState;
use tracing::debug;

use crate::{
    host::{Host, ThisHost},
    limits, news,
};

/// What a service manager is told.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Notice {
    Alive,
    Ready,
    Status(String),
    Stopping,
}

/// The service manager that has started this process, if one wants to be told.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// To the thread that tells it: a manager that stands still must not stop the agent.
    notices: Option<SyncSender<Notice>>,
    is_ready: bool,
    /// How often it wants a sign of life, and when the next one is due.
    watchdog: Option<(Duration, Instant)>,
}

impl ServiceManager {
    /// The one that this process's environment names.
    pub fn of_this_process(now: Instant) -> Self {
        if ThisHost.env("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
            return Self::default();
        }
        let (notices, queue) = sync_channel(limits::NOTICE_QUEUE);
        let told = thread::Builder::new().name("service-manager".to_owned());
        let told = told.spawn(move || {
            for notice in queue {
                tell(&notice);
            }
        });
        Self {
            notices: told.ok().map(|_| notices),
            is_ready: false,
            // Twice as often as it must be, as its manual page advises.
            watchdog: sd_notify::watchdog_enabled()
                .map(|interval| ((interval / 2).max(limits::MIN_WATCHDOG), now)),
        }
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Before it is ready nobody expects a sign of life.
        self.watchdog.filter(|_| self.is_ready).map(|(_, due)| due)
    }

    /// Gives the sign of life that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_ready = self.is_ready;
        let Some((interval, due)) = self.watchdog.as_mut().filter(|_| is_ready) else { return };
        if now >= *due {
            *due = now + *interval;
            self.say(Notice::Alive);
        }
    }

    /// The agent looks for its coordinator.
    pub fn tell_looking(&self, endpoint: &str) {
        self.say_status(&format!("looking for the coordinator at {endpoint}"));
    }

    /// The agent attends; the first time this is what others of this machine may have waited for.
    pub fn tell_attending(&mut self, endpoint: &str) {
        self.say_status(&format!("attending {endpoint}"));
        if !self.is_ready {
            self.is_ready = true;
            self.say(Notice::Ready);
        }
    }

    /// Something has changed.
    pub fn tell_news(&self, news: &News) {
        status(news).iter().for_each(|text| self.say_status(text));
    }

    /// The agent's part is over.
    pub fn tell_stopping(&self) {
        self.say(Notice::Stopping);
    }

    /// One line: what follows another one would be for the manager, and may come from anywhere.
    fn say_status(&self, text: &str) {
        self.say(Notice::Status(text.replace(char::is_control, " ")));
    }

    fn say(&self, notice: Notice) {
        if let Some(notices) = &self.notices {
            // One that takes nothing finds out by the watchdog, or not at all.
            let _ = notices.try_send(notice);
        }
    }
}

fn tell(notice: &Notice) {
    let state = match notice {
        Notice::Alive => NotifyState::Watchdog,
        Notice::Ready => NotifyState::Ready,
        Notice::Status(text) => NotifyState::Status(text),
        Notice::Stopping => NotifyState::Stopping,
    };
    if let Err(error) = sd_notify::notify(&[state]) {
        debug!(%error, "the service manager takes no notice");
    }
}

/// What `systemctl status` shows, on one line; none where the job goes on as it did.
fn status(news: &News) -> Option<String> {
    Some(match news {
        News::Admitted(admission) => {
            let nodes = admission.group_world_size;
            let noun = if nodes == 1 { "node" } else { "nodes" };
            format!("round {}, {nodes} {noun}, running", admission.round.round.0)
        }
        News::Evicted(id, reason) => {
            format!("round {}: no longer a member, {}", id.round.0, news::evicted(*reason))
        }
        News::HostLeaving => "the coordinator's host leaves".to_owned(),
        News::Restarting(id, reason) => {
            format!("round {} is over: {}", id.round.0, news::restarting(reason))
        }
        News::Succeeded(id) => {
            format!("round {}: succeeded, waiting for the other nodes", id.round.0)
        }
        News::Waiting(id, reason) => {
            format!("round {}: waiting, {}", id.round.0, news::waiting(*reason))
        }
        News::ClientRefused(..) => return None,
        News::WorkerFailed(failure) | News::Cause(failure) => {
            let (rank, end) = (failure.global_rank.0, news::ended(&failure.end));
            format!("round {}: rank {rank} {end}", failure.round.round.0)
        }
    })
}
