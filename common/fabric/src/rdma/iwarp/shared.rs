//! What all queue pairs of a core have in common.

use std::collections::VecDeque;
use std::io;

use ringfab_reactor::{ReceiveOp, SendBatch, Token};

use super::capture::Capture;
use super::regions::Regions;
use crate::rdma::table::Key;
use crate::rdma::{Event, RnicConfig, RnicCounters};

/// Staging memory of a queue pair: one FPDU of the largest size fits, whatever it is.
const STAGING_BYTES: usize = 68 * 1024;

const _: () = assert!(STAGING_BYTES >= ringfab_proto::iwarp::FPDU_LEN_MAX);

/// Copied bytes of a batch: headers, trailers, capsules and small payloads.
const BATCH_HEAD_BYTES: usize = 16 * 1024;

/// Pieces of a batch.
const BATCH_PIECES: usize = 256;

/// How many idle batches and receives are kept for later; more are freed.
const IDLE_MAX: usize = 64;

/// A core's common state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: RnicConfig,
    pub(super) regions: Regions,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: RnicCounters,
    /// Queue pairs that may have something to send.
    pub(super) dirty: VecDeque<Key>,
    /// Queue pairs that wait for a buffer, in order.
    pub(super) paused: VecDeque<Key>,
    pub(super) capture: Option<Capture>,
    #[expect(clippy::vec_box, reason = "the reactor takes and gives back the box itself")]
    batches: Vec<Box<SendBatch>>,
    #[expect(clippy::vec_box, reason = "as for the batches")]
    receives: Vec<Box<ReceiveOp>>,
}

impl Shared {
    pub(super) fn new(config: RnicConfig) -> io::Result<Self> {
        let capture = config.capture.as_deref().map(Capture::create).transpose()?;
        Ok(Self {
            regions: Regions::new(config.regions_max, config.seed),
            config,
            events: VecDeque::with_capacity(256),
            counters: RnicCounters::default(),
            dirty: VecDeque::new(),
            paused: VecDeque::new(),
            capture,
            batches: Vec::new(),
            receives: Vec::new(),
        })
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
