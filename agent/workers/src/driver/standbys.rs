//! Drives the machine of the standbys.

use std::{collections::BTreeSet, ffi::OsString, time::Instant};

use ragent_base::sys::{clock, memory, system_error};
use ragent_core::{
    limits,
    standby::{Counts, Effect, Input, Obstacle, StandbyNews, Standbys},
};
use ragent_options::spec::Signaled;
use ragent_rendezvous::{
    ids::LocalRank,
    message::{PROGRESS_MAX, StandbyCounts},
};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{WorkersDriver, WorkersEvent};
use crate::{
    keeper::order::{Order, Program},
    launch::{
        arguments,
        environment::{self, NOT_INHERITED},
    },
    spec::WorkersSpec,
    standby::{Hook, LeftOut, Ready, StandbyReport},
};

/// The standbys of this node.
pub(super) enum HeldStandbys {
    /// The job has no standbys, or its interpreter does not run the hook.
    Disabled,
    /// The interpreter is being tested.
    Probing(oneshot::Receiver<Result<Hook, String>>),
    Enabled(Box<Enabled>),
}

/// The standbys of a node with an interpreter that runs the hook.
pub(super) struct Enabled {
    machine: Standbys,
    hook: Hook,
    /// The modules that were reported as not installed.
    missing: BTreeSet<String>,
    /// The counts that the agent has received.
    reported: Counts,
}

impl HeldStandbys {
    /// Starts to test the interpreter of the workers, if they should have standbys.
    pub(super) fn prepare(spec: &WorkersSpec) -> Self {
        if spec.job.standby.is_empty() {
            return Self::Disabled;
        }
        let (command, is_observed) = (spec.job.command.clone(), spec.job.observe);
        let (done, probed) = oneshot::channel();
        tokio::spawn(async move {
            // The driver may have ended.
            let _ = done.send(Hook::install(&command, is_observed).await);
        });
        Self::Probing(probed)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Enabled(enabled) => enabled.machine.poll_timeout(),
            Self::Disabled | Self::Probing(_) => None,
        }
    }

    /// Waits for the result of the test. Never returns if there is none.
    pub(super) async fn probed(&mut self) -> Result<Hook, String> {
        match self {
            Self::Probing(probed) => {
                probed.await.unwrap_or_else(|_| Err("the test was interrupted".to_owned()))
            }
            Self::Disabled | Self::Enabled(_) => std::future::pending().await,
        }
    }

    fn machine(&mut self) -> Option<&mut Standbys> {
        match self {
            Self::Enabled(enabled) => Some(&mut enabled.machine),
            Self::Disabled | Self::Probing(_) => None,
        }
    }
}

impl WorkersDriver {
    pub(super) async fn handle_probed(&mut self, probed: Result<Hook, String>) {
        self.standbys = match probed {
            Ok(hook) => {
                let size = self.spec.job.local_world_size.get();
                let modules = self.spec.job.standby.clone();
                let machine = Standbys::new(clock::now(), size, modules, rand::random());
                let (missing, reported) = (BTreeSet::new(), Counts::default());
                HeldStandbys::Enabled(Box::new(Enabled { machine, hook, missing, reported }))
            }
            Err(reason) => {
                warn!("workers have no standbys: {reason}; they are started as new processes");
                self.report(WorkersEvent::StandbysSettled).await;
                HeldStandbys::Disabled
            }
        };
        // The workers of a round may have started meanwhile, and are not waited for.
        if self.group.as_ref().is_some_and(|group| !group.workers.is_empty()) {
            self.standby_input(Input::RoundStarted);
        }
    }

    pub(super) fn standby_input(&mut self, input: Input) {
        if let Some(machine) = self.standbys.machine() {
            machine.handle(clock::now(), input);
        }
    }

    pub(super) fn handle_standby_timeout(&mut self, now: Instant) {
        if let Some(machine) = self.standbys.machine() {
            machine.handle_timeout(now);
        }
    }

    pub(super) async fn carry_out_standbys(&mut self) {
        while let Some(effect) = self.standbys.machine().and_then(Standbys::poll_effect) {
            match effect {
                Effect::Stand(slot) => self.stand(slot).await,
                Effect::Dismiss(slot) => {
                    self.order(Order::DismissStandby { local_rank: slot.0 }, Vec::new()).await;
                }
                Effect::ReadMemory => {
                    // A system that does not report its memory sets no limit.
                    let available = memory::available().unwrap_or(u64::MAX);
                    self.standby_input(Input::Memory { available });
                }
                Effect::Announce(news) => announce(&news),
                Effect::Settled => self.report(WorkersEvent::StandbysSettled).await,
            }
        }
        self.report_counts();
    }

    fn report_counts(&mut self) {
        let HeldStandbys::Enabled(enabled) = &mut self.standbys else { return };
        let counts = enabled.machine.counts();
        if counts == enabled.reported {
            return;
        }
        let obstacle = counts.obstacle.as_ref().map(|obstacle| {
            let mut text = text_of(obstacle);
            text.truncate(text.floor_char_boundary(PROGRESS_MAX));
            text
        });
        let Counts { ready, importing, size, .. } = counts;
        let event = WorkersEvent::Standbys(StandbyCounts { ready, importing, size, obstacle });
        // If the queue is full, the counts are reported after the next event.
        if self.reports_to_agent.try_send(event).is_ok() {
            enabled.reported = counts;
        }
    }

    async fn stand(&mut self, slot: LocalRank) {
        if let Err(error) = self.ensure_keeper().await {
            let reason = format!("failed to start the keeper: {error}");
            return self.handle_not_started(slot, reason, system_error::is_shortage(&error));
        }
        let HeldStandbys::Enabled(enabled) = &self.standbys else { return };
        if let Err(error) = enabled.hook.ensure() {
            let reason = format!("failed to write the hook: {error}");
            return self.standby_input(Input::Ended { slot, reason });
        }
        let hook = enabled.hook.variables(&enabled.machine.modules().join(","));
        let args = arguments::of_standby(&self.spec.job, slot);
        let env = environment::of_standby(&self.spec.job, slot);
        // Without the socket for heartbeats, which would count for the running worker.
        let program = self.program(slot, args, env);
        self.order(Order::StartStandby { program, hook }, Vec::new()).await;
    }

    /// Handles a failure to start the standby of `slot`.
    pub(super) fn handle_not_started(&mut self, slot: LocalRank, reason: String, is_short: bool) {
        self.standby_input(if is_short {
            Input::NotStarted { slot, reason }
        } else {
            Input::Ended { slot, reason }
        });
    }

    /// Handles a report of the standby of `slot`.
    pub(super) async fn handle_standby(&mut self, slot: LocalRank, text: &str) {
        match StandbyReport::parse(text) {
            Some(StandbyReport::Ready(ready)) => self.handle_ready(slot, ready).await,
            Some(StandbyReport::Refused(left_out)) => self.leave_out(slot, left_out),
            Some(StandbyReport::Taken) => {}
            None => {
                self.order(Order::DismissStandby { local_rank: slot.0 }, Vec::new()).await;
                let reason = "it sent a malformed report".to_owned();
                self.standby_input(Input::Ended { slot, reason });
            }
        }
    }

    async fn handle_ready(&mut self, slot: LocalRank, ready: Ready) {
        let HeldStandbys::Enabled(enabled) = &mut self.standbys else { return };
        let modules = enabled.machine.modules();
        for LeftOut { module, reason } in
            first_missing(&mut enabled.missing, modules, ready.missing)
        {
            info!("standbys do not import `{module}`: {reason}");
        }
        if let Some(left_out) = ready.early.into_iter().next() {
            self.order(Order::DismissStandby { local_rank: slot.0 }, Vec::new()).await;
            return self.leave_out(slot, left_out);
        }
        self.standby_input(Input::Ready { slot, bytes: ready.bytes });
    }

    fn leave_out(&mut self, slot: LocalRank, LeftOut { module, reason }: LeftOut) {
        self.standby_input(Input::LeftOut { slot, module, reason });
    }

    /// Returns the program of a worker or of its standby.
    pub(super) fn program(
        &self,
        local_rank: LocalRank,
        args: Vec<OsString>,
        env: Vec<(String, OsString)>,
    ) -> Program {
        let WorkersSpec { job, given, .. } = &self.spec;
        Program {
            local_rank: local_rank.0,
            program: job.command.program.clone(),
            args,
            cpus: job.cpus_by_rank.get(local_rank.0 as usize).cloned().unwrap_or_default(),
            env,
            unset: NOT_INHERITED.map(str::to_owned).to_vec(),
            open_files: given.open_files,
            core_dump: given.core_dump,
            nice: given.nice,
            // A scheduler may send the signals that are notices to all processes of a job.
            ignored: job.notice_on.iter().map(|notice| notice.signal as i32).collect(),
            signaled: match job.signaled {
                Signaled::Auto if job.command.interpreter().is_none() => Signaled::Group,
                signaled => signaled,
            },
            flows: Vec::new(),
        }
    }
}

/// Returns the `reported` modules that are not in `known` yet, and adds them to it. A report may name any module, but only modules count
/// that standbys import.
fn first_missing(
    known: &mut BTreeSet<String>,
    modules: &[String],
    reported: Vec<LeftOut>,
) -> Vec<LeftOut> {
    let is_first =
        |LeftOut { module, .. }: &LeftOut| modules.contains(module) && known.insert(module.clone());
    reported.into_iter().filter(is_first).collect()
}

fn announce(news: &StandbyNews) {
    match news {
        StandbyNews::AllReady { bytes } => {
            info!("all standbys are ready; each holds {} MiB of memory", bytes >> 20);
        }
        StandbyNews::LeftOut { module, reason } => {
            let module = if module.is_empty() { "sitecustomize" } else { module };
            warn!("standbys do not import `{module}` from now on: {reason}");
        }
        StandbyNews::Unfit { modules, reason } => {
            let modules: Vec<String> = modules.iter().map(|name| format!("`{name}`")).collect();
            warn!(
                "standbys do not import {} from now on: {reason}; the workers start again, which is \
                 not charged (set the variable before the job, or import these modules first)",
                modules.join(", ")
            );
        }
        StandbyNews::ImportTimedOut { slot, modules } => {
            let (modules, limit) = (modules.join(","), limits::STANDBY_IMPORT_TIMEOUT.as_secs());
            warn!(
                "a standby of worker {slot} was killed: it did not finish importing `{modules}` \
                 within {limit} s (`python3 -X importtime -c 'import {modules}'` shows the imports)"
            );
        }
        StandbyNews::Prevented(obstacle) => warn!("{}", text_of(obstacle)),
        StandbyNews::StartsSucceed => info!("standbys can be started again"),
        StandbyNews::MemorySufficient => info!("enough memory is available for standbys again"),
    }
}

/// Returns the reason why standbys are missing, as a sentence.
fn text_of(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Ends { slot, reason } => format!(
            "worker {slot} has no standby from now on: its standbys keep ending before a \
             round ({reason})"
        ),
        Obstacle::MemoryShort { available, required } => format!(
            "no standbys are started: {} MiB of memory are available, and {} MiB are required (name \
             fewer modules in `--standby`, or disable it with `--standby=none`)",
            available >> 20,
            required >> 20
        ),
        Obstacle::NotStarted { reason } => format!(
            "failed to start a standby: {reason}; trying again (check the available memory and the \
             limits on processes: `ulimit -u`, `pids.max` of the cgroup)"
        ),
        Obstacle::NoModule => {
            "workers have no standbys from now on: no module is left for them to import".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any reports of standbys, each module that they import is named at most once.
    #[test]
    fn few_missing_modules_are_named() {
        let modules = ["torch", "apex"].map(str::to_owned);
        let mut known = BTreeSet::new();
        let mut named = Vec::new();
        for number in 0..1000 {
            let report = ["apex".to_owned(), format!("other{number}")]
                .map(|module| LeftOut { module, reason: "not installed".to_owned() });
            let missing = first_missing(&mut known, &modules, report.into());
            named.extend(missing.into_iter().map(|left_out| left_out.module));
        }
        assert_eq!(named, ["apex"]);
        assert_eq!(known.len(), 1);
    }
}
