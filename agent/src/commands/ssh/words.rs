//! Splits and quotes words as a shell does: for `--ssh`, for commands on other hosts, for display.

use std::ffi::{OsStr, OsString};

/// Splits `text` into words; quotes and backslashes keep white space. Returns `None` if a quote is
/// not closed.
pub(super) fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\\' => word.get_or_insert_default().push(chars.next()?),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        end if end == c => break,
                        '\\' if c == '"' => word.push(chars.next()?),
                        inner => word.push(inner),
                    }
                }
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Quotes `word` so that every shell parses it as one word.
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

    /// Words are split as a shell splits them.
    #[test]
    fn words_are_cut() {
        let cut = |text| split(text).unwrap();
        assert_eq!(
            cut(" ssh -F 'my conf' -p\\ 1 \"a\\\"b\"'c' '' "),
            ["ssh", "-F", "my conf", "-p 1", "a\"bc", ""]
        );
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

        /// Every text is either split or refused.
        #[test]
        fn never_panics(text in "(?s).{0,60}") {
            let _ = split(&text);
        }
    }
}
