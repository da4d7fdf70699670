//! Attacks by handshakes. The attacker has recorded the first message of a member, but does not have the secret.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{
    attacker::here,
    own_keys::{self, NoKey},
    support::PATIENCE,
    victim::{ATTACKER, ENDPOINT, Victim},
};

/// The end of each server name that members send.
const DOMAIN: &[u8] = b".ragent.invalid";
/// The length of a server name in hexadecimal digits.
const NAME_LEN: usize = 32;

/// Records the server name that a member sends to the attacker's node.
fn record_server_name(victim: &Victim) -> String {
    let listener = here(&victim.network, ATTACKER, || TcpListener::bind("10.77.0.3:0").unwrap());
    let endpoint = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        let recorder = scope.spawn(|| server_name_of(listener.accept().unwrap().0));
        victim.ask_status_of(&endpoint).assert_code(1);
        recorder.join().unwrap().unwrap()
    })
}

/// Returns the server name in the first message on a connection. Returns `None` if the connection ends without one.
fn server_name_of(mut stream: TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut message, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut part).ok().filter(|len| *len > 0)?;
        message.extend_from_slice(&part[..len]);
        if let Some(end) = message.windows(DOMAIN.len()).position(|part| part == DOMAIN) {
            let name = &message[end - NAME_LEN..end + DOMAIN.len()];
            return Some(String::from_utf8(name.to_vec()).unwrap());
        }
    }
}

/// Returns the answer to a request in TLS, or the error of the handshake.
fn ask(config: Arc<ClientConfig>, server_name: &str) -> Result<String, std::io::Error> {
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let stream = TcpStream::connect(ENDPOINT).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream);
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// 15: a process repeats the server name that a member sends, with a key of its own or without one. The job does not open for it. A flood
/// of such handshakes does not disturb the job, although the server signs for each, and a process with the secret is served meanwhile.
#[test]
fn handshakes_with_the_right_server_name() {
    let Some(mut victim) = Victim::secured("sni") else { return };
    let server_name = record_server_name(&victim);
    for own in [own_keys::with_key(), Arc::new(NoKey)] {
        let (config, verifier) = own_keys::client(own);
        let config = Arc::new(config);
        let error = here(&victim.network, ATTACKER, || ask(config, &server_name)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("received fatal alert"), "{error}");
        // The server has answered with its own key. It does so only if it knows the name.
        assert_eq!(verifier.servers(), 1);
    }
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            here(&victim.network, ATTACKER, || {
                let config = Arc::new(own_keys::client(own_keys::with_key()).0);
                (0..3000).filter(|_| ask(Arc::clone(&config), &server_name).is_ok()).count()
            })
        });
        while !flood.is_finished() {
            assert!(victim.printed_status().contains("running"));
        }
        assert_eq!(flood.join().unwrap(), 0);
    });
    let status = victim.printed_status();
    assert!(status.contains("refused:") && status.contains("10.77.0.3"), "{status}");
    victim.assert_unharmed();
}
