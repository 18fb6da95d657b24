//! How a completion of the reactor finds its disk, and the disk its operation.

use ringfab_base::SlotId;
use ringfab_reactor::Token;

/// The tokens of one disk on one core: what it starts on the reactor bears one of these, and every completion with
/// one of them comes back to this disk and to no other.
///
/// A token names the disk, a kind of reactor operation in the disk's own numbering, and a slot of the disk's own with a
/// generation. So a completion finds its operation without a search, and one that comes late finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskTokens {
    owner: u8,
    disk: u16,
    /// How many wrappers are around it.
    depth: u8,
}

/// Bits of a token's kind for the device itself; the others say how many wrappers are around it.
const KIND_BITS: u32 = 4;

impl DiskTokens {
    /// Kinds of reactor operations that a device can tell apart: 0 to 15.
    pub const KINDS: u8 = 1 << KIND_BITS;

    /// Operations of a disk that can be in flight at once on a core.
    pub const SLOTS: u32 = 1 << 16;

    /// Wrappers that can be around a device.
    const DEPTH_MAX: u8 = u8::MAX >> KIND_BITS;

    /// Those of the disk with the number `disk` among those of its core, under the core's `owner` number for disks.
    pub const fn new(owner: u8, disk: u16) -> Self {
        Self { owner, disk, depth: 0 }
    }

    /// The token of a reactor operation that serves the slot `id`.
    ///
    /// # Panics
    /// For a kind or a slot beyond the bounds above.
    #[inline]
    pub fn token(self, kind: u8, id: SlotId) -> Token {
        assert!(kind < Self::KINDS && id.index < Self::SLOTS, "no such kind or slot");
        let index = u32::from(self.disk) << 16 | id.index;
        Token::new(self.owner, self.depth << KIND_BITS | kind, id.generation_low(), index)
    }

    /// The token of a reactor operation that serves no slot, for instance a poll of the device's descriptor.
    pub fn token_of_kind(self, kind: u8) -> Token {
        self.token(kind, SlotId { index: 0, generation: 0 })
    }

    /// The number of the disk that a token belongs to.
    #[inline]
    pub const fn disk_of(token: Token) -> u16 {
        (token.index >> 16) as u16
    }

    /// The kind of a token.
    #[inline]
    pub const fn kind_of(token: Token) -> u8 {
        token.kind & (Self::KINDS - 1)
    }

    /// The slot of a token, and the low bits of its generation.
    #[inline]
    pub const fn slot_of(token: Token) -> (u32, u16) {
        (token.index & (Self::SLOTS - 1), token.generation)
    }

    /// Those of the device inside of a wrapper.
    ///
    /// # Panics
    /// When more wrappers are nested than a token can tell apart.
    pub(crate) fn inner(self) -> Self {
        assert!(self.depth < Self::DEPTH_MAX, "too many wrappers");
        Self { depth: self.depth + 1, ..self }
    }

    /// Whether a token is of this disk itself, and not of a device inside of it.
    pub(crate) const fn is_own(self, token: Token) -> bool {
        token.kind >> KIND_BITS == self.depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_which_disk_which_layer_and_which_slot() {
        let outer = DiskTokens::new(3, u16::MAX);
        let inner = outer.inner();
        let id = SlotId { index: DiskTokens::SLOTS - 1, generation: 0x1_2345 };
        let token = inner.token(15, id);
        assert_eq!(token.owner, 3);
        assert_eq!((DiskTokens::disk_of(token), DiskTokens::kind_of(token)), (u16::MAX, 15));
        assert_eq!(DiskTokens::slot_of(token), (DiskTokens::SLOTS - 1, 0x2345));
        assert!(inner.is_own(token) && !outer.is_own(token));
    }
}
