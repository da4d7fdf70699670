//! Tests the page of a job with 10,000 nodes, which are made up.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    browser::{Browser, has_browser},
    server::{get, serve},
    support::{Sandbox, free_port},
};

/// The number of nodes.
const NODES: usize = 10_000;

/// The rows of the made-up nodes. One is lost, and one is quarantined.
fn rows() -> Vec<Value> {
    let row = |slot: usize| {
        let (state, reason) = match slot {
            4410 => ("L", json!("no sign of life for 2.6 s")),
            17 => ("Q", json!("it has failed three times")),
            _ => ("R", Value::Null),
        };
        let rank = if state == "R" { json!(slot) } else { Value::Null };
        let silent = if state == "L" { json!(12_000) } else { Value::Null };
        let (host, address) = (format!("n{slot}"), format!("10.0.{}.{}", slot / 250, slot % 250));
        json!([slot, state, rank, slot * 8, 8, host, address, [8, 8], reason, null, false, silent])
    };
    (0..NODES).map(row).collect()
}

/// The first events of a page with these nodes, from that of a real job: the state in two parts.
fn first_events(real: &str, outcome: Value) -> String {
    let data = real.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event");
    let mut all: Value = serde_json::from_str(data).expect("JSON");
    all["slots"] = NODES.into();
    let mut rows = rows();
    let rest = rows.split_off(NODES / 2);
    all["rows"] = rows.into();
    all["more"] = true.into();
    all["job"]["outcome"] = outcome;
    all["job"]["world_size"] = (NODES * 8).into();
    let rest = json!({"rows": rest, "more": false});
    format!("event: all\ndata: {all}\n\nevent: change\ndata: {rest}\n\n")
}

/// Returns the document of a real agent, and the first of its events.
#[track_caller]
fn real_parts(sandbox: &Sandbox) -> (Vec<u8>, String) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let command =
        format!("--nnodes 1 --rdzv-id run7 --rdzv-endpoint {address} --no-python stay.sh");
    let mut agent = sandbox.ragent(&command).start();
    agent.worker();
    let browser = Browser::start(sandbox);
    browser.open(&format!("http://{address}/"));
    browser.shows("1 of 1 nodes");
    let first = "fetch('v1/watch').then(async (answer) => {
        const reader = answer.body.getReader();
        const decoder = new TextDecoder();
        let text = '';
        while (!text.includes('\\n\\n')) text += decoder.decode((await reader.read()).value);
        reader.cancel();
        return text;
    })";
    let first = browser.evaluate(first).as_str().expect("text").to_owned();
    (get(address, "/"), first)
}

/// The page reads and draws 10,000 nodes in less than a second of processor time. Keys select one of them, and find one by its host.
#[test]
#[expect(clippy::print_stderr, reason = "shows the time with `--nocapture`")]
fn ten_thousand_nodes_are_drawn() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let (document, event) = real_parts(&sandbox);
    let address = serve(document, first_events(&event, Value::Null));
    let origin = format!("http://{address}");
    let browser = Browser::start(&sandbox);
    // These are times of the page's thread, so a busy machine does not change them.
    browser.call("Performance.enable", json!({"timeDomain": "threadTicks"}));
    browser.open(&origin);
    browser.shows("Nodes: 10,000");
    // Two frames later the canvas is on the screen.
    let drawn = "new Promise((resolve) => requestAnimationFrame(() =>
        requestAnimationFrame(() => resolve(performance.now()))))";
    let after = browser.evaluate(drawn);
    let metrics = browser.call("Performance.getMetrics", json!({}));
    let metrics = metrics["metrics"].as_array().expect("a list");
    let tasks = metrics.iter().find(|metric| metric["name"] == "TaskDuration").expect("it exists");
    let used = tasks["value"].as_f64().expect("seconds");
    eprintln!(
        "10,000 nodes: drawn {after} ms after the navigation, with {used} s of the processor"
    );
    assert!(used < 1.0, "drawn in {used} s of the processor");
    browser.shows("9,998 running");
    browser.shows("1 quarantined");
    browser.shows("no sign of life for 2.6 s");
    // A node in the last row has the colour of its state.
    let colour = "(() => {
        const canvas = document.querySelector('#map canvas');
        const [r, g, b] = canvas.getContext('2d').getImageData(1, canvas.height - 3, 1, 1).data;
        return [r, g, b].join();
    })()";
    assert_eq!(browser.evaluate(colour), json!("63,163,92"));
    browser.press("/", "/");
    for letter in ["n", "4", "4", "1", "0"] {
        browser.press(letter, letter);
    }
    browser.shows("Nodes: 10,000, 1 found");
    browser.press("Enter", "\r");
    browser.shows("n4410 (10.0.17.160) · lost");
    browser.press("Home", "");
    browser.shows("n0 (10.0.0.0)");
    browser.press("End", "");
    browser.shows("n4410 (10.0.17.160)");
    browser.assert_clean(&origin);
}

/// The last state of a job that has ended is shown whole, although its parts arrive one after the other.
#[test]
fn last_state_is_shown_whole() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let (document, event) = real_parts(&sandbox);
    let outcome = json!({"result": "succeeded", "first_failure": null});
    let address = serve(document, first_events(&event, outcome));
    let browser = Browser::start(&sandbox);
    browser.open(&format!("http://{address}"));
    browser.shows("Nodes: 10,000");
    browser.shows("the job has ended");
}
