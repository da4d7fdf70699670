//! Reads `--rdzv-conf`: the keys of torchrun and those of ragent.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use ragent_rendezvous::{settings::Timeouts, voter_count::VoterCount};

use super::limits;
use super::{EtcdConf, UsageError, argument};

/// Ports on which a node may listen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StorePorts {
    /// Any free port.
    #[default]
    Any,
    /// The next free port of a range, in turn.
    Range {
        /// The first port.
        first: NonZeroU16,
        /// The last port.
        last: NonZeroU16,
    },
}

/// The values of `--rdzv-conf`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RdzvConf {
    /// The timeouts; `stop_grace` is not set here.
    pub timeouts: Timeouts,
    /// True if this node hosts the endpoint, false if another one does; `None` if not given.
    pub is_host: Option<bool>,
    /// Ports of the workers' store.
    pub store_ports: StorePorts,
    /// The size of a round is a multiple of this number, if given.
    pub node_unit: Option<NonZeroU32>,
    /// True if `join_timeout` is given.
    pub has_join_timeout: bool,
    /// The only interface on which agents look for each other, if given.
    pub discover_interface: Option<String>,
    /// The time to live of their datagrams, if given.
    pub discover_ttl: Option<u32>,
    /// The timeout of torchrun's static and etcd backends, if given.
    pub timeout: Option<Duration>,
    /// The number of voters, if given.
    pub voters: Option<VoterCount>,
    /// The values for etcd.
    pub etcd: EtcdConf,
}

/// All keys with their meaning; the error for an unknown key lists them.
const KEYS: [(&str, ConfKey); 27] = [
    ("ca_cert", ConfKey::Etcd(|etcd| &mut etcd.authorities)),
    ("cacert", ConfKey::Etcd(|etcd| &mut etcd.authorities)),
    ("cas_backoff_max_seconds", ConfKey::NotNeeded),
    ("cert", ConfKey::Etcd(|etcd| &mut etcd.certificate)),
    ("close_timeout", ConfKey::NotNeeded),
    ("discover_interface", ConfKey::DiscoverInterface),
    ("discover_ttl", ConfKey::DiscoverTtl),
    ("etcd_prefix", ConfKey::Etcd(|etcd| &mut etcd.prefix)),
    ("heartbeat_timeout", ConfKey::NotNeeded),
    ("is_host", ConfKey::IsHost),
    ("join_settle", ConfKey::Seconds(|t| &mut t.join_settle)),
    ("join_timeout", ConfKey::PositiveSeconds(|t| &mut t.join)),
    ("keep_alive_interval", ConfKey::NotNeeded),
    ("keep_alive_max_attempt", ConfKey::NotNeeded),
    ("key", ConfKey::Etcd(|etcd| &mut etcd.key)),
    ("last_call_timeout", ConfKey::PositiveSeconds(|t| &mut t.last_call)),
    ("node_unit", ConfKey::NodeUnit),
    ("protocol", ConfKey::Etcd(|etcd| &mut etcd.protocol)),
    ("read_timeout", ConfKey::NotNeeded),
    ("shrink_timeout", ConfKey::Seconds(|t| &mut t.shrink)),
    ("ssl_cert", ConfKey::Etcd(|etcd| &mut etcd.certificate)),
    ("ssl_cert_key", ConfKey::Etcd(|etcd| &mut etcd.key)),
    ("store_port", ConfKey::StorePort),
    ("store_type", ConfKey::StoreType),
    ("timeout", ConfKey::Timeout),
    ("use_libuv", ConfKey::NotNeeded),
    ("voters", ConfKey::Voters),
];

/// The meaning of a key.
#[derive(Clone, Copy)]
enum ConfKey {
    DiscoverInterface,
    DiscoverTtl,
    /// A value for etcd.
    Etcd(fn(&mut EtcdConf) -> &mut Option<String>),
    IsHost,
    NodeUnit,
    /// A key of torchrun for something that ragent does not have.
    NotNeeded,
    PositiveSeconds(fn(&mut Timeouts) -> &mut Duration),
    Seconds(fn(&mut Timeouts) -> &mut Duration),
    StorePort,
    StoreType,
    /// The timeout with `static` and etcd.
    Timeout,
    Voters,
}

impl RdzvConf {
    /// Reads `key=value,key=value`; white space around either is ignored. So are quotes around the whole,
    /// which arguments in YAML keep and a shell would remove.
    pub(super) fn parse(text: &str) -> Result<Self, UsageError> {
        let mut conf = Self::default();
        let text = text.trim();
        let unquoted =
            ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
        let text = unquoted.unwrap_or(text);
        for entry in text.split(',').filter(|_| !text.trim().is_empty()) {
            let pair = entry.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            let Some((key, value)) =
                pair.filter(|(key, value)| !key.is_empty() && !value.is_empty())
            else {
                return Err(UsageError::new(format!(
                    "`--rdzv-conf` has the entry `{entry}`, which is not `key=value`"
                )));
            };
            let Some((_, meaning)) = KEYS.iter().find(|(known, _)| *known == key) else {
                let known = KEYS.map(|(key, _)| key).join(", ");
                return Err(UsageError::new(format!("`--rdzv-conf` has the unknown key `{key}`"))
                    .with_hint(format!("the keys are {known}")));
            };
            conf.has_join_timeout |= key == "join_timeout";
            conf.set(key, value, *meaning)?;
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str, meaning: ConfKey) -> Result<(), UsageError> {
        let wrong = |expected| {
            UsageError::new(format!("`--rdzv-conf` has `{key}={value}`, which is not {expected}"))
        };
        match meaning {
            ConfKey::NotNeeded => {}
            ConfKey::DiscoverInterface => self.discover_interface = Some(value.to_owned()),
            ConfKey::DiscoverTtl => {
                let ttl = value.parse().ok().filter(|ttl| (1..=MAX_TTL).contains(ttl));
                self.discover_ttl = Some(ttl.ok_or_else(|| wrong("a number from 1 to 32"))?);
            }
            ConfKey::Etcd(field) => *field(&mut self.etcd) = Some(value.to_owned()),
            ConfKey::IsHost => {
                self.is_host = Some(boolean(value).ok_or_else(|| wrong("true or false"))?);
            }
            ConfKey::NodeUnit => {
                self.node_unit = Some(value.parse().map_err(|_| wrong("a positive number"))?);
            }
            ConfKey::Seconds(field) => {
                *field(&mut self.timeouts) = seconds(value).ok_or_else(|| wrong(SECONDS))?;
            }
            ConfKey::PositiveSeconds(field) => {
                let duration = seconds(value).filter(|duration| !duration.is_zero());
                *field(&mut self.timeouts) = duration.ok_or_else(|| wrong(POSITIVE))?;
            }
            ConfKey::StorePort => {
                self.store_ports =
                    store_ports(value).ok_or_else(|| wrong("a port N or a range of ports N-M"))?;
            }
            ConfKey::StoreType if value == "tcp" => {}
            ConfKey::StoreType => return Err(wrong("tcp")),
            ConfKey::Timeout => {
                let timeout = seconds(value).filter(|duration| !duration.is_zero());
                self.timeout = Some(timeout.ok_or_else(|| wrong(POSITIVE))?);
            }
            ConfKey::Voters => {
                let count = value.parse().ok().and_then(VoterCount::of);
                let hint = "an even number of voters tolerates no more losses than the odd number below \
                            it, and 5 tolerate 2";
                let count = count.ok_or_else(|| wrong("1, 3 or 5").with_hint(hint))?;
                self.voters = Some(count);
            }
        }
        Ok(())
    }
}

/// More than the routers between any two hosts of one organisation.
const MAX_TTL: u32 = 32;
const SECONDS: &str = "seconds, zero or more";
const POSITIVE: &str = "seconds, more than zero";
/// A year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

fn seconds(text: &str) -> Option<Duration> {
    let seconds = argument::seconds(text)?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| {
        // The protocol carries milliseconds; all nodes must round to the same number.
        Duration::from_millis((seconds * 1000.0).round() as u64)
    })
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Some(true),
        "0" | "false" | "f" | "no" | "n" => Some(false),
        _ => None,
    }
}

fn store_ports(text: &str) -> Option<StorePorts> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<NonZeroU16>().ok();
    let (first, last) = (port(first)?, port(last)?);
    let count = last.get().checked_sub(first.get())?;
    (count < limits::MAX_STORE_PORTS).then_some(StorePorts::Range { first, last })
}
