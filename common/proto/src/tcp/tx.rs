//! From what is to be sent to PDUs.

use std::collections::VecDeque;

use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DIGEST_SIZE, DataHeader, Digests, PduFlags, PduType,
    ReadyToTransfer, TERM_DATA_BYTES_MAX, TermReq,
};
use ringfab_spec::{CompletionEntry, IntoBytes, SubmissionEntry};

use super::init::ALIGNMENT_MAX;
use crate::crc;
use crate::use_counter::UseCounter;

/// The most bytes of one PDU that are copied: the header, its digest and padding, and the digest of the data; or a
/// termination request with all that it quotes.
pub const HEAD_BYTES_MAX: usize = TermReq::SIZE + TERM_DATA_BYTES_MAX;

const _: () = assert!(
    HEAD_BYTES_MAX >= ALIGNMENT_MAX + DIGEST_SIZE && HEAD_BYTES_MAX >= CapsuleCmd::SIZE + 2 * DIGEST_SIZE
);

/// What lies between a header and its data is zero, and shorter than the alignment.
const PADDING: [u8; ALIGNMENT_MAX] = [0; ALIGNMENT_MAX];

/// The most data that we put into one PDU, whatever the peer would take: between two PDUs others get their turn.
const DATA_BYTES_MAX: u32 = 1 << 20;

/// Takes what the engine emits, in stream order.
///
/// Rely on: between two calls of [`TxSink::has_room`] at most one payload arrives, and no more than [`HEAD_BYTES_MAX`]
/// bytes around it, in any number of calls.
pub trait TxSink<H> {
    /// Whether another PDU may be emitted.
    fn has_room(&self) -> bool {
        true
    }

    /// Headers and digests, to be copied.
    fn bytes(&mut self, bytes: &[u8]);

    /// Data in the owner's memory: `length` bytes at `offset` of `handle`, which the sink keeps as long as it needs.
    fn payload(&mut self, handle: H, offset: u32, length: u32);

    /// The CRC register after these bytes of data, from the register before them; see [`crc::update`]. Called only when
    /// the connection uses data digests.
    fn crc(&mut self, handle: &H, offset: u32, length: u32, state: u32) -> u32;
}

/// A range of the owner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source<H> {
    /// The owner's name for the memory.
    pub handle: H,
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

/// Data of a command that a controller sends (TCP Transport 1.0, section 3.6.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C2hData<H> {
    /// The command's identifier.
    pub cid: u16,
    /// Where they begin in the command's data, in bytes.
    pub offset: u32,
    /// Their memory.
    pub source: Source<H>,
    /// Whether they are the end of the command's data.
    pub last: bool,
    /// Whether they stand for the response, too; only with `last`, and only on queues without flow control.
    pub success: bool,
}

/// Data of a command that a host sends for an R2T (section 3.6.2.8).
#[derive(Debug)]
pub(super) struct H2cData<H> {
    pub(super) cid: u16,
    pub(super) ttag: u16,
    /// Where they begin in the command's data, in bytes.
    pub(super) offset: u32,
    /// What is left of them.
    pub(super) source: Source<H>,
}

/// What waits to be sent.
#[derive(Debug)]
pub(super) enum Pdu<H> {
    Command {
        sqe: SubmissionEntry,
        data: Option<Source<H>>,
    },
    Response {
        cqe: CompletionEntry,
    },
    R2t {
        cid: u16,
        ttag: u16,
        offset: u32,
        length: u32,
    },
    /// Goes out in as many PDUs as the controller's limit asks for.
    H2cData(H2cData<H>),
    /// The fields of [`C2hData`], one by one: a structure in here would be moved as a whole for each command.
    C2hData {
        cid: u16,
        offset: u32,
        source: Source<H>,
        last: bool,
        success: bool,
    },
}

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct TransmitQueue<H> {
    /// A PDU of the connection's start or end, in front of everything.
    first: Option<Vec<u8>>,
    queue: VecDeque<Pdu<H>>,
    pub(super) digests: Digests,
    /// What data in PDUs to the peer are aligned to, in bytes.
    pub(super) alignment: usize,
    /// The most data of an H2CData PDU.
    pub(super) h2c_bytes_max: u32,
    /// Responses and data to a host that were emitted and not [transmitted](TransmitQueue::transmitted).
    emitted: u32,
    /// Those of them that were there at the last [`TransmitQueue::transmit`], and with it went out.
    sending: u32,
    /// Whether something was emitted since then.
    emitted_now: bool,
    /// Commands of R2Ts whose last data were emitted.
    pub(super) served: VecDeque<u16>,
    /// As many PDUs as wait at most.
    capacity: usize,
    pushed: UseCounter,
}

impl<H> TransmitQueue<H> {
    /// An empty one, in which so many PDUs wait at most.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            first: None,
            queue: VecDeque::new(),
            digests: Digests::default(),
            alignment: 4,
            h2c_bytes_max: DATA_BYTES_MAX,
            emitted: 0,
            sending: 0,
            emitted_now: false,
            served: VecDeque::new(),
            capacity,
            pushed: UseCounter::default(),
        }
    }

    pub(super) fn push_first(&mut self, pdu: &[u8]) {
        self.first = Some(pdu.to_vec());
    }

    #[inline(always)]
    pub(super) fn push(&mut self, pdu: Pdu<H>) {
        if self.pushed.reaches_threshold() {
            self.make_room();
        }
        self.queue.push_back(pdu);
    }

    #[cold]
    fn make_room(&mut self) {
        self.queue.reserve_exact(self.capacity.saturating_sub(self.queue.len()));
        self.served.reserve_exact(self.capacity.saturating_sub(self.served.len()));
    }

    /// Forgets data of a command that were asked for and not sent.
    pub(super) fn drop_data(&mut self, of: u16) {
        self.queue.retain(|pdu| !matches!(pdu, Pdu::H2cData(data) if data.cid == of));
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Whether nothing is to be sent, be it emitted already.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.emitted_now && self.is_clear()
    }

    /// Whether nothing waits.
    #[inline]
    fn is_clear(&self) -> bool {
        self.first.is_none() && self.queue.is_empty()
    }

    /// What was emitted up to the last [`TransmitQueue::transmit`] has been sent: how many responses and data to a
    /// host.
    pub(super) fn transmitted(&mut self) -> u32 {
        let sent = std::mem::take(&mut self.sending);
        self.emitted -= sent;
        sent
    }
}

impl<H: Clone> TransmitQueue<H> {
    /// Emits a PDU at once, to the sink of the next [`TransmitQueue::transmit`], if there is room and nothing waits
    /// before it.
    #[inline(always)]
    pub(super) fn give(&mut self, pdu: Pdu<H>, sink: &mut impl TxSink<H>) {
        if self.is_clear() && sink.has_room() {
            if self.pushed.reaches_threshold() {
                self.make_room();
            }
            self.emitted_now = true;
            self.emit(pdu, sink);
        } else {
            self.push(pdu);
        }
    }

    /// Emits PDUs until there are none or the sink is full.
    pub(super) fn transmit(&mut self, sink: &mut impl TxSink<H>) {
        self.emitted_now = false;
        while sink.has_room() {
            if let Some(first) = self.first.take() {
                sink.bytes(&first);
                continue;
            }
            let Some(pdu) = self.queue.pop_front() else {
                // From here the next ones go to its front again, which is in the cache.
                self.queue.clear();
                break;
            };
            self.emit(pdu, sink);
        }
        self.sending = self.emitted;
    }

    #[inline(always)]
    fn emit(&mut self, pdu: Pdu<H>, sink: &mut impl TxSink<H>) {
        let none = PduFlags::default();
        match pdu {
            Pdu::Command { sqe, data } => {
                let header = |ch| CapsuleCmd { ch, sqe };
                self.put(sink, PduType::CAPSULE_CMD, none, header, data);
            }
            Pdu::Response { cqe } => {
                self.emitted += 1;
                self.put(sink, PduType::CAPSULE_RESP, none, |ch| CapsuleResp { ch, cqe }, None);
            }
            Pdu::R2t { cid, ttag, offset, length } => {
                let header = |ch| ReadyToTransfer::new(ch, cid, ttag, offset, length);
                self.put(sink, PduType::R2T, none, header, None);
            }
            Pdu::C2hData { cid, offset, source, last, success } => {
                self.emitted += 1;
                let flags = none.with_last(last).with_success(success);
                let length = source.length;
                let header = |ch| DataHeader::new(ch, cid, 0, offset, length);
                self.put(sink, PduType::C2H_DATA, flags, header, Some(source));
            }
            Pdu::H2cData(data) => self.emit_h2c(sink, data),
        }
    }

    fn emit_h2c(&mut self, sink: &mut impl TxSink<H>, data: H2cData<H>) {
        let H2cData { cid, ttag, offset, source } = data;
        let length = source.length.min(self.h2c_bytes_max).min(DATA_BYTES_MAX);
        let left = source.length - length;
        let header = |ch| DataHeader::new(ch, cid, ttag, offset, length);
        let flags = PduFlags::default().with_last(left == 0);
        if left == 0 {
            self.served.push_back(cid);
        } else {
            let source =
                Source { handle: source.handle.clone(), offset: source.offset + length, length: left };
            self.queue.push_front(Pdu::H2cData(H2cData { cid, ttag, offset: offset + length, source }));
        }
        self.put(sink, PduType::H2C_DATA, flags, header, Some(Source { length, ..source }));
    }

    /// Emits one PDU, with the digests that were agreed on.
    #[inline(always)]
    fn put<T: IntoBytes + ringfab_spec::zerocopy::Immutable>(
        &self,
        sink: &mut impl TxSink<H>,
        pdu_type: PduType,
        flags: PduFlags,
        header: impl FnOnce(CommonHeader) -> T,
        data: Option<Source<H>>,
    ) {
        let hlen = size_of::<T>();
        let header_digest = self.digests.header();
        let data_digest = self.digests.data() && data.is_some();
        let base = hlen + if header_digest { DIGEST_SIZE } else { 0 };
        let pdo = if data.is_some() { base.next_multiple_of(self.alignment) } else { 0 };
        let length = data.as_ref().map_or(0, |data| data.length);
        let plen = base.max(pdo) + length as usize + if data_digest { DIGEST_SIZE } else { 0 };
        let flags = flags.with_hdgst(header_digest).with_ddgst(data_digest);
        let header = header(CommonHeader::new(pdu_type, flags, hlen as u8, pdo as u8, plen as u32));
        sink.bytes(header.as_bytes());
        if header_digest {
            sink.bytes(&digest_of(header));
        }
        if pdo > base {
            sink.bytes(&PADDING[..pdo - base]);
        }
        if let Some(data) = data {
            let state = data_digest.then(|| sink.crc(&data.handle, data.offset, length, crc::START));
            sink.payload(data.handle, data.offset, length);
            if let Some(state) = state {
                sink.bytes(&crc::finish(state));
            }
        }
    }
}

/// The digest of a header: of a copy, so that where none is asked for the header is never put together in memory only
/// to be copied from there.
#[inline(never)]
#[expect(clippy::needless_pass_by_value, reason = "the copy is what it is for")]
fn digest_of<T: IntoBytes + ringfab_spec::zerocopy::Immutable>(header: T) -> [u8; DIGEST_SIZE] {
    crc::of(header.as_bytes())
}
