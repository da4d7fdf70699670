//! Observes a job: readers of its page, a scraper of its metrics, and small requests whose times show how long the coordinator's thread is
//! busy.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime,
    task::JoinSet,
};

use crate::now;

/// Reads a page over HTTP. Returns the time until its last byte, and its body.
///
/// # Errors
///
/// Returns an error if the process at `address` does not answer with a page.
pub fn page(address: SocketAddr, path: &str) -> Result<(Duration, String)> {
    let start = now();
    let mut stream = TcpStream::connect(address)?;
    // In this version, the body ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let time = now() - start;
    let (head, body) = answer.split_once("\r\n\r\n").context("no header")?;
    anyhow::ensure!(head.contains(" 200 "), "{head}");
    Ok((time, body.to_owned()))
}

/// Observers of one job.
pub struct Observers {
    address: SocketAddr,
    /// The number of readers, and their thread.
    readers: (usize, JoinHandle<Result<()>>),
    is_over: Arc<AtomicBool>,
    /// The events that readers have received, and their size in bytes.
    events: Arc<[AtomicU64; 2]>,
    scraper: Option<Repeated<Scrape>>,
    requester: Repeated<Duration>,
    /// The counts of the coordinator's loop at the beginning.
    before: Vec<(f64, u64)>,
}

/// A thread that repeats an action until the sender is dropped, and returns the results.
type Repeated<T> = (mpsc::Sender<()>, JoinHandle<Result<Vec<T>>>);

/// The time and size of a scrape.
type Scrape = (Duration, usize);

/// The interval between two small requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);

impl Observers {
    /// Starts `readers` of the page of the job, a scrape at each interval, and small requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the coordinator has no metrics.
    pub fn start(
        address: SocketAddr,
        readers: usize,
        scrape_interval: Option<Duration>,
    ) -> Result<Self> {
        let before = loop_times(&page(address, "/metrics")?.1);
        let (is_over, events) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (over, counts) = (Arc::clone(&is_over), Arc::clone(&events));
        let reading = thread::spawn(move || read_all(readers, address, &over, &counts));
        let scraper = scrape_interval.map(|interval| {
            repeat(interval, move || {
                let (time, text) = page(address, "/metrics")?;
                Ok((time, text.len()))
            })
        });
        let requester = repeat(REQUEST_INTERVAL, move || Ok(page(address, "/v1/identity")?.0));
        Ok(Self {
            address,
            readers: (readers, reading),
            is_over,
            events,
            scraper,
            requester,
            before,
        })
    }

    /// Ends the observers, and reports what they have measured.
    ///
    /// # Errors
    ///
    /// Returns an error if one of them has failed.
    pub fn end(self) -> Result<Value> {
        let after = loop_times(&page(self.address, "/metrics")?.1);
        self.is_over.store(true, Ordering::Relaxed);
        let requests = join(self.requester)?;
        let scrapes = self.scraper.map(join).transpose()?.unwrap_or_default();
        let (readers, reading) = self.readers;
        reading.join().map_err(|_| anyhow::anyhow!("the readers have panicked"))??;
        let [events, bytes] = self.events.each_ref().map(|count| count.load(Ordering::Relaxed));
        let counts: Vec<(f64, u64)> = after
            .iter()
            .map(|(bound, count)| {
                let earlier = self.before.iter().find(|(other, _)| other == bound);
                (*bound, count - earlier.map_or(0, |(_, count)| *count))
            })
            .collect();
        let times: Vec<Duration> = scrapes.iter().map(|(time, _)| *time).collect();
        Ok(json!({
            "readers": readers,
            "events": events,
            "event_bytes": bytes.checked_div(events),
            "scrape_ms": milliseconds(&times),
            "scrape_bytes": scrapes.iter().map(|(_, len)| len).max(),
            "request_ms": milliseconds(&requests),
            "loop": {
                "inputs": counts.last().map(|(_, count)| count),
                "p50_below_ms": below_ms(&counts, 0.5),
                "p99_below_ms": below_ms(&counts, 0.99),
                "p999_below_ms": below_ms(&counts, 0.999),
            },
        }))
    }
}

/// Returns the median, the 99th percentile and the longest of the times, in milliseconds.
fn milliseconds(times: &[Duration]) -> Value {
    let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * quantile) as usize).copied()
    };
    json!({ "count": sorted.len(), "p50": at(0.5), "p99": at(0.99), "worst": at(1.0) })
}

/// Calls `act` at each interval until the sender is dropped.
fn repeat<T: Send + 'static>(
    interval: Duration,
    mut act: impl FnMut() -> Result<T> + Send + 'static,
) -> Repeated<T> {
    let (until, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut results = Vec::new();
        while over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            results.push(act()?);
        }
        Ok(results)
    });
    (until, thread)
}

fn join<T>((until, thread): (mpsc::Sender<()>, JoinHandle<Result<T>>)) -> Result<T> {
    drop(until);
    thread.join().map_err(|_| anyhow::anyhow!("an observer has panicked"))?
}

/// Returns the cumulative counts of the coordinator's loop, with the upper bound of each interval in seconds.
fn loop_times(metrics: &str) -> Vec<(f64, u64)> {
    let count = |line: &str| {
        let rest = line.strip_prefix("ragent_coordinator_loop_seconds_bucket{le=\"")?;
        let (bound, count) = rest.split_once("\"} ")?;
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
        Some((bound, count.parse().ok()?))
    };
    metrics.lines().filter_map(count).collect()
}

/// Returns the upper bound of the interval that has this quantile, in milliseconds.
fn below_ms(counts: &[(f64, u64)], quantile: f64) -> Option<f64> {
    let (_, all) = counts.last()?;
    let has = |(_, count): &&(f64, u64)| *count as f64 >= quantile * *all as f64;
    counts.iter().find(has).map(|(bound, _)| bound * 1e3)
}

/// Reads the events of the page with this number of readers.
fn read_all(
    readers: usize,
    address: SocketAddr,
    is_over: &Arc<AtomicBool>,
    events: &Arc<[AtomicU64; 2]>,
) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut all = JoinSet::new();
        for _ in 0..readers {
            all.spawn(read(address, Arc::clone(is_over), Arc::clone(events)));
        }
        while let Some(ended) = all.join_next().await {
            ended??;
        }
        Ok(())
    })
}

/// Reads the events of the page, as a browser does.
async fn read(
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    events: Arc<[AtomicU64; 2]>,
) -> Result<()> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET /v1/watch HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
    let mut part = vec![0; 1 << 16];
    let [count, bytes] = &*events;
    while !is_over.load(Ordering::Relaxed) {
        // There is an event about once a second.
        let length = stream.read(&mut part).await?;
        anyhow::ensure!(length > 0, "the events have ended");
        let ends = part[..length].windows(2).filter(|pair| pair == b"\n\n").count();
        count.fetch_add(ends.try_into()?, Ordering::Relaxed);
        bytes.fetch_add(length.try_into()?, Ordering::Relaxed);
    }
    Ok(())
}
