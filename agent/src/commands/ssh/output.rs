//! Adds the names of hosts to their lines on this host's console.

use bytes::{Bytes, BytesMut};

use super::order::HostNumber;

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

    /// Returns the line with the name of its host in front, unless its agent has added it. So has each part of it that begins
    /// at the left of the console: a host that sends several lines as one cannot print one with another name.
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
        for (index, byte) in text.iter().enumerate() {
            marked.extend_from_slice(&[*byte]);
            let is_break = match byte {
                b'\n' => true,
                b'\r' => text.get(index + 1) != Some(&b'\n'),
                _ => false,
            };
            if is_break && index + 1 < text.len() {
                marked.extend_from_slice(mark);
            }
        }
        marked.freeze()
    }
}

/// Returns the length of the prefix of a worker's line, as in `[node1:3] …`; `None` if it has none.
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

    /// With the user's own prefixes every line begins with its host.
    #[test]
    fn own_prefixes_stay() {
        let prefixes = Prefixes::new(vec!["a".to_owned()], false);
        assert_eq!(prefixes.mark(0, "[a:0] x\n".into()), "[a] [a:0] x\n");
    }
}
