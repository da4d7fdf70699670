//! Reads the state of GPUs and network ports, and waits for errors of GPUs.
//!
//! 1. While workers run, a thread has the library of NVIDIA's driver (NVML) open, and sleeps until a GPU reports an error.
//! 2. A second after the last worker it closes the library, because the driver resets no GPU that a process has open.
//! 3. Other threads read the state at the start of a round, after a failure and for a look. A driver that hangs delays nothing.
//!
//! Without the library and without ports nothing runs.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
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
        host::{self, Host, ThisHost, rdma_ports},
        unix,
    },
};
use ragent_core::hardware::{Gpu, News, Reading};
use ragent_rendezvous::message::HardwareFact;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, info, warn};

use crate::workers::limits;

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
    demand: Mutex<Demand>,
    changed: Condvar,
    /// The library, while the thread has it open, and the GPUs that count.
    library: Mutex<Option<(Arc<Nvml>, Visible)>>,
    /// True if there is something to read.
    has_devices: AtomicBool,
    /// True while a reading runs. If it never ends, there is no further one.
    is_reading: AtomicBool,
}

/// What the thread is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Demand {
    /// Nothing now.
    None,
    /// Workers run, since this time.
    Workers(Instant),
    /// The agent ends.
    End,
}

impl HardwareWatch {
    /// Watches nothing before the first round.
    pub(crate) fn new(measures: Arc<NodeMeasures>) -> Self {
        let watched = Watched {
            measures,
            demand: Mutex::new(Demand::None),
            changed: Condvar::new(),
            library: Mutex::default(),
            has_devices: AtomicBool::new(false),
            is_reading: AtomicBool::new(false),
        };
        Self { watched: Arc::new(watched), is_started: false }
    }

    /// Notes that a round begins, and starts to watch.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.watched.measures.hardware().handle_round(now);
        self.watched.demand(Demand::Workers(now));
        if !self.is_started {
            self.is_started = true;
            let watched = Arc::clone(&self.watched);
            let thread = thread::Builder::new().name("gpu-errors".to_owned());
            if let Err(error) = thread.spawn(move || watched.run()) {
                info!(%error, "failed to start the thread that waits for errors of GPUs");
            }
        }
        self.read(Some(now));
    }

    /// Notes that the round has ended.
    pub(crate) fn end(&self) {
        self.watched.demand(Demand::None);
    }

    /// Starts to read the state of the devices after a failure. Returns `None` if there is nothing to read.
    pub(crate) fn start_reading(&self) -> Option<JoinHandle<()>> {
        let is_there = self.watched.has_devices.load(Ordering::Relaxed);
        is_there.then(|| self.read(None)).flatten()
    }

    /// Starts to read the state of the devices, unless a reading is running. It counts as that of `at`, or of its end.
    fn read(&self, at: Option<Instant>) -> Option<JoinHandle<()>> {
        if self.watched.is_reading.swap(true, Ordering::AcqRel) {
            return None;
        }
        let watched = Arc::clone(&self.watched);
        Some(spawn_blocking(move || {
            watched.read(at);
            watched.is_reading.store(false, Ordering::Release);
        }))
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
    fn demanded(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn demand(&self, demand: Demand) {
        *self.demanded() = demand;
        self.changed.notify_all();
    }

    fn library(&self) -> MutexGuard<'_, Option<(Arc<Nvml>, Visible)>> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the demand is such. Returns it.
    fn wait_until(&self, is_such: impl Fn(Demand) -> bool) -> Demand {
        let waited = self.changed.wait_while(self.demanded(), |demand| !is_such(*demand));
        *waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for errors of GPUs while there are workers, until the agent ends.
    fn run(&self) {
        while let Demand::Workers(began) = self.wait_until(|demand| demand != Demand::None) {
            let library = match Nvml::init() {
                Ok(library) => Arc::new(library),
                // The driver is not installed, or not loaded.
                Err(error) => return debug!(%error, "no GPU is watched"),
            };
            let visible = Visible::new();
            *self.library() = Some((Arc::clone(&library), visible.clone()));
            self.take(began, Reading { gpus: read_gpus(&library, &visible), ports: None });
            self.watch(&library, &visible);
            *self.library() = None;
        }
    }

    /// Waits for errors of GPUs while there are workers.
    fn watch(&self, library: &Nvml, visible: &Visible) {
        // A GPU that is lost may end the wait.
        for _ in 0..limits::GPU_WATCH_TRIES {
            let gpus = visible.devices(library);
            let Some(events) = register(library, &gpus) else { break };
            let error = loop {
                match events.wait(limits::GPU_EVENT_WAIT_MS) {
                    Ok(event) => {
                        let gpu = gpus.iter().find(|(_, gpu)| {
                            unix::gpu_identity(gpu) == unix::gpu_identity(&event.device)
                        });
                        let number =
                            gpu.map_or_else(|| event.device.index().ok(), |gpu| Some(gpu.0));
                        self.handle_event(number, event.event_data);
                        self.read_gpus(library, visible);
                    }
                    Err(NvmlError::Timeout) => {}
                    Err(error) => break error,
                }
                // The library cannot be woken up, so it waits for a second at most.
                if !matches!(*self.demanded(), Demand::Workers(_)) {
                    return;
                }
            };
            info!(%error, "the GPU driver has ended the wait for errors");
            self.read_gpus(library, visible);
        }
        self.wait_until(|demand| !matches!(demand, Demand::Workers(_)));
    }

    fn handle_event(&self, gpu: Option<u32>, error: Option<XidError>) {
        let (Some(gpu), Some(error)) = (gpu, error) else { return };
        let xid = match error {
            XidError::Value(xid) => xid,
            // The number with which the library says so.
            XidError::Unknown => 999,
        };
        let news = self.measures.hardware().handle_xid(clock::now_blocking(), gpu, xid);
        news.iter().for_each(log);
    }

    /// Reads the state of the devices. It counts as that of `at`, or of its end.
    fn read(&self, at: Option<Instant>) {
        // Not held while the driver answers.
        let library = self.library().clone();
        let gpus = library.and_then(|(library, visible)| read_gpus(&library, &visible));
        let reading = Reading { gpus, ports: rdma_ports(&ThisHost) };
        self.take(at.unwrap_or_else(clock::now_blocking), reading);
    }

    /// Reads the state of the GPUs.
    fn read_gpus(&self, library: &Nvml, visible: &Visible) {
        let reading = Reading { gpus: read_gpus(library, visible), ports: None };
        self.take(clock::now_blocking(), reading);
    }

    fn take(&self, now: Instant, reading: Reading) {
        if reading.devices().is_some() {
            self.has_devices.store(true, Ordering::Relaxed);
        }
        let news = self.measures.hardware().handle_reading(now, reading);
        news.iter().for_each(log);
    }
}

fn log(News { need, text }: &News) {
    if need.is_serious() { warn!("{text}") } else { info!("{text}") }
}

/// The names of the GPUs that workers may use; `None` if all count.
#[derive(Clone, Debug)]
struct Visible(Option<BTreeSet<String>>);

impl Visible {
    fn new() -> Self {
        let gpus = ThisHost.gpus();
        // Parts of GPUs have names of their own, so that the GPU is not known.
        let is_whole = |gpu: &host::Gpu| !gpu.pci_address.is_empty() && !gpu.uuid.is_empty();
        let are_known = gpus.iter().all(is_whole);
        Self(are_known.then(|| gpus.into_iter().map(|gpu| gpu.uuid).collect()))
    }

    /// Returns the GPUs that answer, with their numbers.
    fn devices<'a>(&self, library: &'a Nvml) -> Vec<(u32, Device<'a>)> {
        let count = library.device_count().unwrap_or(0);
        let device = |number| {
            let device = library.device_by_index(number).ok()?;
            let uuid = device.uuid().ok()?;
            self.0
                .as_ref()
                .is_none_or(|visible| visible.contains(&uuid))
                .then_some((number, device))
        };
        (0..count).filter_map(device).collect()
    }
}

/// Registers for the errors of these GPUs. Returns `None` if none of them reports any.
fn register<'a>(library: &'a Nvml, gpus: &[(u32, Device<'a>)]) -> Option<EventSet<'a>> {
    /// The recovery action has changed, and the GPU is unavailable. Only newer drivers report these.
    const FURTHER: EventTypes = EventTypes::from_bits_retain(0x8000 | 0x4000);
    let all = EventTypes::CRITICAL_XID_ERROR.union(FURTHER);
    // A failure frees the set, so that each GPU is tried with a set of its own.
    let accepted = |gpu: &Device<'a>| {
        [all, EventTypes::CRITICAL_XID_ERROR].into_iter().find(|types| {
            let set = library.create_event_set();
            set.is_ok_and(|set| gpu.register_events(*types, set).is_ok())
        })
    };
    let mut accepting = gpus.iter().filter_map(|(_, gpu)| Some((gpu, accepted(gpu)?))).peekable();
    accepting.peek()?;
    let set = library.create_event_set().ok()?;
    accepting.try_fold(set, |set, (gpu, types)| gpu.register_events(types, set)).ok()
}

/// Reads the state of the GPUs that workers may use. Returns `None` if the driver does not list any.
fn read_gpus(library: &Nvml, visible: &Visible) -> Option<Vec<Gpu>> {
    let gpus = visible.devices(library);
    library.device_count().ok()?;
    Some(gpus.iter().map(|(number, gpu)| read_gpu(*number, gpu)).collect())
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
    }
}

/// Reads the state of all devices of this machine once, for `ragent doctor`.
pub fn read_once() -> Reading {
    let gpus = Nvml::init().ok().and_then(|library| read_gpus(&library, &Visible::new()));
    Reading { gpus, ports: rdma_ports(&ThisHost) }
}
