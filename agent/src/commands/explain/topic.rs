//! Reads which part of a job is to be explained.

use ragent_options::spec::UsageError;

/// The part of a job that is explained.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Topic {
    /// All of it, in short.
    Job,
    /// The newest restarts.
    Restart,
    /// The time account.
    Time,
    /// The nodes and voters that the job waits for.
    Wait,
    /// The stall of the workers.
    Stall,
    /// A worker, by global rank.
    Rank(u32),
    /// The nodes on a host.
    Node(String),
}

impl Topic {
    /// Reads the words of a topic.
    ///
    /// # Errors
    ///
    /// Returns [`UsageError`] if there is no such topic.
    pub(super) fn of(words: &[String]) -> Result<Self, UsageError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => Ok(Self::Job),
            ["restart"] => Ok(Self::Restart),
            ["time"] => Ok(Self::Time),
            ["wait"] => Ok(Self::Wait),
            ["stall"] => Ok(Self::Stall),
            ["rank", rank] => rank.parse().map(Self::Rank).map_err(|_| {
                UsageError::new(format!("invalid rank '{rank}': it is not a number"))
                    .with_hint("`ragent explain rank 3` explains the worker with RANK=3")
            }),
            ["node", host] => Ok(Self::Node(host.to_owned())),
            _ => Err(UsageError::new(format!("unknown topic '{}'", words.join(" "))).with_hint(
                "topics are `restart`, `time`, `wait`, `stall`, `rank N` and `node HOST`; without one, the job is explained",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(text: &str) -> Result<Topic, UsageError> {
        Topic::of(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    /// Each topic has its words. Other words are refused with the list of topics.
    #[test]
    fn topics_are_read() {
        for (text, expected) in [
            ("", Topic::Job),
            ("restart", Topic::Restart),
            ("time", Topic::Time),
            ("wait", Topic::Wait),
            ("stall", Topic::Stall),
            ("rank 11", Topic::Rank(11)),
            ("node n1", Topic::Node("n1".to_owned())),
        ] {
            assert_eq!(topic(text), Ok(expected), "{text}");
        }
        for (text, message) in [
            ("rank x", "invalid rank 'x': it is not a number"),
            ("rank -1", "invalid rank '-1': it is not a number"),
            ("rank", "unknown topic 'rank'"),
            ("restart 3", "unknown topic 'restart 3'"),
            ("hang", "unknown topic 'hang'"),
        ] {
            assert_eq!(topic(text).unwrap_err().to_string(), message);
        }
    }
}
