//! Sends requests to one member of etcd over one connection.
//!
//! If the member does not answer, the next request goes to another one.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use ragent_base::{
    net::{self, Endpoint},
    report::news::with_causes,
};
use ragent_election::claim::{ChangeOutcome, Entry, KeyContent, Record, Revision, Stamp};
use ragent_options::spec::EtcdSpec;
use ragent_proto::{
    Malformed,
    convert::claim,
    etcd::{
        AuthenticateRequest, Compare, KeyValue, LeaseGrantRequest, RangeRequest, RequestOp,
        StatusRequest, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
        auth_client::AuthClient,
        compare::{CompareResult, CompareTarget, TargetUnion},
        kv_client::KvClient,
        lease_client::LeaseClient,
        maintenance_client::MaintenanceClient,
        request_op,
        watch_client::WatchClient,
        watch_request::RequestUnion,
    },
};
use ragent_rendezvous::ids::RunId;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint as GrpcEndpoint},
};

use super::{
    error::{EtcdError, is_outdated_token, is_refusal, is_tls_failure},
    limits,
    tls::{file_names, read_file, tls_config, unusable_file},
};

/// A client with one connection.
#[derive(Debug)]
pub struct EtcdClient {
    spec: EtcdSpec,
    key: Vec<u8>,
    /// The member that requests go to, as an index.
    at: usize,
    connected: Option<EtcdConnection>,
}

/// A stamp that the key never has.
const NEVER: Stamp = Stamp { revision: Revision(i64::MAX as u64), lease: 0 };

/// The cause of the error for a value that is not a record.
const NO_RECORD: &str = "it is not a record of a job";

/// A connection to a member.
#[derive(Clone, Debug)]
struct EtcdConnection {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    remote: SocketAddr,
}

impl EtcdClient {
    /// Creates a client for the key of a job. It starts with member `first`.
    pub fn of_job(spec: EtcdSpec, run_id: &RunId, first: usize) -> Self {
        let key = format!("{}/{run_id}/leader", spec.prefix).into_bytes();
        Self::new(spec, key, first)
    }

    /// Creates a client for `key`. It starts with member `first`.
    fn new(spec: EtcdSpec, key: Vec<u8>, first: usize) -> Self {
        let at = first % spec.members.len().max(1);
        Self { spec, key, at, connected: None }
    }

    /// Returns the address of the connected member.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.connected.as_ref().map(|connected| connected.remote)
    }

    /// Reads the key. A majority of the members confirms the answer. A value above the size limit is not read.
    pub async fn read(&mut self) -> Result<KeyContent, EtcdError> {
        let value = self.range(false).await;
        let Err(EtcdError::Oversized { .. }) = value else { return value };
        let without_value = self.range(true).await?;
        // A record may have replaced the large value meanwhile.
        match self.range(false).await {
            Err(EtcdError::Oversized { .. }) => Ok(without_value),
            value => value,
        }
    }

    async fn range(&mut self, keys_only: bool) -> Result<KeyContent, EtcdError> {
        let message = RangeRequest { key: self.key.clone(), keys_only };
        let answer = self
            .send(message, |channel, request| async move { kv(channel).range(request).await })
            .await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        self.value(revision, answer.kvs.into_iter().next())
    }

    /// Replaces the record if the key has the `expected` content, or deletes it if `record` is `None`. The new record has this lease of
    /// etcd; zero for none.
    pub(super) async fn change(
        &mut self,
        expected: Stamp,
        record: Option<Record>,
        lease: i64,
    ) -> Result<ChangeOutcome, EtcdError> {
        let key = || self.key.clone();
        let request = match record {
            Some(record) => {
                let value = claim::encode(record);
                if value.len() > limits::MAX_RECORD {
                    let cause = format!("it has {} bytes", value.len());
                    return Err(EtcdError::Record { key: self.key_text(), cause });
                }
                let put = ragent_proto::etcd::PutRequest { key: key(), value, lease };
                request_op::Request::RequestPut(put)
            }
            None => {
                let delete = ragent_proto::etcd::DeleteRangeRequest { key: key() };
                request_op::Request::RequestDeleteRange(delete)
            }
        };
        let range = RangeRequest { key: key(), keys_only: false };
        let range = request_op::Request::RequestRange(range);
        let operation = |request| vec![RequestOp { request: Some(request) }];
        let equal = |target: CompareTarget, value| Compare {
            result: CompareResult::Equal.into(),
            target: target.into(),
            key: key(),
            target_union: Some(value),
        };
        let message = TxnRequest {
            compare: vec![
                equal(CompareTarget::Mod, TargetUnion::ModRevision(signed(expected.revision))),
                equal(CompareTarget::Lease, TargetUnion::Lease(expected.lease)),
            ],
            success: operation(request),
            failure: operation(range),
        };
        let answer = self
            .send(message, |channel, request| async move { kv(channel).txn(request).await })
            .await;
        let answer = match answer {
            // Only the answer to a refused change contains a value, so the change was not made.
            Err(EtcdError::Oversized { .. }) => {
                return self.read().await.map(|value| ChangeOutcome::Refused(Box::new(value)));
            }
            answer => answer?,
        };
        let revision = answer.header.map_or(0, |header| header.revision);
        if answer.succeeded {
            return Ok(ChangeOutcome::Made(Stamp { revision: unsigned(revision), lease }));
        }
        let content = answer.responses.into_iter().find_map(|response| response.response);
        let content = content.and_then(|content| match content {
            ragent_proto::etcd::response_op::Response::ResponseRange(range) => {
                range.kvs.into_iter().next()
            }
        });
        self.value(revision, content).map(|value| ChangeOutcome::Refused(Box::new(value)))
    }

    /// Reads the key like [`EtcdClient::read`], but in a transaction that would also change it. So etcd also checks the permission to
    /// write. The condition is never true. A value that is not a record is an error.
    pub async fn probe(&mut self) -> Result<KeyContent, EtcdError> {
        match self.change(NEVER, None, 0).await? {
            ChangeOutcome::Refused(value) if value.garbage.is_some() => {
                Err(EtcdError::Record { key: self.key_text(), cause: NO_RECORD.to_owned() })
            }
            ChangeOutcome::Refused(value) => Ok(*value),
            ChangeOutcome::Made(_) | ChangeOutcome::Unknown => {
                Err(self.failed("it has made a change whose condition is false"))
            }
        }
    }

    /// Returns the version of the member.
    pub async fn version(&mut self) -> Result<String, EtcdError> {
        let answer = self
            .send(StatusRequest {}, |channel, request| async move {
                MaintenanceClient::new(channel).status(request).await
            })
            .await?;
        Ok(answer.version)
    }

    /// Obtains a lease for keys. etcd removes them when it ends.
    pub(super) async fn grant_lease(&mut self) -> Result<i64, EtcdError> {
        let message = LeaseGrantRequest { ttl: limits::KEY_LEASE_S };
        let answer = self
            .send(message, |channel, request| async move {
                LeaseClient::new(channel).lease_grant(request).await
            })
            .await?;
        Ok(answer.id)
    }

    /// Watches the key from the revision after `from`.
    pub(super) async fn watch(
        &mut self,
        from: Revision,
    ) -> Result<Streaming<WatchResponse>, EtcdError> {
        let create = WatchCreateRequest {
            key: self.key.clone(),
            start_revision: signed(from).saturating_add(1),
        };
        let message = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        self.send(message, |channel, request: Request<WatchRequest>| async move {
            let (metadata, extensions, message) = request.into_parts();
            // The stream of requests stays open, because its end would end the watch.
            let messages = tokio_stream::once(message).chain(tokio_stream::pending());
            let request = Request::from_parts(metadata, extensions, messages);
            let client = WatchClient::new(channel);
            client.max_decoding_message_size(limits::MAX_ANSWER).watch(request).await
        })
        .await
    }

    /// Converts the content of the key at a revision of the store. A record of another version is an error.
    pub(super) fn value(
        &self,
        revision: i64,
        content: Option<KeyValue>,
    ) -> Result<KeyContent, EtcdError> {
        let Some(content) = content else {
            return Ok(KeyContent { revision: unsigned(revision), entry: None, garbage: None });
        };
        let revision = unsigned(revision.max(content.mod_revision));
        let stamp = Stamp { revision: unsigned(content.mod_revision), lease: content.lease };
        match claim::decode(&content.value) {
            Ok(record) => {
                Ok(KeyContent { revision, entry: Some(Entry { stamp, record }), garbage: None })
            }
            // A record of another version of ragent. A value that is not a record decodes as version zero.
            Err(error @ Malformed::ProtocolVersion { theirs: 1.., .. }) => {
                Err(EtcdError::Record { key: self.key_text(), cause: error.to_string() })
            }
            Err(_) => Ok(KeyContent { revision, entry: None, garbage: Some(stamp) }),
        }
    }

    /// Sends the next request to another member.
    pub(super) fn change_member(&mut self) {
        self.connected = None;
        self.at = (self.at + 1) % self.spec.members.len().max(1);
    }

    /// Returns an error of the current member.
    pub(super) fn failed(&self, message: impl Into<String>) -> EtcdError {
        EtcdError::Failed { member: self.member(), message: message.into() }
    }

    /// Sends a request. If etcd refuses the token, sends it once more with a new token. After an error of the member, the next request goes
    /// to another one.
    async fn send<Q: Clone, A, F>(
        &mut self,
        message: Q,
        call: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, EtcdError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut is_repeated = false;
        loop {
            let error = match self.attempt(message.clone(), &call).await {
                Ok(answer) => return Ok(answer),
                Err(AttemptFailure::Token(_)) if !is_repeated => {
                    is_repeated = true;
                    self.connected = None;
                    continue;
                }
                Err(AttemptFailure::Token(error) | AttemptFailure::Other(error)) => error,
            };
            if !matches!(error, EtcdError::Oversized { .. }) {
                self.change_member();
            }
            return Err(error);
        }
    }

    async fn attempt<Q, A, F>(
        &mut self,
        message: Q,
        call: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, AttemptFailure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let EtcdConnection { channel, token, .. } = self.connect().await?;
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        let waited = limits::REQUEST_TIMEOUT;
        match timeout(waited, call(channel, request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) if is_outdated_token(&status) => {
                Err(AttemptFailure::Token(self.status_error(&status)))
            }
            Ok(Err(status)) => Err(self.status_error(&status).into()),
            Err(_) => Err(EtcdError::Silent { member: self.member(), waited }.into()),
        }
    }

    /// Returns the current connection, or opens one.
    async fn connect(&mut self) -> Result<EtcdConnection, EtcdError> {
        if let Some(connected) = &self.connected {
            return Ok(connected.clone());
        }
        let waited = limits::CONNECT_TIMEOUT;
        let opened = timeout(waited, self.open()).await;
        let connected =
            opened.unwrap_or_else(|_| Err(EtcdError::Silent { member: self.member(), waited }))?;
        self.connected = Some(connected.clone());
        Ok(connected)
    }

    async fn open(&self) -> Result<EtcdConnection, EtcdError> {
        let member = self.member();
        let failed = |cause: String| EtcdError::Connect { member: member.clone(), cause };
        let mut cause = String::new();
        let addresses = net::resolve(&member).await.map_err(|error| failed(with_causes(&error)))?;
        for remote in addresses {
            match net::dial(remote).await {
                Ok(stream) => {
                    let channel = self.channel(stream).await?;
                    let token = self.log_in(channel.clone()).await?;
                    return Ok(EtcdConnection { channel, token, remote });
                }
                Err(error) => cause = error.to_string(),
            }
        }
        Err(failed(cause))
    }

    async fn channel(&self, stream: tokio::net::TcpStream) -> Result<Channel, EtcdError> {
        let member = self.member();
        let scheme = if self.spec.tls.is_some() { "https" } else { "http" };
        let failed = |error: tonic::transport::Error| {
            let (member, cause) = (member.clone(), with_causes(&error));
            if is_tls_failure(&cause) {
                return EtcdError::Tls { member, cause };
            }
            EtcdError::Connect { member, cause }
        };
        let mut grpc = GrpcEndpoint::from_shared(format!("{scheme}://{member}")).map_err(failed)?;
        if let Some(tls) = &self.spec.tls {
            // The files have unusable content, so a repetition would not help.
            grpc = grpc.tls_config(tls_config(tls)?.domain_name(member.host.clone())).map_err(
                |error| EtcdError::File { path: file_names(tls), cause: with_causes(&error) },
            )?;
        }
        let mut stream = Some(TokioIo::new(stream));
        // The only connection exists already. A channel that asks for another one has lost it.
        let connector = tower::service_fn(move |_| {
            let stream = stream.take();
            std::future::ready(
                stream.ok_or_else(|| std::io::Error::other("the connection was lost")),
            )
        });
        grpc.connect_with_connector(connector).await.map_err(failed)
    }

    /// Logs in, if a user is given, and returns the token for requests.
    async fn log_in(&self, channel: Channel) -> Result<Option<MetadataValue<Ascii>>, EtcdError> {
        let Some(login) = &self.spec.login else { return Ok(None) };
        let password = read_file(&login.password_file)?;
        let unusable = |cause: &str| unusable_file(&login.password_file, cause);
        let password = String::from_utf8(password).map_err(|_| unusable("it is not text"))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        let message = AuthenticateRequest { name: login.user.clone(), password };
        let answer = AuthClient::new(channel)
            .authenticate(message)
            .await
            .map_err(|status| self.status_error(&status))?;
        let token = answer.into_inner().token.parse();
        token.map(Some).map_err(|_| self.failed("its token is not valid"))
    }

    fn status_error(&self, status: &Status) -> EtcdError {
        let member = self.member();
        let cause = with_causes(status);
        if is_tls_failure(&cause) {
            return EtcdError::Tls { member, cause };
        }
        let message = match status.message() {
            "" => status.code().to_string(),
            message => message.to_owned(),
        };
        if is_refusal(status) {
            return EtcdError::Refused { member, message };
        }
        // etcd itself uses this code only for ranges at a revision, so here it comes from the limit of this client.
        if status.code() == Code::OutOfRange {
            return EtcdError::Oversized { member, message };
        }
        EtcdError::Failed { member, message }
    }

    fn member(&self) -> Endpoint {
        self.spec.members.get(self.at).cloned().unwrap_or_default()
    }

    /// Returns the key as text.
    pub(super) fn key_text(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }
}

/// The failure of one attempt.
enum AttemptFailure {
    /// The token is outdated.
    Token(EtcdError),
    /// Another reason.
    Other(EtcdError),
}

impl From<EtcdError> for AttemptFailure {
    fn from(error: EtcdError) -> Self {
        Self::Other(error)
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(limits::MAX_ANSWER)
}

/// Revisions are never negative.
fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default())
}

fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_rendezvous::{
        heir::Successor,
        ids::{NodeId, Term},
        limits::{NUMBER_MAX, SUCCESSORS_MAX},
    };

    use ragent_election::claim::RecordKind;

    use super::*;
    use crate::voters::largest_job_state;

    /// The largest state of a job needs half of a record. So the end of a job is always recorded, for any content of its failures.
    #[test]
    fn largest_job_state_fits() {
        let name = || "x".repeat(256);
        let successor = Successor { process: NodeId::new(name()), endpoint: name() };
        let record = Record {
            process: NodeId::new(name()),
            endpoint: name(),
            term: Term(NUMBER_MAX),
            number: NUMBER_MAX,
            silence: Duration::from_secs(60),
            kind: RecordKind::JobOver,
            successors: vec![successor; SUCCESSORS_MAX],
            job_state: Some(largest_job_state()),
        };
        let value = claim::encode(record.clone());
        assert!(value.len() <= limits::MAX_RECORD / 2, "{}", value.len());
        assert_eq!(claim::decode(&value), Ok(record));
    }
}
