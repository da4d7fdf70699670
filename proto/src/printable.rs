//! Filters text that is printed to a terminal.
//!
//! All text from other processes passes [`printable`] before it is printed, so that it cannot control the
//! terminal. The output of workers is the exception: it is passed on unchanged, with its escape sequences.

use serde::de::IgnoredAny;
use serde_json::Deserializer;

use crate::limits;

/// Returns `text` without control characters (except newline and tab) and characters that override the
/// direction of text.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unfit(*c) && !turns_text(*c)).collect()
}

/// Returns `text` in the same way, and on one line: newlines and tabs become spaces.
pub fn printable_line(text: &str) -> String {
    printable(text).replace(char::is_control, " ")
}

/// The fields of a state that may have several lines.
const LINES: [&str; 2] = ["\"message\"", "\"stderr_tail\""];

/// Returns JSON whose texts are printable and not longer than [`limits::MAX_TEXT_LEN`]. Each text is one line, except in the fields of
/// [`LINES`].
///
/// It changes the JSON and not a [`serde_json::Value`], because reading a state of 10,000 nodes through a value
/// takes six times as long.
///
/// # Errors
///
/// Returns an error if a text is not valid.
pub(crate) fn printable_json(json: &str) -> Result<String, serde_json::Error> {
    let mut cleaned = String::with_capacity(json.len());
    let (mut rest, mut key) = (json, "");
    // JSON has quotes only around texts, and in them.
    while let Some(start) = rest.find('"') {
        let (before, from) = rest.split_at(start);
        let mut values = Deserializer::from_str(from).into_iter::<IgnoredAny>();
        values.next().transpose()?;
        let (quoted, after) = from.split_at(values.byte_offset());
        cleaned += before;
        let is_plain = quoted.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\');
        if is_plain && quoted.len() <= limits::MAX_TEXT_LEN {
            cleaned += quoted;
        } else {
            let text: String = serde_json::from_str(quoted)?;
            let mut text =
                if LINES.contains(&key) { printable(&text) } else { printable_line(&text) };
            text.truncate(text.floor_char_boundary(limits::MAX_TEXT_LEN));
            cleaned += &serde_json::to_string(&text)?;
        }
        key = if after.trim_start().starts_with(':') { quoted } else { "" };
        rest = after;
    }
    Ok(cleaned + rest)
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
