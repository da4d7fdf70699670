//! Splits and quotes words as a shell does, for `--ssh`, for commands on other hosts, and for display.

use std::ffi::{OsStr, OsString};

/// Splits a text into words as a POSIX shell does. Returns `None` if a quote is not closed.
pub(super) use shlex::split;

/// Quotes `word` so that every shell parses it as one word. `shlex` would also quote words with `=`, `,` and `%`, and so most words of
/// `--dry-run`.
pub(super) fn quote(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Joins words to a command line, for display and for a shell.
pub(super) fn join(words: &[OsString]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Words are split as a shell splits them. A backslash in double quotes stays before a letter, and `#` begins a comment.
    #[test]
    fn words_are_cut() {
        let cut = |text| split(text).unwrap();
        assert_eq!(
            cut(" ssh -F 'my conf' -p\\ 1 \"a\\\"b\"'c' '' "),
            ["ssh", "-F", "my conf", "-p 1", "a\"bc", ""]
        );
        assert_eq!(cut("a \"\\b\" #c"), ["a", "\\b"]);
        assert_eq!(cut("  "), Vec::<String>::new());
        for open in ["'a", "\"a", "a\\", "\"a\\"] {
            assert_eq!(split(open), None, "{open}");
        }
    }

    proptest! {
        /// Quoted words are split into the same words again.
        #[test]
        fn quoting_is_undone(words in proptest::collection::vec("[a-c '\"\\\\$\n]{0,6}", 0..5)) {
            let quoted: Vec<OsString> = words.iter().map(OsString::from).collect();
            prop_assert_eq!(split(&join(&quoted)), Some(words));
        }
    }
}
