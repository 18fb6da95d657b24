//! Starts and ends the [flushes](super::flushes) that the control side asks for.

use std::num::NonZeroI32;

use ringfab_block::{Finished, Operation, Started};

use super::Resources;
use super::flushes::Flushed;
use crate::model::disk_failure::{DiskAction, DiskFailure};

impl Resources {
    /// Flushes a disk for the control side, which may have given up before it is over.
    pub(crate) fn flush_for_control(&mut self, disk: usize, reply: Flushed) {
        let Self { disks, reactor, disk_operations, .. } = self;
        let Some(open) = disks.get_mut(disk) else {
            return tell(&reply, Err("it is not open".to_owned()));
        };
        if !open.disk.properties().volatile_cache {
            return tell(&reply, Ok(()));
        }
        let tag = disk_operations.flushes.begin(disk, reply);
        match open.disk.start(reactor, Operation::Flush, tag) {
            Started::Finished(finished) => self.flushed_for_control(&finished),
            Started::Pending => {
                open.progress.begin();
                let _with_the_end_of_the_turn = disk_operations.start();
            }
        }
    }

    /// A disk has finished an operation that is of no queue.
    #[cold]
    pub(crate) fn flushed_for_control(&mut self, finished: &Finished) {
        let Some(flush) = self.disk_operations.flushes.end(finished.tag) else { return };
        let outcome = finished.result.map_err(|error| {
            let errno = finished.errno.map(NonZeroI32::get);
            if let Some(open) = self.disks.get(flush.disk) {
                let failure = DiskFailure { what: DiskAction::Flush, error, errno };
                open.note_failure(self.reactor.now(), failure);
            }
            error.to_string()
        });
        tell(&flush.reply, outcome);
    }
}

fn tell(reply: &Flushed, outcome: Result<(), String>) {
    if reply.send(outcome).is_err() {
        tracing::debug!("nobody waits any more for a flush");
    }
}
