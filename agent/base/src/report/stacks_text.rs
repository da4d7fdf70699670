//! Prints where the workers of a job were at a look.

use ragent_rendezvous::snapshot::{JobLook, LookPlace, grouped};

/// The hint in jobs whose stacks cannot be read.
const NO_STACKS: &str = "no stack of Python could be read: install py-spy on the nodes (`pip install py-spy`), or call \
                         `ragent.observe()` in the script\n";

/// The hint in jobs whose stacks stay on their nodes.
const NO_LINES: &str = "the lines of the script are in the files only: they cross a network only in jobs with a secret (`--secret-file`)\n";

/// Returns the places of the workers with these ranks, which are ranges. Without ranks, returns all places, after the
/// sentence that explains them.
pub fn text(look: &JobLook, wanted: &[(u32, u32)]) -> String {
    let mut text = String::new();
    let mut is_cut = look.further > 0;
    for place in &look.places {
        let listed: u64 = place.ranks.iter().map(|(first, last)| size(*first, *last)).sum();
        let unlisted = u64::from(place.count).saturating_sub(listed);
        is_cut |= unlisted > 0;
        let ranks = match wanted {
            [] => place.ranks.clone(),
            wanted => common(&place.ranks, wanted),
        };
        if !ranks.is_empty() {
            let unlisted = if wanted.is_empty() { unlisted } else { 0 };
            text += &of_place(place, &ranks, unlisted);
        }
    }
    if wanted.is_empty() {
        if let Some(sentence) = &look.text {
            text.insert_str(0, &format!("{sentence}\n"));
        }
        if look.further > 0 {
            let further = grouped(u64::from(look.further));
            text += &format!("and {further} workers in further places\n");
        }
        if look.unknown > 0 {
            let unknown = grouped(u64::from(look.unknown));
            text += &format!("nothing is known of {unknown} workers\n");
        }
    } else if text.is_empty() {
        text += match is_cut {
            true => "these ranks are not among those that are listed\n",
            false => "nothing is known of these ranks\n",
        };
    }
    match (look.has_stacks, look.has_lines) {
        (false, _) => text + NO_STACKS,
        (true, false) => text + NO_LINES,
        (true, true) => text,
    }
}

fn of_place(place: &LookPlace, ranks: &[(u32, u32)], unlisted: u64) -> String {
    let one = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let names: Vec<String> = ranks.iter().map(one).collect();
    let count: u64 = ranks.iter().map(|(first, last)| size(*first, *last)).sum();
    let word = if count + unlisted == 1 { "rank" } else { "ranks" };
    let mut text = format!("{word} {}", names.join(", "));
    if unlisted > 0 {
        text += &format!(" and {} others", grouped(unlisted));
    }
    text += &format!(": {}\n", place.text);
    // The file has the stack of the place's first rank.
    let first = place.ranks.first().map(|(first, _)| *first);
    if let (Some(file), Some(first)) = (&place.stack, first) {
        let whose = if count + unlisted == 1 && ranks.first().map(|range| range.0) == Some(first) {
            String::new()
        } else {
            format!(" of rank {first}")
        };
        text += &format!("  whole stack{whose}: {file}\n");
    }
    text
}

/// Returns the number of ranks in a range.
fn size(first: u32, last: u32) -> u64 {
    u64::from(last.saturating_sub(first)) + 1
}

/// Returns the ranges that two lists of ranges have in common.
fn common(one: &[(u32, u32)], other: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let pairs = one.iter().flat_map(|range| other.iter().map(move |wanted| (range, wanted)));
    let common = pairs.map(|(a, b)| (a.0.max(b.0), a.1.min(b.1)));
    common.filter(|(first, last)| first <= last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> JobLook {
        let place = |text: &str, count, ranks: &[(u32, u32)], stack: Option<&str>| LookPlace {
            text: text.to_owned(),
            count,
            ranks: ranks.to_vec(),
            stack: stack.map(str::to_owned),
        };
        JobLook {
            places: vec![
                place("load_batch (t.py:9)", 1, &[(2, 2)], Some("n2:/logs/a/0/stack.txt")),
                place("all_reduce (t.py:16)", 3, &[(0, 1), (3, 3)], Some("n0:/logs/b/0/stack.txt")),
            ],
            has_stacks: true,
            has_lines: true,
            ..JobLook::default()
        }
    }

    /// Workers in the same place are printed together, with a file of one of them.
    #[test]
    fn places_are_printed() {
        let all = "\
rank 2: load_batch (t.py:9)
  whole stack: n2:/logs/a/0/stack.txt
ranks 0-1, 3: all_reduce (t.py:16)
  whole stack of rank 0: n0:/logs/b/0/stack.txt
";
        assert_eq!(text(&look(), &[]), all);
        let sentence = "rank 2 has not reached the store; 3 of 4 have".to_owned();
        let explained = JobLook { text: Some(sentence.clone()), ..look() };
        assert_eq!(text(&explained, &[]), format!("{sentence}\n{all}"));
        let one = "rank 3: all_reduce (t.py:16)\n  whole stack of rank 0: n0:/logs/b/0/stack.txt\n";
        assert_eq!(text(&explained, &[(3, 9)]), one);
        assert_eq!(text(&look(), &[(4, 4)]), "nothing is known of these ranks\n");
    }

    /// If workers or lines are left out, the text has their number or the reason.
    #[test]
    fn missing_parts_are_named() {
        let mut cut = look();
        (cut.further, cut.unknown, cut.places[1].count) = (4_000, 8, 1_003);
        let shown = text(&cut, &[]);
        for part in ["ranks 0-1, 3 and 1,000 others: all_reduce", "and 4,000 workers in further"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(shown.ends_with("nothing is known of 8 workers\n"), "{shown}");
        assert_eq!(text(&cut, &[(7, 7)]), "these ranks are not among those that are listed\n");
        assert!(text(&JobLook { has_lines: false, ..look() }, &[]).ends_with(NO_LINES));
        assert!(text(&JobLook { has_stacks: false, ..look() }, &[]).ends_with(NO_STACKS));
    }
}
