//! Cross-Controller Reset and Lost Host Communication log pages (NVM Express Base 2.3, sections 5.2.12.3.1 and
//! 5.2.12.3.2).

use zerocopy::little_endian::{U16, U32};

use crate::macros::{bits, open_enum, wire};

open_enum! {
    /// Cross-Controller Reset Status.
    pub struct CrossControllerResetStatus(u8) {
        IN_PROGRESS = 0 => "in progress";
        SUCCESS = 1 => "success";
        FAILED = 2 => "failed";
    }
}

bits! {
    /// Cross-Controller Reset Flags.
    pub struct CrossControllerResetFlags(u8 as u8) {
        /// Validated: the impacted controller was found, and its CIU and CIRN were those of the command.
        validated / with_validated: bool = 0:0;
        /// Controller Level Reset Initiated.
        initiated / with_initiated: bool = 1:1;
        /// Retry: the host may send the command again.
        retry / with_retry: bool = 2:2;
    }
}

bits! {
    /// Log Specific Parameter of Get Log Page for the Cross-Controller Reset log page.
    pub struct CrossControllerResetLogParameter(u8 as u8) {
        /// Remove Completed: entries that are returned and not in progress leave the log.
        remove_completed / with_remove_completed: bool = 0:0;
    }
}

bits! {
    /// Dword 0 of the completion of Cross-Controller Reset (Base 2.3, section 5.4.3).
    pub struct CrossControllerResetResult(U32 as u32) {
        /// Immediate Reset Successful: the impacted controller was reset before the command completed. The log page
        /// gets no entry.
        immediate / with_immediate: bool = 0:0;
    }
}

wire! {
    /// The header of both log pages. Entries follow.
    pub struct LostPathsHeader[8] {
        /// Number of Entries, at most [`Self::ENTRIES_MAX`].
        0 => pub entries: U16,
        2 => reserved2: [u8; 6],
    }
}

impl LostPathsHeader {
    /// The most entries of a log page.
    pub const ENTRIES_MAX: usize = 511;

    /// A header.
    pub fn new(entries: u16) -> Self {
        Self { entries: U16::new(entries), ..Self::zeroed() }
    }
}

wire! {
    /// An entry of the Cross-Controller Reset log page.
    #[derive(Copy)]
    pub struct CrossControllerResetEntry[8] {
        /// Impacted Controller ID: that of the command.
        0 => pub icid: U16,
        /// Controller Instance Uniquifier of the command.
        2 => pub ciu: u8,
        3 => reserved3: u8,
        /// Aborting Controller ID: the controller that got the command.
        4 => pub acid: U16,
        /// Cross-Controller Reset Status.
        6 => pub status: CrossControllerResetStatus,
        /// Cross-Controller Reset Flags.
        7 => pub flags: CrossControllerResetFlags,
    }
}

wire! {
    /// An entry of the Lost Host Communication log page.
    #[derive(Copy)]
    pub struct LostHostEntry[8] {
        /// The controller that has lost its host.
        0 => pub cntlid: U16,
        /// Lost Communication: bit 0 says that the controller has quiesced.
        2 => pub lost: u8,
        /// Controller Instance Uniquifier of the controller.
        3 => pub ciu: u8,
        4 => reserved4: [u8; 4],
    }
}

/// Which instance of a controller is meant: the same controller identifier is given to one host after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControllerInstance {
    /// Controller ID.
    pub cntlid: u16,
    /// Controller Instance Uniquifier, from 1. 0 says that the controller does not have one.
    pub ciu: u8,
    /// Controller Instance Random Number.
    pub cirn: u64,
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn entries_have_their_golden_bytes() {
        assert_eq!(LostPathsHeader::new(0x0102).as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0]);
        let entry = CrossControllerResetEntry {
            icid: U16::new(0x0304),
            ciu: 5,
            acid: U16::new(0x0607),
            status: CrossControllerResetStatus::SUCCESS,
            flags: CrossControllerResetFlags::default().with_validated(true).with_initiated(true),
            ..CrossControllerResetEntry::zeroed()
        };
        assert_eq!(entry.as_bytes(), [4, 3, 5, 0, 7, 6, 1, 3]);
        let entry = LostHostEntry { cntlid: U16::new(0x0102), lost: 1, ciu: 9, ..LostHostEntry::zeroed() };
        assert_eq!(entry.as_bytes(), [2, 1, 1, 9, 0, 0, 0, 0]);
    }
}
