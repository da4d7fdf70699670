//! Converts notices, and the checkpoints that answer them.

use ragent_rendezvous::message::{
    Checkpoint, Guidance, NOTICE_HOSTS_MAX, NOTICE_TEXT_MAX, NodeNotice, Notice, NoticeKind,
    Requests, Saved,
};

use super::{
    fitted_line, fitted_to, line, list, millis, name, one_line, progress::step, round, to_millis,
    to_round,
};
use crate::{Malformed, v1};

enumeration!(NoticeKind, NoticeKind, "notice.kind", [Save, Members, Leave, End]);

/// Parses the host names of nodes that leave.
pub(super) fn hosts(hosts: Vec<String>, field: &'static str) -> Result<Vec<String>, Malformed> {
    list(hosts, field, NOTICE_HOSTS_MAX, |host| name(host, field))
}

/// Parses the text of a notice: one line.
fn source(source: String, field: &'static str) -> Result<String, Malformed> {
    one_line(source, field, NOTICE_TEXT_MAX)
}

impl From<NodeNotice> for v1::NodeNotice {
    fn from(NodeNotice { ends_job, left, text }: NodeNotice) -> Self {
        Self { ends_job, left_ms: to_millis(left), text: fitted_to(&text, NOTICE_TEXT_MAX) }
    }
}

impl TryFrom<v1::NodeNotice> for NodeNotice {
    type Error = Malformed;

    fn try_from(notice: v1::NodeNotice) -> Result<Self, Malformed> {
        let v1::NodeNotice { ends_job, left_ms, text } = notice;
        Ok(Self {
            ends_job,
            left: millis(left_ms, "node_notice.left_ms")?,
            text: source(text, "node_notice.text")?,
        })
    }
}

impl From<Saved> for v1::Saved {
    fn from(Saved { notice, step, is_whole }: Saved) -> Self {
        Self { notice, step, is_whole }
    }
}

impl TryFrom<v1::Saved> for Saved {
    type Error = Malformed;

    fn try_from(v1::Saved { notice, step: saved, is_whole }: v1::Saved) -> Result<Self, Malformed> {
        Ok(Self { notice, step: step(saved, "saved.step")?, is_whole })
    }
}

impl From<Requests> for v1::Requests {
    fn from(Requests { saves, looks }: Requests) -> Self {
        Self { saves, looks }
    }
}

impl From<v1::Requests> for Requests {
    fn from(v1::Requests { saves, looks }: v1::Requests) -> Self {
        Self { saves, looks }
    }
}

impl From<Checkpoint> for v1::Checkpoint {
    fn from(Checkpoint { step, is_whole, cost }: Checkpoint) -> Self {
        Self { step, is_whole, cost_ms: cost.map(to_millis) }
    }
}

impl TryFrom<v1::Checkpoint> for Checkpoint {
    type Error = Malformed;

    fn try_from(checkpoint: v1::Checkpoint) -> Result<Self, Malformed> {
        let v1::Checkpoint { step: saved, is_whole, cost_ms } = checkpoint;
        let cost = cost_ms.map(|ms| millis(ms, "checkpoint.cost_ms")).transpose()?;
        Ok(Self { step: step(saved, "checkpoint.step")?, is_whole, cost })
    }
}

impl From<Guidance> for v1::Guidance {
    fn from(Guidance { round, notice, look, hung, memory_off }: Guidance) -> Self {
        Self {
            round: to_round(round),
            notice: notice.map(Into::into),
            look: look.map(Into::into),
            hung: hung.map(Into::into),
            memory_off: memory_off.as_deref().map(fitted_line),
        }
    }
}

impl TryFrom<v1::Guidance> for Guidance {
    type Error = Malformed;

    fn try_from(guidance: v1::Guidance) -> Result<Self, Malformed> {
        let memory_off = guidance.memory_off.map(|why| line(why, "guidance.memory_off"));
        Ok(Self {
            round: round(guidance.round, "guidance.round")?,
            notice: guidance.notice.map(TryInto::try_into).transpose()?,
            look: guidance.look.map(TryInto::try_into).transpose()?,
            hung: guidance.hung.map(TryInto::try_into).transpose()?,
            memory_off: memory_off.transpose()?,
        })
    }
}

impl From<Notice> for v1::Notice {
    fn from(Notice { number, kind, hosts, left, text }: Notice) -> Self {
        let kind = v1::NoticeKind::from(kind).into();
        let text = fitted_to(&text, NOTICE_TEXT_MAX);
        Self { number, kind, hosts, left_ms: left.map(to_millis), text }
    }
}

impl TryFrom<v1::Notice> for Notice {
    type Error = Malformed;

    fn try_from(notice: v1::Notice) -> Result<Self, Malformed> {
        Ok(Self {
            kind: notice.kind().try_into()?,
            number: notice.number,
            hosts: hosts(notice.hosts, "notice.hosts")?,
            left: notice.left_ms.map(|ms| millis(ms, "notice.left_ms")).transpose()?,
            text: source(notice.text, "notice.text")?,
        })
    }
}
