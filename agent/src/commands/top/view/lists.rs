//! Draws the lists of nodes and of events.

use std::array;

use jiff::tz::TimeZone;
use ragent_base::report::status_text::table;
use ragent_proto::printable_line;
use ragent_rendezvous::snapshot::{NodeSnapshot, NodeStateName};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use super::{Palette, put, title};
use crate::commands::{
    events::JournalEntry,
    top::{model::Model, text},
};

/// The title of a list of nodes and the names of its columns.
pub(super) const ABOVE_ROWS: usize = 2;

/// The cells of a row.
type Cells = [String; 5];

/// The columns in front of each cell.
const GAP: usize = 2;

/// The place of the state in a row.
const STATE: usize = 3;

/// The columns that the state has at least. In a small terminal, the time after it is cut.
const STATE_MIN: usize = 20;

/// Draws the list of nodes.
pub(super) fn draw_nodes(buffer: &mut Buffer, area: Rect, model: &mut Model, palette: Palette) {
    let (all, list) = (model.snapshot.nodes.len(), &mut model.nodes);
    let what = format!("nodes: {all}, {} unusual, by {}", list.unusual, list.sort.name());
    put(buffer, area, area.y, &title(&what, area.width, palette));
    let height = usize::from(area.height).saturating_sub(ABOVE_ROWS);
    let shown = list.scroll.shown(list.rows.len(), height);
    let rows = model.nodes.rows[shown].iter();
    let rows: Vec<(NodeStateName, Cells)> = rows.map(|row| cells(row, model)).collect();
    let widths = widths(&rows, usize::from(area.width));
    let names = table::HEAD.map(str::to_owned);
    put(buffer, area, area.y + 1, &line(&names, &widths, |_| palette.faint()));
    for (at, (state, cells)) in (area.y + 2..area.bottom()).zip(&rows) {
        let style = |place| if place == STATE { palette.state(*state) } else { Style::new() };
        put(buffer, area, at, &line(cells, &widths, style));
    }
}

/// Returns the cells of a row of nodes, with their state.
fn cells(row: &[usize], model: &Model) -> (NodeStateName, Cells) {
    let nodes: Vec<&NodeSnapshot> = row.iter().map(|node| &model.snapshot.nodes[*node]).collect();
    let mut cells = table::row(&nodes).map(|cell| printable_line(&cell));
    let state = nodes[0].state;
    // A node that is lost sends nothing, so the time since its last message grows.
    if state == NodeStateName::Lost {
        let seen = nodes.iter().map(|node| node.last_seen_ms).max().unwrap_or(0);
        cells[4] = format!("{:.1} s ago", seen.saturating_add(model.age_ms()) as f64 / 1000.0);
    }
    (state, cells)
}

/// Returns the widths of columns. The state gets the rest.
fn widths(rows: &[(NodeStateName, Cells)], width: usize) -> [usize; 5] {
    let needed: [usize; 5] = array::from_fn(|place| {
        let cells = rows.iter().map(|(_, cells)| text::width(&cells[place]));
        cells.max().unwrap_or(0).max(table::HEAD[place].len())
    });
    let limits = [width / 6, width * 3 / 10, width / 6, 0, 12];
    let mut widths: [usize; 5] = array::from_fn(|place| needed[place].min(limits[place]));
    let used = widths.iter().sum::<usize>() + widths.len() * GAP;
    widths[STATE] = needed[STATE].min(width.saturating_sub(used).max(STATE_MIN));
    widths
}

/// Returns a row with its cells in their columns.
fn line(cells: &Cells, widths: &[usize; 5], style: impl Fn(usize) -> Style) -> Line<'static> {
    let gap = " ".repeat(GAP);
    let cells = cells.iter().zip(widths).enumerate();
    let span = |(place, (cell, width)): (usize, (&String, &usize))| {
        Span::styled(format!("{gap}{}", text::cell(cell, *width)), style(place))
    };
    cells.map(span).collect::<Vec<_>>().into()
}

/// Draws the list of events.
pub(super) fn draw_events(buffer: &mut Buffer, area: Rect, model: &mut Model, palette: Palette) {
    let what = format!("events: {}", model.events.len());
    put(buffer, area, area.y, &title(&what, area.width, palette));
    let height = usize::from(area.height).saturating_sub(1);
    for (at, (entry, depth)) in (area.y + 1..area.bottom()).zip(model.events.shown(height)) {
        put(buffer, area, at, &event(entry, *depth, usize::from(area.width), palette));
    }
}

fn event(entry: &JournalEntry, depth: usize, width: usize, palette: Palette) -> Line<'static> {
    let time = entry.at.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string();
    let front = format!("  {time}  {}", " ".repeat(depth * 2));
    let text = text::fit(&entry.text, width.saturating_sub(text::width(&front)));
    Line::from(vec![Span::raw(front), Span::styled(text, palette.event(&entry.kind))])
}
