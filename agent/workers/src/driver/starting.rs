//! Starts the workers of a round.

use std::{collections::BTreeMap, ffi::OsString, fs::File, io, net::IpAddr, sync::Arc};

use ragent_base::{
    output::{lines::Choice, logs::WorkerFolder, streams::Stream},
    sys::{clock, memory::OomKills},
};
use ragent_core::{
    hang::HangWatch,
    keeper_watch::KeeperWatch,
    named_hang::NamedHang,
    saves::SaveWatch,
    standby,
    steps::StepWatch,
    supervisor::{Input, Supervisor},
};
use ragent_options::spec::{FLIGHT_RECORDER_FILE, StepFinder, WORKER_SERVER_SOCKET};
use ragent_rendezvous::{
    ids::{JobUid, LocalRank},
    message::{Admission, WorkerEnd},
};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::warn;

use super::{Done, Worker, WorkerGroup, WorkersDriver};
use crate::{
    event_log::AgentEvent,
    gloo_interface,
    keeper::order::{Order, Program},
    keeper_link::KeeperLink,
    launch::{arguments, environment},
    limits,
    plumbing::{Prepared, WorkerFiles, plumb, prepare},
    socket_folder::memory_socket,
};

impl WorkersDriver {
    pub(super) async fn start_group(
        &mut self,
        admission: Admission,
        job_uid: JobUid,
        address: Option<IpAddr>,
    ) {
        let size = self.spec.job.local_world_size.get();
        let machine = Supervisor::new(size, self.spec.job.shared.timeouts.stop_grace);
        let waited = clock::now().saturating_duration_since(self.idle_since);
        self.spec.events.agent(&admission, AgentEvent::Rendezvous(waited));
        self.spec.events.agent(&admission, AgentEvent::Assigned);
        let (round, restart_count) = (admission.round, admission.restart_count);
        let is_alone = admission.group_world_size == 1 || !self.spec.chooses_gloo_interface;
        let (address, gloo) = (address.filter(|_| !is_alone), Arc::clone(&self.gloo_interface));
        let (workers, choices) = (BTreeMap::new(), [None, None]);
        if let Some(worker_reports) = &mut self.worker_reports {
            worker_reports.forget();
        }
        self.hardware.begin(clock::now());
        self.checks.handle_round();
        let keeper = KeeperWatch::new(clock::now(), self.lease);
        self.group = Some(WorkerGroup {
            machine,
            admission,
            job_uid,
            workers,
            choices,
            hang: None,
            oom_kills: OomKills::read(),
            hardware_reading: None,
            steps: StepWatch::default(),
            saves: SaveWatch::new(size),
            has_ignored_save: false,
            is_looking: false,
            named_hang: NamedHang::default(),
            is_reading_state: false,
            keeper,
            stopped: None,
            signaled: None,
        });
        if let Err(error) = self.ensure_keeper().await {
            let reason = format!("failed to start the keeper: {error}");
            self.not_started(LocalRank(0), reason);
            return self.input(Input::KeeperLost);
        }
        let (logs, output) = (Arc::clone(&self.spec.logs), self.spec.job.output.clone());
        let gpus = Arc::clone(&self.gpus);
        self.in_background(round, async move {
            let (gloo_interface, ()) = tokio::join!(gloo.towards_others(address), gpus.wait());
            let prepare = move || prepare(&logs, &output, restart_count, size);
            let prepared = timeout(limits::FILES_TIMEOUT, spawn_blocking(prepare)).await;
            let prepared = prepared.unwrap_or_else(|_| {
                warn!("the disk of the log files does not answer; continuing without log files");
                Ok(Prepared::default())
            });
            Done::Prepared(prepared.unwrap_or_default(), gloo_interface)
        });
    }

    /// Starts a keeper if there is none.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(super) async fn ensure_keeper(&mut self) -> io::Result<()> {
        if self.keeper.is_some() {
            return Ok(());
        }
        let keeper = KeeperLink::start(self.drains.clone(), self.reports.clone())?;
        if let Some(order) = self.renewed.clone() {
            keeper.renew(order);
        }
        self.keeper = Some(keeper);
        if let Some(order) = self.death_notice.clone() {
            self.order(order, Vec::new()).await;
        }
        Ok(())
    }

    /// Starts the workers of the group, unless it was stopped meanwhile.
    pub(super) async fn start_workers(
        &mut self,
        prepared: Prepared,
        gloo_interface: Option<String>,
    ) {
        let Some(group) = self.group.as_mut().filter(|group| group.machine.is_running()) else {
            return;
        };
        let Prepared { mut workers, chosen } = prepared;
        let (now, size) = (clock::now(), self.spec.job.local_world_size.get());
        let timeout = self.spec.job.hang.as_ref().map(|hang| hang.timeout);
        group.hang = timeout.map(|timeout| HangWatch::new(now, size, timeout));
        let choose = |(file, stream): (Option<Arc<File>>, Stream)| {
            let filters = self.spec.job.output.filters(stream).clone();
            file.map(|file| Choice { filters, file })
        };
        let [stdout, stderr] = chosen;
        group.choices = [(stdout, Stream::Stdout), (stderr, Stream::Stderr)].map(choose);
        self.standby_input(standby::Input::RoundStarted);
        for local_rank in (0..size).map(LocalRank) {
            let files = workers.remove(&local_rank).unwrap_or_default();
            if let Err(error) =
                self.start_worker(local_rank, files, gloo_interface.as_deref()).await
            {
                return self.not_started(local_rank, error.to_string());
            }
        }
    }

    pub(super) fn not_started(&mut self, local_rank: LocalRank, reason: String) {
        self.input(Input::Ended(local_rank, WorkerEnd::NotStarted(reason)));
    }

    pub(super) async fn start_worker(
        &mut self,
        local_rank: LocalRank,
        files: WorkerFiles,
        gloo_interface: Option<&str>,
    ) -> io::Result<()> {
        let group = self.group.as_ref().expect("a group is being started");
        let (admission, choices, output) = (&group.admission, &group.choices, &self.output);
        let plumbing = plumb(&self.spec, admission, choices, local_rank, &files, output)?;
        let folder = files.folder;
        let error_file = folder.as_ref().map(WorkerFolder::error_file);
        let mut env = environment::of_worker(
            &self.spec.job,
            &group.admission,
            local_rank,
            error_file.as_deref(),
        );
        env.extend(self.variables_of_node(local_rank));
        env.extend(gloo_interface.map(|name| (gloo_interface::VARIABLE.to_owned(), name.into())));
        if let Some(folder) = folder.as_ref().filter(|_| self.spec.job.observation.flight_recorder)
        {
            let records = folder.flight_record_prefix();
            env.push((FLIGHT_RECORDER_FILE.to_owned(), records.into()));
        }
        let (flows, fds): (Vec<_>, Vec<_>) = plumbing.flows.into_iter().unzip();
        let args =
            arguments::of_worker(&self.spec.job, &group.admission, &group.job_uid, local_rank);
        let program = Program { flows, ..self.program(local_rank, args, env) };
        let worker = Worker {
            folder,
            stderr: plumbing.stderr,
            searched: plumbing.searched,
            finder: self.spec.job.step_pattern.clone().map(StepFinder::new),
            ..Worker::default()
        };
        if let Some(group) = &mut self.group {
            group.workers.insert(local_rank, worker);
        }
        if let Some(group) = &self.group {
            let (round, first) = (group.admission.round, group.admission.first_global_rank.0);
            let rank = first.saturating_add(local_rank.0);
            let streams = [Stream::Stdout, Stream::Stderr].into_iter().zip(plumbing.readable);
            for (stream, content) in streams {
                let id = (round.term.0, round.round.0);
                self.spec.measures.outputs.add(id, rank, stream, content);
            }
        }
        self.drains.add(local_rank.0, plumbing.drains);
        let fds = plumbing.fds.into_iter().chain(fds.into_iter().flatten()).collect();
        self.order(Order::Spawn(program), fds).await;
        Ok(())
    }

    /// Returns the variables of a worker that name files of its node.
    pub(super) fn variables_of_node(&self, local_rank: LocalRank) -> Vec<(String, OsString)> {
        let mut env = Vec::new();
        if let Some(pipe) = &self.spec.timer_pipe {
            env.push(("TORCHELASTIC_TIMER_FILE".to_owned(), pipe.path().into()));
        }
        if let Some(folder) = &self.memory_folder {
            let socket = memory_socket(folder, local_rank);
            env.push((environment::MEMORY_SOCKET.to_owned(), socket.into()));
        }
        if let Some(worker_reports) = &self.worker_reports {
            let timeout = self.spec.job.hang.as_ref().map(|hang| hang.timeout);
            let notices = worker_reports.notice_file();
            env.extend(environment::of_reports(
                &worker_reports.path(local_rank),
                &notices,
                timeout,
            ));
            if self.spec.job.observation.worker_server {
                let socket = worker_reports.worker_server(local_rank);
                env.push((WORKER_SERVER_SOCKET.to_owned(), socket.into()));
            }
        }
        env
    }
}
