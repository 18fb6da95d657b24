//! The Terminate message: why a side gives up the stream (RFC 5040, section 4.8; RFC 5041, section 8.2;
//! RFC 5044, section 8; RFC 6581, section 8).

use core::fmt;

use zerocopy::big_endian::U32;

use crate::macros::{bits, open_enum, wire};

wire! {
    /// First word of a Terminate message. Behind it come, as its flags say, the length of the offending DDP
    /// segment (2 bytes), that segment's DDP header (14 or 18 bytes) and its RDMAP header (28 bytes).
    #[derive(Copy)]
    pub struct TerminateControl[4] {
        /// The whole word.
        0 => pub word: TerminateWord,
    }
}

bits! {
    /// The bits of a Terminate's control word.
    pub struct TerminateWord(U32 as u32) {
        /// Reserved; zero.
        reserved / with_reserved: u16 = 12:0;
        /// R of HdrCt: the RDMAP header is included.
        rdmap_header / with_rdmap_header: bool = 13:13;
        /// D of HdrCt: the DDP header is included.
        ddp_header / with_ddp_header: bool = 14:14;
        /// M of HdrCt: the DDP segment length is valid.
        segment_length / with_segment_length: bool = 15:15;
        /// Error code, in the meaning of the layer and the error type.
        code / with_code: u8 = 23:16;
        /// Error type, in the meaning of the layer.
        etype / with_etype: u8 = 27:24;
        /// Layer.
        layer / with_layer: TerminateLayer = 31:28;
    }
}

open_enum! {
    /// The layer that found the error.
    pub struct TerminateLayer(u8) {
        RDMA = 0 => "RDMA";
        DDP = 1 => "DDP";
        LLP = 2 => "LLP";
    }
}

/// Layer, error type and error code of a Terminate, as one value to compare and to name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// The layer that found the error.
    pub layer: TerminateLayer,
    /// Error type, 4 bits.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! codes {
    ($($constant:ident = $layer:ident, $etype:literal, $code:literal => $text:literal;)+) => {
        impl TerminateCode {
            $(
                #[doc = concat!($text, " (", stringify!($layer), " layer, type ", stringify!($etype), ", code ",
                    stringify!($code), ").")]
                pub const $constant: Self =
                    Self { layer: TerminateLayer::$layer, etype: $etype, code: $code };
            )+

            /// The specified name.
            pub const fn name(self) -> Option<&'static str> {
                match (self.layer, self.etype, self.code) {
                    $((TerminateLayer::$layer, $etype, $code) => Some($text),)+
                    _ => None,
                }
            }
        }

        /// All specified codes, for tests of the table itself.
        #[cfg(test)]
        const ALL: &[TerminateCode] = &[$(TerminateCode::$constant),+];
    };
}

codes! {
    RDMAP_LOCAL_CATASTROPHIC = RDMA, 0, 0x00 => "Local Catastrophic Error";
    RDMAP_INVALID_STAG = RDMA, 1, 0x00 => "Remote Protection Error: Invalid STag";
    RDMAP_BASE_OR_BOUNDS = RDMA, 1, 0x01 => "Remote Protection Error: Base or bounds violation";
    RDMAP_ACCESS_RIGHTS = RDMA, 1, 0x02 => "Remote Protection Error: Access rights violation";
    RDMAP_STAG_NOT_ASSOCIATED = RDMA, 1, 0x03
        => "Remote Protection Error: STag not associated with RDMAP Stream";
    RDMAP_TO_WRAP = RDMA, 1, 0x04 => "Remote Protection Error: TO wrap";
    RDMAP_PROTECTION_CANNOT_INVALIDATE = RDMA, 1, 0x09
        => "Remote Protection Error: STag cannot be Invalidated";
    RDMAP_PROTECTION_UNSPECIFIED = RDMA, 1, 0xff => "Remote Protection Error: Unspecified Error";
    RDMAP_INVALID_VERSION = RDMA, 2, 0x05 => "Remote Operation Error: Invalid RDMAP version";
    RDMAP_UNEXPECTED_OPCODE = RDMA, 2, 0x06 => "Remote Operation Error: Unexpected OpCode";
    RDMAP_CATASTROPHIC_STREAM = RDMA, 2, 0x07
        => "Remote Operation Error: Catastrophic error, localized to RDMAP Stream";
    RDMAP_CATASTROPHIC_GLOBAL = RDMA, 2, 0x08 => "Remote Operation Error: Catastrophic error, global";
    RDMAP_OPERATION_CANNOT_INVALIDATE = RDMA, 2, 0x09
        => "Remote Operation Error: STag cannot be Invalidated";
    RDMAP_OPERATION_UNSPECIFIED = RDMA, 2, 0xff => "Remote Operation Error: Unspecified Error";

    DDP_LOCAL_CATASTROPHIC = DDP, 0, 0x00 => "Local Catastrophic";
    DDP_INVALID_STAG = DDP, 1, 0x00 => "Tagged Buffer Error: Invalid STag";
    DDP_BASE_OR_BOUNDS = DDP, 1, 0x01 => "Tagged Buffer Error: Base or bounds violation";
    DDP_STAG_NOT_ASSOCIATED = DDP, 1, 0x02 => "Tagged Buffer Error: STag not associated with DDP Stream";
    DDP_TO_WRAP = DDP, 1, 0x03 => "Tagged Buffer Error: TO wrap";
    DDP_TAGGED_INVALID_VERSION = DDP, 1, 0x04 => "Tagged Buffer Error: Invalid DDP version";
    DDP_INVALID_QN = DDP, 2, 0x01 => "Untagged Buffer Error: Invalid QN";
    DDP_NO_BUFFER = DDP, 2, 0x02 => "Untagged Buffer Error: Invalid MSN, no buffer available";
    DDP_MSN_RANGE = DDP, 2, 0x03 => "Untagged Buffer Error: Invalid MSN, MSN range is not valid";
    DDP_INVALID_MO = DDP, 2, 0x04 => "Untagged Buffer Error: Invalid MO";
    DDP_MESSAGE_TOO_LONG = DDP, 2, 0x05
        => "Untagged Buffer Error: DDP Message too long for available buffer";
    DDP_UNTAGGED_INVALID_VERSION = DDP, 2, 0x06 => "Untagged Buffer Error: Invalid DDP version";

    MPA_CONNECTION_LOST = LLP, 0, 0x01 => "MPA Error: TCP connection closed, terminated, or lost";
    MPA_CRC = LLP, 0, 0x02 => "MPA Error: CRC does not match";
    MPA_MARKER = LLP, 0, 0x03 => "MPA Error: Marker and ULPDU Length fields do not agree";
    MPA_INVALID_FRAME = LLP, 0, 0x04 => "MPA Error: Invalid MPA Request or Reply Frame";
    MPA_LOCAL_CATASTROPHIC = LLP, 0, 0x05 => "MPA Error: Local Catastrophic Error";
    MPA_INSUFFICIENT_IRD = LLP, 0, 0x06 => "MPA Error: Insufficient IRD Resources";
    MPA_NO_MATCHING_RTR = LLP, 0, 0x07 => "MPA Error: No Matching RTR Option";
}

impl TerminateControl {
    /// The control word for a code, with no header included. Panics when the layer or the error type is above Fh,
    /// which no code from the wire can be.
    pub fn new(code: TerminateCode) -> Self {
        let word = TerminateWord::default().with_layer(code.layer).with_etype(code.etype);
        Self { word: word.with_code(code.code) }
    }

    /// Layer, error type and error code.
    pub fn terminate_code(&self) -> TerminateCode {
        TerminateCode { layer: self.word.layer(), etype: self.word.etype(), code: self.word.code() }
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{} layer, error type {:#x}, code {:#04x}", self.layer, self.etype, self.code),
        }
    }
}

impl fmt::Debug for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TerminateCode({}/{}/{:#04x} {self})", self.layer.0, self.etype, self.code)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_terminate_has_its_golden_bytes() {
        let control = TerminateControl::new(TerminateCode::DDP_MESSAGE_TOO_LONG);
        assert_eq!(control.as_bytes(), [0x12, 0x05, 0, 0]);
        let word = control.word.with_segment_length(true).with_ddp_header(true);
        assert_eq!(word.as_bytes(), [0x12, 0x05, 0xc0, 0]);
        assert_eq!(word.with_rdmap_header(true).as_bytes(), [0x12, 0x05, 0xe0, 0]);
    }

    #[test]
    fn every_specified_code_survives_the_wire_and_has_its_own_name() {
        for (index, code) in ALL.iter().enumerate() {
            assert_eq!(TerminateControl::new(*code).terminate_code(), *code);
            assert!(ALL[..index].iter().all(|other| other.name() != code.name()), "{code:?}");
        }
    }

    #[test]
    fn an_unknown_code_shows_its_numbers() {
        let code = TerminateCode { layer: TerminateLayer::DDP, etype: 3, code: 9 };
        assert_eq!(code.to_string(), "DDP layer, error type 0x3, code 0x09");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_terminate_and_go_out_unchanged(bytes: [u8; 4]) {
            let control = TerminateControl::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(control.as_bytes(), bytes);
            let code = control.terminate_code();
            let again = TerminateControl::new(code);
            prop_assert_eq!(&again.as_bytes()[..2], &bytes[..2]);
            prop_assert!(!code.to_string().is_empty());
        }
    }
}
