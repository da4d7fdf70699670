//! Tests where secrets come from (files, stdin, credentials of a service), and that they can be replaced while a job runs.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use ragent_base::secret::{Secret, file};

use crate::{
    job::{Job, hosting},
    support::{Sandbox, Start, Stream},
};

/// Makes a file with a secret. Returns its path and the id.
fn secret_file(sandbox: &Sandbox, name: &str) -> (PathBuf, String) {
    let path = sandbox.path(name);
    let secret = Secret::random().unwrap();
    file::create(&path, &secret).unwrap();
    (path, secret.id().to_string())
}

/// The answer to `GET PATH` without TLS, as a client on this machine receives it.
pub(crate) fn get(endpoint: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(endpoint).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Nodes with one secret run a job. Its user needs no flag to look at it.
#[test]
fn nodes_with_a_secret_run_a_job() {
    let sandbox = Sandbox::new();
    let (path, _) = secret_file(&sandbox, "s");
    let job = Job::new(&sandbox, "--nnodes 2 --no-python bash -c");
    let script = "compgen -e | grep -E '^(PET_|CREDENTIALS_)'; exec stay.sh";
    let agent = || {
        let agent = job.agent("").arg(script).env("PET_SECRET_FILE", &path);
        agent.env("PET_AUTH", "secret").env("CREDENTIALS_DIRECTORY", "/nowhere")
    };
    let mut host = hosting(agent());
    let mut guest = agent().start();
    for agent in [&mut host, &mut guest] {
        agent.worker();
        let output = agent.text(Stream::Stdout);
        assert!(!output.contains("PET_") && !output.contains("CREDENTIALS_"), "{output}");
    }
    // The registration of the agent on this machine names the file.
    let status = sandbox.ragent("status").run();
    status.assert_code(0);
    assert!(status.stdout.contains("round 1  running"), "{}", status.stdout);
    assert_eq!(job.status()["phase"], "running");
    let page = get(&job.endpoint, "/status");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("running"), "{page}");
    let page = get(&job.endpoint, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<!doctype html>"), "{page}");
    let identity = get(&job.endpoint, "/v1/identity");
    assert!(identity.contains(r#""auth":"secret""#), "{identity}");
    for path in ["/v1/reach", "/unknown"] {
        let refused = get(&job.endpoint, path);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("--secret-file"));
    }
    let doctor = format!("doctor --peers --rdzv-endpoint {}", job.endpoint);
    let doctor = sandbox.ragent(&doctor).run().stdout;
    assert!(doctor.contains("has the same secret"), "{doctor}");
    assert!(doctor.contains("job `j`") && doctor.contains("2 nodes reach each other"), "{doctor}");
}

/// The user's own file is used without a flag, as are the credentials of a service.
#[test]
fn secrets_are_found() {
    let sandbox = Sandbox::new();
    let (home, service) = (sandbox.path("home"), sandbox.path("service"));
    let made = sandbox.ragent("secret --init").env("HOME", &home).run();
    made.assert_code(0);
    let own = home.join(".config/ragent/secret");
    assert!(made.stdout.ends_with(&format!(" is in {}\n", own.display())), "{}", made.stdout);
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
    fs::create_dir(&service).unwrap();
    let credential = service.join("ragent-secret");
    fs::copy(&own, &credential).unwrap();
    let job = Job::new(&sandbox, "--nnodes 2 --no-python true");
    let host = hosting(job.agent("--auth secret").env("HOME", &home));
    let guest = job.agent("").env("CREDENTIALS_DIRECTORY", &service).run();
    guest.assert_code(0);
    host.end().assert_code(0);
    let again = sandbox.ragent("secret --init").env("HOME", &home).run();
    again.assert_code(2);
    again.assert_stderr(&["exists already", "--rotate"]);
    assert_eq!(fs::read(&own).unwrap(), fs::read(&credential).unwrap(), "it is unchanged");
}

/// A secret from stdin is not on the disk. Workers have an empty stdin, and `ragent status` asks with the agent's secret.
#[test]
fn secret_comes_from_stdin() {
    let sandbox = Sandbox::new();
    let (path, id) = secret_file(&sandbox, "s");
    let job = Job::new(&sandbox, "--nnodes 2 --secret-file - --no-python");
    let stdin = || File::open(&path).unwrap();
    let words = job.agent("bash -c").arg("cat; echo read all; exec stay.sh").stdin(stdin());
    let mut host = hosting(words);
    let mut guest = job.agent("bash -c").arg("exec stay.sh").stdin(stdin()).start();
    host.prints("read all");
    host.worker();
    guest.worker();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!host.text(Stream::Stdout).contains(text.trim()));
    fs::remove_file(&path).unwrap();
    sandbox.ragent("status").run().assert_code(0);
    let elsewhere = sandbox.ragent(&format!("status --rdzv-endpoint {}", job.endpoint));
    let elsewhere = elsewhere.env("XDG_RUNTIME_DIR", sandbox.path("tmp")).run();
    elsewhere.assert_code(9);
    elsewhere.assert_stderr(&[&id, "this one has none"]);
}

/// While a job runs, its secret is replaced. Nodes with the old one, the new one, or both join.
#[test]
fn secrets_are_replaced_while_a_job_runs() {
    let sandbox = Sandbox::new();
    let (path, old) = secret_file(&sandbox, "s");
    let job = Job::new(
        &sandbox,
        "--nnodes 1:5 --rdzv-conf join_settle=0.1,last_call_timeout=0.1 --no-python polite.sh",
    );
    let agent = |path: &PathBuf| job.agent("").env("PET_SECRET_FILE", path);
    let mut host = hosting(agent(&path));
    host.worker();
    let copy = sandbox.path("old");
    fs::copy(&path, &copy).unwrap();
    let words = format!("secret --rotate --secret-file {}", path.display());
    let rotated = sandbox.ragent(&words).run();
    rotated.assert_code(0);
    assert!(!rotated.stdout.contains(&old), "{}", rotated.stdout);
    let new = sandbox.path("new");
    let first = fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
    file::create(&new, &Secret::new(&first).unwrap()).unwrap();
    // At once, because the host reads its file at most once a second.
    let mut guests: Vec<_> = [&path, &new, &copy, &new].map(|path| agent(path).start()).into();
    for guest in &mut guests {
        guest.worker();
    }
    assert_eq!(job.status()["nodes"].as_array().map(Vec::len), Some(5));
}

/// The home folder belongs to another user, as in a container with a foreign uid. The job runs all the same. A required secret is not found
/// there.
#[test]
fn home_of_another_user_is_not_searched() {
    if !nix::unistd::geteuid().is_root() {
        return crate::support::skip("another uid needs root");
    }
    let sandbox = Sandbox::new();
    let (path, _) = secret_file(&sandbox, "home/.config/ragent/secret");
    fs::set_permissions(sandbox.path("home"), fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["", "tmp", "run"] {
        fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let run = |words: &str| {
        let other = sandbox.program("setpriv").env("HOME", sandbox.path("home"));
        let other = ["--reuid=12002", "--clear-groups", ragent].into_iter().fold(other, Start::arg);
        words.split(' ').fold(other, Start::arg).run()
    };
    run("--no-python true").assert_code(0);
    let required = run("--auth secret --no-python true");
    required.assert_code(2);
    let searched = format!("{} (its folder is not accessible)", path.display());
    required.assert_stderr(&[&searched]);
}

/// `ragent secret` prints a new secret each time, and nothing else.
#[test]
fn secrets_are_printed() {
    let sandbox = Sandbox::new();
    let print = || {
        let end = sandbox.ragent("secret").run();
        end.assert_code(0);
        assert_eq!(end.stderr, "");
        end.stdout
    };
    let (one, other) = (print(), print());
    assert!(one.starts_with("ragent1_") && one.len() == 52 && one != other, "{one}{other}");
    let wrong = sandbox.ragent("secret --secret-file x").run();
    wrong.assert_code(2);
    wrong.assert_stderr(&["needs `--init` or `--rotate`"]);
    assert!(!sandbox.path("x").exists());
}
