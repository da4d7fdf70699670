//! Tests users and certificates of etcd.

use std::fs;

use crate::{
    cluster::{AUTHORITY, Cluster, text_of},
    job::Job,
    support::{End, Sandbox, Stream},
    takeovers::FLAGS,
};

/// Starts one agent that etcd is to refuse, with these words in addition.
fn refused(sandbox: &Sandbox, etcd: &Cluster<'_>, env: &[(&str, String)], words: &str) -> End {
    let mut start = sandbox.ragent(&etcd.words(&format!("{words} --no-python true")));
    for (name, value) in env {
        start = start.env(name, value);
    }
    let end = start.run();
    end.assert_code(1);
    end
}

/// Users with a wrong password, unknown users, users without permission, and clients without a user are refused at once. The right user is
/// not, and logs in again when etcd no longer accepts its token.
#[test]
fn users_log_in() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 1) else { return };
    etcd.authenticate();
    let password = |name: &str, text: &str| {
        fs::write(sandbox.path(name), text).unwrap();
        text_of(sandbox.path(name))
    };
    let login = |user: &str, file: String| {
        [("RAGENT_ETCD_USER", user.to_owned()), ("RAGENT_ETCD_PASSWORD_FILE", file)]
    };
    let right = password("right", "trainer\n");
    let wrong = password("wrong", "trainer2");
    for (env, words, cause) in [
        (login("trainer", wrong.clone()).to_vec(), "", "authentication failed"),
        (login("nobody", right.clone()).to_vec(), "", "authentication failed"),
        (
            login("trainer", right.clone()).to_vec(),
            "--rdzv-conf etcd_prefix=/other",
            "permission denied",
        ),
        (Vec::new(), "", "user name is empty"),
    ] {
        let end = refused(&sandbox, &etcd, &env, words);
        end.assert_stderr(&[cause, "refuses this agent", "hint: check RAGENT_ETCD_USER"]);
    }
    let [user, file] = login("trainer", right);
    let mut job =
        Job::new(&sandbox, etcd.endpoints(), FLAGS).env(user.0, user.1).env(file.0, file.1);
    job.run(3);
    // A change of the users makes all tokens outdated.
    etcd.control("user add another:another");
    etcd.wait_for_writes(20);
    assert_eq!(job.count_leaderships(), 1);
    for agent in &job.agents {
        let log = agent.text(Stream::Stderr);
        assert!(!log.contains("refuses this agent"), "{log}");
    }
    job.end();
}

/// Agents connect by TLS, with a certificate of their own. They do not reach etcd without it, without TLS, or with another authority.
#[test]
fn certificates_are_used() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::with_tls(&sandbox) else { return };
    let path = |name: &str| text_of(sandbox.path(name));
    let tls = |authority: &str, key: &str| {
        let (authority, certificate, key) = (path(authority), path("client.pem"), path(key));
        format!("protocol=https,cacert={authority},cert={certificate},key={key}")
    };
    let with_key = tls(AUTHORITY, "client-key.pem");
    let without = format!("protocol=https,cacert={}", path(AUTHORITY));
    let other = tls("other-ca.pem", "client-key.pem");
    for conf in [&without, &other] {
        let end = refused(&sandbox, &etcd, &[], &format!("--rdzv-conf {conf}"));
        end.assert_stderr(&["the connection by TLS to etcd at 127.0.0.1:", "hint: check `cacert`"]);
    }
    let words = etcd.words("--rdzv-conf protocol=http,join_timeout=1 --no-python true");
    let end = sandbox.ragent(&words).run();
    end.assert_code(3);
    end.assert_stderr(&["no member of etcd answered within", "hint: check the addresses"]);
    let end = refused(&sandbox, &etcd, &[], &format!("--rdzv-conf {}", tls(AUTHORITY, "names")));
    end.assert_stderr(&[
        "failed to find the coordinator through etcd",
        "cannot be used",
        "TLS private key",
    ]);
    let mut job = Job::new(&sandbox, etcd.endpoints(), &format!("{FLAGS},{with_key}"));
    job.run(3);
    job.end();
}
