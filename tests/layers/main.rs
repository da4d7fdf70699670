//! Finds files that import from each other in a circle. They can only be understood together, so there are few such circles, each with a
//! reason. Cargo enforces that crates form no circle.
//!
//! A path that begins with `crate`, `self` or `super` imports from the file in which it ends. A file and the modules inside it may name
//! each other, and tests may import from all files.
//!
//! It also checks that features of the coordinator stay apart, and which modules decide what peers are accepted over TLS.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The crates.
const CRATES: [&str; 12] = [
    "agent",
    "agent/base",
    "agent/coordinator",
    "agent/core",
    "agent/leadership",
    "agent/node",
    "agent/options",
    "agent/workers",
    "proto",
    "rendezvous",
    "rendezvous/election",
    "store",
];

/// The circles that stay.
const CIRCLES: &[(&str, &[&str])] = &[
    // Before a connection, a process asks which secret the other one has. It sends that question over a connection, too.
    ("agent/base", &["net::authentication", "net::http_client", "net::secure_stream"]),
];

/// There are no other circles of files, and all of these still exist.
#[test]
fn circles_of_files_have_a_reason() {
    let mut found = Vec::new();
    for name in CRATES {
        found.extend(circles(&files_of(name)).into_iter().map(|circle| (name, circle)));
    }
    let names = |circle: &[&str]| circle.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut expected: Vec<_> =
        CIRCLES.iter().map(|(name, circle)| (*name, names(circle))).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "open the circle by moving a type or a function");
}

/// The features of the coordinator: the module of each, and its struct.
const FEATURES: [(&str, &str); 5] = [
    ("health", "JobHealth"),
    ("memory", "JobMemory"),
    ("notices", "JobNotices"),
    ("progress", "TrainingProgress"),
    ("stalls", "JobStalls"),
];

/// The features that read another one.
const READS: [(&str, &str); 2] = [("notices", "JobMemory"), ("stalls", "TrainingProgress")];

/// A feature of the coordinator changes neither the job nor another feature, and few features read another one.
#[test]
fn features_have_walls() {
    let (mut reads, mut blocks) = (BTreeSet::new(), 0);
    for (module, text) in files_of("rendezvous") {
        let code = code_of(&text);
        let words = tokens(&code);
        let has = |pair: [&str; 2]| words.windows(2).filter(|words| *words == pair).count();
        let parts = has(["impl", "Rendezvous"]);
        blocks += parts;
        if let Some(at) = words.windows(2).position(|words| words == ["struct", "Rendezvous"]) {
            let fields = words[at..].iter().take_while(|word| **word != "}");
            let fields = fields.filter(|word| **word == ":").count();
            assert!((8..=14).contains(&fields), "{fields} fields of `Rendezvous`");
        }
        let Some((feature, own)) = FEATURES.iter().find(|(name, _)| module[0] == *name) else {
            continue;
        };
        assert_eq!(parts + has(["mut", "Job"]), 0, "{module:?} changes the job");
        for (_, other) in FEATURES.iter().filter(|(_, other)| other != own) {
            if words.contains(other) {
                reads.insert((*feature, *other));
            }
        }
    }
    assert_eq!(reads, BTreeSet::from(READS), "return what must follow, or take an argument");
    assert!(blocks <= 18, "{blocks} parts of `Rendezvous`: give a new feature a struct of its own");
}

/// The modules that may set a verifier of certificates of their own, and that may implement one.
const SETS_VERIFIER: &[&str] = &["agent/base: secret::tls"];
const IS_VERIFIER: &[&str] =
    &["agent/base: secret::tls", "agent/base: secret::certificates::verifier"];

/// Only the modules above replace the verification of rustls. A verifier that accepts too much would let any process into a job, so
/// there must be few places to read.
#[test]
fn verifiers_have_their_modules() {
    let mut found: [BTreeSet<String>; 2] = Default::default();
    for name in CRATES {
        for (module, text) in &files_of(name) {
            let code = code_of(text);
            let words = tokens(&code);
            for (found, is_it) in found.iter_mut().zip([sets_verifier, is_verifier]) {
                if is_it(&words) {
                    found.insert(format!("{name}: {}", module.join("::")));
                }
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

/// Circles are found, however their imports are written.
#[test]
fn circles_are_found() {
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let of = |text: &str| {
        let files = [
            (module("workers"), "mod health;\nuse self::health::stacks::Stack;".to_owned()),
            (module("workers::health::stacks"), text.to_owned()),
            (module("node::driver"), "use super::super::workers::health::stacks;".to_owned()),
            (module("node"), "pub mod driver;".to_owned()),
        ];
        circles(&files)
    };
    let circle = ["node::driver".to_owned(), "workers::health::stacks".to_owned()];
    for text in [
        "use crate::{\n    keeper,\n    node::{self, driver::Driver},\n};",
        "pub(crate) use crate::node::driver as other;",
        "fn f() { crate::node::driver::drive() }",
        "use super::super::super::node::driver;",
        "#[cfg(test)]\nmod tests {\n    use crate::endpoint;\n}\nuse crate::node::driver::A;",
    ] {
        assert_eq!(of(text), std::slice::from_ref(&circle), "{text}");
    }
    for text in [
        "use super::{super::driver::Input, timers};\nuse self::inner::Part;",
        "use crate::{keeper::{self, MAX as MOST}, workers::driver};",
        "// As in crate::node::driver.\npub(in crate::node::driver) struct A;",
        "#[cfg(test)]\nmod tests {\n    use crate::node::driver;\n}",
        "use ragent_core::node::driver;\nuse nix::sys::signal::Signal;",
    ] {
        assert!(of(text).is_empty(), "{text}");
    }
}

/// Lists the modules of a crate with their sources.
fn files_of(name: &str) -> Vec<(Vec<String>, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = Vec::new();
    list(&root.join(name).join("src"), &mut Vec::new(), &mut files);
    files
}

/// Lists the modules below `folder`, whose path is `at`, with their sources. Leaves out the roots of the crate.
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

/// Returns the sets of files that import from each other, directly or not.
fn circles(files: &[(Vec<String>, String)]) -> Vec<Vec<String>> {
    let modules: BTreeSet<&[String]> = files.iter().map(|(module, _)| module.as_slice()).collect();
    let imports = files.iter().map(|(module, text)| {
        let code = code_of(text);
        let to = paths(&tokens(&code)).into_iter().map(|path| absolute(module, &path));
        let to = to.filter_map(|path| {
            (1..=path.len()).rev().find_map(|len| modules.get(&path[..len]).copied())
        });
        let is_other = |to: &&[String]| !to.starts_with(module) && !module.starts_with(to);
        (module.as_slice(), to.filter(is_other).collect::<BTreeSet<_>>())
    });
    let mut reached: BTreeMap<&[String], BTreeSet<&[String]>> = imports.collect();
    for middle in &modules {
        let beyond = reached[middle].clone();
        for to in reached.values_mut().filter(|to| to.contains(middle)) {
            to.extend(&beyond);
        }
    }
    let circles: BTreeSet<Vec<String>> = modules
        .iter()
        .filter(|one| reached[*one].contains(*one))
        .map(|one| {
            let back = reached[one].iter().filter(|other| reached[*other].contains(one));
            back.map(|module| module.join("::")).collect()
        })
        .collect();
    circles.into_iter().collect()
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

/// Returns the paths that begin with `crate`, `self` or `super`. Each branch of an import is one.
fn paths<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        // `pub(in crate::…)` imports nothing.
        let is_visibility = at.checked_sub(1).is_some_and(|before| tokens[before] == "in");
        let is_local = ["crate", "self", "super"].contains(token) && !is_visibility;
        if is_local && tokens[at + 1..].starts_with(&[":", ":"]) {
            at += tree(&tokens[at..], &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Adds to `found` the paths of the tree at the start of `tokens`. All of them are below `above`. Returns the number of its tokens.
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

/// Returns the names to which `path` leads from `module`, beginning at the root of the crate.
fn absolute(module: &[String], path: &[&str]) -> Vec<String> {
    let mut absolute: Vec<String> = match path.first() {
        Some(&"crate") => Vec::new(),
        _ => module.to_vec(),
    };
    for word in path {
        match *word {
            "crate" | "self" => {}
            "super" => drop(absolute.pop()),
            word => absolute.push(word.to_owned()),
        }
    }
    absolute
}
