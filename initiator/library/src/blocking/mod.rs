//! The engine for ordinary programs: a handle that any thread may use, and calls that wait.
//!
//! [`Controller::connect`] starts threads of its own that each run a [`Host`](crate::Host), one unless more are asked
//! for. Bytes are copied between the caller's memory and the engine's registered buffers; a program that cannot afford
//! that copy uses the engine directly.
//!
//! # What blocks
//!
//! A call that sends commands waits until all of them have ended. Each may take
//! [`Timeouts::io`](crate::Timeouts::io) (admin commands [`Timeouts::admin`](crate::Timeouts::admin)) on a connection
//! that works. While the connection is lost, the call waits until it is back, or until
//! [`ReconnectPolicy`](crate::ReconnectPolicy) has it fail. A [`CancelToken`] ends every wait within 50 ms, with
//! [`IoError::Cancelled`](crate::IoError::Cancelled). [`Controller::info`], [`Controller::namespaces`],
//! [`Controller::disk`], [`Disk::size`], [`Controller::threads`] and the like send nothing and do not wait.

mod admin;
mod allocation;
mod by_number;
mod claim;
mod client;
mod disk;
mod engine;
mod io;
mod message;
mod requests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use crate::cancel::CancelToken;
pub use allocation::Run;
pub use claim::Claim;
pub use client::{EngineClient, TAG_END, Turn};
pub use disk::Disk;
use ringfab_memory::ClassLayout;

use crate::authentication::Keys;
use crate::error::ConnectError;
use crate::namespace::{self, ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::path_status::PathStatus;
use crate::request::PathId;
use crate::url::Url;
use engine::Engine;

/// What the engine's thread is like.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Engine threads, which share the controller: each has I/O queues of its own. Zero is one.
    pub threads: u16,
    /// Pins the thread to this core, and each further one to one of the next.
    pub core: Option<usize>,
    /// How long the engine spins before it sleeps; zero sleeps at once.
    pub spin: Duration,
    /// Writes a capture of the software RNIC's traffic here.
    pub capture: Option<PathBuf>,
    /// Ends waits, also the one for the connection.
    pub cancel: CancelToken,
    /// Buffers for an [`EngineClient`] on each thread, beside the engine's own.
    pub client_buffers: Vec<ClassLayout>,
    /// Sockets and files of an [`EngineClient`] on each thread.
    pub client_descriptors: u32,
}

impl EngineOptions {
    /// The defaults, with so many threads.
    pub fn with_threads(threads: u16) -> Self {
        Self { threads, ..Self::default() }
    }

    /// The defaults, with waits that this token ends.
    pub fn with_cancel(cancel: CancelToken) -> Self {
        Self { cancel, ..Self::default() }
    }
}

/// How the connection to an attached controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Commands go there.
    Connected,
    /// It was lost, and is tried again. I/O waits.
    Lost {
        /// When it was lost.
        since: SystemTime,
    },
    /// It was given up. I/O fails.
    GivenUp,
}

/// An attached controller. Clones are the same controller; it is detached in an orderly way when the last one
/// is dropped, which waits for it, or by [`Controller::detach`].
///
/// ```no_run
/// use ringfab_initiator::ConnectOptions;
/// use ringfab_initiator::blocking::{Controller, EngineOptions};
///
/// # fn show(options: ConnectOptions) -> Result<(), Box<dyn std::error::Error>> {
/// let controller = Controller::connect(options, EngineOptions::default())?;
/// for disk in controller.disks() {
///     let mut first = [0; 1];
///     disk.read_at(0, &mut first)?;
///     println!("{}: {} bytes, first {:02x}", disk.nsid(), disk.size()?, first[0]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Controller {
    engine: Arc<Engine>,
}

impl Controller {
    /// Starts the engine, attaches a controller and waits until it is ready: for
    /// [`Timeouts::attach`](crate::Timeouts::attach) at most, and the time that the controller takes to become ready.
    ///
    /// # Errors
    /// Which step failed, and why. The first attachment is not retried.
    pub fn connect(options: ConnectOptions, engine: EngineOptions) -> Result<Self, ConnectError> {
        Ok(Self { engine: Arc::new(Engine::start(options, engine)?) })
    }

    /// What the controller said of itself.
    pub fn info(&self) -> ControllerInfo {
        self.engine.snapshot().info.clone()
    }

    /// The namespaces in use, as of now.
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.engine.snapshot().namespaces.clone()
    }

    /// How the connection is, as of now.
    pub fn connection(&self) -> Connection {
        self.engine.snapshot().connection
    }

    /// One of them.
    pub fn namespace(&self, nsid: u32) -> Option<Namespace> {
        namespace::find(&self.engine.snapshot().namespaces, nsid).cloned()
    }

    /// Authenticates again, as [`Host::reauthenticate`](crate::Host::reauthenticate) does, and waits until the queues
    /// of the first engine thread have: for [`Timeouts::admin`](crate::Timeouts::admin) and each message at most.
    ///
    /// # Errors
    /// Why not. Where one end has refused the other, the connection is lost, and reconnecting begins.
    pub fn reauthenticate(&self, keys: Option<Keys>) -> Result<(), ConnectError> {
        self.engine.reauthenticate(keys)
    }

    /// How often it was connected again since it was attached.
    pub fn reconnects(&self) -> u64 {
        self.engine.snapshot().reconnects
    }

    /// Resets the controller, as [`Host::reset`](crate::Host::reset) does, and returns when that has begun. It is over
    /// when [`Controller::reconnects`] has become more.
    ///
    /// # Errors
    /// It is being detached, or was given up.
    pub fn reset(&self) -> Result<(), ConnectError> {
        self.engine.reset()
    }

    /// The paths: each engine thread's counters together. It waits for a turn of each engine thread. Nothing once the
    /// controller is detached.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.engine.paths()
    }

    /// Adds a path, as [`Host::add_path`](crate::Host::add_path) does, and returns when attaching it has begun:
    /// [`Controller::paths`] tells how it is.
    ///
    /// # Errors
    /// Why not.
    pub fn add_path(&self, url: Url) -> Result<PathId, ConnectError> {
        self.engine.add_path(url)
    }

    /// Removes a path, as [`Host::remove_path`](crate::Host::remove_path) does, and returns when that has begun. It is
    /// over when [`Controller::paths`] has it no longer.
    ///
    /// # Errors
    /// Why not.
    pub fn remove_path(&self, path: PathId) -> Result<(), ConnectError> {
        self.engine.remove_path(path)
    }

    /// How this controller is attached.
    pub fn options(&self) -> &ConnectOptions {
        self.engine.options()
    }

    /// Detaches in an orderly way and waits for it, for [`Timeouts::shutdown`](crate::Timeouts::shutdown) at most;
    /// other clones fail from now on. Commands that are outstanding end first.
    ///
    /// # Errors
    /// What could not be done in an orderly way.
    pub fn detach(self) -> Result<(), ConnectError> {
        self.engine.detach(true)
    }

    /// Detaches at once and waits for it: commands that are outstanding end as cancelled, volatile caches are not
    /// flushed. Other clones fail from now on.
    ///
    /// # Errors
    /// Why the controller had been given up before, if it had.
    pub fn cancel(self) -> Result<(), ConnectError> {
        self.engine.detach(false)
    }
}
