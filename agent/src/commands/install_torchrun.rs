//! Puts a link named `torchrun` into a folder, for tools that start `torchrun`: `ragent install-torchrun`.

use std::{
    fmt::Write,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ragent_base::{
    cli::{InstallTorchrunArgs, TORCHRUN},
    spec::UsageError,
    sys::{
        host::{Host, ThisHost},
        stdout,
    },
};

use super::error::{LaunchError, system};

/// The new name of the program that the link replaces. `--undo` restores it.
const REPLACED: &str = "torchrun.replaced-by-ragent";
/// The name under which the link is created, before it is renamed over the old file.
const NEW: &str = ".torchrun.new";
/// The name of this program's file. A link to such a file counts as ragent's own.
const OWN_NAME: &str = "ragent";

/// Creates the link, or removes it, and prints what has changed.
///
/// # Errors
///
/// Returns [`LaunchError`] if the folder does not exist or has no such link, or the system refuses the change.
pub fn run(args: &InstallTorchrunArgs) -> Result<ExitCode, LaunchError> {
    let given = args.folder.display();
    let folder = fs::canonicalize(&args.folder).ok().filter(|folder| folder.is_dir());
    let folder = folder.ok_or_else(|| {
        UsageError::new(format!("`{given}` is not a folder"))
            .with_hint("name a folder in PATH, such as ~/.local/bin or the `bin` of an environment")
    })?;
    let text = if args.undo { undo(&folder)? } else { install(&folder)? };
    stdout::print(&text).map_err(system("print the result"))?;
    Ok(ExitCode::SUCCESS)
}

/// An existing file named `torchrun`.
#[derive(Debug, Eq, PartialEq)]
enum Existing {
    /// There is none.
    Nothing,
    /// A link to ragent. It may lead to another installation, or to a file that is gone.
    Own(PathBuf),
    /// Another program.
    Other,
}

impl Existing {
    fn at(link: &Path) -> Self {
        match fs::read_link(link) {
            Ok(target) if target.file_name().is_some_and(|name| name == OWN_NAME) => {
                Self::Own(target)
            }
            _ if fs::symlink_metadata(link).is_ok() => Self::Other,
            _ => Self::Nothing,
        }
    }
}

fn install(folder: &Path) -> Result<String, LaunchError> {
    let (link, replaced) = (folder.join(TORCHRUN), folder.join(REPLACED));
    let program = program_for(folder)?;
    let mut text = match Existing::at(&link) {
        Existing::Own(target) if target == program => {
            format!("{} already starts ragent\n", link.display())
        }
        Existing::Other if fs::symlink_metadata(&replaced).is_ok() => {
            let error = format!(
                "`{}` was replaced before, and `{}` is in the way",
                link.display(),
                replaced.display()
            );
            let hint = "remove the older of the two files";
            return Err(UsageError::new(error).with_hint(hint).into());
        }
        Existing::Other => {
            put(&program, folder, |new| {
                fs::rename(&link, &replaced)?;
                fs::rename(new, &link).inspect_err(|_| {
                    // Only the error of the attempt is reported.
                    let _ = fs::rename(&replaced, &link);
                })
            })?;
            let now = replaced.display();
            format!("{} starts ragent now; the former one is {now}\n", link.display())
        }
        Existing::Own(_) | Existing::Nothing => {
            put(&program, folder, |new| fs::rename(new, &link))?;
            format!("{} starts ragent now\n", link.display())
        }
    };
    text.push_str(&order(folder, &ThisHost.folders_in_path(TORCHRUN)));
    // Formatting into a `String` cannot fail.
    let _ = writeln!(
        text,
        "`python -m torch.distributed.run` still starts PyTorch's launcher\n\
         undo it with: ragent install-torchrun --undo {}",
        folder.display()
    );
    Ok(text)
}

/// Returns the target of a link in `folder`. It is only a name if this program is in the same folder, so that the folder may be moved.
fn program_for(folder: &Path) -> Result<PathBuf, UsageError> {
    let folders = ThisHost.program_folders();
    let found =
        folders.iter().map(|own| own.join(OWN_NAME)).find(|own| ThisHost.is_executable(own));
    let program = found.ok_or_else(|| {
        UsageError::new("the file of this program is not named `ragent`")
            .with_hint("name it `ragent`, and run it again: links are recognised by this name")
    })?;
    let is_same = program.parent().and_then(|own| fs::canonicalize(own).ok());
    Ok(if is_same.is_some_and(|own| own == folder) { OWN_NAME.into() } else { program })
}

/// Creates the link under another name, and then renames it over the old file.
fn put(
    program: &Path,
    folder: &Path,
    rename: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), LaunchError> {
    let new = folder.join(NEW);
    // An interrupted call may have left one.
    let _ = fs::remove_file(&new);
    let done = symlink(program, &new).and_then(|()| rename(&new));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done.map_err(system("create the link `torchrun`"))
}

fn undo(folder: &Path) -> Result<String, LaunchError> {
    let (link, replaced) = (folder.join(TORCHRUN), folder.join(REPLACED));
    let link_text = link.display();
    match Existing::at(&link) {
        Existing::Own(_) => {}
        Existing::Nothing | Existing::Other => {
            let error = UsageError::new(format!("`{link_text}` is not a link to ragent"));
            return Err(error.with_hint("nothing was changed; name the folder of the link").into());
        }
    }
    if fs::symlink_metadata(&replaced).is_ok() {
        fs::rename(&replaced, &link).map_err(system("restore the former torchrun"))?;
        return Ok(format!("{link_text} is the former torchrun again\n"));
    }
    fs::remove_file(&link).map_err(system("remove the link `torchrun`"))?;
    Ok(format!("removed {link_text}\n"))
}

/// Describes which of the programs in `PATH` a shell starts for `torchrun`.
fn order(folder: &Path, found: &[PathBuf]) -> String {
    let mut text = String::new();
    let Some(at) = found.iter().position(|it| it == folder) else {
        let _ = writeln!(
            text,
            "warning: {} is not in PATH: add it, before other folders with a torchrun",
            folder.display()
        );
        return text;
    };
    for (place, other) in found.iter().enumerate().filter(|(place, _)| *place != at) {
        let other = other.join(TORCHRUN);
        let _ = if place < at {
            writeln!(
                text,
                "warning: {} precedes it in PATH: `torchrun` starts that one",
                other.display()
            )
        } else {
            writeln!(text, "it shadows {}", other.display())
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder before the link's in `PATH` is a warning. A folder after it is hidden by the link.
    #[test]
    fn order_of_folders() {
        let found: Vec<PathBuf> = ["/a", "/b", "/c"].map(PathBuf::from).into();
        let text = order(Path::new("/b"), &found);
        let (first, second) = text.split_once('\n').unwrap();
        assert!(first.starts_with("warning: /a/torchrun precedes it in PATH"), "{text}");
        assert_eq!(second, "it shadows /c/torchrun\n");
        assert_eq!(order(Path::new("/b"), &found[1..2]), "");
        assert!(order(Path::new("/d"), &found).contains("/d is not in PATH"));
    }
}
