//! Compares `docs/torchrun-compat.md` with the program.

use std::collections::BTreeSet;

use super::support::Sandbox;

const PAGE: &str = include_str!("../../docs/torchrun-compat.md");

/// The first and second cell of the rows below a heading.
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let cells = |line: &'static str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?, cells.next()?.trim()))
    };
    section.lines().filter_map(cells).filter(|(first, _)| first.contains('`')).collect()
}

/// The text in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The page has every flag of `--help`, and the help has every flag that the page lists as
/// supported.
#[test]
fn page_and_help_agree() {
    let help = Sandbox::new().ragent("--help").run().stdout;
    let in_help: BTreeSet<&str> = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .flat_map(str::split_ascii_whitespace)
        .map(|word| word.trim_end_matches(',').trim_end_matches("[=<MODULES>]"))
        .filter(|word| word.starts_with('-') && word.len() > 1)
        .collect();
    let supported = |(_, state): &(&str, &str)| *state != "not supported";
    let on_page: BTreeSet<&str> =
        rows("Flags").into_iter().filter(supported).flat_map(|(flags, _)| quoted(flags)).collect();
    assert_eq!(on_page, in_help);
    assert!(on_page.len() > 30, "{on_page:?}");
}

/// The state of every row is one of the few words that the page explains.
#[test]
fn states_are_explained() {
    for heading in ["Flags", "Variables that the launcher", "Variables that workers", "Rendezvous"]
    {
        for (cell, state) in rows(heading) {
            assert!(
                ["same", "better", "not supported", "ours"].contains(&state),
                "{cell}: {state}"
            );
        }
    }
}

/// The page has every key of `--rdzv-conf`.
#[test]
fn page_has_every_setting() {
    let end = Sandbox::new().ragent("--rdzv-conf nothing=1 x.py").run();
    let keys = end.stderr.lines().find_map(|line| line.strip_prefix("hint: the keys are "));
    let keys: BTreeSet<&str> = keys.unwrap().split(", ").collect();
    let on_page: BTreeSet<&str> =
        rows("Rendezvous").into_iter().flat_map(|(keys, _)| quoted(keys)).collect();
    assert_eq!(on_page, keys);
}
