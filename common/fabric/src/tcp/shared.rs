//! What all connections of a core have in common.

use std::collections::VecDeque;

use ringfab_proto::tcp::HEAD_BYTES_MAX;
use ringfab_reactor::{ReceiveOp, SendBatch, Token};

use super::{Counters, Event, TcpConfig};
use crate::rdma::table::Key;

/// Staging memory of a connection: small PDUs are received many at a time.
const STAGING_BYTES: usize = 64 * 1024;

/// Copied bytes of a batch: headers, digests and small payloads.
const BATCH_HEAD_BYTES: usize = 16 * 1024;

/// Pieces of a batch.
const BATCH_PIECES: usize = 256;

/// Pieces that one PDU may add: header, payload, digest.
pub(super) const PDU_PIECES_MAX: usize = 3;

/// Payloads up to this size are copied into the batch: cheaper than a piece of their own.
pub(super) const COPY_BYTES_MAX: usize = 256;

/// What one PDU may add to the copied part of a batch.
pub(super) const PDU_HEAD_BYTES_MAX: usize = HEAD_BYTES_MAX + COPY_BYTES_MAX;

/// How many idle batches and receives are kept for later; more are freed.
const IDLE_MAX: usize = 64;

/// A core's common state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: TcpConfig,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
    /// Connections that may have something to send.
    pub(super) dirty: VecDeque<Key>,
    /// Connections that wait for a buffer, in order.
    pub(super) paused: VecDeque<Key>,
    #[expect(clippy::vec_box, reason = "the reactor takes and gives back the box itself")]
    batches: Vec<Box<SendBatch>>,
    #[expect(clippy::vec_box, reason = "as for the batches")]
    receives: Vec<Box<ReceiveOp>>,
}

impl Shared {
    pub(super) fn new(config: TcpConfig) -> Self {
        Self {
            config,
            events: VecDeque::with_capacity(256),
            counters: Counters::default(),
            dirty: VecDeque::new(),
            paused: VecDeque::new(),
            batches: Vec::new(),
            receives: Vec::new(),
        }
    }

    pub(super) fn token(&self, kind: u8, key: Key) -> Token {
        Token::new(self.config.owner, kind, key.generation_low(), key.index)
    }

    /// An empty batch, most likely one whose memory is still in the cache.
    pub(super) fn take_batch(&mut self) -> Box<SendBatch> {
        self.batches.pop().unwrap_or_else(|| SendBatch::new(BATCH_HEAD_BYTES, BATCH_PIECES))
    }

    pub(super) fn give_batch(&mut self, mut batch: Box<SendBatch>) {
        batch.clear();
        if self.batches.len() < IDLE_MAX {
            self.batches.push(batch);
        }
    }

    pub(super) fn take_receive(&mut self) -> Box<ReceiveOp> {
        self.receives.pop().unwrap_or_else(|| ReceiveOp::new(STAGING_BYTES))
    }

    pub(super) fn give_receive(&mut self, mut receive: Box<ReceiveOp>) {
        receive.take_direct();
        if self.receives.len() < IDLE_MAX {
            self.receives.push(receive);
        }
    }
}
