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

    /// Returns the line with the name of its host in front, unless its agent has added it.
    pub(super) fn mark(&self, host: HostNumber, line: Bytes) -> Bytes {
        let Some(name) = self.names.get(host as usize) else { return line };
        if self.marks_workers && is_marked(&line, &opening(name)) {
            return line;
        }
        let mut marked = BytesMut::with_capacity(name.len() + 3 + line.len());
        marked.extend_from_slice(format!("[{name}] ").as_bytes());
        marked.extend_from_slice(&line);
        marked.freeze()
    }
}

/// Returns true if `line` has the prefix of a worker: `[node1:3] …`.
fn is_marked(line: &[u8], opening: &str) -> bool {
    let Some(rest) = line.strip_prefix(opening.as_bytes()) else { return false };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && rest[digits..].starts_with(b"] ")
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

    /// With the user's own prefixes every line begins with its host.
    #[test]
    fn own_prefixes_stay() {
        let prefixes = Prefixes::new(vec!["a".to_owned()], false);
        assert_eq!(prefixes.mark(0, "[a:0] x\n".into()), "[a] [a:0] x\n");
    }
}
