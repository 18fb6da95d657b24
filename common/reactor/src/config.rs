//! What a reactor is built from, and what its methods take and return.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How a reactor is built.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// Entries of the submission queue; the completion queue has four times as many.
    pub entries: u32,
    /// The longest to spin after the last event before sleeping, see [`Spin`](crate::Spin).
    pub spin: Duration,
    /// The most sockets, listeners and files together.
    pub descriptors_max: u32,
}

/// How long a turn may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Submit and collect what is there, without waiting.
    No,
    /// Wait for an event: spin for a time that was learnt, see [`Spin`](crate::Spin), then sleep until the next timer
    /// at the latest.
    Event,
    /// The same for who has asked for something, of a disk or of a peer: the answer is on its way, so that twenty
    /// times as long is spun at most. A sleep and the wake-up of either end are a good part of what a disk takes.
    Answer,
}

/// What a listener binds to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// A TCP address; port zero picks a free one.
    Tcp(SocketAddr),
    /// A path of a Unix socket; a stale socket there is replaced.
    Unix(PathBuf),
}

/// Options of a TCP socket. Nagle's algorithm is always off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Congestion control by name; an unknown name is an error. `None` leaves the system's default.
    pub congestion: Option<String>,
    /// `TCP_USER_TIMEOUT`: how long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
    /// Idle time before TCP keep-alive probes start.
    pub keep_alive: Option<Duration>,
    /// Differentiated Services Code Point of what is sent, 0 to 63.
    pub dscp: Option<u8>,
    /// Send and receive buffer sizes in bytes.
    pub buffer_bytes: Option<u32>,
    /// What the kernel has not sent is thrown away, and the peer reset, when the process ends without closing the
    /// socket. Otherwise the kernel goes on sending it, and the peer may act on it long after.
    pub reset_if_killed: bool,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Bypass the page cache.
    pub direct: bool,
    /// Refuse writes.
    pub read_only: bool,
}

/// What an open file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Size in bytes, of the file or of the block device.
    pub bytes: u64,
    /// Whether it is a block device.
    pub block_device: bool,
    /// Alignment in bytes that direct I/O needs of file offsets and lengths; 1 without direct I/O.
    pub offset_align: u32,
    /// Alignment in bytes that direct I/O needs of memory; 1 without direct I/O.
    pub memory_align: u32,
    /// Whether another process or machine serves the file system (FUSE, NFS, ...). The kernel may wait for that while
    /// it takes an operation, so that threads of the kernel have to take them.
    pub remote: bool,
    /// What it likes best.
    pub preferred: PreferredSizes,
}

/// Sizes in bytes that a file or disk likes best; each is 0 where nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredSizes {
    /// Granularity and alignment of writes: what is smaller costs a read before it.
    pub write: u32,
    /// Granularity and alignment of what is discarded: what is smaller frees nothing.
    pub discard: u32,
    /// Length of a write that is as fast as writes get.
    pub optimal_write: u32,
}

/// Which bytes of a file, and which of the memory that they come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// First byte in the file.
    pub offset: u64,
    /// First byte in the memory.
    pub at: usize,
    /// How many.
    pub length: usize,
}

/// What becomes of the operations in flight on a file that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnClose {
    /// They are cancelled, as far as they have not begun.
    Cancel,
    /// They end by themselves.
    Finish,
}

/// What to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Deallocate: the range reads as zeroes and its space may be freed.
    PunchHole,
    /// Write zeroes, keeping the space allocated.
    ZeroRange,
}

/// What a reactor has done since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorCounters {
    /// Turns taken.
    pub turns: u64,
    /// System calls to submit or wait.
    pub enters: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Times it found that others want its processor, so that it sleeps for a while where it would spin.
    pub shared: u64,
    /// Operations submitted.
    pub submitted: u64,
    /// Completions handed out.
    pub completed: u64,
    /// Time spent polling for an event that had not come yet.
    pub spun: Duration,
    /// Time spent asleep in the kernel.
    pub slept: Duration,
}
