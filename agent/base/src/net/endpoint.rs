//! Reads the address of the coordinator.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use crate::limits::MAX_HOST_NAME;

/// The port of an endpoint that names none; the same as torch's.
pub const DEFAULT_PORT: u16 = 29400;

/// The address of the coordinator: a host and a port, not resolved yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { host: "localhost".to_owned(), port: DEFAULT_PORT }
    }
}

impl Endpoint {
    /// Returns true if its host is this machine's loopback interface, by its name or address.
    pub fn is_loopback(&self) -> bool {
        let is_address = |host: &str| host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        self.host == "localhost" || is_address(&self.host)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The reason why a text is not an [`Endpoint`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EndpointError {
    /// The host has characters that occur in no name and no address.
    #[error("its host is neither a name nor an address")]
    Host,
    /// A bracket is not closed.
    #[error("its bracket is not closed")]
    Bracket,
    /// There is a port, but no host.
    #[error("it has no host")]
    NoHost,
    /// There is no port, and no default for it.
    #[error("it has no port")]
    NoPort,
    /// There is a scheme, as in a URL.
    #[error("it is a URL")]
    Url,
    /// The port is not a number from 0 to 65535.
    #[error("its port is not a number from 0 to 65535")]
    Port,
    /// There is a port where only an address is allowed.
    #[error("it contains a port, which has its own flag")]
    PortInAddress,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Reads `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = Self::split(text)?;
        Ok(Self { host, port: port.unwrap_or(DEFAULT_PORT) })
    }
}

impl Endpoint {
    /// Splits a text into the host, and the port if there is one.
    pub fn split(text: &str) -> Result<(String, Option<u16>), EndpointError> {
        let text = text.trim();
        if text.contains("://") {
            return Err(EndpointError::Url);
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok((text.to_owned(), None));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(EndpointError::Bracket)?;
                host.parse::<Ipv6Addr>().map_err(|_| EndpointError::Host)?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':').ok_or(EndpointError::Port)?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() {
            return Err(EndpointError::NoHost);
        }
        if !is_host(host) {
            return Err(EndpointError::Host);
        }
        let port = port.map(|port| port.parse().map_err(|_| EndpointError::Port)).transpose()?;
        Ok((host.to_owned(), port))
    }
}

/// Returns true if `text` can be the name or address of the host in an endpoint.
pub fn is_host(text: &str) -> bool {
    let sound = |c: char| c.is_alphanumeric() || "_.:-".contains(c);
    !text.is_empty() && text.len() <= MAX_HOST_NAME && text.chars().all(sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, EndpointError> {
        text.parse::<Endpoint>().map(|endpoint| endpoint.to_string())
    }

    /// All forms that torchrun accepts are accepted; the port defaults to 29400.
    #[test]
    fn forms_of_an_endpoint() {
        assert_eq!(parse("node0"), Ok("node0:29400".into()));
        assert_eq!(parse("node0:1234"), Ok("node0:1234".into()));
        assert_eq!(parse("10.0.0.1:0"), Ok("10.0.0.1:0".into()));
        assert_eq!(parse("::1"), Ok("[::1]:29400".into()));
        assert_eq!(parse("[fe80::1]"), Ok("[fe80::1]:29400".into()));
        assert_eq!(parse("[::1]:5"), Ok("[::1]:5".into()));
    }

    /// The error names the malformed part of an endpoint.
    #[test]
    fn malformed_endpoints() {
        assert_eq!(parse(":29400"), Err(EndpointError::NoHost));
        assert_eq!(parse(""), Err(EndpointError::NoHost));
        assert_eq!(parse("a b:1"), Err(EndpointError::Host));
        assert_eq!(parse("http://node0:1"), Err(EndpointError::Url));
        assert_eq!(parse("[nope]:1"), Err(EndpointError::Host));
        assert_eq!(parse("[::1"), Err(EndpointError::Bracket));
        assert_eq!(parse("node0:70000"), Err(EndpointError::Port));
        assert_eq!(parse("node0:"), Err(EndpointError::Port));
        assert_eq!(parse("[::1]5"), Err(EndpointError::Port));
    }
}
