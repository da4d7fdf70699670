//! Parses a line of `--notice-command`: `KIND SECONDS TEXT`, such as `leave 120 spot`.

use std::time::Duration;

use ragent_options::spec::RequestKind;

use super::{NoticeRequest, fitted};

/// A greater number of seconds is a mistake of the program.
const SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;

/// Returns the notice in a line; `None` for any other line.
pub(super) fn parse(line: &str) -> Option<NoticeRequest> {
    let (kind, rest) = line.trim().split_once(char::is_whitespace)?;
    let (seconds, text) =
        rest.trim().split_once(char::is_whitespace).unwrap_or_else(|| (rest.trim(), ""));
    let kind = match kind {
        "leave" => RequestKind::Leave,
        "end" => RequestKind::End,
        "save" => RequestKind::Save,
        _ => return None,
    };
    let seconds: f64 = seconds.parse().ok()?;
    if !(0.0..=SECONDS_MAX).contains(&seconds) {
        return None;
    }
    let within = (kind != RequestKind::Save).then(|| Duration::from_secs_f64(seconds));
    Some(NoticeRequest { kind, within, text: fitted(text), asker: None })
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::message::NOTICE_TEXT_MAX;

    use super::*;

    fn parsed(line: &str) -> Option<(RequestKind, Option<f64>, String)> {
        let NoticeRequest { kind, within, text, .. } = parse(line)?;
        Some((kind, within.map(|within| within.as_secs_f64()), text))
    }

    /// A line has a kind, a time and a text, which may be missing.
    #[test]
    fn notices_are_parsed() {
        let leave = (RequestKind::Leave, Some(120.0), "spot interruption".to_owned());
        assert_eq!(parsed("leave 120 spot interruption\r"), Some(leave));
        assert_eq!(parsed("end 1.5"), Some((RequestKind::End, Some(1.5), String::new())));
        let save = (RequestKind::Save, None, "rebalance".to_owned());
        assert_eq!(parsed("save 0 rebalance"), Some(save));
    }

    /// Everything else is no notice.
    #[test]
    fn other_lines_are_no_notices() {
        for line in
            ["", "leave", "leave now", "members 3", "LEAVE 3", "end -1", "end NaN", "end 1e99"]
        {
            assert_eq!(parsed(line), None, "{line}");
        }
    }

    /// The text has no control characters and a bounded length.
    #[test]
    fn texts_are_bounded() {
        let (_, _, text) = parsed(&format!("end 3 \u{1b}[2J{}", "ä".repeat(400))).unwrap();
        assert!(text.starts_with("[2Jä") && text.len() <= NOTICE_TEXT_MAX);
    }
}
