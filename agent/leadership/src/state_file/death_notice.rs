//! Reads and writes death notices: a keeper's report that no process of its node is left.

use std::{
    io,
    path::{Path, PathBuf},
};

use ragent_base::sys::private_folder::PrivateFolder;
use ragent_proto::{Proof, printable};
use ragent_rendezvous::{
    ids::{NodeId, Round},
    settings::JobState,
};

use super::files::{folder_of, name_of, read_text};

/// Writes a death notice next to the state file of a job.
///
/// Does nothing without a state file: a job that has ended leaves nothing for the next one.
///
/// # Errors
///
/// Returns the system's error.
pub fn write_death_notice(state_file: &Path, death_notice: &str) -> io::Result<()> {
    let folder = PrivateFolder::open(folder_of(state_file))?;
    if !folder.has(name_of(state_file)) {
        return Ok(());
    }
    folder.replace(name_of(&death_notice_path(state_file)), death_notice.as_bytes())
}

/// Returns true if there is a death notice for the host and the round of `job_state`. A host that ran a later round may have other
/// processes.
pub fn has_death_notice(state_file: &Path, job_state: &JobState) -> bool {
    let Some(host) = &job_state.host else { return false };
    let text = read_text(&death_notice_path(state_file)).unwrap_or_default();
    // The proof need not be verified: only this user can write to the folder.
    parse_death_notice(&text).is_some_and(|death_notice| {
        death_notice.node == host.node && death_notice.round == job_state.round
    })
}

/// The path for death notices.
pub const DEATH_NOTICE_PATH: &str = "/v1/death-notice";

/// A keeper's report that its agent is gone and all processes of the node are reaped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeathNotice {
    /// The agent's node id.
    pub node: NodeId,
    /// The newest round that ran on the node.
    pub round: Round,
    /// The proof of the node id.
    pub proof: Option<Proof>,
}

/// Parses `NODE ROUND PROOF`.
pub fn parse_death_notice(text: &str) -> Option<DeathNotice> {
    let (rest, last) = text.rsplit_once(' ')?;
    let (rest, proof) = match last.parse() {
        Ok(proof) => (rest, Some(proof)),
        Err(_) => (text, None),
    };
    let (node, round) = rest.rsplit_once(' ')?;
    // The same check as for messages of agents.
    let is_printable = !node.chars().any(char::is_control) && printable(node) == node;
    let is_sound = !node.is_empty() && node.len() <= 256 && is_printable;
    let (node, round) = (NodeId::new(node), Round(round.parse().ok()?));
    Some(DeathNotice { node, round, proof }).filter(|_| is_sound)
}

/// Returns the path of the death notice next to a state file.
pub(super) fn death_notice_path(state_file: &Path) -> PathBuf {
    state_file.with_extension("death-notice")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A death notice may lack a proof. A node id may contain spaces.
    #[test]
    fn death_notices_are_read() {
        let proof = "000102030405060708090a0b0c0d0e0f";
        let read =
            |text: &str| parse_death_notice(text).map(|o| (o.node.to_string(), o.round.0, o.proof));
        let parsed: Proof = proof.parse().unwrap();
        assert_eq!(read(&format!("n 7 {proof}")), Some(("n".to_owned(), 7, Some(parsed))));
        assert_eq!(read(&format!("n m 7 {proof}")), Some(("n m".to_owned(), 7, Some(parsed))));
        assert_eq!(read("n 7"), Some(("n".to_owned(), 7, None)));
        let wrong = ["", "n", "7", " 7", "n x", "n\x1b[2J 7", "\u{202e}n 7", &format!("7 {proof}")];
        for wrong in wrong {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
