//! Serves the document of a real agent, with events that the test has made.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

/// Returns the answer to a GET request, head and body, as it was sent.
#[track_caller]
pub(crate) fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is read");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer
}

/// Sends a request with these headers, in the version of HTTP without chunks in answers. Returns the head and the body of the answer.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, request: &str, headers: &[&str]) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    let headers = headers.join("\r\n");
    let request = format!("{request} HTTP/1.0\r\n{headers}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (format!("{head}\r\n"), body.to_owned())
}

/// Serves the document, and answers each request for events with these. Returns the address. The server ends with the test's process.
#[track_caller]
pub(crate) fn serve(document: Vec<u8>, events: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let parts = Arc::new((document, events));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let parts = Arc::clone(&parts);
            thread::spawn(move || answer(stream, &parts));
        }
    });
    address
}

/// Answers one request. The browser may end the connection at any time.
fn answer(mut stream: TcpStream, (document, events): &(Vec<u8>, String)) {
    let Ok(reader) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let _ = lines.find(String::is_empty);
    if request.starts_with("GET / ") {
        let _ = stream.write_all(document);
    } else if request.starts_with("GET /v1/watch ") {
        let head = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(events.as_bytes());
        // Open until the browser closes it.
        let _ = lines.next();
    }
}
