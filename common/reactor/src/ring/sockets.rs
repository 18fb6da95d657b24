//! Stream sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::Ring;
use super::descriptors::{Kind, Owner, Role, internet_address};
use super::in_flight::InFlight;
use super::operations::{Operation, OperationKind};
use crate::record::RecordControl;
use crate::{Payload, ReceiveOp, SendBatch, SocketId, SocketOptions, Token};

impl Ring {
    pub(crate) fn connect(
        &mut self,
        address: SocketAddr,
        options: &SocketOptions,
        token: Token,
    ) -> io::Result<SocketId> {
        let socket = tcp_socket(address, options)?;
        self.start_to_connect(socket, SockAddr::from(address), token)
    }

    pub(crate) fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<SocketId> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        self.start_to_connect(socket, SockAddr::unix(path)?, token)
    }

    fn start_to_connect(&mut self, socket: Socket, peer: SockAddr, token: Token) -> io::Result<SocketId> {
        let id = self.attach_socket(socket.into(), false)?;
        self.in_flight.start(token, id.0.index, OperationKind::Connect(Box::new(peer)));
        Ok(id)
    }

    pub(crate) fn socket_addresses(&self, socket: SocketId) -> io::Result<(SocketAddr, SocketAddr)> {
        let index =
            self.in_flight.find_socket(socket).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let fd =
            self.in_flight.descriptors.fd(index).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let socket = SockRef::from(&fd);
        Ok((internet_address(&socket.local_addr()?)?, internet_address(&socket.peer_addr()?)?))
    }

    pub(crate) fn receive(&mut self, socket: SocketId, operation: Box<ReceiveOp>, token: Token) {
        assert!(operation.capacity() > 0, "a receive without room would look like the end of the stream");
        match self.in_flight.find_socket(socket) {
            Some(index) => self.in_flight.start_receive(token, index, operation),
            None => self.in_flight.refuse(token, libc::ECANCELED, Payload::Receive(operation)),
        }
    }

    pub(crate) fn send(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token) {
        let Some(index) = self.in_flight.find_socket(socket) else {
            return self.in_flight.refuse(token, libc::ECANCELED, Payload::Send(batch));
        };
        if let Some(Role::Socket { sends, .. }) = self.in_flight.descriptors.role_mut(index) {
            assert_eq!(*sends, 0, "one send per socket may be in flight");
            *sends += 1;
        }
        self.in_flight.descriptors.begin(index);
        let sealed = self.in_flight.descriptors.is_protected(index);
        if sealed && batch.is_record() {
            clear_error(self.in_flight.descriptors.fd(index));
        }
        let held = OperationKind::Send { batch, sealed };
        let name = self.in_flight.operations.insert(Operation { token, descriptor: index, held });
        self.in_flight.sends.push(name);
    }

    pub(crate) fn shutdown_write(&mut self, socket: SocketId) {
        let Some(index) = self.in_flight.find_socket(socket) else { return };
        if let Some(Role::Socket { sends, shutdown, .. }) = self.in_flight.descriptors.role_mut(index)
            && *sends > 0
        {
            *shutdown = true;
            return;
        }
        self.in_flight.shutdown_now(index);
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        let Some(index) = self.in_flight.find_socket(socket) else { return };
        if let Some(fd) = self.in_flight.descriptors.fd(index)
            && let Err(error) = SockRef::from(&fd).set_linger(None)
        {
            tracing::debug!(%error, fd = fd.as_raw_fd(), "perhaps reset, not closed");
        }
        self.in_flight.close(index);
    }

    pub(crate) fn abort_socket(&mut self, socket: SocketId) {
        let Some(index) = self.in_flight.find_socket(socket) else { return };
        if let Some(fd) = self.in_flight.descriptors.fd(index)
            && let Err(error) = SockRef::from(&fd).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, fd = fd.as_raw_fd(), "closed without a reset");
        }
        self.in_flight.close(index);
    }

    /// The socket, and whether the kernel protects its records.
    pub(crate) fn detach_socket(&mut self, socket: SocketId) -> (OwnedFd, bool) {
        let index = self.in_flight.find_socket(socket).expect("only a live socket can be detached");
        let protected = self.in_flight.descriptors.is_protected(index);
        assert_eq!(
            self.in_flight.descriptors.in_flight(index),
            0,
            "a socket is detached with nothing in flight"
        );
        let fd = self.in_flight.descriptors.release(self.in_flight.queues.submitter(), index);
        let Some(Owner::Own(fd)) = fd else { unreachable!("a live socket has a descriptor of its own") };
        (fd, protected)
    }

    pub(crate) fn attach_socket(&mut self, fd: OwnedFd, protected: bool) -> io::Result<SocketId> {
        Ok(SocketId(self.in_flight.add_descriptor(fd, Role::socket(protected))?))
    }
}

impl InFlight {
    fn start_receive(&mut self, token: Token, descriptor: u32, mut operation: Box<ReceiveOp>) {
        let protected = self.descriptors.is_protected(descriptor);
        operation.control = protected.then(RecordControl::default);
        // What such a socket has left behind it does not say.
        let poll_first = self.descriptors.is_drained(descriptor) && !protected;
        self.descriptors.begin(descriptor);
        let held = OperationKind::Receive { operation, poll_first };
        let name = self.operations.insert(Operation { token, descriptor, held });
        self.receives.push(name);
    }

    /// The kernel fills a receive's window only when it is entered to run deferred work, which this thread alone
    /// does, and what it has filled then has a completion: a receive ends with the first bytes that it gets, since
    /// none asks for more (MSG_WAITALL), and none is left to threads of the kernel. So when all completions were
    /// taken, windows of receives that are still in flight have nothing in them, and their pages can go. Giving them
    /// back is a system call that runs no deferred work.
    pub(crate) fn trim_receives(&mut self, count_max: usize) {
        self.reap();
        if !self.queues.has_overflown() {
            self.operations.trim_receives(count_max);
        }
    }

    /// A send has ended: an end of stream that waited for it follows.
    pub(super) fn sent(&mut self, index: u32) {
        if let Some(Role::Socket { sends, shutdown, .. }) = self.descriptors.role_mut(index) {
            *sends -= 1;
            if *shutdown && *sends == 0 {
                *shutdown = false;
                self.shutdown_now(index);
            }
        }
    }

    fn shutdown_now(&self, index: u32) {
        let Some(fd) = self.descriptors.fd(index) else { return };
        // A socket that is not connected any more has nothing left to end; the reader learns of that.
        if let Err(error) = SockRef::from(&fd).shutdown(std::net::Shutdown::Write) {
            tracing::debug!(%error, fd = fd.as_raw_fd(), "no end of stream sent");
        }
    }

    #[inline]
    fn find_socket(&self, socket: SocketId) -> Option<u32> {
        self.descriptors.find(Kind::Socket, socket.0)
    }
}

/// Clears the error of a socket: it keeps that of a bad record, of which the peer is to be told, and the kernel sends
/// nothing as long as there is one.
#[cold]
fn clear_error(fd: Option<BorrowedFd<'_>>) {
    if let Some(Ok(Some(error))) = fd.map(|fd| SockRef::from(&fd).take_error()) {
        tracing::debug!(%error, "the error of a socket is cleared");
    }
}

/// A TCP socket for `address` with everything set that must be set before it connects or listens.
pub(super) fn tcp_socket(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    // Urgent bytes are bytes of the stream like all others. Out of it they would be missing there, and wake a receive
    // that then finds nothing: after some of these in vain the kernel has a thread wait in it, which fills its window
    // whenever it likes.
    socket.set_out_of_band_inline(true)?;
    if let Some(name) = &options.congestion {
        let refused = |error: io::Error| {
            io::Error::new(error.kind(), format!("congestion control {name:?} is not available: {error}"))
        };
        socket.set_tcp_congestion(name.as_bytes()).map_err(refused)?;
    }
    if let Some(timeout) = options.user_timeout {
        socket.set_tcp_user_timeout(Some(timeout))?;
    }
    if options.reset_if_killed {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    if let Some(idle) = options.keep_alive {
        let idle = idle.max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))?;
    }
    set_class_and_buffers(&socket, address, options)?;
    Ok(socket)
}

/// What concerns streams and datagrams.
pub(super) fn set_class_and_buffers(
    socket: &Socket,
    address: SocketAddr,
    options: &SocketOptions,
) -> io::Result<()> {
    if let Some(dscp) = options.dscp {
        // The two bits below it are the kernel's, for explicit congestion notification.
        let class = u32::from(dscp) << 2;
        match address {
            SocketAddr::V4(_) => socket.set_tos_v4(class)?,
            SocketAddr::V6(_) => socket.set_tclass_v6(class)?,
        }
    }
    if let Some(bytes) = options.buffer_bytes {
        socket.set_send_buffer_size(bytes as usize)?;
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    Ok(())
}
