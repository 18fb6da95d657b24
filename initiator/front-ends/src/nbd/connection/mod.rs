//! One client: its requests, what it sends and what it is sent.
//!
//! A connection holds at most [`SMALL_BUFFERS`] and [`LARGE_BUFFERS`] buffers, from the first byte of a payload or the
//! command of a read until the target or the client has the bytes. When they are all out, it receives nothing more.
//! So clients cannot take memory from each other, whatever they leave unread.

mod execute;
mod inbound;
mod outbound;
mod requests;

pub(crate) use execute::connection_of;

use std::collections::VecDeque;

use ringfab_initiator::{ControllerId, Host};
use ringfab_memory::Buffer;
use ringfab_reactor::{Completion, Payload, ReceiveOp, SendBatch, SocketId, TimerId, Token};

use super::export::Export;
use super::negotiation::{Negotiation, OPTION_BYTES_MAX, greeting};
use inbound::Incoming;
use requests::{REQUESTS_MAX, Requests, WINDOW};

/// Payloads up to this size take a small buffer.
pub(crate) const SMALL_BYTES: u32 = 16 << 10;
/// The largest payload of a command; longer requests are split.
pub(crate) const LARGE_BYTES: u32 = 256 << 10;
/// Small buffers of one connection.
pub(crate) const SMALL_BUFFERS: usize = 64;
/// Large buffers of one connection.
pub(crate) const LARGE_BUFFERS: usize = 16;
/// Large buffers that reads leave to writes: a client may read no replies before all of its write is taken.
const LARGE_BUFFERS_WRITES: usize = 4;
const SMALL_BUFFERS_WRITES: usize = 8;
/// Commands of one connection outstanding at most.
pub(crate) const COMMANDS_MAX: usize = 256;

/// What one receive can take of requests and small payloads; it becomes resident as far as it is used.
const STAGING_BYTES: usize = 256 << 10;
const _: () = assert!(STAGING_BYTES >= OPTION_BYTES_MAX, "an option of the handshake fits");

/// Copied bytes of one send: heads of replies.
const BATCH_HEAD_BYTES: usize = 16 << 10;
/// Heads and payloads of one send.
const BATCH_PIECES: usize = 256;

/// What a connection works with.
pub(crate) struct Shared<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) controller: ControllerId,
    pub(crate) exports: &'a [Export],
    /// How long the handshake, and later the end, of a connection may take.
    pub(crate) patience: std::time::Duration,
}

/// A client.
pub(crate) struct Connection {
    socket: SocketId,
    index: u16,
    generation: u16,
    phase: Phase,
    /// The export in use, by index, once the handshake has chosen it.
    export: Option<usize>,
    timer: Option<TimerId>,
    /// Whether replies to reads are structured.
    structured: bool,
    /// `None` while a receive is in flight.
    receive: Option<Box<ReceiveOp>>,
    /// Bytes in the staging memory that were not looked at.
    staged: std::ops::Range<usize>,
    incoming: Option<Incoming>,
    requests: Requests,
    /// Requests with commands to issue, in order.
    pending: VecDeque<u16>,
    commands: usize,
    small_out: usize,
    large_out: usize,
    /// `None` while a send is in flight.
    batch: Option<Box<SendBatch>>,
    /// Buffers of the send in flight.
    batch_small: usize,
    batch_large: usize,
    /// Bytes of the handshake to send.
    handshake: Vec<u8>,
    ready: VecDeque<Ready>,
}

/// Where a connection is in its life.
#[derive(Debug)]
enum Phase {
    /// The handshake runs.
    Negotiating(Negotiation),
    /// Requests are served.
    Serving,
    /// Nothing more is received; what was asked is answered.
    Draining,
    /// The socket is closed; what is in flight ends.
    Closed,
}

/// A reply that can be sent.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// A part of a read.
    Part { slot: u16, part: u32 },
    /// The end of a request, with or without success.
    End { slot: u16 },
}

/// Kinds of tokens.
pub(crate) mod kind {
    pub(crate) const ACCEPT: u8 = 0;
    pub(crate) const RECEIVE: u8 = 1;
    pub(crate) const SEND: u8 = 2;
    pub(crate) const TIMER: u8 = 3;
    pub(crate) const DEADLINE: u8 = 4;
}

/// A token of this part of the loop.
pub(crate) const fn token(kind: u8, generation: u16, index: u32) -> Token {
    Token::new(Host::OWNER_FOREIGN_FIRST, kind, generation, index)
}

impl Connection {
    /// Greets a client.
    pub(crate) fn new(socket: SocketId, index: u16, generation: u16, shared: &mut Shared<'_>) -> Self {
        let mut this = Self {
            socket,
            index,
            generation,
            phase: Phase::Negotiating(Negotiation::new()),
            export: None,
            timer: None,
            structured: false,
            receive: Some(ReceiveOp::new(STAGING_BYTES)),
            staged: 0..0,
            incoming: None,
            requests: Requests::new(),
            pending: VecDeque::with_capacity(REQUESTS_MAX),
            commands: 0,
            small_out: 0,
            large_out: 0,
            batch: Some(SendBatch::new(BATCH_HEAD_BYTES, BATCH_PIECES)),
            batch_small: 0,
            batch_large: 0,
            handshake: greeting().to_vec(),
            ready: VecDeque::with_capacity(REQUESTS_MAX * (WINDOW + 1)),
        };
        this.set_timer(shared);
        this.pump(shared);
        this
    }

    /// Takes the end of a receive, a send or a timer.
    pub(crate) fn on_completion(&mut self, completion: Completion, shared: &mut Shared<'_>) {
        match completion.payload {
            Payload::Receive(operation) => self.on_received(operation, completion.result, shared),
            Payload::Send(batch) => self.on_sent(batch, &completion.result, shared),
            _ if completion.token.kind == kind::TIMER => {
                self.timer = None;
                tracing::info!(connection = self.index, "closed: it took too long");
                self.close(shared);
            }
            _ => {}
        }
    }

    /// Does everything that can be done now.
    pub(crate) fn pump(&mut self, shared: &mut Shared<'_>) {
        if let Err(violation) = self.pump_inbound(shared) {
            tracing::warn!(connection = self.index, violation, "closed: the client broke the protocol");
            self.close(shared);
        }
        self.pump_commands(shared);
        self.pump_outbound(shared);
        if matches!(self.phase, Phase::Draining) && self.is_answered() {
            self.close(shared);
        }
    }

    /// Receives nothing more, answers what was asked, and closes.
    pub(crate) fn drain(&mut self, shared: &mut Shared<'_>) {
        match self.phase {
            Phase::Negotiating(_) | Phase::Serving => {}
            Phase::Draining | Phase::Closed => return,
        }
        self.phase = Phase::Draining;
        self.abandon_incoming();
        self.set_timer(shared);
    }

    /// Closes at once. Commands in flight end by themselves.
    pub(crate) fn close(&mut self, shared: &mut Shared<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Closed;
        self.incoming = None;
        self.pending.clear();
        self.ready.clear();
        if let Some(timer) = self.timer.take() {
            shared.host.reactor().cancel_timer(timer);
        }
        shared.host.reactor().close_socket(self.socket);
    }

    /// Whether it uses an export.
    pub(crate) fn uses(&self, export: usize) -> bool {
        self.export == Some(export)
    }

    /// Whether nothing of it is left anywhere.
    pub(crate) fn is_gone(&self) -> bool {
        let idle = self.receive.is_some() && self.batch.is_some();
        matches!(self.phase, Phase::Closed) && idle && self.commands == 0
    }

    /// Whether all that was asked has been answered and sent.
    fn is_answered(&self) -> bool {
        self.requests.is_empty() && self.ready.is_empty() && self.handshake.is_empty() && self.batch.is_some()
    }

    /// The export in use, as it is now.
    fn export<'s>(&self, shared: &Shared<'s>) -> Option<&'s Export> {
        shared.exports.get(self.export?)
    }

    fn set_timer(&mut self, shared: &mut Shared<'_>) {
        let (patience, token) = (shared.patience, self.token(kind::TIMER));
        let reactor = shared.host.reactor();
        if let Some(timer) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
        let at = reactor.clock() + patience;
        self.timer = Some(reactor.set_timer(at, token));
    }

    fn stop_timer(&mut self, shared: &mut Shared<'_>) {
        if let Some(timer) = self.timer.take() {
            shared.host.reactor().cancel_timer(timer);
        }
    }

    fn token(&self, kind: u8) -> Token {
        token(kind, self.generation, u32::from(self.index))
    }

    /// A buffer of this connection's share.
    fn take_buffer(&mut self, bytes: u32, for_read: bool, shared: &Shared<'_>) -> Option<Buffer> {
        let (out, share, reserve) = if bytes <= SMALL_BYTES {
            (&mut self.small_out, SMALL_BUFFERS, SMALL_BUFFERS_WRITES)
        } else {
            (&mut self.large_out, LARGE_BUFFERS, LARGE_BUFFERS_WRITES)
        };
        let limit = if for_read { share - reserve } else { share };
        if *out >= limit {
            return None;
        }
        let buffer = shared.host.pool().take(bytes as usize)?;
        *out += 1;
        Some(buffer)
    }

    /// A buffer went back.
    fn returned(&mut self, bytes: u32) {
        let out = if bytes <= SMALL_BYTES { &mut self.small_out } else { &mut self.large_out };
        *out -= 1;
    }
}

/// The most bytes of one command's data for a namespace.
fn part_bytes_max(export: &Export) -> u32 {
    let namespace = &export.namespace;
    let most = namespace.transfer_bytes_max().min(LARGE_BYTES);
    (most / namespace.block_bytes).max(1) * namespace.block_bytes
}
