//! Reads what workers receive in addition to their environment.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Argument, JobPath, UsageError, UsageErrors, arguments::Arguments};
use ragent_base::sys::host::Host;

/// The arguments and variables that workers receive in addition to their environment. `F` is the
/// form of a path, `C` that of DeepSpeed's configuration.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum LaunchMethod<F = JobPath, C = PathBuf> {
    /// `--rank` and `--world_size`.
    Basic {
        /// The prefix of the files by which they meet, if they do: `--init_method`.
        shared_file: Option<F>,
    },
    /// The same as from DeepSpeed's launcher: `--local_rank`, and a few more variables.
    DeepSpeed {
        /// `--deepspeed_config`.
        config: Option<C>,
    },
    /// Nothing more.
    #[default]
    Torchrun,
}

const BASIC: &str = "basic";
const DEEPSPEED: &str = "deepspeed";
const TORCHRUN: &str = "torchrun";

/// The flags that define a launch method.
pub struct MethodArguments {
    /// `--launch-method`.
    pub name: Option<Argument>,
    /// `--shared-file`.
    pub shared_file: Option<Argument>,
    /// `--deepspeed-config`.
    pub config: Option<Argument>,
}

impl<F, C> LaunchMethod<F, C> {
    /// Reads the launch method; the two functions read its files.
    pub fn read(
        given: MethodArguments,
        errors: &mut UsageErrors,
        shared_file: impl FnOnce(&Argument) -> Result<F, UsageError>,
        config: impl FnOnce(&Argument) -> Result<C, UsageError>,
    ) -> Self {
        let choose = |text: &str| [BASIC, DEEPSPEED, TORCHRUN].into_iter().find(|it| *it == text);
        let choices = "`basic`, `torchrun` or `deepspeed`";
        let name = given.name.map_or(Ok(TORCHRUN), |name| name.choice(choices, choose));
        // Without a method, flags cannot be checked against it.
        let Some(name) = errors.ok(name) else { return Self::Torchrun };
        for (file, method) in [(&given.shared_file, BASIC), (&given.config, DEEPSPEED)] {
            if let Some(file) = file.as_ref().filter(|_| method != name) {
                let problem = format!("requires `--launch-method {method}`");
                let hint = format!("add `--launch-method {method}`, or omit the flag");
                errors.add(file.invalid(problem).with_hint(hint));
            }
        }
        match name {
            BASIC => {
                let file = given.shared_file.as_ref().map(shared_file);
                Self::Basic { shared_file: errors.ok(file.transpose()).flatten() }
            }
            DEEPSPEED => {
                let file = given.config.as_ref().map(config);
                Self::DeepSpeed { config: errors.ok(file.transpose()).flatten() }
            }
            _ => Self::Torchrun,
        }
    }

    /// Returns the name of the method: `--launch-method`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Basic { .. } => BASIC,
            Self::DeepSpeed { .. } => DEEPSPEED,
            Self::Torchrun => TORCHRUN,
        }
    }
}

impl<H: Host> Arguments<'_, H> {
    /// Reads the launch method. `folder_name` is the name of the job's own folder; `is_named` is
    /// true if the job has a name.
    pub(super) fn launch_method(
        &self,
        folder_name: &str,
        is_named: bool,
        errors: &mut UsageErrors,
    ) -> LaunchMethod {
        let args = self.args;
        let given = MethodArguments {
            name: self.argument("launch_method", &args.job.launch_method),
            shared_file: self.not_empty("shared_file", &args.job.shared_file),
            config: self.not_empty("deepspeed_config", &args.job.deepspeed_config),
        };
        let shared_file = |given: &Argument| self.shared_file(given, folder_name, is_named);
        let config = |given: &Argument| {
            let hint = "it must be one JSON object without comments; see docs/launch-methods.md";
            read_deepspeed_config(self.host, given).map_err(|error| error.with_hint(hint))?;
            Ok(PathBuf::from(&given.text))
        };
        LaunchMethod::read(given, errors, shared_file, config)
    }

    fn shared_file(
        &self,
        given: &Argument,
        folder_name: &str,
        is_named: bool,
    ) -> Result<JobPath, UsageError> {
        let file = match self.job_path(given, is_named)? {
            // Workers may have a different working directory.
            JobPath::At(path) => JobPath::At(self.host.current_dir().join(path)),
            auto @ JobPath::Auto { .. } => auto,
        };
        let path = file.path(folder_name, "").display().to_string();
        if path.contains(['?', '#']) {
            let problem = "cannot be used in a `file://` address: it contains `?` or `#`";
            let given = Argument::new(&given.source, &path);
            return Err(given.invalid(problem).with_hint("give a path without these characters"));
        }
        Ok(file)
    }
}

/// Returns the text of DeepSpeed's configuration.
pub fn read_deepspeed_config(host: &impl Host, given: &Argument) -> Result<String, UsageError> {
    let path = Path::new(&given.text);
    if !host.is_readable_file(path) {
        let problem = if host.exists(path) { "cannot be read" } else { "does not exist" };
        return Err(given.invalid(problem));
    }
    let Some(text) = host.read(path) else {
        return Err(given.invalid("is not UTF-8 text, or is larger than 1 MiB"));
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(_)) => Ok(text),
        Ok(_) => Err(given.invalid("is JSON, but not an object")),
        Err(error) => Err(given.invalid(format_args!("is not valid JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragent_base::sys::host::FakeHost;

    /// Every name is read as the method that has it.
    #[test]
    fn names() {
        let read = |name: &str| {
            let name = Some(Argument::new("--launch-method", name));
            let given = MethodArguments { name, shared_file: None, config: None };
            let mut errors = UsageErrors::default();
            let method: LaunchMethod<(), ()> =
                LaunchMethod::read(given, &mut errors, |_| Ok(()), |_| Ok(()));
            errors.into_result(method.name())
        };
        for name in ["basic", "deepspeed", "torchrun"] {
            assert_eq!(read(name), Ok(name));
        }
        assert!(read("Basic").is_err());
    }

    /// A configuration is a JSON object; the error for any other text contains the line.
    #[test]
    fn deepspeed_configs() {
        let mut host = FakeHost::default();
        host.put("good.json", "{\"train_batch_size\": 8}\n");
        host.put("list.json", "[]");
        host.put("bad.json", "{\n  \"a\": 1,\n}");
        let read = |name| {
            let text = read_deepspeed_config(&host, &Argument::new("--c", name));
            text.map_err(|error| error.to_string())
        };
        assert_eq!(read("good.json").as_deref(), Ok("{\"train_batch_size\": 8}\n"));
        for (name, error) in [
            ("list.json", "`--c list.json` is JSON, but not an object"),
            ("bad.json", "`--c bad.json` is not valid JSON: trailing comma at line 3 column 1"),
            ("none.json", "`--c none.json` does not exist"),
        ] {
            assert_eq!(read(name).unwrap_err(), error);
        }
    }
}
