//! Puts a link named `torchrun` into a folder, for tools that start `torchrun`: `ragent install-torchrun`.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ragent_base::sys::{
    host::{Host, ThisHost},
    stdout,
};
use ragent_options::{
    cli::{InstallTorchrunArgs, TORCHRUN},
    spec::UsageError,
};

use super::error::{LaunchError, system};

/// The new name of the program that the link replaces. `--undo` restores it.
const REPLACED: &str = "torchrun.replaced-by-ragent";
/// The name under which the link is created, before it is renamed over the old file.
const NEW: &str = ".torchrun.new";
/// The name of this program's file. A link to such a file counts as ragent's own, also if the file is gone.
const OWN_NAME: &str = "ragent";

/// Creates the link, or removes it, and prints what has changed.
///
/// # Errors
///
/// Returns [`LaunchError`] if the folder has no such link, or the system refuses the change.
pub fn run(args: &InstallTorchrunArgs) -> Result<ExitCode, LaunchError> {
    let folder = &args.folder;
    let (link, replaced) = (folder.join(TORCHRUN), folder.join(REPLACED));
    let (link_text, replaced_text) = (link.display(), replaced.display());
    let is_own = fs::read_link(&link).is_ok_and(|target| target.ends_with(OWN_NAME));
    let text = if args.undo {
        if !is_own {
            let error = UsageError::new(format!("`{link_text}` is not a link to ragent"));
            return Err(error.with_hint("nothing was changed; name the folder of the link").into());
        }
        match fs::rename(&replaced, &link) {
            Err(error) if error.kind() == ErrorKind::NotFound => fs::remove_file(&link),
            renamed => renamed,
        }
        .map_err(system("remove the link `torchrun`"))?;
        format!("{link_text} does not start ragent any more\n")
    } else {
        let replaces = !is_own && fs::symlink_metadata(&link).is_ok();
        if replaces && fs::symlink_metadata(&replaced).is_ok() {
            let error =
                format!("`{link_text}` was replaced before, and `{replaced_text}` is in the way");
            return Err(UsageError::new(error)
                .with_hint("remove the older of the two files")
                .into());
        }
        let new = folder.join(NEW);
        // An interrupted call may have left one.
        let _ = fs::remove_file(&new);
        symlink(program_for(folder)?, &new)
            .and_then(|()| if replaces { fs::rename(&link, &replaced) } else { Ok(()) })
            .and_then(|()| {
                fs::rename(&new, &link).inspect_err(|_| {
                    if replaces {
                        let _ = fs::rename(&replaced, &link);
                    }
                })
            })
            .inspect_err(|_| drop(fs::remove_file(&new)))
            .map_err(system("create the link `torchrun`"))?;
        let former =
            if replaces { format!("; the former one is {replaced_text}") } else { String::new() };
        format!(
            "{link_text} starts ragent now{former}\n\
             `command -v torchrun` prints the torchrun that your shell starts\n\
             `python -m torch.distributed.run` still starts PyTorch's launcher\n\
             undo it with: ragent install-torchrun --undo {}\n",
            folder.display()
        )
    };
    stdout::print(&text).map_err(system("print the result"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the target of a link in `folder`. It is only a name if this program is in the same folder, so that the folder may be moved.
fn program_for(folder: &Path) -> Result<PathBuf, UsageError> {
    let own = ThisHost.program_folders();
    let own = own.into_iter().find(|own| ThisHost.is_executable(&own.join(OWN_NAME)));
    let own = own.ok_or_else(|| {
        UsageError::new("the file of this program is not named `ragent`")
            .with_hint("name it `ragent`, and run it again: links are recognised by this name")
    })?;
    let is_same = fs::canonicalize(&own).ok() == fs::canonicalize(folder).ok();
    Ok(if is_same { OWN_NAME.into() } else { own.join(OWN_NAME) })
}
