//! Limits the connections that a listener accepts.
//!
//! Use a list of its own for connections that are not authenticated yet: they never replace one that is.

use std::net::IpAddr;

use tokio::task::{AbortHandle, Id};

/// Tasks of connections, oldest first. At a limit, the oldest of the same address is ended, or else the oldest of all.
#[derive(Debug)]
pub struct Connections {
    tasks: Vec<(IpAddr, AbortHandle)>,
    max: usize,
    max_per_address: usize,
}

impl Connections {
    /// Creates an empty list with a total limit and a limit per address.
    pub fn new(max: usize, max_per_address: usize) -> Self {
        Self { tasks: Vec::new(), max, max_per_address }
    }

    /// Adds the task of a connection from `ip`.
    pub fn add(&mut self, ip: IpAddr, task: AbortHandle) {
        self.tasks.retain(|(_, task)| !task.is_finished());
        let same = |(other, _): &&(IpAddr, AbortHandle)| *other == ip;
        let replaced = if self.tasks.iter().filter(same).count() >= self.max_per_address {
            self.tasks.iter().position(|(other, _)| *other == ip)
        } else {
            (self.tasks.len() >= self.max).then_some(0)
        };
        if let Some(replaced) = replaced {
            self.tasks.remove(replaced).1.abort();
        }
        self.tasks.push((ip, task));
    }

    /// Removes the task with this id, which continues; `None` if it was ended.
    pub fn take(&mut self, id: Id) -> Option<(IpAddr, AbortHandle)> {
        let index = self.tasks.iter().position(|(_, task)| task.id() == id)?;
        Some(self.tasks.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::JoinSet;

    use super::*;

    /// A new connection replaces one of the same address before one of another address.
    #[tokio::test]
    async fn oldest_of_the_same_address_is_replaced() {
        let mut running: JoinSet<()> = JoinSet::new();
        let mut connections = Connections::new(3, 2);
        let ip = |number: u8| IpAddr::from([10, 0, 0, number]);
        let mut add = |connections: &mut Connections, number| {
            let task = running.spawn(pending());
            let id = task.id();
            connections.add(ip(number), task);
            id
        };
        let of_other = add(&mut connections, 9);
        let first = add(&mut connections, 1);
        let second = add(&mut connections, 1);
        let third = add(&mut connections, 1);
        let present: Vec<Id> = connections.tasks.iter().map(|(_, task)| task.id()).collect();
        assert_eq!(present, [of_other, second, third]);
        assert!(connections.take(first).is_none());
        let fourth = add(&mut connections, 2);
        assert!(connections.take(of_other).is_none(), "the oldest of all");
        assert_eq!(connections.take(second).map(|(ip, _)| ip), Some(ip(1)));
        let _fifth = add(&mut connections, 3);
        assert!(connections.take(fourth).is_some(), "there was room");
    }
}
