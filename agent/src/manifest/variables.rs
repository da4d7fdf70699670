//! Checks the variables that agents read their flags from: each must count, and mean something.

use std::ffi::OsString;

use super::{ManifestError, ManifestSpec, container};
use crate::{cli::Cli, job_spec::JobSpec, launch::Anywhere};

/// Every variable that the agents of `spec` would not look at, and every mistake in the others.
///
/// One that no agent knows is passed on, as an agent passes it on: it may be the script's.
pub(super) fn mistakes(spec: &ManifestSpec) -> Vec<ManifestError> {
    let mut mistakes = without_effect(spec);
    mistakes.extend(meaningless(spec));
    mistakes
}

/// A flag wins over its variable, and the manifest gives agents some.
fn without_effect(spec: &ManifestSpec) -> Vec<ManifestError> {
    let variable = |flag: &str| format!("PET_{}", flag.replace('-', "_").to_ascii_uppercase());
    let flags = container::agent_flags(spec).into_iter().map(|(flag, _)| flag);
    let given = flags.filter(|flag| spec.env.contains_key(&variable(flag)));
    given.map(|flag| ManifestError::NoEffect { name: variable(flag), flag: own(flag) }).collect()
}

/// The flag of the manifest that says what this one of the agents does, if there is one.
fn own(flag: &'static str) -> Option<&'static str> {
    match flag {
        // It is where the service has the first pod.
        "rdzv-endpoint" => None,
        "rdzv-id" => Some("name"),
        flag => Some(flag),
    }
}

/// What agents would say of the rest, by their own reading of it.
fn meaningless(spec: &ManifestSpec) -> Vec<ManifestError> {
    let mut words = container::agent_args(spec);
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let script = words.split_off(end);
    // The files that they name are the image's, and devices those of the pod.
    let of_the_pod = |word: &String| {
        word.starts_with("--deepspeed-config=") || word.starts_with("--nproc-per-node=")
    };
    words.retain(|word| !of_the_pod(word));
    let words = ["ragent".to_owned()].into_iter().chain(words).chain(script);
    let env: Vec<(String, OsString)> = spec
        .env
        .iter()
        .filter(|(name, _)| name.as_str() != "PET_DEEPSPEED_CONFIG")
        .map(|(name, value)| (name.clone(), value.into()))
        .collect();
    // They are flags that agents have. If they were not, it would be no variable's fault.
    let Ok(cli) = Cli::read(words.map(OsString::from)) else { return Vec::new() };
    let errors = JobSpec::resolve(cli.launch, &Anywhere(&env)).err().unwrap_or_default();
    errors.into_iter().map(ManifestError::Variable).collect()
}
