//! Lengths, by what they count: logical blocks, bytes of a disk, and bytes of a command's data. Without metadata the
//! last two are the same number, but only [`DiskBytes::data`] says so.

use crate::limits::TRANSFER_BYTES_MAX;

/// The address of a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lba(pub(crate) u64);

/// A number of logical blocks. A field that counts from zero is converted by its accessor, such as
/// [`nlb`](ringfab_spec::SubmissionEntry::nlb).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Blocks(pub(crate) u64);

/// Bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DiskBytes(pub(crate) u64);

/// Bytes of a command's data, as the host, the transport and our buffers count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DataBytes(pub(crate) u32);

/// The size of a namespace. Here blocks become bytes: only blocks that the namespace has, whose bytes do not overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceSize {
    pub(crate) blocks: Blocks,
    /// Base two logarithm of the bytes of a logical block.
    pub(crate) block_shift: u32,
}

impl DiskBytes {
    /// As data of a command, unless that is more than a command may transfer.
    #[inline(always)]
    pub(crate) fn data(self) -> Option<DataBytes> {
        match u32::try_from(self.0) {
            Ok(bytes) if bytes <= TRANSFER_BYTES_MAX => Some(DataBytes(bytes)),
            _ => None,
        }
    }

    /// The same of an extent for which the command was checked already.
    #[inline(always)]
    pub(crate) fn checked_data(self) -> DataBytes {
        debug_assert!(self.data().is_some(), "longer than a transfer");
        DataBytes(self.0 as u32)
    }
}

impl NamespaceSize {
    /// The first byte of a range of blocks and its bytes, if the namespace has all of it.
    #[inline(always)]
    pub(crate) fn range(self, first: Lba, count: Blocks) -> Option<(u64, DiskBytes)> {
        let end = first.0.checked_add(count.0)?;
        (end <= self.blocks.0).then(|| (first.0 << self.block_shift, DiskBytes(count.0 << self.block_shift)))
    }

    /// Bytes of so many blocks, whether the namespace has them or not; the most that there can be when it is more.
    pub(crate) fn bytes(self, count: Blocks) -> DiskBytes {
        DiskBytes(count.0.saturating_mul(1 << self.block_shift))
    }

    /// Where a byte is in blocks.
    pub(crate) fn lba_of(self, offset: u64) -> Lba {
        Lba(offset >> self.block_shift)
    }

    /// How many whole blocks so many bytes are.
    pub(crate) fn blocks_of(self, bytes: DiskBytes) -> Blocks {
        Blocks(bytes.0 >> self.block_shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: NamespaceSize = NamespaceSize { blocks: Blocks(u64::MAX >> 12), block_shift: 12 };

    #[test]
    fn blocks_become_bytes_up_to_the_last_one_and_no_further() {
        let last = SIZE.blocks.0 - 1;
        assert_eq!(SIZE.range(Lba(last), Blocks(1)), Some((last << 12, DiskBytes(4096))));
        assert_eq!(SIZE.range(Lba(last), Blocks(2)), None);
        assert_eq!(SIZE.range(Lba(last + 1), Blocks(1)), None);
        assert_eq!(SIZE.range(Lba(u64::MAX), Blocks(1)), None, "it wraps around");
        assert_eq!(SIZE.range(Lba(0), Blocks(u64::MAX)), None);
        assert_eq!(SIZE.bytes(Blocks(u64::MAX)), DiskBytes(u64::MAX));
    }

    #[test]
    fn data_is_no_longer_than_a_transfer() {
        let most = u64::from(TRANSFER_BYTES_MAX);
        assert_eq!(DiskBytes(most).data(), Some(DataBytes(TRANSFER_BYTES_MAX)));
        assert_eq!(DiskBytes(most + 1).data(), None);
        assert_eq!(DiskBytes(1 << 32).data(), None, "its lower half is zero");
    }
}
