//! Compressed lists of nodes and of tasks.

use ragent_base::limits::MAX_LISTED_NODES;
use ragent_options::scheduler::node_list::{counts, names};

/// Expands a list of names, and of counts.
pub fn node_list(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if let Ok(names) = names(text) {
        assert!((1..=MAX_LISTED_NODES).contains(&names.len()));
        assert!(
            names.iter().all(|name| !name.trim().is_empty() && !name.contains(['[', ']', ',']))
        );
        assert_eq!(self::names(&names.join(",")).as_ref(), Ok(&names));
    }
    if let Ok(counts) = counts(text) {
        assert!((1..=MAX_LISTED_NODES).contains(&counts.len()));
        let written: Vec<String> = counts.iter().map(ToString::to_string).collect();
        assert_eq!(self::counts(&written.join(",")), Ok(counts));
    }
}
