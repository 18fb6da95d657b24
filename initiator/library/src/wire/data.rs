//! The data of an answer. A controller may send less than there is room for, wherever the length is an allocation
//! length.

use std::ptr;

use ringfab_spec::FromBytes;
use ringfab_spec::zerocopy::{Immutable, KnownLayout, Unaligned};

/// What came of the data that a command has room for. Behind it, the room is zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerData<'a> {
    room: &'a [u8],
    received: usize,
}

/// Fewer bytes came than are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) received: u32,
    pub(crate) needed: u32,
}

impl<'a> AnswerData<'a> {
    /// The first `received` bytes of `room`.
    pub(crate) fn new(room: &'a [u8], received: usize) -> Self {
        Self { room, received: received.min(room.len()) }
    }

    /// All of `room` came.
    #[cfg(test)]
    pub(crate) fn whole(room: &'a [u8]) -> Self {
        Self::new(room, room.len())
    }

    /// What came.
    pub(crate) fn received(&self) -> &'a [u8] {
        &self.room[..self.received]
    }

    /// What came as a structure, zero where it has not come. The room is as long as every structure.
    pub(crate) fn structure<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &'a T {
        T::ref_from_prefix(self.room).expect("room for the data of an Identify command").0
    }

    /// Checks that so many bytes came.
    pub(crate) fn require(&self, needed: usize) -> Result<(), Short> {
        if self.received >= needed {
            return Ok(());
        }
        Err(Short { received: self.received as u32, needed: needed as u32 })
    }

    /// Checks that all came of a structure up to the end of this field.
    pub(crate) fn require_through<T, F>(&self, structure: &T, field: &F) -> Result<(), Short> {
        let start = ptr::from_ref(field).addr() - ptr::from_ref(structure).addr();
        self.require(start + size_of::<F>())
    }
}
