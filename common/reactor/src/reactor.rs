//! The loop's engine: operations in, completions out.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::{Buffer, Pool, SharedBuffer};

use crate::record;
use crate::ring::{self, Ring};
use crate::sim;
use crate::{
    Allocate, Bind, Completion, FileId, FileInfo, FileOptions, ListenAddr, ListenerId, Monitor, OnClose,
    ReactorConfig, ReactorCounters, ReceiveOp, SendBatch, SocketId, SocketOptions, Time, TimerId, TlsKeys,
    TlsRefusal, Token, Wait, Waker,
};

/// A core's ring, or its simulation.
#[derive(Debug)]
pub struct Reactor {
    backend: Backend,
}

/// Who does the work. What a simulation has no need for is the ring's alone.
#[derive(Debug)]
enum Backend {
    Ring(Box<Ring>),
    Simulated(Box<sim::Port>),
}

/// A socket on its way from one reactor to another; nothing is in flight on it. Dropping it closes it.
#[derive(Debug)]
pub struct DetachedSocket(Detached);

#[derive(Debug)]
enum Detached {
    /// With whether the kernel protects its records.
    Kernel(OwnedFd, bool),
    Simulated(sim::SocketHandle),
}

impl DetachedSocket {
    /// Has the kernel protect what is sent and received from now on, as records of TLS 1.3. The first byte that was not
    /// received is that of a record. Receives say what is no data then ([`ReceiveOp::control_record`]).
    ///
    /// # Errors
    /// [`TlsRefusal::Unavailable`] leaves the socket as it was.
    pub fn protect(&mut self, send: &TlsKeys<'_>, receive: &TlsKeys<'_>) -> Result<(), TlsRefusal> {
        match &mut self.0 {
            Detached::Kernel(fd, protected) => {
                record::protect(fd, send, receive)?;
                *protected = true;
                Ok(())
            }
            Detached::Simulated(_) => Err(TlsRefusal::Unavailable(io::ErrorKind::Unsupported.into())),
        }
    }
}

/// Calls the same method of whichever backend there is.
macro_rules! dispatch {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match &$self.backend {
            Backend::Ring(ring) => ring.$method($($argument),*),
            Backend::Simulated(port) => port.$method($($argument),*),
        }
    };
    (mut $self:ident.$method:ident($($argument:expr),*)) => {
        match &mut $self.backend {
            Backend::Ring(ring) => ring.$method($($argument),*),
            Backend::Simulated(port) => port.$method($($argument),*),
        }
    };
}

impl Reactor {
    /// A reactor over a new io_uring: single issuer, deferred task work, registered ring descriptor, files and buffers.
    ///
    /// # Errors
    /// The kernel's refusal, with what was asked for in the message.
    pub fn new(config: &ReactorConfig) -> io::Result<Self> {
        Ok(Self { backend: Backend::Ring(Box::new(Ring::new(config)?)) })
    }

    /// A reactor of a new core of `host` in a simulated world; also after a crash of the host, as its next boot.
    /// Dropping it is the end of its process: its sockets close, its operations on disks go on without it. After
    /// a crash of its host [`Reactor::turn`] fails, and operations vanish with what they hold.
    pub fn simulated(world: &sim::World, host: sim::HostId) -> Self {
        Self { backend: Backend::Simulated(Box::new(world.port(host))) }
    }

    /// Whether it is a simulation: nothing outside of it may be asked then.
    pub fn is_simulated(&self) -> bool {
        matches!(self.backend, Backend::Simulated(_))
    }

    /// Registers the memory of `pool` with the ring, so that file I/O from its buffers uses fixed buffers. Returns
    /// whether the kernel took it; without (memory lock limit) I/O works all the same, somewhat slower.
    pub fn register_pool(&mut self, pool: &Pool) -> bool {
        match &mut self.backend {
            Backend::Ring(ring) => ring.register_pool(pool),
            // Simulated I/O needs no registration, so that none can fail.
            Backend::Simulated(_) => true,
        }
    }

    /// The time at the start of this turn.
    pub fn now(&self) -> Time {
        dispatch!(self.now())
    }

    /// The clock itself, for measuring; simulated time under simulation.
    pub fn clock(&self) -> Time {
        match &self.backend {
            Backend::Ring(_) => ring::clock(),
            Backend::Simulated(port) => port.clock(),
        }
    }

    /// Seconds since the Unix epoch, as a duration, for timestamps.
    pub fn wall_clock(&self) -> Duration {
        match &self.backend {
            Backend::Ring(_) => ring::wall_clock(),
            Backend::Simulated(port) => port.wall_clock(),
        }
    }

    /// The most that it spins for an event, as its configuration says; none in a simulation.
    pub fn spin(&self) -> Duration {
        match &self.backend {
            Backend::Ring(ring) => ring.pace.spin.most(),
            Backend::Simulated(_) => Duration::ZERO,
        }
    }

    /// So many pieces of work were done since the last call, each worth a little more spinning: a quarter of
    /// [`Reactor::spin`], until fifty times that is saved. Waits for an event are spun for up to five times as long
    /// then.
    #[inline]
    pub fn worked(&mut self, pieces: u32) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.pace.spin.worked(pieces);
        }
    }

    /// Submits what was queued and collects completions. With [`Wait::Event`] and [`Wait::Answer`] it returns when
    /// there is at least one completion, a wake-up or a timer; in a simulation it never waits.
    ///
    /// # Errors
    /// Only when the ring itself is broken, or the simulated host has crashed.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        dispatch!(mut self.turn(wait))
    }

    /// Submits what was queued now instead of with the next turn, for a device that has little else to do: a system
    /// call more.
    pub fn submit_now(&mut self) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.submit_now();
        }
    }

    /// The next completion collected by the last turn.
    pub fn next_completion(&mut self) -> Option<Completion> {
        dispatch!(mut self.next_completion())
    }

    /// Wakes this reactor from other threads.
    pub fn waker(&self) -> Waker {
        dispatch!(self.waker())
    }

    /// Lets other threads see what this reactor's loop is doing.
    pub fn monitor(&self) -> Monitor {
        dispatch!(self.monitor())
    }

    /// What it has done so far.
    pub fn counters(&self) -> ReactorCounters {
        dispatch!(self.counters())
    }

    /// Completes `token` at or soon after `at`.
    pub fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        dispatch!(mut self.set_timer(at, token))
    }

    /// Forgets a timer. One that has fired or was cancelled is ignored; no completion follows.
    pub fn cancel_timer(&mut self, timer: TimerId) {
        dispatch!(mut self.cancel_timer(timer));
    }

    /// Listens; every accepted connection completes `token` with [`Payload::Accepted`](crate::Payload::Accepted).
    ///
    /// # Errors
    /// The kernel's refusal to bind or listen.
    pub fn listen(
        &mut self,
        address: &ListenAddr,
        options: &SocketOptions,
        token: Token,
    ) -> io::Result<Bind> {
        dispatch!(mut self.listen(address, options, token))
    }

    /// Stops accepting.
    pub fn close_listener(&mut self, listener: ListenerId) {
        dispatch!(mut self.close_listener(listener));
    }

    /// Starts connecting; `token` completes when it is connected or refused.
    ///
    /// # Errors
    /// When no socket could be made.
    pub fn connect(
        &mut self,
        address: SocketAddr,
        options: &SocketOptions,
        token: Token,
    ) -> io::Result<SocketId> {
        dispatch!(mut self.connect(address, options, token))
    }

    /// The addresses of the two ends of a TCP socket (local, peer).
    ///
    /// # Errors
    /// The kernel's answer for a socket that is not connected.
    pub fn socket_addresses(&self, socket: SocketId) -> io::Result<(SocketAddr, SocketAddr)> {
        dispatch!(self.socket_addresses(socket))
    }

    /// Receives at least one byte as `operation` was aimed; zero bytes mean the peer closed.
    pub fn receive(&mut self, socket: SocketId, operation: Box<ReceiveOp>, token: Token) {
        dispatch!(mut self.receive(socket, operation, token));
    }

    /// Once in a while: receives that have waited for data since several of these calls give the pages of their
    /// staging memory back, at most so many of them.
    pub fn trim_receives(&mut self, count_max: usize) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.in_flight.trim_receives(count_max);
        }
    }

    /// Sends the whole batch. One send per socket may be in flight: the next waits for its completion.
    pub fn send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        batch.seal();
        dispatch!(mut self.send(socket, batch, token));
    }

    /// Makes the sends of bytes that are [lent](ringfab_memory::BorrowedPages), as far as sockets take them at once.
    /// What is left goes to the ring with the next turn, before which the borrows must have ended.
    pub fn send_borrowed(&mut self) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.in_flight.send_borrowed();
        }
    }

    /// Sends what is queued in the kernel and then an end of stream to the peer; receiving goes on.
    pub fn shutdown_write(&mut self, socket: SocketId) {
        dispatch!(mut self.shutdown_write(socket));
    }

    /// Closes a socket. Operations in flight on it complete with `ECANCELED` (or their result) first, which the owner
    /// waits for before it reuses what they hold; the handle is dead at once.
    pub fn close_socket(&mut self, socket: SocketId) {
        dispatch!(mut self.close_socket(socket));
    }

    /// As [`Reactor::close_socket`], but what the kernel has not sent yet is thrown away, and the peer is reset.
    /// After a plain close the kernel would go on sending it, for minutes if the network stalls.
    pub fn abort_socket(&mut self, socket: SocketId) {
        dispatch!(mut self.abort_socket(socket));
    }

    /// Takes a socket with nothing in flight out of this reactor.
    pub fn detach_socket(&mut self, socket: SocketId) -> DetachedSocket {
        DetachedSocket(match &mut self.backend {
            Backend::Ring(ring) => {
                let (fd, protected) = ring.detach_socket(socket);
                Detached::Kernel(fd, protected)
            }
            Backend::Simulated(port) => Detached::Simulated(port.detach_socket(socket)),
        })
    }

    /// Adopts a socket from another reactor.
    ///
    /// # Errors
    /// When the descriptor table is full.
    pub fn attach_socket(&mut self, socket: DetachedSocket) -> io::Result<SocketId> {
        match (&mut self.backend, socket.0) {
            (Backend::Ring(ring), Detached::Kernel(fd, protected)) => ring.attach_socket(fd, protected),
            (Backend::Simulated(port), Detached::Simulated(handle)) => port.attach_socket(handle),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket of another kind of reactor")),
        }
    }

    /// Opens a file or block device. This may block; it belongs to the start and to the control plane.
    ///
    /// # Errors
    /// The kernel's refusal; `EINVAL` for direct I/O that the file system does not do.
    pub fn open_file(&mut self, path: &Path, options: FileOptions) -> io::Result<(FileId, FileInfo)> {
        dispatch!(mut self.open_file(path, options))
    }

    /// Adopts a file or block device that was opened elsewhere, with what [`inspect_file`](crate::inspect_file) said
    /// of it. The reactor lets go of it when it is closed; who else has it decides when the descriptor itself is
    /// closed.
    ///
    /// # Errors
    /// When the descriptor table is full, or in a simulation.
    pub fn adopt_file(&mut self, file: Arc<File>, info: &FileInfo) -> io::Result<FileId> {
        match &mut self.backend {
            Backend::Ring(ring) => ring.adopt_file(file, info),
            Backend::Simulated(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// Takes no more operations on a file, and closes it after those in flight.
    pub fn close_file(&mut self, file: FileId, in_flight: OnClose) {
        dispatch!(mut self.close_file(file, in_flight));
    }

    /// Asks for the size of a file; completes with [`Payload::FileBytes`](crate::Payload::FileBytes).
    pub fn file_bytes(&mut self, file: FileId, token: Token) {
        dispatch!(mut self.file_bytes(file, token));
    }

    /// Reads `length` bytes at `offset` of the file into `buffer` at `at`; completes with the buffer. Fewer bytes
    /// than asked for mean the end of the file.
    pub fn read_file(
        &mut self,
        file: FileId,
        offset: u64,
        buffer: Buffer,
        at: usize,
        length: usize,
        token: Token,
    ) {
        dispatch!(mut self.read_file(file, offset, buffer, at, length, token));
    }

    /// Writes `length` bytes of `source` at `at` to `offset` of the file; completes with the shared buffer. `durable`
    /// makes this write reach stable storage before it completes.
    #[expect(clippy::too_many_arguments, reason = "a write has this many parts")]
    pub fn write_file(
        &mut self,
        file: FileId,
        offset: u64,
        source: SharedBuffer,
        at: usize,
        length: usize,
        durable: bool,
        token: Token,
    ) {
        dispatch!(mut self.write_file(file, offset, source, at, length, durable, token));
    }

    /// Makes every write that completed before reach stable storage.
    pub fn sync_file(&mut self, file: FileId, token: Token) {
        dispatch!(mut self.sync_file(file, token));
    }

    /// Deallocates or zeroes a range of the file.
    pub fn allocate_file(&mut self, file: FileId, what: Allocate, offset: u64, length: u64, token: Token) {
        dispatch!(mut self.allocate_file(file, what, offset, length, token));
    }

    /// Completes `token` once when the descriptor (an eventfd, a completion channel) is readable.
    pub fn poll_readable(&mut self, descriptor: std::os::fd::RawFd, token: Token) {
        dispatch!(mut self.poll_readable(descriptor, token));
    }

    /// Ends every [`Reactor::poll_readable`] of a descriptor: each completes with `ECANCELED`, unless it had become
    /// readable. A descriptor that is polled stays open inside the kernel, even when it is closed.
    pub fn stop_polling(&mut self, descriptor: std::os::fd::RawFd) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.stop_polling(descriptor);
        }
    }
}

/// A descriptor for a program that waits in a loop of its own, beside other descriptors: with poll(2), or in an epoll.
/// It becomes readable when [`Reactor::turn`] has something to do, once [`prepare_to_wait`] has said that there is
/// nothing already.
///
/// The reactor is its thread's: only that one may turn it. A program watches its eventfds itself, not with
/// [`Reactor::poll_readable`]: the kernel signals no eventfd because of a write to another one.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] in a simulation, where nobody waits; the kernel's refusal.
pub fn descriptor(reactor: &Reactor) -> io::Result<BorrowedFd<'_>> {
    match &reactor.backend {
        Backend::Ring(ring) => ring::descriptor(ring),
        Backend::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Submits what was queued, and has the [`descriptor`] become readable with the next completion, wake-up or timer.
/// Returns whether the program may wait for that; if not, a [turn](Reactor::turn) with [`Wait::No`] has something to do
/// already. In a simulation it always has.
///
/// # Errors
/// When the ring is broken, or the kernel gives no descriptor.
pub fn prepare_to_wait(reactor: &mut Reactor) -> io::Result<bool> {
    match &mut reactor.backend {
        Backend::Ring(ring) => ring.prepare_to_wait(),
        Backend::Simulated(_) => Ok(false),
    }
}
