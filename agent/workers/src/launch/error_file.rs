//! Reads the error file that a script wrote to `TORCHELASTIC_ERROR_FILE`.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use ragent_base::output::tail::last_bytes;
use serde_json::Value;

use crate::limits;

/// Reads the message in the error file at `path`; `None` if it cannot be read.
pub(crate) fn message(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(limits::MAX_ERROR_FILE).read_to_string(&mut text).ok()?;
    Some(parse(&text))
}

/// Returns the age of the error file at `path` at the wall-clock time `wall_now`. `None` if it does not exist; zero if it was written
/// later.
pub(crate) fn age(path: &Path, wall_now: Duration) -> Option<Duration> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    let written = written.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(wall_now.saturating_sub(written))
}

/// Extracts the message. torch writes `{"message": {"message": …, "extraInfo": {"py_callstack":
/// …}}}`, and also reads `{"message": "…"}`. Any other text is the message itself.
fn parse(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let message = &value["message"];
    let callstack = message["extraInfo"]["py_callstack"].as_str();
    let short = message["message"].as_str().or_else(|| message.as_str());
    let message = match (short, callstack) {
        // The last line of a callstack repeats the message.
        (_, Some(callstack)) if !callstack.is_empty() => callstack,
        (Some(short), _) => short,
        (None, _) => text,
    };
    shorten(message.trim_end())
}

/// Returns the end of `text`, where tracebacks have the error.
fn shorten(text: &str) -> String {
    let end = last_bytes(text, limits::ERROR_MESSAGE);
    if end.len() == text.len() { text.to_owned() } else { format!("…{end}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The age depends on the given time, not on the time at which the file is examined.
    #[test]
    fn age_is_that_of_a_given_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        assert_eq!(age(&path, Duration::MAX), None);
        fs::write(&path, "{}").unwrap();
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        let written = written.duration_since(UNIX_EPOCH).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(age(&path, written + second), Some(second));
        assert_eq!(age(&path, written.saturating_sub(second)), Some(Duration::ZERO));
    }

    /// Both of torch's forms are parsed, and any other text is kept.
    #[test]
    fn forms_of_an_error_file() {
        let full = r#"{"message": {"message": "ValueError: x", "extraInfo":
            {"py_callstack": "Traceback\n  line\nValueError: x\n", "timestamp": "17"}}}"#;
        assert_eq!(parse(full), "Traceback\n  line\nValueError: x");
        assert_eq!(parse(r#"{"message": "gone", "timestamp": 3}"#), "gone");
        assert_eq!(parse("not json"), "not json");
    }

    /// A long traceback keeps its end.
    #[test]
    fn long_messages_keep_their_end() {
        let text = format!("{}é the end", "é".repeat(limits::ERROR_MESSAGE));
        let short = parse(&text);
        assert!(short.len() <= limits::ERROR_MESSAGE + 3 && short.ends_with("the end"));
    }
}
