//! Records of TLS that this process seals and opens, between a stream and the reactor.
//!
//! The stream arms receives and gives batches as on a socket in clear text. Here, a receive of ciphertext is in flight
//! instead, and records are opened where they came, and copied to where the armed receive puts them. A batch becomes
//! records of a batch of ciphertext, piece by piece. What the stream gave comes back with a result as if the kernel had
//! done it.

use std::fmt;
use std::io;
use std::ops::Range;

use ringfab_reactor::{Reactor, ReceiveOp, SendBatch, SocketId, Token};
use ringfab_tls::{
    Alert, ContentType, HEADER_BYTES, Opened, Opener, PLAINTEXT_BYTES_MAX, Role, SEALED_OVERHEAD, Sealer,
    Session, TlsError,
};

use super::{DisconnectReason, Protocol, Shared};

/// What came of the last record that is not delivered yet, and of which the staging memory takes what is smaller
/// together with others. Behind a larger one the protocol says first where it wants the next.
const MANY_BYTES: usize = 4096;

/// A sealed KeyUpdate.
const UPDATE_BYTES: usize = SEALED_OVERHEAD + 5;

/// Who seals and opens, and what came of a connection that another core adopts.
#[derive(Debug)]
pub(super) struct Records {
    sealer: Sealer,
    opener: Opener,
    /// Bytes that were opened, and behind them those that were not.
    rest: Vec<u8>,
    opened: usize,
}

/// What is started on a socket of the reactor.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub(super) socket: SocketId,
    /// What its completion bears.
    pub(super) token: Token,
}

/// The record protection of a stream.
pub(super) struct Protection {
    sealer: Sealer,
    opener: Opener,
    /// What came before the connection was adopted, as in [`Records`].
    carried: Option<(Vec<u8>, usize)>,
    /// Ciphertext is received here. Ours except while it is in flight.
    inbox: Option<Box<ReceiveOp>>,
    /// What of it was opened and not delivered, and what was not opened.
    opened: Range<usize>,
    unopened: Range<usize>,
    /// What the stream has armed.
    target: Option<Box<ReceiveOp>>,
    /// How that has ended.
    ready: Option<io::Result<u32>>,
    /// Why nothing comes behind what was opened; the end of the stream if there is no reason.
    end: Option<Option<DisconnectReason>>,
    /// What the peer is told about it.
    alert: Option<Alert>,
    /// What the stream sends.
    outbox: Option<Box<SendBatch>>,
    /// The peer wants us to have new keys.
    update: bool,
    /// Nothing more can be sealed.
    spent: bool,
    /// No byte of the next record may be taken in: a listener's connection leaves for another core.
    exact: bool,
}

impl Records {
    /// Of a connection on which no record has come or gone.
    pub(super) fn new(session: Session, role: Role) -> Self {
        let (sealer, opener) = (Sealer::new(session.send), Opener::new(session.receive, role));
        Self { sealer, opener, rest: Vec::new(), opened: 0 }
    }
}

impl Protection {
    pub(super) fn new(records: Records, exact: bool) -> Self {
        let Records { sealer, opener, rest, opened } = records;
        Self {
            sealer,
            opener,
            carried: Some((rest, opened)).filter(|(rest, _)| !rest.is_empty()),
            inbox: None,
            opened: 0..0,
            unopened: 0..0,
            target: None,
            ready: None,
            end: None,
            alert: None,
            outbox: None,
            update: false,
            spent: false,
            exact,
        }
    }

    /// What goes with the socket to another core; nothing is in flight.
    pub(super) fn into_records<P: Protocol>(self, shared: &mut Shared<P>) -> Records {
        let Self { sealer, opener, carried, inbox, opened, unopened, .. } = self;
        let (mut rest, mut bytes) = carried.unwrap_or_default();
        if let Some(inbox) = inbox {
            rest.extend_from_slice(&inbox.staging()[opened.clone()]);
            rest.extend_from_slice(&inbox.staging()[unopened]);
            bytes += opened.len();
            shared.give_receive(inbox);
        }
        Records { sealer, opener, rest, opened: bytes }
    }

    /// Gives back what it holds; nothing is in flight.
    pub(super) fn release<P: Protocol>(&mut self, shared: &mut Shared<P>) {
        let receives = [self.inbox.take(), self.target.take()];
        receives.into_iter().flatten().for_each(|receive| shared.give_receive(receive));
        if let Some(batch) = self.outbox.take() {
            shared.give_batch(batch);
        }
    }

    /// Once in a while: what is armed for plaintext gives its pages back while it waits.
    pub(super) fn trim(&mut self) {
        if let Some(target) = &mut self.target {
            target.trim();
        }
    }

    /// Receives as `target` was aimed.
    pub(super) fn receive<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        target: Box<ReceiveOp>,
        operation: Operation,
    ) {
        self.target = Some(target);
        if let Err(error) = self.ensure_inbox(shared) {
            self.ready = Some(Err(error));
            return;
        }
        self.advance(reactor, operation);
    }

    /// A receive of ciphertext has ended. `next` goes on, unless the socket is closed.
    pub(super) fn on_received(
        &mut self,
        reactor: &mut Reactor,
        inbox: Box<ReceiveOp>,
        result: io::Result<u32>,
        next: Option<Operation>,
    ) {
        self.unopened.end += inbox.received();
        self.inbox = Some(inbox);
        match (result, next) {
            (Ok(0), _) => {
                self.end.get_or_insert(Some(DisconnectReason::Truncated));
                self.ready = Some(Err(DisconnectReason::Truncated.into()));
            }
            (Ok(_), Some(next)) => self.advance(reactor, next),
            (Ok(_), None) => self.ready = Some(Err(canceled())),
            (Err(error), _) => self.ready = Some(Err(error)),
        }
    }

    /// Whether the stream has armed a receive that has not ended.
    pub(super) fn is_receiving(&self) -> bool {
        self.target.is_some()
    }

    /// Whether the stream has given a batch that is not sent yet.
    pub(super) fn is_sending(&self) -> bool {
        self.outbox.is_some()
    }

    /// The receive that the stream has armed, when it has ended.
    pub(super) fn take_ready(&mut self) -> Option<(Box<ReceiveOp>, io::Result<u32>)> {
        self.ready.as_ref()?;
        Some((self.target.take()?, self.ready.take()?))
    }

    /// What the peer is told of what was wrong with its records: a whole record.
    pub(super) fn take_alert(&mut self) -> Option<Vec<u8>> {
        let alert = self.alert.take()?;
        self.seal_alert(alert)
    }

    /// A record with an alert.
    pub(super) fn seal_alert(&mut self, alert: Alert) -> Option<Vec<u8>> {
        let mut record = vec![0; SEALED_OVERHEAD + 2];
        let sealed = self.sealer.alert(alert, &mut record).ok()?;
        record.truncate(sealed);
        Some(record)
    }

    fn ensure_inbox<P: Protocol>(&mut self, shared: &mut Shared<P>) -> io::Result<()> {
        if self.inbox.is_some() {
            return Ok(());
        }
        let inbox = self.inbox.insert(shared.take_receive()?);
        if let Some((rest, opened)) = self.carried.take() {
            inbox.staging_mut()[..rest.len()].copy_from_slice(&rest);
            (self.opened, self.unopened) = (0..opened, opened..rest.len());
        }
        Ok(())
    }

    /// Fills what is armed from what is there. If there is nothing for it, more ciphertext is received.
    fn advance(&mut self, reactor: &mut Reactor, operation: Operation) {
        let (Some(target), Some(inbox)) = (&mut self.target, &mut self.inbox) else { return };
        loop {
            let taken = target.append(&inbox.staging()[self.opened.clone()]);
            self.opened.start += taken;
            // What is placed goes on as expected. Otherwise the protocol says first where it wants what follows.
            let enough = taken > MANY_BYTES && !target.is_direct();
            if enough || target.received() == target.capacity() || self.end.is_some() {
                break;
            }
            let missing = Opener::wanted(&inbox.staging()[self.unopened.clone()]);
            if missing > 0 {
                break;
            }
            self.opened = self.unopened.start..self.unopened.start;
            match open(&mut self.opener, inbox, &mut self.unopened) {
                Ok(Opened::Data(range)) => self.opened = range,
                Ok(Opened::Nothing) => {}
                Ok(Opened::UpdateRequested) => self.update = true,
                Ok(Opened::Closed) => self.end = Some(None),
                Err(error) => {
                    self.alert = error.alert();
                    self.end = Some(Some(DisconnectReason::Insecure(error.to_string())));
                }
            }
        }
        if target.received() > 0 {
            self.ready = Some(Ok(target.received() as u32));
            return;
        }
        match &self.end {
            Some(Some(reason)) => self.ready = Some(Err(reason.clone().into())),
            Some(None) => self.ready = Some(Ok(0)),
            None => self.receive_more(reactor, operation),
        }
    }

    fn receive_more(&mut self, reactor: &mut Reactor, operation: Operation) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let length = self.unopened.len();
        inbox.staging_mut().copy_within(self.unopened.clone(), 0);
        (self.opened, self.unopened) = (0..0, 0..length);
        let room = inbox.staging().len();
        let end = if self.exact { length + Opener::wanted(&inbox.staging()[..length]) } else { room };
        inbox.set_target(None, length, end.min(room));
        reactor.receive(operation.socket, inbox, operation.token);
    }

    /// Sends a batch.
    pub(super) fn send<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        batch: Box<SendBatch>,
        operation: Operation,
    ) {
        self.outbox = Some(batch);
        self.seal_more(shared, reactor, operation);
    }

    /// Sends the next part of what the stream sends.
    fn seal_more<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        operation: Operation,
    ) {
        let Some(batch) = &mut self.outbox else { return };
        let mut sealed = shared.sealed.take();
        let result = seal(&mut self.sealer, &mut self.update, batch, &mut sealed);
        // What was sealed before is sent. Who has the connection hears of it then.
        self.spent = result.is_err();
        reactor.send(operation.socket, sealed, operation.token);
    }

    /// A batch of ciphertext was sent, or could not be. `next` sends more, unless the socket is closed. Returns the
    /// batch that it was made of, when that is all of it.
    pub(super) fn on_sent<P: Protocol>(
        &mut self,
        shared: &mut Shared<P>,
        reactor: &mut Reactor,
        sealed: Box<SendBatch>,
        result: io::Result<u32>,
        next: Option<Operation>,
    ) -> Option<(Box<SendBatch>, io::Result<u32>)> {
        shared.sealed.give(sealed);
        let batch = self.outbox.as_ref()?;
        let result = match (result, next) {
            (Err(error), _) => Err(error),
            (Ok(_), _) if self.spent => Err(spent()),
            (Ok(_), _) if batch.unsent_bytes() == 0 => Ok(batch.bytes() as u32),
            (Ok(_), None) => Err(canceled()),
            (Ok(_), Some(next)) => {
                self.seal_more(shared, reactor, next);
                return None;
            }
        };
        self.outbox.take().map(|batch| (batch, result))
    }
}

/// Opens the first record of what is not opened.
fn open(opener: &mut Opener, inbox: &mut ReceiveOp, unopened: &mut Range<usize>) -> Result<Opened, TlsError> {
    let start = unopened.start;
    let length = record_bytes(&inbox.staging()[unopened.clone()]);
    let record = &mut inbox.staging_mut()[start..start + length];
    unopened.start += length;
    let opened = opener.open(record)?;
    Ok(match opened {
        Opened::Data(range) => Opened::Data(range.start + start..range.end + start),
        other => other,
    })
}

/// Bytes of the record that `unread` begins with, as far as they are there.
fn record_bytes(unread: &[u8]) -> usize {
    let body = unread
        .get(HEADER_BYTES - 2..HEADER_BYTES)
        .map_or(0, |length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    (HEADER_BYTES + body).min(unread.len())
}

/// Seals as much of a batch as there is room for.
fn seal(
    sealer: &mut Sealer,
    update: &mut bool,
    batch: &mut SendBatch,
    sealed: &mut SendBatch,
) -> Result<(), TlsError> {
    if std::mem::take(update) {
        sealer.update(sealed.push_room(UPDATE_BYTES))?;
    }
    while batch.unsent_bytes() > 0 {
        let length = batch.unsent_bytes().min(PLAINTEXT_BYTES_MAX);
        // Records lie one behind the other: together they are the one piece that there is.
        if !sealed.has_room(length + SEALED_OVERHEAD, 0) {
            break;
        }
        let record = sealed.push_room(length + SEALED_OVERHEAD);
        batch.take(&mut record[HEADER_BYTES..HEADER_BYTES + length]);
        sealer.seal_in_place(ContentType::ApplicationData, record)?;
    }
    Ok(())
}

fn canceled() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionAborted)
}

fn spent() -> io::Error {
    DisconnectReason::Insecure("the keys of this connection have sealed as much as they may".to_owned())
        .into()
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("opened", &self.opened)
            .field("unopened", &self.unopened)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringfab_auth::{CipherSuite, Secret, system_random};
    use ringfab_tls::{Handshake, Psk, PskStore};

    use super::*;
    use crate::stream::shared::SealedBatches;

    #[derive(Debug)]
    struct OneKey(Psk);

    impl PskStore for OneKey {
        fn find(&self, _identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
            Ok(vec![(self.0.secret.clone(), self.0.suite)])
        }
    }

    /// Hands what one end has to say to the other, record by record.
    fn pass(from: &mut Handshake, to: &mut Handshake) {
        let mut rest = from.take_outgoing().unwrap_or_default();
        while !rest.is_empty() {
            let length = record_bytes(&rest);
            to.receive(&mut rest[..length]).expect("a record of the handshake");
            rest.drain(..length);
        }
    }

    fn sealer() -> Sealer {
        let (suite, secret) = (CipherSuite::Aes128GcmSha256, Secret::copy_of(&[7; 32]));
        let psk = Psk { identity: b"one".to_vec(), secret, suite };
        let mut client = Handshake::client(vec![psk.clone()], &mut system_random()).expect("a key");
        let mut server = Handshake::server(Arc::new(OneKey(psk)), &mut system_random());
        while !(client.is_complete() && server.is_complete()) {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        Sealer::new(server.finish().expect("it is complete").send)
    }

    /// A send with one record would be a system call for every 16 KiB.
    #[test]
    fn a_batch_of_ciphertext_is_filled_with_records() {
        let mut batch = SendBatch::new(256 << 10, 1);
        batch.push_bytes(&vec![0; 256 << 10]);
        let (mut sealed, mut sealer) = (SealedBatches::default().take(), sealer());
        seal(&mut sealer, &mut false, &mut batch, &mut sealed).expect("keys that are not worn");
        assert_eq!(sealer.keys().records(), 9);
        assert_eq!(sealed.bytes(), 9 * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD));
        assert_eq!(batch.unsent_bytes(), (256 << 10) - 9 * PLAINTEXT_BYTES_MAX);
    }
}
