//! Runs the recipe for alerts as docs/events.md prints it.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    sync::mpsc,
    thread,
};

use ragent_base::sys::host::{Host, ThisHost};

use crate::support::{PATIENCE, Sandbox, is_there};

/// Returns the first block of code below a heading of a page.
fn recipe(page: &str, heading: &str) -> String {
    let (_, section) = page.split_once(heading).expect("the page has the heading");
    let lines = section.lines().skip_while(|line| !line.starts_with("    "));
    let block = lines.take_while(|line| line.starts_with("    "));
    block.map(|line| format!("{}\n", line.trim_start_matches("    "))).collect()
}

/// A notice and the end of a job reach the chat, and events of other kinds do not.
#[test]
fn recipe_for_alerts_sends_messages() {
    if ["bash", "curl", "jq"].iter().any(|program| !is_there(program)) {
        return;
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/events.md"));
    let recipe = recipe(&page.unwrap(), "\n## Alerts\n");
    let sandbox = Sandbox::new();
    let chat = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("url = http://{}/services/T0\n", chat.local_addr().unwrap());
    let header = "header = \"Content-Type: application/json\"\n";
    fs::write(sandbox.path(".hook"), url + header).unwrap();
    fs::create_dir(sandbox.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_ragent"), sandbox.path("bin/ragent")).unwrap();
    let orders = sandbox.orders(0);
    let mut agent =
        sandbox.ragent("--rdzv-endpoint 127.0.0.1:0 --notice 60 --no-python obey.sh").start();
    agent.endpoint();
    agent.worker();
    let (to, messages) = mpsc::channel();
    // It ends with the test.
    thread::spawn(move || {
        while let Ok(text) = chat.accept().and_then(|(stream, _)| message(stream)) {
            if to.send(text).is_err() {
                return;
            }
        }
    });
    let path = ThisHost.env("PATH").unwrap().into_string().unwrap();
    let path = format!("{}:{path}", sandbox.path("bin").display());
    let alerts = sandbox.program("bash").arg("-c").arg(recipe).env("HOME", sandbox.path(""));
    let alerts = alerts.env("PATH", path).start();
    sandbox.ragent("notice save").run().assert_code(0);
    let given = messages.recv_timeout(PATIENCE).unwrap();
    assert!(given.contains("notice"), "{given}");
    orders.give("exit 7");
    agent.end().assert_code(1);
    let closed = messages.recv_timeout(PATIENCE).unwrap();
    assert!(closed.contains("the job is closed"), "{closed}");
    let end = alerts.end();
    end.assert_code(0);
    assert_eq!(end.stderr, "");
    assert_eq!(messages.try_recv(), Err(mpsc::TryRecvError::Empty));
}

/// Answers a request to the chat, and returns the text of the message.
fn message(stream: TcpStream) -> io::Result<String> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut line) = (String::new(), String::new());
    while reader.read_line(&mut line)? > 2 {
        head += &std::mem::take(&mut line);
    }
    assert!(head.starts_with("POST /services/T0 ") && head.contains("application/json"), "{head}");
    let (_, length) = head.split_once("Content-Length: ").expect("curl sends it");
    let length = length.split_whitespace().next().and_then(|length| length.parse().ok());
    let mut body = vec![0; length.expect("it is a number")];
    reader.read_exact(&mut body)?;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    reader.into_inner().write_all(answer)?;
    let message: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(message["text"].as_str().unwrap_or_default().to_owned())
}
