//! Requests that come over io_uring, served on the engine's thread.
//!
//! A read or write of whole blocks becomes one command. Its data moves between the target and the memory of the
//! kernel's entry, without a copy of ours, another thread or an allocation. Helpers do what takes several commands,
//! such as a write of part of a block. They are threads that wait on the blocking handle, like those of `/dev/fuse`.
//! Everything else is answered at once.

mod answer;
mod helpers;
mod server;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::Errno;
use ringfab_fuse::{EntryId, Queues};
use ringfab_initiator::blocking::{Controller, EngineClient};
use ringfab_memory::ClassLayout;
use ringfab_reactor::MailboxSender;

use super::files::Files;
use super::handshake::BACKGROUND_MAX;
use server::Server;

/// What one request carries at most. It is the largest transfer of the engine, so that it takes one command, and a
/// multiple of the largest page.
pub(super) const PAYLOAD_BYTES: usize = 256 * 1024;
/// Entries of a queue, at least and at most. There is a queue for each processor, and who runs there uses no other.
const DEPTH: std::ops::RangeInclusive<usize> = 8..=32;
/// Entries of all queues together, as long as each has its least.
const ENTRIES: usize = 2 * BACKGROUND_MAX as usize;

/// How many entries a machine's channel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelSize {
    queues: u16,
    depth: u16,
}

impl ChannelSize {
    /// For this machine.
    pub(super) fn here() -> io::Result<Self> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let queues = count(list.trim()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("not a list of processors: {list}"))
        })?;
        let depth = (ENTRIES / usize::from(queues)).clamp(*DEPTH.start(), *DEPTH.end()) as u16;
        Ok(Self { queues, depth })
    }

    /// The queues of one of several engines: every so many.
    fn of_engine(self, engine: u16, engines: u16) -> EngineQueues {
        let count = self.queues.saturating_sub(engine).div_ceil(engines);
        EngineQueues { numbers: Queues { first: engine, step: engines, count }, depth: self.depth }
    }

    /// The buffers that each of so many engines needs for it.
    pub(super) fn buffers(self, engines: u16) -> Vec<ClassLayout> {
        vec![ClassLayout { buffer_bytes: PAYLOAD_BYTES, count: self.of_engine(0, engines).entries() }]
    }
}

/// The queues of the kernel that one engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EngineQueues {
    numbers: Queues,
    depth: u16,
}

impl EngineQueues {
    fn entries(self) -> usize {
        usize::from(self.numbers.count) * usize::from(self.depth)
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

/// Tells the channel's servers what the mount has come to.
pub(super) struct Handle(Vec<MailboxSender<ServerMessage>>);

impl Handle {
    /// Serves the file system whose `/dev/fuse` this is.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(super) fn serve(&self, device: &OwnedFd) -> io::Result<()> {
        for server in &self.0 {
            // Without the engine the kernel's requests end when the device is closed.
            let _gone = server.send(ServerMessage::Serve(device.try_clone()?));
        }
        Ok(())
    }

    /// There is nothing to serve.
    pub(super) fn dismiss(&self) {
        for server in &self.0 {
            let _gone = server.send(ServerMessage::Dismiss);
        }
    }
}

/// From other threads to the server of an engine.
enum ServerMessage {
    Serve(OwnedFd),
    Dismiss,
    /// A helper has done what an entry asked for; the bytes are the reply.
    Finished(EntryId, Result<Vec<u8>, Errno>),
}

/// Prepares a channel on each engine's thread, with as many helpers in all as that when they are needed.
pub(super) fn prepare(
    controller: &Controller,
    files: &Arc<Files>,
    size: ChannelSize,
    helpers_max: usize,
) -> io::Result<Handle> {
    let engines = controller.threads() as u16;
    let mut servers = Handle(Vec::new());
    for engine in 0..engines {
        let queues = size.of_engine(engine, engines);
        if queues.entries() > 0 {
            let helpers_max = helpers_max.div_ceil(usize::from(engines));
            match start_server(controller, engine, files.clone(), queues, helpers_max) {
                Ok(server) => servers.0.push(server),
                Err(error) => {
                    servers.dismiss();
                    return Err(error);
                }
            }
        }
    }
    Ok(servers)
}

/// Starts the server of one of them.
fn start_server(
    controller: &Controller,
    engine: u16,
    files: Arc<Files>,
    queues: EngineQueues,
    helpers_max: usize,
) -> io::Result<MailboxSender<ServerMessage>> {
    controller.start_client(engine.into(), move |host, _| {
        let (server, messages) = Server::new(host, files, queues, helpers_max)?;
        Ok((Box::new(server) as Box<dyn EngineClient>, messages))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_of_the_kernel_has_one_engine() {
        for (queues, engines) in [(1, 1), (4, 1), (4, 2), (5, 2), (2, 3), (128, 5)] {
            let each = (0..engines)
                .map(|engine| ChannelSize { queues, depth: 8 }.of_engine(engine, engines).numbers);
            let numbers = |Queues { first, step, count }| (0..count).map(move |number| first + step * number);
            let mut all: Vec<u16> = each.flat_map(numbers).collect();
            all.sort_unstable();
            assert_eq!(all, (0..queues).collect::<Vec<_>>(), "{queues} queues, {engines} engines");
        }
    }

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
