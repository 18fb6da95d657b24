//! Numbers and vectors of the presentation language (RFC 8446, section 3).

use crate::error::TlsError;

/// The bytes of a message that are not yet parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// For errors.
    message: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], message: &'static str) -> Self {
        Self { rest: bytes, message }
    }

    pub(crate) fn malformed(&self) -> TlsError {
        TlsError::Malformed(self.message)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], TlsError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], TlsError> {
        Ok(self.bytes(N)?.first_chunk().expect("as many as were asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, TlsError> {
        self.array().map(|&[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TlsError> {
        self.array().map(|&bytes| u16::from_be_bytes(bytes))
    }

    /// A vector with a length of one byte.
    pub(crate) fn vector8(&mut self) -> Result<Self, TlsError> {
        let length = self.u8()?.into();
        self.sub(length)
    }

    /// A vector with a length of two bytes.
    pub(crate) fn vector16(&mut self) -> Result<Self, TlsError> {
        let length = self.u16()?.into();
        self.sub(length)
    }

    fn sub(&mut self, length: usize) -> Result<Self, TlsError> {
        Ok(Self::new(self.bytes(length)?, self.message))
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The same of what must not be empty.
    pub(crate) fn filled(&self) -> Result<&'a [u8], TlsError> {
        if self.is_empty() { Err(self.malformed()) } else { Ok(self.rest) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Nothing may follow.
    pub(crate) fn end(&self) -> Result<(), TlsError> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    /// Whether a list of numbers of two bytes has this one. The list must consist of whole numbers, and not be empty.
    pub(crate) fn list_has(mut self, number: u16) -> Result<bool, TlsError> {
        if self.is_empty() {
            return Err(self.malformed());
        }
        let mut found = false;
        while !self.is_empty() {
            found |= self.u16()? == number;
        }
        Ok(found)
    }
}

/// Writes a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// A handshake message of this kind.
    pub(crate) fn message(kind: u8, body: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut writer = Self(vec![kind, 0]);
        writer.vector16(body);
        writer.0
    }

    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.bytes(&number.to_be_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A vector with a length of one byte.
    pub(crate) fn vector8(&mut self, content: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.u8(0);
        content(self);
        self.0[at] = u8::try_from(self.0.len() - at - 1).expect("short vectors of our own");
    }

    /// A vector with a length of two bytes.
    pub(crate) fn vector16(&mut self, content: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.u16(0);
        content(self);
        let length = u16::try_from(self.0.len() - at - 2).expect("the caller limits what it offers");
        self.0[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }

    pub(crate) fn extension(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        self.u16(kind);
        self.vector16(content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let message = Writer::message(7, |body| {
            body.u8(1);
            body.vector8(|short| short.u16(0x0203));
            body.extension(0x0a0b, |extension| extension.bytes(&[4, 5, 6]));
        });
        assert_eq!(message, [7, 0, 0, 11, 1, 2, 2, 3, 0x0a, 0x0b, 0, 3, 4, 5, 6]);
        let mut reader = Reader::new(&message[4..], "test");
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.vector8().unwrap().list_has(0x0203), Ok(true));
        assert_eq!(reader.u16(), Ok(0x0a0b));
        assert_eq!(reader.vector16().unwrap().rest(), [4, 5, 6]);
        assert_eq!(reader.end(), Ok(()));
        assert_eq!(reader.u8(), Err(TlsError::Malformed("test")));
    }

    #[test]
    fn lengths_beyond_the_end_are_found() {
        for bytes in [&[][..], &[3, 1, 2]] {
            assert!(Reader::new(bytes, "test").vector8().is_err());
        }
        for bytes in [&[0][..], &[0, 3, 1, 2]] {
            assert!(Reader::new(bytes, "test").vector16().is_err());
        }
        for list in [&[][..], &[1], &[0, 1, 2]] {
            assert!(Reader::new(list, "test").list_has(1).is_err(), "{list:?}");
        }
        assert_eq!(Reader::new(&[0, 2, 0, 3], "test").list_has(1), Ok(false));
        assert!(Reader::new(&[1], "test").end().is_err());
    }
}
