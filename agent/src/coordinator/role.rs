//! The coordinator of a job, from the point of view of one agent's port.

use ragent_proto::convert::NotHere;
use tokio::sync::watch;

use super::driver::Inputs;

/// The coordinator, from the point of view of one port.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// This process coordinates as long as `known` names `endpoint`: it may give way to another
    /// one.
    Coordinator {
        /// The queue of its inputs.
        inputs: Inputs,
        /// The endpoint at which other agents reach it.
        endpoint: String,
        /// The newest known endpoint of the job's coordinator.
        known: watch::Receiver<NotHere>,
    },
    /// Another process coordinates; its newest known endpoint.
    Elsewhere(watch::Receiver<NotHere>),
}

impl Role {
    /// Returns the newest known endpoint of the coordinator.
    pub(super) fn known(&self) -> NotHere {
        match self {
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => known.borrow().clone(),
        }
    }

    /// Returns the inputs of the coordinator, or its endpoint if it is not in this process.
    pub(super) fn coordinator(&self) -> Result<&Inputs, NotHere> {
        match self {
            Self::Coordinator { inputs, endpoint, known }
                if known.borrow().endpoint == *endpoint =>
            {
                Ok(inputs)
            }
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => Err(known.borrow().clone()),
        }
    }
}
