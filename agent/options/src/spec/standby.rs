//! Reads which modules standbys import.

use super::{Argument, LaunchMethod, UsageError, WorkerCommand, arguments::Arguments};
use ragent_base::sys::host::Host;

/// What workers that train import in any case: the second one is imported by the first optimizer.
const DEFAULT_MODULES: [&str; 2] = ["torch", "torch._dynamo"];
/// More modules than a script needs, and few enough for one variable.
const MAX_MODULES: usize = 64;

impl<H: Host> Arguments<'_, H> {
    /// Reads the modules that standbys import; empty without standbys.
    pub(super) fn standby(
        &self,
        command: &WorkerCommand,
        method: &LaunchMethod,
    ) -> Result<Vec<String>, UsageError> {
        let given = self.argument("standby", &self.args.standby);
        let modules = given.as_ref().map(standby_modules).transpose()?.unwrap_or_default();
        // A standby is started before the round is known: not if its arguments depend on it, and
        // only if Python runs a script from a file.
        let is_possible =
            command.searched.is_some() && !matches!(method, LaunchMethod::Basic { .. });
        Ok(if is_possible { modules } else { Vec::new() })
    }
}

impl<H: Host> Arguments<'_, H> {
    /// Returns true if standbys start torch's worker server.
    pub(super) fn observe(&self) -> Result<bool, UsageError> {
        let is_wanted = self.switch("observe", self.args.observe)?;
        let given = self.argument("standby", &self.args.standby);
        let modules = given.as_ref().map(standby_modules).transpose();
        if is_wanted && modules.is_ok_and(|modules| modules.unwrap_or_default().is_empty()) {
            let error = UsageError::new("`--observe` needs `--standby`");
            return Err(error.with_hint(
                "add `--standby`, or call `ragent.observe()` in the script, which needs no flag",
            ));
        }
        Ok(is_wanted)
    }
}

/// Reads the value of `--standby`: the modules that standbys import, none without standbys.
fn standby_modules(given: &Argument) -> Result<Vec<String>, UsageError> {
    let modules: Vec<String> = match given.text.as_str() {
        "" | "0" | "false" | "none" => return Ok(Vec::new()),
        "1" | "true" => DEFAULT_MODULES.map(str::to_owned).to_vec(),
        text => text.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    if modules.len() > MAX_MODULES || !modules.iter().all(|name| is_module(name)) {
        let hint = "without a value, `--standby` imports `torch,torch._dynamo`";
        return Err(given
            .is_not("`none`, or a list of at most 64 Python modules such as torch,transformers")
            .with_hint(hint));
    }
    Ok(modules)
}

fn is_module(name: &str) -> bool {
    let is_start = |c: char| c == '_' || c.is_alphabetic();
    name.split('.').all(|part| {
        part.starts_with(is_start) && part.chars().all(|c| c == '_' || c.is_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value is off, the default modules, or a list of modules.
    #[test]
    fn values() {
        let read = |text: &str| standby_modules(&Argument::new("--standby", text));
        for off in ["", "0", "false", "none"] {
            assert!(read(off).unwrap().is_empty(), "{off}");
        }
        for on in ["1", "true"] {
            assert_eq!(read(on).unwrap(), ["torch", "torch._dynamo"], "{on}");
        }
        assert_eq!(read("json, xml.dom").unwrap(), ["json", "xml.dom"]);
        for wrong in ["a,,b", "1x", "a b", "a.", "a;b", "a\tb", ",", "../a"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
