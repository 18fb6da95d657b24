//! What a client reads in front of the content of a reply.

use super::{CHUNK_HEAD_BYTES, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};
use super::{be16, be32, be64};

/// The head of a simple reply, or of a chunk of a structured one, up to what has a length of its own: the data of a
/// read, the text of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A reply without structure. What was read follows it, if there is no error.
    Simple {
        /// The number of an error, or zero.
        errno: u32,
        /// That of the request.
        cookie: u64,
    },
    /// Nothing but that a reply goes on, or ends.
    Nothing {
        /// That of the request.
        cookie: u64,
        /// Whether the reply ends with it.
        done: bool,
    },
    /// Bytes that were read; they follow.
    Data {
        /// That of the request.
        cookie: u64,
        /// Whether the reply ends with it.
        done: bool,
        /// First byte of the export.
        offset: u64,
        /// How many follow.
        length: u32,
    },
    /// Bytes that were read and that are zero.
    Hole {
        /// That of the request.
        cookie: u64,
        /// Whether the reply ends with it.
        done: bool,
        /// First byte of the export.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// The request has failed.
    Error {
        /// That of the request.
        cookie: u64,
        /// Whether the reply ends with it.
        done: bool,
        /// Its number.
        errno: u32,
        /// Bytes that follow: the rest of the text for people, and perhaps an offset.
        rest: u32,
    },
}

/// A server has broken the protocol; nothing that follows can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A reply begins with something else.
    #[error("a reply begins with {0:#010x}")]
    Magic(u32),
    /// A chunk has a length that its kind cannot have.
    #[error("a chunk of kind {kind:#x} has {length} bytes")]
    ChunkLength {
        /// Its kind.
        kind: u16,
        /// Its length.
        length: u32,
    },
    /// Nobody has asked for such a chunk.
    #[error("a chunk of the unknown kind {0:#x}")]
    ChunkKind(u16),
}

impl ReplyHead {
    /// Bytes of the longest head.
    pub const BYTES_MAX: usize = CHUNK_HEAD_BYTES + 12;

    /// Reads the head at the front of `bytes`, and says how many bytes it has. `None` when more has to come first.
    ///
    /// # Errors
    /// [`Violation`]: nothing of the stream can be trusted any more.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        if bytes.len() < SIMPLE_REPLY_BYTES {
            return Ok(None);
        }
        match be32(bytes, 0) {
            SIMPLE_REPLY_MAGIC => {
                let head = Self::Simple { errno: be32(bytes, 4), cookie: be64(bytes, 8) };
                Ok(Some((head, SIMPLE_REPLY_BYTES)))
            }
            STRUCTURED_REPLY_MAGIC if bytes.len() < CHUNK_HEAD_BYTES => Ok(None),
            STRUCTURED_REPLY_MAGIC => Self::parse_chunk(bytes),
            other => Err(Violation::Magic(other)),
        }
    }

    fn parse_chunk(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let (flags, kind, cookie) = (be16(bytes, 4), be16(bytes, 6), be64(bytes, 8));
        let (length, done) = (be32(bytes, 16), flags & chunk::FLAG_DONE != 0);
        let content = &bytes[CHUNK_HEAD_BYTES..];
        // What of the content belongs to the head, and whether there can be so much.
        let (own, possible) = match kind {
            chunk::NONE => (0, length == 0),
            chunk::OFFSET_DATA => (8, length > 8),
            chunk::OFFSET_HOLE => (12, length == 12),
            _ if is_error(kind) => (4, (6..=ERROR_BYTES_MAX).contains(&length)),
            _ => return Err(Violation::ChunkKind(kind)),
        };
        if !possible {
            return Err(Violation::ChunkLength { kind, length });
        }
        if content.len() < own {
            return Ok(None);
        }
        let head = match kind {
            chunk::NONE => Self::Nothing { cookie, done },
            chunk::OFFSET_DATA => Self::Data { cookie, done, offset: be64(content, 0), length: length - 8 },
            chunk::OFFSET_HOLE => {
                Self::Hole { cookie, done, offset: be64(content, 0), length: be32(content, 8) }
            }
            _ => Self::Error { cookie, done, errno: be32(content, 0), rest: length - 4 },
        };
        Ok(Some((head, CHUNK_HEAD_BYTES + own)))
    }

    /// The number of the request that it belongs to.
    pub const fn cookie(&self) -> u64 {
        match self {
            Self::Simple { cookie, .. }
            | Self::Nothing { cookie, .. }
            | Self::Data { cookie, .. }
            | Self::Hole { cookie, .. }
            | Self::Error { cookie, .. } => *cookie,
        }
    }
}

/// The most bytes of a chunk that says what went wrong: a text has 4,096 at most.
const ERROR_BYTES_MAX: u32 = 8192;

/// A client takes kinds of errors that it does not know for errors (section "Structured reply types").
const fn is_error(kind: u16) -> bool {
    kind & 1 << 15 != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Errno, data_chunk, error_chunk, none_chunk, simple_reply, status_chunk};
    use super::*;

    #[test]
    fn what_servers_write_is_read_back() {
        let read = |bytes: &[u8]| ReplyHead::parse(bytes).expect("no violation").expect("a whole head");
        let simple = simple_reply(Some(Errno::NoSpc), 9);
        assert_eq!(read(&simple), (ReplyHead::Simple { errno: 28, cookie: 9 }, 16));
        let data = data_chunk(7, 1 << 40, 512, true);
        let head = ReplyHead::Data { cookie: 7, done: true, offset: 1 << 40, length: 512 };
        assert_eq!(read(&data), (head, 28));
        assert_eq!(ReplyHead::parse(&data[..27]), Ok(None), "the offset is not there");
        assert_eq!(read(&none_chunk(7)), (ReplyHead::Nothing { cookie: 7, done: true }, 20));
        let error = error_chunk(7, Errno::Inval, 3);
        assert_eq!(read(&error), (ReplyHead::Error { cookie: 7, done: true, errno: 22, rest: 5 }, 24));
        assert_eq!(ReplyHead::parse(&status_chunk(7, 1, 1)), Err(Violation::ChunkKind(chunk::BLOCK_STATUS)));
    }

    #[test]
    fn what_no_server_may_write_is_a_violation() {
        let mut bytes = data_chunk(7, 0, 512, true);
        bytes[16..20].copy_from_slice(&8_u32.to_be_bytes());
        let violation = Violation::ChunkLength { kind: chunk::OFFSET_DATA, length: 8 };
        assert_eq!(ReplyHead::parse(&bytes), Err(violation));
        bytes[0] = 0;
        assert_eq!(ReplyHead::parse(&bytes), Err(Violation::Magic(0x008e_33ef)));
        let mut error = error_chunk(7, Errno::Inval, 0);
        error[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(ReplyHead::parse(&error).is_err(), "a text without end");
    }

    proptest! {
        #[test]
        fn more_bytes_never_change_what_was_read(bytes: Vec<u8>, structured: bool, kind in 0_u16..3) {
            let mut bytes = bytes;
            bytes.resize(bytes.len().max(8), 0);
            let magic = if structured { STRUCTURED_REPLY_MAGIC } else { SIMPLE_REPLY_MAGIC };
            bytes[..4].copy_from_slice(&magic.to_be_bytes());
            bytes[6..8].copy_from_slice(&kind.to_be_bytes());
            let whole = ReplyHead::parse(&bytes);
            for end in 0..bytes.len() {
                match ReplyHead::parse(&bytes[..end]) {
                    Ok(None) => {}
                    other => prop_assert_eq!(other, whole),
                }
            }
        }
    }
}
