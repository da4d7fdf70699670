//! The places where the credentials of this process are found: certificates that are given, else the first place that has a
//! secret.

use std::{
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::unistd::{dup2_stdin, geteuid};

use super::{
    certificates::CertificateRequest,
    credentials::{Credentials, Origin, Unsecured},
    file::{self, FileError, FileProblem},
    form::Secret,
    limits,
    unusable::PlacesError,
};
use crate::sys::host::Host;

/// The authentication that the user wants.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AuthMode {
    /// By certificates if they are given, else by a secret if there is one.
    #[default]
    Auto,
    /// By a secret, which must exist.
    Secret,
    /// By certificates.
    Tls,
    /// None: no secret is searched for.
    None,
}

/// The credentials that the user wants.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AuthRequest {
    /// The authentication.
    pub mode: AuthMode,
    /// The file of the secret; `-` is stdin.
    pub file: Option<String>,
    /// The files of certificates, with which there is no secret.
    pub certificates: Option<CertificateRequest>,
}

/// The name of the secret among the credentials of a service.
const CREDENTIAL: &str = "ragent-secret";

impl AuthRequest {
    /// Finds the credentials of this process, and reads them.
    ///
    /// # Errors
    ///
    /// Returns [`PlacesError`] if a file exists but cannot be used, or a required secret is missing.
    pub fn find(&self, host: &impl Host) -> Result<Credentials, PlacesError> {
        if self.mode == AuthMode::None {
            return Ok(Credentials::unsecured(Unsecured::Chosen));
        }
        if let Some(request) = &self.certificates {
            // They are read again later, and are named to other commands.
            let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
            return Ok(Credentials::with_certificates(CertificateRequest {
                authorities: absolute(&request.authorities),
                certificate: absolute(&request.certificate),
                key: absolute(&request.key),
                peer: request.peer.clone(),
            })?);
        }
        if let Some(path) = &self.file {
            let (secrets, origin) =
                if path == "-" { from_stdin()? } else { from_file(Path::new(path))? };
            return Ok(Credentials::new(secrets, origin));
        }
        let mut searched = vec!["PET_SECRET_FILE".to_owned()];
        for path in places(host) {
            match from_file(&path) {
                Ok((secrets, origin)) => return Ok(Credentials::new(secrets, origin)),
                Err(error) if error.is_missing() => searched.push(path.display().to_string()),
                // As in a container where the home folder is that of root; nothing suggests that there is a file.
                Err(FileError { problem: FileProblem::Hidden, .. }) if is_of_other_user(&path) => {
                    searched.push(format!("{} (its folder is not accessible)", path.display()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        match self.mode {
            AuthMode::Secret => Err(PlacesError::NoSecret { searched }),
            // Without certificates, the command line with `tls` is not valid.
            AuthMode::Auto | AuthMode::Tls | AuthMode::None => {
                Ok(Credentials::unsecured(Unsecured::NotFound { searched }))
            }
        }
    }
}

/// Returns true if the nearest folder on the way to `path` that can be examined belongs to another user. A folder of this user
/// that cannot be searched, for example since a ticket has expired, may have a secret.
fn is_of_other_user(path: &Path) -> bool {
    let nearest = path.ancestors().skip(1).find_map(|folder| folder.metadata().ok());
    nearest.is_some_and(|folder| folder.uid() != geteuid().as_raw())
}

/// Returns the places that are searched if no file is given.
fn places(host: &impl Host) -> Vec<PathBuf> {
    let folder = host.env("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let of_service = folder.filter(|dir| dir.is_absolute()).map(|dir| dir.join(CREDENTIAL));
    of_service.into_iter().chain(user_file(host)).collect()
}

/// Returns the path of the user's own secret; `None` if the user has no home folder.
pub fn user_file(host: &impl Host) -> Option<PathBuf> {
    let folder = |name| host.env(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("ragent/secret"))
}

fn from_file(path: &Path) -> Result<(Vec<Secret>, Origin), FileError> {
    // It is read again later, and is named to other commands.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok((file::read(path)?, Origin::File(absolute)))
}

/// Reads the secret from stdin, and replaces stdin with an empty file: workers inherit it.
fn from_stdin() -> Result<(Vec<Secret>, Origin), FileError> {
    let failed = |problem| FileError { path: "-".into(), problem };
    let system = |error| failed(FileProblem::System { attempt: "read", error });
    let text = file::read_all(io::stdin().lock(), limits::MAX_FILE).map_err(failed);
    let nothing = std::fs::File::open("/dev/null").map_err(system)?;
    dup2_stdin(nothing.as_fd()).map_err(|errno| system(errno.into()))?;
    Ok((file::parse(&text?).map_err(failed)?, Origin::Stdin))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::sys::host::FakeHost;

    fn put(path: &Path, character: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("ragent1_{}", character.repeat(43))).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn host(variables: &[(&str, &Path)]) -> FakeHost {
        let mut host = FakeHost::default();
        for (name, path) in variables {
            host.env.insert((*name).to_owned(), path.into());
        }
        host
    }

    /// A given file counts before that of the service, and this before that of the user.
    #[test]
    fn first_place_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (home, service, config) = (path("home"), path("service"), path("config"));
        let mut host = host(&[("HOME", &home)]);
        let origin = |request: &AuthRequest, host: &FakeHost| {
            let found = request.find(host).unwrap();
            found.origin().map(ToString::to_string)
        };
        let any = AuthRequest::default();
        assert_eq!(origin(&any, &host), None);
        put(&home.join(".config/ragent/secret"), "a");
        let expected = home.join(".config/ragent/secret").display().to_string();
        assert_eq!(origin(&any, &host), Some(expected));
        host.env.insert("XDG_CONFIG_HOME".into(), (&*config).into());
        assert_eq!(origin(&any, &host), None, "the folder replaces ~/.config");
        host.env.insert("CREDENTIALS_DIRECTORY".into(), (&*service).into());
        put(&service.join("ragent-secret"), "b");
        put(&config.join("ragent/secret"), "c");
        let expected = service.join("ragent-secret").display().to_string();
        assert_eq!(origin(&any, &host), Some(expected));
        put(&path("given"), "d");
        let given = path("given").display().to_string();
        let file = Some(given.clone());
        let by_file = AuthRequest { file: file.clone(), ..any };
        assert_eq!(origin(&by_file, &host), Some(given));
        let none = AuthRequest { mode: AuthMode::None, file, certificates: None };
        assert_eq!(origin(&none, &host), None);
    }

    /// A file that exists and cannot be used never counts as absent; nor does a given file that does not exist.
    #[test]
    fn unusable_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".config/ragent/secret");
        let host = host(&[("HOME", folder.path())]);
        let any = AuthRequest::default();
        let required = AuthRequest { mode: AuthMode::Secret, ..any.clone() };
        let error = required.find(&host).unwrap_err();
        let expected = format!(
            "`--auth secret` requires a secret, and there is none (searched: PET_SECRET_FILE, {})",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
        let missing = folder.path().join("missing").display().to_string();
        let given = AuthRequest { file: Some(missing), ..any.clone() };
        assert!(given.find(&host).unwrap_err().to_string().ends_with("does not exist"));
        put(&path, "a");
        assert!(required.find(&host).unwrap().is_secured());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        for request in [any, required] {
            assert!(request.find(&host).unwrap_err().to_string().contains("is not private"));
        }
    }
}
