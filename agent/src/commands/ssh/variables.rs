//! Parses the environment variables for agents: `-x NAME`, `-x NAME=VALUE`, `--env-file`.
//!
//! The crate `dotenvy` is not used. It expands variables in values. Its errors have the text of a line, which may be a secret, but not the
//! line's number.

use std::ffi::OsString;

use ragent_base::sys::host::Host;
use ragent_options::spec::{UsageError, UsageErrors};

use crate::commands::ssh::limits;

/// The name and value of a variable for agents.
pub(crate) type Variable = (String, OsString);

/// Parses a file of variables.
///
/// - A line is `NAME=VALUE`, with or without `export`.
/// - `NAME` alone takes the value of this process.
/// - Values may be quoted as in a shell. Nothing in them is expanded.
/// - `#` begins a comment.
pub(super) fn of_file(
    path: &str,
    text: &str,
    host: &impl Host,
    errors: &mut UsageErrors,
) -> Vec<Variable> {
    let lines = (1..).zip(text.trim_start_matches('\u{feff}').lines());
    let lines = lines.filter(|(_, line)| !matches!(line.trim().chars().next(), None | Some('#')));
    let variable = |(number, line): (u32, &str)| {
        let source = format!("--env-file {path}:{number}");
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let Some((name, value)) = line.split_once('=') else {
            return taken_from_here(&source, line, host);
        };
        let value = unquoted(value.trim()).ok_or_else(|| open_quote(&source, name))?;
        let name = checked(&source, name)?;
        if value.contains('\0') || value.len() > limits::MAX_VARIABLE {
            return Err(UsageError::new(format!(
                "`{source}` gives `{name}` a value that contains a NUL or is longer than 127 KiB"
            ))
            .with_hint("let the program read it from a file on each host"));
        }
        Ok((name, value.into()))
    };
    lines.filter_map(|line| errors.ok(variable(line))).collect()
}

/// Returns the error of a quote that is not closed in `text`.
pub(super) fn open_quote(source: &str, text: &str) -> UsageError {
    UsageError::new(format!("`{source}`: a quote is not closed in `{text}`"))
        .with_hint("close it, or write a backslash before it")
}

/// Parses the variables of `-x`.
pub(super) fn of_flags(
    flags: &[String],
    host: &impl Host,
    errors: &mut UsageErrors,
) -> Vec<Variable> {
    let variable = |flag: &String| {
        let source = format!("-x {flag}");
        match flag.split_once('=') {
            Some((name, value)) => Ok((checked(&format!("-x {name}"), name)?, value.into())),
            None => taken_from_here(&source, flag, host),
        }
    };
    flags.iter().filter_map(|flag| errors.ok(variable(flag))).collect()
}

fn taken_from_here(source: &str, name: &str, host: &impl Host) -> Result<Variable, UsageError> {
    let name = checked(source, name)?;
    match host.env(&name) {
        Some(value) => Ok((name, value)),
        None => Err(UsageError::new(format!("`{source}`: {name} is not set on this host"))
            .with_hint("set it, or give a value as NAME=VALUE")),
    }
}

fn checked(source: &str, name: &str) -> Result<String, UsageError> {
    let name = name.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && name.chars().all(fits) {
        return Ok(name.to_owned());
    }
    let message = format!("`{source}`: `{name}` is not a valid variable name");
    Err(UsageError::new(message).with_hint("give NAME, or NAME=VALUE"))
}

/// Returns a value without its quotes and without a trailing comment. Returns `None` if a quote is not closed.
fn unquoted(text: &str) -> Option<String> {
    let mut value = String::new();
    // White space outside of quotes. It is kept only if other text follows.
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

/// Takes the text up to the closing `quote`. Returns `None` if it is not closed.
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
    use ragent_base::sys::host::FakeHost;

    use super::*;

    fn host() -> FakeHost {
        let mut host = FakeHost::default();
        host.env.insert("HERE".to_owned(), "yes".into());
        host
    }

    fn file(text: &str) -> Result<Vec<(String, String)>, Vec<UsageError>> {
        let mut errors = UsageErrors::default();
        let variables = of_file("env", text, &host(), &mut errors);
        let text = |(name, value): Variable| (name, value.into_string().unwrap());
        errors.into_result(variables.into_iter().map(text).collect())
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
        let errors = file("1A=x\nOK=1\nB='x\nTHERE").unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "`--env-file env:1`: `1A` is not a valid variable name",
                "`--env-file env:3`: a quote is not closed in `B`",
                "`--env-file env:4`: THERE is not set on this host",
            ]
        );
    }

    /// A flag gives a value, or takes it from this process. An error does not contain the value.
    #[test]
    fn flags() {
        let given = ["HERE", "A=b=c"].map(str::to_owned);
        let pair = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        let mut errors = UsageErrors::default();
        let variables = of_flags(&given, &host(), &mut errors);
        assert_eq!(variables, [pair("HERE", "yes"), pair("A", "b=c")]);
        of_flags(&["A B=secret".to_owned()], &host(), &mut errors);
        let error = errors.into_result(()).unwrap_err().remove(0).to_string();
        assert!(error.contains("`A B`") && !error.contains("secret"), "{error}");
    }

    proptest! {
        /// Every text of a file is either accepted or refused.
        #[test]
        fn never_panics(text in "(?s).{0,200}") {
            let _ = file(&text);
        }

        /// Text that resembles a file of variables never causes a panic.
        #[test]
        fn never_panics_on_likely_text(text in "([A-C=#'\"\\\\ \nn]|export ){0,40}") {
            let _ = file(&text);
        }
    }
}
