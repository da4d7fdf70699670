//! Draws the view: the state of the job, the nodes, the events and the keys, below each other.

mod header;
mod lists;
mod style;

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};

pub(super) use self::style::Palette;
use super::{model::Model, text};

/// The keys, the most important ones first.
const KEYS: &str = "q quit  ↑↓ nodes  ←→ events  s sort  Enter each node";

/// Draws the view. Only lines that are shown are formatted.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, palette: Palette) {
    let mut rest = frame.area();
    let buffer = frame.buffer_mut();
    let keys = Rect { y: rest.bottom().saturating_sub(1), height: rest.height.min(1), ..rest };
    put(buffer, keys, keys.y, &Line::styled(KEYS, palette.faint()));
    rest.height -= keys.height;
    let lines = header::lines(model, rest.as_size(), palette);
    let header = take(&mut rest, lines.len());
    for (row, line) in (header.y..header.bottom()).zip(&lines) {
        put(buffer, header, row, line);
    }
    let most = usize::from(rest.height) * 3 / 5;
    let nodes = take(&mut rest, (model.nodes.rows.len() + lists::ABOVE_ROWS).min(most));
    lists::draw_nodes(buffer, nodes, model, palette);
    lists::draw_events(buffer, rest, model, palette);
}

/// Takes up to `height` lines from the top of `rest`.
fn take(rest: &mut Rect, height: usize) -> Rect {
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(rest.height);
    let part = Rect { height, ..*rest };
    (rest.y, rest.height) = (rest.y + height, rest.height - height);
    part
}

/// Writes a line of an area. What does not fit is cut.
fn put(buffer: &mut Buffer, area: Rect, row: u16, line: &Line<'_>) {
    if area.contains((area.x, row).into()) {
        buffer.set_line(area.x, row, line, area.width);
    }
}

/// Returns the title of a part of the screen, with a line that fills the width.
fn title(what: &str, width: u16, palette: Palette) -> Line<'static> {
    let width = usize::from(width);
    let what = text::fit(what, width.saturating_sub(4));
    let rest = width.saturating_sub(text::width(&what) + 4);
    Line::from(vec![
        Span::styled("── ", palette.faint()),
        Span::styled(what, palette.bold()),
        Span::styled(format!(" {}", "─".repeat(rest)), palette.faint()),
    ])
}

#[cfg(test)]
mod tests;
