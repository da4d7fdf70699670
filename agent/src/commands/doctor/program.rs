//! Checks which versions of this program a shell finds.

use std::path::PathBuf;

use ragent_base::sys::host::ThisHost;
use ragent_options::cli;

use super::{
    Finding, Findings,
    child::{self, Unusable},
    within,
};
use crate::commands::doctor::limits;

/// The name of the check.
const CHECK: &str = "program";

/// A program, with the version that it prints or the reason why it prints none.
type Found = (PathBuf, Result<String, String>);

pub(super) async fn examine(findings: &mut Findings) {
    let folders = match within(CHECK, || ThisHost.folders_in_path("ragent")).await {
        Ok(folders) => folders,
        Err(silent) => return findings.report(silent),
    };
    let mut found = Vec::new();
    for program in folders.into_iter().map(|folder| folder.join("ragent")) {
        let version = version_of(program.clone()).await;
        found.push((program, version));
    }
    findings.report(judge(&cli::version(), &found));
}

async fn version_of(program: PathBuf) -> Result<String, String> {
    let output = child::stdout_of(program, &["--version"], limits::CHECK_TIMEOUT).await;
    match output {
        Ok(text) => Ok(text.trim().trim_start_matches("ragent ").to_owned()),
        Err(Unusable::Broken(why)) => Err(why),
        Err(Unusable::Silent(waited)) => Err(format!("no answer within {} s", waited.as_secs())),
    }
}

/// Judges the programs in `PATH`, in the order in which a shell searches them.
fn judge(own: &str, found: &[Found]) -> Finding {
    let is_own = |(_, version): &Found| version.as_deref() == Ok(own);
    if found.iter().all(is_own) {
        return Finding::pass(CHECK, format!("ragent {own}"));
    }
    let each = found.iter().map(|(program, version)| match version {
        Ok(version) => format!("{} is {version}", program.display()),
        Err(why) => format!("{} does not run: {why}", program.display()),
    });
    let text = format!(
        "this is ragent {own}, but PATH has other programs: {}",
        each.collect::<Vec<_>>().join("; ")
    );
    let hint =
        "remove the programs that are not used, or call one by its path: all nodes need the same";
    Finding::warn(CHECK, text, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each program in `PATH` that is another version, or does not run, is named.
    #[test]
    fn other_versions_are_named() {
        let program = |path: &str, version| (PathBuf::from(path), version);
        let own = program("/a/ragent", Ok("0.2.0".to_owned()));
        assert_eq!(judge("0.2.0", &[]).text, "ragent 0.2.0");
        assert_eq!(judge("0.2.0", std::slice::from_ref(&own)).hint, None);
        let old = program("/b/ragent", Ok("0.1.0".to_owned()));
        let broken = program("/c/ragent", Err("Exec format error".to_owned()));
        assert_eq!(
            judge("0.2.0", &[own, old, broken]).text,
            "this is ragent 0.2.0, but PATH has other programs: /a/ragent is 0.2.0; \
             /b/ragent is 0.1.0; /c/ragent does not run: Exec format error"
        );
    }
}
