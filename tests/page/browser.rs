//! Drives a headless Chromium by its debugging protocol: JSON messages that end with NUL, on two pipes.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write},
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Program, Sandbox, is_there};

const CHROMIUM: &str = "chromium-headless-shell";

/// Returns true if there is a browser. If not, prints so, or fails under `CI=true`.
pub(crate) fn has_browser() -> bool {
    is_there(CHROMIUM)
}

/// A browser with one page.
pub(crate) struct Browser {
    to: RefCell<PipeWriter>,
    messages: Receiver<Value>,
    next: RefCell<u64>,
    session: RefCell<String>,
    events: RefCell<VecDeque<Value>>,
    program: Program,
}

impl Browser {
    /// Starts a browser with an empty page. On a busy machine Chromium rarely crashes as it starts, so it has three
    /// attempts.
    #[track_caller]
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        let mut crashes = Vec::new();
        while crashes.len() < 3 {
            match Self::try_start(sandbox) {
                Ok(browser) => return browser,
                Err(crash) => crashes.push(crash),
            }
        }
        panic!("{CHROMIUM} has not started three times, and has printed: {crashes:#?}");
    }

    /// Starts a browser, or returns what it has printed before its end.
    fn try_start(sandbox: &Sandbox) -> Result<Self, String> {
        let (input, to) = io::pipe().expect("pipes are there");
        let (from, output) = io::pipe().expect("pipes are there");
        // Chromium's own sandbox refuses root.
        let as_root = if geteuid().is_root() { "--no-sandbox" } else { "" };
        let command = format!(
            "exec {CHROMIUM} {as_root} --remote-debugging-pipe --disable-gpu --disable-dev-shm-usage \
             --disable-background-networking --no-first-run --user-data-dir=chromium \
             --window-size=1280,900 3<&0 4>&1 </dev/null >&2"
        );
        let program = sandbox
            .program("/bin/sh")
            .env("HOME", sandbox.path(""))
            .arg("-c")
            .arg(command)
            .stdin(input)
            .stdout(output)
            .start();
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || read_messages(from, &sender));
        let browser = Self {
            to: RefCell::new(to),
            messages,
            next: RefCell::default(),
            session: RefCell::default(),
            events: RefCell::default(),
            program,
        };
        let url = json!({"url": "about:blank"});
        let Ok(target) = browser.try_call("Target.createTarget", url) else {
            return Err(browser.program.end().stderr);
        };
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", target);
        *browser.session.borrow_mut() =
            attached["sessionId"].as_str().expect("an attached session").to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Ok(browser)
    }

    /// Calls a method and returns its result.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method, and returns its result, or an error if the browser has ended.
    #[track_caller]
    fn try_call(&self, method: &str, params: Value) -> io::Result<Value> {
        let id = {
            let mut next = self.next.borrow_mut();
            *next += 1;
            *next
        };
        let mut message = json!({"id": id, "method": method, "params": params});
        let session = self.session.borrow().clone();
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.to.borrow_mut().write_all(&text)?;
        loop {
            let message = self.messages.recv_timeout(PATIENCE).map_err(io::Error::other)?;
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return Ok(message["result"].clone());
            }
            self.events.borrow_mut().push_back(message);
        }
    }

    /// Opens a page, and waits until its document is complete.
    #[track_caller]
    pub(crate) fn open(&self, url: &str) {
        const LOADED: &str = "Page.loadEventFired";
        let count = |browser: &Self| {
            browser.events.borrow().iter().filter(|event| event["method"] == LOADED).count()
        };
        let before = count(self);
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        while count(self) == before {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|error| panic!("{url}: {error}"));
            self.events.borrow_mut().push_back(message);
        }
    }

    /// Returns the value of an expression in the page. If it is a promise, waits for it.
    #[track_caller]
    pub(crate) fn evaluate(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true. It is evaluated after each change of the document.
    #[track_caller]
    pub(crate) fn wait_until(&self, expression: &str) {
        let timeout = PATIENCE.as_millis();
        let script = format!(
            "new Promise((resolve) => {{
                const observer = new MutationObserver(() => check());
                const end = (value) => {{ observer.disconnect(); resolve(value); }};
                const check = () => {{ if ({expression}) end(true); }};
                const parts = {{subtree: true, childList: true, characterData: true, attributes: true}};
                observer.observe(document, parts);
                setTimeout(() => end(false), {timeout});
                check();
            }})"
        );
        let is_true = self.evaluate(&script) == json!(true);
        assert!(is_true, "{expression} is false of this page:\n{}", self.text());
    }

    /// Waits until the page contains a text.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        self.wait_until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns the text of the page, as a person sees it.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Presses a key, by its name in the protocol; `text` is the character that it types, if any.
    #[track_caller]
    pub(crate) fn press(&self, key: &str, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = match key {
                "Enter" => 13,
                "Tab" => 9,
                "Escape" => 27,
                "ArrowRight" => 39,
                "ArrowDown" => 40,
                "End" => 35,
                "Home" => 36,
                _ => 0,
            };
            let mut params = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Returns the messages of the protocol with this method that have arrived so far.
    #[track_caller]
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        // Its answer follows all earlier messages.
        self.evaluate("0");
        let events = self.events.borrow();
        let of_method = events.iter().filter(|event| event["method"] == method);
        of_method.map(|event| event["params"].clone()).collect()
    }

    /// Fails if the page has reported an error, or has sent a request to another server than the one at `origin`.
    #[track_caller]
    pub(crate) fn assert_clean(&self, origin: &str) {
        let thrown = self.events("Runtime.exceptionThrown");
        assert!(thrown.is_empty(), "{thrown:?}");
        let printed = self.events("Runtime.consoleAPICalled");
        assert!(printed.is_empty(), "{printed:?}");
        let logged = self.events("Log.entryAdded");
        assert!(logged.is_empty(), "{logged:?}");
        let requests = self.events("Network.requestWillBeSent");
        assert!(!requests.is_empty());
        for request in requests {
            let url = request["request"]["url"].as_str().unwrap_or_default();
            let is_own = url.starts_with(origin) || url.starts_with("data:");
            assert!(is_own, "a request to {url}");
        }
    }
}

fn read_messages(from: PipeReader, sender: &mpsc::Sender<Value>) {
    let mut from = BufReader::new(from);
    let mut message = Vec::new();
    while from.read_until(0, &mut message).is_ok_and(|length| length > 0) {
        let text = message.strip_suffix(&[0]).unwrap_or(&message);
        // The browser is killed in the middle of a message.
        let Ok(value) = serde_json::from_slice(text) else { return };
        if sender.send(value).is_err() {
            return;
        }
        message.clear();
    }
}
