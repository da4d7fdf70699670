//! Runs a node of a job, with a service manager that restarts its agent.

use std::{
    fs::{self, File},
    sync::{Condvar, Mutex, MutexGuard},
    time::Duration,
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd,
};

use crate::{
    history::{self, Death, History, Whose},
    job::Site,
    schedule::{Ending, Fault, Plan, RECOVERY},
    support::{
        Gpus, Program, Sandbox, WorkerProgram, children, find_keeper, is_alive, is_standby, kill,
        let_pass,
    },
};

/// The longest time to wait for workers, or for an agent that reads the error of a GPU, before a fault that concerns them. If there are none,
/// the fault has no effect.
const READING: Duration = Duration::from_secs(3);

/// The time that workers need to begin.
const STARTING: Duration = Duration::from_millis(300);

/// The time in which workers that hang must be ended. It is long, because the machine may be busy.
const ENDING: Duration = Duration::from_secs(60);

/// A node: its folders, its agent, and its faults so far.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) number: u32,
    site: &'a Site,
    plan: &'a Plan,
    words: String,
    pub(crate) sandbox: Sandbox,
    /// The GPUs of the machine, if it is to become bad.
    gpus: Option<Gpus>,
    /// The running agent, and the number of agents so far.
    agent: Option<Program>,
    agents: u32,
    /// The time at which the next fault may begin.
    recovered: Duration,
    /// The history of the node without the files of its workers.
    known: History,
    chronicle: &'a Chronicle,
}

/// The faults that were injected, with their times.
#[derive(Debug, Default)]
pub(crate) struct Chronicle(Mutex<Vec<String>>);

impl Chronicle {
    /// Adds a line with the current time.
    pub(crate) fn note(&self, what: &str) {
        let now = history::now().as_secs_f64();
        let mut lines = self.0.lock().expect("nobody panics while it notes");
        lines.push(format!("{now:.2} {what}\n"));
    }

    /// Returns all lines.
    pub(crate) fn text(&self) -> String {
        self.0.lock().expect("nobody panics while it notes").concat()
    }
}

/// The start of agents of nodes that were not there before.
#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    are_called: Mutex<bool>,
    called: Condvar,
}

impl Newcomers {
    /// Lets them start.
    pub(crate) fn call(&self) {
        *self.are_called.lock().expect("no thread panics while it has the lock") = true;
        self.called.notify_all();
    }

    fn wait(&self) {
        let called = self.are_called.lock().expect("no thread panics while it has the lock");
        let called = self.called.wait_while(called, |are_called| !*are_called);
        drop(called.expect("no thread panics while it has the lock"));
    }
}

impl<'a> Node<'a> {
    /// A node whose agent is not started yet. `script` is the worker, and `words` are the flags of all nodes.
    pub(crate) fn new(
        number: u32,
        site: &'a Site,
        (plan, worker): (&'a Plan, WorkerProgram),
        (script, words): (&str, &str),
        chronicle: &'a Chronicle,
    ) -> Self {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("history")).expect("a fresh folder can be written");
        unistd::mkfifo(&sandbox.path("never"), Mode::S_IRWXU).expect("a fresh folder takes a pipe");
        let Plan { workers, manner, .. } = plan;
        let words = worker.translate(&format!(
            "{words} --journal {} --nproc-per-node {workers} --no-python {script} {}",
            sandbox.path("journal").display(),
            manner.word()
        ));
        let gpus = (plan.count_bad_machines() > 0).then(|| Gpus::new(&sandbox)).flatten();
        Self {
            number,
            site,
            plan,
            words,
            sandbox,
            gpus,
            agent: None,
            agents: 0,
            recovered: Duration::ZERO,
            known: History::default(),
            chronicle,
        }
    }

    /// Runs the node's plan, which begins at `start`. Leaves an agent running.
    pub(crate) fn live(node: &Mutex<Self>, start: Duration, newcomers: &Newcomers) {
        let plan = lock(node).plan;
        let_pass((start + plan.joins).saturating_sub(history::now()));
        if plan.is_newcomer {
            newcomers.wait();
        }
        lock(node).start_again();
        for (at, fault) in &plan.faults {
            let_pass((start + *at).saturating_sub(history::now()));
            lock(node).suffer(*fault);
        }
    }

    fn suffer(&mut self, fault: Fault) {
        let_pass(self.recovered.saturating_sub(history::now()));
        self.revive();
        self.note(&format!("{fault:.2?}"));
        match fault {
            Fault::Cut(time) => {
                self.site.cut(self.number);
                let_pass(time);
                self.site.heal(self.number);
            }
            Fault::FreezeAgent(time) => self.agent().freeze(time),
            Fault::FreezeAll(time) => self.freeze_all(time),
            Fault::KillAgent(pause) => {
                self.kill_agent();
                let_pass(pause);
                self.start();
            }
            Fault::KillAgentOffline(time) => {
                self.site.cut(self.number);
                self.kill_agent();
                let_pass(time / 2);
                self.start();
                let_pass(time / 2);
                self.site.heal(self.number);
            }
            Fault::LoseState(pause) => {
                self.kill_all();
                self.forget_state();
                let_pass(pause);
                self.start();
            }
            Fault::KillKeeper => {
                let Some(keeper) = find_keeper(self.agent().pid()) else { return };
                self.expect_failure();
                kill(keeper, Signal::SIGKILL);
                self.record_death(Whose::Keeper(keeper));
            }
            Fault::KillWorker => self.kill_worker(),
            Fault::Terminate(pause) => {
                self.leave(pause, |node| node.agent().signal(Signal::SIGTERM));
            }
            Fault::Leave(pause) => self.leave(pause, |node| {
                if !node.give_notice("leave") {
                    node.agent().signal(Signal::SIGTERM);
                }
            }),
            Fault::Save => {
                self.give_notice("save");
            }
            Fault::StopWorkers(time) => {
                let stopped = self.signal_workers(Signal::SIGSTOP);
                let_pass(time);
                for pid in stopped {
                    kill(pid, Signal::SIGCONT);
                }
            }
            Fault::KillStopped(time) => {
                let stopped = self.signal_workers(Signal::SIGSTOP);
                let_pass(time);
                if let Some(first) = stopped.first() {
                    self.expect_failure();
                    kill(*first, Signal::SIGKILL);
                }
                self.wait_until_ended(&stopped);
            }
            Fault::StopForever => {
                self.expect_failure();
                let stopped = self.signal_workers(Signal::SIGSTOP);
                self.wait_until_ended(&stopped);
            }
            Fault::Hang => {
                self.expect_failure();
                let hung = self.signal_workers(Signal::SIGUSR1);
                self.wait_until_ended(&hung);
            }
            Fault::BreakMachine(pause) => self.break_machine(pause),
        }
        self.recovered = history::now() + RECOVERY;
        self.note("is over");
    }

    /// The workers that run.
    fn workers(&self) -> Vec<u32> {
        let keeper = find_keeper(self.agent().pid());
        let children = keeper.map(children).unwrap_or_default();
        children.into_iter().filter(|pid| !is_standby(*pid)).collect()
    }

    fn kill_worker(&mut self) {
        if let Some(worker) = self.workers().last() {
            self.expect_failure();
            kill(*worker, Signal::SIGKILL);
        }
    }

    /// Waits a moment for workers. No event reports that they run, so this polls.
    fn await_workers(&self) {
        let deadline = history::now() + READING;
        while self.workers().is_empty() && history::now() < deadline {
            let_pass(Duration::from_millis(20));
        }
        let_pass(STARTING);
    }

    /// Signals the workers and all of their descendants. Returns the workers first.
    fn signal_workers(&self, signal: Signal) -> Vec<u32> {
        self.await_workers();
        let mut all = self.workers();
        let mut next = 0;
        while let Some(pid) = all.get(next).copied() {
            kill(pid, signal);
            all.extend(children(pid));
            next += 1;
        }
        all
    }

    /// Waits until these processes have ended. No event reports that, so this polls.
    fn wait_until_ended(&mut self, pids: &[u32]) {
        let deadline = history::now() + ENDING;
        while pids.iter().any(|pid| is_alive(*pid)) {
            if history::now() > deadline {
                let number = self.number;
                self.known.complaints.push(format!("workers of node {number} hang: {pids:?}"));
                return;
            }
            let_pass(Duration::from_millis(20));
        }
    }

    /// Notes that a worker fails now, which may be charged.
    fn expect_failure(&mut self) {
        self.known.failures.push(history::now());
    }

    /// Makes the agent leave, and starts it again. If all nodes were leaving at once, the job would be over.
    fn leave(&mut self, pause: Duration, ask: impl Fn(&mut Self)) {
        let site = self.site;
        let only = site.leaving.lock().expect("a thread that panics ends the test");
        ask(self);
        let code = self.wait_for_end();
        if code != Some(8) {
            let why = format!("the agent of node {} has left with {code:?}", self.number);
            self.known.complaints.push(why);
        }
        drop(only);
        let_pass(pause);
        self.start();
    }

    /// Gives the node a notice, as its user does. Returns false if the agent does not take it, for example while it starts.
    fn give_notice(&self, kind: &str) -> bool {
        let words = format!("notice {kind} chaos");
        let end = self.site.ragent(&self.sandbox, self.number, &words).run();
        self.note(&format!("notice {kind}: {:?} {}", end.code, end.stderr));
        end.code == Some(0)
    }

    /// Lets a GPU report an error, and a worker fail. The agent of the repaired machine is started after a while.
    fn break_machine(&mut self, pause: Duration) {
        let Some(gpus) = &mut self.gpus else { return };
        let known = "GPU 1 reported XID 79";
        gpus.fail(1, 79);
        let deadline = history::now() + READING;
        while !self.log(self.agents).contains(known) && history::now() < deadline {
            let_pass(Duration::from_millis(20));
        }
        self.kill_worker();
        let_pass(pause);
        self.kill_agent();
        if let Some(gpus) = &self.gpus {
            gpus.forget_errors();
        }
        self.start();
    }

    /// Kills all processes of the node, as a loss of power does. [`Self::start_again`] follows.
    pub(crate) fn kill_all(&mut self) {
        self.revive();
        self.note("all processes are killed");
        for pid in self.stop_all() {
            kill(pid, Signal::SIGKILL);
        }
        self.wait_for_end();
    }

    /// Starts the first agent, or one after the last was killed.
    pub(crate) fn start_again(&mut self) {
        self.start();
        self.recovered = history::now() + RECOVERY;
    }

    /// Removes the state folder, as if another machine had taken the place of this one.
    pub(crate) fn forget_state(&self) {
        // Without namespaces, the folder has another name.
        for name in [&format!("run{}", self.number), "run/ragent"] {
            let folder = self.sandbox.path(name);
            if folder.exists() {
                fs::remove_dir_all(folder).expect("the agent that has run there has ended");
            }
        }
        self.note("the state is removed");
    }

    /// Stops every process of the node, even while it is being started. Returns all of them.
    fn stop_all(&self) -> Vec<u32> {
        let agent = self.agent().pid();
        let first: Vec<u32> = [agent].into_iter().chain(find_keeper(agent)).collect();
        let mut frozen = first;
        loop {
            for pid in &frozen {
                kill(*pid, Signal::SIGSTOP);
            }
            let all = self.sandbox.processes();
            if all.iter().all(|pid| frozen.contains(pid)) {
                break;
            }
            frozen.extend(all.into_iter().filter(|pid| !frozen.contains(pid)).collect::<Vec<_>>());
        }
        frozen
    }

    /// Freezes every process of the node, as a hypervisor would.
    fn freeze_all(&mut self, time: Duration) {
        let frozen = self.stop_all();
        let_pass(time);
        let thaw = history::now();
        for pid in &frozen {
            kill(*pid, Signal::SIGCONT);
        }
        self.known.thaws.push((self.number, thaw..=history::now()));
    }

    /// Returns true if an agent was started.
    pub(crate) fn has_started(&self) -> bool {
        self.agent.is_some()
    }

    fn agent(&self) -> &Program {
        self.agent.as_ref().expect("a node that lives has an agent")
    }

    /// Starts an agent.
    fn start(&mut self) {
        self.agents += 1;
        let log = File::create(self.sandbox.path(&self.log_name(self.agents)));
        let log = log.expect("a fresh folder can be written");
        let out = log.try_clone().expect("a file can be written twice");
        let start = self.site.ragent(&self.sandbox, self.number, &self.words);
        let start = start.env("AGENT", self.agents.to_string()).stderr(log).stdout(out);
        let start = start.env("AGREED", self.site.agreed());
        let start = match &self.gpus {
            Some(gpus) => gpus.belong_to(start),
            None => start,
        };
        self.agent = Some(start.start());
        self.note("agent started");
    }

    /// Starts an agent if the last one has ended unexpectedly.
    pub(crate) fn revive(&mut self) {
        if !is_alive(self.agent().pid()) {
            let code = self.wait_for_end();
            let log = self.log(self.agents);
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            let (number, agents) = (self.number, self.agents);
            let why = format!("agent {agents} of node {number} ended with {code:?}: {last:?}");
            self.known.complaints.push(why);
            self.start();
        }
    }

    fn kill_agent(&mut self) {
        self.agent().signal(Signal::SIGKILL);
        self.wait_for_end();
    }

    /// Makes the job end.
    pub(crate) fn bring_about(&self, ending: Ending) {
        match ending {
            Ending::Leave => self.agent().signal(Signal::SIGTERM),
            Ending::Notice if self.number == 1 => {
                self.give_notice("end");
            }
            Ending::Notice => {}
            Ending::Success => {
                fs::write(self.sandbox.path("done"), "").expect("the sandbox can be written");
            }
        }
    }

    /// Waits for the end of the agent with the job.
    pub(crate) fn wait_for_job_end(&mut self, ending: Ending, has_notices: bool) {
        let code = self.wait_for_end();
        if !ending.allows(code, has_notices) {
            let why = format!("the agent of node {} ended with {code:?}", self.number);
            self.known.complaints.push(format!("{why}: {ending:?}"));
        }
        if ending != Ending::Leave {
            self.known.codes.extend(code);
        }
        if code == Some(5) {
            match history::read_saved_end(&self.log(self.agents)) {
                Some(step) => self.known.saved_ends.push(step),
                None => self.known.complaints.push("an exit code of 5 without a step".to_owned()),
            }
        }
    }

    /// Waits for the agent's end, and returns its exit code.
    fn wait_for_end(&mut self) -> Option<i32> {
        let end = self.agent.take().expect("a node that lives has an agent").end();
        self.record_death(Whose::Agent(self.agents));
        end.code
    }

    fn record_death(&mut self, whose: Whose) {
        let (node, at) = (self.number, history::now());
        self.known.deaths.push(Death { node, whose, at });
        self.note(&format!("{whose:?} is dead"));
    }

    fn note(&self, what: &str) {
        self.chronicle.note(&format!("node {}: {what}", self.number));
    }

    fn log_name(&self, agent: u32) -> String {
        format!("node{}.agent{agent}.log", self.number)
    }

    fn log(&self, agent: u32) -> String {
        fs::read_to_string(self.sandbox.path(&self.log_name(agent))).unwrap_or_default()
    }

    /// Returns the history of the node so far.
    pub(crate) fn history(&self) -> History {
        let mut history = self.known.clone();
        history.standbys = self.sandbox.used_standbys();
        history.processes = history::read_processes(self.number, &self.sandbox.path("history"));
        let journal = fs::read_to_string(self.sandbox.path("journal")).unwrap_or_default();
        history.journal = history::read_journal(&journal);
        for agent in 1..=self.agents {
            let log = self.log(agent);
            history.admissions.extend(history::read_admissions(self.number, agent, &log));
            let panics = log.lines().filter(|line| line.contains("panicked at"));
            history.complaints.extend(panics.map(str::to_owned));
        }
        history
    }

    /// Returns the number of changes of the voters that its agents have completed.
    pub(crate) fn count_changes(&self) -> usize {
        let logs = (1..=self.agents).map(|agent| self.log(agent));
        logs.map(|log| log.matches("the voters have changed").count()).sum()
    }
}

/// Waits until no other thread uses the node.
pub(crate) fn lock<'n, 'a>(node: &'n Mutex<Node<'a>>) -> MutexGuard<'n, Node<'a>> {
    node.lock().expect("a thread that panics ends the test")
}
