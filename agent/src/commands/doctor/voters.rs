//! Checks the voters of a job: each as an endpoint, and whether a majority of them answers.

use ragent_base::{net::Endpoint, secret::Credentials};
use ragent_options::spec::VoterList;

use super::{
    Finding, Findings,
    endpoint::{self, Examined, Purpose},
};

/// Checks each voter, and then the majority.
pub(super) async fn examine(
    voters: &VoterList,
    credentials: &Credentials,
    findings: &mut Findings,
) {
    let mut absent = Vec::new();
    for voter in voters.endpoints() {
        let Examined { findings: of_voter, is_served } =
            endpoint::examine(voter, Purpose::Voter, credentials).await;
        for finding in of_voter {
            findings.report(with_voter(voter, finding));
        }
        if !is_served {
            absent.push(voter);
        }
    }
    findings.report(majority(voters, &absent));
}

/// Adds the voter to a finding that does not begin with it.
fn with_voter(voter: &Endpoint, finding: Finding) -> Finding {
    let voter = voter.to_string();
    if finding.text.starts_with(&voter) {
        return finding;
    }
    Finding { text: format!("{voter}: {}", finding.text), ..finding }
}

fn majority(voters: &VoterList, absent: &[&Endpoint]) -> Finding {
    let (all, needed) = (voters.endpoints().len(), voters.count().majority());
    let present = all - absent.len();
    let text = format!("{present} of {all} voters answer; the job needs {needed}");
    if present >= needed {
        return Finding::pass("voters", text);
    }
    let absent: Vec<String> = absent.iter().map(ToString::to_string).collect();
    let hint = format!(
        "expected if the job has not been started yet; otherwise start the agents of {}, or check \
         the firewall",
        absent.join(", ")
    );
    Finding::warn("voters", text, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// More than half of the voters must answer. The hint lists the absent ones.
    #[test]
    fn majority_is_judged() {
        for (list, absent, verdict, count) in [
            ("a,b,c", 0, CheckVerdict::Pass, "3 of 3 voters answer; the job needs 2"),
            ("a,b,c", 1, CheckVerdict::Pass, "2 of 3 voters answer; the job needs 2"),
            ("a,b,c", 2, CheckVerdict::Warn, "1 of 3 voters answer; the job needs 2"),
            ("a,b,c,d,e", 2, CheckVerdict::Pass, "3 of 5 voters answer; the job needs 3"),
            ("a,b,c,d,e", 3, CheckVerdict::Warn, "2 of 5 voters answer; the job needs 3"),
        ] {
            let voters: VoterList = list.parse().unwrap();
            let absent: Vec<&Endpoint> = voters.endpoints().iter().take(absent).collect();
            let Finding { verdict: found, text, hint, .. } = majority(&voters, &absent);
            assert_eq!((found, text.as_str()), (verdict, count), "{list}");
            let lists_absent = hint.is_some_and(|hint| hint.contains("a:29400, b:29400"));
            assert_eq!(lists_absent, verdict == CheckVerdict::Warn);
        }
    }
}
