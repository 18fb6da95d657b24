//! What can be measured, as values with names.

use std::fmt;

/// One thing to measure. Its text is its name in every report, so it must say all that distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Raw(Raw),
    Fabric(Fabric),
    Beside(Beside),
    Failover(Failover),
    Footprint(Footprint),
    Scale(Scale),
    Shim(Shim),
    Backing(Backing),
    Disk(Disk),
}

/// Loopback TCP and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) congestion: Congestion,
    /// Over TLS.
    pub(crate) tls: bool,
    pub(crate) shape: Shape,
}

/// Which congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Congestion {
    Cubic,
    /// The machine's.
    Default,
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One exchange at a time.
    PingPong { sizes: Sizes },
    /// So many at a time.
    Pipeline { sizes: Sizes, depth: usize },
    /// One direction only.
    Stream { write_bytes: usize },
}

/// Lengths of messages, headers and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
}

/// `ringfab bench` against `ringfab-target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fabric {
    pub(crate) transport: Transport,
    /// MPA CRCs, or header and data digests.
    pub(crate) digests: bool,
    pub(crate) namespace: Namespace,
    pub(crate) rw: Rw,
    pub(crate) io_bytes: u32,
    /// Outstanding in each queue.
    pub(crate) depth: u16,
    pub(crate) queues: u16,
}

/// A host that reads 4 KiB at depth one from memory, beside another one that keeps the core busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) transport: Transport,
    /// What the busy one reads at once, on so many queues.
    pub(crate) io_bytes: u32,
    pub(crate) queues: u16,
}

/// A host with two paths over NVMe/TCP that reads or writes 4 KiB at depth four, and loses the one that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failover {
    pub(crate) loss: Loss,
    pub(crate) rw: Rw,
}

/// How a path is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its connections are reset by the other end, on one of two ways to a target.
    Reset,
    /// Nothing arrives any more on one of two ways to a target, and nobody is told.
    Silent,
    /// One of two targets is stopped (SIGSTOP).
    Stopped,
    /// One of two targets is told to end (SIGTERM).
    Ended,
}

impl Loss {
    /// Whether the two paths lead to one target.
    pub(crate) fn is_of_a_way(self) -> bool {
        match self {
            Self::Reset | Self::Silent => true,
            Self::Stopped | Self::Ended => false,
        }
    }
}

/// What a target costs without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Footprint {
    /// Its memory when it has started, and the time from its start to the first block served.
    Start,
    /// The time to attach a controller.
    Connect { transport: Transport, queues: u16 },
    /// Processor time of both ends while nothing is to be done, with so many connections.
    Idle { transport: Transport, connections: usize },
    /// Memory of one more idle I/O queue of depth 128.
    Queue { transport: Transport },
}

/// What an I/O costs however much else there is, and what that takes: 4 KiB reads of a null namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) transport: Transport,
    pub(crate) crowd: Crowd,
}

/// What a target has besides one busy queue of one host, which has one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// Nothing.
    Nobody,
    /// So many idle I/O queues.
    Queues(u16),
    /// So many idle hosts with an I/O queue each, that came one after the other or all at once.
    Hosts { count: usize, at_once: bool },
    /// So many namespaces, with the one that is read.
    Namespaces(u32),
    /// So many reactor threads, and four busy queues for them.
    Threads(usize),
}

/// A disk that is handed to other programs: 4 KiB at depth 32, from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shim {
    pub(crate) server: Server,
    pub(crate) rw: Rw,
}

/// What hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Server {
    /// `ringfab nbd`.
    Nbd,
    /// nbdkit's memory plugin.
    Nbdkit,
    /// qemu-nbd, with a file on tmpfs.
    QemuNbd,
    /// `ringfab fuse`, asked by way of `/dev/fuse`.
    Fuse,
    /// `ringfab fuse`, asked over io_uring.
    FuseUring,
    /// bindfs, which passes everything on to a file on tmpfs.
    Bindfs,
}

/// What stands beneath a namespace, from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    pub(crate) engine: Engine,
    /// Over NVMe/TCP through target and initiator, or the engine's own client in fio.
    pub(crate) tool: Tool,
    pub(crate) rw: Rw,
    pub(crate) io_bytes: u32,
    pub(crate) depth: u16,
}

/// What has the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    /// nbdkit's memory plugin, on a Unix socket.
    Nbd,
    /// An image of a Ceph cluster in memory.
    Rbd,
}

/// A disk alone: 4 KiB at random places around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) tool: Tool,
    pub(crate) medium: Medium,
    pub(crate) rw: Rw,
    pub(crate) depth: u16,
}

/// Who works on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// The crate that the target has for it.
    Ours,
    /// fio: for files with io_uring, fixed buffers and registered files.
    Fio,
}

/// What the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// The file that the file namespace is on.
    File,
    /// A loop device over that file, itself around the page cache.
    Loop,
}

/// How capsules and data travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// NVMe/RDMA over the software RNIC.
    Rdma,
    /// NVMe/TCP.
    Tcp,
    /// NVMe/TCP over TLS, with TLS_AES_128_GCM_SHA256.
    Tls,
    /// NVMe/TCP, where each queue authenticates with SHA-256 and ffdhe3072.
    Authenticated,
}

/// What stands behind a namespace. Its number is its identifier in the target that the benchmark starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    Null = 1,
    Memory = 2,
    /// Through `O_DIRECT`.
    File = 3,
}

/// What the I/Os are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rw {
    RandRead,
    RandWrite,
    /// 70 reads of 100.
    Mixed,
    Read,
    Write,
}

impl Congestion {
    /// As the kernel knows it.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Cubic => Some("cubic"),
            Self::Default => None,
        }
    }
}

impl Transport {
    /// In names of cases.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Authenticated => "tcp ffdhe3072",
        }
    }
}

impl Namespace {
    pub(crate) fn nsid(self) -> u32 {
        self as u32
    }
}

impl Rw {
    /// As `ringfab bench` and fio know it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::Mixed => "randrw",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(raw) => raw.fmt(f),
            Self::Fabric(fabric) => fabric.fmt(f),
            Self::Beside(beside) => beside.fmt(f),
            Self::Failover(failover) => failover.fmt(f),
            Self::Footprint(footprint) => footprint.fmt(f),
            Self::Scale(scale) => scale.fmt(f),
            Self::Shim(shim) => shim.fmt(f),
            Self::Backing(backing) => backing.fmt(f),
            Self::Disk(disk) => disk.fmt(f),
        }
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::PingPong { sizes } => write!(f, "raw ping-pong {sizes}")?,
            Shape::Pipeline { sizes, depth } => write!(f, "raw pipeline {sizes} depth {depth}")?,
            Shape::Stream { write_bytes } => write!(f, "raw stream {}", Bytes(write_bytes as u64))?,
        }
        write!(f, " {}", self.congestion.name().unwrap_or("default"))?;
        if self.tls { write!(f, " tls") } else { Ok(()) }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.request_bytes, self.response_bytes)
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = self.transport.name();
        let namespace = match self.namespace {
            Namespace::Null => "null",
            Namespace::Memory => "memory",
            Namespace::File => "file",
        };
        let (rw, bytes) = (self.rw.name(), Bytes(u64::from(self.io_bytes)));
        write!(f, "{transport} {namespace} {rw} {bytes} depth {}", self.depth)?;
        if self.queues > 1 {
            write!(f, " queues {}", self.queues)?;
        }
        if self.digests {
            write!(f, " digests")?;
        }
        Ok(())
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transport, bytes) = (self.transport.name(), Bytes(u64::from(self.io_bytes)));
        write!(f, "{transport} memory randread 4k depth 1 beside {bytes} depth 128 queues {}", self.queues)
    }
}

impl fmt::Display for Failover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = match self.loss {
            Loss::Reset => "reset",
            Loss::Silent => "silent",
            Loss::Stopped => "stopped",
            Loss::Ended => "ended",
        };
        write!(f, "failover tcp {loss} {} 4k depth 4", self.rw.name())
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "footprint start"),
            Self::Connect { transport, queues } => {
                write!(f, "footprint connect {} queues {queues}", transport.name())
            }
            Self::Idle { transport, connections } => {
                write!(f, "footprint idle {} connections {connections}", transport.name())
            }
            Self::Queue { transport } => write!(f, "footprint queue {} depth 128", transport.name()),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scale {} ", self.transport.name())?;
        match self.crowd {
            Crowd::Nobody => write!(f, "alone"),
            Crowd::Queues(count) => write!(f, "beside {count} queues"),
            Crowd::Hosts { count, at_once: false } => write!(f, "beside {count} hosts, in a row"),
            Crowd::Hosts { count, at_once: true } => write!(f, "beside {count} hosts, at once"),
            Crowd::Namespaces(count) => write!(f, "among {count} namespaces"),
            Crowd::Threads(count) => write!(f, "threads {count}"),
        }
    }
}

impl fmt::Display for Shim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = match self.server {
            Server::Nbd => "nbd ringfab",
            Server::Nbdkit => "nbd nbdkit",
            Server::QemuNbd => "nbd qemu-nbd",
            Server::Fuse => "fuse ringfab",
            Server::FuseUring => "fuse ringfab io_uring",
            Server::Bindfs => "fuse bindfs",
        };
        write!(f, "shim {server} {} 4k depth 32", self.rw.name())
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = match self.engine {
            Engine::Nbd => "nbd",
            Engine::Rbd => "rbd",
        };
        let tool = match self.tool {
            Tool::Ours => "ringfab tcp",
            Tool::Fio => "fio",
        };
        let (rw, bytes) = (self.rw.name(), Bytes(u64::from(self.io_bytes)));
        write!(f, "backing {engine} {tool} {rw} {bytes} depth {}", self.depth)
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tool = match self.tool {
            Tool::Ours => "ringfab",
            Tool::Fio => "fio",
        };
        let medium = match self.medium {
            Medium::File => "file",
            Medium::Loop => "loop",
        };
        write!(f, "disk {medium} {tool} {} 4k depth {}", self.rw.name(), self.depth)
    }
}

/// A size in the largest unit that divides it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => write!(f, "{}M", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => write!(f, "{}k", bytes >> 10),
            bytes => write!(f, "{bytes}"),
        }
    }
}
