//! Where a protocol wants the next bytes of its stream.

use ringfab_memory::SharedBuffer;
use ringfab_reactor::Strides;

/// How many events a protocol takes in before it lets them be acted on. With all that a large receive may bring, the
/// two ends would work by turns, each waiting for the other's whole queue; with fewer, a send would be for too little.
pub(crate) const TURN_EVENTS: usize = 64;

/// Where a protocol wants the next bytes.
#[derive(Debug)]
pub(crate) enum ReceiveTarget {
    /// In the staging memory, behind those that it has not taken in, until so many are there. When they are there
    /// already, nothing more is received.
    Staging { bytes_max: usize },
    /// Straight in their final place.
    Direct(Place),
    /// Nowhere, before the pool has a buffer again.
    Buffer,
    /// Nowhere yet: what it has taken in is enough for one turn, and shall be acted on before the rest of what is
    /// there.
    Turn,
}

/// Memory to be filled from the stream.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) shared_buffer: SharedBuffer,
    /// First byte in the shared buffer.
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Whether what comes next belongs elsewhere: the receive may go beyond the place then.
    pub(crate) is_last: bool,
    /// How the stream is expected to go on, by what belongs right behind the place. What turns out to belong elsewhere
    /// goes there, but has been in this memory.
    pub(crate) strides: Option<Strides>,
}
