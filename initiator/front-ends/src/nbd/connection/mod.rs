//! One client: its requests, what it sends and what it is sent.
//!
//! A connection holds at most [`SMALL_BUFFERS`] and [`LARGE_BUFFERS`] buffers, from the first byte of a payload or the
//! command of a read until the target or the client has the bytes. When they are all out, it receives nothing more.
//! So clients cannot take memory from each other, whatever they leave unread.

mod buffers;
mod execute;
mod inbound;
mod outbound;
mod requests;
mod transmission;

use std::ops::Range;
use std::time::Duration;

use ringfab_base::SlotId;
use ringfab_initiator::bytes::BlockWriter;
use ringfab_initiator::{ControllerId, Host};
use ringfab_reactor::{Completion, Payload, Reactor, SocketId, TimerId, Token};

use super::chores::{Chore, Chores, Work};
use super::export::Export;
use super::negotiation::{Negotiation, OPTION_BYTES_MAX};
use inbound::Inbound;
use outbound::Outbound;
use transmission::{Reply, Transmission};

/// Payloads up to this size take a small buffer.
pub(crate) const SMALL_BYTES: u32 = 16 << 10;
/// The largest payload of a command; longer requests are split.
pub(crate) const LARGE_BYTES: u32 = 256 << 10;
/// Small buffers of one connection.
pub(crate) const SMALL_BUFFERS: usize = 64;
/// Large buffers of one connection.
pub(crate) const LARGE_BUFFERS: usize = 16;
/// Commands of one connection outstanding at most.
pub(crate) const COMMANDS_MAX: usize = 256;

/// What one receive can take of requests and small payloads; it becomes resident as far as it is used.
const STAGING_BYTES: usize = 256 << 10;
const _: () = assert!(STAGING_BYTES >= OPTION_BYTES_MAX, "an option of the handshake fits");

/// What a connection works with.
pub(crate) struct ServerContext<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) controller: ControllerId,
    pub(crate) exports: &'a [Export],
    pub(crate) writer: &'a BlockWriter,
    pub(crate) chores: &'a mut Chores,
    /// How long the handshake, and later the end, of a connection may take.
    pub(crate) patience: Duration,
}

/// Names a connection in tokens and tags: its slot, and which of the slot's connections it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

impl From<SlotId> for ConnectionId {
    fn from(id: SlotId) -> Self {
        Self { index: id.index as u16, generation: id.generation_low() }
    }
}

impl ConnectionId {
    /// The connection of a token.
    pub(crate) fn of_token(token: &Token) -> Self {
        Self { index: token.index as u16, generation: token.generation }
    }

    /// The connection of a command's tag.
    pub(crate) fn of_tag(tag: u64) -> Self {
        Self { index: (tag >> 48) as u16, generation: (tag >> 32) as u16 }
    }

    fn token(self, kind: u8) -> Token {
        token(kind, self.generation, self.index.into())
    }

    /// The tag of a command: the connection, the slot of the request, and the part of a read or, for others, whether it
    /// has a large buffer.
    fn tag(self, slot: u16, part: u16) -> u64 {
        u64::from(self.index) << 48
            | u64::from(self.generation) << 32
            | u64::from(slot) << 16
            | u64::from(part)
    }
}

/// A client.
pub(crate) struct Connection {
    socket: SocketId,
    id: ConnectionId,
    phase: Phase,
    /// The export in use, by index, once the handshake has chosen it.
    export: Option<usize>,
    /// Whether the client may ask what is allocated.
    allocation: bool,
    deadline: Deadline,
    inbound: Inbound,
    transmission: Transmission,
    outbound: Outbound,
}

/// Where a connection is in its life.
#[derive(Debug)]
enum Phase {
    /// The handshake phase of the protocol.
    Handshake(Negotiation),
    /// The transmission phase of the protocol.
    Transmission,
    /// Nothing more is received; what was asked is answered.
    Draining,
    /// The socket is closed; what is in flight ends.
    Closed,
}

/// Ends a phase that may not last for ever.
struct Deadline {
    timer: Option<TimerId>,
    token: Token,
}

impl Deadline {
    fn set(&mut self, patience: Duration, reactor: &mut Reactor) {
        self.clear(reactor);
        let at = reactor.clock() + patience;
        self.timer = Some(reactor.set_timer(at, self.token));
    }

    fn clear(&mut self, reactor: &mut Reactor) {
        if let Some(timer) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
    }
}

/// Kinds of tokens.
pub(crate) mod kind {
    pub(crate) const ACCEPT: u8 = 0;
    pub(crate) const RECEIVE: u8 = 1;
    pub(crate) const SEND: u8 = 2;
    pub(crate) const DEADLINE: u8 = 3;
    pub(crate) const SHUTDOWN: u8 = 4;
}

/// A token of the server.
pub(crate) const fn token(kind: u8, generation: u16, index: u32) -> Token {
    Token::new(Host::OWNER_FOREIGN_FIRST, kind, generation, index)
}

impl Connection {
    /// Greets a client.
    pub(crate) fn new(socket: SocketId, id: ConnectionId, context: &mut ServerContext<'_>) -> Self {
        let mut this = Self {
            socket,
            id,
            phase: Phase::Handshake(Negotiation::new()),
            export: None,
            allocation: false,
            deadline: Deadline { timer: None, token: id.token(kind::DEADLINE) },
            inbound: Inbound::new(),
            transmission: Transmission::new(),
            outbound: Outbound::new(),
        };
        this.deadline.set(context.patience, context.host.reactor());
        this.pump(context);
        this
    }

    /// Takes the end of a receive, a send or a timer.
    pub(crate) fn on_completion(&mut self, completion: Completion, context: &mut ServerContext<'_>) {
        match completion.payload {
            Payload::Receive(operation) => self.on_received(operation, completion.result, context),
            Payload::Send(batch) => self.on_sent(batch, &completion.result, context),
            _ if completion.token.kind == kind::DEADLINE => {
                self.deadline.timer = None;
                tracing::info!(connection = self.id.index, "closed: it took too long");
                self.close(context);
            }
            _ => {}
        }
    }

    /// Does everything that can be done now.
    pub(crate) fn pump(&mut self, context: &mut ServerContext<'_>) {
        if let Err(violation) = self.pump_inbound(context) {
            tracing::warn!(connection = self.id.index, violation, "closed: the client broke the protocol");
            self.close(context);
        }
        self.pump_commands(context);
        self.pump_outbound(context);
        if matches!(self.phase, Phase::Draining) && self.is_answered() {
            self.close(context);
        }
    }

    /// Receives nothing more, answers what was asked, and closes.
    pub(crate) fn drain(&mut self, context: &mut ServerContext<'_>) {
        match self.phase {
            Phase::Handshake(_) | Phase::Transmission => {}
            Phase::Draining | Phase::Closed => return,
        }
        self.phase = Phase::Draining;
        self.abandon_payload();
        self.deadline.set(context.patience, context.host.reactor());
    }

    /// Closes at once. Commands in flight end by themselves.
    pub(crate) fn close(&mut self, context: &mut ServerContext<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Closed;
        self.inbound.payload = None;
        self.transmission.abandon();
        self.deadline.clear(context.host.reactor());
        context.host.reactor().close_socket(self.socket);
    }

    /// Whether it uses an export.
    pub(crate) fn uses(&self, export: usize) -> bool {
        self.export == Some(export)
    }

    /// Whether commands that it has at the controller write some of these blocks of a namespace.
    pub(crate) fn writes(&self, exports: &[Export], nsid: u32, blocks: &Range<u64>) -> bool {
        let export = self.export.and_then(|export| exports.get(export));
        let namespace = export.map(|export| &export.namespace).filter(|namespace| namespace.nsid == nsid);
        namespace
            .is_some_and(|namespace| self.transmission.requests.are_writing(blocks, namespace.block_bytes))
    }

    /// Whether nothing of it is left anywhere.
    pub(crate) fn is_gone(&self) -> bool {
        let idle = self.inbound.receive.is_some() && self.outbound.batch.is_some();
        matches!(self.phase, Phase::Closed) && idle && self.transmission.commands == 0
    }

    /// Whether all that was asked has been answered and sent.
    fn is_answered(&self) -> bool {
        self.transmission.is_empty() && self.outbound.is_empty()
    }

    /// The export in use, as it is now.
    fn export<'s>(&self, context: &ServerContext<'s>) -> Option<&'s Export> {
        context.exports.get(self.export?)
    }
}

/// The most bytes of one command's data for a namespace.
fn part_bytes_max(export: &Export) -> u32 {
    let namespace = &export.namespace;
    let most = namespace.transfer_bytes_max().min(LARGE_BYTES);
    (most / namespace.block_bytes).max(1) * namespace.block_bytes
}
