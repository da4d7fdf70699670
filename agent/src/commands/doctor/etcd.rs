//! Checks the etcd cluster through which agents find their coordinator: each member, and the record of the job.

use std::time::Duration;

use ragent_base::{net::Endpoint, secret::Credentials, sys::clock};
use ragent_election::claim::{KeyContent, Record, RecordKind};
use ragent_leadership::etcd::{EtcdClient, EtcdError};
use ragent_node::endpoint::LocateError;
use ragent_options::spec::{AskedEtcd, EtcdSpec, NO_NAME};
use ragent_rendezvous::ids::RunId;

use super::{
    Finding, Findings,
    endpoint::{self, Purpose},
};

/// The oldest version of etcd that ragent is tested with: major and minor.
const OLDEST: (u32, u32) = (3, 4);

/// Checks each member and the record. Returns the endpoint of the leader if a leader answers.
pub(super) async fn examine(
    asked: &AskedEtcd,
    credentials: &Credentials,
    findings: &mut Findings,
) -> Option<Endpoint> {
    let AskedEtcd { spec, run_id } = asked;
    let key = run_id.clone().unwrap_or_else(|| RunId::new(NO_NAME));
    let mut answers = 0;
    let mut record = None;
    for member in &spec.members {
        let began = clock::now();
        let spec = EtcdSpec { members: vec![member.clone()], ..spec.clone() };
        let mut client = EtcdClient::of_job(spec, &key, 0);
        match client.probe().await {
            Ok(value) => {
                answers += 1;
                let took = clock::now().saturating_duration_since(began);
                findings.report(judge_version(member, took, client.version().await.ok()));
                record = Some(Ok(value));
            }
            Err(error @ EtcdError::Record { .. }) => {
                answers += 1;
                record = Some(Err(error));
            }
            Err(error) => findings.report(judge_error(error)),
        }
    }
    findings.report(judge_count(answers, spec.members.len()));
    let record = match (run_id, record?) {
        (None, _) => {
            findings.report(Finding::pass("record", "not examined: `--rdzv-id` is not given"));
            return None;
        }
        (Some(_), Err(error)) => {
            findings.report(judge_error(error));
            return None;
        }
        (Some(run_id), Ok(KeyContent { entry, .. })) => {
            let record = entry.map(|entry| entry.record);
            findings.report(judge_record(run_id, record.as_ref()));
            record.filter(|record| record.kind != RecordKind::JobOver)?
        }
    };
    let leader: Endpoint = record.endpoint.parse().ok()?;
    let examined = endpoint::examine(&leader, Purpose::Coordinator, credentials).await;
    if !examined.is_served {
        findings.report(absent(&leader));
        return None;
    }
    examined.findings.into_iter().for_each(|finding| findings.report(finding));
    Some(leader)
}

fn judge_version(member: &Endpoint, took: Duration, version: Option<String>) -> Finding {
    let version_text =
        version.as_ref().map_or_else(String::new, |version| format!(", version {version}"));
    let text = format!(
        "{member} answers after {:.1} ms, and permits reading and writing{version_text}",
        took.as_secs_f64() * 1000.0
    );
    if version.is_some_and(|version| parsed(&version).is_some_and(|parsed| parsed < OLDEST)) {
        let (major, minor) = OLDEST;
        return Finding::warn(
            "member",
            text,
            format!("ragent is tested with etcd {major}.{minor} and later: update etcd"),
        );
    }
    Finding::pass("member", text)
}

/// Returns major and minor of a version such as `3.4.23`.
fn parsed(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Judges an error of one member. It is a warning if the other members may work without that error.
fn judge_error(error: EtcdError) -> Finding {
    let (text, is_permanent) = (error.to_string(), error.is_permanent());
    let check = if matches!(error, EtcdError::Record { .. }) { "record" } else { "member" };
    if is_permanent {
        return Finding::fail(check, text, LocateError::Etcd(error).hint());
    }
    let away = LocateError::EtcdAway { waited: Duration::ZERO, source: error };
    Finding::warn(check, text, away.hint())
}

/// Judges the number of members that answer. etcd confirms each answer by a majority of the cluster.
fn judge_count(answers: usize, all: usize) -> Finding {
    let text = format!("{answers} of {all} members answer");
    if answers == 0 {
        let hint = "check that a majority of etcd's members runs; without it, agents wait for `join_timeout`";
        return Finding::fail("etcd", text, hint);
    }
    if answers < all {
        let hint = "agents use the others; if one more is lost, they may lose etcd, which stops the workers";
        return Finding::warn("etcd", text, hint);
    }
    Finding::pass("etcd", text)
}

fn judge_record(run_id: &RunId, record: Option<&Record>) -> Finding {
    Finding::pass(
        "record",
        match record {
            None => format!("job `{run_id}` has no record: it has not been started, or has ended"),
            Some(Record { kind: RecordKind::JobOver, .. }) => {
                format!("job `{run_id}` has ended; another one of this name can begin")
            }
            Some(Record { endpoint, term, kind: RecordKind::Resigned, .. }) => {
                format!("job `{run_id}`: the leader at {endpoint} has resigned in term {term}")
            }
            Some(Record { endpoint, term, .. }) => {
                format!("job `{run_id}` is led by {endpoint} in term {term}")
            }
        },
    )
}

fn absent(leader: &Endpoint) -> Finding {
    Finding::warn(
        "port",
        format!("no agent answers at {leader}, the endpoint of the leader"),
        "expected for an hour if all agents of the job were killed; otherwise check the firewall, and \
         `--local-addr` of that agent",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// A member is usable from version 3.4 on. A version that cannot be read does not matter.
    #[test]
    fn versions_are_judged() {
        let member: Endpoint = "e0:2379".parse().unwrap();
        for (version, expected) in [
            (Some("3.3.27"), CheckVerdict::Warn),
            (Some("2.3.8"), CheckVerdict::Warn),
            (Some("3.4.0"), CheckVerdict::Pass),
            (Some("3.10.1"), CheckVerdict::Pass),
            (Some("4.0.0-rc.1"), CheckVerdict::Pass),
            (Some("odd"), CheckVerdict::Pass),
            (None, CheckVerdict::Pass),
        ] {
            let version = version.map(str::to_owned);
            let found = judge_version(&member, Duration::from_millis(2), version.clone());
            assert_eq!(found.verdict, expected, "{version:?}");
            assert!(found.text.starts_with("e0:2379 answers after 2.0 ms"), "{}", found.text);
        }
    }

    /// A refusal fails, and an absent member is a warning unless all are absent.
    #[test]
    fn members_are_judged() {
        let member: Endpoint = "e0:2379".parse().unwrap();
        let (cause, message) = ("refused".to_owned(), "permission denied".to_owned());
        let away = judge_error(EtcdError::Connect { member: member.clone(), cause });
        let refused = judge_error(EtcdError::Refused { member, message });
        assert_eq!((away.verdict, refused.verdict), (CheckVerdict::Warn, CheckVerdict::Fail));
        assert!(away.hint.is_some() && refused.hint.is_some());
        let verdicts = [0, 1, 3].map(|answers| judge_count(answers, 3).verdict);
        assert_eq!(verdicts, [CheckVerdict::Fail, CheckVerdict::Warn, CheckVerdict::Pass]);
    }
}
