//! Sockets, listeners and files of a ring, and which of them the kernel still uses.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Once};

use io_uring::Submitter;
use ringfab_base::SlotId;

use super::operations::{NO_DESCRIPTOR, Target};
use crate::Token;

/// The table of descriptors; an index in it is also the slot of the kernel's registered files. A handle expires when
/// its descriptor begins to close, and the slot is free when the last operation on it has ended: that is why this is
/// no [`Slots`](ringfab_base::Slots).
pub(super) struct Descriptors {
    slots: Vec<Slot>,
    free: Vec<u32>,
    registered: bool,
    /// The kernel keeps a registered file that was given back until all operations have ended that began before, those
    /// on other files as well: a closed listener would go on taking connections for as long, and the peer of an aborted
    /// connection would not be reset.
    keeps_files: bool,
}

#[derive(Default)]
struct Slot {
    /// Whether the kernel knows the descriptor by its slot.
    registered: bool,
    /// Part of a handle; it changes when the handle dies.
    generation: u32,
    /// Operations in flight, cancellations included.
    in_flight: u32,
    closing: bool,
    descriptor: Option<Descriptor>,
}

/// An open descriptor.
pub(super) struct Descriptor {
    fd: Owner,
    pub(super) role: Role,
}

/// Who closes a descriptor.
pub(super) enum Owner {
    /// The table.
    Own(OwnedFd),
    /// The last of several: closing some files takes as long as their server likes, which a core does not wait for.
    Shared(Arc<File>),
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared(file) => file.as_fd(),
        }
    }
}

impl From<OwnedFd> for Owner {
    fn from(fd: OwnedFd) -> Self {
        Self::Own(fd)
    }
}

impl From<Arc<File>> for Owner {
    fn from(file: Arc<File>) -> Self {
        Self::Shared(file)
    }
}

/// What a descriptor is for.
pub(super) enum Role {
    /// A stream socket.
    Socket {
        /// Sends in flight.
        sends: u32,
        /// An end of stream follows the send in flight.
        shutdown: bool,
        /// The last receive left no data behind.
        drained: bool,
        /// The kernel protects its records: see [`TlsKeys`](crate::TlsKeys).
        protected: bool,
    },
    /// A socket for datagrams.
    Datagrams,
    /// A listening socket.
    Listener {
        /// What accepted connections complete.
        token: Token,
        /// The socket's file, removed with the listener.
        file: Option<SocketFile>,
    },
    /// A file or device.
    File {
        /// What direct I/O needs offsets to be aligned to; 1 without.
        offset_align: u32,
        /// Threads of the kernel take its reads and writes: see [`FileInfo::remote`](crate::FileInfo::remote).
        remote: bool,
    },
}

/// A Unix socket's place in the file system, and which file it was there.
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A number that names a live descriptor of a certain kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Socket,
    Datagrams,
    Listener,
    File,
}

impl Role {
    pub(super) fn socket(protected: bool) -> Self {
        Role::Socket { sends: 0, shutdown: false, drained: false, protected }
    }

    fn kind(&self) -> Kind {
        match self {
            Role::Socket { .. } => Kind::Socket,
            Role::Datagrams => Kind::Datagrams,
            Role::Listener { .. } => Kind::Listener,
            Role::File { .. } => Kind::File,
        }
    }
}

impl Descriptors {
    /// A table of `count` slots, registered with the kernel if it agrees.
    pub(super) fn new(count: u32, submitter: &Submitter<'_>) -> Self {
        let registered = match submitter.register_files_sparse(count) {
            Ok(()) => true,
            Err(error) => {
                // All rings of a process meet the same limit: once is enough.
                static TOLD: Once = Once::new();
                TOLD.call_once(|| {
                    tracing::warn!(
                        %error,
                        count,
                        "files are not registered, so each operation costs a little more: \
                         let the process open more files (ulimit -n, LimitNOFILE=)"
                    );
                });
                false
            }
        };
        let slots = (0..count).map(|_| Slot::default()).collect();
        Self { slots, free: (0..count).rev().collect(), registered, keeps_files: keeps_files() }
    }

    /// Adopts a descriptor: its handle.
    pub(super) fn insert(
        &mut self,
        submitter: &Submitter<'_>,
        fd: impl Into<Owner>,
        role: Role,
    ) -> io::Result<SlotId> {
        let fd = fd.into();
        let full = || io::Error::new(io::ErrorKind::QuotaExceeded, "the reactor's descriptor table is full");
        let index = *self.free.last().ok_or_else(full)?;
        let must_go_at_once = matches!(role, Role::Socket { .. } | Role::Listener { .. });
        let registered = self.registered && !(self.keeps_files && must_go_at_once);
        if registered {
            submitter.register_files_update(index, &[fd.as_fd().as_raw_fd()])?;
        }
        self.free.pop();
        let slot = &mut self.slots[index as usize];
        slot.registered = registered;
        slot.descriptor = Some(Descriptor { fd, role });
        Ok(SlotId { index, generation: slot.generation })
    }

    /// The index of a live handle of that kind.
    #[inline]
    pub(super) fn find(&self, kind: Kind, id: SlotId) -> Option<u32> {
        let slot = self.slots.get(id.index as usize)?;
        let live = slot.generation == id.generation && !slot.closing;
        let descriptor = slot.descriptor.as_ref()?;
        (live && descriptor.role.kind() == kind).then_some(id.index)
    }

    /// The descriptor itself, for system calls on it.
    pub(super) fn fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.slots.get(index as usize)?.descriptor.as_ref().map(|descriptor| descriptor.fd.as_fd())
    }

    /// What the descriptor is for.
    #[inline]
    pub(super) fn role_mut(&mut self, index: u32) -> Option<&mut Role> {
        Some(&mut self.slots.get_mut(index as usize)?.descriptor.as_mut()?.role)
    }

    /// How the kernel knows the descriptor.
    #[inline]
    pub(super) fn target(&self, index: u32) -> Target {
        if index == NO_DESCRIPTOR {
            return Target { number: index as i32, registered: self.registered };
        }
        let slot = &self.slots[index as usize];
        if slot.registered {
            return Target { number: index as i32, registered: true };
        }
        let number = slot.descriptor.as_ref().map_or(-1, |open| open.fd.as_fd().as_raw_fd());
        Target { number, registered: false }
    }

    /// One more operation is in flight.
    #[inline]
    pub(super) fn begin(&mut self, index: u32) {
        if index != NO_DESCRIPTOR {
            self.slots[index as usize].in_flight += 1;
        }
    }

    /// One fewer; the last one of a descriptor that is being closed closes it.
    #[inline]
    pub(super) fn end(&mut self, submitter: &Submitter<'_>, index: u32) {
        if index == NO_DESCRIPTOR {
            return;
        }
        let slot = &mut self.slots[index as usize];
        slot.in_flight -= 1;
        if slot.closing && slot.in_flight == 0 {
            drop(self.release(submitter, index));
        }
    }

    /// Whether the handle is dead and the descriptor only waits for its operations.
    #[inline]
    pub(super) fn is_closing(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| slot.closing)
    }

    /// Remembers whether the last receive left data behind.
    #[inline]
    pub(super) fn set_drained(&mut self, index: u32, now: bool) {
        if let Some(Role::Socket { drained, .. }) = self.role_mut(index) {
            *drained = now;
        }
    }

    /// Whether the last receive is known to have left nothing behind.
    #[inline]
    pub(super) fn is_drained(&mut self, index: u32) -> bool {
        matches!(self.role_mut(index), Some(Role::Socket { drained: true, .. }))
    }

    /// Whether the kernel protects the records of a socket.
    #[inline]
    pub(super) fn is_protected(&mut self, index: u32) -> bool {
        matches!(self.role_mut(index), Some(Role::Socket { protected: true, .. }))
    }

    /// The handle that lives there now.
    pub(super) fn id(&self, index: u32) -> SlotId {
        SlotId { index, generation: self.slots[index as usize].generation }
    }

    /// What direct I/O on a file needs offsets to be aligned to; 1 for everything else.
    pub(super) fn offset_align(&self, index: u32) -> u32 {
        match self.slots.get(index as usize).and_then(|slot| slot.descriptor.as_ref()) {
            Some(Descriptor { role: Role::File { offset_align, .. }, .. }) => *offset_align,
            _ => 1,
        }
    }

    /// How many operations are in flight.
    pub(super) fn in_flight(&self, index: u32) -> u32 {
        self.slots[index as usize].in_flight
    }

    /// Makes the handle dead. Without operations in flight the descriptor is closed at once, and otherwise `true`
    /// says that they should be cancelled.
    pub(super) fn close(&mut self, submitter: &Submitter<'_>, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        slot.closing = true;
        slot.generation = slot.generation.wrapping_add(1);
        if slot.in_flight == 0 {
            drop(self.release(submitter, index));
            return false;
        }
        true
    }

    /// Takes the descriptor out of the table and out of the kernel's.
    pub(super) fn release(&mut self, submitter: &Submitter<'_>, index: u32) -> Option<Owner> {
        let slot = &mut self.slots[index as usize];
        if !slot.closing {
            slot.generation = slot.generation.wrapping_add(1);
        }
        slot.closing = false;
        let descriptor = slot.descriptor.take()?;
        self.free.push(index);
        if slot.registered
            && let Err(error) = submitter.register_files_update(index, &[-1])
        {
            tracing::error!(%error, index, "a registered file could not be released");
        }
        Some(descriptor.fd)
    }
}

/// Whether the kernel is older than Linux 6.13.
fn keeps_files() -> bool {
    let Ok(system) = nix::sys::utsname::uname() else { return true };
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version < (6, 13)
}

/// Where a socket is, and where an accepted one comes from.
pub(super) fn internet_address(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not an internet socket"))
}
