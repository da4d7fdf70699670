//! Reads the state of GPUs, network ports and folders, and waits for errors of GPUs.
//!
//! 1. While workers run, a thread has the library of NVIDIA's driver (NVML) open, and sleeps until a GPU reports an error.
//! 2. A second after the last worker it closes the library, because the driver resets no GPU that a process has open.
//! 3. Another thread reads the state: at the start of a round, after an error, after a failure and for a look. A driver that hangs delays
//!    nothing, and no error is missed while it answers.
//!
//! Without the library and without ports nothing runs. With `--health off` nothing is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use nvml_wrapper::{
    Device, EventSet, Nvml,
    bitmasks::event::EventTypes,
    enums::{device::SampleValue, event::XidError},
    error::NvmlError,
    structs::device::FieldId,
};
use ragent_base::{
    report::measures::NodeMeasures,
    sys::{
        clock,
        host::{Host, ThisHost, rdma_ports},
        unix,
    },
};
use ragent_core::{
    hardware::{Gpu, News, Reading},
    health::Occasion,
};
use ragent_options::spec::HealthSpec;
use ragent_rendezvous::message::{HardwareFact, Unhealthy};
use tokio::{runtime::Handle, sync::watch, time::timeout};
use tracing::{info, warn};

use super::folders::Folders;
use crate::limits;

/// The hardware of this node. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct HardwareWatch {
    watched: Arc<Watched>,
    /// True if the thread was started.
    is_started: bool,
}

#[derive(Debug)]
struct Watched {
    measures: Arc<NodeMeasures>,
    reads_gpus: bool,
    reads_ports: bool,
    folders: Option<Folders>,
    runtime: Handle,
    demand: Mutex<Demand>,
    changed: Condvar,
    /// The library, while the thread has it open.
    library: Mutex<Option<Arc<Nvml>>>,
    /// True if it is known that the library cannot be opened.
    has_failed: AtomicBool,
    /// The GPUs as they were when the library was first opened.
    numbers: OnceLock<GpuNumbers>,
    /// True if there is something to read.
    has_devices: AtomicBool,
    asked: Mutex<Asked>,
    /// The newest reading that has ended.
    done: watch::Sender<DoneReading>,
}

/// The GPUs by UUID: their numbers, and true if workers of this node may use them. The library numbers them in another way once it has lost
/// one of them.
type GpuNumbers = BTreeMap<String, (u32, bool)>;

/// GPUs that have a number and can be read, and true if all others with a number are gone.
type Known<T> = (Vec<((u32, bool), T)>, bool);

/// The work of the thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Demand {
    /// Nothing now.
    None,
    /// Workers run, since this time.
    Workers(Instant),
    /// The agent ends.
    End,
}

/// The readings that were asked for.
#[derive(Debug, Default)]
struct Asked {
    /// The number of the newest one.
    newest: u64,
    /// True while one runs. If it never ends, there is no further one.
    is_running: bool,
}

/// A reading that has ended.
#[derive(Clone, Copy, Debug, Default)]
struct DoneReading {
    number: u64,
    /// True if GPUs were read.
    has_gpus: bool,
}

/// A reading that was asked for.
#[derive(Debug)]
pub(crate) struct PendingReading {
    number: u64,
    done: watch::Receiver<DoneReading>,
}

impl PendingReading {
    /// Waits until it has ended, but not for long: a driver may never answer.
    pub(crate) async fn ended(mut self) {
        let ended = self.done.wait_for(|done| done.number >= self.number);
        let _ = timeout(limits::HARDWARE_TIMEOUT, ended).await;
    }
}

impl HardwareWatch {
    /// Watches nothing before the first round.
    pub(crate) fn new(measures: Arc<NodeMeasures>, spec: &HealthSpec, logs: Option<&Path>) -> Self {
        let watched = Watched {
            measures,
            reads_gpus: spec.gpus,
            reads_ports: spec.ports,
            folders: spec.folders.then(|| Folders::new(logs)),
            runtime: Handle::current(),
            demand: Mutex::new(Demand::None),
            changed: Condvar::new(),
            library: Mutex::default(),
            has_failed: AtomicBool::new(false),
            numbers: OnceLock::new(),
            has_devices: AtomicBool::new(false),
            asked: Mutex::default(),
            done: watch::Sender::new(DoneReading::default()),
        };
        Self { watched: Arc::new(watched), is_started: false }
    }

    /// Notes that a round begins, and starts to watch.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.watched.measures.hardware().handle_round(now);
        self.watched.demand(Demand::Workers(now));
        if self.watched.reads_gpus && !self.is_started {
            self.is_started = true;
            let watched = Arc::clone(&self.watched);
            let thread = thread::Builder::new().name("gpu-errors".to_owned());
            if let Err(error) = thread.spawn(move || watched.run()) {
                info!(%error, "failed to start the thread that waits for errors of GPUs");
            }
        }
        self.watched.start_reading();
    }

    /// Notes that the round has ended.
    pub(crate) fn end(&self) {
        self.watched.demand(Demand::None);
    }

    /// Starts to read the state of the devices. Returns `None` if there is nothing to read.
    pub(crate) fn start_reading(&self) -> Option<PendingReading> {
        let has_devices = self.watched.has_devices.load(Ordering::Relaxed);
        let is_there = has_devices || self.watched.folders.is_some();
        is_there.then(|| self.watched.start_reading())
    }

    /// Reads the state of the devices for a check. It may never end.
    pub(crate) fn check(&self, occasion: Occasion) -> impl Future<Output = ()> + use<> {
        // What was reported in the round of a failure still counts.
        let began = self.watched.measures.hardware().round_began();
        let until = began.filter(|_| occasion == Occasion::Failure).unwrap_or_else(clock::now);
        let (reading, measures) =
            (self.watched.start_reading(), Arc::clone(&self.watched.measures));
        async move {
            let PendingReading { number, mut done } = reading;
            // The sender is in `watched`, which lives as long as the thread that reads.
            let done = done.wait_for(|done| done.number >= number).await.map(|done| *done);
            if done.is_ok_and(|done| done.has_gpus) {
                measures.hardware().handle_checked(until);
            }
        }
    }

    /// Returns the reason of the hardware why this node should get no place.
    pub(crate) fn unhealthy(&self) -> Option<Unhealthy> {
        self.watched.measures.hardware().unhealthy()
    }

    /// Returns what joins a failure.
    pub(crate) fn of_failure(&self, now: Instant) -> Vec<HardwareFact> {
        self.watched.measures.hardware().of_failure(now)
    }
}

impl Drop for HardwareWatch {
    fn drop(&mut self) {
        self.watched.demand(Demand::End);
    }
}

impl Watched {
    fn demand(&self, demand: Demand) {
        *lock(&self.demand) = demand;
        self.changed.notify_all();
    }

    /// Waits until the demand is such. Returns it.
    fn wait_until(&self, is_such: impl Fn(Demand) -> bool) -> Demand {
        let waited = self.changed.wait_while(lock(&self.demand), |demand| !is_such(*demand));
        *waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for errors of GPUs while there are workers, until the agent ends.
    fn run(self: Arc<Self>) {
        while let Demand::Workers(began) = self.wait_until(|demand| demand != Demand::None) {
            let library = self.open();
            let numbers = library.as_deref().and_then(|library| self.numbers(library));
            if let (Some(library), Some(numbers)) = (&library, numbers) {
                *lock(&self.library) = Some(Arc::clone(library));
                self.watch(library, numbers);
            }
            if lock(&self.demand).eq(&Demand::Workers(began)) {
                self.wait_until(|demand| demand != Demand::Workers(began));
            }
            *lock(&self.library) = None;
        }
    }

    /// Waits for errors of GPUs while there are workers, or until the driver reports no further ones.
    fn watch(self: &Arc<Self>, library: &Nvml, numbers: &GpuNumbers) {
        // A GPU that is lost may end the wait.
        for _ in 0..limits::GPU_WATCH_TRIES {
            let (gpus, _) = devices(library, numbers);
            let gpus = gpus.into_iter();
            let own = gpus.filter_map(|((number, is_own), gpu)| is_own.then_some((number, gpu)));
            let gpus: Vec<_> = own.collect();
            let Some(reports) = register(library, &gpus, &[XID, RECOVERY_ACTION]) else { return };
            // The library names neither of the newer kinds, so that this one has a set of its own.
            let losses = register(library, &gpus, &[UNAVAILABLE]);
            let number_of = |found: &Device<'_>| {
                let is_same =
                    |gpu: &Device<'_>| unix::gpu_identity(gpu) == unix::gpu_identity(found);
                gpus.iter().find(|(_, gpu)| is_same(gpu)).map(|(number, _)| *number)
            };
            // Something may have changed before the registration.
            self.start_reading();
            let error = loop {
                match reports.wait(limits::GPU_EVENT_WAIT_MS) {
                    Ok(event) => {
                        self.handle_xid(number_of(&event.device), event.event_data);
                        self.start_reading();
                    }
                    Err(NvmlError::Timeout) => {}
                    Err(error) => break error,
                }
                if let Some(Ok(event)) = losses.as_ref().map(|losses| losses.wait(0)) {
                    if let Some(gpu) = number_of(&event.device) {
                        let now = clock::now_blocking();
                        let news = self.measures.hardware().handle_unavailable(now, gpu);
                        log_all(&news);
                    }
                    self.start_reading();
                }
                // The library cannot be woken up, so it waits for a second at most.
                if !matches!(*lock(&self.demand), Demand::Workers(_)) {
                    return;
                }
            };
            info!(%error, "the GPU driver has ended the wait for errors");
            self.start_reading();
        }
    }

    fn handle_xid(&self, gpu: Option<u32>, error: Option<XidError>) {
        let (Some(gpu), Some(error)) = (gpu, error) else { return };
        let xid = match error {
            XidError::Value(xid) => xid,
            // The number that the library has for it.
            XidError::Unknown => 999,
        };
        let news = self.measures.hardware().handle_xid(clock::now_blocking(), gpu, xid);
        log_all(&news);
    }

    /// Starts to read the state of the devices. While a reading runs, a further one follows it.
    fn start_reading(self: &Arc<Self>) -> PendingReading {
        let mut asked = lock(&self.asked);
        asked.newest += 1;
        let (number, done) = (asked.newest, self.done.subscribe());
        if !std::mem::replace(&mut asked.is_running, true) {
            let watched = Arc::clone(self);
            self.runtime.spawn_blocking(move || watched.read_all());
        }
        PendingReading { number, done }
    }

    /// Reads the state of the devices until no further reading was asked for.
    fn read_all(&self) {
        loop {
            let newest = lock(&self.asked).newest;
            let was_read = self.measures.hardware().is_read_in_round();
            let ports = self.reads_ports.then(|| rdma_ports(&ThisHost)).flatten();
            let folders = self.folders.as_ref().map(Folders::read);
            self.take(Reading { gpus: None, ports, folders });
            // The lock is not held while the driver answers.
            let library = lock(&self.library).clone();
            let library = library.or_else(|| self.reads_gpus.then(|| self.open()).flatten());
            let gpus = library.and_then(|library| read_gpus(&library, self.numbers(&library)?));
            let has_gpus = gpus.is_some();
            self.take(Reading { gpus, ..Reading::default() });
            let hardware = self.measures.hardware();
            let (devices, is_read) = (hardware.devices(), hardware.is_read_in_round());
            drop(hardware);
            if let Some(devices) = devices {
                self.has_devices.store(true, Ordering::Relaxed);
                if is_read && !was_read {
                    info!(devices, "the hardware was read at the start of the round");
                }
            }
            self.done.send_replace(DoneReading { number: newest, has_gpus });
            let mut asked = lock(&self.asked);
            if asked.newest == newest {
                asked.is_running = false;
                return;
            }
        }
    }

    fn take(&self, reading: Reading) {
        let news = self.measures.hardware().handle_reading(clock::now_blocking(), reading);
        log_all(&news);
    }

    /// Opens the library. Logs once if that fails on a machine that has it.
    fn open(&self) -> Option<Arc<Nvml>> {
        match Nvml::init() {
            Ok(library) => Some(Arc::new(library)),
            Err(NvmlError::LibloadingError(_)) => None,
            Err(error) => {
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    info!(%error, "the GPU driver does not answer; its GPUs are not watched");
                }
                None
            }
        }
    }

    fn numbers(&self, library: &Nvml) -> Option<&GpuNumbers> {
        if self.numbers.get().is_none() {
            // Another thread may have set the same numbers.
            let _ = self.numbers.set(numbers(library)?);
        }
        self.numbers.get()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs what is new. The caller has unlocked the state: a pipe without a reader would block all that need it.
fn log_all<'a>(news: impl IntoIterator<Item = &'a News>) {
    for News { need, text } in news {
        if need.is_serious() { warn!("{text}") } else { info!("{text}") }
    }
}

/// Returns the numbers of the GPUs; `None` if one of them does not answer now, but may answer later. A GPU of which workers may use only a
/// part (MIG) is another's: its errors may be those of other jobs.
fn numbers(library: &Nvml) -> Option<GpuNumbers> {
    let visible: BTreeSet<String> = ThisHost.gpus().into_iter().map(|gpu| gpu.uuid).collect();
    let mut numbers = GpuNumbers::new();
    for number in 0..library.device_count().ok()? {
        match library.device_by_index(number).and_then(|gpu| gpu.uuid()) {
            Ok(uuid) => {
                let is_own = visible.contains(&uuid);
                numbers.insert(uuid, (number, is_own));
            }
            Err(NvmlError::InUse | NvmlError::Timeout | NvmlError::InsufficientMemory) => {
                return None;
            }
            // It may be another's (a container), or broken before the agent started.
            Err(_) => {}
        }
    }
    Some(numbers)
}

/// Returns the GPUs that answer, with their numbers, and true if all others are gone. Those that workers may use have `true`.
fn devices<'a>(library: &'a Nvml, numbers: &GpuNumbers) -> Known<Device<'a>> {
    let gpus = (0..library.device_count().unwrap_or(0)).map(|index| {
        let gpu = library.device_by_index(index)?;
        Ok((gpu.uuid()?, gpu))
    });
    known(gpus, numbers)
}

/// Returns the GPUs that have a number, and true if all others with a number are gone: the library no longer lists them, or has lost them.
/// After any other error a GPU may be there, such as one that is being reset.
fn known<T>(
    gpus: impl Iterator<Item = Result<(String, T), NvmlError>>,
    numbers: &GpuNumbers,
) -> Known<T> {
    let (mut found, mut is_certain) = (Vec::new(), true);
    for gpu in gpus {
        match gpu {
            Ok((uuid, gpu)) => found.extend(numbers.get(&uuid).map(|number| (*number, gpu))),
            // The list may have become shorter meanwhile.
            Err(NvmlError::GpuLost | NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(_) => is_certain = false,
        }
    }
    let are_gone = is_certain || found.len() >= numbers.len();
    (found, are_gone)
}

/// Newer drivers report also that the recovery action has changed, and that a GPU became unavailable.
const XID: EventTypes = EventTypes::CRITICAL_XID_ERROR;
const RECOVERY_ACTION: EventTypes = EventTypes::from_bits_retain(0x8000);
const UNAVAILABLE: EventTypes = EventTypes::from_bits_retain(0x4000);

/// Registers for those of these events that the GPUs report. Returns `None` if none of them reports any.
fn register<'a>(
    library: &'a Nvml,
    gpus: &[(u32, Device<'a>)],
    types: &[EventTypes],
) -> Option<EventSet<'a>> {
    // A refusal frees the set, so that each type is tried with a set of its own.
    let is_accepted = |gpu: &Device<'a>, types: EventTypes| {
        let set = library.create_event_set();
        set.is_ok_and(|set| gpu.register_events(types, set).is_ok())
    };
    let accepted = |gpu: &Device<'a>| {
        let accepted = types.iter().filter(|types| is_accepted(gpu, **types));
        accepted.fold(EventTypes::empty(), |all, types| all.union(*types))
    };
    let all = gpus.iter().map(|(_, gpu)| (gpu, accepted(gpu)));
    let mut all: Vec<_> = all.filter(|(_, types)| !types.is_empty()).collect();
    loop {
        let mut registered = 0;
        let set = all.iter().try_fold(library.create_event_set().ok()?, |set, (gpu, types)| {
            let set = gpu.register_events(*types, set).ok()?;
            registered += 1;
            Some(set)
        });
        match set {
            Some(_) if all.is_empty() => return None,
            Some(set) => return Some(set),
            // The others are registered without the GPU that refuses now.
            None => drop(all.remove(registered)),
        }
    }
}

/// Reads the state of the GPUs. Returns `None` if the driver does not list any, or if one of them cannot be read now and may not be gone.
fn read_gpus(library: &Nvml, numbers: &GpuNumbers) -> Option<Vec<Gpu>> {
    library.device_count().ok()?;
    let (gpus, are_others_gone) = devices(library, numbers);
    let gpus = gpus
        .into_iter()
        .map(|((number, is_own), gpu)| Gpu { is_of_others: !is_own, ..read_gpu(number, &gpu) });
    are_others_gone.then(|| gpus.collect())
}

fn read_gpu(number: u32, gpu: &Device<'_>) -> Gpu {
    /// The names of NVML for these are `REMAPPED_PENDING`, `REMAPPED_FAILURE` and `GET_GPU_RECOVERY_ACTION`.
    const FIELDS: [FieldId; 3] = [FieldId(144), FieldId(145), FieldId(230)];
    let values = gpu.field_values_for(&FIELDS).unwrap_or_default();
    // A driver without a field returns an error in its place.
    let value = |place: usize| match values.get(place)?.as_ref().ok()?.value.as_ref().ok()? {
        SampleValue::U32(value) => Some(u64::from(*value)),
        SampleValue::U64(value) => Some(*value),
        SampleValue::I64(value) => u64::try_from(*value).ok(),
        SampleValue::F64(_) => None,
    };
    Gpu {
        number,
        recovery_action: value(2),
        is_remap_pending: value(0).is_some_and(|value| value != 0),
        has_remap_failed: value(1).is_some_and(|value| value != 0),
        is_of_others: false,
    }
}

/// Reads the state of all devices of this machine once, for `ragent doctor`.
pub fn read_once() -> Reading {
    let gpus = Nvml::init().ok().and_then(|library| read_gpus(&library, &numbers(&library)?));
    Reading { gpus, ports: rdma_ports(&ThisHost), folders: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU is gone if the driver no longer lists it, or has lost it. One that cannot be read for another reason is not.
    #[test]
    fn gpus_that_cannot_be_read_are_not_gone() {
        let name = |number: u32| format!("GPU-{number}");
        let numbers: GpuNumbers = (0..2).map(|number| (name(number), (number, true))).collect();
        let is_gone = |error| {
            let one = Ok((name(0), ()));
            let gpus = [one].into_iter().chain(error);
            let (found, are_others_gone) = known(gpus, &numbers);
            assert_eq!(found, [((0, true), ())]);
            are_others_gone
        };
        assert!(is_gone(None));
        assert!(is_gone(Some(Err(NvmlError::GpuLost))));
        assert!(is_gone(Some(Err(NvmlError::NotFound))));
        assert!(!is_gone(Some(Err(NvmlError::Timeout))));
        assert!(!is_gone(Some(Err(NvmlError::Unknown))));
        // A GPU of another container never answers, and has no number.
        let gpus = [Ok((name(0), ())), Err(NvmlError::NoPermission), Ok((name(1), ()))];
        assert!(known(gpus.into_iter(), &numbers).1);
    }
}
