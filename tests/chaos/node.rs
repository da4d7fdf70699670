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
        Program, Sandbox, WorkerProgram, children, find_keeper, is_alive, is_standby, kill,
        let_pass,
    },
};

/// A node: its folders, its agent, and its faults so far.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) number: u32,
    site: &'a Site,
    plan: &'a Plan,
    words: String,
    pub(crate) sandbox: Sandbox,
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
            "{words} --nproc-per-node {workers} --no-python {script} {}",
            manner.word()
        ));
        Self {
            number,
            site,
            plan,
            words,
            sandbox,
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
        lock(node).start();
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
                kill(keeper, Signal::SIGKILL);
                self.record_death(Whose::Keeper(keeper));
            }
            Fault::KillWorker => {
                let keeper = find_keeper(self.agent().pid());
                let children = keeper.map(children).unwrap_or_default();
                let Some(worker) = children.into_iter().rfind(|pid| !is_standby(*pid)) else {
                    return;
                };
                kill(worker, Signal::SIGKILL);
            }
            Fault::Terminate(pause) => {
                self.agent().signal(Signal::SIGTERM);
                self.wait_for_end();
                let_pass(pause);
                self.start();
            }
        }
        self.recovered = history::now() + RECOVERY;
        self.note("is over");
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

    /// Starts an agent after the last one was killed.
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
            Ending::Success => {
                fs::write(self.sandbox.path("done"), "").expect("the sandbox can be written");
            }
        }
    }

    /// Waits for the end of the agent with the job, whose exit code is the same on every node.
    pub(crate) fn wait_for_job_end(&mut self, ending: Ending) {
        let code = self.wait_for_end();
        if code != Some(ending.code()) {
            let why = format!("the agent of node {} ended with {code:?}", self.number);
            self.known.complaints.push(format!("{why} instead of {}: {ending:?}", ending.code()));
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
