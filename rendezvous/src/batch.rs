//! Collects items for messages that are sent at intervals.

use std::{
    mem,
    time::{Duration, Instant},
};

/// Items for messages of at most `max` items. The first item is sent at once. Further items are
/// sent together at the end of the interval, or as soon as they fill a message.
#[derive(Debug)]
pub struct Batch<T> {
    max: usize,
    interval: Duration,
    waiting: Vec<T>,
    /// The end of the current interval.
    until: Option<Instant>,
}

impl<T> Batch<T> {
    /// Creates an empty batch.
    pub fn new(max: usize, interval: Duration) -> Self {
        Self { max, interval, waiting: Vec::new(), until: None }
    }

    /// Adds an item. Returns the items that must be sent now.
    pub fn add(&mut self, now: Instant, item: T) -> Vec<T> {
        self.waiting.push(item);
        if self.max <= self.waiting.len() || self.until.is_none_or(|until| until <= now) {
            return self.take(now);
        }
        Vec::new()
    }

    /// Returns the items that must be sent now.
    pub fn due(&mut self, now: Instant) -> Vec<T> {
        match self.poll_timeout() {
            Some(until) if until <= now => self.take(now),
            Some(_) | None => Vec::new(),
        }
    }

    /// Returns the time at which waiting items must be sent.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.until.filter(|_| !self.waiting.is_empty())
    }

    fn take(&mut self, now: Instant) -> Vec<T> {
        self.until = Some(now + self.interval);
        mem::take(&mut self.waiting)
    }
}
