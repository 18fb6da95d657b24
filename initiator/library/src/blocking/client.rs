//! What runs on an engine's thread.

use std::io;

use crate::error::IoError;
use crate::host::Host;
use crate::request::{ControllerId, HostEvent};
use ringfab_reactor::Wait;

use super::Controller;
use super::message::Message;

/// What runs on an engine's thread: a program's own loop, a front end beside the blocking handle, or the handle itself.
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
    /// state has changed. Beside the blocking handle, it sees only the first two. Its tags are [`TAG_FIRST`] or above
    /// there.
    fn on_event(&mut self, event: HostEvent, host: &mut Host, controller: ControllerId);
}

/// The first tag of a client's commands beside the blocking handle; those below are the handle's own.
pub const TAG_FIRST: u64 = 1 << 32;

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

impl Host {
    /// Runs a client on the calling thread until it is over.
    ///
    /// # Errors
    /// The client's, or that the ring is broken.
    pub fn run(&mut self, controller: ControllerId, client: &mut impl EngineClient) -> io::Result<()> {
        loop {
            while let Some(event) = self.next_event() {
                client.on_event(event, self, controller);
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
pub(super) type MakeClient = Box<dyn FnOnce(&mut Host) -> Option<Box<dyn EngineClient>> + Send>;

impl Controller {
    /// Engine threads: those that there are.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Has a client made on an engine's thread, by its number from zero. It stays while it has something to do, even
    /// when the controller is given up, but not when it is detached. There is one for each thread in the life of a
    /// controller: `make` of another is dropped.
    ///
    /// # Errors
    /// [`IoError::NoPath`] when the engine has ended.
    ///
    /// # Panics
    /// When there is no such thread.
    pub fn invite(
        &self,
        thread: usize,
        make: impl FnOnce(&mut Host) -> Option<Box<dyn EngineClient>> + Send + 'static,
    ) -> Result<(), IoError> {
        self.engine.send(thread, Message::AddClient(Box::new(make)))
    }
}
