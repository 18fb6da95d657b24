//! MPA: how a connection starts, and how segments are framed (RFC 5044, sections 4 and 7; RFC 6581, section 9).

use zerocopy::big_endian::U16;

use crate::macros::{bits, wire};

/// The key of a Request Frame.
pub const MPA_KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";

/// The key of a Reply Frame.
pub const MPA_KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// The most private data in a frame, in bytes; the enhanced header counts as part of it.
pub const MPA_PRIVATE_DATA_BYTES_MAX: usize = 512;

/// The largest IRD or ORD that can be offered; all ones means that the depth is not negotiated (RFC 6581,
/// section 9.1).
pub const DEPTH_MAX: u16 = 0x3ffe;

/// Bytes of the ULPDU length in front of every FPDU.
pub const FPDU_LENGTH_SIZE: usize = 2;

/// Bytes of the CRC32C behind every FPDU; present also when CRCs are not used.
pub const FPDU_CRC_SIZE: usize = 4;

wire! {
    /// The fixed part of a Request or Reply Frame; private data follows.
    #[derive(Copy)]
    pub struct MpaHeader[20] {
        /// Which of the two frames it is: [`MPA_KEY_REQUEST`] or [`MPA_KEY_REPLY`].
        0 => pub key: [u8; 16],
        /// Markers, CRC, Reject, Enhanced.
        16 => pub flags: MpaFlags,
        /// Revision: 1 or 2.
        17 => pub revision: u8,
        /// Bytes of private data that follow, the enhanced header included.
        18 => pub pd_length: U16,
    }
}

bits! {
    /// Flags of a Request or Reply Frame.
    pub struct MpaFlags(u8 as u8) {
        /// S: an enhanced header starts the private data (revision 2 only).
        enhanced / with_enhanced: bool = 4:4;
        /// R: the connection is refused (Reply Frames only).
        reject / with_reject: bool = 5:5;
        /// C: this side wants CRCs; they are used when either side does.
        crc / with_crc: bool = 6:6;
        /// M: this side wants to receive markers.
        markers / with_markers: bool = 7:7;
    }
}

wire! {
    /// What RFC 6581 adds: the depths of reads, and how a peer-to-peer connection becomes ready.
    #[derive(Copy)]
    pub struct EnhancedHeader[4] {
        /// Inbound depth and control flags A and B.
        0 => pub ird: InboundDepth,
        /// Outbound depth and control flags C and D.
        2 => pub ord: OutboundDepth,
    }
}

bits! {
    /// First half of the enhanced header.
    pub struct InboundDepth(U16 as u16) {
        /// IRD: how many Read Requests of the peer the sender can answer at a time.
        ird / with_ird: u16 = 13:0;
        /// B: a Send of no bytes can be the ready-to-receive message.
        rtr_send / with_rtr_send: bool = 14:14;
        /// A: peer-to-peer; the initiator's first message is a ready-to-receive one.
        peer_to_peer / with_peer_to_peer: bool = 15:15;
    }
}

bits! {
    /// Second half of the enhanced header.
    pub struct OutboundDepth(U16 as u16) {
        /// ORD: how many Read Requests the sender wants outstanding at a time.
        ord / with_ord: u16 = 13:0;
        /// D: an RDMA Read of no bytes can be the ready-to-receive message.
        rtr_read / with_rtr_read: bool = 14:14;
        /// C: an RDMA Write of no bytes can be the ready-to-receive message.
        rtr_write / with_rtr_write: bool = 15:15;
    }
}

impl MpaHeader {
    /// A Request Frame.
    pub fn request(flags: MpaFlags, revision: u8, pd_length: u16) -> Self {
        Self { key: MPA_KEY_REQUEST, flags, revision, pd_length: U16::new(pd_length) }
    }

    /// A Reply Frame.
    pub fn reply(flags: MpaFlags, revision: u8, pd_length: u16) -> Self {
        Self { key: MPA_KEY_REPLY, ..Self::request(flags, revision, pd_length) }
    }

    /// Whether the key is that of a Request Frame.
    pub fn is_request(&self) -> bool {
        self.key == MPA_KEY_REQUEST
    }

    /// Whether the key is that of a Reply Frame.
    pub fn is_reply(&self) -> bool {
        self.key == MPA_KEY_REPLY
    }
}

/// Bytes of padding behind a ULPDU, so that the CRC starts at a multiple of four.
pub const fn fpdu_padding(ulpdu_length: u16) -> usize {
    (FPDU_LENGTH_SIZE + ulpdu_length as usize).wrapping_neg() % 4
}

/// Bytes of an FPDU without markers, from its length to its CRC.
pub const fn fpdu_size(ulpdu_length: u16) -> usize {
    FPDU_LENGTH_SIZE + ulpdu_length as usize + fpdu_padding(ulpdu_length) + FPDU_CRC_SIZE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_request_frame_has_its_golden_bytes() {
        let flags = MpaFlags::default().with_crc(true).with_enhanced(true);
        let header = MpaHeader::request(flags, 2, 0x0124);
        assert_eq!(header.as_bytes(), b"MPA ID Req Frame\x50\x02\x01\x24");
        assert!(header.is_request() && !header.is_reply());
    }

    #[test]
    fn a_refusing_reply_frame_has_its_golden_bytes() {
        let flags = MpaFlags::default().with_reject(true).with_markers(true);
        let header = MpaHeader::reply(flags, 1, 4);
        assert_eq!(header.as_bytes(), b"MPA ID Rep Frame\xa0\x01\x00\x04");
        assert!(header.is_reply() && !header.is_request());
    }

    #[test]
    fn an_enhanced_header_has_its_golden_bytes() {
        let ird = InboundDepth::default().with_peer_to_peer(true).with_ird(0x0123);
        let ord = OutboundDepth::default().with_rtr_write(true).with_rtr_read(true).with_ord(DEPTH_MAX);
        assert_eq!(EnhancedHeader { ird, ord }.as_bytes(), [0x81, 0x23, 0xff, 0xfe]);
        assert_eq!(InboundDepth::default().with_rtr_send(true).as_bytes(), [0x40, 0]);
    }

    #[test]
    fn an_fpdu_is_padded_to_whole_words() {
        let sizes = [(0, 2, 8), (1, 1, 8), (2, 0, 8), (3, 3, 12), (65_535, 3, 65_544)];
        for (length, padding, size) in sizes {
            assert_eq!((fpdu_padding(length), fpdu_size(length)), (padding, size), "ULPDU of {length} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_and_go_out_unchanged(bytes: [u8; 20], enhanced: [u8; 4]) {
            let header = MpaHeader::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(header.as_bytes(), bytes);
            let flags = header.flags;
            let again = flags.with_crc(flags.crc()).with_markers(flags.markers()).with_reject(flags.reject());
            prop_assert_eq!(again.with_enhanced(flags.enhanced()), flags);
            let EnhancedHeader { ird, ord } = EnhancedHeader::read_from_bytes(&enhanced).unwrap();
            let ird = InboundDepth::default().with_ird(ird.ird()).with_rtr_send(ird.rtr_send())
                .with_peer_to_peer(ird.peer_to_peer());
            let ord = OutboundDepth::default().with_ord(ord.ord()).with_rtr_read(ord.rtr_read())
                .with_rtr_write(ord.rtr_write());
            let again = EnhancedHeader { ird, ord };
            prop_assert_eq!(again.as_bytes(), enhanced);
        }

        #[test]
        fn an_fpdu_ends_at_a_whole_word_with_less_than_a_word_of_padding(length: u16) {
            prop_assert_eq!(fpdu_size(length) % 4, 0);
            prop_assert!(fpdu_padding(length) < 4);
        }
    }
}
