//! The loop's engine: operations in, completions out.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ringfab_memory::Pool;

use crate::backend::{Backend, dispatch};
use crate::bell::Bells;
use crate::datagrams::Datagrams;
use crate::files::Files;
use crate::record;
use crate::ring::{self, Ring};
use crate::sim;
use crate::{
    Bell, Bind, Completion, ListenAddr, ListenerId, Monitor, ReactorConfig, ReactorCounters, ReceiveOp,
    SendBatch, SocketId, SocketOptions, Time, TimerId, TlsKeys, TlsRefusal, Token, Wait, Waker,
};

/// A core's ring, or its simulation.
#[derive(Debug)]
pub struct Reactor {
    backend: Backend,
    /// None before somebody has asked for one.
    bells: Option<Bells>,
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

impl From<OwnedFd> for DetachedSocket {
    /// A stream socket that is connected, for a reactor with a ring.
    fn from(socket: OwnedFd) -> Self {
        Self(Detached::Kernel(socket, false))
    }
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

impl Reactor {
    /// A reactor over a new io_uring: single issuer, deferred task work, registered ring descriptor, files and buffers.
    ///
    /// # Errors
    /// The kernel's refusal, with what was asked for in the message.
    pub fn new(config: &ReactorConfig) -> io::Result<Self> {
        Ok(Self { backend: Backend::Ring(Box::new(Ring::new(config)?)), bells: None })
    }

    /// A reactor of a new core of `host` in a simulated world; also after a crash of the host, as its next boot.
    /// Dropping it is the end of its process: its sockets close, its operations on disks go on without it. After
    /// a crash of its host [`Reactor::turn`] fails, and operations vanish with what they hold.
    pub fn simulated(world: &sim::World, host: sim::HostId) -> Self {
        Self { backend: Backend::Simulated(Box::new(world.port(host))), bells: None }
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
        dispatch!(&self.backend, now())
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
        dispatch!(&mut self.backend, turn(wait))
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
        let next = dispatch!(&mut self.backend, next_completion());
        next.or_else(|| self.bells.as_mut()?.next())
    }

    /// A bell that completes `token` here when somebody rings it.
    pub fn bell(&mut self, token: Token) -> Bell {
        let waker = self.waker();
        self.bells.get_or_insert_with(|| Bells::new(waker)).bell(token)
    }

    /// Wakes this reactor from other threads.
    pub fn waker(&self) -> Waker {
        dispatch!(&self.backend, waker())
    }

    /// Lets other threads see what this reactor's loop is doing.
    pub fn monitor(&self) -> Monitor {
        dispatch!(&self.backend, monitor())
    }

    /// What it has done so far.
    pub fn counters(&self) -> ReactorCounters {
        dispatch!(&self.backend, counters())
    }

    /// Completes `token` at or soon after `at`.
    pub fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        dispatch!(&mut self.backend, set_timer(at, token))
    }

    /// Forgets a timer. One that has fired or was cancelled is ignored; no completion follows.
    pub fn cancel_timer(&mut self, timer: TimerId) {
        dispatch!(&mut self.backend, cancel_timer(timer));
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
        dispatch!(&mut self.backend, listen(address, options, token))
    }

    /// Stops accepting.
    pub fn close_listener(&mut self, listener: ListenerId) {
        dispatch!(&mut self.backend, close_listener(listener));
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
        dispatch!(&mut self.backend, connect(address, options, token))
    }

    /// The same, to a Unix socket. There are none in a simulation.
    ///
    /// # Errors
    /// When no socket could be made, or the path is too long for one.
    pub fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<SocketId> {
        match &mut self.backend {
            Backend::Ring(ring) => ring.connect_unix(path, token),
            Backend::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The addresses of the two ends of a TCP socket (local, peer).
    ///
    /// # Errors
    /// The kernel's answer for a socket that is not connected.
    pub fn socket_addresses(&self, socket: SocketId) -> io::Result<(SocketAddr, SocketAddr)> {
        dispatch!(&self.backend, socket_addresses(socket))
    }

    /// Receives at least one byte as `operation` was aimed; zero bytes mean the peer closed.
    pub fn receive(&mut self, socket: SocketId, operation: Box<ReceiveOp>, token: Token) {
        dispatch!(&mut self.backend, receive(socket, operation, token));
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
        dispatch!(&mut self.backend, send(socket, batch, token));
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
        dispatch!(&mut self.backend, shutdown_write(socket));
    }

    /// Closes a socket. Operations in flight on it complete with `ECANCELED` (or their result) first, which the owner
    /// waits for before it reuses what they hold; the handle is dead at once.
    pub fn close_socket(&mut self, socket: SocketId) {
        dispatch!(&mut self.backend, close_socket(socket));
    }

    /// As [`Reactor::close_socket`], but what the kernel has not sent yet is thrown away, and the peer is reset.
    /// After a plain close the kernel would go on sending it, for minutes if the network stalls.
    pub fn abort_socket(&mut self, socket: SocketId) {
        dispatch!(&mut self.backend, abort_socket(socket));
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

    /// Its files and block devices.
    #[inline]
    pub fn files(&mut self) -> Files<'_> {
        Files(&mut self.backend)
    }

    /// Its sockets for datagrams.
    #[inline]
    pub fn datagrams(&mut self) -> Datagrams<'_> {
        Datagrams(&mut self.backend)
    }

    /// Completes `token` once when the descriptor (an eventfd, a completion channel) is readable.
    pub fn poll_readable(&mut self, descriptor: std::os::fd::RawFd, token: Token) {
        dispatch!(&mut self.backend, poll_readable(descriptor, token));
    }

    /// Ends every [`Reactor::poll_readable`] of a descriptor: each completes with `ECANCELED`, unless it had become
    /// readable. A descriptor that is polled stays open inside the kernel, even when it is closed.
    pub fn stop_polling(&mut self, descriptor: std::os::fd::RawFd) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.stop_polling(descriptor);
        }
    }

    /// A descriptor for a program that waits in a loop of its own, beside other descriptors: with poll(2), or in an
    /// epoll. It becomes readable when [`Reactor::turn`] has something to do, once [`Reactor::prepare_to_wait`] has
    /// said that there is nothing already.
    ///
    /// The reactor is its thread's: only that one may turn it. A program watches its eventfds itself, not with
    /// [`Reactor::poll_readable`]: the kernel signals no eventfd because of a write to another one.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] in a simulation, where nobody waits; the kernel's refusal.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Ring(ring) => ring.descriptor(),
            Backend::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Submits what was queued, and has the [descriptor](Reactor::descriptor) become readable with the next
    /// completion, wake-up or timer. Returns whether the program may wait for that; if not, a
    /// [turn](Reactor::turn) with [`Wait::No`] has something to do already. In a simulation it always has.
    ///
    /// # Errors
    /// When the ring is broken, or the kernel gives no descriptor.
    pub fn prepare_to_wait(&mut self) -> io::Result<bool> {
        match &mut self.backend {
            Backend::Ring(ring) => ring.prepare_to_wait(),
            Backend::Simulated(_) => Ok(false),
        }
    }
}
