//! The Terminate message (RFC 5040, section 4.8).

use ringfab_spec::iwarp::{
    DdpControl, FPDU_LENGTH_SIZE, QueueNumber, RdmapControl, RdmapOpcode, ReadRequest, TaggedHeader,
    TerminateCode, TerminateControl, TerminateLayer, UntaggedHeader,
};
use ringfab_spec::{FromBytes, IntoBytes};

use super::error::TerminateReceived;
use super::tx::{TxSink, emit_untagged};

const LEN_MAX: usize = TerminateControl::SIZE + FPDU_LENGTH_SIZE + UntaggedHeader::SIZE + ReadRequest::SIZE;

/// A Terminate that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminateMessage {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl TerminateMessage {
    /// The message for `code`, quoting the headers of the offending FPDU as far as they are there. Errors of the lower
    /// layer quote none, since nothing of the FPDU can be believed.
    pub(crate) fn new(code: TerminateCode, fpdu: &[u8]) -> Self {
        let quoted = if code.layer == TerminateLayer::LLP { 0 } else { quoted_len(code.layer, fpdu) };
        let mut control = TerminateControl::new(code);
        if quoted > 0 {
            let rdmap_header = quoted == QUOTED_READ_REQUEST;
            let word = control.word.with_segment_length(true).with_ddp_header(true);
            control.word = word.with_rdmap_header(rdmap_header);
        }
        let mut message = Self { bytes: [0; LEN_MAX], len: 0 };
        message.put(control.as_bytes());
        message.put(&fpdu[..quoted]);
        message
    }

    pub(crate) fn emit<H: Copy>(&self, sink: &mut impl TxSink<H>, crc_used: bool) -> usize {
        let header = UntaggedHeader::new(RdmapOpcode::TERMINATE, true, QueueNumber::TERMINATE, 1, 0);
        emit_untagged(sink, &header, &self.bytes[..self.len], None, crc_used)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// The length field and all headers of a Read Request.
const QUOTED_READ_REQUEST: usize = FPDU_LENGTH_SIZE + UntaggedHeader::SIZE + ReadRequest::SIZE;

/// How much of the FPDU's front to quote: the length field and the headers, in the order of the wire; the RDMAP header
/// only of a Read Request, and only when RDMAP is what complains. Nothing when the DDP header is not there.
fn quoted_len(layer: TerminateLayer, fpdu: &[u8]) -> usize {
    let Some(&[high, low, ddp, rdmap]) = fpdu.first_chunk::<4>() else { return 0 };
    let tagged = DdpControl::from_bits(ddp).tagged();
    let header_len = if tagged { TaggedHeader::SIZE } else { UntaggedHeader::SIZE };
    let ulpdu_len = usize::from(u16::from_be_bytes([high, low]));
    if fpdu.len() < FPDU_LENGTH_SIZE + header_len || ulpdu_len < header_len {
        return 0;
    }
    let opcode = RdmapControl::from_bits(rdmap).opcode();
    let request = layer == TerminateLayer::RDMA && !tagged && opcode == RdmapOpcode::RDMA_READ_REQUEST;
    let whole = FPDU_LENGTH_SIZE + ulpdu_len == QUOTED_READ_REQUEST && fpdu.len() >= QUOTED_READ_REQUEST;
    if request && whole { QUOTED_READ_REQUEST } else { FPDU_LENGTH_SIZE + header_len }
}

impl TerminateReceived {
    /// Reads the control word; the quoted headers add nothing that this side does not know. `None` when it is cut off.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let (control, _) = TerminateControl::ref_from_prefix(payload).ok()?;
        Some(Self { code: control.terminate_code() })
    }
}
