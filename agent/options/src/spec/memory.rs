//! Reads the flags about checkpoints in memory: `--memory-limit`, `--memory-copies` and `--failure-domain`.

use ragent_base::sys::host::Host;
use ragent_rendezvous::{message::MEMORY_BYTES_MAX, settings::MEMORY_COPIES_MAX};

use super::{UsageError, arguments::Arguments};

/// The checkpoints in the memory of this node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MemorySpec {
    /// The most memory for them, in bytes; zero if there are none. `None`: a part of the node's memory.
    pub limit: Option<u64>,
    /// The nodes of one failure domain are lost together. If empty, it is the host.
    pub failure_domain: String,
}

/// The longest name of a failure domain, in bytes.
const DOMAIN_MAX: usize = 200;

/// The suffixes of sizes.
const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl<H: Host> Arguments<'_, H> {
    pub(super) fn memory_limit(&self) -> Result<Option<u64>, UsageError> {
        let Some(given) = self.argument("memory_limit", &self.args.memory_limit) else {
            return Ok(None);
        };
        let hint = "give a number with a unit, such as 200GiB or 64G, or 0 to keep no checkpoints in memory";
        size(&given.text).map(Some).ok_or_else(|| given.is_not("a size in memory").with_hint(hint))
    }

    pub(super) fn memory_copies(&self) -> Result<u32, UsageError> {
        let Some(given) = self.argument("memory_copies", &self.args.memory_copies) else {
            return Ok(MEMORY_COPIES_MAX);
        };
        let number = given.text.trim().parse().ok();
        let hint = "give 1 to keep a copy of each checkpoint on another node, or 0 to keep none";
        let error = || given.is_not("0 or 1").with_hint(hint);
        number.filter(|number| *number <= MEMORY_COPIES_MAX).ok_or_else(error)
    }

    /// Returns the failure domain. The Kubernetes manifest sets `NODE_NAME`: the name of a pod says nothing about its
    /// machine.
    pub(super) fn failure_domain(&self) -> Result<String, UsageError> {
        let given = self.argument("failure_domain", &self.args.failure_domain);
        let Some(given) = given else {
            let node = self.host.env("NODE_NAME").and_then(|name| name.into_string().ok());
            return Ok(node.filter(|name| is_domain(name)).unwrap_or_default());
        };
        if !is_domain(&given.text) {
            let hint =
                "give the name of what is lost at once, such as a rack: `--failure-domain rack7`";
            let error = given.is_not("a name of 1 to 200 bytes without control characters");
            return Err(error.with_hint(hint));
        }
        Ok(given.text)
    }
}

fn is_domain(name: &str) -> bool {
    (1..=DOMAIN_MAX).contains(&name.len()) && !name.contains(char::is_control)
}

fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, unit) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()))?;
    let number: u64 = number.parse().ok()?;
    number.checked_mul(*unit).filter(|bytes| *bytes <= MEMORY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes have the units that people write. Anything else is no size.
    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("64G", 64 << 30),
            ("64 gib", 64 << 30),
            (" 200GB", 200_000_000_000),
            ("1024", 1024),
            ("2T", 2 << 40),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in
            ["", "G", "-1", "1.5G", "10%", "64 elephants", "99999999999999999999", "999999T"]
        {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
