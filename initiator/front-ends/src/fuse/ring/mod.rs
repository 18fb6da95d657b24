//! Requests that come over io_uring, served on the engine's thread.
//!
//! A read or write of whole blocks becomes one command, whose data go between the target and the memory that the kernel knows
//! by the entry: no copy of ours, no other thread, no allocation. What takes several commands, as a write of part of a block
//! does, is done by helpers: threads that wait on the blocking handle as those of `/dev/fuse` do. Everything else is answered
//! at once.

mod answer;
mod helpers;
mod server;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use fuser::Errno;
use ringfab_fuse::EntryId;
use ringfab_initiator::blocking::{Controller, Guest};
use ringfab_memory::ClassLayout;
use ringfab_reactor::MailboxSender;

use super::files::Files;
use super::handshake::BACKGROUND_MAX;
use server::Server;

/// What one request carries at most. It is the largest transfer of the engine, so that it takes one command, and a multiple of
/// the largest page.
pub(super) const PAYLOAD_BYTES: usize = 256 * 1024;
/// Entries of a queue, at least and at most. There is a queue for each processor, and who runs there uses no other.
const DEPTH: std::ops::RangeInclusive<usize> = 8..=32;
/// Entries of all queues together, as long as each has its least.
const ENTRIES: usize = 2 * BACKGROUND_MAX as usize;

/// How many entries a machine's channel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    queues: u16,
    depth: u16,
}

impl Size {
    /// For this machine.
    pub(super) fn here() -> io::Result<Self> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let queues = count(list.trim()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("not a list of processors: {list}"))
        })?;
        let depth = (ENTRIES / usize::from(queues)).clamp(*DEPTH.start(), *DEPTH.end()) as u16;
        Ok(Self { queues, depth })
    }

    fn entries(self) -> usize {
        usize::from(self.queues) * usize::from(self.depth)
    }

    /// The buffers that the engine needs for it.
    pub(super) fn buffers(self) -> Vec<ClassLayout> {
        vec![ClassLayout { buffer_bytes: PAYLOAD_BYTES, count: self.entries() }]
    }
}

/// The processors of a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let each = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    each.sum::<Option<u16>>().filter(|count| *count > 0)
}

/// Tells the channel's server what the mount has come to.
pub(super) struct Handle(MailboxSender<Note>);

impl Handle {
    /// Serves the file system whose `/dev/fuse` this is.
    pub(super) fn serve(&self, device: OwnedFd) {
        // Without the engine the kernel's requests end when the device is closed.
        let _gone = self.0.send(Note::Serve(device));
    }

    /// There is nothing to serve.
    pub(super) fn dismiss(&self) {
        let _gone = self.0.send(Note::Dismiss);
    }
}

/// What other threads tell the server.
enum Note {
    Serve(OwnedFd),
    Dismiss,
    /// A helper has done what an entry asked for; the bytes are the answer.
    Helped(EntryId, Result<Vec<u8>, Errno>),
}

/// Prepares a channel on the engine's thread, with as many helpers as that when they are needed.
pub(super) fn prepare(
    controller: &Controller,
    files: Arc<Files>,
    size: Size,
    helpers_max: usize,
) -> io::Result<Handle> {
    let (tell, told) = sync_channel(1);
    let invited = controller.invite(move |host| {
        let (server, result) = match Server::new(host, files, size, helpers_max) {
            Ok((server, handle)) => (Some(Box::new(server) as Box<dyn Guest>), Ok(handle)),
            Err(error) => (None, Err(error)),
        };
        // Who asked waits for it.
        let _gone = tell.send(result);
        server
    });
    let gone = |_| io::Error::other("the engine has ended");
    invited.map_err(|error| io::Error::other(error.to_string()))?;
    told.recv().map_err(gone)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_processors_is_counted() {
        for (list, expected) in [("0", 1), ("0-1", 2), ("0-3,8", 5), ("0-127,256-383", 256)] {
            assert_eq!(count(list), Some(expected), "{list}");
        }
        for list in ["", "a", "3-1", "0-", "0-65535"] {
            assert_eq!(count(list), None, "{list}");
        }
    }
}
