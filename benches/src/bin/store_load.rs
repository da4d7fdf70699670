//! Puts load on a store that speaks the `TCPStore` protocol, and prints a line of JSON for each kind.
//!
//! One thread, and one request outstanding per connection, as with torch's clients. A `SET` has no
//! answer, so it is sent together with a `PING`, and their echo counts. `connect` measures how long
//! it takes until all connections are made and greeted; `wait-fanout` how long from a `SET` until
//! everyone who waited for the key has been told. `benches/store.py` runs it against two servers.

use std::io::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use ragent_benches::{cpu_time, now};
use ragent_store::wire::{GREETING, Query};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

#[derive(Debug, Parser)]
struct Args {
    /// Where the store listens.
    address: SocketAddr,
    /// What to do; several exchanges, by commas, one after the other on the same connections.
    #[arg(value_delimiter = ',', required = true)]
    ops: Vec<Op>,
    /// On how many connections at a time.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// For how long.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Of which process to measure the CPU time.
    #[arg(long)]
    server_pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Op {
    Add,
    Check,
    Connect,
    Get,
    Set,
    WaitFanout,
}

/// Bytes that a client sends again and again, and how many it gets for them.
struct Exchange {
    request: Vec<u8>,
    answer_len: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    LocalSet::new().run_until(run(&args)).await
}

async fn run(args: &Args) -> Result<()> {
    let mut clients = Vec::new();
    for op in &args.ops {
        let report = match op {
            Op::Connect => rounds(args, "connect", connect_all).await?,
            Op::WaitFanout => rounds(args, "wait-fanout", wait_fanout).await?,
            Op::Add | Op::Check | Op::Get | Op::Set => {
                if clients.is_empty() {
                    clients = greeted(args.address, args.connections).await?;
                }
                exchanges(args, *op, &mut clients).await?
            }
        };
        writeln!(std::io::stdout(), "{report}")?;
    }
    Ok(())
}

/// Repeats one exchange on every connection until the time is over.
async fn exchanges(args: &Args, op: Op, clients: &mut Vec<TcpStream>) -> Result<Value> {
    // Before the clock runs: the key that is read.
    let key = set(KEY, &[b'v'; VALUE_LEN])?;
    clients[0].write_all(&[&key[..], &PING].concat()).await?;
    clients[0].read_exact(&mut [0; 4]).await?;

    let exchange = Rc::new(Exchange::new(op)?);
    let cpu_before = args.server_pid.map(cpu_time).transpose()?;
    let start = now();
    let end = start + Duration::from_secs_f64(args.seconds);
    let mut tasks = JoinSet::new();
    for client in clients.drain(..) {
        tasks.spawn_local(repeat(client, Rc::clone(&exchange), end));
    }
    let mut latencies = Histogram::<u64>::new(3)?;
    while let Some(of_one) = tasks.join_next().await {
        let (client, of_one) = of_one??;
        latencies.add(of_one)?;
        clients.push(client);
    }
    let seconds = (now() - start).as_secs_f64();
    let cpu = match (args.server_pid, cpu_before) {
        (Some(pid), Some(before)) => Some(cpu_time(pid)? - before),
        _ => None,
    };
    let us = |ns: u64| ns as f64 / 1e3;
    Ok(json!({
        "op": format!("{op:?}").to_lowercase(),
        "connections": args.connections,
        "ops_per_s": (latencies.len() as f64 / seconds).round(),
        "p50_us": us(latencies.value_at_quantile(0.5)),
        "p99_us": us(latencies.value_at_quantile(0.99)),
        "server_cpu_us": cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / latencies.len() as f64),
    }))
}

impl Exchange {
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
            Op::Set | Op::Connect | Op::WaitFanout => {
                request = [&set(key, &[b'v'; VALUE_LEN])?[..], &PING].concat();
                4
            }
        };
        Ok(Self { request, answer_len })
    }
}

async fn repeat(
    mut client: TcpStream,
    exchange: Rc<Exchange>,
    end: Instant,
) -> Result<(TcpStream, Histogram<u64>)> {
    let mut latencies = Histogram::new(3)?;
    let mut answer = vec![0; exchange.answer_len];
    let mut sent = now();
    while sent < end {
        client.write_all(&exchange.request).await?;
        client.read_exact(&mut answer).await?;
        let answered = now();
        latencies.record((answered - sent).as_nanos() as u64)?;
        sent = answered;
    }
    Ok((client, latencies))
}

/// Repeats what takes one stretch of time until the time is over.
async fn rounds(
    args: &Args,
    op: &str,
    round: impl AsyncFn(SocketAddr, usize) -> Result<Duration>,
) -> Result<Value> {
    let end = now() + Duration::from_secs_f64(args.seconds);
    let mut taken = vec![round(args.address, args.connections).await?];
    while now() < end {
        taken.push(round(args.address, args.connections).await?);
    }
    taken.sort_unstable();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(json!({
        "op": op,
        "connections": args.connections,
        "rounds": taken.len(),
        "best_ms": ms(taken[0]),
        "median_ms": ms(taken[taken.len() / 2]),
    }))
}

async fn connect_all(address: SocketAddr, connections: usize) -> Result<Duration> {
    let start = now();
    let clients = greeted(address, connections).await?;
    let taken = now() - start;
    drop(clients);
    Ok(taken)
}

async fn wait_fanout(address: SocketAddr, connections: usize) -> Result<Duration> {
    let mut clients = greeted(address, connections).await?;
    let mut setter = greeted(address, 1).await?.remove(0);
    let key = format!("/bench/fanout/{}", setter.local_addr()?);
    let mut request = Vec::new();
    Query::Wait { keys: vec![key.as_bytes()] }.encode(&mut request)?;
    // The echo says that the wait before it was taken note of.
    request.extend_from_slice(&PING);
    for client in &mut clients {
        client.write_all(&request).await?;
    }
    for client in &mut clients {
        let mut echo = [0; 4];
        client.read_exact(&mut echo).await?;
        ensure!(echo == PING[1..], "a wait for an unused key is over at once");
    }
    let start = now();
    setter.write_all(&set(key.as_bytes(), b"1")?).await?;
    for client in &mut clients {
        ensure!(client.read_u8().await? == 0, "a wait is answered with 0");
    }
    Ok(now() - start)
}

async fn greeted(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>> {
    let mut greeting = JoinSet::new();
    for _ in 0..connections {
        greeting.spawn_local(async move {
            let mut client = TcpStream::connect(address).await.context("failed to connect")?;
            client.set_nodelay(true)?;
            // Closing by reset leaves no port in TIME_WAIT; else, after some rounds, looking for a
            // free port would be what is measured.
            client.set_zero_linger()?;
            client.write_all(&[&GREETING[..], &PING].concat()).await?;
            client.read_exact(&mut [0; 4]).await.context("failed to greet")?;
            anyhow::Ok(client)
        });
    }
    greeting.join_all().await.into_iter().collect()
}

fn set(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    Query::Set { key, value }.encode(&mut request)?;
    Ok(request)
}

const KEY: &[u8] = b"/bench/key";
const VALUE_LEN: usize = 64;
const PING: [u8; 5] = *b"\x0dping";
