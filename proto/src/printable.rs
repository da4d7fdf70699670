//! Filters text that is printed to a terminal.
//!
//! All text from other processes passes [`printable`] before it is printed, so that it cannot control the
//! terminal. The output of workers is the exception: it is passed on unchanged, with its escape sequences.

/// Returns `text` without control characters (except newline and tab) and characters that override the
/// direction of text.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unfit(*c) && !turns_text(*c)).collect()
}

/// Returns `text` in the same way, and on one line: newlines and tabs become spaces.
pub fn printable_line(text: &str) -> String {
    printable(text).replace(char::is_control, " ")
}

/// Returns true for control characters except newline and tab.
pub(crate) fn is_unfit(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Returns true for characters that override the direction of the text after them.
pub(crate) fn turns_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words, lines and tabs are left.
    #[test]
    fn only_words_are_left() {
        let text = "a\tb\r\n\u{1b}[31mred\u{7}\u{9b}2J\u{202e}x\u{2066}\u{e9}\0";
        assert_eq!(printable(text), "a\tb\n[31mred2Jx\u{e9}");
        assert_eq!(printable_line(text), "a b [31mred2Jx\u{e9}");
    }
}
