//! Causes many takeovers in succession, and measures each until the job runs again: `make takeovers`.
//!
//! Voters elect the coordinator, or the agents choose it through etcd.
//!
//! `TAKEOVERS` is the number of takeovers. `TAKEOVERS_FILE` is a file to which each result is appended. A run continues after the results
//! that are already there.

use std::{
    fmt,
    fs::{self, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::Write,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};

use crate::{
    elected_job::{ElectedJob, Round, WITNESS},
    support::{is_there, let_pass, may_make_networks},
};

/// The number of takeovers without `TAKEOVERS`.
const DEFAULT: usize = 20;

/// The number of takeovers in one job. Two of them are silent. Three disconnections would quarantine a node.
const PER_JOB: usize = 10;

/// One out of this number of takeovers is caused by a fault that no message reports.
const SILENT_EVERY: usize = 5;

/// The range of pauses before faults. It is longer than the interval of renewals, so that faults occur at any time between two of them.
const PAUSE: Duration = Duration::from_millis(400);

/// A fault of the leader.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    /// The agent is killed. Its keeper reports that to the voters.
    Killed,
    /// The link of the host is taken down.
    Silent,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "killed",
            Self::Silent => "silent",
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let faults = [Self::Killed, Self::Silent];
        faults
            .into_iter()
            .find(|fault| fault.to_string() == text)
            .ok_or_else(|| format!("`{text}` is not a fault"))
    }
}

/// The result of a takeover.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Takeover {
    fault: Fault,
    /// The time from the fault until the last worker of the next round has begun.
    seconds: f64,
    /// The number of elections since the takeover before.
    elections: usize,
    /// The number of broken rules.
    violations: usize,
}

/// The first line of a file of results.
const HEADER: &str = "fault,seconds,elections,violations";

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, seconds, elections, violations } = self;
        write!(f, "{fault},{seconds:.3},{elections},{violations}")
    }
}

impl FromStr for Takeover {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let parse = || {
            let [fault, seconds, elections, violations] = line.split(',').collect::<Vec<_>>()[..]
            else {
                return None;
            };
            Some(Self {
                fault: fault.parse().ok()?,
                seconds: seconds.parse().ok()?,
                elections: elections.parse().ok()?,
                violations: violations.parse().ok()?,
            })
        };
        parse().ok_or_else(|| format!("`{line}` is not a result"))
    }
}

/// The results, and the file that has them.
struct Results {
    takeovers: Vec<Takeover>,
    file: Option<PathBuf>,
}

impl Results {
    fn read(file: Option<PathBuf>) -> Self {
        let text = file.as_deref().map(|file| fs::read_to_string(file).unwrap_or_default());
        let text = text.unwrap_or_default();
        let lines = text.lines().filter(|line| *line != HEADER);
        let takeovers = lines.map(|line| line.parse().expect("the file has results")).collect();
        Self { takeovers, file }
    }

    #[expect(clippy::print_stderr, reason = "a long run reports its progress")]
    fn add(&mut self, takeover: Takeover) {
        self.takeovers.push(takeover);
        eprintln!("takeover {}: {takeover}", self.takeovers.len());
        if let Some(file) = &self.file {
            append(file, &takeover.to_string()).expect("the file of results can be written");
        }
    }

    /// The summary by fault: the number of takeovers, the median and the longest time, and the number of broken rules.
    fn summary(&self) -> String {
        let summary = |fault| {
            let of_fault = self.takeovers.iter().filter(|takeover| takeover.fault == fault);
            let (mut seconds, mut violations) = (Vec::new(), 0);
            for takeover in of_fault {
                seconds.push(takeover.seconds);
                violations += takeover.violations;
            }
            seconds.sort_by(f64::total_cmp);
            let median = seconds.get(seconds.len() / 2).copied().unwrap_or_default();
            let worst = seconds.last().copied().unwrap_or_default();
            format!(
                "{fault}: {} takeovers, median {median:.2} s, worst {worst:.2} s, {violations} broken rules",
                seconds.len()
            )
        };
        [Fault::Killed, Fault::Silent].map(summary).join("\n")
    }
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "{HEADER}")?;
    }
    writeln!(file, "{line}")
}

/// Causes a takeover, and waits until the job runs on all nodes again.
fn take_over(job: &mut ElectedJob, fault: Fault) -> Takeover {
    let elections = job.count_elections();
    let leader = job.leader(WITNESS);
    // With etcd, any node may lead.
    let witness = if leader.node == WITNESS { WITNESS - 1 } else { WITNESS };
    let begin = clock::boot_time();
    match fault {
        Fault::Killed => job.kill_agent(leader.node),
        Fault::Silent => job.network.cut(leader.node),
    }
    job.next_leader(witness, leader);
    let round = job.runs_on(&ElectedJob::without(&[leader.node]));
    match fault {
        Fault::Killed => job.replace_agent(leader.node),
        Fault::Silent => job.network.heal(leader.node),
    }
    job.runs_on(&ElectedJob::all());
    Takeover {
        fault,
        seconds: round.complete.saturating_sub(begin).as_secs_f64(),
        elections: job.count_elections() - elections,
        violations: job.violations().len(),
    }
}

/// Workers of two rounds never run at the same time when voters elect another leader.
#[test]
#[ignore = "takes up to hours; `make takeovers` runs it"]
fn by_voters() {
    if may_make_networks() {
        no_takeover_breaks_a_rule(|| ElectedJob::start("takeovers"));
    }
}

/// The same, when another agent becomes the leader through etcd.
#[test]
#[ignore = "takes up to hours; `make takeovers BY=etcd` runs it"]
fn by_etcd() {
    if may_make_networks() && is_there("etcd") {
        no_takeover_breaks_a_rule(|| ElectedJob::start_with_etcd("etcd"));
    }
}

#[expect(clippy::print_stderr, reason = "its results are printed")]
fn no_takeover_breaks_a_rule(start: impl Fn() -> (ElectedJob, Round)) {
    let wanted = ThisHost.env("TAKEOVERS").map(|number| {
        number.to_str().and_then(|number| number.parse().ok()).expect("`TAKEOVERS` is a number")
    });
    let wanted = wanted.unwrap_or(DEFAULT);
    let mut results = Results::read(ThisHost.env("TAKEOVERS_FILE").map(PathBuf::from));
    while results.takeovers.len() < wanted {
        let (mut job, _) = start();
        for _ in 0..PER_JOB {
            let number = results.takeovers.len() + 1;
            if number > wanted {
                break;
            }
            let fault =
                if number.is_multiple_of(SILENT_EVERY) { Fault::Silent } else { Fault::Killed };
            let_pass(PAUSE.mul_f64(RandomState::new().hash_one(number) as f64 / u64::MAX as f64));
            let takeover = take_over(&mut job, fault);
            results.add(takeover);
            if takeover.violations > 0 {
                eprintln!("{}\n{}", job.violations().join("\n"), job.log());
                // The next job begins without them.
                break;
            }
        }
    }
    eprintln!("{}", results.summary());
    let broken: usize = results.takeovers.iter().map(|takeover| takeover.violations).sum();
    assert_eq!(broken, 0, "rules were broken");
}

/// A file of results is read as it was written.
#[test]
fn results_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results");
    let mut results = Results::read(Some(file.clone()));
    for seconds in [2.5, 0.5, 1.5] {
        results.add(Takeover { fault: Fault::Killed, seconds, elections: 1, violations: 2 });
    }
    results.add(Takeover { fault: Fault::Silent, seconds: 3.25, elections: 1, violations: 0 });
    let read = Results::read(Some(file));
    assert_eq!(read.takeovers, results.takeovers);
    assert_eq!(
        read.summary(),
        "killed: 3 takeovers, median 1.50 s, worst 2.50 s, 6 broken rules\n\
         silent: 1 takeovers, median 3.25 s, worst 3.25 s, 0 broken rules"
    );
}
