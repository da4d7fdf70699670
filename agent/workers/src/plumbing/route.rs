//! Decides the destinations of a worker's stream.

use ragent_base::output::streams::Stream;
use ragent_options::spec::Sink;

/// The log file of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LogFile<F> {
    /// Logs are disabled (`--log-dir /dev/null`).
    Disabled,
    /// The folder of the worker's files could not be created.
    NoFolder,
    /// The folder exists, but the stream has no file in it: none is wanted, or it could not be opened.
    NoFile,
    /// The file is open.
    Open(F),
}

/// The destinations of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Route<F> {
    /// The agent's own stream, inherited by the worker.
    Inherited,
    /// None: the output is discarded.
    Null,
    /// The console, copied unchanged.
    Console,
    /// A file, copied unchanged.
    File(F),
    /// The console, line by line with a prefix, and optionally a file, unchanged.
    Lines(Option<F>),
}

/// Returns the destinations of `stream`, configured as `sink`.
///
/// If the file is missing, output goes to the console. stderr is copied even if it goes only to the
/// console, because its last lines are part of a failure's report. The exception is a terminal.
pub(super) fn route<F>(stream: Stream, sink: Sink, log: LogFile<F>, is_terminal: bool) -> Route<F> {
    match (sink, log) {
        (Sink::Lines, _) | (Sink::Tee, LogFile::NoFile) => Route::Lines(None),
        (Sink::Tee, LogFile::Open(file)) => Route::Lines(Some(file)),
        (Sink::File, LogFile::Open(file)) => Route::File(file),
        (Sink::Null, LogFile::NoFolder | LogFile::NoFile | LogFile::Open(_)) => Route::Null,
        // As in torchrun, disabled logs show everything.
        (Sink::Console, _)
        | (Sink::File | Sink::Tee | Sink::Null, LogFile::Disabled)
        | (Sink::File, LogFile::NoFolder | LogFile::NoFile)
        | (Sink::Tee, LogFile::NoFolder) => match stream {
            Stream::Stderr if !is_terminal => Route::Console,
            Stream::Stdout | Stream::Stderr => Route::Inherited,
        },
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::output::streams::StreamMap;
    use ragent_options::spec::Output;
    use ragent_rendezvous::ids::{GlobalRank, LocalRank};

    use super::*;

    /// Returns the routes of stdout and stderr of rank 0 under `-r redirects -t tee`.
    fn routes(
        (redirects, tee): (&str, &str),
        log: LogFile<()>,
        is_terminal: bool,
    ) -> [Route<()>; 2] {
        let map = StreamMap { redirects: redirects.parse().unwrap(), tee: tee.parse().unwrap() };
        let output = Output { map, ..Output::default() };
        [Stream::Stdout, Stream::Stderr].map(|stream| {
            route(stream, output.sink(LocalRank(0), GlobalRank(0), stream), log, is_terminal)
        })
    }

    /// `--redirects` and `--tee` select file, console or both for each stream. Only a tee adds a prefix.
    #[test]
    fn flags_select_file_and_console() {
        const BOTH: Route<()> = Route::Lines(Some(()));
        const FILE: Route<()> = Route::File(());
        let rows = [
            ("0", "0", [Route::Inherited, Route::Console]),
            ("1", "0", [FILE, Route::Console]),
            ("2", "0", [Route::Inherited, FILE]),
            ("3", "0", [FILE, FILE]),
            ("0", "1", [BOTH, Route::Console]),
            ("0", "2", [Route::Inherited, BOTH]),
            ("0", "3", [BOTH, BOTH]),
            ("3", "1", [BOTH, FILE]),
            ("1", "2", [FILE, BOTH]),
            ("3", "3", [BOTH, BOTH]),
        ];
        for (redirects, tee, expected) in rows {
            let found = routes((redirects, tee), LogFile::Open(()), false);
            assert_eq!(found, expected, "-r {redirects} -t {tee}");
        }
    }

    /// Without a file, redirected output goes to the console. A tee keeps its prefix if only the file is missing.
    #[test]
    fn output_without_a_file_goes_to_the_console() {
        let console = [Route::Inherited, Route::Console];
        for log in [LogFile::Disabled, LogFile::NoFolder, LogFile::NoFile] {
            assert_eq!(routes(("3", "0"), log, false), console, "{log:?}");
        }
        for log in [LogFile::Disabled, LogFile::NoFolder] {
            assert_eq!(routes(("0", "3"), log, false), console, "{log:?}");
        }
        assert_eq!(routes(("0", "3"), LogFile::NoFile, false), [Route::Lines(None); 2]);
    }

    /// A stderr on a terminal is inherited, because programs behave differently on a terminal. If
    /// it also goes to a file, it is copied.
    #[test]
    fn stderr_on_a_terminal_is_inherited() {
        assert_eq!(routes(("0", "0"), LogFile::NoFile, true), [Route::Inherited; 2]);
        let both = routes(("0", "2"), LogFile::Open(()), true);
        assert_eq!(both, [Route::Inherited, Route::Lines(Some(()))]);
    }

    /// Output that is not shown is discarded, unless logs are disabled, as in torchrun.
    #[test]
    fn hidden_output_is_discarded() {
        for log in [LogFile::NoFolder, LogFile::NoFile, LogFile::Open(())] {
            assert_eq!(route(Stream::Stdout, Sink::Null, log, false), Route::Null, "{log:?}");
        }
        let disabled = LogFile::<()>::Disabled;
        assert_eq!(route(Stream::Stdout, Sink::Null, disabled, false), Route::Inherited);
        assert_eq!(route(Stream::Stderr, Sink::Null, disabled, false), Route::Console);
    }

    /// Marked lines have a prefix with any state of the logs, and no file.
    #[test]
    fn marked_lines_have_no_file() {
        let output = Output { marks_lines: true, ..Output::default() };
        let sink = output.sink(LocalRank(0), GlobalRank(0), Stream::Stderr);
        for log in [LogFile::Disabled, LogFile::NoFolder, LogFile::NoFile] {
            for is_terminal in [false, true] {
                let found = route::<()>(Stream::Stderr, sink, log, is_terminal);
                assert_eq!(found, Route::Lines(None), "{log:?}");
            }
        }
    }
}
