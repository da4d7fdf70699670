//! Notifies a service manager of the agent's state, as systemd's `Type=notify` requires: readiness
//! once it has registered, a status line, and watchdog keep-alives from the main loop.

use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use ragent_core::agent::News;
use sd_notify::NotifyState;
use tracing::debug;

use super::news;
use crate::{
    report::limits,
    sys::host::{Host, ThisHost},
};

/// A notification for a service manager.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Notice {
    Alive,
    Ready,
    Status(String),
    Stopping,
}

/// The service manager that started this process, if it accepts notifications.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// The queue of the thread that sends; a paused manager must not block the agent.
    notices: Option<SyncSender<Notice>>,
    is_ready: bool,
    /// The interval of watchdog keep-alives, and the time of the next one; `None` if there is no
    /// watchdog.
    watchdog: Option<(Duration, Instant)>,
}

impl ServiceManager {
    /// The service manager that this process's environment names.
    pub fn of_this_process(now: Instant) -> Self {
        if ThisHost.env("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
            return Self::default();
        }
        let (notices, queue) = sync_channel(limits::NOTICE_QUEUE);
        let notifier = thread::Builder::new().name("service-manager".to_owned());
        let notifier = notifier.spawn(move || {
            for notice in queue {
                notify(&notice);
            }
        });
        Self {
            notices: notifier.ok().map(|_| notices),
            is_ready: false,
            // Twice as often as required, as the manual page advises.
            watchdog: sd_notify::watchdog_enabled()
                .map(|interval| ((interval / 2).max(limits::MIN_WATCHDOG), now)),
        }
    }

    /// Returns the time of the next keep-alive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Before the agent is ready, no keep-alive is expected.
        self.watchdog.filter(|_| self.is_ready).map(|(_, due)| due)
    }

    /// Sends the keep-alive if it is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_ready = self.is_ready;
        let Some((interval, due)) = self.watchdog.as_mut().filter(|_| is_ready) else { return };
        if now >= *due {
            *due = now + *interval;
            self.send(Notice::Alive);
        }
    }

    /// Reports that the agent looks for its coordinator.
    pub fn report_looking(&self, endpoint: &str) {
        self.send_status(&format!("looking for the coordinator at {endpoint}"));
    }

    /// Reports that the agent has registered. The first call also reports readiness, which other
    /// units of this machine may wait for.
    pub fn report_registered(&mut self, endpoint: &str) {
        self.send_status(&format!("registered at {endpoint}"));
        if !self.is_ready {
            self.is_ready = true;
            self.send(Notice::Ready);
        }
    }

    /// Reports a change of the agent's status, if the news is one.
    pub fn report_news(&self, news: &News) {
        status(news).iter().for_each(|text| self.send_status(text));
    }

    /// Reports that the agent is stopping.
    pub fn report_stopping(&self) {
        self.send(Notice::Stopping);
    }

    /// Sends a status of one line. Further lines would be parsed as notifications, and may come
    /// from anywhere.
    fn send_status(&self, text: &str) {
        self.send(Notice::Status(text.replace(char::is_control, " ")));
    }

    fn send(&self, notice: Notice) {
        if let Some(notices) = &self.notices {
            // If the manager does not read, the notice is dropped; only its watchdog would detect
            // that.
            let _ = notices.try_send(notice);
        }
    }
}

fn notify(notice: &Notice) {
    let state = match notice {
        Notice::Alive => NotifyState::Watchdog,
        Notice::Ready => NotifyState::Ready,
        Notice::Status(text) => NotifyState::Status(text),
        Notice::Stopping => NotifyState::Stopping,
    };
    if let Err(error) = sd_notify::notify(&[state]) {
        debug!(%error, "failed to notify the service manager");
    }
}

/// Returns the line for `systemctl status`; `None` if the news does not change it.
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
        News::HostLeaving => "the coordinator's host is leaving".to_owned(),
        News::Restarting(id, reason) => {
            format!("round {} has ended: {}", id.round.0, news::restarting(reason))
        }
        News::Succeeded(id) => {
            format!("round {}: succeeded, waiting for the other nodes", id.round.0)
        }
        News::Waiting(id, reason) => {
            format!("round {}: waiting, {}", id.round.0, news::waiting(*reason))
        }
        News::NoticeGiven(notice) => news::notice_given(notice),
        News::NoticeOver(end) => news::notice_over(end),
        News::ClientRefused(..) | News::MemoryOff(..) => return None,
        News::WorkerFailed(failure) | News::Cause(failure) => {
            let (rank, hardware) = (failure.global_rank.0, failure.hardware_lines());
            let end = news::failed(&failure.end, failure.oom, &hardware);
            format!("round {}: rank {rank} {end}", failure.round.round.0)
        }
    })
}
