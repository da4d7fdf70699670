//! Reads the address at which the metrics are served to every client.

use std::net::{Ipv6Addr, SocketAddr};

use super::{Argument, UsageError, arguments::Arguments};
use ragent_base::sys::host::Host;

impl<H: Host> Arguments<'_, H> {
    pub(super) fn metrics_listen(&self) -> Result<Option<SocketAddr>, UsageError> {
        let given = self.not_empty("metrics_listen", &self.args.metrics_listen);
        given.map(|given| given.listen_address()).transpose()
    }
}

impl Argument {
    /// Reads an address and a port to listen at; port 0 selects a free port.
    pub fn listen_address(&self) -> Result<SocketAddr, UsageError> {
        self.text.trim().parse().map_err(|_| {
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 9400));
            self.is_not("an address and a port").with_hint(format!(
                "give an address of this machine, as in `127.0.0.1:9400`, or all of its addresses: `{any}`"
            ))
        })
    }
}
