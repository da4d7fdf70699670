//! Tests the secret of a launch.

use std::{fs, path::PathBuf};

use nix::sys::signal::Signal;
use ragent_base::secret::{Secret, file};
use serde_json::Value;

use crate::{
    cluster::Cluster,
    support::{Authority, End, Issue, Program, command_line, tls_flags, write_certificates},
};

/// The runtime folder of the launching host, on which no agent runs.
fn folder(cluster: &Cluster) -> PathBuf {
    cluster.sandbox.path("launching")
}

/// Starts a job on both hosts, and waits until it runs.
fn running(cluster: &Cluster, words: &str) -> Program {
    let words = format!("{words} --no-python stay.sh");
    let mut launch = cluster.launch(&words).env("XDG_RUNTIME_DIR", folder(cluster)).start();
    for _ in 0..2 {
        launch.prints("worker rank=");
    }
    launch
}

/// The registration of a launch. `None` if it has none.
fn registration(cluster: &Cluster, launch: &Program) -> Option<Value> {
    let start = format!("agent-{}-", launch.pid());
    let mut entries = fs::read_dir(folder(cluster).join("ragent")).ok()?.flatten();
    let file = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(&start))?;
    serde_json::from_slice(&fs::read(file.path()).ok()?).ok()
}

/// Runs `ragent status` on the launching host.
fn status(cluster: &Cluster, words: &str) -> End {
    let start = cluster.network.ragent(&cluster.sandbox, 3, &format!("status {words}"));
    start.env("XDG_RUNTIME_DIR", folder(cluster)).run()
}

/// Each launch makes a secret for its agents. It is in no argument, no variable and no file except registrations. `ragent status` finds it
/// on the launching host.
#[test]
fn launch_makes_a_secret() {
    let Some(cluster) = Cluster::new("lsec", 2) else { return };
    let launch = running(&cluster, "");
    let registered = registration(&cluster, &launch).unwrap();
    let secret = registered["credentials"]["secret"].as_str().unwrap();
    let id = Secret::new(secret).unwrap().id().to_string();
    for pid in cluster.sandbox.processes() {
        for part in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{part}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(secret), "{part} of {}", command_line(pid));
        }
    }
    let own = status(&cluster, "");
    own.assert_code(0);
    assert!(own.stdout.contains("nodes 2  workers 2"), "{}", own.stdout);
    // Also by the host's name, which the registration does not contain.
    let endpoint = registered["endpoint"].as_str().unwrap();
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    let by_other_name = format!("--rdzv-endpoint [::ffff:10.77.0.1]:{port}");
    status(&cluster, &by_other_name).assert_code(0);
    let stranger = status(&cluster, &format!("--auth none --rdzv-endpoint {endpoint}"));
    stranger.assert_code(9);
    stranger.assert_stderr(&[&format!("requires a secret ({id})")]);
    launch.signal(Signal::SIGTERM);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
    assert_eq!(fs::read_dir(folder(&cluster).join("ragent")).unwrap().count(), 0);
    let next = running(&cluster, "");
    let registered = registration(&cluster, &next).unwrap();
    assert_ne!(registered["credentials"]["secret"], secret, "it is made for one launch");
}

/// A secret that is given to the launch is read on the launching host. With `--auth none` there is none.
#[test]
fn launch_takes_a_secret() {
    let Some(cluster) = Cluster::new("ltake", 2) else { return };
    let path = cluster.sandbox.path("own");
    let secret = Secret::random().unwrap();
    file::create(&path, &secret).unwrap();
    let launch = running(&cluster, "--secret-file own");
    fs::remove_file(&path).unwrap();
    let registered = registration(&cluster, &launch).unwrap();
    let endpoint = registered["endpoint"].as_str().unwrap();
    let stranger = status(&cluster, &format!("--auth none --rdzv-endpoint {endpoint}"));
    stranger.assert_stderr(&[&format!("requires a secret ({})", secret.id())]);
    launch.signal(Signal::SIGTERM);
    launch.end().assert_code(8);
    let open = running(&cluster, "--auth none --rdzv-endpoint 10.77.0.1:29433");
    assert_eq!(registration(&cluster, &open), None);
    status(&cluster, "--auth none --rdzv-endpoint 10.77.0.1:29433").assert_code(0);
}

/// With certificates, given by flags or variables of the launching host, agents use the files of their own hosts, and no
/// secret is made.
#[test]
fn launch_with_certificates() {
    let Some(cluster) = Cluster::new("ltls", 2) else { return };
    let authority = Authority::new("ca");
    let issued = authority.issue(&Issue::with_names(&["job.example"]));
    let files = write_certificates(&cluster.sandbox.path("tls"), &[&authority], &issued);
    let [ca, certificate, key] = &files;
    let words = "--rdzv-endpoint 10.77.0.1:29434 --no-python stay.sh";
    let launch = cluster.launch(words).env("XDG_RUNTIME_DIR", folder(&cluster));
    let launch = launch.env("PET_TLS_CA", ca).env("PET_TLS_CERT", certificate);
    let mut launch = launch.env("PET_TLS_KEY", key).start();
    for _ in 0..2 {
        launch.prints("worker rank=");
    }
    assert_eq!(registration(&cluster, &launch), None);
    let asked = |flags: &str| status(&cluster, &format!("{flags} --rdzv-endpoint 10.77.0.1:29434"));
    let accepted = asked(&tls_flags(&files));
    accepted.assert_code(0);
    assert!(accepted.stdout.contains("nodes 2  workers 2"), "{}", accepted.stdout);
    let stranger = asked("--auth none");
    stranger.assert_code(9);
    stranger.assert_stderr(&["requires a certificate", "--tls-ca"]);
}
