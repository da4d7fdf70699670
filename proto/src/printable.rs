//! What of a text may reach a terminal.

/// `text` without what would move the reader's cursor, change their terminal, or show its characters in
/// another order than they have.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unfit(*c) && !turns_text(*c)).collect()
}

/// Control characters, but for the ends of lines and tabs.
pub(crate) fn is_unfit(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// What overrides the direction of the text behind it.
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
    }
}
