//! Reads what agents get of an environment: `-x NAME`, `-x NAME=VALUE`, `--env-file`.

use std::ffi::OsString;

use super::mistake::Mistake;
use crate::{host::Host, limits};

/// A variable that agents get.
pub(crate) type Variable = (String, OsString);

/// The variables of a file: `NAME=VALUE`, with `export` or without; `NAME` alone takes the value from
/// here. Values may be quoted as in a shell; nothing in them is replaced. Behind `#` stands a comment.
///
/// # Errors
///
/// Returns every line that is none of these.
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

/// The variables of `-x`, as given.
///
/// # Errors
///
/// Returns every one that is not set here, or has no name.
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

/// Either every variable, or every mistake.
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

/// A value without its quotes and without a comment behind it; none if a quote is not closed.
fn unquoted(text: &str) -> Option<String> {
    let mut value = String::new();
    // White space outside of quotes, which counts only if something follows.
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

/// What stands up to the closing `quote`; none if it is not closed.
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
    use crate::host::MadeUpHost;

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

    /// A file is read as a shell would read it, but that nothing is replaced.
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

    /// Every line that means nothing is told, with its number.
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

    /// A flag gives a value, or takes it from here; a secret is not repeated.
    #[test]
    fn flags() {
        let given = ["HERE", "A=b=c"].map(str::to_owned);
        let pair = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        assert_eq!(of_flags(&given, &host()).unwrap(), [pair("HERE", "yes"), pair("A", "b=c")]);
        let mistakes = of_flags(&["A B=secret".to_owned()], &host()).unwrap_err();
        assert!(!mistakes[0].to_string().contains("secret"));
    }

    proptest! {
        /// Whatever is in a file, it is read or refused.
        #[test]
        fn never_panics(text in "(?s).{0,200}") {
            let _ = of_file("env", &text, &host());
        }

        /// The same for what looks like one.
        #[test]
        fn never_panics_on_likely_text(text in "([A-C=#'\"\\\\ \nn]|export ){0,40}") {
            let _ = of_file("env", &text, &host());
        }
    }
}
