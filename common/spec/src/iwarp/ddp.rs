//! The headers of a segment: DDP (RFC 5041, section 4) with RDMAP's part in them (RFC 5040, section 4).

use zerocopy::big_endian::{U32, U64};

use crate::macros::{bits, open_enum, wire};

bits! {
    /// First byte of a segment: DDP control.
    pub struct DdpControl(u8 as u8) {
        /// DV: DDP version; 1.
        dv / with_dv: u8 = 1:0;
        /// Reserved; zero.
        reserved / with_reserved: u8 = 5:2;
        /// L: the last segment of its message.
        last / with_last: bool = 6:6;
        /// T: a tagged segment.
        tagged / with_tagged: bool = 7:7;
    }
}

bits! {
    /// Second byte of a segment: RDMAP control, which DDP carries as RsvdULP.
    pub struct RdmapControl(u8 as u8) {
        /// Opcode.
        opcode / with_opcode: RdmapOpcode = 3:0;
        /// Reserved; zero.
        reserved / with_reserved: u8 = 5:4;
        /// RV: RDMAP version; 1.
        rv / with_rv: u8 = 7:6;
    }
}

open_enum! {
    /// What a message is (RFC 5040, section 4.3; RFC 7306 for 8h to Bh).
    pub struct RdmapOpcode(u8) {
        RDMA_WRITE = 0x0 => "RDMA Write";
        RDMA_READ_REQUEST = 0x1 => "RDMA Read Request";
        RDMA_READ_RESPONSE = 0x2 => "RDMA Read Response";
        SEND = 0x3 => "Send";
        SEND_INVALIDATE = 0x4 => "Send with Invalidate";
        SEND_SE = 0x5 => "Send with Solicited Event";
        SEND_SE_INVALIDATE = 0x6 => "Send with Solicited Event and Invalidate";
        TERMINATE = 0x7 => "Terminate";
        IMMEDIATE_DATA = 0x8 => "Immediate Data";
        IMMEDIATE_DATA_SE = 0x9 => "Immediate Data with Solicited Event";
        ATOMIC_REQUEST = 0xa => "Atomic Request";
        ATOMIC_RESPONSE = 0xb => "Atomic Response";
    }
}

impl RdmapOpcode {
    /// Whether it is one of the four Sends.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::SEND | Self::SEND_INVALIDATE | Self::SEND_SE | Self::SEND_SE_INVALIDATE)
    }

    /// Whether the message invalidates an STag of the receiver.
    pub const fn is_invalidating(self) -> bool {
        matches!(self, Self::SEND_INVALIDATE | Self::SEND_SE_INVALIDATE)
    }

    /// Whether the receiver's completion is a solicited event.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SEND_SE | Self::SEND_SE_INVALIDATE | Self::IMMEDIATE_DATA_SE)
    }

    /// Whether its segments are tagged; `None` for an opcode that is not specified.
    pub const fn is_tagged(self) -> Option<bool> {
        match self {
            Self::RDMA_WRITE | Self::RDMA_READ_RESPONSE => Some(true),
            _ if self.name().is_some() => Some(false),
            _ => None,
        }
    }
}

/// The untagged queues that RDMAP uses (RFC 5040, section 4.2). A queue number has 32 bits, so that this is not
/// an open enumeration of a byte.
pub struct QueueNumber;

impl QueueNumber {
    /// Sends.
    pub const SEND: u32 = 0;
    /// Read Requests.
    pub const READ_REQUEST: u32 = 1;
    /// Terminate.
    pub const TERMINATE: u32 = 2;
}

wire! {
    /// Header of a tagged segment: RDMA Write and RDMA Read Response. The payload follows.
    #[derive(Copy)]
    pub struct TaggedHeader[14] {
        /// DDP control.
        0 => pub ddp: DdpControl,
        /// RDMAP control.
        1 => pub rdmap: RdmapControl,
        /// STag of the data sink's buffer.
        2 => pub stag: U32,
        /// Tagged Offset: where this payload goes in that buffer.
        6 => pub to: U64,
    }
}

wire! {
    /// Header of an untagged segment: Sends, RDMA Read Request and Terminate. The payload follows.
    #[derive(Copy)]
    pub struct UntaggedHeader[18] {
        /// DDP control.
        0 => pub ddp: DdpControl,
        /// RDMAP control.
        1 => pub rdmap: RdmapControl,
        /// STag to invalidate, in Sends with Invalidate; zero otherwise.
        2 => pub invalidate_stag: U32,
        /// Queue Number, see [`QueueNumber`].
        6 => pub qn: U32,
        /// Message Sequence Number; the first message of a queue has 1.
        10 => pub msn: U32,
        /// Message Offset of this payload, in bytes.
        14 => pub mo: U32,
    }
}

wire! {
    /// Payload of an RDMA Read Request (RFC 5040, section 4.4).
    #[derive(Copy)]
    pub struct ReadRequest[28] {
        /// STag of the data sink's buffer.
        0 => pub sink_stag: U32,
        /// Tagged Offset in the data sink's buffer.
        4 => pub sink_to: U64,
        /// RDMA Read Message Size in bytes.
        12 => pub size: U32,
        /// STag of the data source's buffer.
        16 => pub source_stag: U32,
        /// Tagged Offset in the data source's buffer.
        20 => pub source_to: U64,
    }
}

impl DdpControl {
    /// The DDP version of RFC 5041.
    pub const VERSION: u8 = 1;

    /// The control byte of a segment in this version.
    #[inline]
    pub fn new(tagged: bool, last: bool) -> Self {
        Self::default().with_dv(Self::VERSION).with_tagged(tagged).with_last(last)
    }
}

impl RdmapControl {
    /// The RDMAP version of RFC 5040.
    pub const VERSION: u8 = 1;

    /// The control byte of a message in this version. Panics for an opcode above Fh, which no message can have.
    #[inline]
    pub fn new(opcode: RdmapOpcode) -> Self {
        Self::default().with_rv(Self::VERSION).with_opcode(opcode)
    }
}

impl TaggedHeader {
    /// The header of a segment of an RDMA Write or an RDMA Read Response.
    #[inline]
    pub fn new(opcode: RdmapOpcode, last: bool, stag: u32, to: u64) -> Self {
        Self {
            ddp: DdpControl::new(true, last),
            rdmap: RdmapControl::new(opcode),
            stag: U32::new(stag),
            to: U64::new(to),
        }
    }
}

impl UntaggedHeader {
    /// The header of a segment of a message on one of the three queues; no STag is invalidated.
    #[inline]
    pub fn new(opcode: RdmapOpcode, last: bool, qn: u32, msn: u32, mo: u32) -> Self {
        Self {
            ddp: DdpControl::new(false, last),
            rdmap: RdmapControl::new(opcode),
            invalidate_stag: U32::ZERO,
            qn: U32::new(qn),
            msn: U32::new(msn),
            mo: U32::new(mo),
        }
    }

    /// This header with an STag to invalidate.
    #[inline]
    #[must_use]
    pub fn with_invalidate_stag(self, stag: u32) -> Self {
        Self { invalidate_stag: U32::new(stag), ..self }
    }
}

impl ReadRequest {
    /// A request for `size` bytes, from the source's buffer into the sink's.
    #[inline]
    pub fn new(sink: (u32, u64), size: u32, source: (u32, u64)) -> Self {
        Self {
            sink_stag: U32::new(sink.0),
            sink_to: U64::new(sink.1),
            size: U32::new(size),
            source_stag: U32::new(source.0),
            source_to: U64::new(source.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_tagged_header_has_its_golden_bytes() {
        let write = TaggedHeader::new(RdmapOpcode::RDMA_WRITE, true, 0x0102_0304, 0x0506_0708_090a_0b0c);
        assert_eq!(write.as_bytes(), [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let response = TaggedHeader::new(RdmapOpcode::RDMA_READ_RESPONSE, false, 0, 0);
        assert_eq!(response.as_bytes()[..2], [0x81, 0x42]);
    }

    #[test]
    fn an_untagged_header_has_its_golden_bytes() {
        let opcode = RdmapOpcode::SEND_INVALIDATE;
        let send = UntaggedHeader::new(opcode, true, QueueNumber::SEND, 0x0102, 0x0304)
            .with_invalidate_stag(0x0a0b_0c0d);
        let golden = [0x41, 0x44, 10, 11, 12, 13, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4];
        assert_eq!(send.as_bytes(), golden);
    }

    #[test]
    fn a_read_request_has_its_golden_bytes() {
        let request = ReadRequest::new((1, 2), 0x1_0000, (0x0304_0506, 7));
        let golden = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(request.as_bytes(), golden);
    }

    #[test]
    fn each_opcode_knows_its_kind() {
        assert!(RdmapOpcode::SEND_SE_INVALIDATE.is_send());
        assert!(RdmapOpcode::SEND_SE_INVALIDATE.is_invalidating());
        assert!(RdmapOpcode::SEND_SE.is_solicited() && !RdmapOpcode::SEND_SE.is_invalidating());
        assert!(!RdmapOpcode::TERMINATE.is_send());
        assert_eq!(RdmapOpcode::RDMA_READ_RESPONSE.is_tagged(), Some(true));
        assert_eq!(RdmapOpcode::RDMA_READ_REQUEST.is_tagged(), Some(false));
        assert_eq!(RdmapOpcode(0xf).is_tagged(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_headers_and_go_out_unchanged(tagged: [u8; 14], untagged: [u8; 18], read: [u8; 28]) {
            let header = TaggedHeader::read_from_bytes(&tagged).unwrap();
            prop_assert_eq!(header.as_bytes(), tagged);
            prop_assert_eq!(header.ddp.bits(), tagged[0]);
            prop_assert_eq!(header.rdmap.opcode().0, tagged[1] & 0xf);
            let shown = std::format!("{header:?}");
            prop_assert!(shown.contains("stag"));
            let header = UntaggedHeader::read_from_bytes(&untagged).unwrap();
            prop_assert_eq!(header.as_bytes(), untagged);
            let request = ReadRequest::read_from_bytes(&read).unwrap();
            let again = ReadRequest::new(
                (request.sink_stag.get(), request.sink_to.get()),
                request.size.get(),
                (request.source_stag.get(), request.source_to.get()),
            );
            prop_assert_eq!(again.as_bytes(), read);
        }
    }
}
