//! What comes after the handshake and is no data (RFC 8446, sections 4.6 and 6).

use crate::alert::Alert;
use crate::error::{TlsError, Tried};
use crate::joiner::{Joiner, MESSAGE_HEADER_BYTES};
use crate::message::Kind;
use crate::wire::{ContentType, Role};

/// What a record that carries no data means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing: a ticket, or a part of a message.
    Nothing,
    /// The peer's next record has the next keys ([`crate::TrafficKeys::next`]).
    KeyUpdate {
        /// Whether the peer asks for the same of this end, before its next data.
        requested: bool,
    },
    /// The peer sends no more (close_notify).
    Closed,
}

/// Reads the records that carry no data: an [`crate::Opener`] has its own, another one is for what the kernel has
/// decrypted.
#[derive(Debug)]
pub struct ControlRecords {
    role: Role,
    joiner: Joiner,
}

impl ControlRecords {
    /// For this end of a connection.
    pub fn new(role: Role) -> Self {
        Self { role, joiner: Joiner::default() }
    }

    /// Takes the plaintext of one record of a kind other than data.
    ///
    /// # Errors
    /// It is none that the peer may send, or a fatal alert. The connection has to end.
    pub fn receive(&mut self, content: ContentType, plaintext: &[u8]) -> Result<Control, TlsError> {
        match content {
            ContentType::Handshake => self.handshake(plaintext),
            ContentType::Alert => {
                self.data()?;
                self.alert(plaintext)
            }
            ContentType::ApplicationData | ContentType::ChangeCipherSpec => {
                Err(TlsError::OutOfOrder("a record has a content that must not be there after the handshake"))
            }
        }
    }

    /// Data comes, which must not interrupt a message.
    pub(crate) fn data(&self) -> Result<(), TlsError> {
        if self.joiner.is_empty() {
            Ok(())
        } else {
            Err(TlsError::OutOfOrder("another record interrupts a message"))
        }
    }

    fn handshake(&mut self, part: &[u8]) -> Result<Control, TlsError> {
        self.joiner.push(part);
        while let Some(message) = self.joiner.take()? {
            match (Kind(message[0]), self.role) {
                // Sessions are not resumed.
                (Kind::NEW_SESSION_TICKET, Role::Client) => {}
                (Kind::KEY_UPDATE, _) if !self.joiner.is_empty() => {
                    return Err(TlsError::OutOfOrder("a message follows KeyUpdate with the same keys"));
                }
                (Kind::KEY_UPDATE, _) => return key_update(&message[MESSAGE_HEADER_BYTES..]),
                (kind, role) => {
                    let (peer, message) = (role.peer(), kind.name());
                    return Err(TlsError::Unexpected { peer, message, awaited: "data" });
                }
            }
        }
        Ok(Control::Nothing)
    }

    fn alert(&self, plaintext: &[u8]) -> Result<Control, TlsError> {
        match Alert::parse(plaintext).ok_or(TlsError::Malformed("an alert"))? {
            Alert::CLOSE_NOTIFY => Ok(Control::Closed),
            // close_notify follows it.
            Alert::USER_CANCELED => Ok(Control::Nothing),
            alert => Err(TlsError::PeerAlert { peer: self.role.peer(), alert, tried: Tried::default() }),
        }
    }
}

fn key_update(body: &[u8]) -> Result<Control, TlsError> {
    match body {
        [0] => Ok(Control::KeyUpdate { requested: false }),
        [1] => Ok(Control::KeyUpdate { requested: true }),
        [_] => Err(TlsError::Illegal("KeyUpdate has a value that it cannot have")),
        _ => Err(TlsError::Malformed("KeyUpdate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: [u8; 5] = [24, 0, 0, 1, 1];
    const TICKET: [u8; 6] = [4, 0, 0, 2, 0, 0];

    fn receive(role: Role, content: ContentType, parts: &[&[u8]]) -> Result<Control, TlsError> {
        let mut control = ControlRecords::new(role);
        let (last, first) = parts.split_last().unwrap();
        for part in first {
            assert_eq!(control.receive(ContentType::Handshake, part), Ok(Control::Nothing));
        }
        control.receive(content, last)
    }

    #[test]
    fn tickets_are_ignored_by_the_host_alone() {
        let tickets = [TICKET, TICKET].concat();
        for cut in 1..tickets.len() - 1 {
            let parts = [&tickets[..cut], &tickets[cut..]];
            assert_eq!(receive(Role::Client, ContentType::Handshake, &parts), Ok(Control::Nothing));
        }
        let refused = receive(Role::Server, ContentType::Handshake, &[&TICKET]).unwrap_err();
        assert_eq!(refused.to_string(), "the host sends NewSessionTicket where data is awaited");
    }

    #[test]
    fn a_key_update_ends_its_record_and_has_one_of_two_values() {
        for role in [Role::Client, Role::Server] {
            let handshake = |parts: &[&[u8]]| receive(role, ContentType::Handshake, parts);
            assert_eq!(handshake(&[&UPDATE]), Ok(Control::KeyUpdate { requested: true }));
            assert_eq!(handshake(&[&UPDATE[..3], &UPDATE[3..]]), Ok(Control::KeyUpdate { requested: true }));
            assert_eq!(handshake(&[&[24, 0, 0, 1, 0]]), Ok(Control::KeyUpdate { requested: false }));
            assert_eq!(handshake(&[&[24, 0, 0, 1, 2]]).unwrap_err().alert(), Some(Alert::ILLEGAL_PARAMETER));
            assert_eq!(handshake(&[&[24, 0, 0, 2, 0, 0]]).unwrap_err().alert(), Some(Alert::DECODE_ERROR));
            let followed = [&UPDATE[..], &[24]].concat();
            assert_eq!(handshake(&[&followed]).unwrap_err().alert(), Some(Alert::UNEXPECTED_MESSAGE));
        }
    }

    #[test]
    fn alerts_end_a_connection_and_interrupt_no_message() {
        let alert = |bytes: &[u8]| receive(Role::Server, ContentType::Alert, &[bytes]);
        assert_eq!(alert(&[1, 0]), Ok(Control::Closed));
        assert_eq!(alert(&[1, 90]), Ok(Control::Nothing));
        assert_eq!(
            alert(&[2, 20]).unwrap_err().to_string(),
            "the host has ended the connection with bad_record_mac: it could not decrypt a record, which was changed \
             or has another key"
        );
        for wrong in [&[2][..], &[2, 0, 0]] {
            assert_eq!(alert(wrong), Err(TlsError::Malformed("an alert")));
        }
        let interrupted = receive(Role::Client, ContentType::Alert, &[&TICKET[..5], &[1, 0]]).unwrap_err();
        assert_eq!(interrupted.to_string(), "another record interrupts a message");
        for content in [ContentType::ApplicationData, ContentType::ChangeCipherSpec] {
            assert!(receive(Role::Client, content, &[&[1]]).is_err());
        }
    }
}
