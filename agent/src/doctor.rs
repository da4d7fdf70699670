//! `ragent doctor`: looks for what usually goes wrong, before the job does.
//!
//! Each check is one line: whether it is well, what was found, and where it is not, what to do. What is
//! measured stands in the modules; what a measurement means is decided by functions of numbers.

mod endpoint;
mod machine;
mod peers;
mod port;

use std::{fmt, fmt::Write as _, io::Write as _, process::ExitCode};

use serde::Serialize;

use crate::{
    cli::DoctorArgs,
    error::LaunchError,
    host::ThisHost,
    job_spec::{Endpoint, JobSpecError},
    run,
};

/// How a check ended.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It is as it must be.
    Pass,
    /// Some jobs will run into it.
    Warn,
    /// No job will run like this.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// What one check has found.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Finding {
    /// A stable word for what was looked at.
    check: &'static str,
    /// How it is.
    verdict: Verdict,
    /// What was found.
    text: String,
    /// What to do, where something is to be done.
    hint: Option<String>,
}

impl Finding {
    fn pass(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Pass, text: text.into(), hint: None }
    }

    fn warn(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), Some(hint.into()));
        Self { check, verdict: Verdict::Warn, text, hint }
    }

    fn fail(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), Some(hint.into()));
        Self { check, verdict: Verdict::Fail, text, hint }
    }
}

/// Looks, and prints what was found; the exit code is 1 if any check has failed.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint cannot be read, or the runtime cannot be started.
pub fn examine(args: &DoctorArgs) -> Result<ExitCode, LaunchError> {
    // Agents find that one without it being anywhere.
    let given = args.rdzv_endpoint.as_deref().filter(|text| text.split(':').next() != Some("auto"));
    let endpoint = given.map(read).transpose()?;
    if args.peers && endpoint.is_none() {
        return Err(LaunchError::Usage(vec![JobSpecError::PeersWithoutEndpoint]));
    }
    let findings = run::block_on(async {
        let mut findings = machine::examine(args.nproc_per_node).await;
        if given.is_none() && args.rdzv_endpoint.is_some() {
            findings.push(multicast());
        }
        findings.extend(over_the_network(endpoint, args.peers).await);
        findings
    })?;
    let text = if args.json { json(&findings) } else { text(&findings) };
    // A reader that went away, as `head` does, has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let is_well = findings.iter().all(|finding| finding.verdict != Verdict::Fail);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn over_the_network(endpoint: Option<Endpoint>, wants_peers: bool) -> Vec<Finding> {
    let mut findings = vec![endpoint::own_name().await];
    if let Some(endpoint) = endpoint {
        findings.extend(endpoint::examine(&endpoint).await);
        if wants_peers {
            findings.extend(peers::examine(&endpoint).await);
        }
    }
    findings
}

/// Whether agents can find each other by themselves.
fn multicast() -> Finding {
    let interfaces = ThisHost.multicast_interfaces(None);
    let others = interfaces.iter().filter(|interface| !interface.is_loopback);
    let names: Vec<&str> = others.map(|interface| interface.name.as_str()).collect();
    if names.is_empty() {
        let hint = "name hosts of the job with `--discover-hosts`";
        return Finding::fail("endpoint", "no interface takes multicast", hint);
    }
    Finding::pass("endpoint", format!("agents look for each other on {}", names.join(", ")))
}

fn read(text: &str) -> Result<Endpoint, LaunchError> {
    text.parse().map_err(|error| {
        let (source_, value) = ("--rdzv-endpoint".to_owned(), text.to_owned());
        LaunchError::Usage(vec![JobSpecError::Endpoint { source_, value, error }])
    })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, verdict, text: found, hint } in findings {
        // Writing to a string does not fail.
        let _ = write!(text, "{verdict}  {check:<12}  {found}");
        if let Some(hint) = hint {
            let _ = write!(text, " -- {hint}");
        }
        text.push('\n');
    }
    text
}

fn json(findings: &[Finding]) -> String {
    let worst = findings.iter().map(|finding| finding.verdict).max();
    let all = serde_json::json!({ "verdict": worst, "checks": findings });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line a check, with its hint; the JSON has the worst verdict in front.
    #[test]
    fn findings_are_lines() {
        let findings =
            [Finding::pass("one", "all well"), Finding::fail("two", "broken", "mend it")];
        assert_eq!(
            text(&findings),
            "pass  one           all well\nFAIL  two           broken -- mend it\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["checks"][1]["hint"], "mend it");
    }
}
