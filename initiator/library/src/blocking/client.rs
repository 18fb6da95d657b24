//! What runs on an engine's thread.

use std::io;
use std::sync::mpsc::sync_channel;

use ringfab_fabric::Events;
use ringfab_reactor::Wait;

use super::Controller;
use super::message::Message;
use crate::bytes::BlockWriter;
use crate::host::Host;
use crate::request::{ControllerId, HostEvent};

/// What runs on an engine's thread: a program's own loop, a front end beside the blocking handle, or the handle itself.
/// [`Host::run`] is the loop that calls it.
///
/// It must not wait: everything on this thread stands still meanwhile. It must not call the blocking handle for I/O. In
/// exchange, its own I/O goes from and to the engine's buffers without a copy and without another thread, and nobody
/// else has the engine while it is called.
pub trait EngineClient {
    /// Called before each turn of the host, to go on with what has happened.
    ///
    /// # Errors
    /// It cannot go on.
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn>;

    /// Something has happened: a command of its own has ended, the reactor has a completion for it, or the controller's
    /// state has changed. The client takes out of the event what it wants to keep, a buffer for instance; the rest is
    /// dropped where it lies. Beside the blocking handle, its tags are below [`TAG_END`].
    fn on_event(&mut self, event: &mut HostEvent, host: &mut Host, controller: ControllerId);
}

/// The tags of a client's commands beside the blocking handle are below this one; the others are the handle's own.
pub const TAG_END: u64 = 1 << 63;

/// What a client says of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do at once.
    Busy,
    /// It waits for an event, a completion or a wake-up.
    Idle,
    /// It has ended.
    Over,
}

/// Room for the events of a turn; it grows when more come at once.
const EVENTS_MIN: usize = 64;

impl Host {
    /// Runs a client on the calling thread until it is over.
    ///
    /// # Errors
    /// The client's, or that the ring is broken.
    pub fn run(&mut self, controller: ControllerId, client: &mut impl EngineClient) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MIN);
        loop {
            while self.exchange_events(&mut events) {
                while let Some(event) = events.next_slot() {
                    if let Some(event) = event {
                        client.on_event(event, self, controller);
                    }
                }
            }
            match client.turn(self, controller)? {
                Turn::Busy => self.turn(Wait::No)?,
                Turn::Idle => self.turn(Wait::Event)?,
                Turn::Over => return Ok(()),
            }
        }
    }
}

/// Makes a client on an engine's thread; `None` when there is to be none after all.
pub(super) type MakeClient = Box<dyn FnOnce(&mut Host, ControllerId) -> Option<Box<dyn EngineClient>> + Send>;

impl Controller {
    /// Engine threads: those that there are.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// For a client that writes whole blocks on an engine's thread: how it and those who change parts of blocks keep
    /// out of each other's way.
    pub fn block_writer(&self, host: &mut Host) -> BlockWriter {
        self.engine.claims.join(host.reactor().waker())
    }

    /// Has `make` make a client on an engine's thread, by its number from zero, and waits for it. Beside the client, it
    /// returns what others need to talk to it. The client stays while it has something to do, even when the controller
    /// is given up, but not when it is detached. A thread has one client in the life of a controller.
    ///
    /// # Errors
    /// Those of `make`; [`io::ErrorKind::NotConnected`] when the engine has ended, or when the thread had a client
    /// before.
    ///
    /// # Panics
    /// When there is no such thread.
    pub fn start_client<T: Send + 'static>(
        &self,
        thread: usize,
        make: impl FnOnce(&mut Host, ControllerId) -> io::Result<(Box<dyn EngineClient>, T)> + Send + 'static,
    ) -> io::Result<T> {
        let (made, wait) = sync_channel(1);
        let make: MakeClient = Box::new(move |host, controller| {
            let (client, result) = match make(host, controller) {
                Ok((client, handle)) => (Some(client), Ok(handle)),
                Err(error) => (None, Err(error)),
            };
            // Whoever asked waits for it.
            made.send(result).ok()?;
            client
        });
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the engine takes no client");
        self.engine.send(thread, Message::AddClient(make)).map_err(|_| gone())?;
        wait.recv().map_err(|_| gone())?
    }
}
