//! One core's handle of an image.

use std::sync::Arc;

use ringfab_block::{
    BlockDevice, BlockError, Discarded, DiskProperties, DiskTokens, Finished, OpenError, Operation, Started,
    Tag,
};
use ringfab_reactor::{Completion, PreferredSizes, Reactor};

use crate::native::{Answered, Calls, Errno, Image, Pending};
use crate::shared::Shared;
use crate::steps;

/// The unit of a disk's offsets. RBD has none, but every host has blocks of this size or more.
const OFFSET_ALIGN: u32 = 512;

/// What the storage daemons allocate at least, as they are set up by default. Less costs a read before it.
const WRITE_BYTES: u32 = 4096;

/// What librbd leaves out of a discard at both ends, as it is set up by default (`rbd_discard_granularity_bytes`).
const DISCARD_BYTES: u64 = 64 << 10;

/// A write of this length is as fast as any. Longer ones only take longer, though an object may be longer.
const OPTIMAL_BYTES: u64 = 1 << 20;

/// The largest piece that is compared and written as one step: a block of a host.
const COMPARE_BYTES_MAX: u32 = 4096;

/// What older libraries compare and write at once: no more than a sector.
const SECTOR_BYTES: u32 = 512;

/// The only reactor operation: a poll of the calls' eventfd.
const POLL: u8 = 0;

/// A core's handle. All cores have the same image.
#[derive(Debug)]
pub(crate) struct RbdDevice {
    shared: Arc<Shared>,
    image: Arc<Image>,
    properties: DiskProperties,
    tokens: DiskTokens,
    calls: Calls,
}

impl RbdDevice {
    /// A handle of the image that the last look has found.
    ///
    /// # Errors
    /// Why there is none, as the end of a sentence.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        read_only: bool,
        reactor: &mut Reactor,
        tokens: DiskTokens,
    ) -> Result<Self, String> {
        let image = shared.latest().ok_or("nobody has looked at it")?;
        let calls = Calls::new(image.connection().library()).map_err(|error| error.to_string())?;
        let properties = properties(&image, read_only);
        let device = Self { shared: Arc::clone(shared), image, properties, tokens, calls };
        device.poll(reactor);
        Ok(device)
    }

    fn poll(&self, reactor: &mut Reactor) {
        reactor.poll_readable(self.calls.descriptor(), self.tokens.token_of_kind(POLL));
    }

    /// Has librbd do a part of an operation, or finishes it with the error.
    fn submit(&mut self, pending: Pending) -> Result<(), Finished> {
        self.calls.start(pending).map_err(|(pending, Errno(errno))| self.fail(pending, errno))
    }

    /// librbd has answered: the next part of the operation begins, or it has finished.
    fn advance(&mut self, answered: Answered) -> Option<Finished> {
        let Answered { pending, result } = answered;
        if result < 0 {
            return Some(self.fail(pending, i32::try_from(-result).unwrap_or(libc::EIO)));
        }
        if let Operation::Read { buffer, .. } = &pending.operation
            && result != buffer.len() as i64
        {
            return Some(pending.operation.finish(pending.tag, Err(BlockError::Shrunk)));
        }
        let flushes = self.properties.volatile_cache;
        match steps::next(&pending.operation, pending.request, flushes) {
            Some(request) => self.submit(Pending { request, ..pending }).err(),
            None => Some(pending.operation.finish(pending.tag, Ok(()))),
        }
    }

    #[cold]
    fn fail(&self, pending: Pending, errno: i32) -> Finished {
        let error = error_of(&pending.operation, errno);
        if error != BlockError::Miscompare {
            self.shared.note_error(&pending.image, errno);
        }
        pending.operation.finish(pending.tag, Err(error)).with_errno(Some(errno))
    }

    /// The next operation that the answers have finished.
    fn next(&mut self) -> Option<Finished> {
        loop {
            let answered = self.calls.next_answered()?;
            let finished = self.advance(answered);
            if finished.is_some() {
                return finished;
            }
        }
    }
}

impl BlockDevice for RbdDevice {
    fn properties(&self) -> DiskProperties {
        self.properties
    }

    fn start(&mut self, _: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let refused = if self.calls.is_full() {
            Some(BlockError::Busy)
        } else {
            straddles(&operation, compare_unit(&self.image)).then_some(BlockError::NotSupported)
        };
        if let Some(error) = refused {
            return Started::Finished(operation.finish(tag, Err(error)));
        }
        let request = steps::first(&operation);
        match self.submit(Pending { operation, tag, image: Arc::clone(&self.image), request }) {
            Ok(()) => Started::Pending,
            Err(finished) => Started::Finished(finished),
        }
    }

    fn on_completion(&mut self, reactor: &mut Reactor, _: Completion) -> Option<Finished> {
        self.calls.take_answers();
        self.poll(reactor);
        self.next()
    }

    fn next_finished(&mut self, _: &mut Reactor) -> Option<Finished> {
        self.next()
    }

    fn close(&mut self, reactor: &mut Reactor) {
        reactor.stop_polling(self.calls.descriptor());
    }

    /// An image without a watch does not hear that it has grown. The last look has opened it anew.
    fn resize(&mut self, bytes: u64) {
        self.properties.bytes = bytes;
        if self.image.facts().watched {
            return;
        }
        if let Some(latest) = self.shared.latest().filter(|latest| latest.facts() == self.image.facts()) {
            self.image = latest;
        }
    }

    fn reopen(&mut self, _: &mut Reactor) -> Result<(), OpenError> {
        let Some(latest) = self.shared.latest() else { return Ok(()) };
        self.properties = properties(&latest, self.properties.read_only);
        self.image = latest;
        self.shared.note_reopened(&self.image);
        Ok(())
    }
}

/// What an image can do. Its size is what the image's look has found; the target says when it changes.
fn properties(image: &Image, read_only: bool) -> DiskProperties {
    let facts = image.facts();
    DiskProperties::new(image.bytes_seen())
        .with_offset_align(OFFSET_ALIGN)
        .with_read_only(read_only)
        .with_volatile_cache(facts.cached)
        // librbd leaves out what frees no space. It could be told to write zeroes there, but hosts discard much more
        // often than they rely on what they read then, and who wants zeroes can write them.
        .with_discarded(Discarded::ZeroesOrBefore)
        .with_write_zeroes_deallocates(true)
        .with_thin(true)
        .with_preferred(PreferredSizes {
            write: WRITE_BYTES,
            discard: DISCARD_BYTES.min(facts.object_bytes) as u32,
            optimal_write: facts.stripe_unit.min(OPTIMAL_BYTES) as u32,
        })
        .with_compare_and_write(compare_bytes_max(compare_unit(image)))
}

/// What is compared and written as one step lies in one of these. A stripe unit is in one object.
fn compare_unit(image: &Image) -> u64 {
    let stripe_unit = image.facts().stripe_unit;
    if image.connection().library().compares_stripes() {
        return stripe_unit;
    }
    if stripe_unit.is_multiple_of(u64::from(SECTOR_BYTES)) { SECTOR_BYTES.into() } else { stripe_unit }
}

/// The most that can be compared and written wherever it begins at a multiple of itself.
fn compare_bytes_max(unit: u64) -> u32 {
    let sizes = [COMPARE_BYTES_MAX, OFFSET_ALIGN];
    sizes.into_iter().find(|size| unit.is_multiple_of(u64::from(*size))).unwrap_or(0)
}

/// Whether an operation would have to be one step across the end of a unit.
fn straddles(operation: &Operation, unit: u64) -> bool {
    match *operation {
        Operation::CompareAndWrite { offset, length, .. } => offset % unit + u64::from(length) > unit,
        _ => false,
    }
}

/// The one place where the library's errors become ours.
fn error_of(operation: &Operation, errno: i32) -> BlockError {
    match (errno, operation) {
        (libc::EILSEQ, Operation::CompareAndWrite { .. }) => BlockError::Miscompare,
        (libc::ENOSPC | libc::EDQUOT, _) => BlockError::NoSpace,
        (libc::EROFS, _) => BlockError::ReadOnly,
        // Blocklisted; the image or the snapshot was removed.
        (libc::ESHUTDOWN | libc::ENOENT, _) => BlockError::Removed,
        (libc::EOPNOTSUPP, _) => BlockError::NotSupported,
        // What lies in too many objects for a library that is stricter than this one.
        (libc::EINVAL, Operation::CompareAndWrite { .. }) => BlockError::NotSupported,
        (_, Operation::Read { .. }) => BlockError::Read,
        _ => BlockError::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_errors_become_those_of_a_disk() {
        let discard = Operation::Discard { offset: 0, length: 512 };
        for (errno, error) in [
            (libc::ENOSPC, BlockError::NoSpace),
            (libc::EDQUOT, BlockError::NoSpace),
            (libc::EROFS, BlockError::ReadOnly),
            (libc::ESHUTDOWN, BlockError::Removed),
            (libc::ENOENT, BlockError::Removed),
            (libc::EOPNOTSUPP, BlockError::NotSupported),
            (libc::EIO, BlockError::Write),
            (libc::EILSEQ, BlockError::Write),
        ] {
            assert_eq!(error_of(&discard, errno), error, "{errno}");
        }
        assert_eq!(error_of(&Operation::Flush, libc::EIO), BlockError::Write);
    }

    #[test]
    fn no_more_is_compared_and_written_than_lies_in_one_object_wherever_it_is() {
        for (unit, most) in [(4 << 20, 4096), (4096, 4096), (8192, 4096), (6144, 512), (512, 512), (1000, 0)]
        {
            assert_eq!(compare_bytes_max(unit), most, "{unit}");
        }
    }
}
