//! Converts the settings that all nodes of a job share.

use ragent_rendezvous::settings::{
    MEMORY_COPIES_MAX, NodeRange, SharedSettings, StoreAccess, Timeouts,
};

use super::{millis, to_millis};
use crate::{Malformed, v1};

impl From<SharedSettings> for v1::SharedSettings {
    fn from(settings: SharedSettings) -> Self {
        let SharedSettings {
            nodes,
            max_restarts,
            timeouts,
            fixed_ranks,
            store_access,
            notice,
            no_progress_limit,
            hang_auto,
            memory_copies,
            as_torchrun,
        } = settings;
        Self {
            min_nodes: nodes.min(),
            max_nodes: nodes.max(),
            max_restarts,
            join_timeout_ms: to_millis(timeouts.join),
            last_call_timeout_ms: to_millis(timeouts.last_call),
            join_settle_ms: to_millis(timeouts.join_settle),
            shrink_timeout_ms: to_millis(timeouts.shrink),
            stop_grace_ms: to_millis(timeouts.stop_grace),
            fixed_ranks,
            node_unit: nodes.unit(),
            store_access_any: store_access == StoreAccess::Any,
            notice_ms: to_millis(notice),
            no_progress_limit,
            hang_auto,
            memory_copies: Some(memory_copies),
            as_torchrun,
        }
    }
}

impl TryFrom<v1::SharedSettings> for SharedSettings {
    type Error = Malformed;

    fn try_from(settings: v1::SharedSettings) -> Result<Self, Malformed> {
        Ok(Self {
            nodes: NodeRange::in_units(
                settings.min_nodes,
                settings.max_nodes,
                settings.node_unit.max(1),
            )
            .ok_or(Malformed::OutOfRange("settings.min_nodes"))?,
            max_restarts: settings.max_restarts,
            timeouts: Timeouts {
                join: millis(settings.join_timeout_ms, "settings.join_timeout_ms")?,
                last_call: millis(settings.last_call_timeout_ms, "settings.last_call_timeout_ms")?,
                join_settle: millis(settings.join_settle_ms, "settings.join_settle_ms")?,
                shrink: millis(settings.shrink_timeout_ms, "settings.shrink_timeout_ms")?,
                stop_grace: millis(settings.stop_grace_ms, "settings.stop_grace_ms")?,
            },
            fixed_ranks: settings.fixed_ranks,
            store_access: match settings.store_access_any {
                false => StoreAccess::Members,
                true => StoreAccess::Any,
            },
            notice: millis(settings.notice_ms, "settings.notice_ms")?,
            no_progress_limit: settings.no_progress_limit,
            hang_auto: settings.hang_auto,
            memory_copies: match settings.memory_copies.unwrap_or(MEMORY_COPIES_MAX) {
                copies if copies <= MEMORY_COPIES_MAX => copies,
                _ => return Err(Malformed::OutOfRange("settings.memory_copies")),
            },
            as_torchrun: settings.as_torchrun,
        })
    }
}
