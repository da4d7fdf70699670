//! Describes the checkpoints in memory for people.

use std::time::{Duration, Instant};

use crate::{
    event::StrikeReason,
    ids::{GlobalRank, GroupRank},
    job::Job,
    limits::millis,
    memory::JobMemory,
    message::{CheckpointId, LINE_MAX, MemoryReport, PartPlace},
    snapshot::{MemoryBytes, MemoryStatus, grouped},
    table::Table,
};

/// The merged reports of the nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    has_parts: bool,
    /// The memory that the node with the largest parts needs, and the most that it may use.
    needed: u64,
    limit: u64,
    cost: Option<Duration>,
    bytes: MemoryBytes,
    /// The obstacle of the member with the lowest rank that has one, and this rank.
    obstacle: Option<(GroupRank, String)>,
    /// The lowest rank whose `save` waits.
    waits: Option<GlobalRank>,
}

impl Reported {
    fn add(&mut self, report: &MemoryReport) {
        self.has_parts |= !report.parts.is_empty();
        if (self.needed, self.limit) < (report.needed, report.limit) {
            (self.needed, self.limit) = (report.needed, report.limit);
        }
        self.cost = self.cost.max(report.cost);
        for part in &report.parts {
            let sum = match part.place {
                PartPlace::Own => &mut self.bytes.own,
                PartPlace::Copy => &mut self.bytes.copy,
                PartPlace::Leftover => &mut self.bytes.leftover,
            };
            *sum = sum.saturating_add(part.bytes);
        }
    }

    fn add_member(&mut self, rank: GroupRank, report: &MemoryReport) {
        let obstacle = || report.obstacle.clone().map(|text| (rank, text));
        if self.obstacle.is_none() {
            self.obstacle = obstacle();
        }
        // The reason of a wait matters more than another one.
        if self.waits.is_none() && report.waits_for_buffer.is_some() {
            self.waits = report.waits_for_buffer;
            self.obstacle = obstacle().or_else(|| self.obstacle.take());
        }
    }
}

impl JobMemory {
    /// Returns the state of the checkpoints in memory; `None` if the script has saved none.
    pub(crate) fn status(&self, now: Instant, job: &Job) -> Option<MemoryStatus> {
        let off = self.why_off();
        if !self.has_reports && off.is_none() {
            return None;
        }
        let reported = self.reported.get_or_init(|| reported(job));
        let is_void = |id: &CheckpointId| self.tried.is_void(*id);
        let planned = self.plan.as_ref().map(|plan| plan.checkpoint);
        let newest = self.whole.max(planned).filter(|id| !is_void(id));
        let used = reported.has_parts || reported.waits.is_some() || newest.is_some();
        // After a strike, no node holds a part.
        if !used && off.is_none() && self.tried.struck().is_none() {
            return None;
        }
        let is_copied = newest.is_some_and(|id| self.holdings.is_copied(id));
        let since = self.whole_since.filter(|(id, _)| Some(*id) == newest);
        let mut text = self.text(job, off, reported, newest, is_copied);
        if let Some(text) = &mut text {
            text.truncate(text.floor_char_boundary(LINE_MAX));
        }
        Some(MemoryStatus {
            step: newest.map(|id| id.step),
            is_copied,
            age_ms: since.map(|(_, since)| millis(now.saturating_duration_since(since))),
            cost_ms: reported.cost.map(millis),
            needed: reported.needed,
            limit: reported.limit,
            bytes: reported.bytes,
            copy_ms: self.copy_time.map(millis),
            waited_ms: millis(self.waited.until(now)),
            text,
        })
    }

    /// Returns the reason why there is no newer checkpoint or no copy. Agents have written the reasons that only they
    /// know.
    fn text(
        &self,
        job: &Job,
        off: Option<String>,
        reported: &Reported,
        newest: Option<CheckpointId>,
        is_copied: bool,
    ) -> Option<String> {
        if let Some(why) = off {
            return Some(format!("off: {why}"));
        }
        let obstacle = reported.obstacle.as_ref();
        let obstacle = obstacle.map(|(rank, text)| self.with_buddy_host(job, *rank, text));
        let obstacle = obstacle.as_deref();
        let is_sentence = |text: &str| {
            let beginnings = ["no copies: ", "off: ", "waits: "];
            beginnings.iter().any(|beginning| text.starts_with(beginning))
        };
        match (obstacle, reported.waits, newest) {
            (Some(text), _, _) if is_sentence(text) => Some(text.to_owned()),
            (Some(text), Some(_), _) => Some(format!("waits: {text}")),
            (None, Some(rank), _) => Some(format!("waits: rank {rank} waits for memory")),
            (Some(text), None, Some(id)) if !is_copied => {
                let why = match text.starts_with("not copied") {
                    true => text.to_owned(),
                    false => format!("not copied: {text}"),
                };
                Some(format!("step {} whole, {why}", grouped(id.step)))
            }
            (Some(text), None, _) => Some(text.to_owned()),
            (None, None, None) => self.struck_text(),
            (None, None, Some(_)) => None,
        }
    }

    fn struck_text(&self) -> Option<String> {
        let step = grouped(self.tried.struck()?.step);
        Some(match self.struck {
            Some(StrikeReason::Failures) => format!("struck off: two failures after step {step}"),
            Some(StrikeReason::Sum) => format!("struck off: the checksum of step {step} is wrong"),
            Some(StrikeReason::Script) => format!("struck off: the script has refused step {step}"),
            Some(StrikeReason::Unread) => {
                format!("struck off: workers failed before they received step {step}")
            }
            // An earlier coordinator knew.
            None => format!("struck off: step {step}"),
        })
    }
}

fn reported(job: &Job) -> Reported {
    let mut reported = Reported::default();
    for (_, node) in job.roster.iter() {
        node.memory.iter().for_each(|report| reported.add(report));
    }
    let table = job.phase.group().and_then(|group| group.table.as_ref());
    let members = table.map_or(&[][..], Table::member_ranks);
    for (rank, ranks) in (0..).map(GroupRank).zip(members) {
        let node = job.roster.get(&ranks.node.node_id);
        if let Some(report) = node.and_then(|node| node.memory.as_deref()) {
            reported.add_member(rank, report);
        }
    }
    reported
}
