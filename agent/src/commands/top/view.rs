//! Draws the view.

pub(super) mod header;
mod lists;
mod style;

use ragent_proto::printable_line;
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};

pub(super) use self::style::Palette;
use super::{
    layout::Areas,
    model::{Focus, Model},
    panes, text,
};

/// Draws the view. Only lines that are shown are formatted.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette) {
    let size = frame.area().as_size();
    let areas = Areas::of(size, model);
    let buffer = frame.buffer_mut();
    let lines = header::lines(model, size);
    for (row, line) in (areas.header.y..areas.header.bottom()).zip(&lines) {
        put(buffer, areas.header, row, &line.styled(palette));
    }
    if model.pane.is_some() {
        draw_pane(buffer, areas, model, palette);
    } else {
        lists::draw_nodes(buffer, areas.nodes, model, palette);
        lists::draw_events(buffer, areas.events, model, palette);
    }
    draw_keys(buffer, areas.keys, model, palette);
}

/// Writes a line of an area.
fn put(buffer: &mut Buffer, area: Rect, row: u16, line: &Line<'_>) {
    if area.contains((area.x, row).into()) {
        buffer.set_line(area.x, row, line, area.width);
    }
}

/// Returns the title of a part of the screen, with a line that fills the width.
fn title(what: &str, width: u16, palette: Palette, has_focus: bool) -> Line<'static> {
    let width = usize::from(width);
    let what = text::fit(what, width.saturating_sub(4));
    let rest = width.saturating_sub(text::width(&what) + 4);
    let style = if has_focus { palette.focused() } else { palette.plain() };
    Line::from(vec![
        Span::styled("── ", palette.faint()),
        Span::styled(what, style),
        Span::styled(format!(" {}", "─".repeat(rest)), palette.faint()),
    ])
}

fn draw_pane(buffer: &mut Buffer, areas: Areas, model: &Model, palette: Palette) {
    let area = areas.body;
    let lines = panes::lines(model, area.width);
    let mut what = panes::title(model);
    let (first, shown) = (model.scrolled, areas.lines_of_pane());
    if lines.len() > shown {
        let last = (first + shown).min(lines.len());
        what += &format!(", lines {} to {last} of {}", first + 1, lines.len());
    }
    put(buffer, area, area.y, &title(&what, area.width, palette, true));
    for (row, line) in (area.y + 1..area.bottom()).zip(lines.iter().skip(first)) {
        put(buffer, area, row, &Line::raw(line.as_str()));
    }
}

fn draw_keys(buffer: &mut Buffer, area: Rect, model: &Model, palette: Palette) {
    let width = usize::from(area.width);
    let line = if let Some(text) = &model.prompt {
        // Characters are added at the end, so the end of a long text is shown.
        let columns = width.saturating_sub(12);
        let skipped = text.chars().count().saturating_sub(columns);
        let shown: String = text.chars().skip(skipped).collect();
        Line::raw(format!("find host: {}▏", printable_line(&shown)))
    } else if let Some(message) = &model.message {
        Line::styled(text::fit(message, width), palette.warning())
    } else {
        Line::styled(keys(model, width), palette.faint())
    };
    put(buffer, area, area.y, &line);
}

/// Returns as many of the keys as fit, the most important ones first. The keys for help and quitting are always included.
fn keys(model: &Model, width: usize) -> String {
    const LAST: [&str; 2] = ["? help", "q quit"];
    let first: &[&str] = match (&model.pane, model.focus) {
        (Some(_), _) => &["Esc back", "↑↓ scroll"],
        (None, Focus::Nodes) => {
            &["Enter node", "Tab events", "/ find", "f filter", "s sort", "e explain", "↑↓ choose"]
        }
        (None, Focus::Events) => &["Enter event", "Tab nodes", "e explain", "↑↓ choose"],
    };
    let mut count = first.len();
    loop {
        let keys = [&first[..count], &LAST].concat().join("  ");
        if text::width(&keys) <= width || count == 0 {
            return text::fit(&keys, width);
        }
        count -= 1;
    }
}

#[cfg(test)]
mod tests;
