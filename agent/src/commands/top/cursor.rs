//! Moves the selected line of a list, and the part of the list that is shown.

use super::keys::Key;

/// The selected line of a list.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Cursor {
    /// The selected line.
    pub(super) selected: usize,
    /// The first line that is shown.
    pub(super) offset: usize,
}

impl Cursor {
    /// Moves the selection in a list of `len` lines, of which `height` are shown. Returns false for other keys.
    pub(super) fn handle_key(&mut self, key: Key, len: usize, height: usize) -> bool {
        let page = height.max(1);
        let last = len.saturating_sub(1);
        self.selected = match key {
            Key::Up => self.selected.saturating_sub(1),
            Key::Down => self.selected.saturating_add(1).min(last),
            Key::PageUp => self.selected.saturating_sub(page),
            Key::PageDown => self.selected.saturating_add(page).min(last),
            Key::Home => 0,
            Key::End => last,
            Key::Enter | Key::Esc | Key::Tab | Key::Backspace | Key::Char(_) | Key::Interrupt => {
                return false;
            }
        };
        true
    }

    /// Keeps the selection in the list, and the list at a place that shows it.
    pub(super) fn settle(&mut self, len: usize, height: usize) {
        self.selected = self.selected.min(len.saturating_sub(1));
        let most = len.saturating_sub(height);
        let least = (self.selected + 1).saturating_sub(height);
        self.offset = self.offset.clamp(least, self.selected.max(least)).min(most);
    }
}

/// Scrolls a text, whose first shown line is `first`. Returns false for other keys.
pub(super) fn scroll(first: &mut usize, key: Key, len: usize, height: usize) -> bool {
    let most = len.saturating_sub(height);
    *first = match key {
        Key::Up => first.saturating_sub(1),
        Key::Down => first.saturating_add(1).min(most),
        Key::PageUp => first.saturating_sub(height.max(1)),
        Key::PageDown => first.saturating_add(height.max(1)).min(most),
        Key::Home => 0,
        Key::End => most,
        Key::Enter | Key::Esc | Key::Tab | Key::Backspace | Key::Char(_) | Key::Interrupt => {
            return false;
        }
    };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The selected line is always shown, with as much of the list as fits.
    #[test]
    fn selection_is_shown() {
        let mut cursor = Cursor::default();
        let mut press = |key| {
            assert!(cursor.handle_key(key, 10, 4));
            cursor.settle(10, 4);
            (cursor.selected, cursor.offset)
        };
        assert_eq!(press(Key::Up), (0, 0));
        assert_eq!(press(Key::PageDown), (4, 1));
        assert_eq!(press(Key::Up), (3, 1));
        assert_eq!(press(Key::End), (9, 6));
        assert_eq!(press(Key::Down), (9, 6));
        assert_eq!(press(Key::PageUp), (5, 5));
        assert_eq!(press(Key::Home), (0, 0));
        assert!(!cursor.handle_key(Key::Enter, 10, 4));
        cursor.handle_key(Key::End, 10, 4);
        cursor.settle(3, 4);
        assert_eq!((cursor.selected, cursor.offset), (2, 0));
        cursor.settle(0, 0);
        assert_eq!((cursor.selected, cursor.offset), (0, 0));
    }

    /// A text is scrolled to its last page.
    #[test]
    fn text_is_scrolled() {
        let mut first = 0;
        let mut press = |key| {
            let is_used = scroll(&mut first, key, 10, 4);
            (is_used, first)
        };
        assert_eq!(press(Key::PageDown), (true, 4));
        assert_eq!(press(Key::PageDown), (true, 6));
        assert_eq!(press(Key::Up), (true, 5));
        assert_eq!(press(Key::End), (true, 6));
        assert_eq!(press(Key::Tab), (false, 6));
        assert_eq!(press(Key::Home), (true, 0));
    }
}
