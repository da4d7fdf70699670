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
    top::{
        layout::has_head,
        model::{Focus, Model},
        nodes::{Filter, Row},
        text,
    },
};

/// The columns between two cells.
const GAP: usize = 2;

/// A list with fewer columns has only ranks, hosts and states.
const NARROW: usize = 60;

/// The place of the state in a row.
const STATE: usize = 3;

/// Draws the list of nodes.
pub(super) fn draw_nodes(buffer: &mut Buffer, area: Rect, model: &Model, palette: Palette) {
    let list = &model.nodes;
    let has_focus = model.focus == Focus::Nodes;
    let all = model.snapshot.nodes.len();
    let which = match list.filter {
        Filter::All => format!("nodes: {all}, {} unusual", list.unusual),
        Filter::Unusual => format!("nodes: only the {} unusual of {all}", list.unusual),
    };
    let what = format!("{which}, by {}", list.sort.name());
    put(buffer, area, area.y, &title(&what, area.width, palette, has_focus));
    let head = u16::from(has_head(area));
    let first = area.y + 1 + head;
    let height = usize::from(area.bottom().saturating_sub(first));
    let rows: Vec<ShownRow> = (list.rows.iter().enumerate())
        .skip(list.cursor.offset)
        .take(height)
        .map(|(place, row)| ShownRow::new(*row, model, has_focus && place == list.cursor.selected))
        .collect();
    // The marks are in front of the cells.
    let widths = widths(&rows, usize::from(area.width).saturating_sub(MARKS));
    if head > 0 {
        let names = cells(&table::HEAD.map(str::to_owned), &widths).concat();
        let line = Line::styled(format!("{}{names}", " ".repeat(MARKS)), palette.faint());
        put(buffer, area, area.y + 1, &line);
    }
    for (at, row) in (first..area.bottom()).zip(&rows) {
        put(buffer, area, at, &row.line(&widths, palette));
    }
    if rows.is_empty() {
        let text = match list.filter {
            Filter::Unusual if all > 0 => "no node is unusual; f shows all",
            Filter::All | Filter::Unusual => "no node is registered",
        };
        let text = text::fit(text, usize::from(area.width).saturating_sub(MARKS));
        put(buffer, area, first, &Line::raw(format!("{}{text}", " ".repeat(MARKS))));
    }
}

/// The columns of the marks in front of a row. They show that it is selected, and that it can be opened.
const MARKS: usize = 4;

/// A row as it is shown.
struct ShownRow {
    marks: String,
    cells: [String; 5],
    state: NodeStateName,
    is_selected: bool,
}

impl ShownRow {
    fn new(row: Row, model: &Model, is_selected: bool) -> Self {
        let nodes = &model.snapshot.nodes;
        let (mut cells, state, mark) = match row {
            Row::Group(group) => {
                let group = &model.nodes.groups[group];
                let mark = if group.is_open { "-" } else { "+" };
                let mut cells = group.cells.clone();
                if state_ages(group.state) {
                    let all = group.members.iter().map(|node| nodes[*node].last_seen_ms);
                    cells[4] = seen(all.max().unwrap_or(0).saturating_add(model.age_ms()));
                }
                (cells, group.state, mark)
            }
            Row::Node { group, node } => {
                let node: &NodeSnapshot = &nodes[node];
                let mut cells = table::row(&[node]);
                if state_ages(node.state) {
                    cells[4] = seen(node.last_seen_ms.saturating_add(model.age_ms()));
                }
                let is_inside = model.nodes.groups[group].members.len() > 1;
                (cells, node.state, if is_inside { "·" } else { " " })
            }
        };
        for cell in &mut cells {
            *cell = printable_line(cell);
        }
        let selected = if is_selected { "▸" } else { " " };
        Self { marks: format!("{selected} {mark} "), cells, state, is_selected }
    }

    fn line(&self, widths: &[usize; 5], palette: Palette) -> Line<'static> {
        let base = if self.is_selected { palette.selected() } else { Style::new() };
        let mut spans = vec![Span::styled(self.marks.clone(), base)];
        for (place, cell) in cells(&self.cells, widths).into_iter().enumerate() {
            let color = if place == STATE { palette.state(self.state) } else { Style::new() };
            spans.push(Span::styled(cell, base.patch(color)));
        }
        Line::from(spans)
    }
}

/// Returns true if nodes in this state cannot send messages, so that the time since the last message grows.
fn state_ages(state: NodeStateName) -> bool {
    state == NodeStateName::Lost
}

fn seen(ms: u64) -> String {
    format!("{:.1} s ago", ms as f64 / 1000.0)
}

/// Returns the widths of columns. Hidden ones have width 0. The state gets the rest.
fn widths(rows: &[ShownRow], width: usize) -> [usize; 5] {
    let needed: [usize; 5] = array::from_fn(|place| {
        let cells = rows.iter().map(|row| text::width(&row.cells[place]));
        cells.max().unwrap_or(0).max(table::HEAD[place].len())
    });
    let is_narrow = width < NARROW;
    let limits = match is_narrow {
        true => [6, width * 2 / 5, 0, 0, 0],
        false => [width / 6, width * 3 / 10, width / 6, 0, 12],
    };
    let mut widths: [usize; 5] = array::from_fn(|place| needed[place].min(limits[place]));
    let shown = widths.iter().filter(|width| **width > 0).count();
    let used = widths.iter().sum::<usize>() + shown * GAP;
    widths[STATE] = width.saturating_sub(used);
    if !is_narrow {
        // Room that the state does not need stays empty at the right.
        widths[STATE] = widths[STATE].min(needed[STATE]);
    }
    widths
}

/// Returns the cells of a row in their columns, with the gaps between them.
fn cells(row: &[String; 5], widths: &[usize; 5]) -> Vec<String> {
    let shown = row.iter().zip(widths);
    let gap = " ".repeat(GAP);
    let cell = |(cell, width): (&String, &usize)| match width {
        0 => String::new(),
        width => text::cell(cell, *width) + &gap,
    };
    shown.map(cell).collect()
}

/// Draws the list of events.
pub(super) fn draw_events(buffer: &mut Buffer, area: Rect, model: &Model, palette: Palette) {
    let has_focus = model.focus == Focus::Events;
    let what = format!("events: {}", model.events.entries().len());
    put(buffer, area, area.y, &title(&what, area.width, palette, has_focus));
    let height = usize::from(area.height.saturating_sub(1));
    let selected = model.events.cursor.selected;
    for (at, (place, entry, depth)) in (area.y + 1..area.bottom()).zip(model.events.shown(height)) {
        let is_selected = has_focus && place == selected;
        let line = event(entry, depth, usize::from(area.width), is_selected, palette);
        put(buffer, area, at, &line);
    }
}

fn event(
    entry: &JournalEntry,
    depth: usize,
    width: usize,
    is_selected: bool,
    palette: Palette,
) -> Line<'static> {
    let base = if is_selected { palette.selected() } else { Style::new() };
    let mark = if is_selected { "▸ " } else { "  " };
    let time = entry.at.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string();
    let indent = if width < NARROW { 0 } else { depth * 2 };
    let front = format!("{mark}{time}  {}", " ".repeat(indent));
    let text = text::fit(&entry.text, width.saturating_sub(text::width(&front)));
    let color = palette.event(&entry.kind);
    Line::from(vec![Span::styled(front, base), Span::styled(text, base.patch(color))])
}
