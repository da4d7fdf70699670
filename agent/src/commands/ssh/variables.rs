//! Parses the environment variables for agents: `-x NAME`, `-x NAME=VALUE`, `--env-file`.
//!
//! The crate `dotenvy` is not used: it expands variables in values, and its errors contain the text
//! of a line, which may be a secret, and not its number.

use std::ffi::OsString;

use super::mistake::Mistake;
use crate::{limits, sys::host::Host};

/// The name and value of a variable for agents.
pub(crate) type Variable = (String, OsString);

/// Parses a file of variables: lines `NAME=VALUE`, with or without `export`; `NAME` alone takes the
/// value of this process. Values may be quoted as in a shell; nothing in them is expanded. `#`
/// begins a comment.
///
/// # Errors
///
/// Returns a mistake for every invalid line.
pub(super) fn of_file(
    path: &str,
    text: &str,
    host: &impl Host,
) -> Result<Vec<Variable>, Vec<Mistake>> {
    let lines = (1..).zip(text.trim_start_matches('\u{feff}').lines());
    let lines = lines.filter(|(_, line)| !matches!(line.trim().chars().next(), None | Some('#')));
    let variables: Vec<_> = lines
        .map(|(number, line)| {
            let source = format!("--env-file {path}:{number}");
            let line = line.trim();
            let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
            let Some((name, value)) = line.split_once('=') else {
                return taken_from_here(&source, line, host);
            };
            let value = unquoted(value.trim()).ok_or_else(|| Mistake::OpenQuote {
                source_: source.clone(),
                text: name.to_owned(),
            })?;
            let name = checked(&source, name)?;
            if value.contains('\0') || value.len() > limits::MAX_VARIABLE {
                return Err(Mistake::VariableValue { source_: source, name });
            }
            Ok((name, value.into()))
        })
        .collect();
    all(variables)
}

/// Parses the variables of `-x`.
///
/// # Errors
///
/// Returns a mistake for every variable that is not set in this process or has an invalid name.
pub(super) fn of_flags(flags: &[String], host: &impl Host) -> Result<Vec<Variable>, Vec<Mistake>> {
    let variable = |flag: &String| {
        let source = format!("-x {flag}");
        match flag.split_once('=') {
            Some((name, value)) => Ok((checked(&format!("-x {name}"), name)?, value.into())),
            None => taken_from_here(&source, flag, host),
        }
    };
    all(flags.iter().map(variable).collect())
}

/// Returns all variables, or all mistakes if there are any.
fn all(results: Vec<Result<Variable, Mistake>>) -> Result<Vec<Variable>, Vec<Mistake>> {
    let (mut variables, mut mistakes) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(variable) => variables.push(variable),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(variables) } else { Err(mistakes) }
}

fn taken_from_here(source: &str, name: &str, host: &impl Host) -> Result<Variable, Mistake> {
    let name = checked(source, name)?;
    match host.env(&name) {
        Some(value) => Ok((name, value)),
        None => Err(Mistake::NotSet { source_: source.to_owned(), name }),
    }
}

fn checked(source: &str, name: &str) -> Result<String, Mistake> {
    let name = name.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && name.chars().all(fits) {
        return Ok(name.to_owned());
    }
    Err(Mistake::VariableName { source_: source.to_owned(), name: name.to_owned() })
}

/// Returns a value without its quotes and without a trailing comment; `None` if a quote is not
/// closed.
fn unquoted(text: &str) -> Option<String> {
    let mut value = String::new();
    // White space outside of quotes, which is kept only if other text follows.
    let mut blank = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if !blank.is_empty() || (value.is_empty() && text.starts_with('#')) => break,
            c if c.is_whitespace() => blank.push(c),
            c => {
                value.push_str(&std::mem::take(&mut blank));
                match c {
                    '"' | '\'' => value.push_str(&quoted(c, &mut chars)?),
                    c => value.push(c),
                }
            }
        }
    }
    Some(value)
}

/// Takes the text up to the closing `quote`; returns `None` if it is not closed.
fn quoted(quote: char, chars: &mut impl Iterator<Item = char>) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            c if c == quote => return Some(text),
            '\\' if quote == '"' => match chars.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                escaped @ ('"' | '\\' | '$' | '`') => text.push(escaped),
                other => text.extend(['\\', other]),
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sys::host::MadeUpHost;

    fn host() -> MadeUpHost {
        let mut host = MadeUpHost::default();
        host.env.insert("HERE".to_owned(), "yes".into());
        host
    }

    fn file(text: &str) -> Result<Vec<(String, String)>, Vec<Mistake>> {
        let variables = of_file("env", text, &host())?;
        let text = |(name, value): Variable| (name, value.into_string().unwrap());
        Ok(variables.into_iter().map(text).collect())
    }

    /// A file is parsed as a shell would parse it, except that nothing is expanded.
    #[test]
    fn files() {
        let text = "# comment\n\nA=1\nexport B='two $A words'  # why\n C = \"x\\ty \\\"z\\\"\"\nHERE\n\
                    D=http://host/#part # that\nE=\nF=a'b c'd\r\n";
        let expected = [
            ("A", "1"),
            ("B", "two $A words"),
            ("C", "x\ty \"z\""),
            ("HERE", "yes"),
            ("D", "http://host/#part"),
            ("E", ""),
            ("F", "ab cd"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(file(text).unwrap(), expected);
    }

    /// Every invalid line is reported with its number.
    #[test]
    fn lines_that_mean_nothing() {
        let source = |line: u32| format!("--env-file env:{line}");
        let expected = [
            Mistake::VariableName { source_: source(1), name: "1A".to_owned() },
            Mistake::OpenQuote { source_: source(3), text: "B".to_owned() },
            Mistake::NotSet { source_: source(4), name: "THERE".to_owned() },
        ];
        assert_eq!(file("1A=x\nOK=1\nB='x\nTHERE").unwrap_err(), expected);
    }

    /// A flag gives a value, or takes it from this process; an error does not contain the value.
    #[test]
    fn flags() {
        let given = ["HERE", "A=b=c"].map(str::to_owned);
        let pair = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        assert_eq!(of_flags(&given, &host()).unwrap(), [pair("HERE", "yes"), pair("A", "b=c")]);
        let mistakes = of_flags(&["A B=secret".to_owned()], &host()).unwrap_err();
        assert!(!mistakes[0].to_string().contains("secret"));
    }

    proptest! {
        /// Every text of a file is either accepted or refused.
        #[test]
        fn never_panics(text in "(?s).{0,200}") {
            let _ = of_file("env", &text, &host());
        }

        /// Text that resembles a file of variables never causes a panic.
        #[test]
        fn never_panics_on_likely_text(text in "([A-C=#'\"\\\\ \nn]|export ){0,40}") {
            let _ = of_file("env", &text, &host());
        }
    }
}
