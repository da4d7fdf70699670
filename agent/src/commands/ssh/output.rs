//! Adds the names of hosts to their lines on this host's console.

use bytes::{Bytes, BytesMut};

use super::order::HostNumber;
use crate::commands::ssh::limits;

/// The prefixes of lines.
#[derive(Clone, Debug)]
pub(super) struct Prefixes {
    names: Vec<String>,
    /// True if agents add a prefix with host and rank to workers' lines.
    marks_workers: bool,
}

/// Returns the template for the prefix of workers' lines, which is passed to the agent.
pub(super) fn template(name: &str) -> String {
    format!("{}${{rank}}] ", opening(name))
}

fn opening(name: &str) -> String {
    format!("[{name}:")
}

impl Prefixes {
    pub(super) fn new(names: Vec<String>, marks_workers: bool) -> Self {
        Self { names, marks_workers }
    }

    /// Returns the line with the name of its host in front, unless its agent has added it.
    ///
    /// Each part of a line that begins at the left of the console gets the name too. So a host that sends several lines as one cannot print
    /// a line with another name. If the prefixes would exceed [`limits::MAX_INNER_PREFIXES`], the parts are separated by spaces instead.
    pub(super) fn mark(&self, host: HostNumber, line: Bytes) -> Bytes {
        let Some(name) = self.names.get(host as usize) else { return line };
        let own = format!("[{name}] ");
        let of_worker = self.marks_workers.then(|| mark_of_worker(&line, &opening(name))).flatten();
        let (mark, text) = match of_worker {
            Some(len) => line.split_at(len),
            None => (own.as_bytes(), &line[..]),
        };
        let mut marked = BytesMut::with_capacity(mark.len() + text.len());
        marked.extend_from_slice(mark);
        let mut room = limits::MAX_INNER_PREFIXES;
        for (index, byte) in text.iter().enumerate() {
            let rest = &text[index + 1..];
            let is_end = rest.is_empty() || (*byte, rest) == (b'\r', b"\n");
            let is_inside = matches!(byte, b'\n' | b'\r') && !is_end;
            if is_inside && room < mark.len() {
                marked.extend_from_slice(b" ");
                continue;
            }
            marked.extend_from_slice(&[*byte]);
            if is_inside && (*byte == b'\n' || rest[0] != b'\n') {
                marked.extend_from_slice(mark);
                room -= mark.len();
            }
        }
        marked.freeze()
    }
}

/// Returns the length of the prefix of a worker's line, as in `[node1:3] …`. Returns `None` if there is no prefix.
fn mark_of_worker(line: &[u8], opening: &str) -> Option<usize> {
    let rest = line.strip_prefix(opening.as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_marked = digits > 0 && rest[digits..].starts_with(b"] ");
    is_marked.then_some(opening.len() + digits + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers' lines begin with host and rank, agents' lines with the host.
    #[test]
    fn lines_are_marked_once() {
        let prefixes = Prefixes::new(vec!["a".to_owned(), "b".to_owned()], true);
        let mark = |host, line: &'static str| {
            String::from_utf8(prefixes.mark(host, line.into()).to_vec()).unwrap()
        };
        assert_eq!(mark(0, "[a:3] loss\n"), "[a:3] loss\n");
        assert_eq!(mark(0, "INFO joined\n"), "[a] INFO joined\n");
        assert_eq!(mark(1, "[a:3] loss\n"), "[b] [a:3] loss\n");
        assert_eq!(mark(1, "[b:] x\n"), "[b] [b:] x\n");
        assert_eq!(template("a"), "[a:${rank}] ");
    }

    /// A host that sends several lines as one cannot print a line with the name of another host. A progress bar, which returns to
    /// the left of its line, keeps its prefix.
    #[test]
    fn no_line_of_another_host_is_printed() {
        let prefixes = Prefixes::new(vec!["a".to_owned(), "b".to_owned()], true);
        let mark =
            |line: &'static str| String::from_utf8(prefixes.mark(1, line.into()).to_vec()).unwrap();
        assert_eq!(mark("x\n[a:0] y\n"), "[b] x\n[b] [a:0] y\n");
        assert_eq!(mark("[b:3] x\r[a:0] y\r\n"), "[b:3] x\r[b:3] [a:0] y\r\n");
        assert_eq!(mark("\n\r[a] y"), "[b] \n[b] \r[b] [a] y");
        assert_eq!(mark("[b:3] 1%\r[b:3] 2%\r"), "[b:3] 1%\r[b:3] [b:3] 2%\r");
        assert_eq!(mark("\r\n"), "[b] \r\n");
    }

    /// A line that returns to the left again and again does not become much longer. No part of it seems to come from another host.
    #[test]
    fn prefixes_within_a_line_are_bounded() {
        let name = "b".repeat(253);
        let prefixes = Prefixes::new(vec![name.clone()], false);
        let mark = format!("[{name}] ");
        for part in ["\r", "x\n", "x\r\n", "\r\r\n"] {
            let line = part.repeat(limits::MAX_RELAYED_LINE / part.len());
            let marked = prefixes.mark(0, line.clone().into());
            assert!(marked.len() <= line.len() + mark.len() + limits::MAX_INNER_PREFIXES);
            let marked = String::from_utf8(marked.to_vec()).unwrap();
            assert_eq!(marked.ends_with("\r\n"), line.ends_with("\r\n"));
            // After the last mark, the text stays on its line.
            let last = marked.rsplit(&mark).next().unwrap();
            assert!(!last.trim_end().contains(['\r', '\n']), "{part:?}");
        }
    }

    /// With the user's own prefixes, every line begins with its host.
    #[test]
    fn own_prefixes_stay() {
        let prefixes = Prefixes::new(vec!["a".to_owned()], false);
        assert_eq!(prefixes.mark(0, "[a:0] x\n".into()), "[a] [a:0] x\n");
    }
}
