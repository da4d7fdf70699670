//! Requests that read: the state of a job, its journal, and the events of its page.

use std::net::SocketAddr;

use ragent_proto::{
    Malformed,
    convert::{JournalAnswer, JournalRequest, NotHere, PageAnswer, StatusAnswer},
    v1::{self, JournalReply, PageReply, PageRequest, StatusReply, StatusRequest},
};
use ragent_rendezvous::snapshot::Snapshot;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::{AttendError, Connection, connect, in_time, mismatch_after, unauthenticated};
use crate::{coordinator::limits, net, secret::Credentials, spec::Endpoint};

/// Asks the process at `endpoint` for the state of its job.
///
/// # Errors
///
/// Returns [`AttendError`] if it cannot be reached or does not answer as ragent.
pub async fn status(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> Result<StatusAnswer, AttendError> {
    let addresses = net::resolve(endpoint).await?;
    let Connection { mut client, remote, .. } = connect(&addresses, credentials).await?;
    let reply = in_time(remote, client.status(StatusRequest {})).await?;
    let reply = match reply {
        Ok(reply) => reply,
        Err(status) => return Err(refused(remote, credentials, status).await),
    };
    let answer = reply.into_inner().try_into();
    answer.map_err(|malformed: Malformed| protocol(remote, malformed))
}

/// Asks the process at `endpoint` for the state of its job; returns `None` if it does not coordinate the job.
///
/// # Errors
///
/// Returns [`AttendError`] if it cannot be reached or does not answer as ragent.
pub(crate) async fn job(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> Result<Option<Box<Snapshot>>, AttendError> {
    match status(endpoint, credentials).await? {
        StatusAnswer::Snapshot(snapshot) => Ok(Some(snapshot)),
        StatusAnswer::NotHere(_) => Ok(None),
    }
}

/// The states of a job, as they arrive.
pub struct States {
    rest: Streaming<StatusReply>,
    remote: SocketAddr,
}

impl States {
    /// Returns the next state; `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns [`AttendError`] if the connection broke, or the process does not answer as ragent.
    pub async fn next(&mut self) -> Result<Option<Box<Snapshot>>, AttendError> {
        match self.rest.message().await {
            Ok(Some(reply)) => match reply.try_into() {
                Ok(StatusAnswer::Snapshot(snapshot)) => Ok(Some(snapshot)),
                Ok(StatusAnswer::NotHere(_)) => Ok(None),
                Err(error) => Err(protocol::<Malformed>(self.remote, error)),
            },
            Ok(None) => Ok(None),
            Err(_) => Err(AttendError::Broken(self.remote)),
        }
    }
}

/// Asks the process at `endpoint` for the state of its job, now and after each change.
///
/// # Errors
///
/// Returns [`AttendError`] if it cannot be reached or does not answer as ragent.
pub async fn watch(endpoint: &Endpoint, credentials: &Credentials) -> Result<States, AttendError> {
    let addresses = net::resolve(endpoint).await?;
    let Connection { mut client, remote, .. } = connect(&addresses, credentials).await?;
    match in_time(remote, client.watch(StatusRequest {})).await? {
        Ok(reply) => Ok(States { rest: reply.into_inner(), remote }),
        Err(status) => Err(refused(remote, credentials, status).await),
    }
}

/// The answer to a request for the journal.
pub enum Journal {
    /// The process does not host the coordinator.
    NotHere(NotHere),
    /// The parts of the journal.
    Parts(Box<Parts>),
}

/// The parts of a journal, as they arrive.
pub struct Parts {
    first: Option<String>,
    rest: Streaming<JournalReply>,
    remote: SocketAddr,
}

impl Parts {
    /// Returns the next events as JSON lines; `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns [`AttendError`] if the connection broke, or the process does not answer as ragent.
    pub async fn next(&mut self) -> Result<Option<String>, AttendError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.rest.message().await {
            Ok(Some(reply)) => match reply.try_into() {
                Ok(JournalAnswer::Lines(lines)) => Ok(Some(lines)),
                Ok(JournalAnswer::NotHere(_)) => Ok(None),
                Err(error) => Err(protocol(self.remote, error)),
            },
            Ok(None) => Ok(None),
            Err(_) => Err(AttendError::Broken(self.remote)),
        }
    }
}

fn protocol<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    address: SocketAddr,
    source: E,
) -> AttendError {
    AttendError::Protocol { address, source: source.into() }
}

/// Asks the process at `endpoint` for the journal of its job.
///
/// # Errors
///
/// Returns [`AttendError`] if it cannot be reached or does not answer as ragent.
pub async fn journal(
    endpoint: &Endpoint,
    credentials: &Credentials,
    request: JournalRequest,
) -> Result<Journal, AttendError> {
    let addresses = net::resolve(endpoint).await?;
    let Connection { mut client, remote, .. } = connect(&addresses, credentials).await?;
    let reply = in_time(remote, client.journal(v1::JournalRequest::from(request))).await?;
    let mut rest = match reply {
        Ok(reply) => reply.into_inner(),
        Err(status) => return Err(refused(remote, credentials, status).await),
    };
    // A journal that is followed may be empty for long.
    let first = if request.follow {
        match timeout(limits::IDENTIFY_TIMEOUT, rest.message()).await {
            Ok(first) => first,
            Err(_) => return Ok(Journal::Parts(Box::new(Parts { first: None, rest, remote }))),
        }
    } else {
        in_time(remote, rest.message()).await?
    };
    let first = first.map_err(|_| AttendError::Broken(remote))?;
    let first = match first.map(JournalAnswer::try_from).transpose() {
        Ok(Some(JournalAnswer::NotHere(not_here))) => return Ok(Journal::NotHere(not_here)),
        Ok(Some(JournalAnswer::Lines(lines))) => Some(lines),
        Ok(None) => None,
        Err(error) => return Err(protocol(remote, error)),
    };
    Ok(Journal::Parts(Box::new(Parts { first, rest, remote })))
}

/// The answer to a request for the events of the page.
pub enum PageEvents {
    /// The process does not host the coordinator.
    NotHere(NotHere),
    /// The events.
    Parts(Box<PageParts>),
}

/// The events of the page, as they arrive.
pub struct PageParts {
    first: Option<String>,
    rest: Streaming<PageReply>,
    remote: SocketAddr,
}

impl PageParts {
    /// Returns the next server-sent events; `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns [`AttendError`] if the connection broke, or the process does not answer as ragent.
    pub async fn next(&mut self) -> Result<Option<String>, AttendError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.rest.message().await {
            Ok(Some(reply)) => match reply.try_into() {
                Ok(PageAnswer::Events(events)) => Ok(Some(events)),
                Ok(PageAnswer::NotHere(_)) => Ok(None),
                Err(error) => Err(protocol::<Malformed>(self.remote, error)),
            },
            Ok(None) => Ok(None),
            Err(_) => Err(AttendError::Broken(self.remote)),
        }
    }
}

/// Asks the process at `endpoint` for the events of its page.
///
/// # Errors
///
/// Returns [`AttendError`] if it cannot be reached or does not answer as ragent.
pub async fn page(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> Result<PageEvents, AttendError> {
    let addresses = net::resolve(endpoint).await?;
    let Connection { mut client, remote, .. } = connect(&addresses, credentials).await?;
    let mut rest = match in_time(remote, client.page(PageRequest {})).await? {
        Ok(reply) => reply.into_inner(),
        Err(status) => return Err(refused(remote, credentials, status).await),
    };
    let first = in_time(remote, rest.message()).await?.map_err(|_| AttendError::Broken(remote))?;
    let first = match first.map(PageAnswer::try_from).transpose() {
        Ok(Some(PageAnswer::NotHere(not_here))) => return Ok(PageEvents::NotHere(not_here)),
        Ok(Some(PageAnswer::Events(events))) => Some(events),
        Ok(None) => None,
        Err(error) => return Err(protocol(remote, error)),
    };
    Ok(PageEvents::Parts(Box::new(PageParts { first, rest, remote })))
}

/// Returns the reason for which a request has failed.
async fn refused(remote: SocketAddr, credentials: &Credentials, status: Status) -> AttendError {
    if status.code() == Code::Unauthenticated {
        return unauthenticated(remote, credentials, &status).await;
    }
    match mismatch_after(remote, credentials, &status).await {
        Some(mismatch) => mismatch.into(),
        None => protocol(remote, status),
    }
}
