//! Defines the keys of the view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::scroll::Move;

/// The meaning of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Key {
    /// Scroll the nodes.
    Nodes(Move),
    /// Scroll the events. They are listed from the newest one on.
    Events(Move),
    /// Sort the nodes in the next order.
    Sort,
    /// Show a row for each node, or one for all nodes in the same state.
    Split,
    /// End the view.
    Quit,
}

impl Key {
    /// Returns the meaning of the key that was pressed; `None` if it has none.
    pub(super) fn of(event: KeyEvent) -> Option<Self> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        let with = |modifier| event.modifiers.contains(modifier);
        Some(match event.code {
            KeyCode::Char('c') if with(KeyModifiers::CONTROL) => Self::Quit,
            KeyCode::Char(_) if with(KeyModifiers::CONTROL) || with(KeyModifiers::ALT) => {
                return None;
            }
            KeyCode::Char('q') => Self::Quit,
            KeyCode::Char('s') => Self::Sort,
            KeyCode::Enter => Self::Split,
            KeyCode::Up => Self::Nodes(Move::Up),
            KeyCode::Down => Self::Nodes(Move::Down),
            KeyCode::PageUp => Self::Nodes(Move::PageUp),
            KeyCode::PageDown => Self::Nodes(Move::PageDown),
            KeyCode::Home => Self::Nodes(Move::Home),
            KeyCode::End => Self::Nodes(Move::End),
            KeyCode::Left => Self::Events(Move::PageDown),
            KeyCode::Right => Self::Events(Move::PageUp),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A character with Ctrl or Alt is another key. A key has its meaning when it is pressed, not
    /// when it is released.
    #[test]
    fn keys_have_meanings() {
        let key = |code, modifiers| Key::of(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::ALT), None);
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
        let mut released = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(Key::of(released), Some(Key::Split));
        released.kind = KeyEventKind::Release;
        assert_eq!(Key::of(released), None);
    }
}
