//! What a stream receives from and sends to: its socket, and TLS between the two, if there is any.

use std::io;
use std::sync::Arc;

use ringfab_auth::{Names, ParsedIdentity};
use ringfab_reactor::{Reactor, ReceiveOp, SendBatch, SocketId, Token};
use ringfab_tls::{
    Alert, ContentType, Control, ControlRecords, HEADER_BYTES, Handshake, Psk, Role, Session, TlsError,
};

use super::protection::{Operation, Protection, Records};
use super::{DisconnectReason, ListenerTls, ProtectedBy, Protocol, Security, Shared};

/// A socket, and what protects what is on it.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// None before it is made and once it is closed.
    pub(super) socket: Option<SocketId>,
    /// None: the protocol's bytes are on the socket as they are.
    pub(super) tls: Option<Box<Tls>>,
}

/// TLS of a stream.
#[derive(Debug)]
pub(super) struct Tls {
    state: State,
    /// What the peer shall still be told.
    last_word: Option<LastWord>,
    /// Nothing of the protocol is sent any more, and nothing that comes is opened.
    is_silent: bool,
}

#[derive(Debug)]
enum State {
    /// We connect, and offer these keys.
    Client(Arc<[Psk]>),
    /// A listener's connection, of which no byte has come.
    First(ListenerTls),
    /// The two ends agree on keys.
    Handshake(Box<Handshake>),
    /// The socket's records are the kernel's affair, except for those that are no data.
    Kernel(Security, ControlRecords),
    /// They are ours.
    Process(Security, Box<Protection>),
    /// There is no TLS any more.
    Failed,
}

/// What a peer is told at the end.
#[derive(Debug)]
enum LastWord {
    /// A record as it is.
    Record(Vec<u8>),
    /// The kernel makes a record of it.
    Alert(Alert),
}

/// What the handshake needs next.
pub(super) enum Step {
    /// This is to be sent.
    Send(Vec<u8>),
    /// So many bytes are to be received, behind those that are there.
    Receive(usize),
    /// All bytes that were there are used up.
    Consumed,
    /// The peer speaks in clear text, as it may.
    Clear,
    /// The two ends agree.
    Complete,
    /// They do not.
    Failed(String),
}

/// The first byte of a record with a handshake message.
pub(super) const HANDSHAKE_RECORD: u8 = 0x16;

/// The content types of records that are no data.
const ALERT_RECORD: u8 = 21;

/// TLS of a connection that goes to another core.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) security: Security,
    records: CarriedRecords,
}

#[derive(Debug)]
enum CarriedRecords {
    Kernel(ControlRecords),
    Process(Box<Records>),
}

impl Tls {
    fn new(state: State) -> Option<Box<Self>> {
        Some(Box::new(Self { state, last_word: None, is_silent: false }))
    }

    /// Of a connection that we make.
    pub(super) fn client(psks: Arc<[Psk]>) -> Option<Box<Self>> {
        Self::new(State::Client(psks))
    }

    /// Of a connection that a listener has accepted.
    pub(super) fn accepted(tls: ListenerTls) -> Option<Box<Self>> {
        match tls {
            ListenerTls::Off => None,
            tls => Self::new(State::First(tls)),
        }
    }

    /// Of a connection that comes from another core.
    pub(super) fn adopted<P: Protocol>(carried: Carried, shared: &mut Shared<P>) -> Option<Box<Self>> {
        let Carried { security, records } = carried;
        Self::new(match records {
            CarriedRecords::Kernel(control) => State::Kernel(security, control),
            CarriedRecords::Process(records) => {
                shared.protected += 1;
                State::Process(security, Box::new(Protection::new(*records, false)))
            }
        })
    }

    /// Of a peer that speaks TLS where there is none: it is told so.
    pub(super) fn refused() -> Option<Box<Self>> {
        let mut tls = Self::new(State::Failed)?;
        tls.last_word = Some(LastWord::Record(
            [&[ALERT_RECORD, 3, 3, 0, 2][..], &Alert::HANDSHAKE_FAILURE.to_bytes()].concat(),
        ));
        tls.is_silent = true;
        Some(tls)
    }

    /// Whether it is a listener's connection of which nothing has come.
    pub(super) fn awaits_first_byte(&self) -> bool {
        matches!(self.state, State::First(_))
    }

    fn carries_protocol(&self) -> bool {
        !self.is_silent && self.security().is_some()
    }

    /// How the connection is protected.
    pub(super) fn security(&self) -> Option<&Security> {
        match &self.state {
            State::Kernel(security, _) | State::Process(security, _) => Some(security),
            _ => None,
        }
    }

    /// Who the host is and what it wants, as far as it has said so by an identity of NVMe/TCP.
    pub(super) fn names(&self) -> Option<Names<'_>> {
        let identity = match &self.state {
            State::Handshake(handshake) => handshake.offered()?,
            _ => self.security()?.identity.as_bytes(),
        };
        ParsedIdentity::parse(identity).ok().map(|parsed| parsed.names)
    }

    /// Goes on with the handshake, with what has come of the peer's next record.
    pub(super) fn step<P: Protocol>(&mut self, shared: &mut Shared<P>, unread: &mut [u8]) -> Step {
        match &mut self.state {
            State::Client(psks) => {
                match Handshake::client(psks.to_vec(), &mut shared.handshake_random()) {
                    Ok(handshake) => self.state = State::Handshake(Box::new(handshake)),
                    Err(error) => return Step::Failed(error.to_string()),
                }
                self.step(shared, unread)
            }
            State::First(tls) => match (unread.first(), &*tls) {
                (None, _) => Step::Receive(HEADER_BYTES),
                (Some(&HANDSHAKE_RECORD), ListenerTls::Allowed(store) | ListenerTls::Required(store)) => {
                    let random = &mut shared.handshake_random();
                    let handshake = Handshake::server(Arc::clone(store), random);
                    self.state = State::Handshake(Box::new(handshake));
                    self.step(shared, unread)
                }
                (Some(_), ListenerTls::Required(_)) => {
                    Step::Failed("it does not begin with TLS, which is required here".to_owned())
                }
                (Some(_), _) => Step::Clear,
            },
            State::Handshake(handshake) => match handshake_step(handshake, unread) {
                Ok(step) => step,
                Err(error) => {
                    self.last_word = handshake.take_outgoing().map(LastWord::Record);
                    Step::Failed(error.to_string())
                }
            },
            State::Kernel(..) | State::Process(..) | State::Failed => Step::Clear,
        }
    }

    /// The session of a handshake that is complete.
    pub(super) fn session(&mut self) -> Result<(Session, Role), TlsError> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Handshake(handshake) => {
                let role = handshake.role();
                handshake.finish().map(|session| (session, role))
            }
            _ => unreachable!("it is asked for when a handshake is complete"),
        }
    }

    /// The records of a session are protected from now on. `exact` says that one is received only as far as it goes.
    pub(super) fn protect<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        session: Session,
        role: Role,
        by: ProtectedBy,
        exact: bool,
    ) {
        let identity = String::from_utf8_lossy(&session.identity).into_owned();
        let security = Security { suite: session.suite, identity, psk: session.psk.clone(), by };
        self.state = match by {
            ProtectedBy::Kernel => State::Kernel(security, ControlRecords::new(role)),
            ProtectedBy::Process => {
                shared.protected += 1;
                State::Process(security, Box::new(Protection::new(Records::new(session, role), exact)))
            }
        };
    }

    /// TLS is of no use any more.
    pub(super) fn fail(&mut self) {
        self.is_silent = true;
        if let State::Process(_, protection) = &mut self.state
            && let Some(record) = protection.take_alert()
        {
            self.last_word = Some(LastWord::Record(record));
        }
    }

    /// Gathers what the peer is told before our stream ends: what was wrong, or that it ends as it should. Nothing is
    /// sent behind it.
    pub(super) fn push_last_word(&mut self, batch: &mut SendBatch) {
        if !std::mem::replace(&mut self.is_silent, true) {
            self.last_word = match &mut self.state {
                State::Kernel(..) => Some(LastWord::Alert(Alert::CLOSE_NOTIFY)),
                State::Process(_, protection) => {
                    protection.seal_alert(Alert::CLOSE_NOTIFY).map(LastWord::Record)
                }
                _ => None,
            };
        }
        match self.last_word.take() {
            Some(LastWord::Record(record)) => batch.push_bytes(&record),
            Some(LastWord::Alert(alert)) => {
                batch.push_bytes(&alert.to_bytes());
                batch.set_record(ALERT_RECORD);
            }
            None => {}
        }
    }

    /// What a receive on a socket has taken whose records the kernel opens. `None`: nothing for the protocol.
    fn opened_by_kernel(
        &mut self,
        receive: &mut ReceiveOp,
        result: io::Result<u32>,
    ) -> Option<io::Result<u32>> {
        let State::Kernel(_, control) = &mut self.state else { return Some(result) };
        let Some(content) = receive.control_record() else {
            return Some(match result {
                Ok(0) => Err(DisconnectReason::Truncated.into()),
                Err(error) if error.raw_os_error() == Some(BAD_MESSAGE) => {
                    self.last_word = Some(LastWord::Alert(Alert::BAD_RECORD_MAC));
                    Err(DisconnectReason::Insecure(UNSEALED.to_owned()).into())
                }
                other => other,
            });
        };
        let mut bytes = vec![0; receive.received()];
        receive.copy_received(&mut bytes);
        let content = if content == ALERT_RECORD { ContentType::Alert } else { ContentType::Handshake };
        match control.receive(content, &bytes) {
            Ok(Control::Nothing) => None,
            Ok(Control::Closed) => Some(Ok(0)),
            Ok(Control::KeyUpdate { .. }) => {
                self.last_word = Some(LastWord::Alert(Alert::UNEXPECTED_MESSAGE));
                Some(Err(DisconnectReason::Insecure(UPDATED.to_owned()).into()))
            }
            Err(error) => {
                self.last_word = error.alert().map(LastWord::Alert);
                Some(Err(DisconnectReason::Insecure(error.to_string()).into()))
            }
        }
    }
}

/// `EBADMSG`.
const BAD_MESSAGE: i32 = 74;

/// What the kernel means by it.
const UNSEALED: &str = "a record was changed on its way, or sealed with another key";

/// Why the kernel cannot go on.
const UPDATED: &str = "the peer has changed its keys (KeyUpdate), which the kernel here cannot follow";

fn handshake_step(handshake: &mut Handshake, unread: &mut [u8]) -> Result<Step, TlsError> {
    if let Some(outgoing) = handshake.take_outgoing() {
        return Ok(Step::Send(outgoing));
    }
    if handshake.is_complete() {
        return Ok(Step::Complete);
    }
    match handshake.wanted(unread) {
        0 => handshake.receive(unread).map(|()| Step::Consumed),
        wanted => Ok(Step::Receive(wanted)),
    }
}

impl Wire {
    /// Whether the protocol's bytes may be sent: not before a handshake is over, nor behind our last word.
    #[inline]
    pub(super) fn carries_protocol(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.carries_protocol())
    }

    /// Receives as `receive` was aimed.
    #[inline]
    pub(super) fn receive<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        receive: Box<ReceiveOp>,
        token: Token,
    ) {
        let Some(socket) = self.socket else { return };
        if let Some(tls) = &mut self.tls
            && let State::Process(_, protection) = &mut tls.state
            && !tls.is_silent
        {
            return protection.receive(shared, reactor, receive, Operation { socket, token });
        }
        reactor.receive(socket, receive, token);
    }

    /// A receive on the socket has ended. Returns the one that the stream had armed, if that has ended.
    #[inline]
    pub(super) fn on_received(
        &mut self,
        reactor: &mut Reactor,
        receive: Box<ReceiveOp>,
        result: io::Result<u32>,
        token: Token,
    ) -> Option<(Box<ReceiveOp>, io::Result<u32>)> {
        if self.tls.is_some() {
            return self.on_received_over_tls(reactor, receive, result, token);
        }
        Some((receive, result))
    }

    fn on_received_over_tls(
        &mut self,
        reactor: &mut Reactor,
        mut receive: Box<ReceiveOp>,
        result: io::Result<u32>,
        token: Token,
    ) -> Option<(Box<ReceiveOp>, io::Result<u32>)> {
        let tls = self.tls.as_mut()?;
        if let State::Process(_, protection) = &mut tls.state
            && protection.is_receiving()
        {
            let next = self.socket.map(|socket| Operation { socket, token });
            protection.on_received(reactor, receive, result, next);
            return protection.take_ready();
        }
        if tls.is_silent {
            return Some((receive, result));
        }
        match (tls.opened_by_kernel(&mut receive, result), self.socket) {
            (Some(result), _) => Some((receive, result)),
            (None, Some(socket)) => {
                reactor.receive(socket, receive, token);
                None
            }
            (None, None) => Some((receive, Ok(0))),
        }
    }

    /// The receive that the stream has armed, if it has ended with what was there already.
    pub(super) fn take_ready(&mut self) -> Option<(Box<ReceiveOp>, io::Result<u32>)> {
        match &mut self.tls.as_mut()?.state {
            State::Process(_, protection) => protection.take_ready(),
            _ => None,
        }
    }

    /// Sends a batch of the protocol.
    #[inline]
    pub(super) fn send<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        token: Token,
    ) {
        let Some(socket) = self.socket else { return };
        if let Some(tls) = &mut self.tls
            && let State::Process(_, protection) = &mut tls.state
            && !tls.is_silent
        {
            return protection.send(shared, reactor, batch, Operation { socket, token });
        }
        reactor.send(socket, batch, token);
    }

    /// A send on the socket has ended. Returns the batch that the stream has given, if that was sent.
    #[inline]
    pub(super) fn on_sent<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        result: io::Result<u32>,
        token: Token,
    ) -> Option<(Box<SendBatch>, io::Result<u32>)> {
        if let Some(tls) = &mut self.tls
            && let State::Process(_, protection) = &mut tls.state
            && protection.is_sending()
        {
            let next = self.socket.map(|socket| Operation { socket, token });
            return protection.on_sent(shared, reactor, batch, result, next);
        }
        Some((batch, result))
    }

    /// What the peer is to be told before our stream ends, once.
    pub(super) fn take_last_word<P: Protocol>(&mut self, shared: &mut Shared<P>) -> Option<Box<SendBatch>> {
        let tls = self.tls.as_mut()?;
        let mut batch = shared.take_batch();
        tls.push_last_word(&mut batch);
        if batch.is_empty() {
            shared.give_batch(batch);
            return None;
        }
        Some(batch)
    }

    /// Who the host is and what it wants, for the log, as far as TLS has it: see [`Tls::names`].
    pub(super) fn names(&self) -> (Option<&str>, Option<&str>) {
        let names = self.tls.as_ref().and_then(|tls| tls.names());
        names.map(|names| (names.host.as_str(), names.subsystem.as_str())).unzip()
    }

    /// How the connection is protected by TLS.
    pub(crate) fn security(&self) -> Option<&Security> {
        self.tls.as_ref()?.security()
    }

    /// What goes with the socket to another core, on which nothing is in flight.
    pub(super) fn carry<P: Protocol>(&mut self, shared: &mut Shared<P>) -> Option<Carried> {
        let (security, records) = match self.tls.take()?.state {
            State::Kernel(security, control) => (security, CarriedRecords::Kernel(control)),
            State::Process(security, protection) => {
                shared.protected -= 1;
                (security, CarriedRecords::Process(Box::new(protection.into_records(shared))))
            }
            _ => return None,
        };
        Some(Carried { security, records })
    }

    /// Once in a while: gives back memory that has not been used for some time.
    pub(super) fn trim(&mut self) {
        if let Some(tls) = &mut self.tls
            && let State::Process(_, protection) = &mut tls.state
        {
            protection.trim();
        }
    }

    /// Gives back what it holds; nothing is in flight.
    pub(super) fn release<P: Protocol>(&mut self, shared: &mut Shared<P>) {
        if let Some(mut tls) = self.tls.take()
            && let State::Process(_, protection) = &mut tls.state
        {
            shared.protected -= 1;
            protection.release(shared);
        }
    }
}
