//! Crates form floors, which cargo enforces. Within two of them the rooms have floors as well, and each imports only from
//! lower ones.
//!
//! A room is a top-level module. A path that begins with `crate` or `super` imports from the room in
//! which it ends. Tests inside of the crate may import from all rooms.
//!
//! Code that decides which peers are accepted over TLS has its modules, too.

use std::{collections::BTreeSet, fs, path::Path};

/// The sources of a crate, and its rooms from the lowest floor to the highest.
const CRATES: [(&str, &[&str]); 2] = [("agent/base/src", BASE), ("agent/node/src", NODE)];
const BASE: &[&str] =
    &["limits", "sys", "secret", "cli", "scheduler", "spec", "net", "output", "report"];
const NODE: &[&str] = &["keeper", "workers", "node", "endpoint"];

/// No room imports from its own floor or above, so there is no circle; and every room has a floor.
#[test]
fn rooms_import_from_lower_floors() {
    for (sources, floors) in CRATES {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(sources);
        let mut files = Vec::new();
        list(&folder, &mut Vec::new(), &mut files);
        let rooms: BTreeSet<&str> = files.iter().map(|(module, _)| room_of(module)).collect();
        let expected = floors.iter().copied().collect();
        assert_eq!(rooms, expected, "{sources}: each room has a floor, and each floor a room");
        let faults: Vec<String> =
            files.iter().flat_map(|(module, text)| faults(floors, module, text)).collect();
        assert!(faults.is_empty(), "{sources}:\n{}", faults.join("\n"));
    }
}

/// The modules that may set a verifier of certificates of their own, and that may implement one.
const SETS_VERIFIER: &[&str] = &["secret::tls"];
const IS_VERIFIER: &[&str] = &["secret::tls", "secret::certificates::verifier"];

/// Only the modules above replace the verification of rustls: a verifier that accepts too much would let any process into a
/// job, and a reader of these modules is to have seen all of them.
#[test]
fn verifiers_have_their_modules() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = Vec::new();
    for crate_folder in [
        "agent",
        "agent/base",
        "agent/coordinator",
        "agent/core",
        "agent/leadership",
        "agent/node",
        "proto",
        "rendezvous",
        "rendezvous/election",
        "store",
    ] {
        list(&root.join(crate_folder).join("src"), &mut Vec::new(), &mut files);
    }
    let mut found: [BTreeSet<String>; 2] = Default::default();
    for (module, text) in &files {
        let code = code_of(text);
        let words = tokens(&code);
        for (found, is_it) in found.iter_mut().zip([sets_verifier, is_verifier]) {
            if is_it(&words) {
                found.insert(module.join("::"));
            }
        }
    }
    let [sets, are] = found;
    let reason = "review the verifier, and add its module to the list or move it";
    assert_eq!(sets, SETS_VERIFIER.iter().map(ToString::to_string).collect(), "{reason}");
    assert_eq!(are, IS_VERIFIER.iter().map(ToString::to_string).collect(), "{reason}");
}

/// Returns true for code that sets a verifier of its own.
fn sets_verifier(words: &[&str]) -> bool {
    let names = ["dangerous", "with_custom_certificate_verifier", "set_certificate_verifier"];
    words.iter().any(|word| names.contains(word))
}

/// Returns true for code that implements a verifier.
fn is_verifier(words: &[&str]) -> bool {
    let traits = ["ServerCertVerifier", "ClientCertVerifier"];
    words.windows(2).any(|pair| traits.contains(&pair[0]) && pair[1] == "for")
}

/// Verifiers are found, however they are written.
#[test]
fn verifiers_are_found() {
    for text in [
        "config\n    .dangerous()",
        "builder . dangerous ( )",
        "d::with_custom_certificate_verifier",
    ] {
        assert!(sets_verifier(&tokens(&code_of(text))), "{text}");
    }
    let text = "impl<T> rustls::client::danger::ServerCertVerifier\n    for Any<T> {}";
    assert!(is_verifier(&tokens(text)));
    let text = "// dangerous()\nfn f(verifier: Arc<dyn ServerCertVerifier>) {}";
    let code = code_of(text);
    assert!(!sets_verifier(&tokens(&code)) && !is_verifier(&tokens(&code)));
}

/// Imports from higher floors and from unknown rooms are found, however they are written.
#[test]
fn wrong_imports_are_found() {
    let module = ["workers".to_owned(), "health".to_owned(), "stacks".to_owned()];
    let faults_in = |text| faults(NODE, &module, text);
    let upward = "workers::health::stacks: room workers (floor 1) imports room node (floor 2)";
    for text in [
        "use crate::{\n    keeper,\n    node::{self, driver},\n};",
        "pub(crate) use crate::node::driver as other;",
        "fn f() { crate::node::driver::drive() }",
        "use super::super::super::node;",
        "#[cfg(test)]\nmod tests {\n    use crate::endpoint;\n}\nuse crate::node;",
    ] {
        assert_eq!(faults_in(text), [upward], "{text}");
    }
    for text in [
        "use super::{super::driver::Input, timers};\nuse self::inner::Part;",
        "use crate::{keeper::{self, MAX as MOST}, workers::driver};",
        "// As in crate::commands.\npub(in crate::workers) struct A;",
        "#[cfg(test)]\nmod tests {\n    use crate::{endpoint, node};\n}",
        "use ragent_core::node::Node;\nuse nix::sys::signal::Signal;",
    ] {
        assert_eq!(faults_in(text), [""; 0], "{text}");
    }
    let unknown = "workers::health::stacks imports crate::attic, which has no floor";
    assert_eq!(faults_in("use crate::{attic::Box, keeper};"), [unknown]);
}

/// Lists the modules below `folder`, whose path is `at`, with their sources. The two files that
/// declare the rooms and start the program are above all of them.
fn list(folder: &Path, at: &mut Vec<String>, files: &mut Vec<(Vec<String>, String)>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("names are text");
        let is_root = at.is_empty() && ["lib", "main"].contains(&name);
        // Files of these names contain the tests of the module above, and parts for tests.
        if is_root || name == "tests" || at.is_empty() && name == "testing" {
            continue;
        }
        at.push(name.to_owned());
        if path.is_dir() {
            list(&path, at, files);
        } else {
            files.push((at.clone(), fs::read_to_string(&path).expect("it is text")));
        }
        at.pop();
    }
}

fn room_of(module: &[String]) -> &str {
    module.first().map_or("", String::as_str)
}

/// Describes the imports of a module that are wrong.
fn faults(floors: &[&str], module: &[String], text: &str) -> Vec<String> {
    let room = room_of(module);
    let floor_of = |room: &str| floors.iter().position(|known| *known == room);
    let imported: BTreeSet<String> =
        paths(&tokens(&code_of(text))).iter().map(|path| root_of(module, path)).collect();
    let fault = |other: &String| match (floor_of(room), floor_of(other)) {
        _ if room == other => None,
        (Some(own), Some(others)) if others < own => None,
        (Some(own), Some(others)) => Some(format!(
            "{}: room {room} (floor {own}) imports room {other} (floor {others})",
            module.join("::")
        )),
        (_, _) => Some(format!("{} imports crate::{other}, which has no floor", module.join("::"))),
    };
    imported.iter().filter_map(fault).collect()
}

/// Returns the source without comments and without the modules of tests, as rustfmt writes them.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_module = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(is_module) {
            let _ = lines.find(|line| *line == "}");
        } else if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Splits a source into words and single other characters, without white space.
fn tokens(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let len = if is_word(first) { word } else { first.len_utf8() };
        let (token, more) = rest.split_at(len);
        tokens.push(token);
        rest = more.trim_start();
    }
    tokens
}

/// Returns the paths that begin with `crate`, `self` or `super`; each branch of an import is one.
fn paths<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let is_local = ["crate", "self", "super"].contains(token);
        if is_local && tokens[at + 1..].starts_with(&[":", ":"]) {
            at += tree(&tokens[at..], &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Adds to `found` the paths, all below `above`, of the tree at the start of `tokens`, and returns
/// the number of its tokens.
fn tree<'a>(tokens: &[&'a str], above: &mut Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) -> usize {
    let depth = above.len();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if *token == "{" {
            while tokens.get(at).is_some_and(|token| *token != "}") {
                let is_comma = tokens[at] == ",";
                at += if is_comma { 1 } else { tree(&tokens[at..], above, found) };
            }
            at += 1;
            break;
        }
        above.push(token);
        if tokens.get(at) == Some(&"as") {
            at += 2;
        }
        if tokens.get(at..at + 2) != Some(&[":", ":"]) {
            found.push(above.clone());
            break;
        }
        at += 2;
    }
    above.truncate(depth);
    at
}

/// Returns the top-level name that `path` leads to from `module`.
fn root_of(module: &[String], path: &[&str]) -> String {
    let mut absolute: Vec<&str> = match path.first() {
        Some(&"crate") => Vec::new(),
        _ => module.iter().map(String::as_str).collect(),
    };
    for word in path {
        match *word {
            "crate" | "self" => {}
            "super" => drop(absolute.pop()),
            word => absolute.push(word),
        }
    }
    absolute.first().copied().unwrap_or_default().to_owned()
}
