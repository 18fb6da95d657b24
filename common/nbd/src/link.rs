//! A core's connection to the server: how it comes about, and how it ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ringfab_base::SlotId;
use ringfab_block::DiskTokens;
use ringfab_proto::nbd::{ClientHandshake, ExportInfo, Wanted, export};
use ringfab_reactor::{Bell, Reactor, ReceiveOp, SendBatch, SocketId, SocketOptions, Time, TimerId, Token};

use crate::durability::Connection;
use crate::inbound::{Inbound, STAGING_BYTES};
use crate::options::NETWORK_LIMIT;
use crate::relay::{READY, Relay};
use crate::session::{Refusal, Session, Target};

/// Kinds of reactor operations.
pub(crate) mod kind {
    pub(crate) const CONNECT: u8 = 0;
    pub(crate) const SEND: u8 = 1;
    pub(crate) const RECEIVE: u8 = 2;
    /// Time to connect again, or to give up a try.
    pub(crate) const RETRY: u8 = 3;
    /// What waits has waited for long enough.
    pub(crate) const PATIENCE: u8 = 4;
    /// Another core has news.
    pub(crate) const BELL: u8 = 5;
}

/// Room in a send for requests, and for what they carry.
const BATCH_HEAD_BYTES: usize = 16 << 10;
const BATCH_PIECES: usize = 256;

/// How long to wait before the next try to connect: longer after each.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// How the connection is doing.
#[derive(Debug)]
pub(crate) enum State {
    /// There is none; a timer says when to try again.
    Waiting,
    /// It is being made, or shakes hands.
    Connecting(Box<Attempt>),
    /// It is up.
    Open(Box<Open>),
    /// It has ended, and operations of the reactor on it have not.
    Ending,
    /// It is not wanted any more.
    Closed,
}

/// A try to connect.
#[derive(Debug)]
pub(crate) struct Attempt {
    greeting: Greeting,
    target: Target,
    /// Of what epoch the connection will be: the server lives later than this.
    account: Connection,
}

/// How a connection begins.
#[derive(Debug)]
enum Greeting {
    Server(ClientHandshake),
    /// The relay says when it has shaken hands.
    Relay,
}

/// What belongs to a connection that is up.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) info: ExportInfo,
    pub(crate) account: Connection,
    pub(crate) inbound: Inbound,
}

/// The connection of a core.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) session: Arc<Session>,
    /// Who has the connection, if all cores share one.
    relay: Option<Arc<Relay>>,
    tokens: DiskTokens,
    pub(crate) state: State,
    socket: Option<SocketId>,
    /// Which connection it is; operations of earlier ones have other numbers.
    number: u32,
    /// What the next send is made in; none while one is in flight.
    pub(crate) batch: Option<Box<SendBatch>>,
    /// How many sends there were. The one that is in flight, or is being filled, has this number.
    pub(crate) batches: u64,
    receive: Option<Box<ReceiveOp>>,
    /// What the server is told next of the handshake, when the last send is over.
    unsaid: Vec<u8>,
    /// Tries to connect since there was a connection.
    attempts: u32,
    /// Since when there is no connection.
    pub(crate) away_since: Option<Time>,
    timers: [Option<TimerId>; 2],
    /// Rung when another core has news.
    bell: Option<Bell>,
    /// Before this nothing is sent again: the last connection may still bring something to the server.
    not_before: Time,
}

fn socket_options() -> SocketOptions {
    SocketOptions {
        user_timeout: Some(NETWORK_LIMIT),
        keep_alive: Some(NETWORK_LIMIT / 2),
        // The next process may write anew what this one has sent.
        reset_if_killed: true,
        ..SocketOptions::default()
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// Whether the server knows: it has ended the connection itself, and does nothing any more that it has not begun.
    pub(crate) server_knows: bool,
}

impl End {
    /// We end it, because of what the server has said or has not.
    pub(crate) fn by_us(reason: &impl ToString) -> Self {
        Self { reason: reason.to_string(), server_knows: false }
    }

    fn of(error: &io::Error) -> Self {
        let server_knows = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionRefused
        );
        Self { reason: error.to_string(), server_knows }
    }

    /// The server has sent an end of stream.
    fn eof() -> Self {
        Self { reason: "the server has closed the connection".to_owned(), server_knows: true }
    }
}

/// What a completion means for the requests.
#[derive(Debug)]
pub(crate) enum News {
    /// Nothing.
    None,
    /// The connection is up.
    Up,
    /// Replies have come.
    Received,
    /// A send is over.
    Sent,
    /// The connection was up, and has ended.
    Lost(End),
    /// Nothing of an ended connection is in flight any more.
    Ended,
    /// What waits has waited for long enough.
    Impatient,
    /// The export is smaller than the disk.
    Shrunk,
}

impl Link {
    /// A connection that is to be made. Nothing has been done for it yet.
    pub(crate) fn new(
        session: Arc<Session>,
        relay: Option<Arc<Relay>>,
        tokens: DiskTokens,
        now: Time,
    ) -> io::Result<Self> {
        let receive = ReceiveOp::try_new(STAGING_BYTES)?;
        session.begin_to_wait();
        Ok(Self {
            session,
            relay,
            tokens,
            state: State::Waiting,
            socket: None,
            number: 0,
            batch: Some(SendBatch::new(BATCH_HEAD_BYTES, BATCH_PIECES)),
            batches: 1,
            receive: Some(receive),
            unsaid: Vec::new(),
            attempts: 0,
            away_since: Some(now),
            timers: [None, None],
            bell: None,
            not_before: now,
        })
    }

    /// Begins to wait for a connection, and to make one.
    pub(crate) fn begin(&mut self, reactor: &mut Reactor) {
        if self.session.options.cores > 1 {
            let bell = reactor.bell(self.tokens.token_of_kind(kind::BELL));
            self.session.add_bell(bell.clone());
            self.bell = Some(bell);
        }
        self.be_patient(reactor);
        self.connect(reactor);
    }

    fn be_patient(&mut self, reactor: &mut Reactor) {
        if let Some(since) = self.away_since {
            self.set_timer(reactor, since + self.session.options.patience, kind::PATIENCE);
        }
    }

    /// Whether what waits has waited for long enough, so that nothing is taken that would have to wait.
    pub(crate) fn is_out_of_patience(&self, now: Time) -> bool {
        self.away_since.is_some_and(|since| now.since(since) >= self.session.options.patience)
    }

    /// What belongs to the connection, if it is up.
    pub(crate) fn open(&mut self) -> Option<&mut Open> {
        match &mut self.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Has the connection that is up answer for what was written before it, if no flush has covered that. Says whether
    /// it does so now: a flush is to follow.
    pub(crate) fn inherit(&mut self) -> bool {
        let session = Arc::clone(&self.session);
        let open = self.open().filter(|open| open.info.has(export::SEND_FLUSH));
        open.is_some_and(|open| open.account.inherit(&session.durability))
    }

    /// Whether the connection that is up has to answer something before a flush of another core can cover what it has
    /// written.
    pub(crate) fn is_in_doubt(&mut self) -> bool {
        let session = Arc::clone(&self.session);
        let open = self.open().filter(|open| open.info.has(export::SEND_FLUSH));
        open.is_some_and(|open| open.account.is_in_doubt(&session.durability))
    }

    /// Tries to connect, now.
    pub(crate) fn connect(&mut self, reactor: &mut Reactor) {
        if !matches!(self.state, State::Waiting) {
            return;
        }
        let attempt = self.attempts;
        self.attempts = self.attempts.saturating_add(1);
        let relay = self.relay.clone();
        let target = if relay.is_some() { Some(Target::Relay) } else { self.session.target(attempt) };
        let Some(target) = target else { return self.retry(reactor) };
        self.number = self.number.wrapping_add(1);
        self.unsaid.clear();
        let token = self.token(kind::CONNECT);
        let account = Connection::begin(&self.session.durability);
        let socket = match (&target, relay) {
            (_, Some(relay)) => relay
                .connect(&self.session)
                .and_then(|core| reactor.attach_socket(OwnedFd::from(core).into())),
            (Target::Unix(path), None) => reactor.connect_unix(path, token),
            (Target::Tcp(address), None) => reactor.connect(*address, &socket_options(), token),
            (Target::Relay, None) => unreachable!("it was chosen because there is a relay"),
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                self.session.note_fault(&format!("{target}: {error}"));
                return self.retry(reactor);
            }
        };
        let is_connected = target == Target::Relay;
        let greeting = match &target {
            Target::Relay => Greeting::Relay,
            _ => Greeting::Server(ClientHandshake::new(self.session.address.export(), Wanted::Use)),
        };
        self.socket = Some(socket);
        self.state = State::Connecting(Box::new(Attempt { greeting, target, account }));
        if is_connected {
            // It says itself when it gives up.
            self.receive_more(reactor);
        } else {
            self.set_timer(reactor, reactor.now() + NETWORK_LIMIT, kind::RETRY);
        }
    }

    fn retry(&mut self, reactor: &mut Reactor) {
        let delay = RETRY_MIN.saturating_mul(1 << self.attempts.min(10)).min(RETRY_MAX);
        let at = (reactor.now() + delay).max(self.not_before);
        self.state = State::Waiting;
        self.set_timer(reactor, at, kind::RETRY);
    }

    fn set_timer(&mut self, reactor: &mut Reactor, at: Time, kind: u8) {
        let token = self.tokens.token_of_kind(kind);
        let timer = &mut self.timers[usize::from(kind - kind::RETRY)];
        if let Some(old) = timer.replace(reactor.set_timer(at, token)) {
            reactor.cancel_timer(old);
        }
    }

    fn token(&self, kind: u8) -> Token {
        self.tokens.token(kind, SlotId { index: 0, generation: self.number })
    }

    /// Whether a token is of the present connection.
    fn is_present(&self, token: Token) -> bool {
        self.socket.is_some() && DiskTokens::slot_of(token) == (0, self.number as u16)
    }

    /// An attempt to connect has succeeded or failed.
    pub(crate) fn connected(
        &mut self,
        reactor: &mut Reactor,
        token: Token,
        result: &io::Result<u32>,
    ) -> News {
        if !self.is_present(token) || !matches!(self.state, State::Connecting(_)) {
            return News::None;
        }
        match result {
            Ok(_) => {
                self.receive_more(reactor);
                News::None
            }
            Err(error) => self.end(reactor, End::of(error)),
        }
    }

    /// A receive is over.
    pub(crate) fn received(
        &mut self,
        reactor: &mut Reactor,
        token: Token,
        result: io::Result<u32>,
        mut receive: Box<ReceiveOp>,
    ) -> News {
        if !self.is_present(token) {
            drop(receive.take_direct());
            self.receive = Some(receive);
            return self.settle(reactor);
        }
        match result {
            Ok(0) => {
                drop(receive.take_direct());
                self.receive = Some(receive);
                self.end(reactor, End::eof())
            }
            Ok(_) if matches!(self.state, State::Open(_)) => {
                if let State::Open(open) = &mut self.state {
                    open.inbound.received(&mut receive);
                }
                self.receive = Some(receive);
                News::Received
            }
            Ok(count) => {
                let bytes = receive.staging()[..count as usize].to_vec();
                self.receive = Some(receive);
                self.shake_hands(reactor, &bytes)
            }
            Err(error) => {
                drop(receive.take_direct());
                self.receive = Some(receive);
                self.end(reactor, End::of(&error))
            }
        }
    }

    /// A send is over.
    pub(crate) fn sent(
        &mut self,
        reactor: &mut Reactor,
        token: Token,
        result: &io::Result<u32>,
        mut batch: Box<SendBatch>,
    ) -> News {
        batch.clear();
        self.batch = Some(batch);
        self.batches += 1;
        if !self.is_present(token) {
            return self.settle(reactor);
        }
        match result {
            Ok(_) if matches!(self.state, State::Open(_)) => News::Sent,
            Ok(_) => {
                self.say(reactor);
                News::None
            }
            Err(error) => self.end(reactor, End::of(error)),
        }
    }

    /// A timer has fired.
    pub(crate) fn timer(&mut self, reactor: &mut Reactor, kind: u8) -> News {
        self.timers[usize::from(kind - kind::RETRY)] = None;
        match kind {
            kind::RETRY if matches!(self.state, State::Connecting(_)) => {
                self.end(reactor, End::by_us(&"the server does not answer"))
            }
            kind::RETRY => {
                self.connect(reactor);
                News::None
            }
            _ if self.away_since.is_some() => News::Impatient,
            _ => News::None,
        }
    }

    fn shake_hands(&mut self, reactor: &mut Reactor, bytes: &[u8]) -> News {
        let State::Connecting(attempt) = &mut self.state else { return News::None };
        let handshake = match &mut attempt.greeting {
            Greeting::Server(handshake) => handshake,
            Greeting::Relay => return self.hear_relay(reactor, bytes),
        };
        let outcome = handshake.receive(bytes);
        self.unsaid.extend(handshake.take_output());
        let info = match outcome {
            Err(error) => return self.end(reactor, End::by_us(&error)),
            Ok(None) => {
                self.say(reactor);
                self.receive_more(reactor);
                return News::None;
            }
            Ok(Some(info)) => info,
        };
        match self.session.admit(info) {
            Ok(()) => {
                self.open_with(reactor, info);
                News::Up
            }
            Err(refusal) => {
                let ended = self.end(reactor, End::by_us(&refusal));
                if refusal == Refusal::Shrunk { News::Shrunk } else { ended }
            }
        }
    }

    fn hear_relay(&mut self, reactor: &mut Reactor, bytes: &[u8]) -> News {
        match self.session.info() {
            Some(info) if bytes == [READY] => {
                self.open_with(reactor, info);
                News::Up
            }
            _ => self.end(reactor, End::by_us(&"the relay says something else")),
        }
    }

    fn open_with(&mut self, reactor: &mut Reactor, info: ExportInfo) {
        let State::Connecting(attempt) = std::mem::replace(&mut self.state, State::Ending) else { return };
        let Attempt { target, mut account, .. } = *attempt;
        account.open(&self.session.durability);
        self.state = State::Open(Box::new(Open { info, account, inbound: Inbound::default() }));
        self.attempts = 0;
        let gone_for = self.away_since.take().map(|since| reactor.now().since(since));
        self.session.end_to_wait();
        self.session.note_connected(&target, gone_for);
        for timer in self.timers.iter_mut().filter_map(Option::take) {
            reactor.cancel_timer(timer);
        }
        // It may be to another server than the connections of the other cores.
        self.session.ring_bells();
        self.receive_more(reactor);
    }

    fn say(&mut self, reactor: &mut Reactor) {
        if let Some(mut batch) = self.batch.take() {
            batch.push_bytes(&std::mem::take(&mut self.unsaid));
            self.send(reactor, batch);
        }
    }

    /// The connection that is up, and what it has received.
    pub(crate) fn open_and_staging(&mut self) -> Option<(&mut Open, &[u8])> {
        match (&mut self.state, &self.receive) {
            (State::Open(open), Some(receive)) => Some((open, receive.staging())),
            _ => None,
        }
    }

    /// Receives what comes next.
    pub(crate) fn receive_more(&mut self, reactor: &mut Reactor) {
        let (Some(mut receive), Some(socket)) = (self.receive.take(), self.socket) else { return };
        match &mut self.state {
            State::Open(open) => open.inbound.aim(&mut receive),
            _ => {
                let window_end = receive.staging().len();
                receive.set_target(None, 0, window_end);
            }
        }
        reactor.receive(socket, receive, self.token(kind::RECEIVE));
    }

    /// Sends what the batch has.
    pub(crate) fn send(&mut self, reactor: &mut Reactor, batch: Box<SendBatch>) {
        match self.socket {
            Some(socket) if !batch.is_empty() => reactor.send(socket, batch, self.token(kind::SEND)),
            _ => self.batch = Some(batch),
        }
    }

    /// Whether a send with this number is in flight.
    pub(crate) fn is_sending(&self, batch: u64) -> bool {
        self.batch.is_none() && batch == self.batches
    }

    /// Ends the connection, or the try to make one. What the kernel has not sent yet is thrown away.
    pub(crate) fn end(&mut self, reactor: &mut Reactor, end: End) -> News {
        if let Some(socket) = self.socket.take() {
            reactor.abort_socket(socket);
        }
        match std::mem::replace(&mut self.state, State::Ending) {
            State::Open(open) => {
                self.away_since = Some(reactor.now());
                self.session.begin_to_wait();
                self.session.note_lost(&end.reason);
                if open.account.end(&self.session.durability) {
                    self.session.note_data_lost();
                }
                self.session.ring_bells();
                self.be_patient(reactor);
                News::Lost(end)
            }
            State::Connecting(attempt) => {
                self.session.note_fault(&format!("{}: {}", attempt.target, end.reason));
                self.settle(reactor)
            }
            other => {
                self.state = other;
                News::None
            }
        }
    }

    /// Nothing that changes the disk is sent for a while: something of the last connection may still be on its way.
    pub(crate) fn hold_back(&mut self, now: Time) {
        self.not_before = now + self.session.options.replay_delay;
    }

    /// When nothing of an ended connection is in flight any more, the next one may be made.
    pub(crate) fn settle(&mut self, reactor: &mut Reactor) -> News {
        if !matches!(self.state, State::Ending) || self.batch.is_none() || self.receive.is_none() {
            return News::None;
        }
        self.retry(reactor);
        News::Ended
    }

    /// Whether nothing of an ended connection is in flight any more.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Closes it for good.
    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        for timer in self.timers.iter_mut().filter_map(Option::take) {
            reactor.cancel_timer(timer);
        }
        if let Some(bell) = self.bell.take() {
            self.session.remove_bell(&bell);
        }
        if let Some(socket) = self.socket.take() {
            reactor.close_socket(socket);
        }
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(_) => self.session.note_closed(),
            State::Closed => {}
            _ => self.session.end_to_wait(),
        }
    }
}
