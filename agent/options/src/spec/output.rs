//! Reads the destinations of the workers' output, and which parts of it are copied.

use std::ffi::{OsStr, OsString};

use ragent_base::{
    output::{
        filters::{LineFilters, ShownRanks},
        streams::{Stream, StreamMap, Streams},
    },
    report::telemetry::LogFormat,
    sys::host::Host,
};
use ragent_rendezvous::ids::{GlobalRank, LocalRank};

use super::{Argument, RankRanges, UsageError, arguments::Arguments, substitute};
use crate::cli::LaunchArgs;

/// The destinations of the workers' output, and which parts of it are copied.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// The streams that go to files, or to the console and files.
    pub map: StreamMap,
    /// The workers whose output the console shows, by local rank.
    pub shown: ShownRanks,
    /// The workers whose output the console shows, by global rank; all if `None`. A worker needs to be in both.
    pub shown_globally: Option<RankRanges>,
    /// The lines that are copied of a stdout that goes to both.
    pub stdout_filters: LineFilters,
    /// The lines that are copied of a stderr that goes to both.
    pub stderr_filters: LineFilters,
    /// The prefix of lines of those; if it is `None`, `[<role><local rank>]:`.
    pub prefix: Option<String>,
    /// True if lines that go only to the console have the prefix too.
    pub marks_lines: bool,
    /// True if lines about rounds are printed by group rank 0 only.
    pub first_node_lines: bool,
    /// True if a line says that the job has succeeded. `ragent check` prints none, because it may have found bad nodes.
    pub announces_success: bool,
}

/// The destination of one stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sink {
    /// The agent's own stream, without changes.
    Console,
    /// A file only.
    File,
    /// The agent's own stream, line by line with a prefix.
    Lines,
    /// None: the output is discarded.
    Null,
    /// A file, and the agent's own stream, line by line with a prefix.
    Tee,
}

/// The values for a prefix.
#[derive(Clone, Copy, Debug)]
pub struct PrefixValues<'a> {
    /// `${role_name}`.
    pub role: &'a str,
    /// `${local_rank}`.
    pub local_rank: LocalRank,
    /// `${rank}`.
    pub global_rank: u32,
    /// `${hostname}`.
    pub host_name: &'a str,
}

impl Output {
    /// Returns the destination of `stream` of the worker with these ranks.
    pub fn sink(&self, rank: LocalRank, global_rank: GlobalRank, stream: Stream) -> Sink {
        let ranks = self.shown_globally.as_ref();
        let is_shown =
            self.shown.shows(rank) && ranks.is_none_or(|ranks| ranks.contains(global_rank.0));
        if self.map.tee.has(rank, stream) && is_shown {
            Sink::Tee
        } else if self.has_file(rank, stream) {
            Sink::File
        } else if is_shown && self.marks_lines {
            Sink::Lines
        } else if is_shown {
            Sink::Console
        } else {
            Sink::Null
        }
    }

    /// Returns true if `stream` of the worker with `rank` goes to a file.
    pub fn has_file(&self, rank: LocalRank, stream: Stream) -> bool {
        self.map.tee.has(rank, stream) || self.map.redirects.has(rank, stream)
    }

    /// Returns true if any output of the first `workers` goes to a file.
    pub fn writes_files(&self, workers: u32) -> bool {
        let streams = [Stream::Stdout, Stream::Stderr];
        (0..workers)
            .any(|rank| streams.iter().any(|stream| self.has_file(LocalRank(rank), *stream)))
    }

    /// Returns the filters for lines of a stream that goes to both.
    pub fn filters(&self, stream: Stream) -> &LineFilters {
        match stream {
            Stream::Stdout => &self.stdout_filters,
            Stream::Stderr => &self.stderr_filters,
        }
    }

    /// Returns the prefix of a worker's lines.
    pub fn prefix(&self, values: PrefixValues<'_>) -> OsString {
        let PrefixValues { role, local_rank, global_rank, host_name } = values;
        let (local_rank, rank) = (local_rank.to_string(), global_rank.to_string());
        let template = self.prefix.as_deref().unwrap_or("[${role_name}${local_rank}]:");
        substitute(
            OsStr::new(template),
            &[
                ("role_name", role),
                ("local_rank", &local_rank),
                ("rank", &rank),
                ("hostname", host_name),
            ],
        )
    }
}

impl<H: Host> Arguments<'_, H> {
    pub(super) fn output(&self) -> Result<Output, UsageError> {
        let args = self.args;
        let redirects = self.streams("redirects", &args.redirects)?;
        let tee = self.streams("tee", &args.tee)?;
        let filters = |name, typed| match self.text(name, typed) {
            Some(text) => LineFilters::parse(&text),
            None => LineFilters::default(),
        };
        let template = self.text("log_line_prefix_template", &args.log_line_prefix_template);
        let template = template.filter(|template| !template.is_empty()).or_else(|| {
            Some(self.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")?.text)
                .filter(|template| !template.is_empty())
        });
        let output = Output {
            map: StreamMap { redirects, tee },
            shown: self.shown_ranks()?,
            shown_globally: self.globally_shown_ranks()?,
            stdout_filters: filters("duplicate_stdout_filters", &args.duplicate_stdout_filters),
            stderr_filters: filters("duplicate_stderr_filters", &args.duplicate_stderr_filters),
            prefix: template,
            marks_lines: args.mark_lines,
            first_node_lines: args.first_node_lines,
            announces_success: true,
        };
        let copies = !(output.stdout_filters.is_empty() && output.stderr_filters.is_empty());
        if copies && self.text("log_dir", &args.log_dir).as_deref() == Some("/dev/null") {
            return Err(UsageError::new(
                "`--duplicate-stdout-filters` and `--duplicate-stderr-filters` write to the log \
                 folder, but `--log-dir /dev/null` disables it",
            ));
        }
        Ok(output)
    }

    fn streams(&self, name: &str, typed: &Option<String>) -> Result<Streams, UsageError> {
        let Some(given) = self.argument(name, typed) else { return Ok(Streams::default()) };
        let problem = "is neither a number from 0 to 3 nor `RANK:N,…`";
        given.text.parse().map_err(|()| given.invalid(problem))
    }

    fn shown_ranks(&self) -> Result<ShownRanks, UsageError> {
        let Some(given) = self.argument("local_ranks_filter", &self.args.local_ranks_filter) else {
            return Ok(ShownRanks::default());
        };
        ShownRanks::parse(&given.text)
            .map_err(|_| given.is_not("a list of local ranks, such as `0,1`"))
    }

    fn globally_shown_ranks(&self) -> Result<Option<RankRanges>, UsageError> {
        let Some(given) = self.argument("ranks_filter", &self.args.ranks_filter) else {
            return Ok(None);
        };
        let ranks = given.text.parse();
        ranks.map(Some).map_err(|()| given.is_not("a list of ranks, such as `0,8-15`"))
    }
}

/// Returns the format that `--log-format` selects.
///
/// # Errors
///
/// Returns [`UsageError`] if the value is not a known format.
pub fn log_format(args: &LaunchArgs) -> Result<LogFormat, UsageError> {
    let given = Argument::of_flag("--log-format", &args.log_format);
    match given.as_ref().map(|given| (given, given.text.as_str())) {
        None | Some((_, "text")) => Ok(LogFormat::Text),
        Some((_, "json")) => Ok(LogFormat::Json),
        Some((given, _)) => Err(given.invalid("is neither `text` nor `json`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(redirects: &str, tee: &str, shown: &str) -> Output {
        let map = StreamMap { redirects: redirects.parse().unwrap(), tee: tee.parse().unwrap() };
        Output { map, shown: ShownRanks::parse(shown).unwrap(), ..Output::default() }
    }

    fn sinks(output: &Output, rank: u32) -> [Sink; 2] {
        let rank = |stream| output.sink(LocalRank(rank), GlobalRank(8 + rank), stream);
        [Stream::Stdout, Stream::Stderr].map(rank)
    }

    /// `--tee` includes the file, even if `--redirects` does not.
    #[test]
    fn tee_wins_over_redirects() {
        assert_eq!(sinks(&output("3", "0:1", ""), 0), [Sink::Tee, Sink::File]);
        assert_eq!(sinks(&Output::default(), 0), [Sink::Console; 2]);
    }

    /// Lines for the console can have a prefix without a copy in a file.
    #[test]
    fn marked_lines() {
        let output = Output { marks_lines: true, ..output("1", "0", "0") };
        assert_eq!(sinks(&output, 0), [Sink::File, Sink::Lines]);
        assert_eq!(sinks(&output, 1), [Sink::File, Sink::Null]);
    }

    /// Output that the console does not show goes to its file, or is discarded.
    #[test]
    fn hidden_ranks() {
        let output = output("0:1,1:1", "1:2", "0");
        assert_eq!(sinks(&output, 0), [Sink::File, Sink::Console]);
        assert_eq!(sinks(&output, 1), [Sink::File, Sink::File]);
        assert_eq!(sinks(&output, 2), [Sink::Null; 2]);
    }

    /// A filter of global ranks hides the console only, and so does one of local ranks.
    #[test]
    fn hidden_global_ranks() {
        let shown_globally = Some("0,8-9".parse().unwrap());
        let output = Output { shown_globally, ..output("0", "2", "1,2") };
        assert_eq!(sinks(&output, 0), [Sink::Null, Sink::File]);
        assert_eq!(sinks(&output, 1), [Sink::Console, Sink::Tee]);
        assert_eq!(sinks(&output, 2), [Sink::Null, Sink::File]);
        assert!(output.writes_files(1));
    }

    /// The prefix is torchrun's, or the user's with its names replaced.
    #[test]
    fn prefixes() {
        let values = PrefixValues {
            role: "trainer",
            local_rank: LocalRank(1),
            global_rank: 9,
            host_name: "node1",
        };
        assert_eq!(Output::default().prefix(values), "[trainer1]:");
        let prefix = Some("${hostname}/$rank $who ".to_owned());
        assert_eq!(Output { prefix, ..Output::default() }.prefix(values), "node1/9 $who ");
    }
}
