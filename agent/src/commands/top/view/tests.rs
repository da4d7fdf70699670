use std::time::{Duration, Instant};

use jiff::{Timestamp, tz::TimeZone};
use ragent_base::testing::empty_snapshot;
use ragent_base::{sys::clock, testing::nodes};
use ragent_rendezvous::{
    ids::{Round, RunId},
    message::{JobResult, Outcome, StepSource},
    snapshot::{
        Explanation, JobProgress, JobTime, MemoryStatus, NodeStateName, PhaseName, Snapshot,
        StateTime,
    },
};
use ratatui::{Terminal, backend::TestBackend, style::Color};

use super::*;
use crate::commands::{
    events::JournalEntry,
    top::{keys::Key, model::Input, scroll::Move},
};

const COLORS: Palette = Palette { has_colors: true };

/// A job with three members, a node that is lost and a spare, at step `step`.
fn snapshot(step: u64) -> Box<Snapshot> {
    let mut all = nodes(3, 2);
    all[3].state = NodeStateName::Lost;
    all[3].reason = Some("its agent has ended".to_owned());
    all[3].last_seen_ms = 12_345;
    let state = |state: &str, seconds: u64| StateTime {
        state: state.to_owned(),
        ms: seconds * 1000,
        settled_ms: seconds * 1000,
    };
    Box::new(Snapshot {
        run_id: RunId::new("run7"),
        round: Round(7),
        phase: PhaseName::Running,
        phase_ms: 2_460_000,
        min_nodes: 2,
        max_nodes: 4,
        world_size: 24,
        restarts_used: 2,
        max_restarts: 10,
        nodes: all,
        progress: Some(JobProgress {
            source: StepSource::Read,
            step,
            highest: step,
            steps_left: Some(100_000 - step),
            step_time: Some(Duration::from_millis(412)),
            age: Duration::from_millis(300),
        }),
        time: JobTime {
            states: vec![state("productive", 11_100), state("starting", 182), state("hung", 60)],
            redone_ms: 160_000,
            now: Some("productive".to_owned()),
        },
        ..empty_snapshot()
    })
}

fn events() -> Vec<JournalEntry> {
    let event = |number: u64, second: u64, kind: &str, cause: Option<u64>, text: &str| {
        let line = serde_json::json!({
            "id": format!("2.{number}"), "at": format!("2026-11-21T20:31:{second:02}.412Z"), "round": 7,
            "kind": kind, "cause": cause.map(|cause| format!("2.{cause}")), "text": text, "host": "n3",
        });
        JournalEntry::read(&line.to_string()).unwrap()
    };
    vec![
        event(117, 7, "node_lost", None, "n3 was lost: its agent has ended"),
        event(118, 7, "round_ended", Some(117), "round 6 has ended: n3 was lost"),
        event(
            119,
            8,
            "round_admitted",
            Some(118),
            "round 7 begins with 3 nodes and 24 workers; no node is new",
        ),
        event(
            120,
            19,
            "restart_cost",
            Some(118),
            "the restart took 12.4 s (stopping 117 ms, starting 12.3 s), and 40 steps are done again",
        ),
    ]
}

/// The view of the job, two seconds after a state. It was opened at `start`.
fn model_at(start: Instant) -> Model {
    let mut model = Model::new(snapshot(48_200), start);
    let inputs = [
        (Input::Events(events()), 0),
        (Input::State(snapshot(48_205)), 2),
        (Input::State(snapshot(48_210)), 6),
        (Input::Tick, 8),
    ];
    for (input, second) in inputs {
        assert!(model.update(input, start + Duration::from_secs(second)).is_continue());
    }
    model
}

fn model() -> Model {
    model_at(clock::now())
}

fn press(model: &mut Model, keys: &[Key]) {
    for key in keys {
        assert!(model.update(Input::Key(*key), clock::now()).is_continue());
    }
}

/// The screen as text, without spaces at the ends of lines. The times of events are in UTC.
fn screen(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, COLORS)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let mut text: String = (0..height).map(|y| format!("{}\n", line(y).trim_end())).collect();
    for second in ["07", "08", "19"] {
        let at: Timestamp = format!("2026-11-21T20:31:{second}Z").parse().unwrap();
        let local = at.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string();
        text = text.replace(&local, &format!("20:31:{second}"));
    }
    text
}

#[track_caller]
fn assert_screen(shown: &str, expected: &str) {
    assert_eq!(shown.trim_end(), expected.trim_end(), "\nshown:\n{shown}\nexpected:\n{expected}");
}

/// The checkpoints in memory have the line of `ragent status`, with a warning about what is in the way.
#[test]
fn memory_has_a_line() {
    let shown = |text: Option<&str>| {
        let mut job = snapshot(48_210);
        let text = text.map(str::to_owned);
        let step = Some(48_200).filter(|_| text.is_none());
        job.memory = Some(MemoryStatus { step, is_copied: true, text, ..MemoryStatus::default() });
        screen(&mut Model::new(job, clock::now()), 100, 30)
    };
    let plain = shown(None);
    assert!(plain.contains("\nmemory: step 48,200 whole and copied\n"), "{plain}");
    let off = shown(Some("off: n17 has 40 GB and needs 84"));
    assert!(off.contains("\nmemory: off: n17 has 40 GB and needs 84\n"), "{off}");
}

/// The state of the job, the nodes and the events are below each other.
#[test]
fn usual_terminal() {
    assert_screen(
        &screen(&mut model(), 80, 24),
        "\
job run7 · round 7 · running for 41 min 2 s · 3 of 2:4 nodes · 24 workers
restarts 2/10
step 48,210 of 100,000 (read from output)  █▅  0.41 s a step  the last 2.3 s ago
productive 96.5 % ███████████████████▎ of 3 h 9 min; lost: starting 3 min 2 s, …
── nodes: 5, 2 unusual, by state ───────────────────────────────────────────────
  rank  host    workers  state                      seen
  -     n3      (8)      lost: its agent has ended  14.3 s ago
  -     n4      (8)      spare                      0.1 s ago
  0-2   n[0-2]  0-23     running                    0.1 s ago
── events: 4 ───────────────────────────────────────────────────────────────────
  20:31:07  n3 was lost: its agent has ended
  20:31:07    round 6 has ended: n3 was lost
  20:31:08      round 7 begins with 3 nodes and 24 workers; no node is new
  20:31:19      the restart took 12.4 s (stopping 117 ms, starting 12.3 s), and…









q quit  ↑↓ nodes  ←→ events  s sort  Enter each node
",
    );
}

/// In a small terminal, the ends of lines are cut, and the lists share what is left.
#[test]
fn small_terminal() {
    let mut model = model();
    assert_screen(
        &screen(&mut model, 44, 14),
        "\
job run7 · round 7 · running for 41 min 2 s
3 of 2:4 nodes · 24 workers · restarts 2/10
step 48,210 of 100,000 (read from output)  …
productive 96.5 % ███████████████████▎ of 3…
── nodes: 5, 2 unusual, by state ───────────
  rank  host    workers  state
  -     n3      (8)      lost: its agent has
  -     n4      (8)      spare
  0-2   n[0-2]  0-23     running
── events: 4 ───────────────────────────────
  20:31:07    round 6 has ended: n3 was lost
  20:31:08      round 7 begins with 3 nodes…
  20:31:19      the restart took 12.4 s (st…
q quit  ↑↓ nodes  ←→ events  s sort  Enter e
",
    );
    press(&mut model, &[Key::Nodes(Move::End), Key::Events(Move::PageDown)]);
    let shown = screen(&mut model, 44, 11);
    assert!(shown.contains("seen\n  0-2   n[0-2]"), "{shown}");
    assert!(shown.contains("events: 4"), "{shown}");
    assert!(shown.contains("\n  20:31:07  n3 was lost: its agent has ended\n"), "{shown}");
}

/// A terminal of any size is drawn.
#[test]
fn every_size_is_drawn() {
    let mut model = model();
    assert!(model.update(Input::Lost(None), clock::now()).is_continue());
    for (width, height) in [(1, 1), (2, 3), (10, 200), (39, 9), (119, 16), (120, 4), (300, 5)] {
        for key in [Key::Split, Key::Nodes(Move::End), Key::Sort, Key::Events(Move::End)] {
            press(&mut model, &[key]);
            let text = screen(&mut model, width, height);
            assert_eq!(text.lines().count(), usize::from(height));
        }
    }
}

/// The loss of the coordinator and the outcome are shown in words.
#[test]
fn words_describe_the_connection_and_the_outcome() {
    let start = clock::now();
    let mut model = model_at(start);
    let at = |second| start + Duration::from_secs(second);
    assert!(model.update(Input::Lost(None), at(9)).is_continue());
    let why = || Some("cannot connect to n0:1".to_owned());
    assert!(model.update(Input::Lost(why()), at(10)).is_continue());
    assert!(model.update(Input::Tick, at(21)).is_continue());
    let shown = screen(&mut model, 80, 24);
    assert!(
        shown.contains(
            "\nconnection lost 12 s ago; this is the last state (cannot connect to n0:1)\n"
        ),
        "{shown}"
    );
    assert!(shown.contains("running for 41 min 3 s"), "{shown}");
    let outcome = Outcome {
        result: JobResult::BudgetSpent,
        first_failure: None,
        further_failures: Vec::new(),
        other_failures: 0,
        restarts_used: 10,
        complete_step: None,
    };
    let closed = Snapshot { phase: PhaseName::Closed, outcome: Some(outcome), ..*snapshot(48_210) };
    assert!(model.update(Input::State(Box::new(closed)), at(22)).is_continue());
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains(" · closed · "), "{shown}");
    assert!(shown.contains("\nthe job is closed: "), "{shown}");
    assert!(!shown.contains("connection lost"), "{shown}");
}

/// Faults have a colour in addition to their words. With `NO_COLOR`, nothing has a colour.
#[test]
fn colors_repeat_words() {
    let mut model = model();
    let mut colors = |palette| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut model, palette)).unwrap();
        let cells = terminal.backend().buffer().content.iter();
        cells
            .filter(|cell| cell.fg != Color::Reset)
            .map(|cell| (cell.fg, cell.symbol().to_owned()))
            .collect::<Vec<_>>()
    };
    let red: String = colors(COLORS)
        .into_iter()
        .filter(|(color, _)| *color == Color::Red)
        .map(|(_, symbol)| symbol)
        .collect();
    assert!(red.contains("lost: its agent has ended"), "{red}");
    assert_eq!(colors(Palette { has_colors: false }), []);
}

/// Text of other processes cannot write to the terminal.
#[test]
fn texts_are_printable() {
    let mut snapshot = snapshot(48_210);
    for node in &mut snapshot.nodes {
        node.host_name = "n\u{1b}[2J\u{202e}\r\n".to_owned();
        node.reason = Some("a\u{9b}b\u{2066}".to_owned());
        node.progress = Some("\u{7}".to_owned());
    }
    snapshot.run_id = RunId::new("run\u{1b}7");
    snapshot.incomplete = Some(Explanation { kind: "k".to_owned(), text: "\u{1b}c".to_owned() });
    let mut model = Model::new(snapshot, clock::now());
    let mut events = events();
    events[0].text = "\u{1b}[3J\n".to_owned();
    assert!(model.update(Input::Events(events), clock::now()).is_continue());
    for keys in [&[][..], &[Key::Split]] {
        press(&mut model, keys);
        let text = screen(&mut model, 80, 24);
        let is_odd = |c: char| {
            c != '\n'
                && (c.is_control()
                    || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
        };
        assert_eq!(text.find(is_odd), None, "{text:?}");
    }
}

/// If there are ten thousand rows, only the rows near the selected one are drawn.
#[test]
fn large_job_is_drawn() {
    let mut snapshot = snapshot(48_210);
    snapshot.nodes = nodes(10_000, 0);
    let mut model = Model::new(snapshot, clock::now());
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains("  0-9999  n[0-9999]  0-79999  running  0.1 s ago\n"), "{shown}");
    press(&mut model, &[Key::Split, Key::Nodes(Move::End)]);
    let text = screen(&mut model, 80, 24);
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("  n999")).collect();
    let last = rows.last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(last, "9999 n9999 79992-79999 running 0.1 s ago");
    assert!(text.contains("── nodes: 10000, 0 unusual, by state ──"), "{text}");
}
