//! Tests TLS between the processes of a job, and the files of certificates that it is given or that change while it runs.

use std::{fs, path::PathBuf};

use nix::sys::signal::Signal;
use ragent_base::sys::clock;

use crate::{
    job::{Job, hosting},
    secrets::get,
    support::{
        Authority, End, Issue, PATIENCE, Program, Sandbox, Stream, kill, tls_flags,
        write_certificates,
    },
};
const NAME: &str = "job.example";

/// Writes the files of a process into the folder `name`. Returns their paths.
fn files(
    sandbox: &Sandbox,
    name: &str,
    trusted: &[&Authority],
    by: &Authority,
    issue: &Issue,
) -> [PathBuf; 3] {
    write_certificates(&sandbox.path(name), trusted, &by.issue(issue))
}

/// Three nodes with certificates of one authority run a job, with every way to give the files. Its user needs no flag to look at it, and
/// workers do not get the variables.
#[test]
fn nodes_with_certificates_run_a_job() {
    let sandbox = Sandbox::new();
    let authority = Authority::new("ca");
    let [one, two, three] = ["one", "two", "three"]
        .map(|name| files(&sandbox, name, &[&authority], &authority, &Issue::with_names(&[NAME])));
    let job = Job::new(&sandbox, "--nnodes 3 --max-restarts 0");
    let script = "compgen -e | grep ^PET_; exec stay.sh";
    let worker = "--no-python bash -c";
    let mut host =
        hosting(job.agent(&format!("--auth tls {} {worker}", tls_flags(&one))).arg(script));
    let by_variable = job.agent(worker).arg(script).env("PET_TLS_PEER", NAME);
    let [ca, certificate, key] = &two;
    let by_variable = by_variable.env("PET_TLS_CA", ca).env("PET_TLS_CERT", certificate);
    let mut second = by_variable.env("PET_TLS_KEY", key).env("PET_AUTH", "tls").start();
    let mut third = job.agent(&format!("{} {worker}", tls_flags(&three))).arg(script).start();
    for agent in [&mut host, &mut second, &mut third] {
        agent.worker();
        let output = agent.text(Stream::Stdout);
        assert!(!output.contains("PET_"), "{output}");
    }
    // The registration of an agent on this machine names the files.
    let status = sandbox.ragent("status").run();
    status.assert_code(0);
    assert!(status.stdout.contains("round 1  running"), "{}", status.stdout);
    assert_eq!(job.status()["phase"], "running");
    let page = get(&job.endpoint, "/status");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("running"), "{page}");
    let page = get(&job.endpoint, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<!doctype html>"), "{page}");
    let identity = get(&job.endpoint, "/v1/identity");
    assert!(
        identity.contains(r#""auth":"tls""#) && !identity.contains("run_id\":\"j"),
        "{identity}"
    );
    for path in ["/v1/reach", "/unknown"] {
        let refused = get(&job.endpoint, path);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("--tls-cert"), "{refused}");
    }
    let doctor = format!("doctor --peers --rdzv-endpoint {}", job.endpoint);
    let doctor = sandbox.ragent(&doctor).run().stdout;
    for part in [
        "the certificate CN=node; name: job.example, from ",
        "other nodes must have the name job.example; valid until 2100-12-31T23:59:59Z",
        "and this node accept each other's certificates",
        "job `j`",
        "3 nodes reach each other",
    ] {
        assert!(doctor.contains(part), "no `{part}`:\n{doctor}");
    }
}

/// Waits until an agent has logged `text`, while others connect to it.
#[track_caller]
fn wait_for_log(job: &Job<'_>, agent: &mut Program, text: &str) {
    let deadline = clock::now_blocking() + PATIENCE;
    while !agent.text(Stream::Stderr).contains(text) {
        assert!(clock::now_blocking() < deadline, "no `{text}`:\n{}", agent.text(Stream::Stderr));
        // Within a second of the last connection, the files are not read again.
        get(&job.endpoint, "/v1/identity");
        agent.receive_pending();
    }
}

/// While a job runs, its authority is replaced. Nodes with a certificate of the new authority join, even a node that has restarted. A file
/// that is half written changes nothing.
#[test]
fn certificates_are_renewed_while_a_job_runs() {
    let sandbox = Sandbox::new();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let issue = Issue::with_names(&[NAME]);
    let put = |name: &str, trusted: &[&Authority], by: &Authority| {
        files(&sandbox, name, trusted, by, &issue)
    };
    let job = Job::new(
        &sandbox,
        "--nnodes 1:4 --rdzv-conf join_settle=0.1,last_call_timeout=0.1,shrink_timeout=0",
    );
    let words = |files: &[PathBuf; 3]| format!("{} --no-python polite.sh", tls_flags(files));
    let of_host = put("host", &[&old], &old);
    let mut host = job.host(&words(&of_host));
    host.worker();
    let of_guest = put("guest", &[&old], &old);
    let mut guest = job.guest(&words(&of_guest));
    guest.worker();
    for name in ["host", "guest"] {
        put(name, &[&old, &new], &new);
    }
    wait_for_log(
        &job,
        &mut host,
        "the files of certificates have changed; new connections use them",
    );
    let mut newcomer = job.guest(&words(&put("newcomer", &[&new], &new)));
    newcomer.worker();
    kill(guest.pid(), Signal::SIGKILL);
    guest.end();
    let mut again = job.guest(&words(&of_guest));
    again.worker();
    fs::write(&of_host[1], "-----BEGIN CERTIFICATE-----\n").unwrap();
    wait_for_log(&job, &mut host, "failed to read the files of the credentials again");
    let mut last = job.guest(&words(&put("last", &[&new], &new)));
    last.worker();
    host.receive_pending();
    let warnings = host
        .text(Stream::Stderr)
        .matches("failed to read the files of the credentials again")
        .count();
    assert_eq!(warnings, 1, "{}", host.text(Stream::Stderr));
}

/// The host is replaced. If the agent does not accept its certificate, or it does not accept the agent's, the job does not end. The agent
/// states the reason, and registers with the next host.
#[test]
fn coordinators_are_verified_again() {
    let sandbox = Sandbox::new();
    let [authority, other, foreign] = ["ca", "other", "foreign"].map(Authority::new);
    let issue = Issue::with_names(&[NAME]);
    let put = |name: &str, trusted: &[&Authority], by: &Authority| {
        tls_flags(&files(&sandbox, name, trusted, by, &issue))
    };
    // Each host accepts itself.
    let usual = put("usual", &[&authority, &other], &authority);
    let job = Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf join_settle=0");
    let host = |flags: &str| job.host(&format!("{flags} --no-python polite.sh"));
    let mut last = host(&usual);
    let of_agent = put("agent", &[&authority], &other);
    let mut agent = job.guest(&format!("{of_agent} --no-python polite.sh"));
    agent.logs("registered");
    agent.worker();
    for (flags, part) in [
        (put("foreign", &[&foreign, &other], &foreign), "is not accepted by this one"),
        (put("strict", &[&authority], &authority), "does not accept the certificate of this one"),
    ] {
        kill(last.pid(), Signal::SIGKILL);
        last.end();
        last = host(&flags);
        agent.logs(part);
    }
    kill(last.pid(), Signal::SIGKILL);
    last.end();
    let _last = host(&usual);
    agent.logs("registered");
    agent.worker();
}

/// One pair of processes that do not agree.
struct Case<'a> {
    here: &'a str,
    there: &'a str,
    /// The parts of the error, with its hint.
    parts: &'a [&'a str],
    /// True if a process with the flags of the host can join it.
    has_guest: bool,
}

/// Runs an agent, `ragent status` and `ragent doctor` with the flags `here` against a host with the flags `there`.
fn check(case: &Case<'_>) {
    let Case { here, there, parts, has_guest } = case;
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host(&format!("{there} --no-python stay.sh"));
    let elsewhere = sandbox.path("tmp");
    let check = |end: End, code| {
        end.assert_code(code);
        let text = format!("{}{}", end.stdout, end.stderr);
        for part in *parts {
            assert!(text.contains(part), "no `{part}` with {here} and {there}:\n{text}");
        }
    };
    check(job.guest(&format!("{here} --no-python stay.sh")).end(), 9);
    for (command, code) in [("status", 9), ("doctor", 1)] {
        let words = format!("{command} --rdzv-endpoint {} {here}", job.endpoint);
        check(sandbox.ragent(&words).env("XDG_RUNTIME_DIR", &elsewhere).run(), code);
    }
    assert_eq!(host.text(Stream::Stdout), "", "no worker was started");
    if !has_guest {
        host.logs("other processes do not accept the certificate of this one: it ");
        return;
    }
    let mut guest = job.guest(&format!("{there} --no-python stay.sh"));
    host.worker();
    guest.worker();
}

/// Certificates that one side does not accept are an error that names both, at once and with exit code 9. If the time is the reason, the
/// error names the clock.
#[test]
fn certificates_must_be_accepted() {
    let sandbox = Sandbox::new();
    let (authority, foreign) = (Authority::new("ca"), Authority::new("foreign"));
    let issue = Issue::with_names(&[NAME]);
    let put = |name: &str, trusted: &[&Authority], by: &Authority, issue: &Issue| {
        tls_flags(&files(&sandbox, name, trusted, by, issue))
    };
    let usual = put("usual", &[&authority], &authority, &issue);
    let other_authority = put("foreign", &[&foreign], &foreign, &issue);
    let other = Issue { subject: "other".to_owned(), ..Issue::with_names(&["other.example"]) };
    let other_peer =
        format!("{} --tls-peer {NAME}", put("other", &[&authority], &authority, &other));
    let expired = Issue { last: 1_000_000_000, ..issue };
    let expired = put("expired", &[&authority], &authority, &expired);
    let both = "(CN=node; name: job.example";
    let (clock, past) =
        ("the clock of this machine is at 20", "it has expired at 2001-09-09T01:46:40Z");
    let (here, there) =
        ("is not accepted by this one", "does not accept the certificate of this one");
    let cases: [(&str, &str, &[&str], bool); 3] = [
        (
            &usual,
            &other_authority,
            &[both, here, "no authority in", "/usual/ca.pem has signed it"],
            true,
        ),
        (
            &other_peer,
            &usual,
            &["(CN=other; name: other.example, from", both, there, "--tls-peer NAME"],
            true,
        ),
        (&usual, &expired, &[both, here, past, clock, "correct the clocks"], false),
    ];
    for (here, there, parts, has_guest) in cases {
        check(&Case { here, there, parts, has_guest });
    }
}
