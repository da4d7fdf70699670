//! Tests a Prometheus server that scrapes a job.

use std::{fs, net::SocketAddr};

use ragent_base::sys::clock;
use serde_json::{Value, json};

use crate::{
    page::{answer, start_pair, wait_for_steps},
    support::{PATIENCE, Program, Sandbox, free_port, is_there},
};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");

/// A running Prometheus server. Its files are in the sandbox, and it ends with the sandbox.
struct Prometheus {
    address: SocketAddr,
    _program: Program,
}

impl Prometheus {
    /// Starts a server that scrapes `targets` and has the rules of `packaging`.
    #[track_caller]
    fn start(sandbox: &Sandbox, targets: &[SocketAddr]) -> Self {
        let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
        let config = json!({
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [format!("{PACKAGING}/prometheus/rules.yml")],
            "scrape_configs": [{"job_name": "ragent", "static_configs": [{"targets": targets}]}],
        });
        // JSON is YAML.
        fs::write(sandbox.path("prometheus.yml"), config.to_string())
            .expect("the sandbox can be written");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut program = sandbox
            .program("/usr/bin/prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .start();
        program.logs("Server is ready to receive web requests");
        Self { address, _program: program }
    }

    /// Returns the answer to a request to its API.
    #[track_caller]
    fn api(&self, path: &str) -> Value {
        let request = format!("GET /api/v1/{path}");
        let (status, body) = answer(self.address, &request, &self.address.to_string());
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Returns the result of a query.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<Value> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let encoded = query.bytes().map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        let answer = self.api(&format!("query?query={}", encoded.collect::<String>()));
        answer["data"]["result"].as_array().cloned().expect("a vector")
    }

    /// Repeats a query until it has this many results. Nothing else reports a scrape.
    #[track_caller]
    fn wait_for(&self, query: &str, count: usize) -> Vec<Value> {
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            let results = self.query(query);
            if results.len() == count {
                return results;
            }
            assert!(clock::now_blocking() < deadline, "{query}: {results:?}");
        }
    }
}

/// A Prometheus server reads the metrics of both agents of a job, accepts the rules, and can evaluate each query of the
/// dashboard.
#[test]
fn job_is_scraped() {
    if !is_there("prometheus") {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut agents, addresses) = start_pair(&sandbox, "", "--no-python walk.sh");
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    wait_for_steps(&addresses);
    let prometheus = Prometheus::start(&sandbox, &addresses);
    prometheus.wait_for("up{job=\"ragent\"} == 1", 2);
    let [round] = &prometheus.wait_for("ragent_round", 1)[..] else { panic!("one result") };
    assert_eq!(round["value"][1], "1", "{round}");
    assert_eq!(round["metric"]["instance"], addresses[0].to_string(), "{round}");
    for (query, count) in [
        ("ragent_phase{phase=\"running\"} == 1", 1),
        ("ragent_build_info", 2),
        ("ragent_keep_alive_seconds_count", 2),
        ("ragent_coordinator_loop_seconds_bucket{le=\"+Inf\"}", 1),
    ] {
        assert_eq!(prometheus.query(query).len(), count, "{query}");
    }
    let rules = prometheus.api("rules");
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    let names: Vec<_> = rules.iter().filter_map(|rule| rule["name"].as_str()).collect();
    assert!(names.contains(&"RagentWaiting") && names.len() > 5, "{names:?}");
    let dashboard = fs::read_to_string(format!("{PACKAGING}/grafana/ragent.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets = dashboard["panels"].as_array().unwrap().iter();
    let targets = targets.filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<_> = targets.filter_map(|target| target["expr"].as_str()).collect();
    assert!(queries.len() > 20, "{queries:?}");
    let mut empty = Vec::new();
    for query in queries {
        let query = query.replace("$__rate_interval", "1m");
        let query = query.replace("$run_id", ".+").replace("$instance", ".+");
        if prometheus.query(&query).is_empty() {
            empty.push(query);
        }
    }
    // Counters have no rate before they have two samples.
    empty.retain(|query| !query.contains("[1m]"));
    assert!(empty.is_empty(), "queries without a result: {empty:#?}");
}
