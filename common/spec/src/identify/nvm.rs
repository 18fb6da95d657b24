//! Identify data structures which are specific to the NVM Command Set (NVM Command Set 1.0, section 4.1.5).

use zerocopy::little_endian::{U16, U32, U64};

use crate::macros::{bits, wire};

bits! {
    /// Protection Information Capabilities (PIC).
    pub struct ProtectionInformation(u8 as u8) {
        /// 16b Guard Protection Information Storage Tag Support.
        guard16_storage_tag / with_guard16_storage_tag: bool = 0:0;
        /// 16b Guard Protection Information Storage Tag Mask: it is all ones or the whole mask is used.
        guard16_storage_tag_mask / with_guard16_storage_tag_mask: bool = 1:1;
        /// Storage Tag Check Read Support.
        stcrs / with_stcrs: bool = 2:2;
    }
}

bits! {
    /// Extended LBA Format (ELBAF).
    pub struct ExtendedLbaFormat(U32 as u32) {
        /// Storage Tag Size, in bits.
        sts / with_sts: u8 = 6:0;
        /// Protection Information Format: 0 has a guard of 16 bits, 1 of 32, 2 of 64.
        pif / with_pif: u8 = 8:7;
    }
}

wire! {
    /// I/O Command Set specific Identify Namespace of the NVM Command Set, CNS 05h with CSI 00h.
    pub struct IdentifyNvmNamespace[4096] {
        /// Logical Block Storage Tag Mask.
        0 => pub lbstm: U64,
        /// Protection Information Capabilities.
        8 => pub pic: ProtectionInformation,
        9 => reserved9: [u8; 3],
        /// Extended LBA Formats 0 to 63, beside the LBA formats of the Identify Namespace.
        12 => pub elbaf: [ExtendedLbaFormat; 64],
        268 => reserved268: [u8; 3828],
    }
}

bits! {
    /// Admin Optional Command Support (AOCS).
    pub struct OptionalAdminActions(U16 as u16) {
        /// Reporting Allocated LBA Supported: Get LBA Status returns allocated blocks.
        ralbas / with_ralbas: bool = 0:0;
    }
}

wire! {
    /// I/O Command Set specific Identify Controller of the NVM Command Set, CNS 06h with CSI 00h.
    ///
    /// The sizes are powers of two of the smallest memory page; 0 is no limit.
    pub struct IdentifyNvmController[4096] {
        /// Verify Size Limit.
        0 => pub vsl: u8,
        /// Write Zeroes Size Limit.
        1 => pub wzsl: u8,
        /// Write Uncorrectable Size Limit.
        2 => pub wusl: u8,
        /// Dataset Management Ranges Limit: ranges of a command; 0 is no limit.
        3 => pub dmrl: u8,
        /// Dataset Management Range Size Limit, in logical blocks of a range; 0 is no limit.
        4 => pub dmrsl: U32,
        /// Dataset Management Size Limit, in logical blocks of a command; 0 is no limit.
        8 => pub dmsl: U64,
        16 => reserved16: [u8; 2],
        /// Admin Optional Command Support (NVM Command Set 1.1).
        18 => pub aocs: OptionalAdminActions,
        20 => reserved20: [u8; 4076],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn the_limits_of_a_controller_have_their_golden_bytes() {
        let controller = IdentifyNvmController {
            wzsl: 5,
            dmrl: 255,
            dmrsl: U32::new(0x0102_0304),
            dmsl: U64::new(0x0506),
            ..IdentifyNvmController::zeroed()
        };
        let golden = [0, 5, 0, 255, 4, 3, 2, 1, 6, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(controller.as_bytes()[..17], golden);
    }

    #[test]
    fn an_extended_format_has_its_golden_bytes() {
        let mut namespace = IdentifyNvmNamespace::zeroed();
        namespace.elbaf[1] = ExtendedLbaFormat::default().with_sts(16).with_pif(2);
        assert_eq!(namespace.as_bytes()[12..20], [0, 0, 0, 0, 0x10, 1, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_these_structures_and_go_out_unchanged(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
            prop_assert_eq!(IdentifyNvmNamespace::ref_from_bytes(&bytes).unwrap().as_bytes(), &bytes);
            prop_assert_eq!(IdentifyNvmController::ref_from_bytes(&bytes).unwrap().as_bytes(), &bytes);
        }
    }
}
