//! The memory for what comes from a host: in-capsule data, and transfers that were asked for.

use ringfab_memory::{Buffer, Pool, SharedBuffer};
use ringfab_spec::SubmissionEntry;

/// The capsule that is being received.
#[derive(Debug)]
pub(super) struct Capsule {
    pub(super) sqe: SubmissionEntry,
    /// Bytes of its data.
    pub(super) bytes: u32,
    /// None until there is a buffer.
    pub(super) data: Option<SharedBuffer>,
}

impl Capsule {
    /// Finds memory for the data. Returns whether there was some.
    pub(super) fn reserve(&mut self, pool: &Pool) -> bool {
        if self.data.is_none() {
            self.data = pool.take(self.bytes as usize).map(Buffer::share);
        }
        self.data.is_some()
    }
}

/// A transfer: pieces of one size, of which the last may be shorter.
#[derive(Debug, Default)]
struct Transfer {
    pieces: Vec<(u64, SharedBuffer)>,
}

/// The transfers of a connection, by the engine's tags.
#[derive(Debug)]
pub(super) struct Transfers(Box<[Transfer]>);

impl Transfers {
    pub(super) fn new(count_max: u16) -> Self {
        Self((0..count_max).map(|_| Transfer::default()).collect())
    }

    /// Notes the memory of a transfer that begins.
    pub(super) fn begin(&mut self, tag: u16, pieces: impl Iterator<Item = (u64, Buffer)>) {
        let transfer = &mut self.0[usize::from(tag)];
        transfer.pieces.extend(pieces.map(|(id, buffer)| (id, buffer.share())));
    }

    /// The piece with an offset of a transfer, and the offset in it.
    pub(super) fn find(&self, tag: u16, offset: u32) -> Option<(&SharedBuffer, usize)> {
        let pieces = &self.0.get(usize::from(tag))?.pieces;
        let size = pieces.first()?.1.len();
        let (index, within) = (offset as usize / size, offset as usize % size);
        Some((&pieces.get(index)?.1, within))
    }

    /// Gives the pieces of a transfer back.
    pub(super) fn end(&mut self, tag: u16) -> impl Iterator<Item = (u64, SharedBuffer)> + '_ {
        self.0[usize::from(tag)].pieces.drain(..)
    }

    /// Gives all pieces back.
    pub(super) fn end_all(&mut self) -> impl Iterator<Item = (u64, SharedBuffer)> + '_ {
        self.0.iter_mut().flat_map(|transfer| transfer.pieces.drain(..))
    }
}
