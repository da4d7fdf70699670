//! Checks how the nodes of a running job reach each other, and which nodes differ from the rest.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ragent_base::{
    net::http_client::{self, Exchange, ExchangeEnd, HttpPage},
    secret::Credentials,
    sys::clock,
};
use ragent_coordinator::pages::reachability::{REACH_PATH, ReachReport, ReachedNode};
use ragent_options::spec::JobEndpoint;
use ragent_rendezvous::snapshot::{NodeSnapshot, NodeStateName, Snapshot};
use tokio::{sync::Semaphore, task::JoinSet};

use super::Finding;
use crate::{
    commands::doctor::limits,
    commands::{credentials::AskerCredentials, find_coordinator},
};

/// Asks every node how it reaches the others, and judges the answers.
pub(super) async fn examine(job: JobEndpoint, credentials: &AskerCredentials) -> Vec<Finding> {
    let snapshot = match find_coordinator::ask(job, credentials).await {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let text = format!("failed to get the job's nodes: {error}");
            return vec![Finding::fail("peers", text, "check that the job is running there")];
        }
    };
    let mesh = ask_all(&snapshot, &credentials.own).await;
    judge(&mesh)
}

/// The reports of all nodes about the others. A node that did not answer has none.
#[derive(Debug, Default)]
struct Mesh {
    /// Host names by node.
    hosts: BTreeMap<String, String>,
    /// The time in milliseconds, or an error, by the asking and the asked node.
    pairs: BTreeMap<(String, String), Result<f64, String>>,
    /// The addresses of the endpoint on each node on which its name resolves.
    endpoint: BTreeMap<String, Vec<IpAddr>>,
    /// The nodes that could not be asked, with the reason.
    silent: BTreeMap<String, String>,
}

async fn ask_all(snapshot: &Snapshot, credentials: &Credentials) -> Mesh {
    let places = Arc::new(Semaphore::new(limits::REACH_AT_ONCE));
    let nodes = snapshot.nodes.iter().filter(|node| node.state != NodeStateName::Lost);
    let nodes: Vec<NodeSnapshot> = nodes.take(limits::MAX_REACHED).cloned().collect();
    let asked: JoinSet<(NodeSnapshot, Result<ReachReport, String>)> = nodes
        .into_iter()
        .map(|node| {
            let (places, credentials) = (Arc::clone(&places), credentials.clone());
            async move {
                // The semaphore is never closed.
                let _place = places.acquire().await;
                let answer = ask(&node, &credentials).await;
                (node, answer)
            }
        })
        .collect();
    let mut mesh = Mesh::default();
    for (node, answer) in asked.join_all().await {
        let from = node.node_id.to_string();
        mesh.hosts.insert(from.clone(), node.host_name);
        match answer {
            Ok(ReachReport { endpoint, reached }) => {
                if !endpoint.is_empty() {
                    mesh.endpoint.insert(from.clone(), endpoint);
                }
                for ReachedNode { node_id, millis, error } in reached {
                    let result = error.map_or_else(|| millis.ok_or_else(String::new), Err);
                    mesh.pairs.insert((from.clone(), node_id), result);
                }
            }
            Err(why) => drop(mesh.silent.insert(from, why)),
        }
    }
    // A node's result for itself, or for a lost node, does not describe the network.
    let hosts = &mesh.hosts;
    mesh.pairs.retain(|(from, to), _| from != to && hosts.contains_key(to));
    mesh
}

async fn ask(node: &NodeSnapshot, credentials: &Credentials) -> Result<ReachReport, String> {
    let ip: IpAddr =
        node.address.parse().map_err(|_| format!("`{}` is not an IP address", node.address))?;
    let address = (ip, node.agent_port).into();
    let by = clock::now() + limits::REACH_TIMEOUT;
    loop {
        let left = by.saturating_duration_since(clock::now());
        let len_max = limits::MAX_REACH_LEN;
        let asked = http_client::get_as_member(address, credentials, REACH_PATH, len_max, left);
        let Exchange { received, end } = asked.await;
        match end {
            ExchangeEnd::Complete => {}
            ExchangeEnd::Failed(error) => return Err(format!("{address}: {error}")),
            ExchangeEnd::TimedOut => return Err(format!("{address} does not answer")),
        }
        let invalid = || format!("{address} sent an invalid answer");
        let HttpPage { status, body } = HttpPage::parse(&received).ok_or_else(invalid)?;
        match status {
            200 => return serde_json::from_str(body).map_err(|_| invalid()),
            // The node is measuring for another client.
            429 => clock::until(Some((clock::now() + limits::REACH_PAUSE).min(by))).await,
            _ => {
                return Err(format!(
                    "{address} answers with HTTP status {status}: {}",
                    body.trim()
                ));
            }
        }
    }
}

fn judge(mesh: &Mesh) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (node, why) in &mesh.silent {
        let text = format!("failed to ask {}: {why}", mesh.host(node));
        findings.push(Finding::fail(
            "peers",
            text,
            "check that a firewall lets this machine reach its agent's port",
        ));
    }
    findings.extend(mesh.other_endpoint());
    findings.extend(mesh.unreached());
    findings.extend(mesh.slow());
    if findings.is_empty() {
        let nodes = mesh.hosts.len();
        let text = match mesh.median() {
            Some(median) => format!("{nodes} nodes reach each other, in {median:.2} ms (median)"),
            None => format!("{nodes} node is registered; there are no other nodes to reach"),
        };
        findings.push(Finding::pass("peers", text));
    }
    findings
}

impl Mesh {
    fn host<'a>(&'a self, node: &'a String) -> &'a str {
        self.hosts.get(node).unwrap_or(node)
    }

    /// Returns a finding for each node on which the endpoint has other addresses than on most nodes.
    fn other_endpoint(&self) -> Vec<Finding> {
        let mut counts: BTreeMap<&[IpAddr], usize> = BTreeMap::new();
        for ips in self.endpoint.values() {
            *counts.entry(ips).or_default() += 1;
        }
        let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return Vec::new();
        };
        let list =
            |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let odd = self.endpoint.iter().filter(|(_, ips)| ips.as_slice() != most);
        odd.map(|(node, ips)| {
            let host = self.host(node);
            let text = format!(
                "the endpoint resolves to {} on {host}, but to {} on other nodes",
                list(ips),
                list(most)
            );
            Finding::warn("peers", text, "check its /etc/hosts and DNS")
        })
        .take(limits::MAX_PEER_LINES)
        .collect()
    }

    /// Returns a finding for each node that half of the others do not reach. For all other failures, returns one for each pair of nodes.
    fn unreached(&self) -> Vec<Finding> {
        let failed: Vec<_> =
            self.pairs.iter().filter_map(|(pair, way)| Some((pair, way.as_ref().err()?))).collect();
        let asking = self.hosts.len() - self.silent.len();
        let odd: Vec<&String> = self
            .hosts
            .keys()
            .filter(|node| {
                let missed = failed.iter().filter(|((_, to), _)| to == *node).count();
                missed > 1 && 2 * missed >= asking.saturating_sub(1)
            })
            .collect();
        let hint = "check its cable, routes and firewall, which must let all ports pass between the nodes: workers use any";
        let of_nodes = odd.iter().filter_map(|node| {
            let ((from, _), why) = failed.iter().find(|((_, to), _)| to == *node)?;
            let text = format!(
                "most of the other nodes do not reach {}, for example {} ({why})",
                self.host(node),
                self.host(from)
            );
            Some(Finding::fail("peers", text, hint))
        });
        let of_pairs =
            failed.iter().filter(|((_, to), _)| !odd.contains(&to)).map(|((from, to), why)| {
                let text = format!("{} does not reach {} ({why})", self.host(from), self.host(to));
                Finding::fail("peers", text, hint)
            });
        of_nodes.chain(of_pairs).take(limits::MAX_PEER_LINES).collect()
    }

    /// Returns a finding for each node that is much farther away from its nearest peer than is usual in this job.
    fn slow(&self) -> Vec<Finding> {
        let bests: Vec<(&String, f64)> =
            self.hosts.keys().filter_map(|node| Some((node, self.nearest(node)?))).collect();
        let Some(rule) = median(bests.iter().map(|(_, best)| *best)) else { return Vec::new() };
        let is_odd = |best: f64| best > 3.0 * rule && best > rule + 1.0;
        let odd = bests.into_iter().filter(|(_, best)| is_odd(*best));
        odd.map(|(node, best)| {
            let text = format!(
                "{} is {best:.2} ms from its nearest peer; the median is {rule:.2} ms",
                self.host(node)
            );
            Finding::warn("peers", text, "check whether it is on another switch or has a slow link")
        })
        .take(limits::MAX_PEER_LINES)
        .collect()
    }

    /// Returns the shortest time from or to `node`. It ignores all but the nearest peer, so one slow peer does not make all others slow.
    fn nearest(&self, node: &String) -> Option<f64> {
        let ways = self.pairs.iter().filter(|((from, to), _)| from == node || to == node);
        ways.filter_map(|(_, way)| way.as_ref().ok().copied()).reduce(f64::min)
    }

    fn median(&self) -> Option<f64> {
        median(self.pairs.values().filter_map(|way| way.as_ref().ok().copied()))
    }
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// Nodes `a` to `d`, with the given result from each to each other.
    fn mesh(way: impl Fn(&str, &str) -> Result<f64, String>) -> Mesh {
        let mut mesh = Mesh::default();
        for from in ["a", "b", "c", "d"] {
            mesh.hosts.insert(from.to_owned(), format!("host-{from}"));
            for to in ["a", "b", "c", "d"].into_iter().filter(|to| *to != from) {
                mesh.pairs.insert((from.to_owned(), to.to_owned()), way(from, to));
            }
        }
        mesh
    }

    fn findings(mesh: &Mesh) -> Vec<(CheckVerdict, String)> {
        judge(mesh).into_iter().map(|finding| (finding.verdict, finding.text)).collect()
    }

    /// A mesh without problems has one finding.
    #[test]
    fn healthy_mesh() {
        let mesh = mesh(|_, _| Ok(0.2));
        let text = "4 nodes reach each other, in 0.20 ms (median)".to_owned();
        assert_eq!(findings(&mesh), [(CheckVerdict::Pass, text)]);
    }

    /// A node that no other reaches is named once. A failing connection is reported with both nodes.
    #[test]
    fn unreached_nodes_and_ways() {
        let refused = || Err("refused".to_owned());
        let odd = mesh(|_, to| if to == "c" { refused() } else { Ok(0.2) });
        let lines = findings(&odd);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].1.starts_with("most of the other nodes do not reach host-c"), "{lines:?}");
        let way = mesh(|from, to| if (from, to) == ("a", "d") { refused() } else { Ok(0.2) });
        assert_eq!(
            findings(&way),
            [(CheckVerdict::Fail, "host-a does not reach host-d (refused)".into())]
        );
    }

    /// A node on which the endpoint has other addresses is named.
    #[test]
    fn other_name_service() {
        let mut mesh = mesh(|_, _| Ok(0.2));
        for (node, ip) in [("b", "10.0.0.1"), ("c", "127.0.1.1"), ("d", "10.0.0.1")] {
            mesh.endpoint.insert(node.to_owned(), vec![ip.parse().unwrap()]);
        }
        let text = "the endpoint resolves to 127.0.1.1 on host-c, but to 10.0.0.1 on other nodes"
            .to_owned();
        assert_eq!(findings(&mesh), [(CheckVerdict::Warn, text)]);
    }

    /// Only the node that is far from all others is named.
    #[test]
    fn slow_node() {
        let mesh = mesh(|from, to| if from == "b" || to == "b" { Ok(7.0) } else { Ok(0.2) });
        let lines = findings(&mesh);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].1.starts_with("host-b is 7.00 ms from its nearest peer"), "{lines:?}");
    }

    /// A node that cannot be asked is named. A single node passes.
    #[test]
    fn silent_and_single_nodes() {
        let mut mesh = mesh(|_, _| Ok(0.2));
        mesh.silent.insert("a".to_owned(), "no answer".to_owned());
        assert_eq!(
            findings(&mesh)[0],
            (CheckVerdict::Fail, "failed to ask host-a: no answer".into())
        );
        let mut single = Mesh::default();
        single.hosts.insert("a".to_owned(), "host-a".to_owned());
        assert_eq!(judge(&single)[0].verdict, CheckVerdict::Pass);
    }
}
