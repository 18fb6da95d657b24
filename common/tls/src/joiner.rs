//! Handshake messages out of records: several may be in one record, and one in several.

use crate::error::TlsError;
use crate::wire::PLAINTEXT_BYTES_MAX;

/// Bytes of a handshake message's header.
pub(crate) const MESSAGE_HEADER_BYTES: usize = 4;

/// Joins the parts of messages.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    /// At most a record's plaintext behind an incomplete message.
    parts: Vec<u8>,
    /// How many bytes of them were taken.
    taken: usize,
}

impl Joiner {
    pub(crate) fn push(&mut self, part: &[u8]) {
        self.parts.drain(..self.taken);
        self.taken = 0;
        self.parts.extend_from_slice(part);
    }

    /// Takes the next whole message, with its header.
    pub(crate) fn take(&mut self) -> Result<Option<Vec<u8>>, TlsError> {
        let unread = &self.parts[self.taken..];
        let Some([_, length @ ..]) = unread.first_chunk::<MESSAGE_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
        if length > PLAINTEXT_BYTES_MAX {
            return Err(TlsError::MessageTooLong(length));
        }
        let message = unread.get(..MESSAGE_HEADER_BYTES + length).map(<[u8]>::to_vec);
        self.taken += message.as_ref().map_or(0, Vec::len);
        Ok(message)
    }

    /// Whether nothing is left: where keys change and where other records come in between, no message may have begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.parts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_joined_and_taken_apart() {
        let mut joiner = Joiner::default();
        let messages = [&[1, 0, 0, 0][..], &[2, 0, 0, 3, 7, 8, 9], &[3, 0, 0, 1, 0]];
        let stream = messages.concat();
        for at in 1..stream.len() {
            let mut taken = Vec::new();
            for part in [&stream[..at], &stream[at..]] {
                joiner.push(part);
                while let Some(message) = joiner.take().unwrap() {
                    taken.push(message);
                }
            }
            assert_eq!(taken, messages);
            assert!(joiner.is_empty());
        }
        joiner.push(&[11, 0, 0x40, 1]);
        assert_eq!(joiner.take(), Err(TlsError::MessageTooLong(16385)));
        let mut joiner = Joiner::default();
        joiner.push(&[11, 0, 0x40, 0]);
        assert_eq!(joiner.take(), Ok(None));
        assert!(!joiner.is_empty());
    }
}
