//! What takes more than one command, or an admin command: threads do it that may wait.
//!
//! Changing a part of a block is a read and a write. Which blocks are allocated is asked by an admin command, and only
//! one engine has the queue for those.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use ringfab_initiator::blocking::{Controller, Run};
use ringfab_initiator::bytes::touched_blocks;
use ringfab_initiator::{IoError, Namespace};
use ringfab_proto::nbd::Extent;
use ringfab_reactor::MailboxSender;

use super::connection::ConnectionId;
use super::export::EXTENTS_MAX;

/// Threads of one engine's server at most. There is one until somebody needs more.
const THREADS_MAX: usize = 8;

/// What is to be done, for which request of which connection.
pub(crate) struct Chore {
    pub(crate) connection: ConnectionId,
    pub(crate) slot: u16,
    pub(crate) namespace: Namespace,
    pub(crate) work: Work,
}

/// The work itself. Offsets and lengths are in bytes.
pub(crate) enum Work {
    /// Write a part of a block.
    Write { offset: u64, bytes: Vec<u8>, fua: bool },
    /// Find out what is allocated; of the first extent only, if the client wants no more.
    Status { offset: u64, length: u32, one: bool },
}

/// What has come of it.
pub(crate) struct Done {
    pub(crate) connection: ConnectionId,
    pub(crate) slot: u16,
    pub(crate) result: Result<Vec<Extent>, IoError>,
}

/// The threads.
pub(crate) struct Chores {
    controller: Controller,
    done: MailboxSender<Done>,
    started: usize,
    work: Sender<Chore>,
    queue: Arc<Mutex<Receiver<Chore>>>,
}

impl Chores {
    pub(crate) fn new(controller: Controller, done: MailboxSender<Done>) -> Self {
        let (work, queue) = channel();
        Self { controller, done, started: 0, work, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Has something done; a [`Done`] follows. A request has two of these at most, so that their number is bounded.
    ///
    /// # Errors
    /// When there is no thread.
    pub(crate) fn start(&mut self, chore: Chore) -> io::Result<()> {
        if self.started < THREADS_MAX {
            match self.start_thread() {
                Ok(()) => self.started += 1,
                Err(error) if self.started == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, "no more threads"),
            }
        }
        self.work.send(chore).map_err(|_| io::Error::other("the queue is gone"))
    }

    fn start_thread(&self) -> io::Result<()> {
        let (controller, queue, done) = (self.controller.clone(), self.queue.clone(), self.done.clone());
        let thread = std::thread::Builder::new().name("nbd-helper".to_owned());
        let started = thread.spawn(move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(chore) = next else { return };
                let (connection, slot) = (chore.connection, chore.slot);
                let result = chore.run(&controller);
                // Without the server nobody waits for it.
                let _gone = done.send(Done { connection, slot, result });
            }
        });
        started.map(drop)
    }
}

impl Chore {
    fn run(self, controller: &Controller) -> Result<Vec<Extent>, IoError> {
        // Its number may be another disk's by now.
        let disk = controller.disk_of(&self.namespace);
        match self.work {
            Work::Write { offset, bytes, fua } => disk.write_at(offset, &bytes, fua).map(|()| Vec::new()),
            Work::Status { offset, length, one } => {
                let bytes = offset..offset + u64::from(length);
                let blocks = touched_blocks(&bytes, self.namespace.block_bytes);
                let runs = disk.allocation(blocks.start, blocks.end - blocks.start)?;
                Ok(extents(&runs, &bytes, &self.namespace, if one { 1 } else { EXTENTS_MAX }))
            }
        }
    }
}

/// Runs of blocks, which begin with the block of the first byte, as extents of bytes.
fn extents(runs: &[Run], bytes: &Range<u64>, namespace: &Namespace, most: usize) -> Vec<Extent> {
    let block = u64::from(namespace.block_bytes);
    let mut at = bytes.start - bytes.start % block;
    let mut extents = Vec::new();
    for run in runs {
        let (start, stop) = (at.max(bytes.start), (at + run.blocks * block).min(bytes.end));
        at += run.blocks * block;
        if start < stop {
            let zero = !run.allocated && namespace.deallocated_reads_zeroes;
            extents.push(Extent { length: (stop - start) as u32, hole: !run.allocated, zero });
        }
    }
    extents.truncate(most);
    extents
}

#[cfg(test)]
mod tests {
    use super::super::export::tests::export;
    use super::*;

    #[test]
    fn runs_of_blocks_become_extents_of_the_bytes_that_were_asked_for() {
        let namespace = export().namespace;
        let runs = [(2, true), (3, false), (100, true)].map(|(blocks, allocated)| Run { blocks, allocated });
        let of = |range: Range<u64>, most| {
            let found = extents(&runs, &range, &namespace, most);
            found.iter().map(|extent| (extent.length, extent.hole, extent.zero)).collect::<Vec<_>>()
        };
        assert_eq!(of(100..4096 * 6, 9), [(8092, false, false), (12_288, true, true), (4096, false, false)]);
        assert_eq!(of(0..4096 * 6, 1), [(8192, false, false)]);
        assert_eq!(of(4095..4097, 9), [(2, false, false)]);
        let mut silent = namespace;
        silent.deallocated_reads_zeroes = false;
        let found = extents(&runs[1..], &(0..4096), &silent, 9);
        assert_eq!(found, [Extent { length: 4096, hole: true, zero: false }], "it may read as anything");
    }
}
