//! The interface of everything that can be served as a disk, and both halves of its contract.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use ringfab_base::visible;
use ringfab_reactor::{Completion, FileInfo, Reactor};

use crate::operation::{DiskProperties, Finished, Operation, Started, Tag};
use crate::{DiskTokens, OpenError};

/// One core's handle of something that holds blocks: a file, memory, a library with an eventfd, a socket, a
/// passed-through device, or a wrapper around another one.
///
/// An operation begins with [`start`](Self::start). It finishes there, or later by one of the device's own
/// completions: the device starts operations on the core's reactor (a read of a file, a poll of an eventfd, a receive
/// from a socket) with its own [`DiskTokens`], gets their completions by [`on_completion`](Self::on_completion), and
/// says which of its operations have finished. One completion may finish none, one or many.
///
/// # What a device must never do
/// - Block, wait or sleep, in any method or when it is dropped. A core serves other disks and hosts on the same
///   thread. What has to block is done by a thread of the device's own.
/// - Compute for long (more than 50 µs), or allocate memory for an operation. Tables grow to the number of operations
///   in flight and stay so.
/// - Finish an operation twice, not at all, or with a tag, buffer or source that is not its own.
/// - Touch a buffer or a source after it gave it back, or let a library, the kernel or hardware do so. If it cannot
///   know that they have ended, it keeps the memory for ever (leaks it) and finishes nothing.
/// - Report success for a write that is only in memory of its own, unless [`DiskProperties::volatile_cache`] says so
///   and a flush makes it durable. Report a short read or write as success.
/// - Compare and write in two steps, between which somebody else can write. One who cannot do better has none: the
///   target keeps the order of its own commands itself.
/// - Start reactor operations with tokens that are not its own.
/// - Panic because of what its backing answers. That is a [`BlockError`](crate::BlockError). What an NVMe drive answers
///   is passed on as it is: [`BlockError::Drive`](crate::BlockError::Drive), [`Finished::value`].
///
/// # What a device may rely on
/// - All calls come from one thread with one reactor, one at a time, and never from inside each other.
/// - The range of an operation lies within [`DiskProperties::bytes`] and is aligned to
///   [`DiskProperties::offset_align`]. A read-only device gets no operation that changes it, and none gets a
///   compare-and-write of more than [`DiskProperties::compare_and_write_max`]. A read fills its buffer; a write lies
///   within its source.
/// - Buffers and sources are the device's alone from `start` until it gives them back: nobody writes to a source, and
///   nobody looks at a buffer.
/// - A tag is not used for two operations at once. Its meaning is the caller's.
/// - Every completion with one of its tokens, and no other, comes to `on_completion`. After it,
///   [`next_finished`](Self::next_finished) is called until there is nothing more to report.
/// - Operations may finish in any order. Who needs an order waits. A flush covers the writes that finished before it
///   started.
/// - It is closed when none of its operations is in flight, except at the end of the process, and is not called again.
pub trait BlockDevice: fmt::Debug {
    /// What it can do. It is asked before each operation, so the answer is at hand.
    fn properties(&self) -> DiskProperties;

    /// Starts an operation. [`Started::Finished`] gives back everything at once; after [`Started::Pending`] the
    /// operation is reported exactly once by one of the two methods below.
    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started;

    /// Takes a completion with one of its tokens. Returns an operation that has finished, if any has; `None` says that
    /// `next_finished` has none either.
    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished>;

    /// The next operation that the last completion has finished.
    fn next_finished(&mut self, reactor: &mut Reactor) -> Option<Finished> {
        let _ = reactor;
        None
    }

    /// Gives up what it holds of the reactor: files, sockets, polls. Operations in flight end on the reactor, and
    /// nobody hears of them any more.
    fn close(&mut self, reactor: &mut Reactor);

    /// Its backing has grown or shrunk to `bytes`, as whoever manages it has found.
    fn resize(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Continues with the same file opened anew. What is in flight ends on the old one. Devices without a file ignore
    /// it.
    ///
    /// # Errors
    /// When the core has no room for it; the device is as before then.
    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> io::Result<()> {
        let _ = (opened, reactor);
        Ok(())
    }

    /// Opens its backing anew on this core. Devices that nothing can be opened of ignore it. One whose driver tells
    /// [identities](Seen::identity) goes on with the disk that the driver has seen last, and what is in flight ends on
    /// the old one.
    ///
    /// # Errors
    /// [`OpenError`] says what could not be opened; the device is as before then.
    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        let _ = reactor;
        Ok(())
    }

    /// Bytes that the processor copied between buffers and the device so far.
    fn copied_bytes(&self) -> u64 {
        0
    }
}

/// A file or block device that was opened for a core.
#[derive(Clone, Debug)]
pub struct OpenedFile {
    /// Its descriptor.
    pub file: Arc<File>,
    /// What [`ringfab_reactor::inspect_file`] said of it.
    pub info: FileInfo,
    /// Whether it was opened for reading only.
    pub read_only: bool,
}

/// What a look at a device has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Size in bytes; `None` when that is what [`Driver::open`] finds and never changes.
    pub bytes: Option<u64>,
    /// Which disk it is, if it can tell. Another identity under the name of the driver is another disk: nothing of it
    /// is served until an administrator has confirmed it. `None` says nothing, also after an identity was told.
    pub identity: Option<DeviceIdentity>,
}

impl Seen {
    /// The same with a size in bytes, which is watched.
    pub fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// The same with what the device knows itself by.
    pub fn with_identity(self, identity: DeviceIdentity) -> Self {
        Self { identity: Some(identity), ..self }
    }
}

/// The text by which a device knows itself: the same for as long as it is the same disk, over restarts and other names,
/// and never that of another disk. It begins with the kind of device, since all kinds are compared with each other:
/// `rbd`, a pool's and an image's identifiers and when the image was made; `nvme` and an NGUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity(String);

impl DeviceIdentity {
    /// The identity with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text, as the device gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// For people: what cannot be shown is escaped.
impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        visible(&self.0).fmt(f)
    }
}

/// Something that is to be known of a device, as a name and a text: `features`, `layering, exclusive-lock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// A word or two, in lower case; the same for all devices of a kind.
    pub name: &'static str,
    /// A text for people, on one line.
    pub text: String,
}

impl Detail {
    /// A detail with this name and text.
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, text: text.into() }
    }
}

/// Makes one core's handles of a kind of device that this crate does not know. All cores share it.
pub trait Driver: fmt::Debug + Send + Sync {
    /// What it serves, for logs and people, such as a URL.
    fn name(&self) -> String;

    /// Looks at the device, on a thread that may wait: this is the place to look up names and to log in. It is called
    /// before any core opens the device, and about every second from then on: until it succeeds, and then to see what
    /// has changed. It is not called again while a call has not returned.
    ///
    /// # Errors
    /// Why cores cannot open it for now. Once they have it, an error changes nothing: their operations show it.
    fn look(&self) -> io::Result<Seen> {
        Ok(Seen::default())
    }

    /// What an administrator is shown of it beside its name: features, locks, connections, what it waits for. It must
    /// not wait; it says what the last look or the last operation has found.
    fn details(&self) -> Vec<Detail> {
        Vec::new()
    }

    /// Opens the device for the calling core. It must not block: what is slow has happened in [`look`](Self::look), or
    /// happens later while operations wait. The reactor operations of the device bear `tokens`.
    ///
    /// # Errors
    /// [`OpenError`] says what could not be opened.
    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError>;
}

/// A driver as a value. Two are equal when they are the same driver.
#[derive(Clone, Debug)]
pub struct DriverHandle(Arc<dyn Driver>);

impl DriverHandle {
    /// A handle of a driver.
    pub fn new(driver: impl Driver + 'static) -> Self {
        Self(Arc::new(driver))
    }
}

impl Deref for DriverHandle {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for DriverHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DriverHandle {}
