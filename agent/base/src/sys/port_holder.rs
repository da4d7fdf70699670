//! Finds the process that listens on a port of this machine, as `ss -ltnp` does.

use crate::sys::proc;

/// Returns the process that listens on `port`, as text; `None` if there is none, or it is another
/// user's.
pub fn holder(port: u16) -> Option<String> {
    let tables = ["net/tcp", "net/tcp6"].map(proc::read);
    let inodes: Vec<String> =
        tables.iter().flatten().flat_map(|table| listeners(table, port)).collect();
    proc::numbers("").into_iter().find(|pid| has_socket(*pid, &inodes)).map(name)
}

/// Returns the inodes of the sockets in a kernel table that listen on `port`.
fn listeners(table: &str, port: u16) -> Vec<String> {
    const LISTENING: &str = "0A";
    let end = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    rows.filter(|row| {
        row.get(1).is_some_and(|local| local.ends_with(&end)) && row.get(3) == Some(&LISTENING)
    })
    .filter_map(|row| row.get(9).map(|inode| (*inode).to_owned()))
    .collect()
}

fn has_socket(pid: u32, inodes: &[String]) -> bool {
    let files = proc::numbers(&format!("{pid}/fd")).into_iter();
    let mut targets = files.filter_map(|file| proc::link(&format!("{pid}/fd/{file}")));
    targets.any(|target| {
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.iter().any(|known| known == inode))
    })
}

fn name(pid: u32) -> String {
    let command = proc::read(&format!("{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", command.trim())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The process that listens is found by its port, and none for a free port.
    #[test]
    fn own_listener_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // A process that another test is about to start may inherit the socket for a moment.
        assert!(holder(port).is_some_and(|holder| holder.starts_with("process ")));
        drop(listener);
        assert_eq!(holder(port), None);
    }

    /// Only listening sockets on exactly that port count.
    #[test]
    fn table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:72D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n\
            1: 0100007F:72D8 0100007F:1234 01 00000000:00000000 00:00000000 00000000 0 0 4712 1\n\
            2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1\n\
            broken\n";
        assert_eq!(listeners(table, 29400), ["4711"]);
        assert!(listeners(table, 1).is_empty());
    }
}
