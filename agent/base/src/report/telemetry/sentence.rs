//! The text of an event for people.

use std::fmt;

use ragent_proto::printable_line;
use tracing::field::{Field, Visit};

/// An event as one sentence: `message (field value, field value): cause`.
#[derive(Debug, Default)]
pub(super) struct Sentence {
    message: String,
    details: Vec<String>,
    cause: Option<String>,
}

impl Sentence {
    fn add(&mut self, field: &str, value: &str) {
        // It may come from another node.
        let value = printable_line(value);
        match field {
            "message" => self.message = value,
            "error" | "cause" | "reason" => self.cause = Some(value),
            // Users know rounds by their number, without the term of the coordinator.
            "round" => {
                let number = value.rsplit('.').next().unwrap_or_default();
                self.details.push(format!("round {number}"));
            }
            field => self.details.push(format!("{} {value}", field.replace('_', " "))),
        }
    }
}

impl Visit for Sentence {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.details.is_empty() {
            write!(f, " ({})", self.details.join(", "))?;
        }
        self.cause.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event with fields is one sentence for people, with the cause last; it has no control characters.
    #[test]
    fn event_is_a_sentence() {
        let mut sentence = Sentence::default();
        let fields = [
            ("message", "failed to write the log"),
            ("path", "/l\u{1b}[2J"),
            ("error", "no\nspace"),
            ("round", "2.17"),
            ("scope_id", "s"),
        ];
        fields.iter().for_each(|(field, value)| sentence.add(field, value));
        let expected = "failed to write the log (path /l[2J, round 17, scope id s): no space";
        assert_eq!(sentence.to_string(), expected);
        let mut sentence = Sentence::default();
        sentence.add("message", "the keeper has ended");
        assert_eq!(sentence.to_string(), "the keeper has ended");
    }
}
