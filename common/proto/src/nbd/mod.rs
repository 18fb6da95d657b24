//! The bytes of the NBD protocol (doc/proto.md of the NetworkBlockDevice project), for servers and clients. All numbers
//! are big endian. Here is what both need and what servers write; [`ClientHandshake`] and [`ReplyHead`] are for
//! clients.

mod client_handshake;
mod reply_head;

pub use client_handshake::{BlockSizes, ClientHandshake, ExportInfo, HandshakeError, Wanted};
pub use reply_head::{ReplyHead, Violation};

/// First bytes of a server.
pub const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second magic of the newstyle handshake, and the first of every option.
pub const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, and the client's answers to them.
pub mod handshake {
    /// The fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No padding behind the answer to EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options.
pub mod option {
    /// Choose an export and begin, without a reply that could be an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export and begin.
    pub const GO: u32 = 7;
    /// Replies come in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// A piece of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The server does not let this client have it.
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    /// The option has wrong data.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// The connection has to be protected by TLS first.
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The server ends.
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    /// The client has to ask for block sizes, and to obey them.
    pub const ERR_BLOCK_SIZE_REQD: u32 = 1 << 31 | 8;
    /// The option has too much data.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information of INFO and GO.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Least, preferred and largest sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod export {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// It cannot be changed.
    pub const READ_ONLY: u16 = 1 << 1;
    /// It has Flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// It has the flag FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// It has Trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// It has Write Zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// It has the flag DF.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see the same: a flush of one covers writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Command flags.
pub mod flag {
    /// Reach stable storage before the reply.
    pub const FUA: u16 = 1;
    /// The space stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply is not split.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the head of a chunk of a structured reply.
pub const CHUNK_HEAD_BYTES: usize = 20;

/// Kinds of chunk of a structured reply.
pub mod chunk {
    /// Nothing.
    pub const NONE: u16 = 0;
    /// Data of an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Bytes of an offset that are zero, without data.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error, with a text.
    pub const ERROR: u16 = 1 << 15 | 1;
    /// An error at an offset, with a text.
    pub const ERROR_OFFSET: u16 = 1 << 15 | 2;
    /// The last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
}

/// An error as it goes over the wire: the numbers are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// It cannot be changed.
    Perm = 1,
    /// The disk has failed.
    Io = 5,
    /// The request is wrong.
    Inval = 22,
    /// There is no space, or it is beyond the end.
    NoSpc = 28,
    /// It cannot be one chunk.
    Overflow = 75,
    /// There is no such command.
    NotSup = 95,
    /// The server ends.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read bytes.
    Read,
    /// Write the payload.
    Write,
    /// End the connection; there is no reply.
    Disconnect,
    /// Make what was written durable.
    Flush,
    /// The bytes are not needed any more.
    Trim,
    /// Make bytes read as zeroes.
    WriteZeroes,
    /// Describe bytes by extents.
    BlockStatus,
    /// One that we do not know.
    Other(u16),
}

/// A request as it came; nothing but its magic has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command flags: [`flag`].
    pub flags: u16,
    /// What it asks for.
    pub command: Command,
    /// The client's own; the reply has it, too.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
}

impl Command {
    const fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Other(number) => number,
        }
    }
}

impl Request {
    /// As it goes over the wire, without its payload.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.number().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Reads a request; `None` when the magic is wrong, after which nothing of the stream can be trusted.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        if be32(bytes, 0) != REQUEST_MAGIC {
            return None;
        }
        let command = match be16(bytes, 6) {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        Some(Self {
            flags: be16(bytes, 4),
            command,
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            length: be32(bytes, 24),
        })
    }

    /// Bytes that follow the request.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == Command::Write { self.length } else { 0 }
    }
}

/// A simple reply; zero stands for success.
pub fn simple_reply(error: Option<Errno>, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, |error| error as u32).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Bytes of [`data_chunk`].
pub const DATA_CHUNK_BYTES: usize = CHUNK_HEAD_BYTES + 8;

/// The head of a chunk that carries `length` bytes of `offset`.
pub fn data_chunk(cookie: u64, offset: u64, length: u32, done: bool) -> [u8; DATA_CHUNK_BYTES] {
    let mut bytes = [0; DATA_CHUNK_BYTES];
    bytes[..CHUNK_HEAD_BYTES].copy_from_slice(&chunk_head(chunk::OFFSET_DATA, cookie, length + 8, done));
    bytes[CHUNK_HEAD_BYTES..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// A last chunk without content: success.
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEAD_BYTES] {
    chunk_head(chunk::NONE, cookie, 0, true)
}

/// The metadata context that says what is allocated.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";

/// Bytes of an export that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many bytes.
    pub length: u32,
    /// Nothing is allocated for them.
    pub hole: bool,
    /// They read as zeroes.
    pub zero: bool,
}

impl Extent {
    /// As it goes over the wire.
    pub fn to_bytes(self) -> [u8; 8] {
        let flags = u32::from(self.hole) | u32::from(self.zero) << 1;
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..].copy_from_slice(&flags.to_be_bytes());
        bytes
    }
}

/// The only chunk of the reply to a block status request, up to its extents. `context` is the number that the server
/// has given to the metadata context.
pub fn status_chunk(cookie: u64, context: u32, extents: usize) -> [u8; CHUNK_HEAD_BYTES + 4] {
    let mut bytes = [0; CHUNK_HEAD_BYTES + 4];
    let length = 4 + 8 * extents as u32;
    bytes[..CHUNK_HEAD_BYTES].copy_from_slice(&chunk_head(chunk::BLOCK_STATUS, cookie, length, true));
    bytes[CHUNK_HEAD_BYTES..].copy_from_slice(&context.to_be_bytes());
    bytes
}

/// Bytes of an [`error_chunk`] without its text.
pub const ERROR_CHUNK_BYTES: usize = CHUNK_HEAD_BYTES + 6;

/// The last chunk of a request that failed, up to its text of `text_bytes`.
pub fn error_chunk(cookie: u64, error: Errno, text_bytes: u16) -> [u8; ERROR_CHUNK_BYTES] {
    let mut bytes = [0; ERROR_CHUNK_BYTES];
    let length = 6 + u32::from(text_bytes);
    bytes[..CHUNK_HEAD_BYTES].copy_from_slice(&chunk_head(chunk::ERROR, cookie, length, true));
    bytes[CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + 4].copy_from_slice(&(error as u32).to_be_bytes());
    bytes[CHUNK_HEAD_BYTES + 4..].copy_from_slice(&text_bytes.to_be_bytes());
    bytes
}

fn chunk_head(kind: u16, cookie: u64, length: u32, done: bool) -> [u8; CHUNK_HEAD_BYTES] {
    let mut bytes = [0; CHUNK_HEAD_BYTES];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&(if done { chunk::FLAG_DONE } else { 0 }).to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Two bytes at a position as a number. A position beyond the end panics.
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes at a position as a number. A position beyond the end panics.
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes at a position as a number. A position beyond the end panics.
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_as_specified() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[4..8].copy_from_slice(&[0, 1, 0, 1]);
        bytes[8..16].copy_from_slice(b"cookie!!");
        bytes[16..28].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let request = Request::parse(&bytes).expect("a request");
        assert_eq!((request.flags, request.command), (flag::FUA, Command::Write));
        assert_eq!((request.offset, request.length, request.payload_bytes()), (1 << 32, 4096, 4096));
        assert_eq!(request.cookie.to_be_bytes(), *b"cookie!!");
        assert_eq!(request.to_bytes(), bytes);
        bytes[3] ^= 1;
        assert_eq!(Request::parse(&bytes), None);
    }

    #[test]
    fn replies_are_written_as_specified() {
        let reply = simple_reply(Some(Errno::NoSpc), 0x0102_0304_0506_0708);
        assert_eq!(reply, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
        let data = data_chunk(7, 0x1_0000, 512, true);
        assert_eq!(
            data,
            [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8, 0, 0, 0, 0, 0, 1, 0, 0]
        );
        let error = error_chunk(7, Errno::Inval, 3);
        assert_eq!(error[4..8], [0, 1, 0x80, 1]);
        assert_eq!(error[16..], [0, 0, 0, 9, 0, 0, 0, 22, 0, 3]);
        assert_eq!(status_chunk(7, 1, 2)[4..], [0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 20, 0, 0, 0, 1]);
        let extent = Extent { length: 512, hole: true, zero: false };
        assert_eq!(extent.to_bytes(), [0, 0, 2, 0, 0, 0, 0, 1]);
        assert_eq!(Extent { hole: false, zero: true, ..extent }.to_bytes()[7], 2);
        assert_eq!(none_chunk(7)[4..], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(bytes: [u8; REQUEST_BYTES]) {
            let good_magic = be32(&bytes, 0) == REQUEST_MAGIC;
            prop_assert_eq!(Request::parse(&bytes).is_some(), good_magic);
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            prop_assert_eq!(Request::parse(&bytes).map(|request| request.to_bytes()), Some(bytes));
        }
    }
}
