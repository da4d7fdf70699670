//! Hands the state of a flow over to the keeper, which completes the copying if the agent is killed.

use std::{io, os::fd::OwnedFd, time::Instant};

use serde::{Deserialize, Serialize};

use super::{Flow, FlowRoute, ShownLines};
use crate::{
    output::{
        begun_line::BegunLine,
        limits,
        lines::Cutter,
        pipes::{CopyProgress, Pipe, Tools},
        streams::Stream,
    },
    sys::clock,
};

/// The description of a flow, for the keeper.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FlowOrder {
    route: RouteName,
    prefix: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum RouteName {
    File,
    Console,
    Lines,
    LinesAndFile,
}

impl Flow {
    /// Returns what the keeper needs to continue this flow: see [`Flow::adopt`].
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a descriptor.
    pub(in crate::output) fn hand_over(&self) -> io::Result<(FlowOrder, Vec<OwnedFd>)> {
        let mut fds = vec![self.source.try_clone()?];
        let (route, prefix) = match &self.route {
            FlowRoute::File(file) => {
                fds.push(file.try_clone()?);
                (RouteName::File, Vec::new())
            }
            FlowRoute::Console(console) => {
                fds.push(console.try_clone()?);
                (RouteName::Console, Vec::new())
            }
            FlowRoute::Lines(lines) => {
                fds.push(lines.console.try_clone()?);
                fds.push(lines.begun.try_clone()?);
                let name = if let Some(file) = &lines.file {
                    fds.push(file.try_clone()?);
                    RouteName::LinesAndFile
                } else {
                    RouteName::Lines
                };
                (name, lines.cutter.prefix.clone())
            }
        };
        Ok((FlowOrder { route, prefix }, fds))
    }

    /// Takes over a flow of an agent that may die later; `fds` has the descriptors of
    /// `Flow::hand_over`.
    pub fn adopt(order: &FlowOrder, fds: &mut impl Iterator<Item = OwnedFd>) -> Option<HandedOver> {
        let count = match order.route {
            RouteName::File | RouteName::Console => 2,
            RouteName::Lines => 3,
            RouteName::LinesAndFile => 4,
        };
        let fds: Vec<OwnedFd> = fds.take(count).collect();
        (fds.len() == count).then(|| HandedOver { order: order.clone(), fds })
    }
}

/// A flow that its agent copies as long as that lives.
#[derive(Debug)]
pub struct HandedOver {
    order: FlowOrder,
    fds: Vec<OwnedFd>,
}

impl HandedOver {
    /// Continues where the agent was killed.
    fn resume(self, deadline: Instant) -> Option<Flow> {
        let mut fds = self.fds.into_iter();
        let mut next = || fds.next();
        let source = next()?;
        let target = next()?;
        let route = match self.order.route {
            RouteName::File => FlowRoute::File(target),
            RouteName::Console => FlowRoute::Console(target),
            RouteName::Lines | RouteName::LinesAndFile => {
                let begun = BegunLine::from(next()?);
                let (prefix, choice) = (self.order.prefix, None);
                let cutter = Cutter { prefix, choice, begun: begun.read() };
                // This process has no logs that share the console.
                let (console, stream) = (target, Stream::Stdout);
                let file = next();
                FlowRoute::Lines(Box::new(ShownLines { console, stream, cutter, begun, file }))
            }
        };
        let mut tools = Tools::new(Pipe::new(limits::CONSOLE_CHUNK).ok()?).ok()?;
        tools.deadline = Some(deadline);
        let (progress, chosen) = (CopyProgress::More, Vec::new());
        Some(Flow { source, route, tail: None, progress, chosen, tools })
    }
}

/// Copies the remaining output of all flows; their agent and all writers are gone.
pub fn finish_all(flows: Vec<HandedOver>, deadline: Instant) {
    let mut flows: Vec<Flow> = flows.into_iter().filter_map(|flow| flow.resume(deadline)).collect();
    for flow in &mut flows {
        // All writers are dead, so an empty pipe stays empty. Errors drop output, so the loop ends,
        // at the latest at the deadline.
        while flow.progress == CopyProgress::More && clock::now_blocking() < deadline {
            let _ = flow.copy_to_file();
            let _ = flow.copy_to_console();
            if flow.progress != CopyProgress::More {
                break;
            }
        }
        if let FlowRoute::Lines(lines) = &mut flow.route {
            let _ = lines.show(CopyProgress::End, &flow.source, &mut flow.tools, &mut flow.chosen);
        }
    }
}
