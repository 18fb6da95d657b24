//! What all streams of a core have in common.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use ringfab_reactor::{ReceiveOp, SendBatch, Token};
use ringfab_tls::{PLAINTEXT_BYTES_MAX, SEALED_OVERHEAD};

use super::Protocol;
use super::copies::Copies;
use crate::CopiedBytes;
use crate::events::Events;
use crate::table::Key;

/// Copied bytes of a batch: headers, trailers, capsules and small payloads, of a whole turn of these.
const BATCH_HEAD_BYTES: usize = 64 * 1024;

/// Pieces of a batch.
const BATCH_PIECES: usize = 256;

/// Where large receives into staging memory begin: at less than this, each so many bytes behind the last one.
pub(crate) const FRONTS_BYTES: usize = 4096;
const FRONT_STEP_BYTES: usize = 13 * 64;

/// How many idle batches and receives are kept for later; more are freed.
const IDLE_MAX: usize = 64;

/// How a core's streams of a protocol are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamConfig {
    /// The `owner` of the tokens of their operations.
    pub(crate) owner: u8,
    /// The most at once, those in handshake included.
    pub(crate) streams_max: u32,
    /// The longest from an accepted connection to what establishes it.
    pub(crate) handshake_timeout: Duration,
    /// How long a disconnect may take: for what was given to be sent, and for the peer to close.
    pub(crate) close_timeout: Duration,
    /// For protocols that are spoken over TLS.
    pub(crate) tls: Option<TlsConfig>,
}

/// How streams over TLS are run.
#[derive(Clone, Copy)]
pub(crate) struct TlsConfig {
    /// Seed of the generator of secrets.
    pub(crate) seed: [u8; 32],
    /// Whether the kernel protects what it can.
    pub(crate) kernel: bool,
}

/// What streams have done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Payload bytes received straight into their final place.
    pub(crate) received_direct_bytes: u64,
    /// Bytes copied from staging memory: payloads, and what commands and responses are made of.
    pub(crate) received_copied_bytes: u64,
    /// Bytes moved to the front of staging memory, because the rest of a message is still to come.
    pub(crate) moved_bytes: u64,
    /// Bytes given to sockets.
    pub(crate) sent_bytes: u64,
    /// Those of them that were copied into a batch: headers, trailers, small payloads.
    pub(crate) sent_copied_bytes: u64,
    /// Connections ended by a violation of the peer.
    pub(crate) violations: u64,
}

impl Counters {
    /// All that was copied. What the kernel copies is not known here.
    pub(crate) fn copied(&self) -> CopiedBytes {
        CopiedBytes { received: self.received_copied_bytes + self.moved_bytes, sent: self.sent_copied_bytes }
    }
}

/// A core's common state.
#[derive(Debug)]
pub(crate) struct Shared<P: Protocol> {
    /// The protocol's part.
    pub(crate) core: P::Core,
    pub(crate) events: Events<P::Event>,
    pub(crate) counters: Counters,
    /// Of what is being taken in; [`Protocol::receive`] leaves none.
    pub(crate) copies: Copies,
    pub(super) config: StreamConfig,
    /// Streams that may have something to send.
    pub(super) dirty: VecDeque<Key>,
    /// Streams that wait for a buffer, in order.
    pub(super) paused: VecDeque<Key>,
    /// Streams that go on in the next turn.
    pub(super) yielded: VecDeque<Key>,
    /// Where the last large receive began.
    front: usize,
    #[expect(clippy::vec_box, reason = "the reactor takes and gives back the box itself")]
    batches: Vec<Box<SendBatch>>,
    #[expect(clippy::vec_box, reason = "as for the batches")]
    receives: Vec<Box<ReceiveOp>>,
    /// Batches that nobody has needed since the last housekeeping.
    spare_batches: usize,
    /// For connections over TLS.
    pub(super) sealed: SealedBatches,
    /// Makes the secrets of handshakes.
    random: Option<ChaCha20Rng>,
    /// Streams whose records this process protects.
    pub(super) protected: usize,
}

impl<P: Protocol> Shared<P> {
    pub(super) fn new(config: StreamConfig, core: P::Core) -> Self {
        Self {
            core,
            events: Events::with_capacity(256),
            counters: Counters::default(),
            copies: Copies::new(),
            config,
            dirty: VecDeque::new(),
            paused: VecDeque::new(),
            yielded: VecDeque::with_capacity(64),
            front: 0,
            batches: Vec::new(),
            receives: Vec::new(),
            spare_batches: 0,
            sealed: SealedBatches::default(),
            random: config.tls.map(|tls| ChaCha20Rng::from_seed(tls.seed)),
            protected: 0,
        }
    }

    /// Whether the kernel protects connections over TLS, if it can.
    pub(super) fn uses_kernel_tls(&self) -> bool {
        self.config.tls.is_some_and(|tls| tls.kernel)
    }

    /// A generator for the secrets of one handshake. What it gives is lost with it: nobody can compute it from what is
    /// left here.
    pub(super) fn handshake_random(&mut self) -> ChaCha20Rng {
        let own = self.random.as_mut().expect("the protocol is spoken over TLS");
        let (handshake, next) = (ChaCha20Rng::from_rng(own), ChaCha20Rng::from_rng(own));
        *own = next;
        handshake
    }

    #[inline]
    pub(super) fn token(&self, kind: u8, key: Key) -> Token {
        Token::new(self.config.owner, P::KIND_FIRST + kind, key.generation_low(), key.index)
    }

    /// An empty batch, most likely one whose memory is still in the cache.
    pub(super) fn take_batch(&mut self) -> Box<SendBatch> {
        let batch = self.batches.pop().unwrap_or_else(|| SendBatch::new(BATCH_HEAD_BYTES, BATCH_PIECES));
        self.spare_batches = self.spare_batches.min(self.batches.len());
        batch
    }

    pub(super) fn give_batch(&mut self, mut batch: Box<SendBatch>) {
        batch.clear();
        if self.batches.len() < IDLE_MAX {
            self.batches.push(batch);
        }
    }

    /// Where in its staging memory the next large receive begins.
    ///
    /// Processors copy five times slower where the destination lies a few bytes behind the source modulo 4,096. Were
    /// all to begin at the same place, one that fills the memory, and then is as long as the one before, would have the
    /// same distance from its source as that one, and a connection that is slow for this reason always has enough to
    /// fill the memory.
    pub(super) fn next_front(&mut self) -> usize {
        self.front = (self.front + FRONT_STEP_BYTES) % FRONTS_BYTES;
        self.front
    }

    /// Staging memory, most likely some that is still in the cache.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn take_receive(&mut self) -> io::Result<Box<ReceiveOp>> {
        match self.receives.pop() {
            Some(receive) => Ok(receive),
            None => ReceiveOp::try_new(P::STAGING_BYTES),
        }
    }

    pub(super) fn give_receive(&mut self, mut receive: Box<ReceiveOp>) {
        receive.retire();
        if self.receives.len() < IDLE_MAX {
            self.receives.push(receive);
        }
    }

    /// Once in a while: gives back what is kept and has not been used for some time.
    pub(super) fn trim(&mut self) {
        for receive in &mut self.receives {
            receive.trim();
        }
        self.batches.drain(..self.spare_batches);
        self.spare_batches = self.batches.len();
        self.sealed.trim();
    }
}

/// Batches of ciphertext: each as large as a large message with the records around it.
#[derive(Default)]
pub(super) struct SealedBatches {
    #[expect(clippy::vec_box, reason = "as for the batches")]
    idle: Vec<Box<SendBatch>>,
    /// Those that nobody has needed since the last housekeeping.
    spare: usize,
}

/// Records of a batch of ciphertext: 128 KiB, and the headers around them.
const SEALED_RECORDS: usize = 9;

impl SealedBatches {
    /// An empty batch.
    pub(super) fn take(&mut self) -> Box<SendBatch> {
        let bytes = SEALED_RECORDS * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD);
        let batch = self.idle.pop().unwrap_or_else(|| SendBatch::new(bytes, 1));
        self.spare = self.spare.min(self.idle.len());
        batch
    }

    pub(super) fn give(&mut self, mut batch: Box<SendBatch>) {
        batch.clear();
        if self.idle.len() < IDLE_MAX {
            self.idle.push(batch);
        }
    }

    fn trim(&mut self) {
        self.idle.drain(..self.spare);
        self.spare = self.idle.len();
    }
}

impl fmt::Debug for SealedBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedBatches").field("idle", &self.idle.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}
