//! Checks for common problems before a job meets them: `ragent doctor`.
//!
//! Each check prints one line as soon as it is complete: the verdict, the finding, and a hint if there is a problem. Modules measure, and
//! pure functions judge the numbers. Every check has a timeout, because a component that does not answer is one of the problems.

pub(super) mod child;
mod endpoint;
#[cfg(feature = "etcd")]
mod etcd;
mod limits;
mod loopback;
mod machine;
mod one_job;
mod peers;
mod program;
mod python;
mod secret;
mod voters;

use std::{fmt, io, num::NonZeroU32, process::ExitCode};

use ragent_base::{
    secret::Credentials,
    sys::{host::ThisHost, stdout},
};
use ragent_options::{
    cli::{DoctorArgs, LaunchArgs},
    spec::{self, AskedEndpoint, AskedEtcd, JobEndpoint, UsageError},
};
use serde::Serialize;
use tokio::{task::spawn_blocking, time::timeout};

use self::endpoint::Purpose;
use super::{
    credentials::{self, AskerCredentials},
    error::{LaunchError, system},
    runtime,
};

/// The verdict of a check.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckVerdict {
    /// There is no problem.
    Pass,
    /// Some jobs will have a problem.
    Warn,
    /// No job will run.
    Fail,
}

impl fmt::Display for CheckVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// The finding of one check.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Finding {
    /// A stable name of the check.
    check: &'static str,
    /// The verdict.
    verdict: CheckVerdict,
    /// The finding, as text.
    text: String,
    /// The remedy, if one is needed.
    hint: Option<String>,
}

impl Finding {
    fn pass(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, verdict: CheckVerdict::Pass, text: text.into(), hint: None }
    }

    fn warn(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), Some(hint.into()));
        Self { check, verdict: CheckVerdict::Warn, text, hint }
    }

    fn fail(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), Some(hint.into()));
        Self { check, verdict: CheckVerdict::Fail, text, hint }
    }
}

/// Runs all checks and prints their findings; the exit code is 1 if any check has failed.
///
/// # Errors
///
/// Returns [`LaunchError`] if the arguments are invalid, the findings cannot be printed, or the
/// runtime cannot be started.
pub fn examine(args: &DoctorArgs) -> Result<ExitCode, LaunchError> {
    let rendezvous = LaunchArgs {
        rdzv_endpoint: args.rdzv_endpoint.clone(),
        rdzv_backend: args.rdzv_backend.clone(),
        rdzv_id: args.rdzv_id.clone(),
        rdzv_conf: args.rdzv_conf.clone(),
        ..LaunchArgs::default()
    };
    let asked = match spec::asked_etcd(&rendezvous, &ThisHost)? {
        Some(etcd) => AskedPlace::Etcd(etcd),
        None => AskedPlace::Endpoint(spec::asked_endpoint(args.rdzv_endpoint.clone(), &ThisHost)?),
    };
    let is_known =
        matches!(asked, AskedPlace::Endpoint(AskedEndpoint::At(_)) | AskedPlace::Etcd(_));
    if args.peers && !is_known {
        let message = "`--peers` needs the endpoint of a running job, but no endpoint is given";
        let hint = "give it as `--rdzv-endpoint HOST:PORT`";
        return Err(UsageError::new(message).with_hint(hint).into());
    }
    if args.standby.is_some() {
        let hint = "start the job with `--standby` and RAGENT_LOG=info: its agent prints the memory of a standby, and warns of each module that standbys leave out";
        return Err(UsageError::new("`ragent doctor` has no `--standby` any more")
            .with_hint(hint)
            .into());
    }
    let job = match &asked {
        AskedPlace::Endpoint(AskedEndpoint::At(job)) => Some(job),
        AskedPlace::Endpoint(AskedEndpoint::Found | AskedEndpoint::NotGiven)
        | AskedPlace::Etcd(_) => None,
    };
    let nodes = spec::asked_nodes(args.nnodes.clone(), &ThisHost)?;
    let credentials = credentials::of_job(&args.auth, job)?;
    let endpoints = match job {
        Some(JobEndpoint::One(endpoint)) => vec![endpoint.clone()],
        Some(JobEndpoint::Voters(voters)) => voters.endpoints().to_vec(),
        None => Vec::new(),
    };
    let mut findings = Findings::new(args.json);
    runtime::block_on(async {
        let workers = workers(args, &mut findings).await?;
        program::examine(&mut findings).await;
        machine::examine(workers, &mut findings).await;
        let credentials = credentials.for_processes_at(&endpoints).await;
        if let (AskedPlace::Endpoint(asked), Some(nodes)) = (&asked, nodes) {
            one_job::judge(asked, nodes).into_iter().for_each(|finding| findings.report(finding));
        }
        over_the_network(asked, &credentials, args.peers, &mut findings).await;
        Ok::<(), LaunchError>(())
    })??;
    findings.end()
}

/// Returns the number of workers for which resources must suffice, if it is given.
async fn workers(
    args: &DoctorArgs,
    findings: &mut Findings,
) -> Result<Option<NonZeroU32>, LaunchError> {
    let typed = args.nproc_per_node.clone();
    // For `gpu` and `auto`, the number of GPUs comes from the driver.
    match within("gpu", || spec::asked_workers(typed, &ThisHost)).await {
        Ok(workers) => Ok(workers?),
        Err(silent) => {
            findings.report(silent);
            Ok(None)
        }
    }
}

/// The place at which the agents of the job find their coordinator.
enum AskedPlace {
    /// An endpoint, several, or none.
    Endpoint(AskedEndpoint),
    /// An etcd cluster.
    Etcd(AskedEtcd),
}

async fn over_the_network(
    asked: AskedPlace,
    credentials: &AskerCredentials,
    wants_peers: bool,
    findings: &mut Findings,
) {
    let has_job = !matches!(asked, AskedPlace::Endpoint(AskedEndpoint::NotGiven));
    findings.report(secret::own(&credentials.own, has_job));
    findings.report(loopback::examine().await);
    findings.report(endpoint::own_name().await);
    let job = match asked {
        AskedPlace::Endpoint(AskedEndpoint::At(job)) => {
            at_endpoint(&job, &credentials.own, findings).await;
            job
        }
        AskedPlace::Endpoint(AskedEndpoint::Found) => return findings.report(multicast()),
        AskedPlace::Endpoint(AskedEndpoint::NotGiven) => return,
        #[cfg(not(feature = "etcd"))]
        AskedPlace::Etcd(asked) => {
            let error = ragent_node::endpoint::LocateError::NoEtcd;
            let text = format!("{error} ({})", asked.spec);
            return findings.report(Finding::fail("etcd", text, error.hint()));
        }
        #[cfg(feature = "etcd")]
        AskedPlace::Etcd(etcd) => match etcd::examine(&etcd, &credentials.own, findings).await {
            Some(leader) => JobEndpoint::One(leader),
            None if wants_peers => {
                let text = "etcd has no leader of the job that could be asked for its nodes";
                let hint = "start the job, and give its name as `--rdzv-id`";
                return findings.report(Finding::fail("peers", text, hint));
            }
            None => return,
        },
    };
    if wants_peers {
        let findings_of_peers = peers::examine(job, credentials).await;
        findings_of_peers.into_iter().for_each(|finding| findings.report(finding));
    }
}

async fn at_endpoint(job: &JobEndpoint, credentials: &Credentials, findings: &mut Findings) {
    match job {
        JobEndpoint::One(endpoint) => {
            let examined = endpoint::examine(endpoint, Purpose::Coordinator, credentials).await;
            examined.findings.into_iter().for_each(|finding| findings.report(finding));
        }
        JobEndpoint::Voters(voters) => voters::examine(voters, credentials, findings).await,
    }
}

/// Runs a check that may wait for a driver or a file system. Returns a failed finding if these do not answer in time.
async fn within<T: Send + 'static>(
    check: &'static str,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Finding> {
    // A thread that hangs in the kernel does not keep the process from ending: see `runtime::block_on`.
    match timeout(limits::CHECK_TIMEOUT, spawn_blocking(look)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Finding::fail(
            check,
            error.to_string(),
            "this is a bug in ragent: report it with this output",
        )),
        Err(_) => {
            let text =
                format!("the check did not finish within {} s", limits::CHECK_TIMEOUT.as_secs());
            let hint = "check the file systems and the driver that it reads";
            Err(Finding::fail(check, text, hint))
        }
    }
}

/// Checks whether agents can find each other by multicast.
fn multicast() -> Finding {
    let interfaces = ThisHost.multicast_interfaces(None);
    let others = interfaces.iter().filter(|interface| !interface.is_loopback);
    let names: Vec<&str> = others.map(|interface| interface.name.as_str()).collect();
    if names.is_empty() {
        let hint = "list hosts of the job in `--discover-hosts`";
        return Finding::fail("endpoint", "no network interface supports multicast", hint);
    }
    Finding::pass(
        "endpoint",
        format!("agents search for each other by multicast on {}", names.join(", ")),
    )
}

/// The findings so far.
struct Findings {
    all: Vec<Finding>,
    /// True if all findings are printed at the end, as JSON; otherwise each is printed at once, as
    /// a line.
    is_json: bool,
    /// The error of the first line that could not be printed, if any.
    printed: io::Result<()>,
}

impl Findings {
    fn new(is_json: bool) -> Self {
        Self { all: Vec::new(), is_json, printed: Ok(()) }
    }

    fn report(&mut self, finding: Finding) {
        if !self.is_json && self.printed.is_ok() {
            self.printed = stdout::print(&ragent_proto::printable(&line(&finding)));
        }
        self.all.push(finding);
    }

    /// Runs a check that may wait for a driver or a file system, and reports its finding.
    async fn report_check(&mut self, check: &'static str, look: fn() -> Finding) {
        let found = within(check, look).await;
        self.report(found.unwrap_or_else(|silent| silent));
    }

    fn end(self) -> Result<ExitCode, LaunchError> {
        let printed = if self.is_json { stdout::print(&json(&self.all)) } else { self.printed };
        printed.map_err(system("print the findings"))?;
        let is_well = self.all.iter().all(|finding| finding.verdict != CheckVerdict::Fail);
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn line(finding: &Finding) -> String {
    let Finding { check, verdict, text, hint } = finding;
    let hint = hint.as_ref().map_or_else(String::new, |hint| format!(" -- {hint}"));
    format!("{verdict}  {check:<12}  {text}{hint}\n")
}

fn json(findings: &[Finding]) -> String {
    let worst = findings.iter().map(|finding| finding.verdict).max();
    let all = serde_json::json!({ "verdict": worst, "checks": findings });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each finding is a line with its hint; the JSON has the worst verdict in addition.
    #[test]
    fn findings_are_lines() {
        let findings = [Finding::pass("one", "all well"), Finding::fail("two", "broken", "fix it")];
        let lines = findings.each_ref().map(line);
        assert_eq!(
            lines,
            ["pass  one           all well\n", "FAIL  two           broken -- fix it\n"]
        );
        let json: serde_json::Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["checks"][1]["hint"], "fix it");
    }
}
