//! What shares the engine's thread.

use std::io;

use ringfab_reactor::Completion;

use super::Controller;
use super::message::Message;
use crate::error::IoError;
use crate::host::Host;
use crate::request::{ControllerId, IoDone};

/// A part of a program that runs on the engine's thread, beside the calls of the handle: its I/O goes from and to the engine's
/// buffers without a copy and without another thread. It must not wait, and must not call the handle for I/O.
pub trait Guest {
    /// Called before each turn of the host, to go on with what has happened.
    ///
    /// # Errors
    /// It cannot go on; the engine says so and lets it go.
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn>;

    /// A command of the guest has ended. Its tags are [`TAG_FIRST`] or above.
    fn on_io_done(&mut self, done: IoDone, host: &mut Host, controller: ControllerId);

    /// A completion of the reactor for the guest: its owner is [`Host::OWNER_FOREIGN_FIRST`] or above.
    fn on_completion(&mut self, completion: Completion);
}

/// The first tag of a guest's commands; those below are the engine's own.
pub const TAG_FIRST: u64 = 1 << 32;

/// What a guest says of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do at once.
    Busy,
    /// It waits for an event, a completion or a wake-up.
    Idle,
    /// It has ended, and is dropped.
    Over,
}

/// Makes a guest on the engine's thread; `None` when there is to be none after all.
pub(super) type Invitation = Box<dyn FnOnce(&mut Host) -> Option<Box<dyn Guest>> + Send>;

impl Controller {
    /// Has a guest made on the engine's thread. It stays while it has something to do, even when the controller is given up, but
    /// not when it is detached. There is one in the life of a controller: `make` of another is dropped.
    ///
    /// # Errors
    /// [`IoError::NoPath`] when the engine has ended.
    pub fn invite(
        &self,
        make: impl FnOnce(&mut Host) -> Option<Box<dyn Guest>> + Send + 'static,
    ) -> Result<(), IoError> {
        self.engine.send(Message::Invite(Box::new(make)))
    }
}
