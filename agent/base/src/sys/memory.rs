//! The memory that processes of this machine can still use, within the limits of their cgroups.

use std::{fs, path::Path};

use super::{cgroup, proc};

/// Returns the memory that is available to this process, in bytes: that of the machine, or less if
/// its cgroup or one above it has a limit. `None` if the system does not report it.
pub fn available() -> Option<u64> {
    let machine = available_on_machine(&proc::read("meminfo")?)?;
    let limits = cgroup::own().into_iter().flat_map(|own| available_in(&own, left));
    // The memory controller belongs to only one of the two versions.
    let limits_v1 =
        cgroup::own_v1("memory").into_iter().flat_map(|own| available_in(&own, left_v1));
    Some(limits.chain(limits_v1).fold(machine, u64::min))
}

fn available_on_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns what `left` returns for a cgroup and for each one above it, if that has a limit.
fn available_in(own: &Path, left: fn(&Path) -> Option<u64>) -> Vec<u64> {
    own.ancestors().filter_map(left).collect()
}

/// Returns the memory that is left in a cgroup of version 2.
fn left(cgroup: &Path) -> Option<u64> {
    // Without a limit it is `max`.
    let limit = number(cgroup, "memory.max")?;
    let used = number(cgroup, "memory.current")?;
    // Files that are not in use are dropped when memory is needed.
    let reclaimable = statistic(cgroup, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the memory that is left in a cgroup of version 1.
fn left_v1(cgroup: &Path) -> Option<u64> {
    // Without a limit it is the largest number of pages.
    let limit = number(cgroup, "memory.limit_in_bytes")?;
    // The lowest limit of this cgroup and of all above it, including those outside of a container.
    let lowest = statistic(cgroup, "hierarchical_memory_limit").unwrap_or(u64::MAX);
    let used = number(cgroup, "memory.usage_in_bytes")?;
    // The usage includes the cgroups below, and so does `total_inactive_file`.
    let reclaimable = statistic(cgroup, "total_inactive_file").unwrap_or(0);
    Some(limit.min(lowest).saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the number in a file of a cgroup.
fn number(cgroup: &Path, file: &str) -> Option<u64> {
    text(&cgroup.join(file))?.trim().parse().ok()
}

/// Returns a number of the file `memory.stat` of a cgroup.
fn statistic(cgroup: &Path, name: &str) -> Option<u64> {
    let stat = text(&cgroup.join("memory.stat"))?;
    let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
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
        assert_eq!(available_on_machine("MemFree: 1 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        assert_eq!(available_on_machine("MemFree: 1 kB\n"), None);
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
        assert!(available_in(&own, left).is_empty());
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 500\ninactive_file 200\nfile 300\n");
        assert_eq!(available_in(&own, left), [500]);
        write("a/b/memory.max", "50\n");
        assert_eq!(available_in(&own, left), [0, 500]);
    }

    /// The same holds for cgroup v1, where a limit may be set outside of the container.
    #[test]
    fn limits_of_cgroups_v1() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("job_1/step_0");
        fs::create_dir_all(&own).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let unlimited = 9_223_372_036_854_771_712;
        assert!(available_in(&own, left_v1).is_empty());
        write("job_1/step_0/memory.limit_in_bytes", &format!("{unlimited}\n"));
        write("job_1/step_0/memory.usage_in_bytes", "100\n");
        assert_eq!(available_in(&own, left_v1), [unlimited - 100]);
        write("job_1/memory.limit_in_bytes", "1000\n");
        write("job_1/memory.usage_in_bytes", "700\n");
        let stat = "cache 300\ninactive_file 50\nhierarchical_memory_limit 1000\n\
                    total_cache 400\ntotal_inactive_file 200\n";
        write("job_1/memory.stat", stat);
        assert_eq!(available_in(&own, left_v1), [unlimited - 100, 500]);
        // The limit of a cgroup above those that are visible.
        write("job_1/memory.stat", "total_inactive_file 200\nhierarchical_memory_limit 600\n");
        assert_eq!(available_in(&own, left_v1), [unlimited - 100, 100]);
        write("job_1/step_0/memory.limit_in_bytes", "50\n");
        assert_eq!(available_in(&own, left_v1), [0, 100]);
        // The files of version 2 have other names.
        assert!(available_in(&own, left).is_empty());
    }
}
