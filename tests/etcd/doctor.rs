//! Tests the findings of `ragent doctor` about the cluster and the record of a job.

use std::fs;

use serde_json::Value;

use crate::{
    cluster::{AUTHORITY, Cluster, text_of},
    job::Job,
    support::{End, Sandbox, free_port},
    takeovers::FLAGS,
};

/// Runs the doctor for the job `j`, with these words in addition.
fn doctor(sandbox: &Sandbox, endpoints: &str, env: &[(&str, String)], words: &str) -> End {
    let words = format!("doctor --json --rdzv-backend etcd --rdzv-endpoint {endpoints} {words}");
    let start = sandbox.ragent(&words);
    env.iter().fold(start, |start, (name, value)| start.env(name, value)).run()
}

/// The checks of this name, as verdict and text with the hint.
fn checks(end: &End, name: &str) -> Vec<(String, String)> {
    let found: Value = serde_json::from_str(&end.stdout).unwrap();
    let of_name = |check: &&Value| check["check"] == name;
    let checks = found["checks"].as_array().unwrap().iter().filter(of_name);
    let text = |check: &Value, field: &str| check[field].as_str().unwrap_or_default().to_owned();
    checks
        .map(|check| {
            let both = format!("{} -- {}", text(check, "text"), text(check, "hint"));
            (text(check, "verdict"), both)
        })
        .collect()
}

/// Fails unless there is one check of this name, with this verdict and this part in its text or hint.
#[track_caller]
fn assert_check(end: &End, name: &str, verdict: &str, part: &str) {
    let found = checks(end, name);
    let [(found_verdict, text)] = &found[..] else { panic!("not one {name}: {}", end.stdout) };
    assert_eq!(found_verdict, verdict, "{text}");
    assert!(text.contains(part), "no `{part}` in: {text}");
}

/// Each member has its verdict and version. The record names the leader. It answers, and its nodes are asked.
#[test]
fn members_and_record_are_examined() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 3) else { return };
    let of_job = |words: &str| doctor(&sandbox, &etcd.endpoints(), &[], words);
    let end = of_job("--rdzv-id j");
    end.assert_code(0);
    let members = checks(&end, "member");
    assert_eq!(members.len(), 3, "{}", end.stdout);
    for (verdict, text) in members {
        assert_eq!(verdict, "pass", "{text}");
        assert!(text.contains("version 3."), "{text}");
    }
    assert_check(&end, "etcd", "pass", "3 of 3 members answer");
    assert_check(&end, "record", "pass", "job `j` has no record");
    let end = of_job("--rdzv-id j --peers");
    end.assert_code(1);
    assert_check(&end, "peers", "fail", "no leader of the job");
    assert_check(&of_job(""), "record", "pass", "`--rdzv-id` is not given");
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    let leader = job.status()["leader"].as_str().unwrap().to_owned();
    let end = of_job("--rdzv-id j --peers");
    end.assert_code(0);
    assert_check(&end, "record", "pass", &format!("job `j` is led by {leader} in term "));
    assert_check(&end, "port", "pass", "job `j`");
    assert_check(&end, "peers", "pass", "3 nodes reach each other");
    for agent in std::mem::take(&mut job.agents) {
        agent.signal(nix::sys::signal::Signal::SIGKILL);
        job.end_of(agent);
    }
    assert_check(&of_job("--rdzv-id j"), "port", "warn", "all agents of the job were killed");
    etcd.kill(1);
    // If it was the leader within etcd, the others answer when they have elected another one.
    etcd.control("get /ragent/j/leader");
    let end = doctor(&sandbox, &etcd.endpoints(), &[], "--rdzv-id j");
    end.assert_code(0);
    assert_check(&end, "etcd", "warn", "2 of 3 members answer");
    etcd.kill(2);
    let end = doctor(&sandbox, &etcd.endpoints(), &[], "--rdzv-id j");
    end.assert_code(1);
    assert_check(&end, "etcd", "fail", "0 of 3 members answer");
}

/// A wrong password, a lack of permission, a wrong authority, an odd record and an absent cluster each have a finding
/// with a hint.
#[test]
fn errors_have_hints() {
    let sandbox = Sandbox::new();
    let absent = format!("127.0.0.1:{}", free_port());
    let end = doctor(&sandbox, &absent, &[], "");
    end.assert_code(1);
    assert_check(&end, "member", "warn", "check the addresses of etcd's members");
    let end = sandbox.ragent("doctor --rdzv-backend etcd").run();
    end.assert_code(2);
    end.assert_stderr(&["require `--rdzv-endpoint`"]);
    let Some(mut etcd) = Cluster::start(&sandbox, 1) else { return };
    etcd.control("put /ragent/j/leader odd");
    let end = doctor(&sandbox, &etcd.endpoints(), &[], "--rdzv-id j");
    end.assert_code(1);
    assert_check(&end, "record", "fail", "use another `--rdzv-id`");
    etcd.authenticate();
    fs::write(sandbox.path("right"), "trainer\n").unwrap();
    fs::write(sandbox.path("wrong"), "wrong\n").unwrap();
    let login = |file: &str| {
        let file = text_of(sandbox.path(file));
        [("RAGENT_ETCD_USER", "trainer".to_owned()), ("RAGENT_ETCD_PASSWORD_FILE", file)]
    };
    doctor(&sandbox, &etcd.endpoints(), &login("right"), "--rdzv-id k").assert_code(0);
    for (file, words, cause) in [
        ("wrong", "", "authentication failed"),
        ("right", "--rdzv-conf etcd_prefix=/other", "permission denied"),
    ] {
        let end = doctor(&sandbox, &etcd.endpoints(), &login(file), words);
        end.assert_code(1);
        assert_check(&end, "member", "fail", cause);
        assert_check(&end, "member", "fail", "check RAGENT_ETCD_USER");
    }
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::with_tls(&sandbox) else { return };
    for (authority, verdict, part) in
        [("other-ca.pem", "fail", "check `cacert`"), (AUTHORITY, "pass", "version 3.")]
    {
        let path = |name: &str| text_of(sandbox.path(name));
        let words = format!(
            "--rdzv-conf protocol=https,cacert={},cert={},key={}",
            path(authority),
            path("client.pem"),
            path("client-key.pem")
        );
        let end = doctor(&sandbox, &etcd.endpoints(), &[], &words);
        assert_check(&end, "member", verdict, part);
    }
}
