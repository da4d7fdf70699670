//! Tests the dashboard and the rules of `packaging`.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::{
    page::{Metrics, start_pair, wait_for_steps},
    support::{Sandbox, is_there},
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

/// Each metric of the dashboard and of the rules exists in a running job, with the labels that they use. Each metric of a job has a row in
/// `docs/metrics.md`.
#[test]
fn files_use_metrics_that_exist() {
    let sandbox = Sandbox::new();
    let (mut agents, addresses) = start_pair(&sandbox, "", "--no-python walk.sh");
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    wait_for_steps(&addresses);
    let jobs = addresses.map(Metrics::at);
    let samples: BTreeSet<String> = jobs.iter().flat_map(sample_names).collect();
    let rules = fs::read_to_string(format!("{FOLDER}/prometheus/rules.yml")).unwrap();
    let tests = fs::read_to_string(format!("{FOLDER}/prometheus/rules_test.yml")).unwrap();
    let dashboard = fs::read_to_string(format!("{FOLDER}/grafana/ragent.json")).unwrap();
    for (file, text) in [("rules", &rules), ("tests", &tests), ("dashboard", &dashboard)] {
        let used = names_in(text);
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&samples).collect();
        assert!(unknown.is_empty(), "{file} uses metrics that do not exist: {unknown:?}");
    }
    let page = fs::read_to_string(PAGE).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
    let rows: BTreeSet<&str> = rows.collect();
    let families = samples.iter().map(|sample| {
        let of_histogram = ["_bucket", "_sum", "_count"];
        of_histogram.iter().find_map(|end| sample.strip_suffix(end)).unwrap_or(sample)
    });
    let missing: Vec<_> = families.filter(|family| !rows.contains(family)).collect();
    assert!(missing.is_empty(), "no row in docs/metrics.md: {missing:?}");
    // Values of labels that the rules use.
    for series in [
        "ragent_phase{phase=\"gathering\"}",
        "ragent_phase{phase=\"recovering\"}",
        "ragent_nodes{state=\"quarantined\"}",
        "ragent_nodes{state=\"spare\"}",
        "ragent_voters{state=\"silent\"}",
    ] {
        assert!(jobs.iter().any(|job| job.find(series).is_some()), "{series}: {jobs:?}");
    }
    let alerts: Vec<_> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let named = |alert: &&str| page.contains(&format!("`{alert}`"));
    assert!(alerts.iter().all(named), "docs/metrics.md lists each of {alerts:?}");
    assert!(
        alerts.iter().all(|alert| tests.contains(&format!("alertname: {alert}\n"))),
        "{alerts:?}"
    );
}

/// Names of metrics of ragent in a text: words in lower case, other than the ids of the files.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    let is_name = |word: &&str| word.starts_with("ragent_") || word.starts_with("process_");
    words.filter(is_name).map(str::to_owned).collect()
}

/// The dashboard has a panel for each subject, and each of its queries selects the data source that the user chooses.
#[test]
fn dashboard_is_complete() {
    let text = fs::read_to_string(format!("{FOLDER}/grafana/ragent.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<_> = rows.filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(rows, ["Overview", "Progress", "Nodes", "Restarts", "Standbys", "Voters", "Agents"]);
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{panel}");
        }
    }
}

/// `promtool` accepts the rules, and each alert fires for its values.
#[test]
fn rules_hold() {
    if !is_there("promtool") {
        return;
    }
    let sandbox = Sandbox::new();
    for words in ["check rules rules.yml", "test rules rules_test.yml"] {
        let mut start = sandbox.program("/usr/bin/promtool");
        for word in words.split(' ') {
            start = match word.ends_with(".yml") {
                true => start.arg(format!("{FOLDER}/prometheus/{word}")),
                false => start.arg(word),
            };
        }
        let end = start.run();
        assert_eq!(end.code, Some(0), "{words}: {}{}", end.stdout, end.stderr);
    }
}

/// `promtool` finds nothing to improve in the metrics of a job.
#[test]
fn metrics_are_well_formed() {
    if !is_there("promtool") {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut agents, addresses) = start_pair(&sandbox, "", "--no-python stay.sh");
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    for (at, address) in addresses.into_iter().enumerate() {
        let path = sandbox.path(&format!("metrics-{at}"));
        fs::write(&path, in_text_format(&Metrics::at(address))).unwrap();
        let file = fs::File::open(&path).unwrap();
        let end =
            sandbox.program("/usr/bin/promtool").arg("check").arg("metrics").stdin(file).run();
        assert_eq!(end.code, Some(0), "{}{}", end.stdout, end.stderr);
    }
}

/// Returns the names of all samples.
fn sample_names(Metrics(text): &Metrics) -> Vec<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

/// Returns the metrics in the older text format. It has no units, no info and no end, and the suffixes of counters are in the names of
/// families.
fn in_text_format(Metrics(text): &Metrics) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("# UNIT") && *line != "# EOF");
    let types = |line: &str| {
        let name = line.split(' ').nth(2).unwrap_or_default();
        let kind = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")));
        match kind {
            Some("counter") => line.replacen(name, &format!("{name}_total"), 1),
            Some("info") => {
                line.replacen(name, &format!("{name}_info"), 1).replace(" info", " gauge")
            }
            _ => line.to_owned(),
        }
    };
    let lines = lines.map(|line| if line.starts_with('#') { types(line) } else { line.to_owned() });
    lines.map(|line| line + "\n").collect()
}
