//! The memory of a request's data, in pieces.

use std::collections::TryReserveError;

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::FromBytes;

/// One piece of a request's data.
#[derive(Debug)]
enum Piece {
    /// The disk or the transport has it.
    InFlight,
    /// Ours alone.
    Buffer(Buffer),
    /// Shared with a send or a write.
    SharedBuffer(SharedBuffer),
}

/// The pieces of a request's data, each of the core's chunk size but the last. Keeps its capacity from life to life.
#[derive(Debug)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// None, with room for so many.
    pub(super) fn try_with_capacity(count: usize) -> Result<Self, TryReserveError> {
        let mut pieces = Vec::new();
        pieces.try_reserve_exact(count)?;
        Ok(Self(pieces))
    }

    /// Makes room for so many more.
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives them all back.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Gives back all but the first ones.
    #[inline(always)]
    pub(super) fn truncate(&mut self, count: usize) {
        self.0.truncate(count);
    }

    /// Adds a buffer.
    #[inline(always)]
    pub(super) fn push(&mut self, buffer: Buffer) {
        self.0.push(Piece::Buffer(buffer));
    }

    /// Adds a shared buffer, which is made in its place: moved there, it would be read before it is written.
    #[inline(always)]
    pub(super) fn push_shared(&mut self, shared_buffer: SharedBuffer) {
        self.0.extend(std::iter::once_with(move || Piece::SharedBuffer(shared_buffer)));
    }

    /// A buffer is back in its place.
    #[inline(always)]
    pub(super) fn put(&mut self, index: usize, buffer: Buffer) {
        self.0[index] = Piece::Buffer(buffer);
    }

    /// A shared buffer is back in its place.
    #[inline(always)]
    pub(super) fn put_shared(&mut self, index: usize, shared_buffer: SharedBuffer) {
        self.0[index] = Piece::SharedBuffer(shared_buffer);
    }

    /// Takes a buffer for an operation that fills it.
    #[inline(always)]
    pub(super) fn take_buffer(&mut self, index: usize) -> Buffer {
        self.0[index].take_buffer()
    }

    /// Takes a piece for an operation that reads it.
    #[inline(always)]
    pub(super) fn take_shared(&mut self, index: usize) -> SharedBuffer {
        self.0[index].take_shared()
    }

    /// Takes them all, in order, for operations that fill them.
    #[inline(always)]
    pub(super) fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> {
        self.0.iter_mut().map(Piece::take_buffer)
    }

    /// Takes them all, in order, for operations that read them.
    #[inline(always)]
    pub(super) fn take_all_shared(&mut self) -> impl Iterator<Item = SharedBuffer> {
        self.0.iter_mut().map(Piece::take_shared)
    }

    /// The first piece, if it is a buffer and here.
    pub(super) fn first(&self) -> Option<&Buffer> {
        match self.0.first() {
            Some(Piece::Buffer(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// A record of the list that is in the first piece.
    pub(super) fn record<T: FromBytes>(&self, index: usize) -> T {
        let data = self.first().expect("a list stays in its buffer until the command completes");
        T::read_from_bytes(&data[index * size_of::<T>()..][..size_of::<T>()]).expect("as long as a record")
    }

    /// Whether the first `count` pieces have the same bytes as the others.
    pub(super) fn are_equal(&self, count: usize) -> bool {
        let (host, disk) = self.0.split_at(count);
        let same = |(host, disk): (&Piece, &Piece)| match (host, disk) {
            (Piece::Buffer(host), Piece::Buffer(disk)) => **host == **disk,
            _ => false,
        };
        host.iter().zip(disk).all(same)
    }

    /// Puts bytes into the buffers; what they do not fill is zero.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in &mut self.0 {
            let Piece::Buffer(buffer) = piece else { continue };
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            buffer[now.len()..].fill(0);
            rest = later;
        }
    }
}

impl Piece {
    #[inline(always)]
    fn take_buffer(&mut self) -> Buffer {
        match std::mem::replace(self, Self::InFlight) {
            Self::Buffer(buffer) => buffer,
            Self::SharedBuffer(shared_buffer) => {
                shared_buffer.into_unique().expect("the disk has given its handle back")
            }
            Self::InFlight => unreachable!("one operation at a time has a piece"),
        }
    }

    #[inline(always)]
    fn take_shared(&mut self) -> SharedBuffer {
        match std::mem::replace(self, Self::InFlight) {
            Self::Buffer(buffer) => buffer.share(),
            Self::SharedBuffer(shared_buffer) => shared_buffer,
            Self::InFlight => unreachable!("one operation at a time has a piece"),
        }
    }
}
