//! Puts load on a server of the `TCPStore` protocol, and prints a line of JSON per operation.
//!
//! It has one thread, and one outstanding request per connection, as torch's clients do. A `SET` has no answer, so it is sent together with
//! a `PING`, whose echo counts.
//!
//! - `connect`: the time until all connections are made and greeted
//! - `init`: the time until each has counted itself as well, as torch's clients do
//! - `wait-fanout`: the time from a `SET` until all clients that waited for the key are answered
//! - `storm`: the latency of one client while all others connect
//!
//! `benches/store.py` runs it against several servers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ragent_benches::clients::LoadClients;
use ragent_benches::{cpu_time, now, waiting_time};
use ragent_store::wire::{GREETING, Query};
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct StoreLoadArgs {
    /// The address of the store.
    address: SocketAddr,
    /// The operations, separated by commas. Consecutive exchanges share their connections.
    #[arg(value_delimiter = ',', required = true)]
    ops: Vec<Op>,
    /// Number of connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds per operation.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The process whose CPU time is measured.
    #[arg(long)]
    server_pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Op {
    Add,
    Check,
    Connect,
    Get,
    Init,
    Set,
    Storm,
    WaitFanout,
}

/// A request that a client repeats, and the length of its answer.
struct RepeatedRequest {
    request: Vec<u8>,
    answer_len: usize,
}

fn main() -> Result<()> {
    let args = StoreLoadArgs::parse();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let mut clients = None;
    for op in &args.ops {
        let (start, waited) = (now(), waited(&args)?);
        let mut report = match op {
            Op::Connect => rounds(&args, "connect", |args| connect_all(args).map(Sample::all))?,
            Op::Init => rounds(&args, "init", |args| init(args).map(Sample::all))?,
            Op::WaitFanout => rounds(&args, "wait-fanout", wait_fanout)?,
            Op::Storm => storm(&args)?,
            Op::Add | Op::Check | Op::Get | Op::Set => {
                let clients = match &mut clients {
                    Some(clients) => clients,
                    none => none.insert(greeted(args.address, args.connections)?),
                };
                exchanges(&args, *op, clients)?
            }
        };
        let waited = self::waited(&args)? - waited;
        report["disturbed"] = (waited.as_secs_f64() / (now() - start).as_secs_f64()).into();
        writeln!(std::io::stdout(), "{report}")?;
    }
    Ok(())
}

/// Returns the time that this process and the server were runnable while others ran.
fn waited(args: &StoreLoadArgs) -> Result<Duration> {
    let of_server = args.server_pid.map(waiting_time).transpose()?;
    Ok(waiting_time(std::process::id())? + of_server.unwrap_or_default())
}

/// Repeats one exchange on every connection until the time is over.
fn exchanges(args: &StoreLoadArgs, op: Op, clients: &mut LoadClients) -> Result<Value> {
    // Stores the key that is read, before the measurement.
    greeted(args.address, 1)?.exchange(&[&set(KEY, &[b'v'; VALUE_LEN])?[..], &PING].concat(), 4)?;

    let RepeatedRequest { request, answer_len } = RepeatedRequest::new(op)?;
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut sent = vec![now(); clients.len()];
    let mut active = clients.len();
    let cpu_before = args.server_pid.map(cpu_time).transpose()?;
    let start = now();
    let end = start + Duration::from_secs_f64(args.seconds);
    for (n, sent) in sent.iter_mut().enumerate() {
        *sent = now();
        clients.send(n, &request)?;
    }
    clients.each_answer(answer_len, |clients, n| {
        let answered = now();
        latencies.record((answered - sent[n]).as_nanos() as u64)?;
        if answered < end {
            sent[n] = answered;
            clients.send(n, &request)?;
        } else {
            active -= 1;
        }
        Ok(active > 0)
    })?;
    let seconds = (now() - start).as_secs_f64();
    let cpu = match (args.server_pid, cpu_before) {
        (Some(pid), Some(before)) => Some(cpu_time(pid)? - before),
        _ => None,
    };
    Ok(json!({
        "op": format!("{op:?}").to_lowercase(),
        "connections": args.connections,
        "ops_per_s": (latencies.len() as f64 / seconds).round(),
        "p50_us": us(latencies.value_at_quantile(0.5)),
        "p99_us": us(latencies.value_at_quantile(0.99)),
        "server_cpu_us": cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / latencies.len() as f64),
    }))
}

impl RepeatedRequest {
    fn new(op: Op) -> Result<Self> {
        let mut request = Vec::new();
        let key = KEY;
        let answer_len = match op {
            Op::Get => {
                Query::Get { key }.encode(&mut request)?;
                8 + VALUE_LEN
            }
            Op::Add => {
                Query::Add { key: b"/bench/counter", delta: 1 }.encode(&mut request)?;
                8
            }
            Op::Check => {
                Query::Check { keys: vec![key] }.encode(&mut request)?;
                1
            }
            Op::Set | Op::Connect | Op::Init | Op::Storm | Op::WaitFanout => {
                request = [&set(key, &[b'v'; VALUE_LEN])?[..], &PING].concat();
                4
            }
        };
        Ok(Self { request, answer_len })
    }
}

/// The duration of a round, and the CPU time of the server in it.
struct Sample {
    taken: Duration,
    /// CPU time of the server, if only part of the round counts.
    cpu: Option<Duration>,
}

impl Sample {
    fn all(taken: Duration) -> Self {
        Self { taken, cpu: None }
    }
}

/// Repeats a round until the time is over.
fn rounds(
    args: &StoreLoadArgs,
    op: &str,
    round: impl Fn(&StoreLoadArgs) -> Result<Sample>,
) -> Result<Value> {
    let end = now() + Duration::from_secs_f64(args.seconds);
    let mut samples = vec![round(args)?];
    while now() < end {
        samples.push(round(args)?);
    }
    samples.sort_unstable_by_key(|sample| sample.taken);
    let median = &samples[samples.len() / 2];
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(json!({
        "op": op,
        "connections": args.connections,
        "rounds": samples.len(),
        "best_ms": ms(samples[0].taken),
        "median_ms": ms(median.taken),
        "server_cpu_us": median.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / args.connections as f64),
    }))
}

fn connect_all(args: &StoreLoadArgs) -> Result<Duration> {
    let start = now();
    let clients = greeted(args.address, args.connections)?;
    let taken = now() - start;
    drop(clients);
    Ok(taken)
}

fn init(args: &StoreLoadArgs) -> Result<Duration> {
    let mut count = Vec::new();
    Query::Add { key: b"init/", delta: 1 }.encode(&mut count)?;
    let start = now();
    let mut clients = greeted(args.address, args.connections)?;
    clients.exchange(&count, 8)?;
    Ok(now() - start)
}

fn wait_fanout(args: &StoreLoadArgs) -> Result<Sample> {
    let mut clients = greeted(args.address, args.connections)?;
    let setter = greeted(args.address, 1)?;
    // Each round has its own key, also across processes.
    let key = format!("/bench/fanout/{:?}", now());
    let mut request = Vec::new();
    Query::Wait { keys: vec![key.as_bytes()] }.encode(&mut request)?;
    // The echo confirms that the wait before it was received.
    request.extend_from_slice(&PING);
    clients.exchange(&request, 4)?;
    let cpu_before = args.server_pid.map(cpu_time).transpose()?;
    let start = now();
    setter.send(0, &set(key.as_bytes(), b"1")?)?;
    clients.await_answers(1)?;
    let taken = now() - start;
    let cpu = match (args.server_pid, cpu_before) {
        (Some(pid), Some(before)) => Some(cpu_time(pid)? - before),
        _ => None,
    };
    Ok(Sample { taken, cpu })
}

/// Sends pings on one connection, first alone, then while another process makes the other
/// connections.
fn storm(args: &StoreLoadArgs) -> Result<Value> {
    let mut client = TcpStream::connect(args.address)?;
    client.set_nodelay(true)?;
    client.write_all(&[&GREETING[..], &PING].concat())?;
    client.read_exact(&mut [0; 4])?;
    let calm_end = now() + Duration::from_secs_f64(args.seconds);
    let calm = pings(&mut client, |sent| Ok(sent < calm_end))?;
    let mut others = Command::new(std::env::current_exe()?)
        .args([&args.address.to_string(), "connect", "--seconds", "0"])
        .args(["--connections", &args.connections.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let storm = pings(&mut client, |_| Ok(others.try_wait()?.is_none()))?;
    let report: Value = serde_json::from_reader(others.stdout.take().context("a pipe")?)?;
    ensure!(others.wait()?.success(), "the others failed to connect");
    Ok(json!({
        "op": "storm",
        "connections": args.connections,
        "storm_ms": report["median_ms"],
        "calm_p50_us": us(calm.value_at_quantile(0.5)),
        "calm_p99_us": us(calm.value_at_quantile(0.99)),
        "storm_p50_us": us(storm.value_at_quantile(0.5)),
        "storm_p99_us": us(storm.value_at_quantile(0.99)),
        "storm_worst_us": us(storm.max()),
        "storm_samples": storm.len(),
    }))
}

fn pings(
    client: &mut TcpStream,
    mut goes_on: impl FnMut(Instant) -> Result<bool>,
) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    let mut sent = now();
    while goes_on(sent)? {
        sent = now();
        client.write_all(&PING)?;
        client.read_exact(&mut [0; 4])?;
        latencies.record((now() - sent).as_nanos() as u64)?;
    }
    Ok(latencies)
}

fn greeted(address: SocketAddr, connections: usize) -> Result<LoadClients> {
    LoadClients::connect(address, connections, &[&GREETING[..], &PING].concat(), 4)
}

fn set(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    Query::Set { key, value }.encode(&mut request)?;
    Ok(request)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

const KEY: &[u8] = b"/bench/key";
const VALUE_LEN: usize = 64;
const PING: [u8; 5] = *b"\x0dping";
