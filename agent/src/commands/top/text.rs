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

    /// A bar has eighths of a column.
    #[test]
    fn bars_are_filled() {
        let bars = [0.0, 0.5, 0.95, 1.0, 7.0, f64::NAN].map(|part| bar(part, 4));
        assert_eq!(bars, ["░░░░", "██░░", "███▊", "████", "████", "░░░░"]);
    }
}
