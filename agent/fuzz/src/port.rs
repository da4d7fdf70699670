//! A connection to an agent's port, in each setting of the port.

use std::{
    future::ready,
    io,
    net::Ipv4Addr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{extract::Request, middleware::map_request};
use ragent_base::{
    net::{
        connection::{ConnectionProgress, PeerAddress},
        connection_quota::{Bounds, ConnectionOrigin, ConnectionQuota},
        port::{
            OwnUser, PassedConnection, PortClient, PortProtocols, RegisteredNodes, TLS,
            VOTER_PROTOCOL, serve_connection,
        },
    },
    secret::{Credentials, Origin as SecretOrigin, Secret, Unsecured},
    sys::clock,
    testing::{assert_shown, job},
};
use ragent_coordinator::{driver::Input, role::Role, service};
use ragent_rendezvous::ids::RunId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
    sync::{mpsc, watch},
    task::yield_now,
    time::timeout,
};

use super::pki;

/// Serves one connection. The first byte is the setting of the port and its client, the second one the number of bytes, in
/// units of four, after which the client pauses; the others are the bytes of the connection.
pub fn port(input: &[u8]) {
    let Some((&[setting, pause], bytes)) = input.split_first_chunk() else { return };
    let visit = Visit {
        setting: Setting::of(setting),
        pieces: bytes.split_at(bytes.len().min(4 * usize::from(pause))),
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(visit.run());
}

/// The setting of a port, and its client.
#[derive(Clone, Copy, Debug)]
struct Setting {
    credentials: &'static Credentials,
    own_user: OwnUser,
    is_private: bool,
    /// The client closes its end of the connection after its bytes.
    is_closed: bool,
    has_voter: bool,
}

impl Setting {
    fn of(byte: u8) -> Self {
        let own_user = [OwnUser::No, OwnUser::Yes, OwnUser::Unknown, OwnUser::No];
        Self {
            credentials: &CREDENTIALS[usize::from(byte & 3)],
            own_user: own_user[usize::from(byte >> 2 & 3)],
            is_private: byte & 0x10 != 0,
            is_closed: byte & 0x20 == 0,
            has_voter: byte & 0x40 != 0,
        }
    }

    /// Returns true if a client without TLS may use the pages of members.
    fn admits_plain(&self) -> bool {
        let is_refused = self.is_private && self.own_user == OwnUser::No;
        !self.credentials.is_secured() && !is_refused
    }

    /// Returns true if such a client may read the status.
    fn shows_status(&self) -> bool {
        self.admits_plain() || self.credentials.is_secured() && self.own_user == OwnUser::Yes
    }
}

static CREDENTIALS: LazyLock<[Credentials; 4]> = LazyLock::new(|| {
    let secret = Secret::new(job::SECRET).expect("a secret");
    [
        Credentials::unsecured(Unsecured::Chosen),
        Credentials::unsecured(Unsecured::NotFound { searched: Vec::new() }),
        Credentials::new(vec![secret], SecretOrigin::Stdin),
        pki::credentials(),
    ]
});

/// More time than any part of a connection may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The longest part of an answer that is read.
const ANSWER_MAX: u64 = 64 * 1024;

struct Visit<'a> {
    setting: Setting,
    pieces: (&'a [u8], &'a [u8]),
}

/// The inputs of the coordinator that a connection has caused.
#[derive(Debug, Default)]
struct Caused {
    death_notices: usize,
    snapshots: usize,
    others: usize,
}

impl Visit<'_> {
    async fn run(self) {
        let setting = self.setting;
        let (inputs, queue) = mpsc::channel(16);
        let (role, _death_notices) = Role::of(inputs, HERE);
        let (mut http, _) = service::routers(&RunId::new(job::RUN_ID), role, setting.credentials);
        let as_member = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&as_member);
        http.members = http.members.layer(map_request(move |request: Request| {
            asked.store(true, Ordering::Relaxed);
            ready(request)
        }));
        let (voters, mut voter_connections) = mpsc::channel(1);
        let (_registered_nodes, registered_nodes) = watch::channel(RegisteredNodes::default());
        let protocols = PortProtocols {
            http,
            credentials: setting.credentials.clone(),
            store: None,
            voters: setting.has_voter.then_some(voters),
            memory: None,
            registered_nodes,
            nodes_max: 1,
        };
        let caused = tokio::spawn(record(queue));
        let (answer, voter) = self.exchange(&protocols, &mut voter_connections).await;
        // Drops the last sender, so that `record` returns.
        drop(protocols);
        let caused = timeout(PATIENCE, caused).await.expect("requests end with their connection");
        let caused = caused.expect("the inputs are well-formed");
        let context = format!("{setting:?} {caused:?} {}", answer.escape_ascii());
        if !setting.admits_plain() {
            assert!(!as_member.load(Ordering::Relaxed), "{context}");
            assert_eq!(caused.others, 0, "{context}");
            let is_named = answer.windows(job::RUN_ID.len()).any(|at| at == job::RUN_ID.as_bytes());
            assert!(!is_named, "{context}");
        }
        assert!(caused.snapshots == 0 || setting.shows_status(), "{context}");
        let is_of_voter = self.first() == Some(VOTER_PROTOCOL) && setting.has_voter;
        assert_eq!(voter, is_of_voter.then_some(setting.own_user == OwnUser::Yes), "{context}");
        self.check_answer(&answer, &context);
    }

    /// Serves the connection. Returns the answer and, if it was passed on to the voter, whether it counts as that of the own
    /// user.
    async fn exchange(
        &self,
        protocols: &PortProtocols,
        voters: &mut mpsc::Receiver<PassedConnection>,
    ) -> (Vec<u8>, Option<bool>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, (stream, peer)) =
            (client.expect("it listens"), accepted.expect("it listens"));
        let mut quota = ConnectionQuota::new(Bounds::default());
        let known = |_| false;
        let id =
            quota.handle_accepted(clock::now(), peer.ip(), ConnectionOrigin::Unknown, 0, known);
        let (steps, mut stepped) = mpsc::channel(16);
        let progress = ConnectionProgress::new(id, steps);
        let Setting { own_user, is_private, is_closed, .. } = self.setting;
        let is_own_user = own_user == OwnUser::Yes;
        let source = PeerAddress { ip: peer.ip(), is_here: own_user != OwnUser::No, is_own_user };
        let about = PortClient { peer: source, own_user, is_private, may_read: None };
        let serve = async {
            let served = serve_connection(stream, about, protocols, &progress);
            let ended = timeout(PATIENCE, served).await;
            // The quota closes a connection whose client neither asks nor leaves.
            assert!(ended.is_ok() || !is_closed, "the connection does not end");
            // Dropping the voter's connection closes it.
            voters.try_recv().ok().map(|connection| connection.peer.is_own_user)
        };
        let talk = async {
            // The port may close it at any time.
            for piece in [self.pieces.0, self.pieces.1] {
                let _ = client.write_all(piece).await;
                for _ in 0..PAUSE_STEPS {
                    yield_now().await;
                }
            }
            if is_closed {
                let _ = client.shutdown().await;
            }
            let mut answer = Vec::new();
            let read = (&mut client).take(ANSWER_MAX).read_to_end(&mut answer).await;
            if let Err(error) = read {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            }
            answer
        };
        let (voter, answer) = tokio::join!(serve, talk);
        while let Ok((of, _)) = stepped.try_recv() {
            assert_eq!(of, id);
        }
        (answer, voter)
    }

    fn first(&self) -> Option<u8> {
        self.pieces.0.first().or_else(|| self.pieces.1.first()).copied()
    }

    /// Checks that the answer is in the protocol of the first byte.
    fn check_answer(&self, answer: &[u8], context: &str) {
        let is_secured = self.setting.credentials.is_secured();
        match self.first() {
            Some(b'A'..=b'Z') => {
                let is_http1 = answer.starts_with(b"HTTP/1.");
                let is_settings = answer.get(3) == Some(&4) && answer[0] == 0;
                assert!(answer.is_empty() || is_http1 || is_settings, "{context}");
            }
            // A handshake or an alert.
            Some(TLS) if is_secured => {
                let is_tls = answer.first().is_none_or(|first| [0x14, 0x15, 0x16].contains(first));
                assert!(is_tls, "{context}");
            }
            Some(_) | None => assert!(answer.is_empty(), "{context}"),
        }
    }
}

/// The endpoint of the coordinator.
const HERE: &str = "127.0.0.1:29400";

/// The turns of the runtime for which the client pauses, so that the server reads.
const PAUSE_STEPS: usize = 20;

/// Counts inputs, and leaves them without an answer.
async fn record(mut queue: mpsc::Receiver<Input>) -> Caused {
    let mut caused = Caused::default();
    while let Some(input) = queue.recv().await {
        match input {
            Input::DeathNotice(death_notice) => {
                assert_shown(&death_notice);
                caused.death_notices += 1;
            }
            Input::Snapshot(_) | Input::Counts(_) | Input::Journal(_) => caused.snapshots += 1,
            Input::Registration { registration, .. } => {
                assert_shown(&registration);
                caused.others += 1;
            }
            Input::Message(..) | Input::Detached(_) => caused.others += 1,
            Input::StepDown(_) | Input::Excluded(_) | Input::Shutdown => {
                panic!("no client causes this: {input:?}")
            }
        }
    }
    caused
}
