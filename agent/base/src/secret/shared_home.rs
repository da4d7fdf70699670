//! The secret of a user whose home folder is on a network file system. The first agent makes the user's file, and those on
//! other machines find it there, so a job of several nodes has a secret without a step of its user.

use std::{fs, io, path::Path};

use tracing::{info, warn};

use super::{
    credentials::{Credentials, Origin},
    file::{self, FileError, FileProblem},
    form::Secret,
    places::user_file,
};
use crate::sys::host::Host;

/// The attempts to read a file that another machine has just made: a client of the file system may remember that there was none,
/// until it has listed the folder.
const ATTEMPTS: u32 = 3;

/// Makes the user's secret, or reads the one that an agent on another machine has made meanwhile. Returns `found` if it has
/// credentials already, or declines them, or if the home folder is not shared or cannot be written.
///
/// # Errors
///
/// Returns [`FileError`] if the file exists but cannot be used.
pub fn make(host: &impl Host, found: Credentials) -> Result<Credentials, FileError> {
    let is_wanted = !found.is_secured() && !found.is_declined();
    let Some(path) = user_file(host).filter(|_| is_wanted) else { return Ok(found) };
    let nearest = path.ancestors().skip(1).find(|folder| host.exists(folder));
    if !nearest.is_some_and(|folder| host.is_on_network(folder)) {
        return Ok(found);
    }
    match make_file(&path) {
        Ok(secrets) => Ok(Credentials::new(secrets, Origin::File(path))),
        Err(FileError { problem: FileProblem::Exists, .. }) => {
            Ok(Credentials::new(read(&path)?, Origin::File(path)))
        }
        Err(error) => {
            warn!(
                "failed to make the secret of this user, so the job runs without one: {error}; {}",
                error.hint()
            );
            Ok(found)
        }
    }
}

/// Makes the file, and reads it as other agents will: some file systems cannot make a file private.
fn make_file(path: &Path) -> Result<Vec<Secret>, FileError> {
    let made = Secret::random().map_err(|error| {
        let (attempt, error) = ("written", io::Error::other(error));
        FileError { path: path.to_owned(), problem: FileProblem::System { attempt, error } }
    })?;
    file::create(path, &made)?;
    let secrets = file::read(path).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    info!(
        id = %made.id(), file = %path.display(),
        "made a secret, which the nodes of this user's jobs share: the home folder is on a network file system"
    );
    Ok(secrets)
}

/// Reads a file that exists on the server.
fn read(path: &Path) -> Result<Vec<Secret>, FileError> {
    for _ in 1..ATTEMPTS {
        match file::read(path) {
            Err(error) if error.is_missing() => {
                // Makes the client of the file system ask the server again.
                path.parent().map(|folder| fs::read_dir(folder).map(Iterator::count));
            }
            read => return read,
        }
    }
    file::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{secret::Unsecured, sys::host::FakeHost};

    fn home(folder: &Path, is_shared: bool) -> FakeHost {
        let mut host = FakeHost::default();
        host.env.insert("HOME".into(), folder.into());
        host.files.push(folder.into());
        host.shared.extend(is_shared.then(|| folder.to_owned()));
        host
    }

    /// Agents that start at the same time have the same secret.
    #[test]
    fn one_agent_makes_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let host = home(folder.path(), true);
        let agents: Vec<Credentials> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| make(&host, Credentials::default()).unwrap());
            let started: Vec<_> = (0..8).map(|_| start()).collect();
            started.into_iter().map(|agent| agent.join().unwrap()).collect()
        });
        let path = folder.path().join(".config/ragent/secret");
        let secrets = file::read(&path).unwrap();
        assert_eq!(secrets.len(), 1);
        for agent in agents {
            assert_eq!(agent.ids(), [secrets[0].id()]);
            assert_eq!(agent.origin(), Some(&Origin::File(path.clone())));
        }
    }

    /// Nothing is made in a folder of one machine, for a user who wants no secret or has one, or in a folder that cannot be
    /// written.
    #[test]
    fn nothing_is_made_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".config");
        let local = home(folder.path(), false);
        assert!(!make(&local, Credentials::default()).unwrap().is_secured());
        let shared = home(folder.path(), true);
        let declined = Credentials::unsecured(Unsecured::Chosen);
        assert!(make(&shared, declined).unwrap().is_declined());
        let own = Credentials::new(vec![Secret::random().unwrap()], Origin::Stdin);
        assert_eq!(make(&shared, own.clone()).unwrap(), own);
        assert!(!path.exists());
        fs::write(&path, "not a folder").unwrap();
        assert!(!make(&shared, Credentials::default()).unwrap().is_secured());
        fs::remove_file(&path).unwrap();
        let file = path.join("ragent/secret");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "short").unwrap();
        assert!(make(&shared, Credentials::default()).is_err());
    }
}
