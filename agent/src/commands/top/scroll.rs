//! Chooses the lines of a list that are shown.

use std::ops::Range;

/// A way to scroll a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Move {
    /// To the line above.
    Up,
    /// To the line below.
    Down,
    /// To the page above.
    PageUp,
    /// To the page below.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
}

/// The part of a list that is shown.
#[derive(Debug, Default)]
pub(super) struct Scroll {
    /// The first line that is shown.
    first: usize,
    /// The number of lines that there was room for.
    height: usize,
}

impl Scroll {
    /// Scrolls the list. [`Scroll::shown`] keeps the place within the list.
    pub(super) fn scroll(&mut self, by: Move) {
        let page = self.height.max(1);
        self.first = match by {
            Move::Up => self.first.saturating_sub(1),
            Move::Down => self.first.saturating_add(1),
            Move::PageUp => self.first.saturating_sub(page),
            Move::PageDown => self.first.saturating_add(page),
            Move::Home => 0,
            Move::End => usize::MAX,
        };
    }

    /// Keeps the same lines shown after a line was added in front of the list. The front of a list
    /// stays shown.
    pub(super) fn line_added(&mut self) {
        if self.first > 0 {
            self.first = self.first.saturating_add(1);
        }
    }

    /// Returns the lines that are shown of a list of `len` lines if there is room for `height`.
    pub(super) fn shown(&mut self, len: usize, height: usize) -> Range<usize> {
        self.height = height;
        self.first = self.first.min(len.saturating_sub(height));
        self.first..len.min(self.first + height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list is scrolled to its last page, and as much of it as fits is shown.
    #[test]
    fn list_is_scrolled() {
        let mut scroll = Scroll::default();
        let mut press = |by| {
            scroll.scroll(by);
            scroll.shown(10, 4)
        };
        assert_eq!(press(Move::Up), 0..4);
        assert_eq!(press(Move::Down), 1..5);
        assert_eq!(press(Move::PageDown), 5..9);
        assert_eq!(press(Move::PageDown), 6..10);
        assert_eq!(press(Move::Down), 6..10);
        assert_eq!(press(Move::PageUp), 2..6);
        assert_eq!(press(Move::Home), 0..4);
        assert_eq!(press(Move::End), 6..10);
        scroll.line_added();
        assert_eq!(scroll.shown(11, 4), 7..11);
        assert_eq!(scroll.shown(3, 4), 0..3);
        scroll.line_added();
        assert_eq!(scroll.shown(5, 4), 0..4);
        assert_eq!(scroll.shown(0, 0), 0..0);
    }
}
