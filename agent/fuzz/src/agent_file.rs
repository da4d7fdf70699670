//! The registration of an agent, which `ragent status` reads.

use std::{fs, os::unix::fs::PermissionsExt, process};

use ragent_base::sys::proc;
use ragent_leadership::state_file::{RegisteredCredentials, RunningAgent, running_agents_in};

/// Text of an input that is replaced by the number of this process.
pub(super) const PID: &str = "PID";
/// Text of an input that is replaced by the time at which this process began.
pub(super) const BEGAN: &str = "BEGAN";

/// Reads the registrations in a folder, of which one has this content.
pub fn agent_file(input: &[u8]) {
    let (pid, began) = (process::id(), proc::start_time(process::id()).unwrap_or(0));
    let text = String::from_utf8_lossy(input);
    let text = text.replace(PID, &pid.to_string()).replace(BEGAN, &began.to_string());
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("a folder");
    let path = folder.path().join("agent-1.json");
    fs::write(&path, &text).expect("a file");
    let agents = running_agents_in(folder.path());
    let parsed = serde_json::from_str::<RunningAgent>(&text).ok();
    let Some(agent) = agents.first() else {
        // The registration of a killed agent is removed; a file of another form is left alone.
        assert_eq!(path.exists(), parsed.is_none());
        return;
    };
    assert_eq!((agents.len(), parsed.as_ref(), path.exists()), (1, Some(agent), true));
    assert_eq!(proc::start_time(agent.pid), Some(agent.began), "it runs");
    let written = serde_json::to_string(agent).expect("it was JSON");
    assert_eq!(serde_json::from_str::<RunningAgent>(&written).as_ref().ok(), Some(agent));
    if let RegisteredCredentials::Secret(secret) = &agent.credentials {
        let secret = secret.0.text();
        assert!(!format!("{agent:?}").contains(secret), "a log would have the secret");
        assert!((43..=512).contains(&secret.len()));
    }
}
