//! A datagram, and what the kernel needs to know of it.

use std::fmt;
use std::net::SocketAddr;
use std::ptr;

use socket2::{SockAddr, SockAddrStorage};

/// One datagram: one that is sent, or room for one that is received. It is boxed, moves into the reactor while it is in
/// flight and comes back in [`Payload::Datagram`](crate::Payload::Datagram). Nothing is allocated after construction.
pub struct Datagram {
    room: Box<[u8]>,
    length: usize,
    peer: Option<SocketAddr>,
    truncated: bool,
    name: SockAddrStorage,
    vector: libc::iovec,
    message: libc::msghdr,
}

impl Datagram {
    /// The most bytes that a datagram carries: a UDP packet of IPv4 (RFC 768, RFC 791).
    pub const BYTES_MAX: usize = 65_507;

    /// An empty one with room for so many bytes.
    ///
    /// # Panics
    /// For more than [`Datagram::BYTES_MAX`].
    pub fn with_room(bytes_max: usize) -> Box<Self> {
        assert!(bytes_max <= Self::BYTES_MAX, "no datagram carries more");
        // SAFETY: the all-zero bit pattern is a valid, empty `iovec` and `msghdr`.
        let (vector, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Box::new(Self {
            room: vec![0; bytes_max].into_boxed_slice(),
            length: 0,
            peer: None,
            truncated: false,
            name: SockAddrStorage::zeroed(),
            vector,
            message,
        })
    }

    /// Addresses it, and copies what is to be sent.
    ///
    /// # Panics
    /// For more bytes than it has room for.
    pub fn set(&mut self, to: SocketAddr, bytes: &[u8]) {
        self.room[..bytes.len()].copy_from_slice(bytes);
        (self.length, self.peer, self.truncated) = (bytes.len(), Some(to), false);
    }

    /// What it carries.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.length]
    }

    /// Where it goes, or where it came from; nothing for room that was not used.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Whether the one that came was longer than the room for it. What did not fit is lost.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Has it received `bytes` from `peer`, as far as there is room. Returns how many that are.
    pub(crate) fn receive(&mut self, peer: SocketAddr, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.room.len());
        self.room[..length].copy_from_slice(&bytes[..length]);
        (self.length, self.peer, self.truncated) = (length, Some(peer), length < bytes.len());
        length
    }

    /// Points the message header at what is to be sent. The caller keeps `self` in place, on the heap, until the kernel
    /// is done.
    ///
    /// # Panics
    /// When it has no address.
    pub(crate) fn prepare_send(&mut self) -> *mut libc::msghdr {
        let to = SockAddr::from(self.peer.expect("whoever sends has said where"));
        let name_bytes = to.len();
        self.name = to.as_storage();
        self.aim(self.length, name_bytes)
    }

    /// Points the message header at the room. The caller keeps `self` in place, on the heap, until the kernel is done.
    pub(crate) fn prepare_receive(&mut self) -> *mut libc::msghdr {
        let name_bytes = self.name.size_of();
        self.aim(self.room.len(), name_bytes)
    }

    /// The kernel has received so many bytes, as the message header says.
    pub(crate) fn set_received(&mut self, length: usize) {
        let name = std::mem::replace(&mut self.name, SockAddrStorage::zeroed());
        // SAFETY: the kernel has written an address of this length to the storage, which was all zeroes or an address
        // before.
        let from = unsafe { SockAddr::new(name, self.message.msg_namelen) };
        (self.length, self.peer) = (length, from.as_socket());
        self.truncated = self.message.msg_flags & libc::MSG_TRUNC != 0;
    }

    /// It was not received.
    pub(crate) fn set_empty(&mut self) {
        (self.length, self.peer, self.truncated) = (0, None, false);
    }

    fn aim(&mut self, length: usize, name_bytes: libc::socklen_t) -> *mut libc::msghdr {
        self.vector = libc::iovec { iov_base: self.room.as_mut_ptr().cast(), iov_len: length };
        self.message.msg_name = ptr::from_mut(&mut self.name).cast();
        self.message.msg_namelen = name_bytes;
        self.message.msg_iov = &raw mut self.vector;
        self.message.msg_iovlen = 1;
        self.message.msg_flags = 0;
        &raw mut self.message
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("peer", &self.peer)
            .field("bytes", &self.length)
            .field("room", &self.room.len())
            .finish_non_exhaustive()
    }
}
