//! Finds the workers that have a connection to the store of the round, by their sockets.

use std::collections::{BTreeMap, BTreeSet};

use nix::unistd::Pid;
use ragent_base::sys::{proc, tree};
use ragent_rendezvous::ids::LocalRank;

use crate::limits;

/// Returns for each worker true if it, or a process below it, is connected to this port of another process. Workers
/// whose sockets cannot be read are left out, and those without a known connection if they have too many processes or
/// open files. Blocks.
pub(super) fn connected(
    workers: &BTreeMap<LocalRank, u32>,
    port: u16,
) -> BTreeMap<LocalRank, bool> {
    connected_within(workers, port, limits::FILES_LOOKED_AT)
}

fn connected_within(
    workers: &BTreeMap<LocalRank, u32>,
    port: u16,
    files_max: usize,
) -> BTreeMap<LocalRank, bool> {
    let mut connected = BTreeMap::new();
    // All workers of a node have the same network.
    let Some(sockets) = workers.values().find_map(|pid| connections(*pid, port)) else {
        return connected;
    };
    for (local_rank, worker) in workers {
        let below = tree::descendants_of(Pid::from_raw(worker.cast_signed()));
        let mut is_cut = below.len() > limits::STACK_PROCESSES;
        let below = below.into_iter().take(limits::STACK_PROCESSES);
        let below = below.map(|pid| pid.as_raw().cast_unsigned());
        let files = [*worker].into_iter().chain(below).map(|pid| {
            let mut numbers = proc::numbers(&format!("{pid}/fd"));
            is_cut |= numbers.len() > files_max;
            numbers.truncate(files_max);
            (pid, numbers)
        });
        let files: Vec<_> = files.collect();
        if files.iter().any(|(_, numbers)| !numbers.is_empty()) {
            let is_connected = files.iter().any(|(pid, numbers)| {
                let links = numbers.iter().filter_map(|fd| proc::link(&format!("{pid}/fd/{fd}")));
                let mut inodes =
                    links.filter_map(|link| inode_of(link.to_str().unwrap_or_default()));
                inodes.any(|inode| sockets.contains(&inode))
            });
            if is_connected || !is_cut {
                connected.insert(*local_rank, is_connected);
            }
        }
    }
    connected
}

/// Returns the inode of a link such as `socket:[4242]`.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the inodes of the sockets in the network of a process that are connected to this port; `None` if they
/// cannot be read.
fn connections(pid: u32, port: u16) -> Option<BTreeSet<u64>> {
    let mut found = of_table(&proc::read(&format!("{pid}/net/tcp"))?, port);
    // There is none without IPv6.
    found.extend(of_table(&proc::read(&format!("{pid}/net/tcp6")).unwrap_or_default(), port));
    Some(found)
}

/// Reads a table of the kernel: `sl local_address rem_address st … inode`, with addresses and states in hexadecimal.
fn of_table(table: &str, port: u16) -> BTreeSet<u64> {
    const ESTABLISHED: &str = "01";
    let port = format!(":{port:04X}");
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
        let is_meant = fields.get(2)?.ends_with(&port) && *fields.get(3)? == ESTABLISHED;
        is_meant.then(|| fields.get(9)?.parse().ok())?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Only established connections to the port count, not those from it.
    #[test]
    fn connections_are_found_in_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:A028 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
            1: 0100007F:D431 0100007F:A028 01 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
            2: 0100007F:A028 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 13 1\n\
            3: 0100007F:D432 0100007F:A028 06 00000000:00000000 00:00000000 00000000     0        0 0 1\n\
            4: short\n";
        assert_eq!(of_table(table, 41_000), BTreeSet::from([12]));
        assert_eq!((inode_of("socket:[12]"), inode_of("pipe:[12]")), (Some(12), None));
    }

    /// A process with a connection has reached the store.
    #[test]
    fn own_connection_is_found() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = store.local_addr().unwrap();
        let workers = BTreeMap::from([(LocalRank(3), std::process::id())]);
        let is_connected = |connected| BTreeMap::from([(LocalRank(3), connected)]);
        assert_eq!(connected(&workers, address.port()), is_connected(false));
        let _client = TcpStream::connect(address).unwrap();
        assert_eq!(connected(&workers, address.port()), is_connected(true));
        assert_eq!(connected(&BTreeMap::from([(LocalRank(0), u32::MAX)]), 1), BTreeMap::new());
    }

    /// If not all open files of a process are read, it may have a connection.
    #[test]
    fn unread_files_may_be_connections() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = store.local_addr().unwrap().port();
        let workers = BTreeMap::from([(LocalRank(3), std::process::id())]);
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // Standard input is not the connection.
        assert_eq!(connected_within(&workers, port, 1), BTreeMap::new());
        assert_eq!(connected_within(&workers, port, 4_096), BTreeMap::from([(LocalRank(3), true)]));
    }
}
