//! Divides the screen into its parts.

use ratatui::layout::{Rect, Size};

use super::{
    model::{Focus, Model},
    view::header,
};

/// From this number of columns on, nodes and events are next to each other.
const WIDE: u16 = 120;

/// From this number of lines on, both lists are shown.
const BOTH_LISTS: u16 = 12;

/// From this number of lines on, a list has the names of its columns.
const WITH_HEAD: u16 = 6;

/// The parts of the screen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Areas {
    /// The state of the job.
    pub(super) header: Rect,
    /// The part between the header and the keys.
    pub(super) body: Rect,
    /// The list of nodes; empty if it is not shown.
    pub(super) nodes: Rect,
    /// The list of events; empty if it is not shown.
    pub(super) events: Rect,
    /// The line of keys.
    pub(super) keys: Rect,
}

impl Areas {
    /// Divides a screen of `size`.
    pub(super) fn of(size: Size, model: &Model) -> Self {
        let Size { width, height } = size;
        let part = |y: u16, height: u16| Rect { x: 0, y, width, height };
        let keys = height.min(1);
        let lines = header::lines(model, size).len();
        let header = u16::try_from(lines).unwrap_or(u16::MAX).min(height - keys);
        let body = part(header, height - keys - header);
        let [nodes, events] = lists(body, model);
        Self { header: part(0, header), body, nodes, events, keys: part(height - keys, keys) }
    }

    /// Returns the number of rows of the list of nodes that are shown.
    pub(super) fn rows_of_nodes(&self) -> usize {
        rows(self.nodes)
    }

    /// Returns the number of events that are shown.
    pub(super) fn rows_of_events(&self) -> usize {
        usize::from(self.events.height.saturating_sub(1))
    }

    /// Returns the number of lines of a text that are shown.
    pub(super) fn lines_of_pane(&self) -> usize {
        usize::from(self.body.height.saturating_sub(1))
    }
}

/// Returns the number of rows of a list of nodes in `area`, below its title and the names of its columns.
fn rows(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(1 + u16::from(has_head(area))))
}

/// Returns true if the names of columns are shown.
pub(super) fn has_head(area: Rect) -> bool {
    area.height >= WITH_HEAD
}

fn lists(body: Rect, model: &Model) -> [Rect; 2] {
    let none = Rect { height: 0, ..body };
    if body.width >= WIDE {
        let width = body.width / 20 * 11;
        let nodes = Rect { width, ..body };
        // A column between them is empty.
        let events = Rect { x: body.x + width + 1, width: body.width - width - 1, ..body };
        return [nodes, events];
    }
    if body.height < BOTH_LISTS {
        return match model.focus {
            Focus::Nodes => [body, none],
            Focus::Events => [none, body],
        };
    }
    let needed = u16::try_from(model.nodes.rows.len()).unwrap_or(u16::MAX).saturating_add(2);
    let height = needed.clamp(WITH_HEAD, body.height * 3 / 5);
    let nodes = Rect { height, ..body };
    let events = Rect { y: body.y + height, height: body.height - height, ..body };
    [nodes, events]
}
