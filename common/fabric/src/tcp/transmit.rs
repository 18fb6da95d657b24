//! What is sent on a connection.

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_proto::tcp::{self as proto, CommandData, HEAD_BYTES_MAX, Source, TxSink, crc};
use ringfab_spec::SubmissionEntry;

use super::connection::Connection;
use crate::rdma::Slice;
use crate::stream::Gather;

/// The connection has ended or is ending, which its last event says; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended")]
pub struct Ended;

/// Data of a host's command that a controller sends (TCP Transport 1.0, section 3.6.2.9).
#[derive(Debug)]
pub struct C2hData {
    /// The command's identifier.
    pub cid: u16,
    /// Where they begin in the command's data, in bytes.
    pub offset: u32,
    /// Their memory.
    pub slice: Slice,
    /// Whether they are the end of the command's data.
    pub last: bool,
    /// Whether the host takes the command for done, so that a response is not needed. That is for the last data of
    /// queues without flow control only, because it carries no SQHD.
    pub success: bool,
}

/// The data of a command of ours.
#[derive(Debug)]
pub enum SubmitData {
    /// It has none.
    None,
    /// They travel in its capsule.
    Capsule(Slice),
    /// The controller asks for them.
    ToController(Slice),
    /// The controller sends them here, all of them.
    ToHost(Slice),
    /// The controller sends as many of them as it has.
    AllocatedToHost(Slice),
}

impl TxSink<SharedBuffer> for Gather<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.fits(HEAD_BYTES_MAX)
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }

    #[inline]
    fn payload(&mut self, shared_buffer: SharedBuffer, offset: u32, length: u32) {
        self.push_shared(shared_buffer, offset as usize, length as usize);
    }

    #[inline]
    fn crc(&mut self, shared_buffer: &SharedBuffer, offset: u32, length: u32, state: u32) -> u32 {
        let range = offset as usize..(offset + length) as usize;
        shared_buffer.with_bytes(range, |bytes| crc::update(state, bytes))
    }
}

impl Connection {
    #[inline(always)]
    pub(super) fn submit(
        &mut self,
        gather: &mut Gather<'_>,
        sqe: SubmissionEntry,
        data: SubmitData,
    ) -> Result<(), Ended> {
        let data = match data {
            SubmitData::None => CommandData::None,
            SubmitData::Capsule(slice) => CommandData::Capsule(source(slice)),
            SubmitData::ToController(slice) => CommandData::ToController(source(slice)),
            SubmitData::ToHost(slice) => CommandData::ToHost(source(slice)),
            SubmitData::AllocatedToHost(slice) => CommandData::AllocatedToHost(source(slice)),
        };
        self.engine.submit(sqe, data, gather).map_err(|_| Ended)
    }

    #[inline(always)]
    pub(super) fn send_data(&mut self, gather: &mut Gather<'_>, data: C2hData) {
        let C2hData { cid, offset, slice, last, success } = data;
        let data = proto::C2hData { cid, offset, source: source(slice), last, success };
        self.engine.send_data(data, gather);
    }

    pub(super) fn request_data(
        &mut self,
        cid: u16,
        length: u32,
        pieces: impl Iterator<Item = (u64, Buffer)>,
    ) -> Result<(), Ended> {
        let tag = self.engine.request(cid, 0, length).ok_or(Ended)?;
        self.transfers.begin(tag, pieces);
        Ok(())
    }
}

#[inline]
fn source(slice: Slice) -> Source<SharedBuffer> {
    assert!(slice.end() <= slice.shared_buffer.len(), "a slice lies within its shared_buffer");
    let Slice { shared_buffer, offset, length } = slice;
    Source { handle: shared_buffer, offset, length }
}
