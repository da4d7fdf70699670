//! The block of lines at the end of a terminal's output, which is rewritten in place.
//!
//! [`Screen`] writes the block and the log lines, so that neither damages the other. The cursor is below the block.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::unistd::{getpgrp, tcgetpgrp};

use crate::sys::unix;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Size {
    /// The number of columns.
    pub(crate) columns: usize,
    /// The number of rows.
    pub(crate) rows: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// The block on a terminal. Its methods return the bytes to write.
#[derive(Debug, Default)]
struct Block {
    /// The widths of the lines on the terminal.
    drawn: Vec<usize>,
    /// True after output of a worker: the block is not drawn until the next start.
    is_suspended: bool,
    /// True if the cursor may not be at the beginning of a line.
    follows_workers: bool,
}

impl Block {
    /// Removes the block from a terminal of this size.
    ///
    /// If the terminal has become narrower than the block, the rows that the block takes depend on the terminal; the block
    /// stays there then, because removing too many rows would remove other lines.
    fn erase(&mut self, size: Size) -> Vec<u8> {
        let drawn = std::mem::take(&mut self.drawn);
        let fits = drawn.len() < size.rows && drawn.iter().all(|width| *width <= size.columns);
        if drawn.is_empty() || !fits {
            return Vec::new();
        }
        format!("\r\x1b[{}A\x1b[J", drawn.len()).into_bytes()
    }

    /// Replaces the block by these lines, which are cut to the size of the terminal.
    fn draw(&mut self, lines: &[String], size: Size) -> Vec<u8> {
        let mut bytes = self.erase(size);
        if self.is_suspended {
            return bytes;
        }
        if std::mem::take(&mut self.follows_workers) {
            // At the beginning of a line, the cursor stays in it; else it moves to the next one.
            bytes.extend(std::iter::repeat_n(b' ', size.columns));
            bytes.push(b'\r');
        }
        // The cursor takes a row, and the last column would move it to the next row.
        for line in lines.iter().take(size.rows.saturating_sub(1)) {
            let line = cut(line, size.columns.saturating_sub(1));
            self.drawn.push(width(&line));
            bytes.extend(line.as_bytes());
            bytes.extend(b"\x1b[K\n");
        }
        bytes
    }
}

/// Returns `text` on at most `columns` columns; the end of a longer text is replaced by dots.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    const DOTS: &str = "...";
    let mut left = columns.saturating_sub(DOTS.len());
    let fits = |c: &char| {
        let fits = char_width(*c) <= left;
        left = left.saturating_sub(char_width(*c));
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    let dots = &DOTS[..DOTS.len().min(columns)];
    format!("{}{dots}", kept.trim_end())
}

/// Returns the columns that `text` takes at most.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Returns the columns that a character takes at most.
fn char_width(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

/// The terminal to which this process logs, or the file in place of it.
#[derive(Debug, Default)]
pub struct Screen {
    block: Mutex<Block>,
    /// True while there is a block, so that a process without one does not wait for the lock, which is held while the
    /// terminal is written to.
    is_drawn: AtomicBool,
    /// True if output that this process does not write may follow the block.
    is_abandoned: AtomicBool,
}

impl Screen {
    /// Prints a log line above the block. The block is removed, and is drawn again by its owner.
    ///
    /// # Errors
    ///
    /// Returns the error of the system.
    pub(crate) fn print(&self, line: &[u8]) -> io::Result<()> {
        let mut block = self.lock();
        let mut bytes = self.erased(&mut block);
        bytes.extend(line);
        io::stderr().lock().write_all(&bytes)
    }

    /// Draws the block in place of the one before, unless another job of the shell has the terminal. `lines` receives the
    /// number of columns.
    ///
    /// # Errors
    ///
    /// Returns the error of the system.
    pub(crate) fn draw(&self, lines: impl FnOnce(usize) -> Vec<String>) -> io::Result<()> {
        let mut block = self.lock();
        if tcgetpgrp(io::stderr().as_fd()).is_ok_and(|group| group != getpgrp()) {
            self.abandon();
        }
        let mut bytes = self.erased(&mut block);
        if !self.is_abandoned.swap(false, Ordering::Relaxed) {
            let size = size();
            bytes.extend(block.draw(&lines(size.columns), size));
        }
        self.is_drawn.store(!block.drawn.is_empty(), Ordering::Relaxed);
        io::stderr().lock().write_all(&bytes)
    }

    /// Removes the block, if it is there.
    ///
    /// # Errors
    ///
    /// Returns the error of the system.
    pub(crate) fn erase(&self) -> io::Result<()> {
        self.remove(&mut self.lock())
    }

    /// Removes the block until the next start, before output of a worker is written.
    pub(crate) fn make_way(&self) {
        if self.is_drawn.load(Ordering::Relaxed) {
            self.suspend(&mut self.lock());
        }
    }

    /// Removes the block until the next start, unless another thread writes at present.
    pub(crate) fn try_make_way(&self) {
        if let Ok(mut block) = self.block.try_lock() {
            self.suspend(&mut block);
        }
    }

    /// Notes that a start begins, after workers of this node have run or not: the block may be drawn.
    pub(crate) fn handle_start(&self, follows_workers: bool) {
        let mut block = self.lock();
        block.is_suspended = false;
        block.follows_workers |= follows_workers;
    }

    /// Leaves the block where it is: output that this process does not write may follow it. Does not wait for the terminal.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    fn suspend(&self, block: &mut Block) {
        block.is_suspended = true;
        block.follows_workers = true;
        // The output follows in any case.
        let _ = self.remove(block);
    }

    fn remove(&self, block: &mut Block) -> io::Result<()> {
        let bytes = self.erased(block);
        if bytes.is_empty() { Ok(()) } else { io::stderr().lock().write_all(&bytes) }
    }

    /// Returns the bytes that remove the block.
    fn erased(&self, block: &mut Block) -> Vec<u8> {
        self.is_drawn.store(false, Ordering::Relaxed);
        if self.is_abandoned.load(Ordering::Relaxed) {
            block.drawn.clear();
        }
        if block.drawn.is_empty() { Vec::new() } else { block.erase(size()) }
    }

    fn lock(&self) -> MutexGuard<'_, Block> {
        // A panic does not leave the block in another state than the terminal.
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the size of the terminal.
fn size() -> Size {
    let known = unix::window_size(io::stderr().as_fd());
    known.map_or_else(Size::default, |(columns, rows)| Size {
        columns: columns.into(),
        rows: rows.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { columns: 20, rows: 24 };

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    /// A block is drawn over the one before, and nothing is written to remove none.
    #[test]
    fn block_is_replaced() {
        let mut block = Block::default();
        assert_eq!(block.erase(SIZE), b"");
        assert_eq!(block.draw(&lines(&["a", "b"]), SIZE), b"a\x1b[K\nb\x1b[K\n");
        assert_eq!(block.draw(&lines(&["c"]), SIZE), b"\r\x1b[2A\x1b[Jc\x1b[K\n");
        assert_eq!(block.erase(SIZE), b"\r\x1b[1A\x1b[J");
        assert_eq!(block.erase(SIZE), b"");
    }

    /// Lines take one row each, and the block leaves a row for the cursor.
    #[test]
    fn block_fits_the_terminal() {
        let mut block = Block::default();
        let text = lines(&["12345678901234567890", "é234567890123456789", "c"]);
        let size = Size { columns: 20, rows: 3 };
        let drawn = block.draw(&text, size);
        let expected = "1234567890123456...\x1b[K\né23456789012345...\x1b[K\n";
        assert_eq!(String::from_utf8(drawn).unwrap(), expected);
        assert_eq!(cut("abc", 2), "..");
        assert_eq!(cut("abc", 0), "");
        assert!(block.draw(&text, Size { columns: 1, rows: 1 }).is_empty());
    }

    /// A terminal that has become narrower than the block keeps it: no other line is removed.
    #[test]
    fn narrower_terminal_keeps_the_block() {
        let mut block = Block::default();
        block.draw(&lines(&["1234567890"]), SIZE);
        assert_eq!(block.draw(&lines(&["a"]), Size { columns: 9, rows: 24 }), b"a\x1b[K\n");
        block.draw(&lines(&["a", "b"]), SIZE);
        assert_eq!(block.erase(Size { columns: 20, rows: 2 }), b"");
    }

    /// After output of workers, the block is not drawn until the next start, and then begins on a line of its own.
    #[test]
    fn block_makes_way_for_workers() {
        let mut block = Block { is_suspended: true, follows_workers: true, ..Block::default() };
        assert_eq!(block.draw(&lines(&["a"]), SIZE), b"");
        let screen = Screen { block: Mutex::new(block), ..Screen::default() };
        screen.handle_start(false);
        let expected = [&[b' '; 20][..], b"\ra\x1b[K\n"].concat();
        assert_eq!(screen.lock().draw(&lines(&["a"]), SIZE), expected);
        assert_eq!(screen.erased(&mut screen.lock()), b"\r\x1b[1A\x1b[J");
        assert_eq!(screen.lock().draw(&lines(&["a"]), SIZE), b"a\x1b[K\n");
        screen.abandon();
        assert_eq!(screen.erased(&mut screen.lock()), b"", "other output may follow it");
        assert_eq!(screen.lock().draw(&lines(&["a"]), SIZE), b"a\x1b[K\n");
    }
}
