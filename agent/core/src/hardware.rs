//! Notes what the hardware of a node reports, and joins it with the failures of workers.
//!
//! 1. An error of a GPU is noted when its driver reports it.
//! 2. A reading of the GPUs and of the network ports is compared with the one before. What has become worse is noted.
//! 3. A failure of a worker gets what was noted since its round began, and the states that need a reset or a repair.
//!
//! If a GPU needs a reset or a repair, what it has reported soon after is left out, because it may be a consequence. The machine has no driver
//! and no clock.

mod xids;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use ragent_rendezvous::message::{
    HARDWARE_FACTS_MAX, HardwareFact, HealthClass, LINE_MAX, Unhealthy, time_text,
};

use crate::limits;

/// The need of a machine after a report. A later value is worse.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Need {
    /// None: the report only informs.
    Nothing,
    /// A new start of the program.
    Program,
    /// A reset of a GPU.
    Reset,
    /// A restart or a repair.
    Replace,
    /// A GPU is gone.
    Gone,
}

impl Need {
    /// Returns the class for the coordinator; `None` if the node keeps its place.
    fn class(self) -> Option<HealthClass> {
        match self {
            Self::Nothing | Self::Program => None,
            Self::Reset => Some(HealthClass::Reset),
            Self::Replace => Some(HealthClass::Replace),
            Self::Gone => Some(HealthClass::Gone),
        }
    }

    /// Returns true if a new start of the program is not enough.
    pub fn is_serious(self) -> bool {
        self.class().is_some()
    }
}

/// The state of the hardware at one time. What cannot be read is `None`, or is not in the lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// The GPUs of the machine.
    pub gpus: Option<Vec<Gpu>>,
    /// The InfiniBand and RoCE ports of the machine.
    pub ports: Option<Vec<Port>>,
    /// The folders to which workers write.
    pub folders: Option<Vec<Folder>>,
}

/// The state of a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// The reason why workers cannot write there.
    pub problem: Option<FolderProblem>,
}

/// A reason why workers cannot write to a folder.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum FolderProblem {
    /// Its file system has no room.
    Full,
    /// It does not exist, or may not be written.
    NotWritable,
    /// Its file system does not answer.
    Silent,
}

/// The state of one GPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Gpu {
    /// Its number, as `nvidia-smi` shows it.
    pub number: u32,
    /// True if workers of this node may not use it. Then it counts only if it asks for a restart of the machine.
    pub is_of_others: bool,
    /// The recovery action that its driver asks for; 0 if none.
    pub recovery_action: Option<u64>,
    /// True if rows of its memory are to be replaced at the next reset.
    pub is_remap_pending: bool,
    /// True if rows of its memory could not be replaced.
    pub has_remap_failed: bool,
}

/// The state of one network port.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Port {
    /// Its name, such as `mlx5_1`.
    pub name: String,
    /// True if it can send.
    pub is_active: bool,
    /// The number of times that its link has failed; `None` if the device does not count them.
    pub link_downed: Option<u64>,
}

impl Reading {
    /// Returns the devices that were read, such as `8 GPUs, 2 ports`; `None` if there are none.
    pub fn devices(&self) -> Option<String> {
        let counted = |count: usize, what| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            count => Some(format!("{count} {what}s")),
        };
        let gpus = counted(self.own_gpus().unwrap_or(0), "GPU");
        let ports = counted(self.ports.as_ref().map_or(0, Vec::len), "port");
        let all: Vec<String> = [gpus, ports].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Returns the number of GPUs that workers of this node may use.
    fn own_gpus(&self) -> Option<usize> {
        Some(self.gpus.as_ref()?.iter().filter(|gpu| !gpu.is_of_others).count())
    }

    /// Returns what is wrong with the GPUs, the worst first, each as a sentence with what to do.
    pub fn findings(&self) -> Vec<(String, &'static str)> {
        let mut findings: Vec<_> = self.gpus.iter().flatten().flat_map(Finding::of_gpu).collect();
        findings.sort_by_key(|finding| Reverse(finding.need()));
        findings.iter().map(|finding| (finding.as_state(), finding.remedy())).collect()
    }
}

/// Something that was found on a machine.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Finding {
    /// An error of a GPU.
    Xid {
        gpu: u32,
        xid: u64,
    },
    /// The driver of a GPU asks for an action.
    Recovery {
        gpu: u32,
        action: u64,
    },
    /// The driver has lost a GPU.
    Unavailable {
        gpu: u32,
    },
    RemapPending {
        gpu: u32,
    },
    RemapFailed {
        gpu: u32,
    },
    /// GPUs have gone since the agent started.
    GpusMissing {
        missing: usize,
        all: usize,
    },
    /// A port that was active when the agent started.
    PortDown {
        port: String,
    },
    LinkDowned {
        port: String,
        times: u64,
    },
    Folder {
        path: String,
        problem: FolderProblem,
    },
}

impl Finding {
    /// Returns the state of a GPU that is not as it should be.
    fn of_gpu(gpu: &Gpu) -> Vec<Self> {
        let number = gpu.number;
        let action = gpu.recovery_action.filter(|action| *action != 0);
        let recovery = action.map(|action| Self::Recovery { gpu: number, action });
        if gpu.is_of_others {
            return recovery.into_iter().filter(|found| found.need() == Need::Replace).collect();
        }
        let findings = [
            recovery,
            gpu.is_remap_pending.then_some(Self::RemapPending { gpu: number }),
            gpu.has_remap_failed.then_some(Self::RemapFailed { gpu: number }),
        ];
        findings.into_iter().flatten().collect()
    }

    /// Returns the GPU that this is about; `None` if it is about none, or about several.
    fn gpu(&self) -> Option<u32> {
        match self {
            Self::Xid { gpu, .. }
            | Self::Recovery { gpu, .. }
            | Self::Unavailable { gpu }
            | Self::RemapPending { gpu }
            | Self::RemapFailed { gpu } => Some(*gpu),
            Self::GpusMissing { .. }
            | Self::PortDown { .. }
            | Self::LinkDowned { .. }
            | Self::Folder { .. } => None,
        }
    }

    fn need(&self) -> Need {
        match self {
            Self::Xid { xid, .. } => xids::need(*xid),
            Self::Recovery { action: 2 | 7, .. }
            | Self::Unavailable { .. }
            | Self::RemapFailed { .. } => Need::Replace,
            Self::Recovery { action: 1 | 3..=6, .. } | Self::RemapPending { .. } => Need::Reset,
            Self::GpusMissing { .. } => Need::Gone,
            // Later drivers may ask for actions that are not known here.
            Self::Recovery { .. }
            | Self::PortDown { .. }
            | Self::LinkDowned { .. }
            | Self::Folder { .. } => Need::Nothing,
        }
    }

    /// Returns what a person does about this state of a GPU.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Recovery { action: 1 | 4, .. } | Self::RemapPending { .. } => {
                "end all processes on the GPU, and type `nvidia-smi --gpu-reset -i NUMBER`"
            }
            Self::Recovery { action: 2 | 7, .. } => "restart the machine",
            Self::Recovery { .. } => {
                "follow NVIDIA's driver documentation for this recovery action"
            }
            _ => "restart or repair the machine",
        }
    }

    /// Returns the kind, for programs.
    fn kind(&self) -> String {
        match self {
            Self::Xid { xid, .. } => format!("xid_{xid}"),
            Self::Recovery { action, .. } => format!("recovery_action_{action}"),
            Self::Unavailable { .. } => "gpu_unavailable".to_owned(),
            Self::RemapPending { .. } => "row_remap_pending".to_owned(),
            Self::RemapFailed { .. } => "row_remap_failed".to_owned(),
            Self::GpusMissing { .. } => "gpus_missing".to_owned(),
            Self::PortDown { .. } => "port_down".to_owned(),
            Self::LinkDowned { .. } => "link_downed".to_owned(),
            Self::Folder { .. } => "folder".to_owned(),
        }
    }

    /// Returns what was found, as a sentence that a time may follow.
    fn as_event(&self) -> String {
        match self {
            Self::Xid { gpu, xid } => format!("GPU {gpu} reported {}", xids::text(*xid)),
            Self::Recovery { gpu, action } => format!("GPU {gpu} asked for {}", recovery(*action)),
            Self::Unavailable { gpu } => format!("GPU {gpu} became unavailable"),
            Self::RemapPending { gpu } => {
                format!("GPU {gpu} was found with a pending row remap")
            }
            Self::RemapFailed { gpu } => format!("GPU {gpu} was found with a failed row remap"),
            Self::GpusMissing { missing, all } => {
                format!("{missing} of {all} GPUs {} found missing", were(*missing))
            }
            Self::PortDown { port } => format!("port {port} was found down"),
            Self::LinkDowned { port, times: 1 } => {
                format!("port {port} was found to have lost its link once")
            }
            Self::LinkDowned { port, times } => {
                format!("port {port} was found to have lost its link {times} times")
            }
            Self::Folder { path, problem: FolderProblem::Silent } => {
                format!("the disk of {path} was found not to answer")
            }
            Self::Folder { path, problem } => format!("{path} was found {}", problem.name()),
        }
    }

    /// Returns the reason why the machine is unhealthy.
    fn reason(&self) -> String {
        match self {
            Self::Xid { gpu, xid } => format!("GPU {gpu}: {}", xids::text(*xid)),
            _ => self.as_state(),
        }
    }

    /// Returns the state of the machine, as a sentence.
    fn as_state(&self) -> String {
        match self {
            Self::Recovery { gpu, action } => format!("GPU {gpu} asks for {}", recovery(*action)),
            Self::RemapPending { gpu } => {
                format!("GPU {gpu} has a pending row remap, which a reset completes")
            }
            Self::RemapFailed { gpu } => {
                format!("GPU {gpu} has a failed row remap, and must be replaced")
            }
            Self::GpusMissing { missing, all } => {
                format!(
                    "{missing} of {all} GPUs {} missing",
                    if *missing == 1 { "is" } else { "are" }
                )
            }
            Self::PortDown { port } => format!("port {port} is down"),
            Self::Folder { path, problem: FolderProblem::Silent } => {
                format!("the disk of {path} does not answer")
            }
            Self::Folder { path, problem } => format!("{path} is {}", problem.name()),
            Self::Xid { .. } | Self::Unavailable { .. } | Self::LinkDowned { .. } => {
                self.as_event()
            }
        }
    }
}

impl FolderProblem {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NotWritable => "not writable",
            Self::Silent => "silent",
        }
    }
}

fn were(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

/// Returns the name of a recovery action of NVIDIA's driver.
fn recovery(action: u64) -> String {
    match action {
        1 => "a reset".to_owned(),
        2 => "a restart of the machine".to_owned(),
        3 => "a drain of its peer-to-peer traffic".to_owned(),
        4 => "a drain and a reset".to_owned(),
        5 => "a recovery of its IMEX domain".to_owned(),
        6 => "a reset of the bus".to_owned(),
        7 => "a restart of the system".to_owned(),
        other => format!("recovery action {other}"),
    }
}

/// Something that was found, and when.
#[derive(Clone, Debug)]
struct Noted {
    finding: Finding,
    /// The last time.
    at: Instant,
    times: u64,
}

/// The reports of this node's hardware.
#[derive(Debug, Default)]
pub struct Hardware {
    /// The number of GPUs in the first reading.
    gpus: Option<usize>,
    /// The ports that have been active.
    active: BTreeSet<String>,
    last: Reading,
    /// The newest last.
    noted: VecDeque<Noted>,
    /// The beginning of the newest round.
    began: Option<Instant>,
    /// True if the GPUs were read since then, the ports and the folders.
    is_read: [bool; 3],
    /// GPU errors reported before this time no longer count: a check has read the GPUs since.
    checked: Option<Instant>,
}

/// Something new, for the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct News {
    /// The need of the machine.
    pub need: Need,
    /// The sentence.
    pub text: String,
}

impl Hardware {
    /// Notes that a round begins.
    pub fn handle_round(&mut self, now: Instant) {
        self.began = Some(now);
        self.is_read = [false; 3];
    }

    /// Notes an error of a GPU. Returns it if it was not noted before in this round.
    pub fn handle_xid(&mut self, now: Instant, gpu: u32, xid: u64) -> Option<News> {
        self.note(now, Finding::Xid { gpu, xid })
    }

    /// Notes that a GPU became unavailable. Returns it if it was not noted before in this round.
    pub fn handle_unavailable(&mut self, now: Instant, gpu: u32) -> Option<News> {
        self.note(now, Finding::Unavailable { gpu })
    }

    /// Compares a reading with the one before, and notes what has become worse. Returns that. The first reading is the standard, and
    /// what the first one of a round finds was there before the round.
    pub fn handle_reading(&mut self, now: Instant, reading: Reading) -> Vec<News> {
        let before = self.states();
        let began = self.began;
        let at = |is_read: &mut bool| match (std::mem::replace(is_read, true), began) {
            (false, Some(began)) => began,
            (true, _) | (_, None) => now,
        };
        let mut found = BTreeMap::new();
        if let Some(gpus) = reading.gpus {
            let at = at(&mut self.is_read[0]);
            let is_first = self.last.gpus.replace(gpus).is_none();
            self.gpus = self.gpus.or_else(|| self.last.own_gpus());
            let states = self.states_of_gpus().into_iter();
            let news = states.filter(|state| !is_first && !before.contains(state));
            found.extend(news.map(|state| (state, at)));
        }
        if let Some(ports) = reading.ports {
            let at = at(&mut self.is_read[1]);
            let last = self.last.ports.replace(ports);
            let ports = self.last.ports.iter().flatten();
            let counts: BTreeMap<&String, u64> = (last.iter().flatten())
                .filter_map(|port| Some((&port.name, port.link_downed?)))
                .collect();
            for port in ports {
                let grown = counts.get(&port.name).zip(port.link_downed);
                // A counter may have been reset.
                let times = grown.and_then(|(before, now)| now.checked_sub(*before));
                if let Some(times) = times.filter(|times| *times > 0) {
                    found.insert(Finding::LinkDowned { port: port.name.clone(), times }, at);
                }
                if port.is_active && self.active.len() < limits::PORTS_MAX {
                    self.active.insert(port.name.clone());
                }
            }
            let down = self.states_of_ports().into_iter();
            found.extend(down.filter(|state| !before.contains(state)).map(|state| (state, at)));
        }
        if let Some(mut folders) = reading.folders {
            let at = at(&mut self.is_read[2]);
            // A folder that has not answered in time stays as it was.
            let mut late = self.last.folders.take().unwrap_or_default();
            late.retain(|last| folders.iter().all(|folder| folder.path != last.path));
            folders.extend(late);
            self.last.folders = Some(folders);
            let problems = self.states_of_folders();
            let problems = problems.filter(|state| !before.contains(state));
            found.extend(problems.map(|state| (state, at)));
        }
        found.into_iter().filter_map(|(finding, at)| self.note(at, finding)).collect()
    }

    /// Returns the beginning of the newest round.
    pub fn round_began(&self) -> Option<Instant> {
        self.began
    }

    /// Returns true if the devices were read since the newest round began.
    pub fn is_read_in_round(&self) -> bool {
        self.began.is_some() && self.is_read.contains(&true)
    }

    /// Notes that a check has read the GPUs: what they have reported up to this time counts no longer, because their states count.
    pub fn handle_checked(&mut self, until: Instant) {
        self.checked = self.checked.max(Some(until));
    }

    /// Returns the reason why this node should get no place: the worst state, or the worst error of a GPU since the last check. Of equals
    /// it is the newest.
    pub fn unhealthy(&self) -> Option<Unhealthy> {
        let states = self.states();
        let noted = self.noted.iter().filter(|noted| match noted.finding {
            // Their present state counts instead: unlike an event, it ends when it is repaired.
            Finding::Recovery { .. }
            | Finding::RemapPending { .. }
            | Finding::RemapFailed { .. }
            | Finding::GpusMissing { .. }
            | Finding::PortDown { .. }
            | Finding::LinkDowned { .. }
            | Finding::Folder { .. } => false,
            Finding::Xid { .. } | Finding::Unavailable { .. } => Some(noted.at) > self.checked,
        });
        let noted = noted.map(|noted| (Some(noted.at), &noted.finding));
        let all = states.iter().map(|state| (None, state)).chain(noted);
        let (_, worst) = all.max_by_key(|(at, finding)| (finding.need(), *at))?;
        let class = worst.need().class()?;
        Some(Unhealthy { class, kind: worst.kind(), reason: cut(worst.reason()) })
    }

    /// Returns what joins a failure: what was noted since the round began, and the states that need a reset or a repair. The worst is
    /// first, and of these the newest.
    pub fn of_failure(&self, now: Instant) -> Vec<HardwareFact> {
        let Some(began) = self.began else { return Vec::new() };
        let noted: Vec<&Noted> = self.noted.iter().filter(|noted| noted.at > began).collect();
        let is_consequence = |of: &Noted| {
            let gpu = of.finding.gpu();
            noted.iter().any(|noted| {
                let after = of.at.checked_duration_since(noted.at);
                noted.finding.need().is_serious()
                    && gpu.is_some()
                    && noted.finding.gpu() == gpu
                    && after.is_some_and(|after| after <= limits::HARDWARE_CONSEQUENCES)
            })
        };
        let mut states = self.states();
        states.retain(|state| state.need().is_serious());
        states.retain(|state| noted.iter().all(|noted| noted.finding != *state));
        let states = states.iter().map(|state| (state.need(), None, state.as_state()));
        let noted = noted.iter();
        let noted = noted.filter(|of| of.finding.need().is_serious() || !is_consequence(of));
        let noted = noted.map(|noted| (noted.finding.need(), Some(noted.at), noted.text()));
        let mut facts: Vec<_> = states.chain(noted).collect();
        facts.sort_by_key(|(need, at, _)| Reverse((*need, *at)));
        facts.truncate(HARDWARE_FACTS_MAX);
        let fact = |(_, at, text): (_, Option<Instant>, _)| HardwareFact {
            text: cut(text),
            age: at.map(|at| now.saturating_duration_since(at)),
        };
        facts.into_iter().map(fact).collect()
    }

    /// Returns the devices, if any were read.
    pub fn devices(&self) -> Option<String> {
        self.last.devices()
    }

    /// Returns what is wrong now, and what was noted, the worst first.
    pub fn lines(&self, now: Instant) -> Vec<String> {
        self.lines_since(None, now)
    }

    /// Returns what is wrong now, and what was noted since the round began, the worst first.
    pub fn lines_of_round(&self, now: Instant) -> Vec<String> {
        self.lines_since(self.began, now)
    }

    fn lines_since(&self, began: Option<Instant>, now: Instant) -> Vec<String> {
        let states = self.states();
        let noted = self.noted.iter().filter(|noted| !states.contains(&noted.finding));
        let noted = noted.filter(|noted| began.is_none_or(|began| noted.at > began));
        let noted = noted.map(|noted| {
            let ago = time_text(now.saturating_duration_since(noted.at));
            (noted.finding.need(), Some(noted.at), format!("{} {ago} ago", noted.text()))
        });
        let states = states.iter().map(|state| (state.need(), None, state.as_state()));
        let mut lines: Vec<_> = states.chain(noted).collect();
        lines.sort_by_key(|(need, at, _)| Reverse((*need, at.is_none(), *at)));
        lines.into_iter().map(|(_, _, text)| cut(text)).collect()
    }

    /// Returns the states of the devices that are not as they should be.
    fn states(&self) -> BTreeSet<Finding> {
        let mut states = self.states_of_gpus();
        states.extend(self.states_of_ports());
        states.extend(self.states_of_folders());
        states
    }

    fn states_of_gpus(&self) -> BTreeSet<Finding> {
        let mut states: BTreeSet<Finding> =
            self.last.gpus.iter().flatten().flat_map(Finding::of_gpu).collect();
        if let (Some(all), Some(gpus)) = (self.gpus, self.last.own_gpus())
            && let Some(missing) = all.checked_sub(gpus).filter(|missing| *missing > 0)
        {
            states.insert(Finding::GpusMissing { missing, all });
        }
        states
    }

    fn states_of_folders(&self) -> impl Iterator<Item = Finding> {
        let folders = self.last.folders.iter().flatten();
        folders.filter_map(|Folder { path, problem }| {
            Some(Finding::Folder { path: path.clone(), problem: (*problem)? })
        })
    }

    fn states_of_ports(&self) -> BTreeSet<Finding> {
        let down = self.last.ports.iter().flatten().filter(|port| !port.is_active);
        let down = down.filter(|port| self.active.contains(&port.name));
        down.map(|port| Finding::PortDown { port: port.name.clone() }).collect()
    }

    /// Notes what was found. Returns it if it was not noted before in this round.
    fn note(&mut self, now: Instant, finding: Finding) -> Option<News> {
        let known = self.noted.iter().position(|noted| noted.finding == finding);
        let known = known.and_then(|known| self.noted.remove(known));
        let is_of_round = |noted: &Noted| self.began.is_some_and(|began| noted.at > began);
        let is_known = known.as_ref().is_some_and(is_of_round);
        let times = if is_known { known.map_or(0, |known| known.times) } else { 0 };
        if self.noted.len() >= limits::HARDWARE_NOTED_MAX {
            // What needs the least goes first.
            let (place, _) =
                (self.noted.iter().enumerate()).min_by_key(|(_, noted)| noted.finding.need())?;
            self.noted.remove(place);
        }
        let news = News { need: finding.need(), text: finding.as_event() };
        self.noted.push_back(Noted { finding, at: now, times: times.saturating_add(1) });
        (!is_known).then_some(news)
    }
}

impl Noted {
    fn text(&self) -> String {
        let text = self.finding.as_event();
        match self.times {
            1 => text,
            times => format!("{text} {times} times, the last one"),
        }
    }
}

/// Returns a text that fits into a line. Names of devices are the system's.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LINE_MAX));
    text
}

#[cfg(test)]
mod tests;
