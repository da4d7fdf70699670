use std::time::Duration;

use super::*;

/// A node with two GPUs and two ports, and its clock.
struct Fixture {
    hardware: Hardware,
    now: Instant,
}

fn gpu(number: u32) -> Gpu {
    Gpu { number, recovery_action: Some(0), ..Gpu::default() }
}

fn port(name: &str, is_active: bool, link_downed: u64) -> Port {
    Port { name: name.to_owned(), is_active, link_downed: Some(link_downed) }
}

fn gpus(gpus: &[Gpu]) -> Reading {
    Reading { gpus: Some(gpus.to_vec()), ..Reading::default() }
}

fn ports(ports: &[Port]) -> Reading {
    Reading { ports: Some(ports.to_vec()), ..Reading::default() }
}

impl Fixture {
    /// A second of its first round has passed.
    fn new() -> Self {
        let now = crate::some_instant();
        let mut t = Self { hardware: Hardware::default(), now };
        t.hardware.handle_round(now);
        t.read(gpus(&[gpu(0), gpu(1)]));
        t.read(ports(&[port("mlx5_0", true, 7), port("mlx5_1", false, 0)]));
        t.pass(1_000);
        t
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    /// Returns the sentences of what is new.
    fn read(&mut self, reading: Reading) -> Vec<String> {
        let news = self.hardware.handle_reading(self.now, reading);
        news.into_iter().map(|news| news.text).collect()
    }

    fn xid(&mut self, gpu: u32, xid: u64) -> Option<Need> {
        self.hardware.handle_xid(self.now, gpu, xid).map(|news| news.need)
    }

    /// Returns what joins a failure, with ages in milliseconds.
    fn failure(&self) -> Vec<(String, u128)> {
        let facts = self.hardware.of_failure(self.now);
        facts
            .into_iter()
            .map(|fact| (fact.text, fact.age.map_or(0, |age| age.as_millis())))
            .collect()
    }

    /// Returns the texts of what joins a failure.
    fn texts(&self) -> Vec<String> {
        self.failure().into_iter().map(|(text, _)| text).collect()
    }

    fn lines(&self) -> Vec<String> {
        self.hardware.lines(self.now)
    }

    fn unhealthy(&self) -> Option<Unhealthy> {
        self.hardware.unhealthy()
    }
}

/// A failure gets the errors since its round began, with their age, and nothing from earlier rounds.
#[test]
fn failure_gets_the_errors_of_its_round() {
    let mut t = Fixture::new();
    assert_eq!(t.failure(), []);
    assert_eq!(t.xid(1, 79), Some(Need::Replace));
    t.pass(400);
    let text = "GPU 1 reported XID 79 (fell off the bus)".to_owned();
    assert_eq!(t.failure(), [(text, 400)]);
    t.hardware.handle_round(t.now);
    t.pass(1);
    assert_eq!(t.failure(), []);
    assert_eq!(t.lines(), ["GPU 1 reported XID 79 (fell off the bus) 0.4 s ago"]);
}

/// What a GPU reports within a minute after a serious error is left out as a consequence. What it has reported before stays, and so does
/// what other devices report. The worst is first, and of these the newest.
#[test]
fn consequences_are_left_out() {
    let mut t = Fixture::new();
    t.xid(1, 13);
    t.pass(10);
    t.xid(1, 119);
    t.pass(10);
    t.xid(1, 45);
    t.xid(0, 31);
    t.pass(10);
    t.xid(1, 79);
    t.pass(10);
    let expected = [
        ("GPU 1 reported XID 79 (fell off the bus)".to_owned(), 10),
        ("GPU 1 reported XID 119 (GSP RPC time-out)".to_owned(), 30),
        ("GPU 0 reported XID 31 (memory page fault)".to_owned(), 20),
        ("GPU 1 reported XID 13 (graphics engine exception)".to_owned(), 40),
    ];
    assert_eq!(t.failure(), expected);
    assert_eq!(t.lines().len(), 5);
    assert_eq!(t.lines()[0], "GPU 1 reported XID 79 (fell off the bus) 0.0 s ago");
    // An error that comes much later has another cause.
    let mut t = Fixture::new();
    t.xid(1, 119);
    t.pass(60_001);
    t.xid(1, 45);
    assert_eq!(t.failure().len(), 2);
}

/// A missing GPU does not hide a port that is down.
#[test]
fn devices_without_a_gpu_hide_nothing() {
    let mut t = Fixture::new();
    t.read(gpus(&[gpu(0)]));
    t.read(ports(&[port("mlx5_0", false, 7)]));
    assert_eq!(t.texts(), ["1 of 2 GPUs was found missing", "port mlx5_0 was found down"]);
}

/// A GPU that becomes unavailable needs a repair.
#[test]
fn unavailable_gpu_is_noted() {
    let mut t = Fixture::new();
    let news = t.hardware.handle_unavailable(t.now, 1);
    assert_eq!(news.map(|news| news.need), Some(Need::Replace));
    assert_eq!(t.texts(), ["GPU 1 became unavailable"]);
}

/// An error that repeats is one report with its last time and its number, and is news once a round.
#[test]
fn repeated_errors_are_counted() {
    let mut t = Fixture::new();
    assert_eq!(t.xid(0, 13), Some(Need::Program));
    t.pass(100);
    assert_eq!(t.xid(0, 13), None);
    t.pass(100);
    let text = "GPU 0 reported XID 13 (graphics engine exception) 2 times, the last one".to_owned();
    assert_eq!(t.failure(), [(text, 100)]);
    t.hardware.handle_round(t.now);
    t.pass(100);
    assert_eq!(t.xid(0, 13), Some(Need::Program));
    let text = "GPU 0 reported XID 13 (graphics engine exception)".to_owned();
    assert_eq!(t.failure(), [(text, 0)]);
}

/// What has become worse between two readings is noted, and what was so before is not.
#[test]
fn readings_are_compared() {
    let mut t = Fixture::new();
    let reset = Gpu { recovery_action: Some(1), is_remap_pending: true, ..gpu(1) };
    let news = t.read(gpus(&[gpu(0), reset.clone()]));
    assert_eq!(news, ["GPU 1 asked for a reset", "GPU 1 was found with a pending row remap"]);
    assert_eq!(t.read(gpus(&[gpu(0), reset.clone()])), Vec::<String>::new());
    t.pass(100);
    assert_eq!(t.failure().len(), 2);
    t.hardware.handle_round(t.now);
    t.read(gpus(&[gpu(0), reset.clone()]));
    t.pass(100);
    let states =
        ["GPU 1 asks for a reset", "GPU 1 has a pending row remap, which a reset completes"];
    assert_eq!(t.lines(), states);
    let failed = Gpu { has_remap_failed: true, ..reset };
    assert_eq!(t.read(gpus(&[gpu(0), failed])), ["GPU 1 was found with a failed row remap"]);
    t.read(gpus(&[gpu(0), gpu(1)]));
    assert_eq!(t.lines()[0], "GPU 1 was found with a failed row remap 0.0 s ago");
}

/// What the first reading finds is no news. A failure gets it without a time if it needs a reset or a repair.
#[test]
fn first_reading_is_no_report() {
    let now = crate::some_instant();
    let mut t = Fixture { hardware: Hardware::default(), now };
    t.hardware.handle_round(now);
    t.pass(1_000);
    let news = t.read(gpus(&[Gpu { has_remap_failed: true, ..gpu(0) }]));
    assert_eq!(news, Vec::<String>::new());
    let text = "GPU 0 has a failed row remap, and must be replaced";
    assert_eq!(t.lines(), [text]);
    assert_eq!(t.hardware.of_failure(t.now), [HardwareFact { text: text.to_owned(), age: None }]);
}

/// A state that lasts joins the failures of all rounds, and a port that stays down only that of its round. What the first reading of a
/// round finds was there before.
#[test]
fn lasting_states_join_later_failures() {
    let mut t = Fixture::new();
    let lost = Gpu { recovery_action: Some(1), ..gpu(1) };
    t.read(gpus(&[gpu(0), lost.clone()]));
    t.read(ports(&[port("mlx5_0", false, 7)]));
    t.xid(0, 31);
    assert_eq!(t.texts().len(), 3);
    t.pass(1_000);
    t.hardware.handle_round(t.now);
    t.pass(1_000);
    let failed = Gpu { has_remap_failed: true, ..gpu(0) };
    assert_eq!(t.read(gpus(&[failed.clone(), lost.clone()])).len(), 1);
    let states = ["GPU 0 has a failed row remap, and must be replaced", "GPU 1 asks for a reset"];
    assert_eq!(t.texts(), states);
    assert!(t.hardware.of_failure(t.now).iter().all(|fact| fact.age.is_none()));
    let lines = t.hardware.lines_of_round(t.now);
    assert_eq!(lines, [states[0], states[1], "port mlx5_0 is down"]);
    assert_eq!(t.lines().len(), 4);
}

/// A GPU that is gone is missing from the number at the start. A driver that cannot be asked says nothing.
#[test]
fn missing_gpus_are_noted() {
    let mut t = Fixture::new();
    assert_eq!(t.read(gpus(&[gpu(0)])), ["1 of 2 GPUs was found missing"]);
    assert_eq!(t.texts(), ["1 of 2 GPUs was found missing"], "not the state as well");
    assert_eq!(t.read(Reading::default()), Vec::<String>::new());
    assert_eq!(t.lines(), ["1 of 2 GPUs is missing"]);
    assert_eq!(t.hardware.devices().as_deref(), Some("1 GPU, 2 ports"));
}

/// A port that was active counts, and one that was never active does not. Lost links are counted from the reading before.
#[test]
fn ports_are_compared() {
    let mut t = Fixture::new();
    let news = t.read(ports(&[port("mlx5_0", false, 9), port("mlx5_1", false, 0)]));
    let expected =
        ["port mlx5_0 was found down", "port mlx5_0 was found to have lost its link 2 times"];
    assert_eq!(news, expected);
    assert_eq!(t.lines()[0], "port mlx5_0 is down");
    let news = t.read(ports(&[port("mlx5_0", true, 1), port("mlx5_1", true, 0)]));
    assert_eq!(news, Vec::<String>::new(), "the counter was reset");
    let news = t.read(ports(&[port("mlx5_0", true, 2)]));
    assert_eq!(news, ["port mlx5_0 was found to have lost its link once"]);
}

/// A flood of errors stays within the limits, and does not displace what is serious.
#[test]
fn floods_are_bounded() {
    let mut t = Fixture::new();
    t.xid(1, 79);
    for xid in 1_000..11_000 {
        t.pass(1);
        t.xid(0, xid);
    }
    assert_eq!(t.lines().len(), limits::HARDWARE_NOTED_MAX);
    assert_eq!(t.failure()[0].0, "GPU 1 reported XID 79 (fell off the bus)");
    for gpu in 2..20 {
        t.xid(gpu, 79);
    }
    assert_eq!(t.failure().len(), HARDWARE_FACTS_MAX);
    let name = "ä".repeat(1_000);
    t.read(ports(&[port(&name, true, 1)]));
    t.read(ports(&[port(&name, false, 2)]));
    assert!(t.lines().iter().all(|line| line.len() <= LINE_MAX));
}

/// A node is unhealthy by the worst state of its GPUs, or by their worst error. What only informs, and what a new start of the program
/// repairs, leaves it healthy.
#[test]
fn worst_need_makes_unhealthy() {
    let mut t = Fixture::new();
    t.xid(0, 43);
    t.xid(0, 31);
    t.read(ports(&[port("mlx5_0", false, 8)]));
    assert_eq!(t.unhealthy(), None);
    t.xid(0, 119);
    let xid = |class, kind: &str, reason: &str| {
        Some(Unhealthy { class, kind: kind.to_owned(), reason: reason.to_owned() })
    };
    let reset = xid(HealthClass::Reset, "xid_119", "GPU 0: XID 119 (GSP RPC time-out)");
    assert_eq!(t.unhealthy(), reset);
    for (changed, class, kind) in [
        (Gpu { is_remap_pending: true, ..gpu(1) }, HealthClass::Reset, "xid_119"),
        (Gpu { recovery_action: Some(7), ..gpu(1) }, HealthClass::Replace, "recovery_action_7"),
        (Gpu { has_remap_failed: true, ..gpu(1) }, HealthClass::Replace, "row_remap_failed"),
    ] {
        t.read(gpus(&[gpu(0), changed]));
        let found = t.unhealthy().map(|found| (found.class, found.kind));
        assert_eq!(found, Some((class, kind.to_owned())));
    }
    // A later driver may ask for an action that is not known here.
    let unknown = Gpu { recovery_action: Some(8), ..gpu(0) };
    assert_eq!(
        Finding::of_gpu(&unknown).iter().map(Finding::need).collect::<Vec<_>>(),
        [Need::Nothing]
    );
    t.read(gpus(&[gpu(0)]));
    let gone = xid(HealthClass::Gone, "gpus_missing", "1 of 2 GPUs is missing");
    assert_eq!(t.unhealthy(), gone);
    t.read(gpus(&[gpu(0), gpu(1)]));
    assert_eq!(t.unhealthy(), reset);
}

/// Findings are sorted, the worst first, and each has a remedy.
#[test]
fn findings_have_a_remedy() {
    let found = gpus(&[
        Gpu { is_remap_pending: true, ..gpu(0) },
        Gpu { recovery_action: Some(2), ..gpu(1) },
        Gpu { recovery_action: Some(8), ..gpu(2) },
        Gpu { has_remap_failed: true, ..gpu(3) },
    ])
    .findings();
    let reset = "end all processes on the GPU, and type `nvidia-smi --gpu-reset -i NUMBER`";
    let remedies: Vec<_> = found.iter().map(|(_, remedy)| *remedy).collect();
    let unknown = "follow NVIDIA's driver documentation for this recovery action";
    assert_eq!(remedies, ["restart the machine", "restart or repair the machine", reset, unknown]);
    assert_eq!(found[1].0, "GPU 3 has a failed row remap, and must be replaced");
}

/// Each round needs a new reading. Before the first round, a reading does not count.
#[test]
fn devices_are_read_in_each_round() {
    let mut t = Fixture::new();
    assert!(t.hardware.is_read_in_round());
    t.hardware.handle_round(t.now);
    assert!(!t.hardware.is_read_in_round());
    t.read(gpus(&[gpu(0), gpu(1)]));
    assert!(t.hardware.is_read_in_round());
    t.hardware = Hardware::default();
    t.read(gpus(&[gpu(0)]));
    assert!(!t.hardware.is_read_in_round(), "no round has begun");
}

/// After a check, earlier GPU errors no longer make the node unhealthy.
#[test]
fn checks_end_errors() {
    let mut t = Fixture::new();
    t.xid(1, 79);
    t.hardware.handle_checked(t.hardware.round_began().unwrap());
    assert!(t.unhealthy().is_some());
    t.pass(400);
    let began = t.now;
    t.pass(400);
    t.hardware.handle_unavailable(t.now, 0);
    t.hardware.handle_checked(began);
    assert_eq!(t.unhealthy().map(|found| found.kind), Some("gpu_unavailable".to_owned()));
    // An earlier check brings nothing back.
    t.hardware.handle_checked(t.now);
    t.hardware.handle_checked(began);
    assert_eq!(t.unhealthy(), None);
}

/// A GPU of another job counts only if its driver asks for a restart of the machine.
#[test]
fn gpus_of_others_do_not_count() {
    let mut t = Fixture::new();
    let other = |action, number| Gpu {
        recovery_action: Some(action),
        is_remap_pending: true,
        has_remap_failed: true,
        is_of_others: true,
        ..gpu(number)
    };
    t.read(gpus(&[gpu(0), gpu(1), other(1, 2)]));
    assert_eq!((t.unhealthy(), t.texts()), (None, Vec::new()));
    assert_eq!(t.hardware.devices().as_deref(), Some("2 GPUs, 2 ports"));
    t.read(gpus(&[gpu(0), gpu(1), other(2, 2)]));
    assert_eq!(t.unhealthy().map(|found| found.kind), Some("recovery_action_2".to_owned()));
    // One of them that is gone is no loss.
    t.read(gpus(&[gpu(0), gpu(1)]));
    assert_eq!(t.unhealthy(), None);
}

/// A folder that has become full since the round began joins the failure, and leaves the machine healthy.
#[test]
fn full_folders_are_noted() {
    let mut t = Fixture::new();
    let folder = |problem| {
        let folder = Folder { path: "/dev/shm".to_owned(), problem };
        Reading { folders: Some(vec![folder]), ..Reading::default() }
    };
    assert_eq!(t.read(folder(None)), [""; 0]);
    assert_eq!(t.read(folder(Some(FolderProblem::Full))), ["/dev/shm was found full"]);
    assert_eq!(t.read(folder(Some(FolderProblem::Full))), [""; 0]);
    assert_eq!((t.texts(), t.unhealthy()), (vec!["/dev/shm was found full".to_owned()], None));
    assert_eq!(t.lines(), ["/dev/shm is full"]);
    t.read(folder(Some(FolderProblem::Silent)));
    assert_eq!(t.lines()[0], "the disk of /dev/shm does not answer");
    t.read(folder(None));
    assert!(t.lines()[0].ends_with(" ago"), "{:?}", t.lines());
}

/// A folder that does not answer in time stays as it was, and is no news when it answers again.
#[test]
fn slow_folders_stay_as_they_were() {
    let mut t = Fixture::new();
    let folders = |full: &[&str]| {
        let folder = |path: &&str| {
            let (path, problem) = ((*path).to_owned(), Some(FolderProblem::Full));
            Folder { path, problem }
        };
        Reading { folders: Some(full.iter().map(folder).collect()), ..Reading::default() }
    };
    assert_eq!(t.read(folders(&["/logs"])), ["/logs was found full"]);
    t.hardware.handle_round(t.now);
    assert_eq!(t.read(folders(&["/dev/shm"])), ["/dev/shm was found full"]);
    t.pass(100);
    assert_eq!(t.read(folders(&["/logs", "/dev/shm"])), [""; 0]);
    assert_eq!(t.lines(), ["/dev/shm is full", "/logs is full"]);
}

/// The first reading of a round finds older errors. They do not belong to the round, and are news when they happen again.
#[test]
fn first_reading_of_a_round_finds_what_was_before() {
    let mut t = Fixture::new();
    t.hardware.handle_round(t.now);
    t.pass(1);
    assert_eq!(t.read(ports(&[port("mlx5_0", true, 8)])).len(), 1);
    assert_eq!((t.lines().len(), t.hardware.lines_of_round(t.now).len()), (1, 0));
    assert_eq!(t.read(ports(&[port("mlx5_0", true, 9)])).len(), 1);
    assert_eq!(t.hardware.lines_of_round(t.now).len(), 1);
    assert_eq!(t.read(ports(&[port("mlx5_0", true, 10)])).len(), 0, "it is known");
}

/// Only so many ports are watched.
#[test]
fn watched_ports_are_bounded() {
    let mut t = Fixture { hardware: Hardware::default(), now: crate::some_instant() };
    for is_active in [true, false] {
        let all = (0..=limits::PORTS_MAX).map(|number| port(&format!("p{number}"), is_active, 0));
        t.read(ports(&all.collect::<Vec<_>>()));
    }
    assert_eq!(t.lines().len(), limits::PORTS_MAX);
}
