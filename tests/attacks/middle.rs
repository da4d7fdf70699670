//! Attacks from between an agent and its coordinator: a process ends TLS on both sides, with keys of its own.

use std::{
    io::{self, ErrorKind, Read},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, mpsc},
    thread,
};

use ragent_base::secret::{Secret, file};
use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned,
    pki_types::ServerName,
};

use crate::{
    own_keys,
    support::{PATIENCE, Sandbox, Stream, free_port},
};

/// Returns both ends of TLS with new keys.
fn own_ends() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let (mut client, _) = own_keys::client(own_keys::with_key());
    let mut server = own_keys::server();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    server.alpn_protocols = client.alpn_protocols.clone();
    (Arc::new(client), Arc::new(server))
}

/// A connection with TLS that was intercepted: the server's name, and the first bytes that each side has sent within it.
#[derive(Debug)]
struct Caught {
    name: String,
    of_client: io::Result<Vec<u8>>,
    of_coordinator: io::Result<Vec<u8>>,
}

/// Ends TLS for a client and opens it to the coordinator, under the server's name that the client has sent.
fn intercept(client: TcpStream, coordinator: TcpStream) -> Caught {
    let (own_client, own_server) = own_ends();
    for stream in [&client, &coordinator] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut client = StreamOwned::new(ServerConnection::new(own_server).unwrap(), client);
    let of_client = first_bytes(&mut client);
    let name = client.conn.server_name().unwrap_or("unnamed").to_owned();
    let connection = ClientConnection::new(own_client, ServerName::try_from(name.clone()).unwrap());
    let mut coordinator = StreamOwned::new(connection.unwrap(), coordinator);
    let of_coordinator = first_bytes(&mut coordinator);
    Caught { name, of_client, of_coordinator }
}

/// Shakes hands, and returns the first bytes of the other side.
fn first_bytes(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1024];
    let len = stream.read(&mut bytes)?;
    bytes.truncate(len);
    if bytes.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// Passes connections on to `to`, and intercepts those with TLS.
fn stand_between(to: String) -> (String, mpsc::Receiver<Caught>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (caught, receive) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, coordinator) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            let caught = caught.clone();
            thread::spawn(move || {
                let mut first = [0];
                if client.peek(&mut first).is_ok_and(|_| first == [0x16]) {
                    // The test may have ended.
                    let _ = caught.send(intercept(client, coordinator));
                } else {
                    pass_on(client, coordinator);
                }
            });
        }
    });
    (address, receive)
}

fn pass_on(client: TcpStream, coordinator: TcpStream) {
    let back = (coordinator.try_clone().unwrap(), client.try_clone().unwrap());
    for (mut from, mut to) in [(client, coordinator), back] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

/// 7: a process in the middle that ends TLS with its own keys is accepted by neither side, and reads nothing. It deceives a client that
/// accepts all keys, but not the coordinator.
#[test]
fn own_keys_in_the_middle() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("secret");
    file::create(&path, &Secret::random().unwrap()).unwrap();
    let agent = |endpoint: &str| {
        let words = format!(
            "--nnodes 2 --secret-file {} --rdzv-endpoint {endpoint} --no-python stay.sh",
            path.display()
        );
        sandbox.ragent(&words).start()
    };
    let mut host = agent(&format!("127.0.0.1:{}", free_port()));
    let (address, caught) = stand_between(host.endpoint());
    let deceived = TcpStream::connect(&address).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut deceived =
        StreamOwned::new(ClientConnection::new(own_ends().0, name).unwrap(), deceived);
    io::Write::write_all(&mut deceived, b"to the coordinator").unwrap();
    let first = caught.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.of_client.unwrap(), b"to the coordinator");
    assert!(first.of_coordinator.is_err(), "{:?}", first.of_coordinator);
    let mut guest = agent(&address);
    for _ in 0..2 {
        let caught = caught.recv_timeout(PATIENCE).unwrap();
        // The name is right, so that the coordinator decides by the key.
        assert!(caught.name.ends_with(".ragent.invalid"), "{caught:?}");
        for refused in [&caught.of_client, &caught.of_coordinator] {
            let refused = refused.as_ref().unwrap_err().to_string();
            assert!(refused.contains("fatal alert: AccessDenied"), "{caught:?}");
        }
    }
    host.logs("connection refused");
    for agent in [&mut host, &mut guest] {
        let text = agent.text(Stream::Stderr);
        assert!(!text.contains("worker started"), "{text}");
    }
}
