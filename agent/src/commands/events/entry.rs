//! Reads events from the lines of a journal.

use jiff::{Timestamp, tz::TimeZone};
use ragent_rendezvous::event::EventId;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// An event of a journal. Unknown fields are ignored, because a later version may add some.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(in crate::commands) struct JournalEntry {
    /// Its id.
    #[serde(deserialize_with = "id")]
    pub(in crate::commands) id: EventId,
    /// The time at which the coordinator has recorded it.
    pub(in crate::commands) at: Timestamp,
    /// The run id of the job.
    #[serde(default)]
    pub(in crate::commands) run_id: String,
    /// The identity of the run.
    #[serde(default)]
    pub(in crate::commands) job_uid: String,
    /// The newest round when the coordinator recorded it.
    pub(in crate::commands) round: u64,
    /// The name of its kind.
    pub(in crate::commands) kind: String,
    /// The host of its node, if it is about one.
    pub(in crate::commands) host: Option<String>,
    /// The event that caused it.
    #[serde(default, deserialize_with = "optional_id")]
    pub(in crate::commands) cause: Option<EventId>,
    /// The sentence for people.
    pub(in crate::commands) text: String,
    /// The details.
    #[serde(default)]
    pub(in crate::commands) data: Value,
    /// The length of its line in bytes.
    #[serde(skip)]
    pub(in crate::commands) len: usize,
}

impl JournalEntry {
    /// Reads a line; `None` if it is not an event of a known schema.
    pub(in crate::commands) fn read(line: &str) -> Option<Self> {
        let entry = serde_json::from_str(line).ok()?;
        Some(Self { len: line.len(), ..entry })
    }

    /// Returns the local time of day with milliseconds.
    pub(in crate::commands) fn time_of_day(&self) -> String {
        self.at.to_zoned(TimeZone::system()).strftime("%H:%M:%S%.3f").to_string()
    }
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<EventId, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| D::Error::custom("not the id of an event"))
}

fn optional_id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<EventId>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(|_| D::Error::custom("not the id of an event")))
        .transpose()
}
