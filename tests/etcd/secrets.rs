//! Tests agents whose secrets differ.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent_base::secret::{Secret, file};

use crate::{cluster::Cluster, job::Job, support::Sandbox, takeovers::FLAGS};

/// Makes a file with a secret. Returns its path and the id.
fn secret_file(sandbox: &Sandbox, name: &str) -> (PathBuf, String) {
    let (path, secret) = (sandbox.path(name), Secret::random().unwrap());
    file::create(&path, &secret).unwrap();
    (path, secret.id().to_string())
}

/// An agent with another secret ends with an error that names both secrets. The job continues, even when its leader is lost meanwhile.
#[test]
fn another_secret_is_an_error() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let (path, id) = secret_file(&sandbox, "a");
    let (other, other_id) = secret_file(&sandbox, "b");
    let path = path.display().to_string();
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS).env("PET_SECRET_FILE", path);
    job.run(3);
    let words = format!(
        "--rdzv-backend etcd --rdzv-id j --rdzv-endpoint {} {FLAGS} --secret-file {} --no-python alive.py",
        etcd.endpoints(),
        other.display()
    );
    let assert_refused = || {
        let end = sandbox.ragent(&words).run();
        end.assert_code(9);
        let theirs = format!("has another secret ({id}) than this one ({other_id}, from");
        end.assert_stderr(&[&theirs, "hint: copy the secret file"]);
    };
    assert_refused();
    let leader = job.take_leader();
    leader.signal(Signal::SIGKILL);
    assert_refused();
    job.end_of(leader);
    job.runs();
    assert_eq!(job.count_leaderships(), 2);
    job.end();
}
