//! Reads `/proc`. Reads are bounded, and names of processes need not be UTF-8.
//!
//! A file that is larger than the limit counts as unreadable: the last number of a list that is cut
//! off would be that of another process.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::{fd::RawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use crate::sys::limits;

/// The fields of `/proc/PID/stat` that are used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stat {
    /// The state of its main thread, the letter of `ps`.
    pub state: char,
    /// True if the process has ended: it is a zombie, or about to disappear.
    pub(crate) has_ended: bool,
    /// The process id of its parent.
    pub(crate) parent: u32,
    /// The processor time of the process and of its reaped children, in clock ticks.
    pub cpu_ticks: u64,
    /// The start time, in clock ticks since boot.
    pub(crate) start_time: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name may contain any character, and ends at the last parenthesis. proc(5) numbers the
        // fields from 1; the first one after the name is number 3.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let state = fields.first()?.chars().next()?;
        Some(Self {
            state,
            has_ended: ['Z', 'X'].contains(&state),
            parent: u32::try_from(number(4)?).ok()?,
            cpu_ticks: (14..=17).filter_map(number).fold(0, u64::saturating_add),
            start_time: number(22)?,
        })
    }
}

/// Returns the state of a process; `None` if there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    Stat::parse(&read(&format!("{pid}/stat"))?)
}

/// Returns the start time of a process, which distinguishes it from another one with the same
/// number; `None` if there is no such process, or it has ended.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid).filter(|stat| !stat.has_ended).map(|stat| stat.start_time)
}

/// Returns the children of a process, including ended ones that are not reaped.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = numbers(&format!("{pid}/task")).into_iter();
    let lists = threads.filter_map(|thread| read(&format!("{pid}/task/{thread}/children")));
    let lists: Vec<String> = lists.collect();
    let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Checks that the kernel lists child processes.
///
/// # Errors
///
/// Returns an error if the kernel was built without `CONFIG_PROC_CHILDREN`.
pub fn check_children() -> io::Result<()> {
    let own = std::process::id();
    bytes(&format!("{own}/task/{own}/children")).map(drop)
}

/// Returns true if `variable` is set in the initial environment of a process.
pub(crate) fn has_variable(pid: u32, variable: &str) -> bool {
    let environment = read(&format!("{pid}/environ")).unwrap_or_default();
    let mut values =
        environment.split('\0').filter_map(|pair| pair.strip_prefix(variable)?.strip_prefix('='));
    values.next().is_some()
}

/// Returns the value of the line `NAME: VALUE` of a file, such as `self/status`.
pub fn field(file: &str, name: &str) -> Option<String> {
    let text = read(file)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns true if a process runs this program with these arguments. `program` is a path without links. It may be a script that becomes an
/// interpreter, as the shims of pyenv are: then the process must be a Python with these arguments.
pub fn runs(pid: u32, program: &Path, args: &[OsString]) -> bool {
    let Some(exe) = link(&format!("{pid}/exe")) else { return false };
    if exe == program {
        return true;
    }
    let is_python = exe.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    is_python && {
        let line = bytes(&format!("{pid}/cmdline")).unwrap_or_default();
        // The first word is the name of the program. Each word ends with a zero.
        let words = line.split(|byte| *byte == 0).skip(1);
        words.eq(args.iter().map(|word| word.as_bytes()).chain([&b""[..]]))
    }
}

/// Returns the names in a folder that are numbers: those of processes, threads or descriptors.
pub fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(path(folder)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the target of a link.
pub fn link(name: &str) -> Option<PathBuf> {
    fs::read_link(path(name)).ok()
}

/// Returns the path of an open file of this process.
pub(crate) fn descriptor(fd: RawFd) -> PathBuf {
    path(&format!("self/fd/{fd}"))
}

/// Returns the text of a file; `None` if it cannot be read or is larger than the limit.
pub fn read(name: &str) -> Option<String> {
    bytes(name).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn bytes(name: &str) -> io::Result<Vec<u8>> {
    // Most files fit into one read, and do not change during it.
    let mut bytes = Vec::with_capacity(limits::PROC_READ);
    File::open(path(name))?.take(limits::MAX_PROC_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limits::MAX_PROC_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc").join(name)
}

/// Returns the number of open files of this process. Since Linux 6.2, the size of the folder is their number; listing 10,000
/// of them takes milliseconds.
pub fn open_files() -> usize {
    let size = fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len());
    match usize::try_from(size) {
        Ok(0) | Err(_) => numbers("self/fd").len(),
        Ok(count) => count,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "(a) 1 (b)) S 7 4 4 0 -1 4194560 1 2 3 4 100 20 3 -4 20 0 1 0 8812 5 6";

    /// Fields are counted from the last parenthesis; a negative time is ignored.
    #[test]
    fn fields_of_stat() {
        let expected =
            Stat { state: 'S', has_ended: false, parent: 7, cpu_ticks: 123, start_time: 8812 };
        assert_eq!(Stat::parse(STAT), Some(expected));
        let zombie = Stat::parse(&STAT.replace(" S ", " Z "));
        assert_eq!(zombie, Some(Stat { state: 'Z', has_ended: true, ..expected }));
        assert_eq!(Stat::parse("4 (a) S 7 4"), None);
    }

    /// The environment and the files of this process can be read; for a process that does not exist,
    /// reads return nothing.
    #[test]
    fn own_process() {
        let own = std::process::id();
        let parent = nix::unistd::getppid().as_raw().cast_unsigned();
        assert!(stat(own).is_some_and(|stat| !stat.has_ended && stat.parent == parent));
        assert!(start_time(own) >= start_time(parent));
        assert!(has_variable(own, "PATH") && !has_variable(own, "PAT"));
        assert!(numbers("").contains(&own) && numbers("self/fd").contains(&2));
        assert_eq!(field("self/status", "Pid"), Some(own.to_string()));
        check_children().unwrap();
        let nobody = u32::MAX;
        assert_eq!((stat(nobody), children(nobody), numbers("no")), (None, vec![], vec![]));
    }

    /// The name of a process need not be UTF-8: the system cuts it after 15 bytes.
    #[test]
    fn names_need_not_be_text() {
        let start = std::thread::spawn(|| {
            let task = format!("self/task/{}", nix::unistd::gettid());
            fs::write(path(&format!("{task}/comm")), [0xc3]).unwrap();
            read(&format!("{task}/stat")).and_then(|text| Stat::parse(&text))
        });
        assert_eq!(start.join().unwrap().map(|stat| stat.has_ended), Some(false));
    }

    proptest! {
        /// Every text is either parsed or refused.
        #[test]
        fn never_panics(text in "[(a) 0-9Z-]{0,80}") {
            let _ = Stat::parse(&text);
        }
    }
}
