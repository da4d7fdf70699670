//! Kills a worker that the coordinator names as hung, or lets it live.

use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use ragent_base::{
    output::{console::Console, logs::LogFolder},
    report::measures::NodeMeasures,
    sys::memory::OomKills,
};
use ragent_core::{
    keeper_watch::KeeperWatch, named_hang::NamedHang, saves::SaveWatch, steps::StepWatch,
    supervisor::Supervisor,
};
use ragent_options::{spec::JobSpec, testing::job_spec};
use ragent_rendezvous::{
    ids::{GlobalRank, JobUid},
    message::{Admission, Hung, WorkerEnd},
};

use super::*;
use crate::{event_log::EventLog, spec::GivenLimits};

/// A driver whose only worker is a process that sleeps.
struct Fixture {
    driver: WorkersDriver,
    done: mpsc::Receiver<(RoundId, Done)>,
    worker: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

fn spec(folder: &Path) -> WorkersSpec {
    let (console, _) = Console::start().unwrap();
    let job = Arc::new(JobSpec { held_gpu_timeout: Duration::ZERO, ..job_spec() });
    WorkersSpec {
        events: EventLog::new(&console, Arc::clone(&job), String::new()),
        measures: Arc::new(NodeMeasures::default()),
        timer_pipe: None,
        logs: Arc::new(LogFolder::create(None, folder, &job.run_id).unwrap()),
        chooses_gloo_interface: false,
        socket_dir: folder.to_owned(),
        given: GivenLimits::default(),
        host_name: String::new(),
        console,
        job,
    }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let worker = Command::new("sleep").arg("1000").spawn().unwrap();
        let (spec, now) = (spec(folder.path()), clock::now());
        let (reports, _) = mpsc::channel(limits::TASK_QUEUE);
        let (reports_to_agent, _) = mpsc::channel(limits::TASK_QUEUE);
        let (background, done) = mpsc::channel(limits::TASK_QUEUE);
        let running = Worker { pid: worker.id(), ..Worker::default() };
        let group = WorkerGroup {
            machine: Supervisor::new(1, spec.job.shared.timeouts.stop_grace),
            admission: Admission { first_global_rank: GlobalRank(8), ..Admission::default() },
            job_uid: JobUid::new("u1"),
            workers: BTreeMap::from([(LocalRank(0), running)]),
            choices: [None, None],
            hang: None,
            steps: StepWatch::default(),
            saves: SaveWatch::new(1),
            has_ignored_save: false,
            is_looking: false,
            named_hang: NamedHang::default(),
            is_reading_state: false,
            oom_kills: OomKills::default(),
            hardware_reading: None,
            keeper: KeeperWatch::new(now, None),
            stopped: None,
            signaled: None,
        };
        let hardware = HardwareWatch::new(Arc::clone(&spec.measures), &spec.job.health, None);
        let driver = WorkersDriver {
            standbys: HeldStandbys::prepare(&spec),
            checks: HealthChecks::new(spec.job.health.clone(), &hardware),
            hardware,
            gpus: Arc::new(HeldGpus::new(spec.job.held_gpu_timeout)),
            gloo_interface: Arc::default(),
            spec,
            keeper: None,
            drains: Drains::default(),
            reports,
            reports_to_agent,
            group: Some(group),
            death_notice: None,
            renewed: None,
            lease: None,
            cleanups: 0,
            idle_since: now,
            timers: HealthTimers::default(),
            worker_reports: None,
            memory_folder: None,
            output: Arc::new(Notify::new()),
            look_files: BTreeMap::new(),
            background,
        };
        Self { driver, done, worker, _folder: folder }
    }

    /// Passes on that the coordinator names the worker.
    fn name(&mut self, if_stopped: bool) {
        let time = Duration::from_secs(900);
        self.driver.handle_hung(Some(Hung { rank: GlobalRank(8), time, if_stopped }));
    }

    /// Handles the end of the work in the background.
    async fn finish(&mut self) {
        let (round, done) = self.done.recv().await.unwrap();
        self.driver.handle_done(round, done).await;
    }

    /// Returns the worker that is killed, if any.
    fn killed(&mut self) -> Option<LocalRank> {
        match self.driver.group.as_mut().unwrap().machine.poll_effect() {
            Some(Effect::Failed(local_rank, WorkerEnd::Hung(_))) => Some(local_rank),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Lets the watch find the stopped worker stopped for as long as it takes.
    fn stay_stopped(&mut self) {
        let watch = &mut self.driver.group.as_mut().unwrap().named_hang;
        let mut hang = None;
        while hang.is_none() {
            let now = watch.poll_timeout().unwrap();
            hang = watch.handle_look(now, LocalRank(0), true);
        }
        self.driver.take_stacks(hang, HungBy::Coordinator);
    }

    /// Stops the worker, or lets it go on.
    fn signal(&self, signal: Signal, reached: WaitPidFlag) {
        let pid = Pid::from_raw(self.worker.id().cast_signed());
        kill(pid, signal).unwrap();
        waitpid(pid, Some(reached)).unwrap();
    }
}

/// A worker that the coordinator names is killed after its stack was taken. If the coordinator takes that back
/// meanwhile, the worker lives.
#[tokio::test]
async fn order_may_be_taken_back() {
    let mut t = Fixture::new();
    t.name(false);
    t.driver.handle_hung(None);
    t.finish().await;
    assert_eq!(t.killed(), None);
    t.name(false);
    t.finish().await;
    assert_eq!(t.killed(), Some(LocalRank(0)));
}

/// A stopped worker that goes on while its stack is taken lives. If it stays stopped, it is killed.
#[tokio::test]
async fn worker_may_go_on() {
    let mut t = Fixture::new();
    t.name(true);
    t.signal(Signal::SIGSTOP, WaitPidFlag::WUNTRACED);
    t.stay_stopped();
    t.signal(Signal::SIGCONT, WaitPidFlag::WCONTINUED);
    t.finish().await;
    assert_eq!(t.killed(), None);
    t.signal(Signal::SIGSTOP, WaitPidFlag::WUNTRACED);
    t.stay_stopped();
    t.finish().await;
    assert_eq!(t.killed(), Some(LocalRank(0)));
}

/// A hang that the node finds itself ends with a kill, whatever the coordinator names.
#[tokio::test]
async fn own_hang_is_not_taken_back() {
    let mut t = Fixture::new();
    let hang = Hang { local_rank: LocalRank(0), time: Duration::from_secs(60) };
    t.driver.take_stacks(Some(hang), HungBy::Node);
    t.driver.handle_hung(None);
    t.finish().await;
    assert_eq!(t.killed(), Some(LocalRank(0)));
}
