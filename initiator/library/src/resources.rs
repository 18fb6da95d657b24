//! What all controllers of a host share: the core's ring, transports and buffers, and the way back to the caller.

use ringfab_base::SplitMix64;
use ringfab_fabric::Events;
use ringfab_memory::Pool;
use ringfab_reactor::{Reactor, Time, Token};
use ringfab_spec::CompletionEntry;

use crate::command::{Command, CommandPool, Owner};
use crate::error::IoError;
use crate::messages::Mailbox;
use crate::request::{AdminDone, ControllerId, HostEvent, IoDone, PathHandle, PathId};
use crate::transport::{Endpoint, Transports};

/// The shared parts, lent to a controller while it acts.
pub(crate) struct Resources {
    pub(crate) reactor: Reactor,
    pub(crate) transports: Transports,
    pub(crate) pool: Pool,
    pub(crate) events: Events<HostEvent>,
    /// I/O commands that were taken and have not ended.
    pub(crate) io_outstanding: usize,
    pub(crate) routes: Routes,
    pub(crate) commands: CommandPool,
    pub(crate) random: SplitMix64,
    /// For other threads that have something to tell this host.
    pub(crate) mailbox: Mailbox,
    /// Whether slow work has threads of its own.
    pub(crate) threads: bool,
}

/// Owner number of the controllers' timers.
pub(crate) const OWNER_TIMERS: u8 = 0;
/// Owner number of the RNIC.
pub(crate) const OWNER_RNIC: u8 = 1;
/// Owner number of NVMe/TCP.
pub(crate) const OWNER_TCP: u8 = 2;

impl Resources {
    /// The time of this turn.
    pub(crate) fn now(&self) -> Time {
        self.reactor.now()
    }

    /// Tells the submitter of a command that it has ended, and gives its memory back.
    pub(crate) fn done(
        &mut self,
        controller: ControllerId,
        mut command: Box<Command>,
        result: Result<&CompletionEntry, IoError>,
    ) {
        let (buffer, source) = match (command.direction, command.memory.take()) {
            // The transport lets go of it before it reports the response, or the end of the connection.
            (direction, Some(shared_buffer)) if direction.is_to_host() => {
                (shared_buffer.into_unique().ok(), None)
            }
            (_, memory) => (None, memory),
        };
        match command.owner {
            Owner::Io(tag) => {
                self.io_outstanding -= 1;
                self.commands.keep(command);
                let result = result.map(drop);
                let done = move || IoDone { controller, tag, result, buffer, source };
                self.events.push_with(move || HostEvent::IoDone(done()));
            }
            Owner::Admin(tag) => {
                let (result, received) = (result.copied(), command.received);
                let done = move || AdminDone { controller, tag, result, buffer, received };
                self.events.push_with(move || HostEvent::AdminDone(done()));
            }
            Owner::Sequence | Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => {}
            Owner::Reset(_) | Owner::ResetLog | Owner::LostHostLog => {}
        }
    }
}

/// Which path and queue an event of a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    endpoint: Endpoint,
    /// Index of the controller.
    pub(crate) controller: u32,
    /// Which of the controller's paths.
    pub(crate) path: PathId,
    /// Number of the queue among those of this engine, zero for the admin queue.
    pub(crate) queue: u16,
}

/// Routes by connection.
#[derive(Debug, Default)]
pub(crate) struct Routes([Vec<Option<Route>>; Endpoint::KINDS]);

impl Routes {
    pub(crate) fn add(&mut self, endpoint: Endpoint, of: PathHandle, queue: u16) {
        let (kind, index) = endpoint.place();
        let routes = &mut self.0[kind];
        if routes.len() <= index {
            routes.resize(index + 1, None);
        }
        routes[index] = Some(Route { endpoint, controller: of.controller.0.index, path: of.path, queue });
    }

    pub(crate) fn get(&self, endpoint: Endpoint) -> Option<Route> {
        let (kind, index) = endpoint.place();
        let route = *self.0[kind].get(index)?;
        route.filter(|route| route.endpoint == endpoint)
    }

    pub(crate) fn remove(&mut self, endpoint: Endpoint) {
        if self.get(endpoint).is_some() {
            let (kind, index) = endpoint.place();
            self.0[kind][index] = None;
        }
    }
}

/// The token of a controller's timer.
pub(crate) fn timer_token(controller: ControllerId) -> Token {
    Token::new(OWNER_TIMERS, 0, controller.0.generation_low(), controller.0.index)
}
