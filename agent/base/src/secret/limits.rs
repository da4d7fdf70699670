//! The limits of `secret`, each with its reason.

/// The number of characters of a secret: 43 characters of base64 have 256 bits. A shorter text may be a password, which
/// others could guess.
pub(super) const MIN_SECRET_LEN: usize = 43;
/// The maximum number of characters.
pub(super) const MAX_SECRET_LEN: usize = 512;
/// The number of different characters of a secret: of 43 random hexadecimal digits, one in a million has fewer.
pub(super) const MIN_DISTINCT: usize = 10;
/// The attempts to lock the folder of a secret file, and the milliseconds between them: far longer than a rotation takes.
pub(super) const LOCK_TRIES: u32 = 50;
pub(super) const LOCK_PAUSE: u8 = 100;
/// The maximum size of a secret file, in bytes: all of its secrets, with comments.
pub(super) const MAX_FILE: u64 = 64 * 1024;
/// The maximum number of secrets in a file: two are needed while a secret is replaced.
pub(super) const MAX_SECRETS: usize = 16;
/// The maximum size of a file of authorities, in bytes: those of all public authorities have a quarter of it.
pub(super) const MAX_AUTHORITIES_FILE: u64 = 1024 * 1024;
/// The maximum size of a file with the own certificate, in bytes: all of its chain, with comments.
pub(super) const MAX_CERTIFICATE_FILE: u64 = 64 * 1024;
