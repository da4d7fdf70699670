//! Reads the paths of a job that are passed to all its workers.

use std::path::{Path, PathBuf};

use ragent_base::sys::host::Host;
use ragent_rendezvous::ids::RunId;

use super::{Argument, LaunchMethod, UsageError, UsageErrors, arguments::Arguments};

/// A path of the job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JobPath {
    /// A path in the job's own folder.
    Auto {
        /// The parent of that folder.
        within: PathBuf,
    },
    /// A path that the user has chosen.
    At(PathBuf),
}

/// Paths that are passed to all workers of the job.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct JobFiles {
    /// The name of the job's own folder.
    pub folder_name: String,
    /// `--save_path`: a folder.
    pub save: Option<JobPath>,
    /// `--checkpoint_path`: a file.
    pub checkpoint: Option<JobPath>,
}

impl JobPath {
    /// Reads `auto` (in the folder `here`), `auto:FOLDER`, or a path.
    pub(crate) fn parse(text: &str, here: &Path) -> Self {
        match text.strip_prefix("auto") {
            Some("") => Self::Auto { within: here.to_owned() },
            Some(rest) if rest.starts_with(':') => Self::Auto { within: here.join(&rest[1..]) },
            Some(_) | None => Self::At(text.into()),
        }
    }

    /// Returns the path; `name` is its name in the job's own folder.
    pub(super) fn path(&self, folder_name: &str, name: &str) -> PathBuf {
        match self {
            Self::Auto { within } => within.join(folder_name).join(name),
            Self::At(path) => path.clone(),
        }
    }

    fn is_auto(&self) -> bool {
        matches!(self, Self::Auto { .. })
    }
}

impl JobFiles {
    /// Returns the name of the folder of the job `run_id`.
    pub fn folder_name(run_id: &RunId) -> String {
        // A run id has no slash, and with this prefix it is not `..` either.
        format!("ragent-{run_id}")
    }

    /// Returns the value of `--save_path`.
    pub fn save_path(&self) -> Option<PathBuf> {
        Some(self.save.as_ref()?.path(&self.folder_name, "save"))
    }

    /// Returns the value of `--checkpoint_path`.
    pub fn checkpoint_path(&self) -> Option<PathBuf> {
        Some(self.checkpoint.as_ref()?.path(&self.folder_name, "checkpoint.pt"))
    }

    /// Returns the prefix of the files by which workers meet, if they do.
    pub fn shared_file(&self, method: &LaunchMethod) -> Option<PathBuf> {
        let LaunchMethod::Basic { shared_file } = method else { return None };
        Some(shared_file.as_ref()?.path(&self.folder_name, "rendezvous"))
    }

    /// Returns the folders that must exist before workers start, with the flags that need them. A
    /// path that the user has chosen may not be a file, such as `s3://…`.
    pub fn folders(&self, method: &LaunchMethod) -> Vec<(&'static str, PathBuf)> {
        let is_auto = |path: &Option<JobPath>| path.as_ref().is_some_and(JobPath::is_auto);
        let parent = |path: PathBuf| path.parent().map(Path::to_owned);
        let save = self.save_path().filter(|_| is_auto(&self.save));
        let checkpoint = self.checkpoint_path().filter(|_| is_auto(&self.checkpoint));
        let shared = self.shared_file(method);
        [
            ("--save-path", save),
            ("--checkpoint-path", checkpoint.and_then(parent)),
            ("--shared-file", shared.and_then(parent)),
        ]
        .into_iter()
        .filter_map(|(flag, folder)| Some((flag, folder?)))
        .collect()
    }
}

impl<H: Host> Arguments<'_, H> {
    /// Reads the paths of the job; `is_named` is true if the job has a name.
    pub(super) fn job_files(
        &self,
        run_id: &RunId,
        is_named: bool,
        errors: &mut UsageErrors,
    ) -> JobFiles {
        let mut path = |name, typed| {
            let given = self.not_empty(name, typed);
            errors.or_default(given.map(|given| self.job_path(&given, is_named)).transpose())
        };
        JobFiles {
            save: path("save_path", &self.args.job.save_path),
            checkpoint: path("checkpoint_path", &self.args.job.checkpoint_path),
            folder_name: JobFiles::folder_name(run_id),
        }
    }

    pub(super) fn job_path(&self, given: &Argument, is_named: bool) -> Result<JobPath, UsageError> {
        let path = JobPath::parse(&given.text, &self.host.current_dir());
        if path.is_auto() && !is_named {
            return Err(given
                .invalid("derives a name from `--rdzv-id`, which is not given")
                .with_hint("give `--rdzv-id NAME`, the same on all nodes"));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> JobPath {
        JobPath::parse(text, Path::new("/here"))
    }

    /// An `auto` path is in the job's own folder, which is created; the user's paths are not
    /// changed.
    #[test]
    fn paths() {
        let method = LaunchMethod::Basic { shared_file: Some(path("auto:/shared")) };
        let files = JobFiles {
            folder_name: "ragent-job7".into(),
            save: Some(path("auto")),
            checkpoint: Some(path("auto:out")),
        };
        assert_eq!(files.save_path(), Some("/here/ragent-job7/save".into()));
        assert_eq!(files.checkpoint_path(), Some("/here/out/ragent-job7/checkpoint.pt".into()));
        assert_eq!(files.shared_file(&method), Some("/shared/ragent-job7/rendezvous".into()));
        assert_eq!(files.shared_file(&LaunchMethod::Torchrun), None);
        let folders = files.folders(&method);
        assert_eq!(
            folders,
            [
                ("--save-path", "/here/ragent-job7/save".into()),
                ("--checkpoint-path", "/here/out/ragent-job7".into()),
                ("--shared-file", "/shared/ragent-job7".into()),
            ]
        );
        let own = Some(path("s3://models/x"));
        let files = JobFiles { save: own.clone(), checkpoint: own, ..files };
        assert_eq!(files.save_path(), Some("s3://models/x".into()));
        assert_eq!(files.folders(&LaunchMethod::Torchrun), []);
        let method = LaunchMethod::Basic { shared_file: Some(path("/shared/x")) };
        assert_eq!(files.folders(&method), [("--shared-file", "/shared".into())]);
    }

    /// A file may be called `automatic`.
    #[test]
    fn names_that_begin_like_auto() {
        assert_eq!(path("automatic"), JobPath::At("automatic".into()));
        assert_eq!(path("auto/x"), JobPath::At("auto/x".into()));
    }
}
