//! Examines the folders on the way to a path.
//!
//! A user who may write to one of them may put another folder in the place of the next one, unless the folder is sticky. So a
//! path is sound only if all of its folders are, as for sshd's `StrictModes`.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use crate::sys::users;

/// The number of links that are followed: as many as the kernel follows.
const MAX_LINKS: u32 = 40;
const STICKY: u32 = 0o1000;

/// Returns the first folder on the way to `path` where other users may replace entries, and the reason.
///
/// # Errors
///
/// Returns the system's error if a folder cannot be examined.
pub fn unsound(path: &Path) -> io::Result<Option<String>> {
    let path = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = names(&path);
    let (mut folder, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop_front() {
        let about = fs::metadata(&folder)?;
        let (owner, mode) = (about.uid(), about.mode() & 0o7777);
        if !users::may_be_trusted(owner) || mode & 0o022 != 0 && mode & STICKY == 0 {
            let folder = folder.display();
            return Ok(Some(format!("{folder} belongs to uid {owner} and has mode {mode:04o}")));
        }
        if name == ".." {
            folder.pop();
            continue;
        }
        let next = folder.join(name);
        if !fs::symlink_metadata(&next)?.is_symlink() {
            folder = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(nix::Error::ELOOP.into());
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            folder = "/".into();
        }
        for name in names(&target).into_iter().rev() {
            left.push_front(name);
        }
    }
    Ok(None)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A path is unsound if another user may write to a folder on the way to it, also on the way of a link. A
    /// sticky folder is sound.
    #[test]
    fn all_folders_on_the_way_count() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("open/mine/deep")).unwrap();
        fs::create_dir_all(at("own")).unwrap();
        symlink(at("open/mine"), at("link")).unwrap();
        symlink("../own", at("open/home")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let is_sound = |name: &str| unsound(&at(name)).unwrap().is_none();
        let chmod =
            |mode| fs::set_permissions(at("open"), fs::Permissions::from_mode(mode)).unwrap();
        let through = ["open/mine", "open/mine/deep", "link/deep", "open/home/x", "open/../own/x"];
        fs::write(at("own/x"), "").unwrap();
        for (mode, expected) in [
            (0o700, true),
            (0o755, true),
            (0o777, false),
            (0o770, false),
            (0o1777, true),
            (0o2770, false),
        ] {
            chmod(mode);
            for name in through {
                assert_eq!(is_sound(name), expected, "{name} {mode:o}");
            }
            // The mode of the last folder does not count.
            assert!(is_sound("open") && is_sound("own/x"));
        }
        assert!(unsound(&at("loop/x")).is_err());
        assert!(unsound(&at("nothing/x")).is_err());
        if nix::unistd::geteuid().is_root() {
            chmod(0o1777);
            chown(at("open"), Some(1234), None).unwrap();
            let why = unsound(&at("open/mine")).unwrap().unwrap();
            assert!(why.ends_with("/open belongs to uid 1234 and has mode 1777"), "{why}");
        }
    }
}
