//! Fits text into the cells of a terminal.

use ragent_proto::printable_line;
use ratatui::text::Span;

/// Returns the number of columns that `text` takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns `text` in one line of at most `max` columns. A longer text ends with `…`.
pub(super) fn fit(text: &str, max: usize) -> String {
    let text = printable_line(text);
    if width(&text) <= max {
        return text;
    }
    let mut cut = head(&text, max.saturating_sub(1)).to_owned();
    if max > 0 {
        cut.push('…');
    }
    cut
}

/// Returns the longest start of `text` that takes at most `max` columns.
fn head(text: &str, max: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += width(c.encode_utf8(&mut [0; 4]));
        if used > max {
            return &text[..at];
        }
    }
    text
}

/// Returns `text` in exactly `columns` columns.
pub(super) fn cell(text: &str, columns: usize) -> String {
    let mut text = fit(text, columns);
    let missing = columns.saturating_sub(width(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

/// Returns the lines of `text`, each in at most `max` columns. The rest of a long line is indented like the line.
pub(super) fn wrap(text: &str, max: usize) -> Vec<String> {
    text.lines().flat_map(|line| wrap_line(&printable_line(line), max.max(1))).collect()
}

fn wrap_line(line: &str, max: usize) -> Vec<String> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    // Indentation is omitted if it leaves little room.
    let (line, indent) = match indent * 2 < max {
        true => (line, " ".repeat(indent)),
        false => (&line[indent..], String::new()),
    };
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut is_empty = true;
    for word in line.split_inclusive(' ') {
        let mut word = word;
        if !is_empty && width(&current) + width(word.trim_end()) > max {
            if word.trim().is_empty() {
                continue;
            }
            lines.push(std::mem::replace(&mut current, indent.clone()).trim_end().to_owned());
        }
        // A word that is longer than a line is cut.
        while !word.trim_end().is_empty() && width(&current) + width(word.trim_end()) > max {
            let part = head(word, max.saturating_sub(width(&current)));
            let part = match part.chars().next() {
                Some(_) => part,
                None => &word[..word.chars().next().map_or(0, char::len_utf8)],
            };
            current.push_str(part);
            word = &word[part.len()..];
            lines.push(std::mem::replace(&mut current, indent.clone()));
        }
        current.push_str(word);
        is_empty = is_empty && word.trim().is_empty();
    }
    if lines.is_empty() || !current.trim().is_empty() {
        lines.push(current.trim_end().to_owned());
    }
    lines
}

/// Returns a bar of `columns` columns. `part`, from 0 to 1, is filled.
pub(super) fn bar(part: f64, columns: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (part.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8]);
    }
    let missing = columns.saturating_sub(width(&bar));
    bar + &"░".repeat(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of other processes cannot move the cursor. They are cut at a column, even if a character takes two.
    #[test]
    fn text_fits() {
        assert_eq!(fit("a\nb\t\u{1b}[2Jc\u{202e}", 10), "a b [2Jc");
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 5), "abcd…");
        assert_eq!(fit("漢字漢字", 6), "漢字…");
        assert_eq!(cell("漢字漢字", 6), "漢字… ");
        assert_eq!(["", "abc"].map(|text| fit(text, 0)), ["", ""]);
    }

    /// Lines are broken between words, and keep their indentation.
    #[test]
    fn lines_are_wrapped() {
        assert_eq!(wrap("a bc def\n\n  x yy zz", 6), ["a bc", "def", "", "  x yy", "  zz"]);
        assert_eq!(wrap("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("      ab cd", 8), ["ab cd"]);
        assert_eq!(wrap("漢字", 1), ["漢", "字"]);
        assert_eq!(wrap("     a b", 1), ["a", "b"]);
        assert_eq!(wrap("a     b", 2), ["a", "b"]);
        assert_eq!(wrap("", 4), Vec::<String>::new());
    }

    /// A bar has eighths of a column.
    #[test]
    fn bars_are_filled() {
        let bars = [0.0, 0.5, 0.95, 1.0, 7.0, f64::NAN].map(|part| bar(part, 4));
        assert_eq!(bars, ["░░░░", "██░░", "███▊", "████", "████", "░░░░"]);
    }
}
