//! Converts notices, and the checkpoints that answer them.

use ragent_rendezvous::message::{
    Checkpoint, Guidance, LINE_MAX, NOTICE_HOSTS_MAX, NOTICE_TEXT_MAX, NodeNotice, Notice,
    NoticeKind, Requests, Saved,
};

use crate::{Malformed, v1};

enumeration!(NoticeKind, NoticeKind, "notice.kind", [Save, Members, Leave, End]);

message!(NodeNotice, v1::NodeNotice, "node_notice", {
    ends_job: Same,
    left_ms as left: Millis,
    text: OneLine(NOTICE_TEXT_MAX),
});

message!(Saved, v1::Saved, "saved", { notice: Same, step: Step, is_whole: Same });

message!(Requests, v1::Requests, "requests", { saves: Same, looks: Same });

message!(Checkpoint, v1::Checkpoint, "checkpoint", {
    step: Step,
    is_whole: Same,
    cost_ms as cost: Optional(Millis),
});

message!(Guidance, v1::Guidance, "guidance", {
    round: Required(Inner),
    notice: Optional(Inner),
    look: Optional(Inner),
    hung: Optional(Inner),
    memory_off: Optional(OneLine(LINE_MAX)),
});

message!(Notice, v1::Notice, "notice", {
    number: Same,
    kind: Enumeration,
    hosts: List(NOTICE_HOSTS_MAX, Name),
    left_ms as left: Optional(Millis),
    text: OneLine(NOTICE_TEXT_MAX),
});
