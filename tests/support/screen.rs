//! Shows a program that draws on its whole screen a pseudo terminal, and reads the text on the screen.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::Stdio,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::{
    pty::{Winsize, openpty},
    sys::termios::{Termios, tcgetattr},
};
use ragent_base::sys::clock;

use super::PATIENCE;

/// A pseudo terminal.
#[derive(Debug)]
pub struct ScreenTerminal {
    keys: File,
    /// The end for programs.
    end: OwnedFd,
    settings: Termios,
    output: Receiver<Vec<u8>>,
    screen: Screen,
}

impl ScreenTerminal {
    /// Creates a terminal of this size.
    pub fn new(columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("the system has pseudo terminals");
        let settings = tcgetattr(&pty.slave).expect("it is a terminal");
        let keys = File::from(pty.master);
        let mut master = keys.try_clone().expect("a descriptor can be copied");
        let (to, output) = mpsc::channel();
        thread::spawn(move || {
            let mut part = [0; 4096];
            // It ends when all other ends are closed, or the test is over.
            while let Ok(len) = master.read(&mut part)
                && len > 0
                && to.send(part[..len].to_vec()).is_ok()
            {}
        });
        let screen = Screen::new(columns, rows);
        Self { keys, end: pty.slave, settings, output, screen }
    }

    /// A stream of a program in this terminal.
    pub fn stdio(&self) -> Stdio {
        self.end.try_clone().expect("a descriptor can be copied").into()
    }

    /// Types `keys`.
    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Waits until the screen contains `part`, and returns its text.
    #[track_caller]
    pub fn shows(&mut self, part: &str) -> String {
        self.wait(&format!("`{part}` on the screen"), |text| text.contains(part))
    }

    /// Waits until the screen does not contain `part`, and returns its text.
    #[track_caller]
    pub fn hides(&mut self, part: &str) -> String {
        self.wait(&format!("a screen without `{part}`"), |text| !text.contains(part))
    }

    #[track_caller]
    fn wait(&mut self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            let text = self.screen.text();
            if is_shown(&text) {
                return text;
            }
            let left = deadline.saturating_duration_since(clock::now_blocking());
            match self.output.recv_timeout(left) {
                Ok(part) => self.screen.write(&part),
                Err(why) => panic!("waiting for {what}: {why}\n{text}"),
            }
        }
    }

    /// Fails unless the settings are those from before the program, the cursor is shown, and the program's own screen is left. Waits for
    /// the output of a program that has ended.
    #[track_caller]
    pub fn assert_restored(&mut self) {
        let deadline = clock::now_blocking() + PATIENCE;
        while self.screen.is_alternate || self.screen.is_cursor_hidden {
            let left = deadline.saturating_duration_since(clock::now_blocking());
            let part = self.output.recv_timeout(left).expect("the screen is left");
            self.screen.write(&part);
        }
        let settings = tcgetattr(&self.end).expect("it is a terminal");
        assert_eq!(settings.local_flags, self.settings.local_flags);
        assert_eq!(settings.input_flags, self.settings.input_flags);
        assert_eq!(settings.output_flags, self.settings.output_flags);
    }
}

/// The cells of a screen. It understands only what ragent writes: text, positions, clearing, and the two screens.
#[derive(Debug)]
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    is_alternate: bool,
    is_cursor_hidden: bool,
    /// The start of a character or of a sequence whose rest was not read yet.
    pending: Vec<u8>,
}

impl Screen {
    fn new(columns: u16, rows: u16) -> Self {
        let cells = vec![vec![' '; columns.into()]; rows.into()];
        let (row, column, pending) = (0, 0, Vec::new());
        Self { cells, row, column, is_alternate: false, is_cursor_hidden: false, pending }
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned() + "\n";
        self.cells.iter().map(line).collect()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
        while let Some(len) = self.write_first() {
            self.pending.drain(..len);
        }
    }

    /// Handles the first character or sequence. Returns its length, or `None` if it is not complete.
    fn write_first(&mut self) -> Option<usize> {
        match *self.pending.first()? {
            0x1b => {
                if *self.pending.get(1)? != b'[' {
                    return Some(2);
                }
                let len = self.pending[2..].iter().position(|byte| (0x40..=0x7e).contains(byte))?;
                let parameters = String::from_utf8_lossy(&self.pending[2..2 + len]).into_owned();
                self.control(char::from(self.pending[2 + len]), &parameters);
                Some(len + 3)
            }
            b'\r' => {
                self.column = 0;
                Some(1)
            }
            b'\n' => {
                self.row += 1;
                Some(1)
            }
            first => {
                let len = match first {
                    0..0x80 => 1,
                    0x80..0xe0 => 2,
                    0xe0..0xf0 => 3,
                    0xf0.. => 4,
                };
                let text = String::from_utf8_lossy(self.pending.get(..len)?).into_owned();
                if let Some(cell) =
                    self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column))
                {
                    *cell = text.chars().next().unwrap_or(' ');
                }
                self.column += 1;
                Some(len)
            }
        }
    }

    fn control(&mut self, command: char, parameters: &str) {
        let mut numbers = parameters.split(';').map(|number| number.parse::<usize>().unwrap_or(1));
        match (command, parameters) {
            ('H', _) => {
                let mut next = || numbers.next().unwrap_or(1).saturating_sub(1);
                (self.row, self.column) = (next(), next());
            }
            ('J', "2") => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            ('h', "?1049") => self.is_alternate = true,
            ('l', "?1049") => {
                self.is_alternate = false;
                self.cells.iter_mut().for_each(|row| row.fill(' '));
            }
            ('l', "?25") => self.is_cursor_hidden = true,
            ('h', "?25") => self.is_cursor_hidden = false,
            // Colours, and what changes no text.
            _ => {}
        }
    }
}
