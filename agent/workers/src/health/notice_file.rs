//! The file from which workers learn of a notice: `RAGENT_NOTICE_FILE`, one for each node.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use ragent_core::agent::ShownNotice;
use serde::Serialize;

/// The content of the file. `docs/stopping.md` describes it for scripts.
#[derive(Serialize)]
struct Content<'a> {
    schema: u32,
    notice: u64,
    kind: &'static str,
    hosts: &'a [String],
    here: bool,
    /// Seconds since the epoch, by the clock of this machine; absent if the round goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<f64>,
    text: &'a str,
}

/// Replaces the file. `wall_time` is the time since the epoch. A worker reads either the whole old content or the whole new one.
///
/// # Errors
///
/// Returns the system's error.
pub(crate) fn write(
    path: &Path,
    shown: &ShownNotice,
    now: Instant,
    wall_time: Duration,
) -> io::Result<()> {
    let ShownNotice { notice, is_here, until } = shown;
    let at = |until: Instant| wall_time.saturating_add(until.saturating_duration_since(now));
    let until = until.map(|until| at(until).as_secs_f64());
    let content = Content {
        schema: 1,
        notice: notice.number,
        kind: notice.kind.name(),
        hosts: &notice.hosts,
        here: *is_here,
        until,
        text: &notice.text,
    };
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(&content)?)?;
    fs::rename(new, path)
}

/// Removes the file, if there is one: there is no notice.
///
/// # Errors
///
/// Returns the system's error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;
    use ragent_rendezvous::message::{Notice, NoticeKind};

    use super::*;

    fn shown(kind: NoticeKind, until: Option<Instant>) -> ShownNotice {
        let (number, hosts, text) = (3, vec!["node4".to_owned()], "SIGTERM".to_owned());
        let notice = Notice { number, kind, hosts, left: None, text };
        ShownNotice { notice, is_here: false, until }
    }

    /// The file has the documented content. It is replaced, and removed.
    #[test]
    fn content_is_as_documented() {
        let folder = tempfile::tempdir().unwrap();
        let (path, now) = (folder.path().join("notice.json"), clock::now_blocking());
        let wall_time = Duration::from_millis(1_764_103_940_500);
        remove(&path).unwrap();
        let until = now + Duration::from_secs(60);
        write(&path, &shown(NoticeKind::Leave, Some(until)), now, wall_time).unwrap();
        let expected = r#"{"schema":1,"notice":3,"kind":"leave","hosts":["node4"],"here":false,"until":1764104000.5,"text":"SIGTERM"}"#;
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        write(&path, &shown(NoticeKind::Save, None), now, wall_time).unwrap();
        let without = expected.replace(r#","until":1764104000.5"#, "").replace("leave", "save");
        assert_eq!(fs::read_to_string(&path).unwrap(), without);
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
