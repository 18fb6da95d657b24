//! Reads the fields of a submission queue entry by the offsets that an error location needs as well.

use ringfab_spec::{IntoBytes, SubmissionEntry};

/// Offset in the entry of a command dword.
pub(crate) const fn dword_offset(index: u16) -> u16 {
    index * 4
}

/// Offsets in the Connect command.
pub(crate) mod connect_field {
    pub(crate) const RECFMT: u16 = 40;
    pub(crate) const QID: u16 = 42;
    pub(crate) const SQSIZE: u16 = 44;
    pub(crate) const CATTR: u16 = 46;
    pub(crate) const KATO: u16 = 48;
}

/// Offsets in the data of a Connect.
pub(crate) mod connect_data {
    pub(crate) const HOSTID: u16 = 0;
    pub(crate) const CNTLID: u16 = 16;
    pub(crate) const SUBNQN: u16 = 256;
    pub(crate) const HOSTNQN: u16 = 512;
}

/// A submission queue entry, read by offset.
#[derive(Clone, Copy)]
pub(crate) struct Command<'a>(&'a SubmissionEntry);

impl<'a> Command<'a> {
    pub(crate) fn new(entry: &'a SubmissionEntry) -> Self {
        Self(entry)
    }

    /// All of it.
    pub(crate) fn entry(self) -> &'a SubmissionEntry {
        self.0
    }

    pub(crate) fn opcode(self) -> u8 {
        self.u8(0)
    }

    pub(crate) fn command_id(self) -> u16 {
        self.u16(2)
    }

    pub(crate) fn nsid(self) -> u32 {
        self.u32(4)
    }

    pub(crate) fn u8(self, offset: u16) -> u8 {
        self.0.as_bytes()[usize::from(offset)]
    }

    pub(crate) fn u16(self, offset: u16) -> u16 {
        u16::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u32(self, offset: u16) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u64(self, offset: u16) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }

    /// Command dword 10 to 15.
    pub(crate) fn dword(self, index: u16) -> u32 {
        self.u32(dword_offset(index))
    }

    fn array<const N: usize>(self, offset: u16) -> [u8; N] {
        let offset = usize::from(offset);
        self.0.as_bytes()[offset..offset + N].try_into().expect("the slice has N bytes")
    }
}
