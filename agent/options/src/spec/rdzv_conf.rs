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

/// All keys, each with the function that reads its value; the error for an unknown key lists them.
const KEYS: [(&str, Read); 27] = [
    ("ca_cert", |conf, value| put(&mut conf.etcd.authorities, Ok(Some(value.into())))),
    ("cacert", |conf, value| put(&mut conf.etcd.authorities, Ok(Some(value.into())))),
    ("cas_backoff_max_seconds", NOT_NEEDED),
    ("cert", |conf, value| put(&mut conf.etcd.certificate, Ok(Some(value.into())))),
    ("close_timeout", NOT_NEEDED),
    ("discover_interface", |conf, value| put(&mut conf.discover_interface, Ok(Some(value.into())))),
    ("discover_ttl", |conf, value| put(&mut conf.discover_ttl, ttl(value).map(Some))),
    ("etcd_prefix", |conf, value| put(&mut conf.etcd.prefix, Ok(Some(value.into())))),
    ("heartbeat_timeout", NOT_NEEDED),
    ("is_host", |conf, value| put(&mut conf.is_host, boolean(value).map(Some))),
    ("join_settle", |conf, value| put(&mut conf.timeouts.join_settle, seconds(value))),
    ("join_timeout", |conf, value| put(&mut conf.timeouts.join, positive(value))),
    ("keep_alive_interval", NOT_NEEDED),
    ("keep_alive_max_attempt", NOT_NEEDED),
    ("key", |conf, value| put(&mut conf.etcd.key, Ok(Some(value.into())))),
    ("last_call_timeout", |conf, value| put(&mut conf.timeouts.last_call, positive(value))),
    ("node_unit", |conf, value| put(&mut conf.node_unit, unit(value).map(Some))),
    ("protocol", |conf, value| put(&mut conf.etcd.protocol, Ok(Some(value.into())))),
    ("read_timeout", NOT_NEEDED),
    ("shrink_timeout", |conf, value| put(&mut conf.timeouts.shrink, seconds(value))),
    ("ssl_cert", |conf, value| put(&mut conf.etcd.certificate, Ok(Some(value.into())))),
    ("ssl_cert_key", |conf, value| put(&mut conf.etcd.key, Ok(Some(value.into())))),
    ("store_port", |conf, value| put(&mut conf.store_ports, store_ports(value))),
    ("store_type", |_, value| (value == "tcp").then_some(()).ok_or("tcp")),
    ("timeout", |conf, value| put(&mut conf.timeout, positive(value).map(Some))),
    ("use_libuv", NOT_NEEDED),
    ("voters", |conf, value| put(&mut conf.voters, voters(value).map(Some))),
];

/// Reads the value of a key. An error describes valid values.
type Read = fn(&mut RdzvConf, &str) -> Result<(), &'static str>;

/// Ignores a key of torchrun for something that ragent does not have.
const NOT_NEEDED: Read = |_, _| Ok(());

/// The hint for an invalid number of voters.
const VOTERS_HINT: &str = "an even number of voters tolerates no more losses than the odd number below \
                           it, and 5 tolerate 2";

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
            let Some((_, read)) = KEYS.iter().find(|(known, _)| *known == key) else {
                let known = KEYS.map(|(key, _)| key).join(", ");
                return Err(UsageError::new(format!("`--rdzv-conf` has the unknown key `{key}`"))
                    .with_hint(format!("the keys are {known}")));
            };
            conf.has_join_timeout |= key == "join_timeout";
            read(&mut conf, value).map_err(|expected| {
                let problem = format!("`--rdzv-conf` has `{key}={value}`, which is not {expected}");
                let error = UsageError::new(problem);
                if key == "voters" { error.with_hint(VOTERS_HINT) } else { error }
            })?;
        }
        Ok(conf)
    }
}

fn put<T>(field: &mut T, value: Result<T, &'static str>) -> Result<(), &'static str> {
    *field = value?;
    Ok(())
}

/// More than the routers between any two hosts of one organisation.
const MAX_TTL: u32 = 32;
/// A year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = argument::seconds(text).filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds));
    // The protocol carries milliseconds; all nodes must round to the same number.
    let duration = seconds.map(|seconds| Duration::from_millis((seconds * 1000.0).round() as u64));
    duration.ok_or("seconds, zero or more")
}

fn positive(text: &str) -> Result<Duration, &'static str> {
    let duration = seconds(text).ok().filter(|duration| !duration.is_zero());
    duration.ok_or("seconds, more than zero")
}

fn ttl(text: &str) -> Result<u32, &'static str> {
    let ttl = text.parse().ok().filter(|ttl| (1..=MAX_TTL).contains(ttl));
    ttl.ok_or("a number from 1 to 32")
}

fn unit(text: &str) -> Result<NonZeroU32, &'static str> {
    text.parse().map_err(|_| "a positive number")
}

fn voters(text: &str) -> Result<VoterCount, &'static str> {
    text.parse().ok().and_then(VoterCount::of).ok_or("1, 3 or 5")
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(true),
        "0" | "false" | "f" | "no" | "n" => Ok(false),
        _ => Err("true or false"),
    }
}

fn store_ports(text: &str) -> Result<StorePorts, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<NonZeroU16>().ok();
    let range = port(first).zip(port(last)).filter(|(first, last)| {
        let count = last.get().checked_sub(first.get());
        count.is_some_and(|count| count < limits::MAX_STORE_PORTS)
    });
    let range = range.map(|(first, last)| StorePorts::Range { first, last });
    range.ok_or("a port N or a range of ports N-M")
}
