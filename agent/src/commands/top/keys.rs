//! Defines the keys of the view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A key with a meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Key {
    /// The line above.
    Up,
    /// The line below.
    Down,
    /// The page above.
    PageUp,
    /// The page below.
    PageDown,
    /// The first line.
    Home,
    /// The last line.
    End,
    /// Open.
    Enter,
    /// Back.
    Esc,
    /// The other list.
    Tab,
    /// Remove a character.
    Backspace,
    /// A character.
    Char(char),
    /// Ctrl-C.
    Interrupt,
}

impl Key {
    /// Returns the key that was pressed; `None` if it has no meaning.
    pub(super) fn of(event: KeyEvent) -> Option<Self> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        let with = |modifier| event.modifiers.contains(modifier);
        Some(match event.code {
            KeyCode::Char('c') if with(KeyModifiers::CONTROL) => Self::Interrupt,
            KeyCode::Char(_) if with(KeyModifiers::CONTROL) || with(KeyModifiers::ALT) => {
                return None;
            }
            KeyCode::Char(c) => Self::Char(c),
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Esc,
            KeyCode::Tab | KeyCode::BackTab => Self::Tab,
            KeyCode::Backspace => Self::Backspace,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A character with Ctrl or Alt is another key. A key has its meaning when it is pressed, not when it is released.
    #[test]
    fn keys_have_meanings() {
        let key = |code, modifiers| Key::of(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::Char('q')));
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Key::Char('G')));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::ALT), None);
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
        let mut released = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(Key::of(released), Some(Key::Enter));
        released.kind = KeyEventKind::Release;
        assert_eq!(Key::of(released), None);
    }
}
