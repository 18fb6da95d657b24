//! The records of a handshake, in both directions.

use crate::alert::Alert;
use crate::error::TlsError;
use crate::header::Header;
use crate::joiner::Joiner;
use crate::keys::TrafficKeys;
use crate::record::{Opener, SEALED_OVERHEAD, Sealer};
use crate::wire::{ContentType, HEADER_BYTES, PLAINTEXT_BYTES_MAX, Role};

/// How many records may come that mean nothing. OpenSSL and GnuTLS send one.
const MEANINGLESS_MAX: usize = 4;

/// What a record has brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// Messages, or parts of one: see [`Channel::message`].
    Handshake,
    Alert(Alert),
    ChangeCipherSpec,
    Data,
}

/// Reads and makes records, encrypted ones as soon as there are keys.
#[derive(Debug)]
pub(crate) struct Channel {
    role: Role,
    joiner: Joiner,
    opener: Option<Opener>,
    sealer: Option<Sealer>,
    outgoing: Vec<u8>,
    meaningless: usize,
}

impl Channel {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            joiner: Joiner::default(),
            opener: None,
            sealer: None,
            outgoing: Vec::new(),
            meaningless: 0,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Reads one record.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<Incoming, TlsError> {
        let header = Header::of(record)?;
        let (content, range) = match (header.content, &mut self.opener) {
            (ContentType::ApplicationData, Some(opener)) => opener.decrypt(record)?,
            (ContentType::Handshake, Some(_)) => {
                return Err(TlsError::OutOfOrder("a record of the handshake is not encrypted"));
            }
            // An alert of a peer that has no keys yet, and what means nothing.
            (content, _) if header.length <= PLAINTEXT_BYTES_MAX => (content, HEADER_BYTES..record.len()),
            _ => return Err(TlsError::RecordOverflow(header.length)),
        };
        self.take(content, &record[range])
    }

    fn take(&mut self, content: ContentType, plaintext: &[u8]) -> Result<Incoming, TlsError> {
        match content {
            ContentType::Handshake if plaintext.is_empty() => {
                Err(TlsError::OutOfOrder("a record of the handshake is empty"))
            }
            ContentType::Handshake => {
                self.joiner.push(plaintext);
                Ok(Incoming::Handshake)
            }
            ContentType::Alert => {
                Alert::parse(plaintext).map(Incoming::Alert).ok_or(TlsError::Malformed("an alert"))
            }
            ContentType::ChangeCipherSpec if plaintext == [1] && self.meaningless < MEANINGLESS_MAX => {
                self.meaningless += 1;
                Ok(Incoming::ChangeCipherSpec)
            }
            ContentType::ChangeCipherSpec => {
                Err(TlsError::OutOfOrder("ChangeCipherSpec has a wrong content, or comes too often"))
            }
            ContentType::ApplicationData => Ok(Incoming::Data),
        }
    }

    /// The next whole message, with its header.
    pub(crate) fn message(&mut self) -> Result<Option<Vec<u8>>, TlsError> {
        self.joiner.take()
    }

    /// No message may have begun where keys change, and where the handshake ends.
    pub(crate) fn at_boundary(&self) -> Result<(), TlsError> {
        if self.joiner.is_empty() {
            Ok(())
        } else {
            Err(TlsError::OutOfOrder("a message follows in the same record, where keys change"))
        }
    }

    /// What comes from now on is encrypted with these keys.
    pub(crate) fn receive_with(&mut self, keys: TrafficKeys) -> Result<(), TlsError> {
        self.at_boundary()?;
        self.opener = Some(Opener::new(keys, self.role));
        Ok(())
    }

    /// What is sent from now on is encrypted with these keys.
    pub(crate) fn send_with(&mut self, keys: TrafficKeys) {
        self.sealer = Some(Sealer::new(keys));
    }

    /// Sends messages, in as many records as they need.
    pub(crate) fn send_messages(&mut self, messages: &[u8]) {
        for part in messages.chunks(PLAINTEXT_BYTES_MAX) {
            self.send(ContentType::Handshake, part);
        }
    }

    pub(crate) fn send_alert(&mut self, alert: Alert) {
        self.send(ContentType::Alert, &alert.to_bytes());
    }

    /// Sends the record that makes what is between both ends believe that this is version 1.2.
    pub(crate) fn send_change_cipher_spec(&mut self) {
        self.send_plain(ContentType::ChangeCipherSpec, &[1]);
    }

    fn send(&mut self, content: ContentType, plaintext: &[u8]) {
        let Some(sealer) = &mut self.sealer else { return self.send_plain(content, plaintext) };
        let at = self.outgoing.len();
        self.outgoing.resize(at + plaintext.len() + SEALED_OVERHEAD, 0);
        let sealed = sealer.seal(content, &[plaintext], &mut self.outgoing[at..]);
        sealed.expect("a handshake has few records, and there is room");
    }

    fn send_plain(&mut self, content: ContentType, plaintext: &[u8]) {
        self.outgoing.extend(Header { content, length: plaintext.len() }.to_bytes());
        self.outgoing.extend_from_slice(plaintext);
    }

    pub(crate) fn take_outgoing(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.outgoing)).filter(|bytes| !bytes.is_empty())
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.outgoing.is_empty()
    }
}
