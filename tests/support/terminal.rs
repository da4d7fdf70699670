//! Runs a program in a pseudo terminal, and reads the text that it shows.

use std::{
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    process::Stdio,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::pty::{Winsize, openpty};
use ragent_base::sys::clock;

use super::PATIENCE;

/// A pseudo terminal.
#[derive(Debug)]
pub struct Terminal {
    /// The end of the programs. `None` once the test has closed it.
    programs: Option<OwnedFd>,
    output: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    grid: Grid,
}

impl Terminal {
    /// Creates a terminal of this size.
    pub fn new(columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).expect("the system has pseudo terminals");
        let (sender, output) = mpsc::channel();
        let mut own = File::from(pair.master);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            // After the last program has closed its end, reading fails.
            while let Ok(len) = own.read(&mut chunk) {
                if len == 0 || sender.send(chunk[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        let grid = Grid::new(columns.into(), rows.into());
        Self { programs: Some(pair.slave), output, bytes: Vec::new(), grid }
    }

    /// A stream of a program, connected to the terminal.
    #[track_caller]
    pub fn stdio(&self) -> Stdio {
        let end = self.programs.as_ref().expect("the terminal is open");
        end.try_clone().expect("a descriptor can be copied").into()
    }

    /// Waits until the terminal shows `part`.
    #[track_caller]
    pub fn shows(&mut self, part: &str) {
        self.receive_until(part, |terminal| terminal.text().contains(part));
    }

    /// Waits until the terminal no longer shows `part`.
    #[track_caller]
    pub fn hides(&mut self, part: &str) {
        self.receive_until(part, |terminal| !terminal.text().contains(part));
    }

    /// Waits until a condition holds for the text that the terminal shows.
    #[track_caller]
    pub fn shows_until(&mut self, is_so: impl Fn(&str) -> bool) {
        self.receive_until("another text", |terminal| is_so(&terminal.text()));
    }

    /// The text that the terminal shows, with the lines that have scrolled out at the top.
    pub fn text(&self) -> String {
        self.grid.text()
    }

    /// Waits until all programs have closed the terminal, and returns its text and all bytes that they wrote.
    #[track_caller]
    pub fn end(mut self) -> (String, Vec<u8>) {
        self.programs = None;
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(clock::now_blocking());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.receive(&bytes),
                Err(mpsc::RecvTimeoutError::Disconnected) => return (self.text(), self.bytes),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("still open:\n{}", self.text()),
            }
        }
    }

    #[track_caller]
    fn receive_until(&mut self, part: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = clock::now_blocking() + PATIENCE;
        while !is_so(self) {
            let left = deadline.saturating_duration_since(clock::now_blocking());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.receive(&bytes),
                Err(why) => panic!("waiting for `{part}`: {why}\n{}", self.text()),
            }
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        bytes.iter().for_each(|byte| self.grid.receive(*byte));
    }
}

/// The lines of a terminal that understands the escape sequences of a block: cursor up, and erase the rest of the line or of
/// the terminal.
#[derive(Debug)]
struct Grid {
    columns: usize,
    rows: usize,
    lines: Vec<Vec<u8>>,
    row: usize,
    /// The column of the cursor. It is the number of columns if the next character begins another row.
    column: usize,
    /// The bytes of an escape sequence that is not complete.
    escape: Vec<u8>,
}

impl Grid {
    fn new(columns: usize, rows: usize) -> Self {
        Self { columns, rows, lines: vec![Vec::new()], row: 0, column: 0, escape: Vec::new() }
    }

    fn text(&self) -> String {
        let line = |line: &Vec<u8>| String::from_utf8_lossy(line).trim_end().to_owned() + "\n";
        self.lines.iter().map(line).collect::<String>().trim_end().to_owned()
    }

    fn receive(&mut self, byte: u8) {
        if !self.escape.is_empty() || byte == 0x1b {
            self.escape.push(byte);
            if byte.is_ascii_alphabetic() {
                let sequence = std::mem::take(&mut self.escape);
                self.obey(&sequence);
            }
            return;
        }
        match byte {
            b'\r' => self.column = 0,
            b'\n' => self.go_down(),
            byte => {
                assert!(byte >= b' ', "an unexpected control character: {byte}");
                if self.column == self.columns {
                    self.column = 0;
                    self.go_down();
                }
                let line = &mut self.lines[self.row];
                line.resize(line.len().max(self.column + 1), b' ');
                line[self.column] = byte;
                self.column += 1;
            }
        }
    }

    fn go_down(&mut self) {
        self.row += 1;
        if self.row == self.lines.len() {
            self.lines.push(Vec::new());
        }
    }

    fn obey(&mut self, sequence: &[u8]) {
        let text = String::from_utf8_lossy(sequence);
        match text.strip_prefix("\x1b[").unwrap_or_default() {
            "K" => self.lines[self.row].truncate(self.column),
            "J" => {
                self.lines[self.row].truncate(self.column);
                self.lines.truncate(self.row + 1);
            }
            other => {
                let up = other.strip_suffix('A').and_then(|count| count.parse::<usize>().ok());
                let up = up.unwrap_or_else(|| panic!("an unexpected sequence: {text:?}"));
                // The cursor does not leave the terminal.
                let top = self.lines.len().saturating_sub(self.rows);
                self.row = self.row.saturating_sub(up).max(top);
                self.column = self.column.min(self.columns - 1);
            }
        }
    }
}
