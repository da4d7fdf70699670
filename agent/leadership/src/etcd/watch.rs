//! Reports the content of the job's key to the driver.
//!
//! 1. Read the key.
//! 2. Watch it from that revision on.
//! 3. After an error or a long silence, continue with 1 at another member: the first one may be
//!    separated from the cluster.

use std::time::Duration;

use ragent_base::sys::clock;
use ragent_election::claim::Revision;
use ragent_proto::etcd::event::EventType;
use ragent_rendezvous::jitter::{Jitter, Pauses, doubled};
use tokio::{sync::mpsc, time::timeout};

use super::{client::EtcdClient, error::EtcdError, event::EtcdEvent, limits};

/// Reports the content until the receiver of the events ends.
pub(super) async fn report(
    mut client: EtcdClient,
    mut jitter: Jitter,
    events: mpsc::Sender<EtcdEvent>,
) {
    let mut pauses = Pauses::new(limits::RETRY_FIRST, limits::RETRY_MAX, jitter.bits());
    let mut silences = 0_u32;
    let mut known = Revision::default();
    loop {
        let silence = doubled(limits::WATCH_SILENCE, silences, limits::WATCH_SILENCE_MAX);
        let silence = silence.mul_f64(1.0 + jitter.fraction() / 2.0);
        let mut newest = known;
        let end = follow(&mut client, silence, &mut newest, &events).await;
        // The revision is lower than before if etcd was restored from a backup.
        let has_changed = newest != known;
        known = newest;
        if has_changed {
            pauses.reset();
            silences = 0;
        }
        client.change_member();
        match end {
            WatchEnd::Closed => return,
            WatchEnd::Silent => silences = if has_changed { 0 } else { silences + 1 },
            WatchEnd::Failed(error) => {
                if events.send(EtcdEvent::Away(error)).await.is_err() {
                    return;
                }
                clock::until(Some(clock::now() + pauses.after_failure())).await;
            }
        }
    }
}

/// The reason for the end of a watch.
enum WatchEnd {
    /// The receiver of the events has ended.
    Closed,
    /// Nothing was reported for a while.
    Silent,
    /// A request has failed.
    Failed(EtcdError),
}

/// Reads the key, and reports its changes until nothing happens for `silence`. Sets `newest` to the last reported revision of the key.
async fn follow(
    client: &mut EtcdClient,
    silence: Duration,
    newest: &mut Revision,
    events: &mpsc::Sender<EtcdEvent>,
) -> WatchEnd {
    let value = match client.read().await {
        Ok(value) => value,
        Err(error) => return WatchEnd::Failed(error),
    };
    let revision = value.revision;
    *newest = value.entry.as_ref().map_or(*newest, |entry| entry.stamp.revision);
    if events.send(EtcdEvent::Value(Box::new(value))).await.is_err() {
        return WatchEnd::Closed;
    }
    let mut answers = match client.watch(revision).await {
        Ok(answers) => answers,
        Err(error) => return WatchEnd::Failed(error),
    };
    loop {
        let answer = match timeout(silence, answers.message()).await {
            Err(_) => return WatchEnd::Silent,
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return WatchEnd::Failed(client.failed("it has ended the watch")),
            Ok(Err(status)) => return WatchEnd::Failed(client.failed(status.message())),
        };
        if answer.canceled {
            return WatchEnd::Failed(
                client.failed(format!("the watch has ended: {}", answer.cancel_reason)),
            );
        }
        for event in answer.events {
            let is_deleted = event.r#type() == EventType::Delete;
            let Some(content) = event.kv else { continue };
            let revision = content.mod_revision;
            let value = client.value(revision, Some(content).filter(|_| !is_deleted));
            let event = match value {
                Ok(value) => {
                    *newest = value.revision;
                    EtcdEvent::Value(Box::new(value))
                }
                Err(error) => EtcdEvent::Away(error),
            };
            if events.send(event).await.is_err() {
                return WatchEnd::Closed;
            }
        }
    }
}
