//! The content of a secret file, and its mode.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use ragent_base::{
    secret::{Secret, file},
    testing::{assert_printable, job},
};

/// The modes that the first byte selects.
const MODES: [u32; 8] = [0o600, 0o600, 0o600, 0o400, 0o640, 0o644, 0o660, 0o602];

/// A shorter part of a file may also be part of a message.
const TELLING_LEN: usize = 24;

/// Reads a file, and adds a secret to it.
pub fn secret_file(input: &[u8]) {
    let Some((&kind, text)) = input.split_first() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("secret");
    let mode = MODES[usize::from(kind) % MODES.len()];
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a file");
    let lines = || text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let is_private = mode & 0o027 == 0;
    match file::read(&path) {
        Ok(secrets) => {
            assert!(is_private, "{mode:o}");
            let used: Vec<&[u8]> =
                lines().filter(|line| !line.is_empty() && !line.starts_with(b"#")).collect();
            let texts: Vec<&[u8]> = secrets.iter().map(|secret| secret.text().as_bytes()).collect();
            assert_eq!(texts, used);
            assert!((1..=16).contains(&secrets.len()) && text.len() <= 64 * 1024);
            for secret in &secrets {
                check(secret);
            }
            add_to(&path, &secrets);
        }
        Err(error) => {
            let hint = error.hint();
            for text in [error.to_string(), hint] {
                assert_printable(&text);
                assert!(text.len() <= 1024 && !text.contains('\n'), "{text}");
                for line in lines().filter(|line| is_like_a_secret(line)) {
                    let line = String::from_utf8_lossy(line);
                    assert!(!text.contains(&*line), "the error contains a line of the file");
                }
            }
        }
    }
}

fn is_like_a_secret(line: &[u8]) -> bool {
    line.len() >= TELLING_LEN && line.iter().all(is_of_secrets)
}

fn is_of_secrets(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_+/=-".contains(byte)
}

fn check(secret: &Secret) {
    let text = secret.text().as_bytes();
    assert!((43..=512).contains(&text.len()));
    assert!(text.iter().all(is_of_secrets));
    assert_eq!(Secret::new(secret.text()).as_ref(), Ok(secret));
    assert_eq!(format!("{secret:?}"), format!("Secret({})", secret.id()));
}

/// Adds a secret, which is then the first one; all others are kept.
fn add_to(path: &Path, secrets: &[Secret]) {
    let new = Secret::new(job::SECRET).expect("a secret");
    let before = fs::read(path).expect("a file");
    let expected = match file::add(path, &new) {
        Ok(()) => {
            assert!(fs::read(path).expect("a file").ends_with(&before));
            [&[new], secrets].concat()
        }
        Err(_) => {
            assert!(secrets.len() == 16);
            secrets.to_vec()
        }
    };
    assert_eq!(file::read(path).expect("it is still valid"), expected);
    assert_eq!(fs::metadata(path).expect("a file").permissions().mode() & 0o027, 0);
}
