//! Submission queue entries (NVM Express Base 2.0, section 3.3.3.1): what all commands have in common.
//!
//! | module | commands |
//! | --- | --- |
//! | `admin` | Identify, Get Log Page, Get and Set Features, Abort, Keep Alive, Asynchronous Event Request |
//! | `io` | Read, Write, Compare, Write Zeroes, Flush, Dataset Management, Verify, Copy |
//! | `fabrics` | Connect, Property Get, Property Set, Disconnect |

mod admin;
mod fabrics;
mod io;

use zerocopy::little_endian::{U16, U32, U64};

use crate::macros::{open_enum, wire};
use crate::sgl::SglDescriptor;

pub use admin::{
    AbortDword10, CrossControllerResetDword10, FeatureDword10, IdentifyDword10, IdentifyDword11,
    LogPageDword10, LogPageDword11,
};
pub use fabrics::{AuthenticationCommand, ConnectCommand, ConnectData, PropertySize};
pub use io::{
    CancelAction, CancelDword11, CancelResult, CopyDword12, CopyRange, DsmAttributes, DsmRange, IoFlags,
};

wire! {
    /// A submission queue entry; on fabrics, the first part of a command capsule.
    #[derive(Copy)]
    pub struct SubmissionEntry[64, align 8] {
        /// Opcode.
        0 => pub opcode: u8,
        /// Fused operation in bits 1:0, PRP or SGL in bits 7:6.
        1 => pub flags: u8,
        /// Command Identifier.
        2 => pub cid: U16,
        /// Namespace Identifier; in Fabrics commands its first byte is the type.
        4 => pub nsid: U32,
        /// Command dword 2.
        8 => pub cdw2: U32,
        /// Command dword 3.
        12 => pub cdw3: U32,
        /// Metadata pointer.
        16 => pub mptr: U64,
        /// Data pointer: on fabrics an SGL descriptor.
        24 => pub sgl: SglDescriptor,
        /// Command dword 10.
        40 => pub cdw10: U32,
        /// Command dword 11.
        44 => pub cdw11: U32,
        /// Command dword 12.
        48 => pub cdw12: U32,
        /// Command dword 13.
        52 => pub cdw13: U32,
        /// Command dword 14.
        56 => pub cdw14: U32,
        /// Command dword 15.
        60 => pub cdw15: U32,
    }
}

open_enum! {
    /// Opcodes of admin commands (Base 2.0, section 5).
    pub struct AdminOpcode(u8) {
        DELETE_IO_SUBMISSION_QUEUE = 0x00 => "Delete I/O Submission Queue";
        CREATE_IO_SUBMISSION_QUEUE = 0x01 => "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02 => "Get Log Page";
        DELETE_IO_COMPLETION_QUEUE = 0x04 => "Delete I/O Completion Queue";
        CREATE_IO_COMPLETION_QUEUE = 0x05 => "Create I/O Completion Queue";
        IDENTIFY = 0x06 => "Identify";
        ABORT = 0x08 => "Abort";
        SET_FEATURES = 0x09 => "Set Features";
        GET_FEATURES = 0x0a => "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c => "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0d => "Namespace Management";
        FIRMWARE_COMMIT = 0x10 => "Firmware Commit";
        FIRMWARE_IMAGE_DOWNLOAD = 0x11 => "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14 => "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15 => "Namespace Attachment";
        KEEP_ALIVE = 0x18 => "Keep Alive";
        DIRECTIVE_SEND = 0x19 => "Directive Send";
        DIRECTIVE_RECEIVE = 0x1a => "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1c => "Virtualization Management";
        MI_SEND = 0x1d => "NVMe-MI Send";
        MI_RECEIVE = 0x1e => "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20 => "Capacity Management";
        LOCKDOWN = 0x24 => "Lockdown";
        CROSS_CONTROLLER_RESET = 0x38 => "Cross-Controller Reset";
        DOORBELL_BUFFER_CONFIG = 0x7c => "Doorbell Buffer Config";
        FABRICS = 0x7f => "Fabrics";
        FORMAT_NVM = 0x80 => "Format NVM";
        SECURITY_SEND = 0x81 => "Security Send";
        SECURITY_RECEIVE = 0x82 => "Security Receive";
        SANITIZE = 0x84 => "Sanitize";
        GET_LBA_STATUS = 0x86 => "Get LBA Status";
    }
}

open_enum! {
    /// Opcodes of I/O commands (NVM Command Set 1.0, section 3).
    pub struct IoOpcode(u8) {
        FLUSH = 0x00 => "Flush";
        WRITE = 0x01 => "Write";
        READ = 0x02 => "Read";
        WRITE_UNCORRECTABLE = 0x04 => "Write Uncorrectable";
        COMPARE = 0x05 => "Compare";
        WRITE_ZEROES = 0x08 => "Write Zeroes";
        DATASET_MANAGEMENT = 0x09 => "Dataset Management";
        VERIFY = 0x0c => "Verify";
        RESERVATION_REGISTER = 0x0d => "Reservation Register";
        RESERVATION_REPORT = 0x0e => "Reservation Report";
        RESERVATION_ACQUIRE = 0x11 => "Reservation Acquire";
        RESERVATION_RELEASE = 0x15 => "Reservation Release";
        CANCEL = 0x18 => "Cancel";
        COPY = 0x19 => "Copy";
        FABRICS = 0x7f => "Fabrics";
    }
}

open_enum! {
    /// Types of Fabrics commands (Base 2.0, section 6).
    pub struct FabricsType(u8) {
        PROPERTY_SET = 0x00 => "Property Set";
        CONNECT = 0x01 => "Connect";
        PROPERTY_GET = 0x04 => "Property Get";
        AUTHENTICATION_SEND = 0x05 => "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06 => "Authentication Receive";
        DISCONNECT = 0x08 => "Disconnect";
    }
}

impl SubmissionEntry {
    /// PSDT of commands whose data pointer is an SGL and which have no metadata SGL.
    const PSDT_SGL: u8 = 0b01 << 6;

    /// FUSE of the first command of a fused operation.
    pub const FUSE_FIRST: u8 = 0b01;

    /// FUSE of the second command of a fused operation.
    pub const FUSE_SECOND: u8 = 0b10;

    /// A command with an SGL for a data pointer and all its other fields zero.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Self { opcode, flags: Self::PSDT_SGL, cid: U16::new(cid), nsid: U32::new(nsid), ..Self::zeroed() }
    }

    /// This command with another identifier.
    #[must_use]
    pub fn with_cid(self, cid: u16) -> Self {
        Self { cid: U16::new(cid), ..self }
    }

    /// This command with its data described by `sgl`.
    #[must_use]
    pub fn with_sgl(self, sgl: SglDescriptor) -> Self {
        Self { sgl, ..self }
    }

    /// Fused operation; zero for a command of its own.
    pub fn fuse(&self) -> u8 {
        self.flags & 0b11
    }

    /// This command as the first or the second of a fused operation: [`Self::FUSE_FIRST`] or [`Self::FUSE_SECOND`].
    #[must_use]
    pub fn with_fuse(self, fuse: u8) -> Self {
        Self { flags: self.flags & !0b11 | fuse & 0b11, ..self }
    }

    /// PRP or SGL for Data Transfer: 1 and 2 say SGL.
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Whether it is a Fabrics command, which any queue may carry.
    pub fn is_fabrics(&self) -> bool {
        self.opcode == AdminOpcode::FABRICS.0
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn an_entry_has_its_golden_bytes() {
        let mut bytes = [0_u8; 64];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = index as u8;
        }
        let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
        assert_eq!((entry.opcode, entry.flags, entry.cid.get()), (0, 1, 0x0302));
        assert_eq!(
            (entry.nsid.get(), entry.cdw2.get(), entry.cdw3.get()),
            (0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c)
        );
        assert_eq!(entry.sgl.address.get(), 0x1f1e_1d1c_1b1a_1918);
        assert_eq!(entry.cdw10.get(), 0x2b2a_2928);
        assert_eq!(entry.cdw15.get(), 0x3f3e_3d3c);
        assert_eq!(entry.as_bytes(), bytes);
    }

    proptest! {
        #[test]
        fn no_accessor_minds_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 64)) {
            let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(entry.as_bytes(), &bytes);
            prop_assert!((1..=65_536).contains(&entry.nlb()));
            prop_assert!((1..=256).contains(&entry.dsm_ranges()));
            prop_assert!(entry.log_length() >= 4);
            prop_assert!(entry.psdt() <= 3 && entry.fuse() <= 3 && entry.sel() <= 7 && entry.lsp() <= 0x7f);
            prop_assert_eq!(entry.property_size().is_some(), bytes[40] & 0b110 == 0);
            let connect = ConnectCommand::of(&entry);
            prop_assert!((1..=65_536).contains(&connect.sqsize()));
            prop_assert_eq!(connect.as_bytes(), &bytes);
        }
    }

    #[test]
    fn an_opcode_shows_its_name_and_an_unknown_one_its_number() {
        assert_eq!(AdminOpcode::FORMAT_NVM.to_string(), "Format NVM");
        assert_eq!(IoOpcode::RESERVATION_ACQUIRE.to_string(), "Reservation Acquire");
        assert_eq!(IoOpcode(0xc0).to_string(), "IoOpcode 0xc0");
    }

    #[test]
    fn a_new_command_says_that_its_data_pointer_is_an_sgl() {
        let entry = SubmissionEntry::new(IoOpcode::FLUSH.0, 7, 1);
        assert_eq!((entry.psdt(), entry.fuse(), entry.is_fabrics()), (1, 0, false));
        assert_eq!(&entry.as_bytes()[..8], [0, 0x40, 7, 0, 1, 0, 0, 0]);
    }
}
