//! PDUs of NVMe/TCP (NVM Express TCP Transport 1.0, section 3.6.2).

use zerocopy::little_endian::{U16, U32};

use crate::cqe::CompletionEntry;
use crate::macros::{bits, open_enum, wire};
use crate::sqe::SubmissionEntry;

/// The port that IANA gave to NVMe/TCP's I/O controllers; RDMA has the same number.
pub const PORT: u16 = 4420;

/// The port of discovery controllers.
pub const DISCOVERY_PORT: u16 = 8009;

/// Bytes of a header or data digest.
pub const DIGEST_SIZE: usize = 4;

/// In-capsule data that every controller takes on its admin queue, and with Connect on every queue, in bytes
/// (section 3.3.1, figure 11).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// The least that a controller should say in MAXH2CDATA, in bytes (section 3.6.2.3).
pub const MAXH2CDATA_MIN: u32 = 4096;

/// The largest HPDA or CPDA: 32 dwords (section 3.3).
pub const PDA_MAX: u8 = 31;

/// The only PDU Format Version.
pub const PFV: u16 = 0;

/// The most of a wrong PDU that a termination request quotes, in bytes (section 3.5.1).
pub const TERM_DATA_BYTES_MAX: usize = 128;

open_enum! {
    /// PDU-Type (section 3.3, figure 10).
    pub struct PduType(u8) {
        IC_REQ = 0x00 => "ICReq";
        IC_RESP = 0x01 => "ICResp";
        H2C_TERM_REQ = 0x02 => "H2CTermReq";
        C2H_TERM_REQ = 0x03 => "C2HTermReq";
        CAPSULE_CMD = 0x04 => "CapsuleCmd";
        CAPSULE_RESP = 0x05 => "CapsuleResp";
        H2C_DATA = 0x06 => "H2CData";
        C2H_DATA = 0x07 => "C2HData";
        R2T = 0x09 => "R2T";
    }
}

bits! {
    /// FLAGS of the common header; which of them count depends on the type.
    pub struct PduFlags(u8 as u8) {
        /// HDGSTF: a header digest follows the header.
        hdgst / with_hdgst: bool = 0:0;
        /// DDGSTF: a data digest follows the data.
        ddgst / with_ddgst: bool = 1:1;
        /// LAST_PDU: the last data PDU of a transfer.
        last / with_last: bool = 2:2;
        /// SUCCESS: the command has completed, and no response capsule follows (C2HData only).
        success / with_success: bool = 3:3;
    }
}

wire! {
    /// The common header (CH) that starts every PDU (section 3.6.2.1).
    #[derive(Copy)]
    pub struct CommonHeader[8] {
        /// PDU-Type.
        0 => pub pdu_type: PduType,
        /// Flags.
        1 => pub flags: PduFlags,
        /// Header Length: bytes of the header, this one included, without its digest.
        2 => pub hlen: u8,
        /// PDU Data Offset: first byte of the data from the start of the PDU; zero without data.
        3 => pub pdo: u8,
        /// PDU Length: bytes of all of it, digests and padding included.
        4 => pub plen: U32,
    }
}

/// Offsets in the common header, as termination requests name them.
pub mod field {
    /// PDU-Type.
    pub const PDU_TYPE: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp.
    pub const PDA: u32 = 10;
    /// DGST of ICReq and ICResp.
    pub const DGST: u32 = 11;
    /// MAXR2T of ICReq, MAXH2CDATA of ICResp.
    pub const LIMIT: u32 = 12;
    /// CCCID of data PDUs and R2T.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAO of data PDUs, R2TO of R2T.
    pub const OFFSET: u32 = 12;
    /// DATAL of data PDUs, R2TL of R2T.
    pub const LENGTH: u32 = 16;
}

bits! {
    /// DGST: the digests that a side wants, or those that are used.
    pub struct Digests(u8 as u8) {
        /// HDGST_ENABLE: header digests.
        header / with_header: bool = 0:0;
        /// DDGST_ENABLE: data digests.
        data / with_data: bool = 1:1;
    }
}

wire! {
    /// Initialize Connection Request: the first PDU, from the host (section 3.6.2.2).
    #[derive(Copy)]
    pub struct IcReq[128] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// PDU Format Version.
        8 => pub pfv: U16,
        /// Host PDU Data Alignment, zero's based, in dwords.
        10 => pub hpda_z: u8,
        /// Digests that the host wants.
        11 => pub dgst: Digests,
        /// The most R2T PDUs outstanding for a command, zero's based.
        12 => pub maxr2t_z: U32,
        16 => reserved16: [u8; 112],
    }
}

wire! {
    /// Initialize Connection Response: the controller's answer (section 3.6.2.3).
    #[derive(Copy)]
    pub struct IcResp[128] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// PDU Format Version.
        8 => pub pfv: U16,
        /// Controller PDU Data Alignment, zero's based, in dwords.
        10 => pub cpda_z: u8,
        /// Digests that are used.
        11 => pub dgst: Digests,
        /// The most data of an H2CData PDU, in bytes.
        12 => pub maxh2cdata: U32,
        16 => reserved16: [u8; 112],
    }
}

open_enum! {
    /// Fatal Error Status (FES) of a termination request. Value 05h says another thing in each direction.
    pub struct FatalError(u16) {
        INVALID_HEADER_FIELD = 0x01 => "Invalid PDU Header Field";
        SEQUENCE_ERROR = 0x02 => "PDU Sequence Error";
        HEADER_DIGEST_ERROR = 0x03 => "Header Digest Error";
        OUT_OF_RANGE = 0x04 => "Data Transfer Out of Range";
        LIMIT_EXCEEDED = 0x05 => "R2T or Data Transfer Limit Exceeded";
        UNSUPPORTED_PARAMETER = 0x06 => "Unsupported Parameter";
    }
}

wire! {
    /// Termination request of either side; the start of the wrong PDU follows (sections 3.6.2.4 and 3.6.2.5).
    #[derive(Copy)]
    pub struct TermReq[24] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// Fatal Error Status.
        8 => pub fes: U16,
        /// Fatal Error Information: the offset of a wrong field, or the digest that was received.
        10 => pub fei: U32,
        14 => reserved14: [u8; 10],
    }
}

wire! {
    /// Header of a command capsule; in-capsule data may follow (section 3.6.2.6).
    #[derive(Copy)]
    pub struct CapsuleCmd[72, align 8] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// The command (CCSQE).
        8 => pub sqe: SubmissionEntry,
    }
}

wire! {
    /// A response capsule (section 3.6.2.7).
    #[derive(Copy)]
    pub struct CapsuleResp[24, align 8] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// The completion (RCCQE).
        8 => pub cqe: CompletionEntry,
    }
}

wire! {
    /// Header of H2CData and of C2HData, whose TTAG is reserved (sections 3.6.2.8 and 3.6.2.9).
    #[derive(Copy)]
    pub struct DataHeader[24] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// Command Capsule CID.
        8 => pub cccid: U16,
        /// Transfer Tag: that of the R2T which asked for the data.
        10 => pub ttag: U16,
        /// Data Offset in the command's data, in bytes.
        12 => pub datao: U32,
        /// Data Length in bytes.
        16 => pub datal: U32,
        20 => reserved20: [u8; 4],
    }
}

wire! {
    /// Ready to Transfer: the controller asks for a part of a command's data (section 3.6.2.10).
    #[derive(Copy)]
    pub struct ReadyToTransfer[24] {
        /// Common header.
        0 => pub ch: CommonHeader,
        /// Command Capsule CID.
        8 => pub cccid: U16,
        /// Transfer Tag, which the data name again.
        10 => pub ttag: U16,
        /// Requested Data Offset in the command's data, in bytes.
        12 => pub r2to: U32,
        /// Requested Data Length in bytes.
        16 => pub r2tl: U32,
        20 => reserved20: [u8; 4],
    }
}

impl CommonHeader {
    /// The header of a PDU of so many bytes in all. Data start at `pdo`, zero for none.
    pub fn new(pdu_type: PduType, flags: PduFlags, hlen: u8, pdo: u8, plen: u32) -> Self {
        Self { pdu_type, flags, hlen, pdo, plen: U32::new(plen) }
    }
}

impl IcReq {
    /// A request for `alignment_dwords` (1 to 32) and up to `r2ts_max` (at least 1) outstanding for a command.
    pub fn new(alignment_dwords: u8, dgst: Digests, r2ts_max: u32) -> Self {
        assert!((1..=32).contains(&alignment_dwords) && r2ts_max > 0, "zero's based fields");
        Self {
            ch: CommonHeader::new(PduType::IC_REQ, PduFlags::default(), 128, 0, 128),
            pfv: U16::new(PFV),
            hpda_z: alignment_dwords - 1,
            dgst,
            maxr2t_z: U32::new(r2ts_max - 1),
            ..Self::zeroed()
        }
    }
}

impl IcResp {
    /// A response for `alignment_dwords` (1 to 32), and up to `maxh2cdata` bytes in an H2CData PDU.
    pub fn new(alignment_dwords: u8, dgst: Digests, maxh2cdata: u32) -> Self {
        assert!((1..=32).contains(&alignment_dwords), "a zero's based field");
        Self {
            ch: CommonHeader::new(PduType::IC_RESP, PduFlags::default(), 128, 0, 128),
            pfv: U16::new(PFV),
            cpda_z: alignment_dwords - 1,
            dgst,
            maxh2cdata: U32::new(maxh2cdata),
            ..Self::zeroed()
        }
    }
}

impl DataHeader {
    /// The header of `datal` bytes of a command's data at `datao`. For C2HData, `ttag` is reserved.
    pub fn new(ch: CommonHeader, cccid: u16, ttag: u16, datao: u32, datal: u32) -> Self {
        Self {
            ch,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            ..Self::zeroed()
        }
    }
}

impl ReadyToTransfer {
    /// Asks for `r2tl` bytes of a command's data at `r2to`.
    pub fn new(ch: CommonHeader, cccid: u16, ttag: u16, r2to: u32, r2tl: u32) -> Self {
        Self {
            ch,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            ..Self::zeroed()
        }
    }
}

impl TermReq {
    /// A termination request in front of `quoted` bytes of the wrong PDU, at most [`TERM_DATA_BYTES_MAX`].
    pub fn new(pdu_type: PduType, fes: FatalError, fei: u32, quoted: usize) -> Self {
        assert!(quoted <= TERM_DATA_BYTES_MAX, "no more is quoted");
        let plen = (Self::SIZE + quoted) as u32;
        Self {
            ch: CommonHeader::new(pdu_type, PduFlags::default(), Self::SIZE as u8, 0, plen),
            fes: U16::new(fes.0),
            fei: U32::new(fei),
            ..Self::zeroed()
        }
    }

    /// Why.
    pub fn fatal_error(&self) -> FatalError {
        FatalError(self.fes.get())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn the_initialisation_pdus_have_their_golden_bytes() {
        let request = IcReq::new(2, Digests::default().with_header(true), 16);
        assert_eq!(request.as_bytes()[..17], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 1, 1, 15, 0, 0, 0, 0]);
        let response = IcResp::new(1, Digests::default().with_data(true), 0x0002_0000);
        assert_eq!(response.as_bytes()[..16], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]);
        assert!(request.as_bytes()[17..].iter().chain(&response.as_bytes()[16..]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_termination_request_has_its_golden_bytes() {
        let request = TermReq::new(PduType::C2H_TERM_REQ, FatalError::INVALID_HEADER_FIELD, 0x0403_0201, 8);
        assert_eq!(request.as_bytes()[..15], [3, 0, 24, 0, 32, 0, 0, 0, 1, 0, 1, 2, 3, 4, 0]);
        assert_eq!(std::format!("{}", request.fatal_error()), "Invalid PDU Header Field");
    }

    #[test]
    fn the_headers_of_data_have_their_golden_bytes() {
        let flags = PduFlags::default().with_last(true).with_success(true);
        let ch = CommonHeader::new(PduType::C2H_DATA, flags, 24, 24, 24 + 512);
        let header = DataHeader::new(ch, 0x1122, 0x3344, 0x1000, 0x200);
        let golden = [7, 0xc, 24, 24, 0x18, 2, 0, 0, 0x22, 0x11, 0x44, 0x33, 0, 0x10, 0, 0, 0, 2, 0, 0];
        assert_eq!(header.as_bytes()[..20], golden);
        let ch = CommonHeader::new(PduType::R2T, PduFlags::default(), 24, 0, 24);
        let wanted = ReadyToTransfer::new(ch, 1, 2, 3, 4);
        assert_eq!(wanted.as_bytes()[..20], [9, 0, 24, 0, 24, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(PduFlags::default().with_hdgst(true).with_ddgst(true).as_bytes(), [3]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_and_go_out_unchanged(bytes: [u8; 128]) {
            let request = IcReq::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(request.as_bytes(), bytes);
            let (header, _) = CommonHeader::read_from_prefix(&bytes).unwrap();
            let flags = header.flags;
            let again = PduFlags::default().with_hdgst(flags.hdgst()).with_ddgst(flags.ddgst());
            let again = again.with_last(flags.last()).with_success(flags.success());
            prop_assert_eq!(again.bits() & 0xf, bytes[1] & 0xf);
            prop_assert_eq!(header.as_bytes(), &bytes[..8]);
        }

        #[test]
        fn any_bytes_are_a_pdu_of_each_type_and_go_out_unchanged(bytes: [u8; 128]) {
            fn again<T: FromBytes + IntoBytes + zerocopy::Immutable>(bytes: &[u8]) -> bool {
                let (pdu, _) = T::read_from_prefix(bytes).unwrap();
                pdu.as_bytes() == &bytes[..size_of::<T>()]
            }
            let all = [
                again::<IcReq>, again::<IcResp>, again::<TermReq>, again::<CapsuleCmd>, again::<CapsuleResp>,
                again::<DataHeader>, again::<ReadyToTransfer>,
            ];
            prop_assert!(all.iter().all(|again| again(&bytes)));
        }
    }
}
