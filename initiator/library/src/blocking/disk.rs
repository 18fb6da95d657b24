//! A disk: one namespace of an attached controller.

use std::sync::Arc;

use super::Controller;
use super::engine::Engine;
use super::message::{Answer, Operation, Order};
use crate::error::{IoError, SubmitError};
use crate::namespace::{self, Namespace, NamespaceIdentity};

/// A disk of an attached controller, for any thread: reads and writes of bytes that wait until they have ended. Clones
/// are the same disk. As long as one lives, the controller stays attached.
///
/// A controller may give the number of a namespace to another disk. That one is not reached by this handle, as far as
/// the controller has told of it.
///
/// ```no_run
/// use ringfab_initiator::ConnectOptions;
/// use ringfab_initiator::blocking::{Controller, EngineOptions};
///
/// # fn write(options: ConnectOptions) -> Result<(), Box<dyn std::error::Error>> {
/// let controller = Controller::connect(options, EngineOptions::default())?;
/// let disk = controller.disk(1).ok_or("there is no namespace 1")?;
/// // Two bytes of a block: the others stay as they are, also those that other threads write meanwhile.
/// disk.write_at(disk.size()? - 2, b"ok", false)?;
/// disk.flush()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Disk {
    engine: Arc<Engine>,
    nsid: u32,
    /// Which disk it is, if not whichever has the number.
    identity: Option<Arc<NamespaceIdentity>>,
}

impl Controller {
    /// The disk that is namespace `nsid` now; `None` when there is none.
    pub fn disk(&self, nsid: u32) -> Option<Disk> {
        self.namespace(nsid).map(|namespace| self.disk_of(&namespace))
    }

    /// All disks, as of now.
    pub fn disks(&self) -> Vec<Disk> {
        self.engine.snapshot().namespaces.iter().map(|namespace| self.disk_of(namespace)).collect()
    }

    /// The disk of a namespace that was seen before; it may be gone by now.
    pub fn disk_of(&self, namespace: &Namespace) -> Disk {
        let identity = Some(Arc::new(namespace.identity));
        Disk { engine: Arc::clone(&self.engine), nsid: namespace.nsid, identity }
    }

    /// Whichever disk has the number when a call is made.
    pub(super) fn any_disk(&self, nsid: u32) -> Disk {
        Disk { engine: Arc::clone(&self.engine), nsid, identity: None }
    }
}

impl Disk {
    /// Its namespace identifier.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Its namespace as it is now; `None` when the controller does not have it any more, or when another disk has its
    /// number. It does not wait.
    pub fn namespace(&self) -> Option<Namespace> {
        let snapshot = self.engine.snapshot();
        let found = namespace::find(&snapshot.namespaces, self.nsid);
        let is_meant =
            |found: &&Namespace| self.identity.as_ref().is_none_or(|disk| disk.agrees_with(&found.identity));
        found.filter(is_meant).cloned()
    }

    /// Its size in bytes, as of now.
    ///
    /// # Errors
    /// When the controller does not have it any more.
    pub fn size(&self) -> Result<u64, IoError> {
        self.namespace_in_use().map(|namespace| namespace.bytes())
    }

    /// Bytes of a block, a power of two from 512 to 65536.
    ///
    /// # Errors
    /// When the controller does not have it any more.
    pub fn block_bytes(&self) -> Result<u32, IoError> {
        self.namespace_in_use().map(|namespace| namespace.block_bytes)
    }

    pub(super) fn namespace_in_use(&self) -> Result<Namespace, IoError> {
        self.namespace().ok_or_else(|| SubmitError::NoNamespace(self.nsid).into())
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The disk that commands are for, if it is not whichever has the number.
    pub(super) fn only(&self) -> Option<Arc<NamespaceIdentity>> {
        self.identity.clone()
    }

    /// Runs one command that writes no blocks, or only such as are claimed.
    pub(super) fn call(&self, operation: Operation) -> Result<Answer, IoError> {
        self.engine.call(Order { operation, disk: self.only(), claimed: true })
    }
}
