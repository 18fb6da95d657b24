//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use ringfab_base::SlotId;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::Ring;
use super::clock::clock;
use super::descriptors::{Kind, Role, SocketFile, internet_address};
use super::in_flight::InFlight;
use super::operations::{OperationKind, Outcome};
use super::sockets::tcp_socket;
use super::timers::Alarm;
use crate::{Bind, Completion, ListenAddr, ListenerId, Payload, PeerAddr, SocketId, SocketOptions, Token};

/// Connections that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;
/// How long a listener rests after the kernel ran out of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);

impl Ring {
    pub(crate) fn listen(
        &mut self,
        address: &ListenAddr,
        options: &SocketOptions,
        token: Token,
    ) -> io::Result<Bind> {
        let (socket, address, file) = match address {
            ListenAddr::Tcp(address) => {
                let (socket, address) = listen_tcp(*address, options)?;
                (socket, ListenAddr::Tcp(address), None)
            }
            ListenAddr::Unix(path) => {
                let (socket, file) = listen_unix(path)?;
                (socket, ListenAddr::Unix(path.clone()), Some(file))
            }
        };
        let role = Role::Listener { token, file };
        let id = self.in_flight.add_descriptor(OwnedFd::from(socket), role)?;
        self.in_flight.start(token, id.index, OperationKind::Accept);
        Ok(Bind { listener: ListenerId(id), address })
    }

    pub(crate) fn close_listener(&mut self, listener: ListenerId) {
        let found = self.in_flight.descriptors.find(Kind::Listener, listener.0);
        let Some(index) = found else { return };
        if let Some(Role::Listener { file: Some(file), .. }) = self.in_flight.descriptors.role_mut(index) {
            file.remove();
        }
        self.in_flight.close(index);
    }
}

impl InFlight {
    /// A multi-shot accept has something to say: a connection, an error, or its end.
    pub(super) fn accepted(&mut self, name: u64, outcome: Outcome) {
        let Some(operation) = self.operations.get_mut(name) else { return };
        let (token, index) = (operation.token, operation.descriptor);
        let ending = self.draining || self.descriptors.is_closing(index);
        if outcome.result >= 0 {
            // SAFETY: the kernel just made this descriptor for us and told nobody else.
            let socket = unsafe { OwnedFd::from_raw_fd(outcome.result) };
            if !ending {
                self.adopt(socket, token);
            }
        }
        if outcome.more {
            return;
        }
        if !ending && is_transient(outcome.result) {
            return self.push(name);
        }
        self.operations.remove(name);
        if !ending {
            self.accept_failed(index, token, -outcome.result);
        }
        self.descriptors.end(self.queues.submitter(), index);
    }

    fn adopt(&mut self, socket: OwnedFd, token: Token) {
        // A peer that is gone already has no address and is nobody's loss.
        let Ok(peer) = SockRef::from(&socket).peer_addr() else { return };
        let peer = peer.as_socket().map_or(PeerAddr::Unix, PeerAddr::Tcp);
        match self.add_descriptor(socket, Role::socket(false)) {
            Ok(id) => {
                let payload = Payload::Accepted(SocketId(id), peer);
                self.ready.push_back(Completion { token, result: Ok(0), payload });
            }
            Err(error) => {
                // Without the kind around the address, by which the log tells peers apart.
                let peer = match peer {
                    PeerAddr::Tcp(peer) => Some(tracing::field::display(peer)),
                    PeerAddr::Unix => None,
                };
                tracing::warn!(%error, peer, "a connection was refused");
            }
        }
    }

    /// Rests a listener when something ran out, and reports any other error to its owner.
    fn accept_failed(&mut self, index: u32, token: Token, errno: i32) {
        if matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) {
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!(%error, rest = ?ACCEPT_REST, "cannot accept connections for now");
            let listener = self.descriptors.id(index);
            self.timers.set(clock() + ACCEPT_REST, Alarm::Accept(listener));
            return;
        }
        self.refuse(token, errno, Payload::None);
    }

    /// Accepts again after a rest, if the listener still lives.
    pub(super) fn resume_accept(&mut self, listener: SlotId) {
        if let Some(index) = self.descriptors.find(Kind::Listener, listener)
            && let Some(Role::Listener { token, .. }) = self.descriptors.role_mut(index)
        {
            let token = *token;
            self.start(token, index, OperationKind::Accept);
        }
    }
}

/// Whether accepting can go on at once: a connection came and the shot ended all the same, or one peer failed.
fn is_transient(result: i32) -> bool {
    let peer_failed = [libc::ECONNABORTED, libc::EINTR, libc::EAGAIN, libc::EPROTO, libc::EPERM];
    result >= 0 || peer_failed.contains(&-result)
}

fn listen_tcp(address: SocketAddr, options: &SocketOptions) -> io::Result<(Socket, SocketAddr)> {
    // Accepted sockets inherit every option of the listener.
    let socket = tcp_socket(address, options)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let bound = internet_address(&socket.local_addr()?)?;
    Ok((socket, bound))
}

fn listen_unix(path: &Path) -> io::Result<(Socket, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path, &address)? => {
            std::fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        result => result?,
    }
    socket.listen(BACKLOG)?;
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((socket, SocketFile { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() }))
}

/// Whether the path is a socket that nobody listens on.
fn is_stale(path: &Path, address: &SockAddr) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A live listener with a full queue must not block us; that answer means it lives.
    probe.set_nonblocking(true)?;
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    Ok(probe.connect(address).is_err_and(refused))
}

impl SocketFile {
    /// Removes the file, unless another one took its place.
    fn remove(&self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode));
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "the socket's file stays");
        }
    }
}
