//! The memory that processes of this machine can still use, within the limits of their cgroups.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{cgroup, proc};

/// Returns the memory that is available to this process, in bytes: that of the machine, or less if
/// its cgroup or one above it has a limit. `None` if the system does not report it.
pub fn available() -> Option<u64> {
    let machine = of_machine(&proc::read("meminfo")?, "MemAvailable:")?;
    let limits = cgroup::own().into_iter().flat_map(|own| of_each(&own, left));
    // The memory controller belongs to only one of the two versions.
    let limits_v1 = cgroup::own_v1("memory").into_iter().flat_map(|own| of_each(&own, left_v1));
    Some(limits.chain(limits_v1).fold(machine, u64::min))
}

/// Returns the memory that this process can use at most, in bytes: that of the machine, or the lowest limit of its
/// cgroup and those above it. `None` if the system does not report it.
pub fn total() -> Option<u64> {
    let machine = of_machine(&proc::read("meminfo")?, "MemTotal:")?;
    let limits = cgroup::own().into_iter().flat_map(|own| of_each(&own, limit));
    let limits_v1 = cgroup::own_v1("memory").into_iter().flat_map(|own| of_each(&own, limit_v1));
    Some(limits.chain(limits_v1).fold(machine, u64::min))
}

/// The numbers of processes that the kernel has killed for lack of memory, as far as the system reports them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OomKills {
    /// Those of the own cgroup, and with version 2 of those below it.
    pub cgroup: Option<u64>,
    /// Those of the machine.
    pub machine: Option<u64>,
}

impl OomKills {
    /// Reads the numbers.
    pub fn read() -> Self {
        let of_cgroup = |own: PathBuf, file| counted(&text(&own.join(file))?, "oom_kill");
        let unified = || of_cgroup(cgroup::own()?, "memory.events");
        let v1 = || of_cgroup(cgroup::own_v1("memory")?, "memory.oom_control");
        let machine = proc::read("vmstat").and_then(|text| counted(&text, "oom_kill"));
        Self { cgroup: unified().or_else(v1), machine }
    }
}

/// Returns the number of processes that the kernel has killed for lack of memory: those of the own cgroup and, with
/// version 2, of those below it, or else those of the machine. `None` if the system does not report it.
pub fn oom_kills() -> Option<u64> {
    let OomKills { cgroup, machine } = OomKills::read();
    cgroup.or(machine)
}

fn of_machine(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns a number of a cgroup and of each one above it that has it.
fn of_each(own: &Path, number: fn(&Path) -> Option<u64>) -> Vec<u64> {
    own.ancestors().filter_map(number).collect()
}

/// Returns the limit of a cgroup of version 2.
fn limit(cgroup: &Path) -> Option<u64> {
    // Without a limit it is `max`.
    number(cgroup, "memory.max")
}

/// Returns the memory that is left in a cgroup of version 2.
fn left(cgroup: &Path) -> Option<u64> {
    let limit = limit(cgroup)?;
    let used = number(cgroup, "memory.current")?;
    // Files that are not in use are dropped when memory is needed.
    let reclaimable = statistic(cgroup, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the limit of a cgroup of version 1.
fn limit_v1(cgroup: &Path) -> Option<u64> {
    // Without a limit it is the largest number of pages.
    let limit = number(cgroup, "memory.limit_in_bytes")?;
    // The lowest limit of this cgroup and of all above it, including those outside of a container.
    let lowest = statistic(cgroup, "hierarchical_memory_limit").unwrap_or(u64::MAX);
    Some(limit.min(lowest))
}

/// Returns the memory that is left in a cgroup of version 1.
fn left_v1(cgroup: &Path) -> Option<u64> {
    let limit = limit_v1(cgroup)?;
    let used = number(cgroup, "memory.usage_in_bytes")?;
    // The usage includes the cgroups below, and so does `total_inactive_file`.
    let reclaimable = statistic(cgroup, "total_inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the number in a file of a cgroup.
fn number(cgroup: &Path, file: &str) -> Option<u64> {
    text(&cgroup.join(file))?.trim().parse().ok()
}

/// Returns a number of the file `memory.stat` of a cgroup.
fn statistic(cgroup: &Path, name: &str) -> Option<u64> {
    counted(&text(&cgroup.join("memory.stat"))?, name)
}

/// Returns the number in the line `NAME NUMBER` of a text.
fn counted(text: &str, name: &str) -> Option<u64> {
    let mut fields = text.lines().filter_map(|line| line.split_once(' '));
    fields.find(|(field, _)| *field == name)?.1.trim().parse().ok()
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The available memory of this machine is plausible, and `MemAvailable` is parsed.
    #[test]
    fn own_memory() {
        let available = available().unwrap();
        assert!((1 << 20..1 << 50).contains(&available), "{available}");
        let of_text = |meminfo| of_machine(meminfo, "MemAvailable:");
        assert_eq!(of_text("MemFree: 1 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        assert_eq!(of_text("MemFree: 1 kB\n"), None);
        assert!(total().unwrap() >= available);
    }

    /// The limits of a cgroup and of those above it count, less what can be reclaimed.
    #[test]
    fn limits_of_cgroups() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("a/b");
        fs::create_dir_all(&own).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "100\n");
        assert!(of_each(&own, left).is_empty());
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 500\ninactive_file 200\nfile 300\n");
        assert_eq!(of_each(&own, left), [500]);
        write("a/b/memory.max", "50\n");
        assert_eq!(of_each(&own, left), [0, 500]);
        assert_eq!(of_each(&own, limit), [50, 1000]);
    }

    /// The same holds for cgroup v1, where a limit may be set outside of the container.
    #[test]
    fn limits_of_cgroups_v1() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("job_1/step_0");
        fs::create_dir_all(&own).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let unlimited = 9_223_372_036_854_771_712;
        assert!(of_each(&own, left_v1).is_empty());
        write("job_1/step_0/memory.limit_in_bytes", &format!("{unlimited}\n"));
        write("job_1/step_0/memory.usage_in_bytes", "100\n");
        assert_eq!(of_each(&own, left_v1), [unlimited - 100]);
        write("job_1/memory.limit_in_bytes", "1000\n");
        write("job_1/memory.usage_in_bytes", "700\n");
        let stat = "cache 300\ninactive_file 50\nhierarchical_memory_limit 1000\n\
                    total_cache 400\ntotal_inactive_file 200\n";
        write("job_1/memory.stat", stat);
        assert_eq!(of_each(&own, left_v1), [unlimited - 100, 500]);
        // The limit of a cgroup above those that are visible.
        write("job_1/memory.stat", "total_inactive_file 200\nhierarchical_memory_limit 600\n");
        assert_eq!(of_each(&own, left_v1), [unlimited - 100, 100]);
        write("job_1/step_0/memory.limit_in_bytes", "50\n");
        assert_eq!(of_each(&own, left_v1), [0, 100]);
        assert_eq!(of_each(&own, limit_v1), [50, 600]);
        // The files of version 2 have other names.
        assert!(of_each(&own, left).is_empty());
    }

    /// The number of killed processes is that of the right line, in the files of both versions and of the machine.
    #[test]
    fn kills_are_counted() {
        let events = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(counted(events, "oom_kill"), Some(1));
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", "oom_kill"), Some(4));
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\n", "oom_kill"), None);
        assert!(oom_kills().is_some());
    }
}
