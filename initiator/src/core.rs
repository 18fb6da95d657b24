//! What all controllers of a host share: the core's ring, RNIC and buffers, and the way back to the caller.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ringfab_fabric::rdma::{QueuePairId, Rnic};
use ringfab_memory::Pool;
use ringfab_reactor::{MailboxSender, Reactor, Time, Token};

use crate::command::{Command, Direction, Owner};
use crate::error::IoError;
use crate::reconnect::Random;
use crate::request::{AdminDone, ControllerId, HostEvent, IoDone};

/// The shared parts, lent to a controller while it acts.
pub(crate) struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) rnic: Rnic,
    pub(crate) pool: Pool,
    pub(crate) events: VecDeque<HostEvent>,
    pub(crate) routes: Routes,
    pub(crate) random: Random,
    pub(crate) resolver: MailboxSender<Resolved>,
}

/// The answer of a resolver thread.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) controller: ControllerId,
    /// Which of the controller's questions it answers.
    pub(crate) question: u32,
    pub(crate) result: Result<Vec<SocketAddr>, String>,
}

/// Owner number of the controllers' timers.
pub(crate) const OWNER_TIMERS: u8 = 0;
/// Owner number of the RNIC.
pub(crate) const OWNER_RNIC: u8 = 1;

impl Core {
    /// The time of this turn.
    pub(crate) fn now(&self) -> Time {
        self.reactor.now()
    }

    /// Tells the submitter of a command that it has ended, and gives its memory back.
    pub(crate) fn done(
        &mut self,
        controller: ControllerId,
        command: Command,
        result: Result<ringfab_spec::CompletionEntry, IoError>,
    ) {
        let (buffer, source) = match (command.direction, command.memory) {
            // The RNIC lets go of it before it reports the response, or the end of the connection.
            (Direction::ToHost, Some(lease)) => (lease.into_unique().ok(), None),
            (_, memory) => (None, memory),
        };
        let event = match command.owner {
            Owner::Io(tag) => {
                HostEvent::IoDone(IoDone { controller, tag, result: result.map(drop), buffer, source })
            }
            Owner::Admin(tag) => HostEvent::AdminDone(AdminDone { controller, tag, result, buffer }),
            Owner::Sequence | Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => return,
        };
        self.events.push_back(event);
    }
}

/// Which controller and queue an event of the RNIC is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    queue_pair: QueuePairId,
    /// Index of the controller.
    pub(crate) controller: u32,
    /// Queue identifier, zero for the admin queue.
    pub(crate) qid: u16,
}

/// Routes by queue pair; the RNIC's indices are small and dense.
#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<Option<Route>>);

impl Routes {
    pub(crate) fn add(&mut self, queue_pair: QueuePairId, controller: ControllerId, qid: u16) {
        let index = queue_pair.index as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(Route { queue_pair, controller: controller.index, qid });
    }

    pub(crate) fn get(&self, queue_pair: QueuePairId) -> Option<Route> {
        let route = *self.0.get(queue_pair.index as usize)?;
        route.filter(|route| route.queue_pair == queue_pair)
    }

    pub(crate) fn remove(&mut self, queue_pair: QueuePairId) {
        if self.get(queue_pair).is_some() {
            self.0[queue_pair.index as usize] = None;
        }
    }
}

/// The token of a controller's timer.
pub(crate) fn timer_token(controller: ControllerId) -> Token {
    Token::new(OWNER_TIMERS, 0, controller.generation as u16, controller.index)
}
