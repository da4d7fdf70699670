//! Whether this process gets the processor in time: an agent that does not run cannot renew its lease.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use super::ThisHost;
use crate::sys::{cgroup, proc, unix};

/// The nice value of an agent, where the system allows it: about ten times the weight of a worker.
const RAISED: i32 = -10;
/// The nice value above which busy programs can keep an agent from running for seconds.
const NICE_MAX: i32 = 10;
/// The part of a processor below which an agent may wait for seconds until it runs again.
const QUOTA_MIN: f64 = 0.25;

impl ThisHost {
    /// Raises the priority of the calling thread and of its later children, where the system allows it. Returns the
    /// nice value before, which workers get back.
    pub fn raise_priority(self) -> i32 {
        let given = unix::nice();
        if given > RAISED {
            // Only root and processes with CAP_SYS_NICE, or a limit that allows it, may do so.
            let _ = unix::set_nice(RAISED);
        }
        given
    }

    /// Returns what may keep this process from running for seconds, with a hint.
    pub fn starvation(self) -> Option<(String, &'static str)> {
        starvation(unix::nice(), quota())
    }

    /// Describes the load of this machine.
    pub fn load(self) -> Option<String> {
        let load: f64 = proc::read("loadavg")?.split(' ').next()?.parse().ok()?;
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Some(format!("load {load:.1} on {processors} processors"))
    }
}

fn starvation(nice: i32, quota: Option<f64>) -> Option<(String, &'static str)> {
    if nice > NICE_MAX {
        let what = format!("this agent runs with the nice value {nice}");
        return Some((what, "start it with a nice value of at most 10"));
    }
    let quota = quota.filter(|quota| *quota < QUOTA_MIN)?;
    let what = format!("its cgroup limits this agent to {quota:.2} of a processor");
    Some((what, "raise the limit to at least a quarter of a processor (`cpu.max`, `CPUQuota=`)"))
}

/// Returns the processors that the cgroups of this process let it use; `None` if there is no limit.
fn quota() -> Option<f64> {
    let unified = cgroup::own().and_then(|own| lowest(&own, &["cpu.max"]));
    let v1 = || lowest(&cgroup::own_v1("cpu")?, &["cpu.cfs_quota_us", "cpu.cfs_period_us"]);
    unified.or_else(v1)
}

/// Returns the lowest limit of a cgroup and those above it.
fn lowest(own: &Path, names: &[&str]) -> Option<f64> {
    let read = |folder: &Path| -> Option<String> {
        let path = |name: &&str| -> PathBuf { folder.join(name) };
        let texts: Option<Vec<String>> =
            names.iter().map(|name| fs::read_to_string(path(name)).ok()).collect();
        Some(texts?.join(" "))
    };
    own.ancestors().filter_map(read).filter_map(|text| parse(&text)).min_by(f64::total_cmp)
}

/// Parses `QUOTA PERIOD`; no limit is `max` or -1.
fn parse(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let mut next = || words.next()?.parse::<f64>().ok();
    let (quota, period) = (next()?, next()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits of both versions of cgroups are read, and the lowest of a cgroup and those above it counts.
    #[test]
    fn limits_of_cgroups_are_read() {
        for (text, quota) in [
            ("max 100000\n", None),
            ("5000 100000\n", Some(0.05)),
            ("-1\n 100000\n", None),
            ("200000\n 100000\n", Some(2.0)),
            ("1 0", None),
            ("", None),
        ] {
            assert_eq!(parse(text), quota, "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("a/b");
        fs::create_dir_all(&own).unwrap();
        // The controller may not be enabled in the innermost one.
        for (path, text) in [("a", "max 100000\n"), ("", "20000 100000\n")] {
            fs::write(folder.path().join(path).join("cpu.max"), text).unwrap();
        }
        assert_eq!(lowest(&own, &["cpu.max"]), Some(0.2));
        assert_eq!(lowest(&own, &["cpu.cfs_quota_us"]), None);
    }

    /// An agent that may be kept from running is warned of, with what to do.
    #[test]
    fn starvation_is_explained() {
        assert_eq!(starvation(10, None), None);
        assert_eq!(starvation(-10, Some(0.25)), None);
        let (what, hint) = starvation(19, Some(0.05)).unwrap();
        assert!(what.contains("nice value 19") && hint.contains("at most 10"), "{what} {hint}");
        let (what, hint) = starvation(0, Some(0.05)).unwrap();
        assert!(
            what.contains("0.05 of a processor") && hint.contains("CPUQuota="),
            "{what} {hint}"
        );
    }
}
