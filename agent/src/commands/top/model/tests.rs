use ragent_base::testing::empty_snapshot;
use ragent_base::{sys::clock, testing::nodes};
use ragent_rendezvous::{
    ids::Round,
    message::{JobResult, Outcome},
    snapshot::{JobLook, LookPlace, NodeStateName, PhaseName, StateTime},
};

use super::*;

const SIZE: Size = Size { width: 80, height: 24 };

/// A running job with `members` nodes and `spares`.
fn job(members: u32, spares: u32) -> Box<Snapshot> {
    Box::new(Snapshot {
        phase: PhaseName::Running,
        round: Round(1),
        nodes: nodes(members, spares),
        ..empty_snapshot()
    })
}

fn model(snapshot: Box<Snapshot>) -> Model {
    Model::new(snapshot, SIZE, clock::now())
}

/// Presses keys. Returns true if one of them has ended the view.
fn press(model: &mut Model, keys: &[Key]) -> bool {
    keys.iter().any(|key| model.update(Input::Key(*key), clock::now()).is_break())
}

fn type_text(model: &mut Model, text: &str) {
    for c in text.chars() {
        assert!(!press(model, &[Key::Char(c)]), "{c}");
    }
}

fn events(count: usize) -> Vec<JournalEntry> {
    let event = |number| {
        let line = format!(
            r#"{{"id":"1.{number}","at":"2026-11-21T20:31:07Z","round":1,"kind":"k","text":"t {number}"}}"#
        );
        JournalEntry::read(&line).unwrap()
    };
    (1..=count).map(event).collect()
}

fn outcome() -> Outcome {
    Outcome {
        result: JobResult::Succeeded,
        first_failure: None,
        further_failures: Vec::new(),
        other_failures: 0,
        restarts_used: 0,
        complete_step: None,
    }
}

/// `q` and Ctrl-C end the view, also while a text is shown. In the name of a host, `q` is a letter.
#[test]
fn view_is_quit() {
    let mut model = model(job(2, 0));
    assert!(press(&mut model, &[Key::Char('q')]));
    assert!(press(&mut model, &[Key::Char('?'), Key::Char('q')]));
    assert!(!press(&mut model, &[Key::Char('/'), Key::Char('q')]));
    assert_eq!(model.prompt.as_deref(), Some("q"));
    assert!(press(&mut model, &[Key::Interrupt]));
}

/// A row of several nodes is opened. A node is shown with its newest state.
#[test]
fn node_is_shown() {
    let mut model = model(job(3, 0));
    press(&mut model, &[Key::Enter, Key::Down, Key::Down, Key::Enter]);
    let host = |model: &Model| match &model.pane {
        Some(Pane::Node(node)) => (node.host_name.clone(), node.state),
        other => panic!("a node was expected, not {other:?}"),
    };
    assert_eq!(host(&model), ("n1".to_owned(), NodeStateName::Running));
    let mut next = job(3, 0);
    next.nodes[1].state = NodeStateName::Failed;
    assert!(model.update(Input::State(next), clock::now()).is_continue());
    assert_eq!(host(&model), ("n1".to_owned(), NodeStateName::Failed));
    // If the job no longer has a node, the last state of the node stays.
    assert!(model.update(Input::State(job(1, 0)), clock::now()).is_continue());
    assert_eq!(host(&model), ("n1".to_owned(), NodeStateName::Failed));
    assert!(panes::lines(&model, 80).concat().contains("does not have this node any more"));
    press(&mut model, &[Key::Esc]);
    assert_eq!(model.pane, None);
}

/// Tab moves the keys to the other list. An event is shown with its cause.
#[test]
fn event_is_shown() {
    let mut model = model(job(3, 0));
    assert!(model.update(Input::Events(events(30)), clock::now()).is_continue());
    press(&mut model, &[Key::Tab, Key::Up, Key::Up]);
    assert_eq!(model.focus, Focus::Events);
    assert_eq!(model.events.selected().unwrap().text, "t 28");
    press(&mut model, &[Key::Enter]);
    assert!(panes::lines(&model, 80).contains(&"t 28".to_owned()));
    press(&mut model, &[Key::Esc, Key::Tab, Key::Down]);
    assert_eq!(model.focus, Focus::Nodes);
    assert_eq!(model.events.selected().unwrap().text, "t 28", "it did not move");
}

/// A host is searched for by a part of its name. Without a text, the last search goes on.
#[test]
fn host_is_found() {
    let mut model = model(job(30, 0));
    press(&mut model, &[Key::Tab, Key::Char('/')]);
    type_text(&mut model, "n2x");
    press(&mut model, &[Key::Backspace, Key::Up, Key::Enter]);
    assert_eq!((model.focus, &model.prompt, &model.message), (Focus::Nodes, &None, &None));
    assert_eq!(model.nodes.cursor.selected, 3, "below the row of all: n0, n1, n2");
    assert!(model.nodes.cursor.offset <= 3);
    press(&mut model, &[Key::Char('/'), Key::Enter]);
    assert_eq!(model.nodes.cursor.selected, 21, "n20");
    press(&mut model, &[Key::Char('/'), Key::Char('z'), Key::Enter]);
    assert_eq!(model.message.as_deref(), Some("no host contains \"z\""));
    press(&mut model, &[Key::Char('/'), Key::Char('n'), Key::Esc]);
    assert_eq!((&model.message, &model.prompt), (&None, &None));
    press(&mut model, &[Key::Char('/')]);
    type_text(&mut model, &"x".repeat(1_000));
    assert_eq!(model.prompt.unwrap().len(), PROMPT_MAX);
}

/// The loss of the coordinator is shown with its beginning, and the state does not grow older. The next state ends it.
#[test]
fn loss_of_the_coordinator_is_shown() {
    let start = clock::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut snapshot = job(1, 0);
    snapshot.time.states = vec![StateTime { state: "starting".to_owned(), ms: 500, settled_ms: 0 }];
    snapshot.time.now = Some("starting".to_owned());
    let mut model = Model::new(snapshot.clone(), SIZE, start);
    for (input, now) in
        [(Input::Tick, 5), (Input::Lost(None), 7), (Input::Lost(None), 8), (Input::Tick, 10)]
    {
        assert!(model.update(input, at(now)).is_continue());
    }
    assert_eq!(model.lost_for(), Some((Duration::from_secs(3), None)));
    assert_eq!((model.age_ms(), model.time().of("starting")), (7_000, 7_500));
    assert!(model.update(Input::State(snapshot), at(11)).is_continue());
    assert_eq!((model.lost_for(), model.age_ms()), (None, 0));
}

/// The end of the job is shown once, and the view stays.
#[test]
fn outcome_is_shown() {
    let mut model = model(job(2, 0));
    let closed = || {
        let phase = PhaseName::Closed;
        Box::new(Snapshot { outcome: Some(outcome()), phase, ..*job(2, 0) })
    };
    assert!(model.update(Input::State(closed()), clock::now()).is_continue());
    assert_eq!(model.pane, Some(Pane::Outcome));
    assert_eq!(panes::lines(&model, 80), ["ragent: the job has succeeded"]);
    press(&mut model, &[Key::Esc]);
    assert!(model.update(Input::State(closed()), clock::now()).is_continue());
    assert_eq!(model.pane, None);
    assert_eq!(Model::new(closed(), SIZE, clock::now()).pane, Some(Pane::Outcome));
}

/// The explanation belongs to the newest state. Texts are scrolled to their last page.
#[test]
fn explanation_is_scrolled() {
    let mut model = model(job(2, 0));
    press(&mut model, &[Key::Char('e')]);
    assert!(model.explanation.contains("job has been running round 1"), "{}", model.explanation);
    assert!(model.update(Input::State(Box::new(empty_snapshot())), clock::now()).is_continue());
    assert!(model.explanation.contains("has been forming its first round"));
    press(&mut model, &[Key::Char('e')]);
    assert_eq!(model.pane, None);
    press(&mut model, &[Key::Char('?'), Key::PageDown, Key::PageDown, Key::PageDown]);
    let height = Areas::of(SIZE, &model).lines_of_pane();
    assert_eq!(model.scrolled, panes::lines(&model, SIZE.width).len() - height);
    // A larger terminal shows all of it.
    let resized = Input::Resized(Size { width: 200, height: 60 });
    assert!(model.update(resized, clock::now()).is_continue());
    assert_eq!(model.scrolled, 0);
}

/// Ten thousand nodes with ten thousand states, in a terminal of any size: each key keeps the selection in the list.
#[test]
fn large_jobs_are_shown() {
    let mut snapshot = job(9_000, 1_000);
    for (number, node) in snapshot.nodes.iter_mut().enumerate() {
        node.reason = (number % 2 == 0).then(|| format!("reason {number}"));
    }
    let mut model = model(snapshot);
    assert_eq!(model.nodes.rows.len(), 5_002);
    for (width, height) in [(0, 0), (1, 1), (40, 10), (80, 24), (200, 60)] {
        let size = Size { width, height };
        assert!(model.update(Input::Resized(size), clock::now()).is_continue());
        for key in [Key::End, Key::Enter, Key::Esc, Key::PageUp, Key::Char('s'), Key::Down] {
            press(&mut model, &[key]);
            assert!(model.nodes.cursor.selected < model.nodes.rows.len(), "{key:?} {size:?}");
        }
    }
}

/// `k` shows where the workers are, and asks for a look, once for each time that it is pressed.
#[test]
fn places_of_workers_are_shown() {
    let mut model = model(job(2, 0));
    assert!(!model.take_look_request());
    press(&mut model, &[Key::Char('k')]);
    assert_eq!((model.take_look_request(), model.take_look_request()), (true, false));
    assert!(panes::lines(&model, 80)[0].contains("looked at the workers of this round yet"));
    let place = LookPlace {
        text: "all_reduce (t.py:7)".to_owned(),
        count: 16,
        ranks: vec![(0, 15)],
        ..LookPlace::default()
    };
    let (age_ms, places) = (3_000, vec![place]);
    let look = JobLook { age_ms, places, has_stacks: true, has_lines: true, ..JobLook::default() };
    let state = Box::new(Snapshot { look: Some(look), ..*job(2, 0) });
    assert!(model.update(Input::State(state), clock::now()).is_continue());
    let lines = panes::lines(&model, 80);
    assert_eq!(
        (lines[0].as_str(), lines[2].as_str()),
        ("3.0 s ago:", "ranks 0-15: all_reduce (t.py:7)")
    );
    let why = "no new look: no agent runs here".to_owned();
    assert!(model.update(Input::Message(why.clone()), clock::now()).is_continue());
    assert_eq!(model.message.as_ref(), Some(&why));
    press(&mut model, &[Key::Char('k')]);
    assert!(model.take_look_request());
    press(&mut model, &[Key::Esc]);
    assert!(model.pane.is_none() && !model.take_look_request());
}
