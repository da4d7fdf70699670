//! Checks that this machine reaches itself, since agents and workers of one node meet there.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use ragent_base::net::{self, Reach};

use super::Finding;

pub(super) async fn examine() -> Finding {
    let address = Ipv4Addr::LOCALHOST;
    match reach(address.into()).await {
        Ok(()) => Finding::pass("loopback", format!("{address} accepts connections")),
        Err(error) => Finding::fail(
            "loopback",
            format!("{address} cannot be used: {error}"),
            "bring the interface up: `ip link set lo up`",
        ),
    }
}

/// Listens at an address of this machine, and connects to it.
async fn reach(address: IpAddr) -> io::Result<()> {
    let listener = net::listen(Reach::Loopback(address), 0)?;
    net::dial(listener.local_addr()?).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback accepts a connection. An address that belongs to no interface does not.
    #[tokio::test]
    async fn addresses_are_tried() {
        assert!(reach(Ipv4Addr::LOCALHOST.into()).await.is_ok());
        assert!(reach(Ipv4Addr::new(192, 0, 2, 1).into()).await.is_err());
    }
}
