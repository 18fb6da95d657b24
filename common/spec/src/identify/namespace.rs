//! The Identify Namespace data structures (NVM Command Set 1.0, section 4.1.5.1; NVM Express Base 2.0, section
//! 5.17.2.8).

use zerocopy::little_endian::{U16, U32, U64, U128};

use crate::macros::{bits, wire};

bits! {
    /// Namespace Features (NSFEAT).
    pub struct NamespaceFeatures(u8 as u8) {
        /// Thin provisioning.
        thinp / with_thinp: bool = 0:0;
        /// The namespace's atomic write units apply, not the controller's.
        nsabp / with_nsabp: bool = 1:1;
        /// Deallocated or Unwritten Logical Block error.
        dae / with_dae: bool = 2:2;
        /// Unique identifiers are not reused after the namespace is deleted.
        uidreuse / with_uidreuse: bool = 3:3;
        /// The fields from NPWG to NOWS are there.
        optperf / with_optperf: bool = 4:4;
    }
}

bits! {
    /// Formatted LBA Size (FLBAS): which format the namespace has.
    pub struct FormattedLbaSize(u8 as u8) {
        /// Bits 3:0 of the format's index.
        index_low / with_index_low: u8 = 3:0;
        /// Metadata is transferred at the end of each logical block, not in a separate buffer.
        extended_metadata / with_extended_metadata: bool = 4:4;
        /// Bits 5:4 of the format's index.
        index_high / with_index_high: u8 = 6:5;
    }
}

impl FormattedLbaSize {
    /// Index of the format, 0 to 63.
    pub fn index(self) -> u8 {
        self.index_high() << 4 | self.index_low()
    }
}

bits! {
    /// Metadata Capabilities (MC).
    pub struct MetadataCapabilities(u8 as u8) {
        /// At the end of each logical block.
        extended / with_extended: bool = 0:0;
        /// In a separate buffer.
        separate / with_separate: bool = 1:1;
    }
}

bits! {
    /// End-to-end Data Protection Capabilities (DPC).
    pub struct ProtectionCapabilities(u8 as u8) {
        /// Type 1.
        type1 / with_type1: bool = 0:0;
        /// Type 2.
        type2 / with_type2: bool = 1:1;
        /// Type 3.
        type3 / with_type3: bool = 2:2;
        /// Protection information in the first bytes of the metadata.
        first / with_first: bool = 3:3;
        /// Protection information in the last bytes of the metadata.
        last / with_last: bool = 4:4;
    }
}

bits! {
    /// End-to-end Data Protection Type Settings (DPS).
    pub struct DataProtection(u8 as u8) {
        /// The type, 1 to 3, or 0 when there is no protection.
        protection_type / with_protection_type: u8 = 2:0;
        /// Protection information is in the first bytes of the metadata.
        first / with_first: bool = 3:3;
    }
}

bits! {
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    pub struct NamespaceSharing(u8 as u8) {
        /// The namespace may be attached to more than one controller at a time.
        shared / with_shared: bool = 0:0;
    }
}

bits! {
    /// Reservation Capabilities (RESCAP).
    pub struct ReservationCapabilities(u8 as u8) {
        /// Persist Through Power Loss.
        ptpl / with_ptpl: bool = 0:0;
        /// Write Exclusive.
        write_exclusive / with_write_exclusive: bool = 1:1;
        /// Exclusive Access.
        exclusive_access / with_exclusive_access: bool = 2:2;
        /// Write Exclusive - Registrants Only.
        write_exclusive_registrants / with_write_exclusive_registrants: bool = 3:3;
        /// Exclusive Access - Registrants Only.
        exclusive_access_registrants / with_exclusive_access_registrants: bool = 4:4;
        /// Write Exclusive - All Registrants.
        write_exclusive_all / with_write_exclusive_all: bool = 5:5;
        /// Exclusive Access - All Registrants.
        exclusive_access_all / with_exclusive_access_all: bool = 6:6;
        /// Ignore Existing Key is used as revision 1.3 or later defines it.
        iekey / with_iekey: bool = 7:7;
    }
}

bits! {
    /// Format Progress Indicator (FPI).
    pub struct FormatProgress(u8 as u8) {
        /// What remains to be formatted, in percent.
        remaining_percent / with_remaining_percent: u8 = 6:0;
        /// The indicator is supported.
        supported / with_supported: bool = 7:7;
    }
}

bits! {
    /// Deallocate Logical Block Features (DLFEAT).
    pub struct DeallocateFeatures(u8 as u8) {
        /// What a deallocated block reads as: 0 is not reported, 1 is zeroes, 2 is ones.
        read_behavior / with_read_behavior: u8 = 2:0;
        /// Write Zeroes may deallocate.
        write_zeroes / with_write_zeroes: bool = 3:3;
        /// The Guard of a deallocated block is the CRC of what it reads as.
        guard_crc / with_guard_crc: bool = 4:4;
    }
}

impl DeallocateFeatures {
    /// Value of `read_behavior`: a deallocated block reads as zeroes.
    pub const READS_ZEROES: u8 = 1;
}

bits! {
    /// Namespace Attributes (NSATTR).
    pub struct NamespaceAttributes(u8 as u8) {
        /// The namespace is write protected now.
        write_protected / with_write_protected: bool = 0:0;
    }
}

bits! {
    /// LBA Format (LBAF).
    pub struct LbaFormat(U32 as u32) {
        /// Metadata Size of a logical block, in bytes.
        ms / with_ms: u16 = 15:0;
        /// LBA Data Size, as a power of two of bytes; at least 9, or 0 when the format is not available.
        lbads / with_lbads: u8 = 23:16;
        /// Relative Performance: 0 is best, 3 degraded.
        rp / with_rp: u8 = 25:24;
    }
}

impl LbaFormat {
    /// Size of a logical block's data in bytes; none when the size is not one that the specification allows
    /// or 32 bits hold.
    pub fn block_bytes(self) -> Option<u32> {
        let shift = u32::from(self.lbads());
        if shift < 9 { None } else { 1_u32.checked_shl(shift) }
    }
}

wire! {
    /// The Identify Namespace data structure of the NVM Command Set, CNS 00h and 11h.
    pub struct IdentifyNamespace[4096] {
        /// Namespace Size, in logical blocks.
        0 => pub nsze: U64,
        /// Namespace Capacity, in logical blocks.
        8 => pub ncap: U64,
        /// Namespace Utilization, in logical blocks.
        16 => pub nuse: U64,
        /// Namespace Features.
        24 => pub nsfeat: NamespaceFeatures,
        /// Number of LBA Formats, zero's based.
        25 => pub nlbaf_z: u8,
        /// Formatted LBA Size.
        26 => pub flbas: FormattedLbaSize,
        /// Metadata Capabilities.
        27 => pub mc: MetadataCapabilities,
        /// End-to-end Data Protection Capabilities.
        28 => pub dpc: ProtectionCapabilities,
        /// End-to-end Data Protection Type Settings.
        29 => pub dps: DataProtection,
        /// Namespace Multi-path I/O and Namespace Sharing Capabilities.
        30 => pub nmic: NamespaceSharing,
        /// Reservation Capabilities.
        31 => pub rescap: ReservationCapabilities,
        /// Format Progress Indicator.
        32 => pub fpi: FormatProgress,
        /// Deallocate Logical Block Features.
        33 => pub dlfeat: DeallocateFeatures,
        /// Namespace Atomic Write Unit Normal, in logical blocks, zero's based.
        34 => pub nawun_z: U16,
        /// Namespace Atomic Write Unit Power Fail, in logical blocks, zero's based.
        36 => pub nawupf_z: U16,
        /// Namespace Atomic Compare & Write Unit, in logical blocks, zero's based.
        38 => pub nacwu_z: U16,
        /// Namespace Atomic Boundary Size Normal, in logical blocks, zero's based; 0 is no boundary.
        40 => pub nabsn_z: U16,
        /// Namespace Atomic Boundary Offset: the first block that the boundaries count from.
        42 => pub nabo: U16,
        /// Namespace Atomic Boundary Size Power Fail, in logical blocks, zero's based; 0 is no boundary.
        44 => pub nabspf_z: U16,
        /// Namespace Optimal I/O Boundary, in logical blocks; 0 is not reported.
        46 => pub noiob: U16,
        /// NVM Capacity, in bytes.
        48 => pub nvmcap: U128,
        /// Namespace Preferred Write Granularity, in logical blocks, zero's based.
        64 => pub npwg_z: U16,
        /// Namespace Preferred Write Alignment, in logical blocks, zero's based.
        66 => pub npwa_z: U16,
        /// Namespace Preferred Deallocate Granularity, in logical blocks, zero's based.
        68 => pub npdg_z: U16,
        /// Namespace Preferred Deallocate Alignment, in logical blocks, zero's based.
        70 => pub npda_z: U16,
        /// Namespace Optimal Write Size, in logical blocks, zero's based.
        72 => pub nows_z: U16,
        /// Maximum Single Source Range Length of Copy, in logical blocks.
        74 => pub mssrl: U16,
        /// Maximum Copy Length, in logical blocks.
        76 => pub mcl: U32,
        /// Maximum Source Range Count of Copy, zero's based.
        80 => pub msrc_z: u8,
        81 => reserved81: [u8; 11],
        /// ANA Group Identifier.
        92 => pub anagrpid: U32,
        96 => reserved96: [u8; 3],
        /// Namespace Attributes.
        99 => pub nsattr: NamespaceAttributes,
        /// NVM Set Identifier.
        100 => pub nvmsetid: U16,
        /// Endurance Group Identifier.
        102 => pub endgid: U16,
        /// Namespace Globally Unique Identifier, most significant byte first; 0 when there is none.
        104 => pub nguid: [u8; 16],
        /// IEEE Extended Unique Identifier, most significant byte first; 0 when there is none.
        120 => pub eui64: [u8; 8],
        /// LBA Formats 0 to 63.
        128 => pub lbaf: [LbaFormat; 64],
        /// Vendor Specific.
        384 => pub vendor: [u8; 3712],
    }
}

impl IdentifyNamespace {
    /// Whether the namespace is there: an inactive one has all bytes zero.
    pub fn is_active(&self) -> bool {
        self.nsze.get() != 0
    }

    /// The format that the namespace has.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas.index())]
    }

    /// Size of a logical block's data in bytes; none when the format is not usable.
    pub fn block_bytes(&self) -> Option<u32> {
        self.format().block_bytes()
    }

    /// Size of the namespace in bytes; none when the format is not usable or 64 bits do not hold it.
    pub fn bytes(&self) -> Option<u64> {
        self.nsze.get().checked_mul(u64::from(self.block_bytes()?))
    }
}

bits! {
    /// Namespace Status (NSTAT).
    pub struct NamespaceStatus(u8 as u8) {
        /// Namespace Ready.
        nrdy / with_nrdy: bool = 0:0;
    }
}

wire! {
    /// The I/O Command Set Independent Identify Namespace data structure, CNS 08h.
    pub struct IndependentNamespace[4096] {
        /// Common namespace features: bit 3 as in [`NamespaceFeatures`], bit 4 is rotational media.
        0 => pub nsfeat: u8,
        /// Namespace Multi-path I/O and Namespace Sharing Capabilities.
        1 => pub nmic: NamespaceSharing,
        /// Reservation Capabilities.
        2 => pub rescap: ReservationCapabilities,
        /// Format Progress Indicator.
        3 => pub fpi: FormatProgress,
        /// ANA Group Identifier.
        4 => pub anagrpid: U32,
        /// Namespace Attributes.
        8 => pub nsattr: NamespaceAttributes,
        9 => reserved9: u8,
        /// NVM Set Identifier.
        10 => pub nvmsetid: U16,
        /// Endurance Group Identifier.
        12 => pub endgid: U16,
        /// Namespace Status.
        14 => pub nstat: NamespaceStatus,
        15 => reserved15: [u8; 4081],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_namespace_has_its_golden_bytes() {
        let mut namespace = IdentifyNamespace {
            nsze: U64::new(0x0102),
            nmic: NamespaceSharing::default().with_shared(true),
            anagrpid: U32::new(1),
            nguid: [0xab; 16],
            eui64: [0xcd; 8],
            ..IdentifyNamespace::zeroed()
        };
        namespace.lbaf[0] = LbaFormat::default().with_lbads(9);
        let bytes = namespace.as_bytes();
        assert_eq!(bytes[..3], [2, 1, 0]);
        assert_eq!(bytes[30], 1);
        assert_eq!(bytes[92..96], [1, 0, 0, 0]);
        assert_eq!(bytes[103..105], [0, 0xab]);
        assert_eq!(bytes[119..121], [0xab, 0xcd]);
        assert_eq!(bytes[127..133], [0xcd, 0, 0, 9, 0, 0]);
        assert_eq!(namespace.bytes(), Some(0x0102 * 512));
    }

    #[test]
    fn the_index_of_a_format_is_in_two_pieces() {
        let flbas = FormattedLbaSize::from_bits(0b0101_0011);
        assert_eq!(flbas.index(), 0x23);
        assert!(flbas.extended_metadata());
        let mut namespace = IdentifyNamespace { flbas, nsze: U64::new(8), ..IdentifyNamespace::zeroed() };
        namespace.lbaf[0x23] = LbaFormat::default().with_lbads(12);
        assert_eq!(namespace.bytes(), Some(8 * 4096));
    }

    #[test]
    fn a_block_has_512_bytes_or_more_and_no_more_than_32_bits_hold() {
        let block_bytes = |lbads| LbaFormat::default().with_lbads(lbads).block_bytes();
        assert_eq!(block_bytes(8), None);
        assert_eq!(block_bytes(9), Some(512));
        assert_eq!(block_bytes(31), Some(1 << 31));
        assert_eq!(block_bytes(32), None);
        assert_eq!(block_bytes(255), None);
    }

    #[test]
    fn a_size_that_overflows_is_no_size() {
        let mut namespace = IdentifyNamespace { nsze: U64::new(1 << 55), ..IdentifyNamespace::zeroed() };
        namespace.lbaf[0] = LbaFormat::default().with_lbads(9);
        assert_eq!(namespace.bytes(), None);
        namespace.nsze = U64::new((1 << 55) - 1);
        assert_eq!(namespace.bytes(), Some(u64::MAX - 511));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_namespace_and_go_out_unchanged(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
            let namespace = IdentifyNamespace::ref_from_bytes(&bytes).unwrap();
            prop_assert_eq!(namespace.as_bytes(), &bytes);
            prop_assert!(namespace.bytes().is_none_or(|bytes| bytes >= namespace.nsze.get()));
            let independent = IndependentNamespace::ref_from_bytes(&bytes).unwrap();
            prop_assert!(independent.fpi.remaining_percent() < 128);
        }
    }
}
