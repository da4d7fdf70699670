//! Tests endpoints that cannot have a coordinator. They are named within seconds, and no agent hangs silently.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    thread,
};

use nix::{
    libc::linger,
    sys::socket::{setsockopt, sockopt},
};

use crate::support::{End, Sandbox, swallowing_listener};

/// The arguments of an agent that may not host, so that it reports the server at `endpoint`.
fn guest_of(endpoint: &str, join_timeout: u32) -> String {
    format!(
        "--nnodes 2 --rdzv-endpoint {endpoint} --rdzv-conf is_host=0,join_timeout={join_timeout} \
         --no-python stay.sh"
    )
}

/// Runs an agent at an endpoint with another server. The join timeout is an hour, so the agent ends because it recognises the server, not
/// because of the timeout.
#[track_caller]
fn joining_a_foreign_server_at(port: u16) -> End {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent(&guest_of(&format!("127.0.0.1:{port}"), 3600)).run();
    end.assert_code(10);
    assert_eq!(end.stderr.matches("error:").count(), 1, "{}", end.stderr);
    assert_eq!(end.stdout, "");
    end.assert_stderr(&[
        &format!("127.0.0.1:{port} is served by a program other than ragent"),
        &format!("(process {} (", std::process::id()),
        "hint: ",
        "`ragent doctor --rdzv-endpoint HOST:PORT`",
    ]);
    end
}

/// Sends `words` to each client, reads a byte, and resets the connection, as an sshd does when it
/// receives another protocol.
fn listener_that_resets(words: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The client may be gone already.
            let _ = stream.write_all(words.as_bytes());
            let _ = stream.read(&mut [0]);
            let at_once = linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&stream, sockopt::Linger, &at_once).unwrap();
        }
    });
    port
}

/// Text that was received before a reset counts. An agent does not wait for an sshd, and `ragent status` reports it in the same words.
#[test]
fn server_that_answers_and_resets() {
    let port = listener_that_resets("SSH-2.0-OpenSSH_9.2\r\n");
    let expected = "it answers `SSH-2.0-OpenSSH_9.2`";
    joining_a_foreign_server_at(port).assert_stderr(&[expected]);
    let end = Sandbox::new().ragent(&format!("status --rdzv-endpoint 127.0.0.1:{port}")).run();
    end.assert_code(1);
    let what = format!("127.0.0.1:{port} is served by a program other than ragent: {expected}");
    end.assert_stderr(&[&what, "hint: "]);
    assert!(!end.stderr.contains("tonic"), "{}", end.stderr);
}

/// A port that a program holds without serving it cannot be hosted, and the agent does not wait for
/// it.
#[test]
fn port_that_is_held() {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket,
    };
    use std::os::fd::AsRawFd;
    let flags = SockFlag::SOCK_CLOEXEC;
    let held = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    bind(held.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(held.as_raw_fd()).unwrap().port();
    let sandbox = Sandbox::new();
    let words = format!(
        "--nnodes 2 --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf join_timeout=3600 --no-python \
         stay.sh"
    );
    let end = sandbox.ragent(&words).run();
    end.assert_code(10);
    end.assert_stderr(&[&format!("port {port} is in use by another program"), "hint: "]);
    assert_eq!(end.stdout, "");
}

/// A name that does not resolve is logged while the agent waits, and named at the end, with a hint about
/// names instead of firewalls.
#[test]
fn name_that_does_not_resolve() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent(&guest_of("no-such-host.invalid:29400", 1)).start();
    let line = agent.logs("waiting for the coordinator");
    assert!(line.contains("no-such-host.invalid"), "{line}");
    let end = agent.end();
    end.assert_code(1);
    end.assert_stderr(&[
        "no agent served no-such-host.invalid:29400",
        "resolve",
        "hint: check the host name in `--rdzv-endpoint`",
    ]);
    assert!(!end.stderr.contains("firewall"), "{}", end.stderr);
    let status = sandbox.ragent("status --rdzv-endpoint no-such-host.invalid:29400").run();
    status.assert_stderr(&["hint: check the host name in `--rdzv-endpoint`"]);
}

/// If packets are dropped, the agent logs it after the timeout of one attempt, not after the join
/// timeout of an hour.
#[test]
fn packets_that_are_swallowed() {
    let (_listener, _places, address) = swallowing_listener();
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent(&guest_of(&address.to_string(), 3600)).start();
    let line = agent.logs("waiting for the coordinator");
    assert!(line.contains(&format!("{address}: no answer")), "{line}");
}

/// The store of a round listens at the node's `--local-addr`, even if the endpoint is another
/// loopback address.
#[test]
fn store_listens_at_the_local_address() {
    let sandbox = Sandbox::new();
    let words = "--nnodes 1 --rdzv-endpoint localhost:0 --local-addr 127.0.0.2 --no-python bash -c";
    let connect = "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo connected to $MASTER_ADDR";
    let end = sandbox.ragent(words).arg(connect).run();
    end.assert_code(0);
    assert_eq!(end.stdout.trim_end(), "connected to 127.0.0.2");
}
