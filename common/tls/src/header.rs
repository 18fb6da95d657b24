//! Headers of records (RFC 8446, section 5.1).

use crate::error::{Heard, TlsError};
use crate::wire::{ContentType, HEADER_BYTES, LEGACY_VERSION, RECORD_BYTES_MAX};

/// The header of a record.
pub(crate) struct Header {
    pub(crate) content: ContentType,
    /// Of what follows it.
    pub(crate) length: usize,
}

impl Header {
    /// Reads the header that bytes begin with. None: there are too few of them.
    pub(crate) fn read(bytes: &[u8]) -> Option<Result<Self, TlsError>> {
        let [content, major, _minor, length @ ..] = *bytes.first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(u16::from_be_bytes(length));
        Some(match ContentType::from_number(content) {
            Some(content) if major == 3 => {
                if length <= RECORD_BYTES_MAX - HEADER_BYTES {
                    Ok(Self { content, length })
                } else {
                    Err(TlsError::RecordOverflow(length))
                }
            }
            _ => Err(TlsError::NotTls(Heard::new(bytes))),
        })
    }

    /// The header of exactly one record.
    pub(crate) fn of(record: &[u8]) -> Result<Self, TlsError> {
        let header = Self::read(record).ok_or(TlsError::RecordCut)??;
        if record.len() == HEADER_BYTES + header.length { Ok(header) } else { Err(TlsError::RecordCut) }
    }

    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let [major, minor] = LEGACY_VERSION.to_be_bytes();
        let [high, low] = u16::try_from(self.length).expect("a record is short").to_be_bytes();
        [self.content.number(), major, minor, high, low]
    }
}

/// How many more bytes complete the record that `unread` begins with.
pub(crate) fn wanted(unread: &[u8]) -> usize {
    match Header::read(unread) {
        None => HEADER_BYTES - unread.len(),
        Some(Ok(header)) => (HEADER_BYTES + header.length).saturating_sub(unread.len()),
        Some(Err(_)) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_wanted_to_its_last_byte_and_no_further() {
        let record = [22, 3, 1, 0, 2, 0xaa, 0xbb, 0xcc];
        let expected = [5, 4, 3, 2, 1, 2, 1, 0, 0];
        for (length, expected) in expected.into_iter().enumerate() {
            assert_eq!(wanted(&record[..length]), expected, "{length} bytes");
        }
        for length in [0, 6, 8] {
            assert_eq!(Header::of(&record[..length]).err(), Some(TlsError::RecordCut));
        }
        assert_eq!(Header::of(&record[..7]).unwrap().length, 2);
    }

    #[test]
    fn what_is_no_record_is_complete_with_its_header() {
        for (header, error) in [
            (*b"GET /", "the peer does not speak TLS: its first bytes are \"GET /\""),
            (
                [22, 2, 3, 0, 1],
                "the peer does not speak TLS: its first bytes are \"\\x16\\x02\\x03\\x00\\x01\"",
            ),
            (
                [19, 3, 3, 0, 1],
                "the peer does not speak TLS: its first bytes are \"\\x13\\x03\\x03\\x00\\x01\"",
            ),
            ([0, 0, 128, 0, 128], "the peer speaks NVMe/TCP in clear text, not TLS"),
            ([23, 3, 3, 0x41, 1], "a record of 16641 bytes is too long"),
        ] {
            assert_eq!(wanted(&header), 0);
            assert_eq!(Header::of(&header).err().unwrap().to_string(), error);
        }
        assert_eq!(wanted(&[23, 3, 3, 0x41, 0]), 16640);
    }
}
