//! Chooses the variables by which a look finds out more about workers.

use ragent_base::sys::host::Host;

use crate::cli::ProgramName;

/// The variables that workers get for looks. A variable that the user has set is kept, and none is set under the name
/// `torchrun`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObservationSpec {
    /// True for `TORCH_WORKER_SERVER_SOCKET`: the socket of torch's worker server.
    pub worker_server: bool,
    /// True for `TORCH_FR_DUMP_TEMP_FILE`: the file in which torch records collectives before a time-out.
    pub flight_recorder: bool,
}

/// The socket of torch's worker server.
pub const WORKER_SERVER_SOCKET: &str = "TORCH_WORKER_SERVER_SOCKET";

/// The begin of the path of torch's records.
pub const FLIGHT_RECORDER_FILE: &str = "TORCH_FR_DUMP_TEMP_FILE";

/// The older name of the same variable. torch prefers the other one.
const OLD_FLIGHT_RECORDER_FILE: &str = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE";

impl ObservationSpec {
    /// Chooses the variables on this machine.
    pub(super) fn new(name: ProgramName, host: &impl Host) -> Self {
        let is_free = |variable| name != ProgramName::Torchrun && host.env(variable).is_none();
        Self {
            worker_server: is_free(WORKER_SERVER_SOCKET),
            flight_recorder: is_free(FLIGHT_RECORDER_FILE) && is_free(OLD_FLIGHT_RECORDER_FILE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragent_base::sys::host::FakeHost;

    /// Variables of the user are kept, and torchrun's workers get none.
    #[test]
    fn variables_of_the_user_are_kept() {
        let chosen = |name, variable: &str| {
            let mut host = FakeHost::default();
            host.env.insert(variable.to_owned(), "/x".into());
            let spec = ObservationSpec::new(name, &host);
            (spec.worker_server, spec.flight_recorder)
        };
        assert_eq!(chosen(ProgramName::Ragent, "OTHER"), (true, true));
        assert_eq!(chosen(ProgramName::Ragent, WORKER_SERVER_SOCKET), (false, true));
        assert_eq!(chosen(ProgramName::Ragent, FLIGHT_RECORDER_FILE), (true, false));
        assert_eq!(chosen(ProgramName::Ragent, OLD_FLIGHT_RECORDER_FILE), (true, false));
        assert_eq!(chosen(ProgramName::Torchrun, "OTHER"), (false, false));
    }
}
