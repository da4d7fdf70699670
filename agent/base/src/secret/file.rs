//! Reads and writes files with secrets. A file that others could have read or written is not used.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AtFlags, OFlag, openat, renameat},
    libc,
    poll::poll,
    sys::stat::Mode,
    unistd::{UnlinkatFlags, geteuid, linkat, unlinkat},
};
use zeroize::Zeroizing;

use super::{
    form::{FormError, Secret},
    limits,
};

/// The reason why a file of secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the secret file `{}` {problem}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub problem: FileProblem,
}

/// The reason, as it follows the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// The file exists already, and is not to be replaced.
    #[error("exists already")]
    Exists,
    /// A line is not a secret.
    #[error("is invalid in line {line}: {error}")]
    Form {
        /// The number of the line.
        line: usize,
        /// The reason.
        error: FormError,
    },
    /// There is no such file.
    #[error("does not exist")]
    Missing,
    /// Other users can read or write it.
    #[error("is not private: its mode is {mode:04o} (owner: uid {owner})")]
    Mode {
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// A folder on the way to it cannot be searched, so it is not known whether the file exists.
    #[error("is in a folder that this user may not search")]
    Hidden,
    /// It has comments only.
    #[error("contains no secret")]
    NoSecret,
    /// It is a folder, a pipe or a device.
    #[error("is not a regular file")]
    NotRegular,
    /// It belongs to another user.
    #[error("belongs to uid {owner}, not to this user or to root (mode {mode:04o})")]
    Owner {
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// The system has refused an operation.
    #[error("cannot be {attempt}: {error}")]
    System {
        /// The operation.
        attempt: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// It is larger than any file of its kind.
    #[error("is larger than {} KiB", max / 1024)]
    TooLarge {
        /// The maximum size in bytes.
        max: u64,
    },
    /// It has more secrets than one that is being replaced needs.
    #[error("contains more than {} secrets", limits::MAX_SECRETS)]
    TooMany,
}

impl FileError {
    /// Returns true if there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self.problem, FileProblem::Missing)
    }

    /// Returns the hint for the user.
    pub fn hint(&self) -> String {
        let path = self.path.display();
        match &self.problem {
            FileProblem::Mode { .. } => format!("`chmod 600 {path}`"),
            FileProblem::Owner { .. } => {
                format!("copy it to a file of this user: `install -m 600 {path} FILE`")
            }
            FileProblem::Exists => {
                "replace a secret with `ragent secret --rotate`, or remove the file first"
                    .to_owned()
            }
            FileProblem::Form { error: FormError::Repetition { .. } | FormError::Words, .. } => {
                format!("replace it with a random one: `(umask 077; ragent secret > {path})`")
            }
            FileProblem::Form { .. } | FileProblem::NoSecret => {
                "a secret is one line, as `ragent secret` prints it; lines that begin with `#` are \
                 comments"
                    .to_owned()
            }
            FileProblem::TooMany => {
                "remove the secrets at its end that are no longer used".to_owned()
            }
            FileProblem::Hidden
            | FileProblem::Missing
            | FileProblem::NotRegular
            | FileProblem::System { .. }
            | FileProblem::TooLarge { .. } => {
                "give a file that `ragent secret --init` has made, or `(umask 077; ragent secret > FILE)`"
                    .to_owned()
            }
        }
    }
}

/// Reads all secrets of a file, which may be reached by links.
///
/// # Errors
///
/// Returns [`FileError`] if the file is missing, invalid, or accessible to others.
pub fn read(path: &Path) -> Result<Vec<Secret>, FileError> {
    let failed = |problem| FileError { path: path.to_owned(), problem };
    let (text, _) = read_text(path).map_err(failed)?;
    parse(&text).map_err(failed)
}

/// Reads a file that only this user or root can have written, and others cannot read.
pub(super) fn read_text(path: &Path) -> Result<(Zeroizing<Vec<u8>>, Metadata), FileProblem> {
    let (file, about) = open(path)?;
    read_private(file, about)
}

fn read_private(
    file: File,
    about: Metadata,
) -> Result<(Zeroizing<Vec<u8>>, Metadata), FileProblem> {
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(FileProblem::Owner { owner, mode });
    }
    // A group may read it: Kubernetes mounts secrets so for `fsGroup`.
    if mode & 0o027 != 0 {
        return Err(FileProblem::Mode { owner, mode });
    }
    Ok((read_all(file, limits::MAX_FILE)?, about))
}

/// Opens a regular file, which may be reached by links.
pub(super) fn open(path: &Path) -> Result<(File, Metadata), FileProblem> {
    // A pipe must not block.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    regular(file.map_err(|error| not_opened(path, error))?)
}

fn not_opened(path: &Path, error: io::Error) -> FileProblem {
    match error.kind() {
        // A link that leads nowhere is a mistake, and not an absent file.
        io::ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
            FileProblem::System { attempt: "opened", error }
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FileProblem::Missing,
        io::ErrorKind::PermissionDenied if fs::metadata(path).is_err() => FileProblem::Hidden,
        _ => FileProblem::System { attempt: "opened", error },
    }
}

fn regular(file: File) -> Result<(File, Metadata), FileProblem> {
    let about = file.metadata().map_err(|error| FileProblem::System { attempt: "read", error })?;
    if !about.is_file() {
        return Err(FileProblem::NotRegular);
    }
    Ok((file, about))
}

/// Reads at most `max` bytes.
pub(super) fn read_all(from: impl Read, max: u64) -> Result<Zeroizing<Vec<u8>>, FileProblem> {
    // With this capacity it is never moved, which would leave a copy.
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let mut text = Zeroizing::new(Vec::with_capacity(limit.saturating_add(1)));
    let read = from.take(max.saturating_add(1)).read_to_end(&mut text);
    read.map_err(|error| FileProblem::System { attempt: "read", error })?;
    if text.len() > limit {
        return Err(FileProblem::TooLarge { max });
    }
    Ok(text)
}

/// Parses the lines of a file.
pub(super) fn parse(text: &[u8]) -> Result<Vec<Secret>, FileProblem> {
    let mut secrets = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let secret =
            str::from_utf8(line).map_err(|_| FormError::Character).and_then(Secret::chosen);
        secrets.push(secret.map_err(|error| FileProblem::Form { line: index + 1, error })?);
    }
    match secrets.len() {
        0 => Err(FileProblem::NoSecret),
        len if len > limits::MAX_SECRETS => Err(FileProblem::TooMany),
        _ => Ok(secrets),
    }
}

/// Creates a file with one secret, and its folder.
///
/// # Errors
///
/// Returns [`FileError`] if the file exists already or cannot be written.
pub fn create(path: &Path, secret: &Secret) -> Result<(), FileError> {
    let failed = |problem| FileError { path: path.to_owned(), problem };
    let text = Zeroizing::new(format!("{}\n", secret.text()));
    let make = || {
        DirBuilder::new().recursive(true).mode(0o700).create(folder_of(path))?;
        open_folder(path)
    };
    let folder = make().map_err(|error| failed(not_written(error)))?;
    let draft = Draft::new(&folder, path).map_err(|error| failed(not_written(error)))?;
    draft.fill(text.as_bytes()).map_err(|error| failed(not_written(error)))?;
    // Unlike a rename, this never replaces a file.
    draft.link().map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => failed(FileProblem::Exists),
        _ => failed(not_written(error)),
    })
}

/// Puts a secret on top of the others in a file.
///
/// # Errors
///
/// Returns [`FileError`] if the file is not valid, or cannot be written.
pub fn add(path: &Path, secret: &Secret) -> Result<(), FileError> {
    let failed = |problem| FileError { path: path.to_owned(), problem };
    // The file itself is replaced, not a link to it.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = open_folder(path).map_err(|error| failed(not_opened(path, error)))?;
    // Another rotation between reading and writing would lose its secret. A file system without locks has no protection.
    if !lock(&folder) {
        return Err(failed(FileProblem::System {
            attempt: "changed",
            error: io::Error::other(
                "another process has locked its folder; is another rotation running?",
            ),
        }));
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(&folder, name_of(path), flags, Mode::empty());
    let file = file.map_err(|errno| failed(not_opened(path, errno.into())))?;
    let (file, about) = regular(file.into()).map_err(failed)?;
    let (old, about) = read_private(file, about).map_err(failed)?;
    let mut text = Zeroizing::new(Vec::with_capacity(old.len() + limits::MAX_SECRET_LEN + 1));
    text.extend_from_slice(secret.text().as_bytes());
    text.push(b'\n');
    text.extend_from_slice(&old);
    parse(&text).map_err(failed)?;
    if text.len() as u64 > limits::MAX_FILE {
        return Err(failed(FileProblem::TooLarge { max: limits::MAX_FILE }));
    }
    let replace = || {
        let draft = Draft::new(&folder, path)?;
        draft.let_group_read(&about)?;
        draft.fill(&text)?;
        draft.rename()
    };
    replace().map_err(|error| failed(not_written(error)))
}

/// Locks a folder, within a limited time: any user who may open it can hold the lock. Returns false if another process has it.
fn lock(folder: &File) -> bool {
    for _ in 0..limits::LOCK_TRIES {
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => {
                // Waits for nothing but the time.
                let _ = poll(&mut [], limits::LOCK_PAUSE);
            }
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
    }
    false
}

fn not_written(error: io::Error) -> FileProblem {
    FileProblem::System { attempt: "written", error }
}

fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// A file of a temporary name next to the file of secrets; dropping this removes it.
///
/// Other users may be able to write to the folder and replace the name by a link. So owner, mode and content are set through
/// the descriptor.
struct Draft<'a> {
    folder: &'a File,
    file: File,
    name: OsString,
    /// The name of the file of secrets.
    target: &'a OsStr,
}

impl<'a> Draft<'a> {
    fn new(folder: &'a File, path: &'a Path) -> io::Result<Self> {
        let target = name_of(path);
        let mut name = target.to_owned();
        // Another machine may write to the same folder at the same time.
        name.push(format!(".{:016x}.tmp", rand::random::<u64>()));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(folder, name.as_os_str(), flags | OFlag::O_CLOEXEC, mode)?.into();
        Ok(Self { folder, file, name, target })
    }

    /// Lets the group that reads the old file read this one.
    fn let_group_read(&self, old: &Metadata) -> io::Result<()> {
        fchown(&self.file, None, Some(old.gid()))?;
        self.file.set_permissions(Permissions::from_mode(old.mode() & 0o640))
    }

    fn fill(&self, text: &[u8]) -> io::Result<()> {
        (&self.file).write_all(text)?;
        self.file.sync_all()
    }

    /// Gives the file its name, unless there is a file of that name.
    fn link(&self) -> io::Result<()> {
        let name = self.name.as_os_str();
        linkat(self.folder, name, self.folder, self.target, AtFlags::empty())?;
        self.keep_name();
        Ok(())
    }

    /// Gives the file its name.
    fn rename(&self) -> io::Result<()> {
        renameat(self.folder, self.name.as_os_str(), self.folder, self.target)?;
        self.keep_name();
        Ok(())
    }

    /// Makes the name survive a crash of the machine, where the file system supports it.
    fn keep_name(&self) {
        let _ = self.folder.sync_all();
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{chown, symlink},
        sync::Barrier,
        thread,
    };

    use nix::unistd::mkfifo;

    use super::*;

    fn secret(character: &str) -> Secret {
        Secret::new(&text_of(character)).unwrap()
    }

    fn text_of(character: &str) -> String {
        format!("ragent1_{}", character.repeat(43))
    }

    fn put(path: &Path, text: &[u8], mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn problem(path: &Path) -> String {
        let error = read(path).unwrap_err();
        assert!(!error.hint().is_empty());
        error.problem.to_string()
    }

    /// A file has several secrets, with comments between them; the first is the newest.
    #[test]
    fn files_have_several_secrets() {
        let (a, b) = (secret("a"), secret("b"));
        let text = format!("# new\n{}\r\n\n  {}\n#old", a.text(), b.text());
        assert_eq!(parse(text.as_bytes()).unwrap(), [a, b]);
        let wrong = |text: &[u8]| parse(text).unwrap_err().to_string();
        assert_eq!(wrong(b"# nothing\n\n"), "contains no secret");
        let in_line = |line| format!("is invalid in line {line}: it has");
        assert!(wrong(b"\n#\nshort").starts_with(&in_line(3)));
        assert!(wrong(b"\xff\xfe\n").starts_with(&in_line(1)));
        let many = format!("{}\n", text_of("a")).repeat(17);
        assert_eq!(wrong(many.as_bytes()), "contains more than 16 secrets");
    }

    /// Only a private regular file of this user is used, which a link may lead to.
    #[test]
    fn unsound_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let text = text_of("a");
        assert!(read(&path).unwrap_err().is_missing());
        assert!(read(&path.join("below")).unwrap_err().is_missing());
        for mode in [0o600, 0o400, 0o440, 0o640, 0o700] {
            put(&path, text.as_bytes(), mode);
            assert_eq!(read(&path).unwrap(), [secret("a")], "{mode:o}");
        }
        assert!(read(&path.join("below")).unwrap_err().is_missing());
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read(&link).unwrap(), [secret("a")]);
        let dangling = folder.path().join("dangling");
        symlink(folder.path().join("nothing"), &dangling).unwrap();
        assert!(problem(&dangling).starts_with("cannot be opened: No such file"));
        let owner = geteuid();
        for mode in [0o644, 0o604, 0o620, 0o660, 0o601, 0o777] {
            put(&path, text.as_bytes(), mode);
            let expected = format!("is not private: its mode is {mode:04o} (owner: uid {owner})");
            assert_eq!(problem(&path), expected);
            let hint = format!("`chmod 600 {}`", path.display());
            assert_eq!(read(&path).unwrap_err().hint(), hint);
        }
        put(&path, &vec![b'#'; 64 * 1024 + 1], 0o600);
        assert_eq!(problem(&path), "is larger than 64 KiB");
        assert_eq!(problem(folder.path()), "is not a regular file");
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRUSR).unwrap();
        assert_eq!(problem(&pipe), "is not a regular file");
        if owner.is_root() {
            put(&path, text.as_bytes(), 0o600);
            chown(&path, Some(1234), None).unwrap();
            assert_eq!(
                problem(&path),
                "belongs to uid 1234, not to this user or to root (mode 0600)"
            );
        }
    }

    /// A new file is private, and an existing one is never replaced.
    #[test]
    fn files_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config/ragent/secret");
        create(&path, &secret("a")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let again = create(&path, &secret("b")).unwrap_err();
        assert_eq!(again.problem.to_string(), "exists already");
        assert_eq!(read(&path).unwrap(), [secret("a")]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    }

    /// A secret is added on top; the others stay valid, and a link stays a link.
    #[test]
    fn secrets_are_added_on_top() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("secret"), folder.path().join("link"));
        assert!(add(&path, &secret("a")).unwrap_err().is_missing());
        create(&path, &secret("a")).unwrap();
        symlink(&path, &link).unwrap();
        add(&link, &secret("b")).unwrap();
        assert_eq!(read(&path).unwrap(), [secret("b"), secret("a")]);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        add(&path, &secret("b")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        // A comment may be in any encoding.
        let mut text = fs::read(&path).unwrap();
        text.extend_from_slice(b"# cl\xe9\n");
        fs::write(&path, &text).unwrap();
        for _ in 0..13 {
            add(&path, &secret("c")).unwrap();
        }
        let full = add(&path, &secret("d")).unwrap_err();
        assert_eq!(full.problem.to_string(), "contains more than 16 secrets");
        assert_eq!(read(&path).unwrap().len(), 16);
        // A file that could not be read any more is not written.
        let full = format!("{}\n{}", text_of("a"), "#".repeat(64 * 1024 - 55));
        fs::write(&path, &full).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        let full = add(&path, &secret("b")).unwrap_err();
        assert_eq!(full.problem.to_string(), "is larger than 64 KiB");
        assert_eq!(read(&path).unwrap(), [secret("a")]);
    }

    /// Rotations at the same time all add their secret.
    #[test]
    fn concurrent_rotations_lose_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create(&path, &secret("a")).unwrap();
        let begin = Barrier::new(15);
        thread::scope(|scope| {
            for _ in 0..15 {
                scope.spawn(|| {
                    begin.wait();
                    add(&path, &Secret::random().unwrap()).unwrap();
                });
            }
        });
        assert_eq!(read(&path).unwrap().len(), 16);
    }

    /// Another user who may write to the folder puts a link in the place of the new file: the file that the link leads to
    /// keeps its mode and content.
    #[test]
    fn link_in_place_of_a_new_file_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let (path, victim) = (temp.path().join("secret"), temp.path().join("victim"));
        put(&path, b"", 0o640);
        put(&victim, b"private", 0o600);
        let folder = open_folder(&path).unwrap();
        let draft = Draft::new(&folder, &path).unwrap();
        let name = temp.path().join(&draft.name);
        fs::remove_file(&name).unwrap();
        symlink(&victim, &name).unwrap();
        draft.let_group_read(&fs::metadata(&path).unwrap()).unwrap();
        draft.fill(b"text").unwrap();
        draft.rename().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"private");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(draft.file.metadata().unwrap().mode() & 0o7777, 0o640);
    }
}
