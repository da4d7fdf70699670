//! Tests the page with the keyboard alone, and without scripts.

use serde_json::json;

use crate::{
    browser::{Browser, has_browser},
    support::{Sandbox, free_port},
};

/// Without scripts, the page is the text of the status. Names are shown as text, even if they look like markup.
#[test]
fn page_without_scripts() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let command =
        format!("--nnodes 1 --rdzv-id <b>run7 --rdzv-endpoint {endpoint} --no-python stay.sh");
    let mut agent = sandbox.ragent(&command).start();
    agent.worker();
    let browser = Browser::start(&sandbox);
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&format!("http://{endpoint}/"));
    let text = browser.text();
    assert!(text.contains("job <b>run7  round 1  running  nodes 1  workers 1"), "{text}");
    // With scripts, names are shown as text too.
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": false}));
    browser.open(&format!("http://{endpoint}/"));
    browser.shows("<b>run7");
    assert_eq!(browser.evaluate("document.querySelectorAll('b').length"), json!(0));
    browser.assert_clean(&format!("http://{endpoint}"));
}

/// Every part of the page is reached with the keyboard: the search, the nodes, the events and the links, in this order.
#[test]
fn keyboard_reaches_everything() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let agent = |rank| {
        sandbox.ragent(&format!(
            "--nnodes 2 --rdzv-id run7 --rdzv-endpoint {endpoint} --node-rank {rank} --local-addr 127.0.0.1 \
             --no-python stay.sh"
        ))
    };
    let mut host = agent(0).start();
    let mut guest = agent(1).start();
    host.worker();
    guest.worker();
    let browser = Browser::start(&sandbox);
    browser.open(&format!("http://{endpoint}/"));
    browser.shows("2 running");
    let mut reached = Vec::new();
    for _ in 0..6 {
        browser.press("Tab", "");
        let focused = "document.activeElement.id || document.activeElement.getAttribute('href')";
        reached.push(browser.evaluate(focused).as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(reached, ["find", "map", "events", "status", "metrics", "v1/events"]);
    browser.press("/", "/");
    assert_eq!(browser.evaluate("document.activeElement.id"), json!("find"));
    browser.press("Tab", "");
    browser.press("ArrowRight", "");
    browser.shows("group rank 0, rank 0");
    browser.press("ArrowRight", "");
    browser.shows("group rank 1, rank 1");
    // The selected node is named to screen readers, also after the next state has arrived.
    let selected = "document.getElementById(document.getElementById('map')
        .getAttribute('aria-activedescendant'))?.ariaLabel.endsWith('rank 1, running')";
    browser.wait_until(selected);
    browser.press("Escape", "");
    browser.wait_until("document.getElementById('details').textContent === ''");
}
