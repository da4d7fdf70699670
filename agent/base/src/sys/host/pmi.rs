//! PMI-1, for launchers whose environment does not give enough: Hydra speaks it on a socket that
//! each rank inherits.
//!
//! Rank 0 publishes its host name, and then all ranks finalize: a process that has initialized PMI
//! and exits without finalizing counts as crashed.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

use crate::sys::limits;

/// The rank's socket to its launcher.
#[derive(Debug)]
pub(crate) struct Pmi(UnixStream);

impl Pmi {
    /// Uses `socket`, with a read timeout that covers the start of all ranks.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(limits::PMI_TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Returns the launcher's name for this start and the host name of rank 0, the same on all
    /// ranks; waits until all of them have called this.
    pub(crate) fn exchange_head(
        mut self,
        rank: u32,
        own_host: &str,
    ) -> io::Result<(String, String)> {
        self.ask("cmd=init pmi_version=1 pmi_subversion=1", "rc=")?;
        let name = self.ask("cmd=get_my_kvsname", "kvsname=")?;
        if rank == 0 {
            self.ask(&format!("cmd=put kvsname={name} key={KEY} value={own_host}"), "rc=")?;
        }
        self.ask("cmd=barrier_in", "cmd=barrier_out")?;
        let head = self.ask(&format!("cmd=get kvsname={name} key={KEY}"), "value=")?;
        self.ask("cmd=finalize", "cmd=finalize_ack")?;
        Ok((name, head))
    }

    /// Sends a line, and returns the value of `field` in the reply.
    fn ask(&mut self, line: &str, field: &str) -> io::Result<String> {
        self.0.write_all(format!("{line}\n").as_bytes())?;
        let answer = self.line()?;
        let found = answer.split_ascii_whitespace().find_map(|word| word.strip_prefix(field));
        found.map(str::to_owned).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the answer to `{line}` was `{answer}`"),
            )
        })
    }

    /// Reads one line, byte by byte: the data after it is not ours.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < limits::MAX_PMI_LINE {
            self.0.read_exact(&mut byte)?;
            if byte == *b"\n" {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            line.extend(byte);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "its line is too long"))
    }
}

const KEY: &str = "ragent-head";

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        thread,
    };

    use super::*;

    /// A launcher that expects these lines in order, and sends the answer to each.
    fn launcher(answers: &'static [(&'static str, &'static str)]) -> Pmi {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (asked, answer) in answers {
                assert_eq!(lines.next().unwrap().unwrap(), *asked);
                let _ = (&theirs).write_all(answer.as_bytes());
            }
        });
        Pmi::new(ours).unwrap()
    }

    const INIT: (&str, &str) =
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0\n");
    const NAME: (&str, &str) = ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1\n");
    const PUT: (&str, &str) =
        ("cmd=put kvsname=kvs_1 key=ragent-head value=n0", "cmd=put_result rc=0 msg=success\n");
    const BARRIER: (&str, &str) = ("cmd=barrier_in", "cmd=barrier_out\n");
    const GET: (&str, &str) =
        ("cmd=get kvsname=kvs_1 key=ragent-head", "cmd=get_result rc=0 value=n0\n");
    const END: (&str, &str) = ("cmd=finalize", "cmd=finalize_ack\n");

    /// The first rank publishes its host name, and every rank reads it once all are there.
    #[test]
    fn first_rank_publishes_its_host() {
        let expected = ("kvs_1".to_owned(), "n0".to_owned());
        let first = launcher(&[INIT, NAME, PUT, BARRIER, GET, END]);
        assert_eq!(first.exchange_head(0, "n0").unwrap(), expected);
        let second = launcher(&[INIT, NAME, BARRIER, GET, END]);
        assert_eq!(second.exchange_head(1, "n1").unwrap(), expected);
    }

    /// A launcher that sends something unexpected, sends too much, or closes the socket is an
    /// error.
    #[test]
    fn strange_launchers() {
        assert!(
            launcher(&[INIT, ("cmd=get_my_kvsname", "what?\n")]).exchange_head(1, "n1").is_err()
        );
        assert!(launcher(&[INIT]).exchange_head(1, "n1").is_err());
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            // Until the other end is closed.
            while (&theirs).write_all(&[b'x'; 512]).is_ok() {}
        });
        assert!(Pmi::new(ours).unwrap().exchange_head(1, "n1").is_err());
    }
}
