//! The memory that processes of this machine can still use, within the limits of their cgroups.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{cgroup, proc};

/// Returns the memory that is available to this process, in bytes: that of the machine, or less if
/// its cgroup or one above it has a limit. `None` if the system does not report it.
pub(crate) fn available() -> Option<u64> {
    let machine = available_on_machine(&proc::read("meminfo")?)?;
    let limits = cgroup::own().into_iter().flat_map(|own| available_in(&own));
    Some(limits.fold(machine, u64::min))
}

fn available_on_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns what is left of the limit of a cgroup, and of each one above it, where there is one.
fn available_in(own: &Path) -> Vec<u64> {
    let above: Vec<PathBuf> = own.ancestors().map(Path::to_owned).collect();
    above.iter().filter_map(|path| left(path)).collect()
}

fn left(cgroup: &Path) -> Option<u64> {
    let number = |name: &str| text(&cgroup.join(name))?.trim().parse::<u64>().ok();
    // Without a limit it is `max`.
    let limit = number("memory.max")?;
    // Files that are not in use are dropped when memory is needed.
    let reclaimable = text(&cgroup.join("memory.stat")).and_then(|stat| {
        let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    let used = number("memory.current")?.saturating_sub(reclaimable.unwrap_or(0));
    Some(limit.saturating_sub(used))
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
        assert!(available_in(&own).is_empty());
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 500\ninactive_file 200\nfile 300\n");
        assert_eq!(available_in(&own), [500]);
        write("a/b/memory.max", "50\n");
        assert_eq!(available_in(&own), [0, 500]);
    }
}
