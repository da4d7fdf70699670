//! Checks the variables from which agents read their flags. Each must have an effect and a valid value.

use std::ffi::OsString;

use ragent_options::{
    cli::Cli,
    spec::{JobSpec, UsageError},
};

use super::{ManifestSpec, container};
use crate::commands::assumed_host::AssumedHost;

/// Returns an error for every variable that the agents of `spec` would ignore, and for every mistake in the others.
///
/// Unknown variables are accepted, as by agents, because the script may use them.
pub(super) fn mistakes(spec: &ManifestSpec) -> Vec<UsageError> {
    let mut mistakes = without_effect(spec);
    mistakes.extend(meaningless(spec));
    mistakes
}

/// Finds variables that have no effect, because the manifest passes the flag itself.
fn without_effect(spec: &ManifestSpec) -> Vec<UsageError> {
    let variable = |flag: &str| format!("PET_{}", flag.replace('-', "_").to_ascii_uppercase());
    let flags = container::agent_flags(spec).into_iter().map(|(flag, _)| flag);
    let given = flags.filter(|flag| spec.env.contains_key(&variable(flag)));
    let mut mistakes: Vec<UsageError> =
        given.map(|flag| no_effect(spec, &variable(flag), own(flag))).collect();
    let backend = spec.env.get("PET_RDZV_BACKEND").filter(|_| spec.etcd.is_none());
    if backend.is_some_and(|backend| backend.starts_with("etcd")) {
        let problem =
            "`--env PET_RDZV_BACKEND` selects etcd, but the endpoint is in the job's own pods";
        let hint = "give `--rdzv-backend etcd` and `--rdzv-endpoint` instead";
        mistakes.push(UsageError::new(problem).with_hint(hint));
    }
    mistakes
}

fn no_effect(spec: &ManifestSpec, variable: &str, flag: Option<&'static str>) -> UsageError {
    UsageError::new(format!(
        "`--env {variable}` would have no effect: the manifest passes the flag to agents"
    ))
    .with_hint(match flag {
        Some(flag) => format!("give `--{flag}` instead"),
        None if spec.etcd.is_some() => "give `--rdzv-endpoint` instead".to_owned(),
        None if spec.voters.is_several() => "omit it: the first pods are the voters".to_owned(),
        None => "omit it: the first pod hosts the coordinator, unless `--rdzv-backend etcd` and \
                 `--rdzv-endpoint` are given"
            .to_owned(),
    })
}

/// Returns the manifest's flag for this flag of the agents, if there is one.
fn own(flag: &'static str) -> Option<&'static str> {
    match flag {
        // Without etcd, it has the names of the first pods.
        "rdzv-endpoint" => None,
        "rdzv-id" => Some("name"),
        "auth" | "secret-file" => Some("secret"),
        flag => Some(flag),
    }
}

/// Finds the mistakes that agents would report in the other variables. It uses the agents' own parser.
fn meaningless(spec: &ManifestSpec) -> Vec<UsageError> {
    let mut words = container::agent_args(spec);
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let script = words.split_off(end);
    // Files are in the image, and devices are in the pod.
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
    // All of these are flags of agents. An error here is not the fault of a variable.
    let Ok(cli) = Cli::read(words.map(OsString::from)) else { return Vec::new() };
    JobSpec::resolve(cli.launch, &AssumedHost(&env)).err().unwrap_or_default()
}
