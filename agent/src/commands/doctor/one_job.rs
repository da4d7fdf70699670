//! Judges whether a second job of the same name could begin, by the endpoint and the number of nodes.

use ragent_options::spec::{AskedEndpoint, JobEndpoint};
use ragent_rendezvous::settings::NodeRange;

use super::Finding;

/// The name of the check.
const CHECK: &str = "one_job";

/// Judges the command of a job. Returns `None` if its agents meet on this machine, or at an unknown place.
pub(super) fn judge(asked: &AskedEndpoint, nodes: NodeRange) -> Option<Finding> {
    let (place, host) = match asked {
        AskedEndpoint::At(JobEndpoint::One(endpoint)) if endpoint.is_loopback() => return None,
        AskedEndpoint::At(JobEndpoint::One(endpoint)) => {
            (format!("`--rdzv-endpoint {endpoint}` is one host"), endpoint.host.as_str())
        }
        AskedEndpoint::Found => ("with `auto` no host is listed".to_owned(), "a host"),
        AskedEndpoint::At(JobEndpoint::Voters(voters)) => {
            let (all, majority) = (voters.endpoints().len(), voters.count().majority());
            return Some(Finding::pass(
                CHECK,
                format!(
                    "no second job of this name begins while {majority} of {all} hosts keep their state"
                ),
            ));
        }
        AskedEndpoint::NotGiven => return None,
    };
    let (min, max) = (nodes.min(), nodes.max());
    if max < 2 * min {
        return Some(Finding::pass(
            CHECK,
            format!("{max} nodes cannot form two jobs of at least {min} nodes each"),
        ));
    }
    Some(Finding::warn(
        CHECK,
        format!(
            "{place}, and {max} nodes can form two jobs of at least {min}: if {host} loses its state and is separated from the \
             first job, a second job can begin there"
        ),
        format!(
            "list three hosts, as in `--rdzv-endpoint node0,node1,node2`, or let MIN be more than half of MAX: `--nnodes {}:{max}`",
            max / 2 + 1
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// One endpoint is a risk if there are enough nodes for two jobs. Three endpoints are safe.
    #[test]
    fn second_jobs_are_judged() {
        let one = |text: &str| AskedEndpoint::At(JobEndpoint::One(text.parse().unwrap()));
        let voters = || AskedEndpoint::At(JobEndpoint::Voters("a,b,c".parse().unwrap()));
        for (asked, nodes, verdict) in [
            (one("a:1"), "2:4", Some(CheckVerdict::Warn)),
            (one("a:1"), "2:3", Some(CheckVerdict::Pass)),
            (one("a:1"), "4", Some(CheckVerdict::Pass)),
            (one("127.0.0.1:1"), "1:4", None),
            (AskedEndpoint::Found, "1:2", Some(CheckVerdict::Warn)),
            (voters(), "1:8", Some(CheckVerdict::Pass)),
            (AskedEndpoint::NotGiven, "1:8", None),
        ] {
            let found = judge(&asked, nodes.parse().unwrap());
            assert_eq!(found.as_ref().map(|found| found.verdict), verdict, "{asked:?} {nodes}");
            let hint = found.and_then(|found| found.hint);
            assert_eq!(hint.is_some(), verdict == Some(CheckVerdict::Warn));
        }
    }
}
