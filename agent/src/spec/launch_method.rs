//! Reads what workers receive in addition to their environment.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    JobPath, JobSpecError,
    given::{Errors, Given, Typed},
};
use crate::sys::host::Host;

/// The arguments and variables that workers receive in addition to their environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum LaunchMethod {
    /// `--rank` and `--world_size`.
    Basic {
        /// The prefix of the files by which they meet, if they do: `--init_method`.
        shared_file: Option<JobPath>,
    },
    /// The same as from DeepSpeed's launcher: `--local_rank`, and a few more variables.
    DeepSpeed {
        /// `--deepspeed_config`.
        config: Option<PathBuf>,
    },
    /// Nothing more.
    #[default]
    Torchrun,
}

/// The name of a launch method: `--launch-method`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MethodName {
    /// `basic`.
    Basic,
    /// `deepspeed`.
    DeepSpeed,
    /// `torchrun`.
    #[default]
    Torchrun,
}

impl MethodName {
    /// All names, as errors show them.
    pub(crate) const CHOICES: &'static str = "`basic`, `torchrun` or `deepspeed`";

    /// Returns the method of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = [Self::Basic, Self::DeepSpeed, Self::Torchrun];
        all.into_iter().find(|name| name.to_string() == text)
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic => "basic",
            Self::DeepSpeed => "deepspeed",
            Self::Torchrun => "torchrun",
        })
    }
}

impl<H: Host> Given<'_, H> {
    /// Reads the launch method. `folder_name` is the name of the job's own folder; `is_named` is
    /// true if the job has a name.
    pub(super) fn launch_method(
        &self,
        folder_name: &str,
        is_named: bool,
        errors: &mut Errors,
    ) -> LaunchMethod {
        let args = self.args;
        let choose = MethodName::parse;
        let name = self.choice("launch_method", &args.launch_method, MethodName::CHOICES, choose);
        let name = match name {
            Ok(name) => name.unwrap_or_default(),
            Err(error) => {
                // Without a method, flags cannot be checked against it.
                errors.0.push(error);
                return LaunchMethod::Torchrun;
            }
        };
        let shared_file = self.typed("shared_file", &args.shared_file);
        let shared_file = shared_file.filter(|given| !given.text.is_empty());
        let config = self.typed("deepspeed_config", &args.deepspeed_config);
        let config = config.filter(|given| !given.text.is_empty());
        for (given, method) in [(&shared_file, MethodName::Basic), (&config, MethodName::DeepSpeed)]
        {
            if let Some(Typed { source, text }) = given
                && method != name
            {
                let (source_, value) = (source.clone(), text.clone());
                errors.0.push(JobSpecError::OnlyWith { source_, value, method });
            }
        }
        match name {
            MethodName::Basic => {
                let shared_file =
                    shared_file.map(|given| self.shared_file(given, folder_name, is_named));
                LaunchMethod::Basic { shared_file: errors.or_default(shared_file.transpose()) }
            }
            MethodName::DeepSpeed => {
                let config = config.map(|given| self.deepspeed_config(given));
                LaunchMethod::DeepSpeed { config: errors.or_default(config.transpose()) }
            }
            MethodName::Torchrun => LaunchMethod::Torchrun,
        }
    }

    fn shared_file(
        &self,
        given: Typed,
        folder_name: &str,
        is_named: bool,
    ) -> Result<JobPath, JobSpecError> {
        let source_ = given.source.clone();
        let file = match self.job_path(given, is_named)? {
            // Workers may have a different working directory.
            JobPath::At(path) => JobPath::At(self.host.current_dir().join(path)),
            auto @ JobPath::Auto { .. } => auto,
        };
        let path = file.path(folder_name, "").display().to_string();
        if path.contains(['?', '#']) {
            return Err(JobSpecError::SharedFile { source_, path });
        }
        Ok(file)
    }

    fn deepspeed_config(&self, given: Typed) -> Result<PathBuf, JobSpecError> {
        let path = PathBuf::from(&given.text);
        match read_deepspeed_config(self.host, &path) {
            Ok(_) => Ok(path),
            Err(state) => {
                let (source_, value) = (given.source, given.text);
                Err(JobSpecError::DeepSpeedConfig { source_, value, state })
            }
        }
    }
}

/// Returns the text of DeepSpeed's configuration at `path`, or the problem with it.
pub(crate) fn read_deepspeed_config(host: &impl Host, path: &Path) -> Result<String, String> {
    if !host.is_readable_file(path) {
        let state = if host.exists(path) { "cannot be read" } else { "does not exist" };
        return Err(state.to_owned());
    }
    let Some(text) = host.read(path) else {
        return Err("is not UTF-8 text, or is larger than 1 MiB".to_owned());
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(_)) => Ok(text),
        Ok(_) => Err("is JSON, but not an object".to_owned()),
        Err(error) => Err(format!("is not valid JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::MadeUpHost;

    /// Every name is parsed as the method that prints it.
    #[test]
    fn names() {
        for name in ["basic", "deepspeed", "torchrun"] {
            assert_eq!(MethodName::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(MethodName::parse("Basic"), None);
    }

    /// A configuration is a JSON object; the error for any other text contains the line.
    #[test]
    fn deepspeed_configs() {
        let mut host = MadeUpHost::default();
        host.put("good.json", "{\"train_batch_size\": 8}\n");
        host.put("list.json", "[]");
        host.put("bad.json", "{\n  \"a\": 1,\n}");
        let read = |name| read_deepspeed_config(&host, Path::new(name));
        assert_eq!(read("good.json").as_deref(), Ok("{\"train_batch_size\": 8}\n"));
        assert_eq!(read("list.json").unwrap_err(), "is JSON, but not an object");
        assert_eq!(
            read("bad.json").unwrap_err(),
            "is not valid JSON: trailing comma at line 3 column 1"
        );
        assert_eq!(read("none.json").unwrap_err(), "does not exist");
    }
}
