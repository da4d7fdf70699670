//! Asks the agents of nodes for their hardware, and describes it.

use std::net::IpAddr;

use ragent_base::{
    net::http_client::{self, Exchange, ExchangeEnd, HttpPage},
    secret::Credentials,
};
use ragent_coordinator::pages::facts::{FACTS_PATH, NodeFacts};
use ragent_rendezvous::snapshot::{NodeSnapshot, NodeStateName};
use serde::Serialize;
use tokio::task::JoinSet;

use super::limits;

/// The hardware of one node.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub(super) struct NodeHardware {
    pub(super) node_id: String,
    /// The devices; `None` if there are none, or if its agent has not answered.
    pub(super) devices: Option<String>,
    /// What is wrong with them, and what they have reported, the worst first.
    pub(super) facts: Vec<String>,
    /// The reason why nothing is known, if its agent has not answered.
    pub(super) error: Option<String>,
}

impl NodeHardware {
    /// Returns the lines for people. They are empty on a machine without such devices.
    pub(super) fn text(&self) -> String {
        let first = match (&self.error, &self.devices, &self.facts[..]) {
            (Some(error), ..) => Some(error.clone()),
            (None, Some(devices), []) => Some(format!("{devices}: nothing unusual")),
            (None, Some(devices), [..]) => Some(devices.clone()),
            (None, None, _) => None,
        };
        let lines = first.into_iter().chain(self.facts.iter().cloned());
        let names = std::iter::once("hardware").chain(std::iter::repeat(""));
        names.zip(lines).map(|(name, line)| format!("{name:<14} {line}\n")).collect()
    }
}

/// Asks the agents of these nodes at once.
pub(super) async fn ask_all(
    nodes: impl Iterator<Item = &NodeSnapshot>,
    credentials: &Credentials,
) -> Vec<NodeHardware> {
    let present = nodes.filter(|node| node.state != NodeStateName::Lost);
    let asked: JoinSet<NodeHardware> = present
        .take(limits::HARDWARE_ASKED)
        .cloned()
        .map(|node| {
            let credentials = credentials.clone();
            async move {
                let node_id = node.node_id.to_string();
                match ask(&node, &credentials).await {
                    Ok(NodeFacts { devices, facts }) => {
                        NodeHardware { node_id, devices, facts, error: None }
                    }
                    Err(error) => {
                        NodeHardware { node_id, error: Some(error), ..NodeHardware::default() }
                    }
                }
            }
        })
        .collect();
    asked.join_all().await
}

async fn ask(node: &NodeSnapshot, credentials: &Credentials) -> Result<NodeFacts, String> {
    let host = &node.host_name;
    let ip: IpAddr = (node.address.parse())
        .map_err(|_| format!("the address `{}` of {host} is not an IP address", node.address))?;
    let address = (ip, node.agent_port).into();
    let (len_max, limit) = (limits::HARDWARE_LEN, limits::HARDWARE_TIMEOUT);
    let asked = http_client::get_as_member(address, credentials, FACTS_PATH, len_max, limit);
    let Exchange { received, end } = asked.await;
    match end {
        ExchangeEnd::Complete => {}
        ExchangeEnd::Failed(error) => {
            return Err(format!("{host} does not answer at {address}: {error}"));
        }
        ExchangeEnd::TimedOut => return Err(format!("{host} does not answer at {address}")),
    }
    let page = HttpPage::parse(&received);
    match page {
        Some(HttpPage { status: 200, body }) => serde_json::from_str(body)
            .map_err(|_| format!("{host} has sent an invalid answer from {address}")),
        // An earlier build has no such page, and neither has a process without workers.
        Some(HttpPage { status: 404, .. }) => Ok(NodeFacts::default()),
        Some(HttpPage { status, body }) => {
            Err(format!("{host} answers with HTTP status {status} at {address}: {}", body.trim()))
        }
        None => Err(format!("{host} has sent an invalid answer from {address}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices without a report have one line, a machine without devices none, and an agent that does not answer is named.
    #[test]
    fn hardware_has_lines() {
        let devices = Some("2 GPUs, 1 port".to_owned());
        let well = NodeHardware { devices, ..NodeHardware::default() };
        assert_eq!(well.text(), "hardware       2 GPUs, 1 port: nothing unusual\n");
        let facts = ["GPU 1 asks for a reset", "port mlx5_1 is down"].map(str::to_owned).to_vec();
        let expected = "\
hardware       2 GPUs, 1 port
               GPU 1 asks for a reset
               port mlx5_1 is down
";
        assert_eq!(NodeHardware { facts, ..well }.text(), expected);
        assert_eq!(NodeHardware::default().text(), "");
        let error = Some("n1 does not answer at 10.0.0.2:29400".to_owned());
        let silent = NodeHardware { error, ..NodeHardware::default() };
        assert_eq!(silent.text(), "hardware       n1 does not answer at 10.0.0.2:29400\n");
    }
}
