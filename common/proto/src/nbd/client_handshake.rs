//! A client's side of the fixed newstyle handshake.

use super::{IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, be16, be32, be64, handshake, info, option, reply};

/// What the handshake is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// To use the export: requests follow.
    Use,
    /// To know what the export is: the connection ends then.
    Info,
}

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub bytes: u64,
    /// Transmission flags: [`export`](super::export).
    pub flags: u16,
    /// Whether replies come in chunks.
    pub structured: bool,
    /// What requests have to obey.
    pub block_sizes: BlockSizes,
}

impl ExportInfo {
    /// Whether all of these flags are set.
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// Sizes in bytes that a server asks its clients to obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it; a power of two.
    pub minimum: u32,
    /// What is fast; a power of two.
    pub preferred: u32,
    /// The most that one request may carry.
    pub maximum: u32,
}

impl BlockSizes {
    /// What a server can be expected to take that says nothing (section "Block size constraints").
    pub const DEFAULT: Self = Self { minimum: 1, preferred: 4096, maximum: 32 << 20 };

    fn parse(content: &[u8]) -> Result<Self, HandshakeError> {
        let [minimum, preferred, maximum] = [0, 4, 8].map(|at| be32(content, at));
        let sound = minimum.is_power_of_two()
            && minimum <= 64 << 10
            && preferred.is_power_of_two()
            && preferred >= minimum
            && maximum >= preferred
            && (maximum == u32::MAX || maximum.is_multiple_of(minimum));
        let sizes = Self { minimum, preferred, maximum };
        if sound { Ok(sizes) } else { Err(HandshakeError::BlockSizes(sizes)) }
    }
}

/// Why a client cannot use an export. The texts go on behind the address of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// What answers there is something else.
    #[error("is no NBD server")]
    NotNbd,
    /// The server has only the first form of the handshake, which has no exports.
    #[error("speaks the oldstyle handshake of NBD, which is not supported")]
    Oldstyle,
    /// The server cannot go on after an option that it does not know.
    #[error("does not speak the fixed newstyle handshake of NBD")]
    NotFixed,
    /// There is no such export.
    #[error("has no export named {0:?}")]
    Unknown(String),
    /// The server wants TLS.
    #[error("wants TLS, which is not supported for backings")]
    Tls,
    /// The server refuses.
    #[error("refuses: {0}")]
    Refused(String),
    /// The server gives sizes that cannot be.
    #[error("has impossible block sizes: {0:?}")]
    BlockSizes(BlockSizes),
    /// The server has broken the protocol.
    #[error("breaks the protocol of NBD: {0}")]
    Violation(&'static str),
}

/// The handshake as it goes on: bytes of the server in, bytes for the server out.
#[derive(Debug)]
pub struct ClientHandshake {
    export: String,
    wanted: Wanted,
    state: State,
    /// What has come and was not understood yet.
    input: Vec<u8>,
    output: Vec<u8>,
    structured: bool,
    /// Whether the server leaves out the padding behind the answer to EXPORT_NAME.
    no_zeroes: bool,
    /// Size and flags, as far as they were told.
    told: Option<(u64, u16)>,
    block_sizes: BlockSizes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// STRUCTURED_REPLY was sent.
    Structured,
    /// GO or INFO was sent.
    Asked,
    /// EXPORT_NAME was sent, to a server that has no GO.
    ExportName,
    Done,
}

/// The longest reply to an option that makes sense: a name or a text has 4,096 bytes at most.
const REPLY_BYTES_MAX: u32 = 16 << 10;

/// Bytes of a reply to an option without its content.
const REPLY_HEAD_BYTES: usize = 20;

/// A reply to an option.
struct OptionReply {
    kind: u32,
    content: Vec<u8>,
}

impl OptionReply {
    /// What the server says for people, if it does.
    fn text(&self, otherwise: &str) -> String {
        let text = String::from_utf8_lossy(&self.content).trim().to_owned();
        if text.is_empty() { otherwise.to_owned() } else { text }
    }
}

impl ClientHandshake {
    /// A handshake for an export; its name may be empty, which is the server's default one.
    pub fn new(export: &str, wanted: Wanted) -> Self {
        Self {
            export: export.to_owned(),
            wanted,
            state: State::Greeting,
            input: Vec::new(),
            output: Vec::new(),
            structured: false,
            no_zeroes: false,
            told: None,
            block_sizes: BlockSizes::DEFAULT,
        }
    }

    /// Takes what the server has sent. Returns what the export is when the handshake is over: the server sends nothing
    /// more before it is asked, and [`ClientHandshake::take_output`] may have a last word for it.
    ///
    /// # Errors
    /// Why this cannot be.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<ExportInfo>, HandshakeError> {
        self.input.extend_from_slice(bytes);
        while self.state != State::Done {
            let goes_on = match self.state {
                State::Greeting => self.greeting()?,
                State::ExportName => self.export_name()?,
                _ => match self.option_reply()? {
                    Some(reply) if self.state == State::Structured => self.structured(&reply),
                    Some(reply) => self.answer(&reply)?,
                    None => false,
                },
            };
            if !goes_on {
                return Ok(None);
            }
        }
        if !self.input.is_empty() {
            return Err(HandshakeError::Violation("it sends more than was asked for"));
        }
        let (bytes, flags) = self.told.expect("it is not over before");
        Ok(Some(ExportInfo { bytes, flags, structured: self.structured, block_sizes: self.block_sizes }))
    }

    /// What is to be sent to the server now.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    fn greeting(&mut self) -> Result<bool, HandshakeError> {
        if self.input.len() < 8 {
            let magic = NBDMAGIC.to_be_bytes();
            let begins_so = magic.starts_with(&self.input);
            return if begins_so { Ok(false) } else { Err(HandshakeError::NotNbd) };
        }
        if be64(&self.input, 0) != NBDMAGIC {
            return Err(HandshakeError::NotNbd);
        }
        if self.input.len() < 18 {
            return Ok(false);
        }
        match be64(&self.input, 8) {
            IHAVEOPT => {}
            OLDSTYLE => return Err(HandshakeError::Oldstyle),
            _ => return Err(HandshakeError::NotNbd),
        }
        let flags = be16(&self.input, 16);
        if flags & handshake::FIXED_NEWSTYLE == 0 {
            return Err(HandshakeError::NotFixed);
        }
        self.input.drain(..18);
        self.no_zeroes = flags & handshake::NO_ZEROES != 0;
        let answer = handshake::FIXED_NEWSTYLE | flags & handshake::NO_ZEROES;
        self.output.extend_from_slice(&u32::from(answer).to_be_bytes());
        self.ask(option::STRUCTURED_REPLY, &[]);
        self.state = State::Structured;
        Ok(true)
    }

    /// Whether there are structured replies, and on with the export.
    fn structured(&mut self, reply: &OptionReply) -> bool {
        self.structured = reply.kind == reply::ACK;
        let name = self.export.as_bytes();
        let mut content = (name.len() as u32).to_be_bytes().to_vec();
        content.extend_from_slice(name);
        content.extend_from_slice(&1_u16.to_be_bytes());
        content.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        self.ask(self.asks(), &content);
        self.state = State::Asked;
        true
    }

    const fn asks(&self) -> u32 {
        match self.wanted {
            Wanted::Use => option::GO,
            Wanted::Info => option::INFO,
        }
    }

    fn answer(&mut self, reply: &OptionReply) -> Result<bool, HandshakeError> {
        match reply.kind {
            reply::INFO => self.info(&reply.content)?,
            reply::ACK if self.told.is_none() => {
                return Err(HandshakeError::Violation("it does not say how large the export is"));
            }
            reply::ACK => {
                if self.wanted == Wanted::Info {
                    self.ask(option::ABORT, &[]);
                    // What it answers to that does not matter.
                    self.input.clear();
                }
                self.state = State::Done;
            }
            // The option is older than the server's program.
            reply::ERR_UNSUP => {
                let name = self.export.clone();
                self.ask(option::EXPORT_NAME, name.as_bytes());
                self.state = State::ExportName;
            }
            _ => return Err(self.refusal(reply)),
        }
        Ok(true)
    }

    fn info(&mut self, content: &[u8]) -> Result<(), HandshakeError> {
        if content.len() < 2 {
            return Err(HandshakeError::Violation("it says nothing of the export"));
        }
        match (be16(content, 0), content.len()) {
            (info::EXPORT, 12) => self.told = Some((be64(content, 2), be16(content, 10))),
            (info::BLOCK_SIZE, 14) => self.block_sizes = BlockSizes::parse(&content[2..])?,
            (info::EXPORT | info::BLOCK_SIZE, _) => {
                return Err(HandshakeError::Violation("what it says of the export has a wrong length"));
            }
            _ => {}
        }
        Ok(())
    }

    /// What a server answers that has only the oldest option: no error, but the end of the connection instead.
    fn export_name(&mut self) -> Result<bool, HandshakeError> {
        let padding = if self.no_zeroes { 0 } else { 124 };
        if self.input.len() < 10 + padding {
            return Ok(false);
        }
        self.told = Some((be64(&self.input, 0), be16(&self.input, 8)));
        self.input.drain(..10 + padding);
        self.state = State::Done;
        Ok(true)
    }

    fn refusal(&self, reply: &OptionReply) -> HandshakeError {
        match reply.kind {
            reply::ERR_UNKNOWN => HandshakeError::Unknown(self.export.clone()),
            reply::ERR_TLS_REQD => HandshakeError::Tls,
            reply::ERR_POLICY => HandshakeError::Refused(reply.text("its policy forbids it")),
            reply::ERR_SHUTDOWN => HandshakeError::Refused(reply.text("it is about to end")),
            reply::ERR_INVALID => HandshakeError::Refused(reply.text("it takes the question for wrong")),
            kind => HandshakeError::Refused(reply.text(&format!("error {:#x}", kind & 0x7fff_ffff))),
        }
    }

    fn ask(&mut self, what: u32, content: &[u8]) {
        self.output.extend_from_slice(&IHAVEOPT.to_be_bytes());
        self.output.extend_from_slice(&what.to_be_bytes());
        self.output.extend_from_slice(&(content.len() as u32).to_be_bytes());
        self.output.extend_from_slice(content);
    }

    /// The next reply to the option that was sent last.
    fn option_reply(&mut self) -> Result<Option<OptionReply>, HandshakeError> {
        if self.input.len() < REPLY_HEAD_BYTES {
            return Ok(None);
        }
        if be64(&self.input, 0) != OPTION_REPLY_MAGIC {
            return Err(HandshakeError::Violation("a reply begins with a wrong number"));
        }
        let (what, kind, length) = (be32(&self.input, 8), be32(&self.input, 12), be32(&self.input, 16));
        let asked = if self.state == State::Structured { option::STRUCTURED_REPLY } else { self.asks() };
        if what != asked {
            return Err(HandshakeError::Violation("it answers another question"));
        }
        if length > REPLY_BYTES_MAX {
            return Err(HandshakeError::Violation("a reply is too long"));
        }
        let end = REPLY_HEAD_BYTES + length as usize;
        if self.input.len() < end {
            return Ok(None);
        }
        let content = self.input[REPLY_HEAD_BYTES..end].to_vec();
        self.input.drain(..end);
        Ok(Some(OptionReply { kind, content }))
    }
}

/// The second magic of the oldstyle handshake.
const OLDSTYLE: u64 = 0x0000_4202_8186_1253;

#[cfg(test)]
mod tests {
    use super::super::export;
    use super::*;

    const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\0\x03";

    fn reply(what: u32, kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&what.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&(content.len() as u32).to_be_bytes());
        bytes.extend_from_slice(content);
        bytes
    }

    fn export_info(bytes: u64, flags: u16) -> Vec<u8> {
        let mut content = info::EXPORT.to_be_bytes().to_vec();
        content.extend_from_slice(&bytes.to_be_bytes());
        content.extend_from_slice(&flags.to_be_bytes());
        content
    }

    fn block_sizes(sizes: [u32; 3]) -> Vec<u8> {
        let mut content = info::BLOCK_SIZE.to_be_bytes().to_vec();
        sizes.iter().for_each(|size| content.extend_from_slice(&size.to_be_bytes()));
        content
    }

    /// A server that has all, as it answers to GO.
    fn answers() -> Vec<u8> {
        [
            GREETING.to_vec(),
            reply(option::STRUCTURED_REPLY, reply::ACK, &[]),
            reply(option::GO, reply::INFO, &block_sizes([512, 4096, 1 << 20])),
            reply(option::GO, reply::INFO, &export_info(1 << 30, export::HAS_FLAGS | export::SEND_FLUSH)),
            reply(option::GO, reply::ACK, &[]),
        ]
        .concat()
    }

    #[test]
    fn an_export_is_chosen_however_the_bytes_come() {
        let expected = ExportInfo {
            bytes: 1 << 30,
            flags: export::HAS_FLAGS | export::SEND_FLUSH,
            structured: true,
            block_sizes: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20 },
        };
        for piece in [1, 7, 1000] {
            let mut client = ClientHandshake::new("disk", Wanted::Use);
            let (mut info, mut said) = (None, Vec::new());
            for bytes in answers().chunks(piece) {
                assert_eq!(info, None, "it is over with the last byte");
                info = client.receive(bytes).expect("no error");
                said.extend(client.take_output());
            }
            assert_eq!(info, Some(expected));
            assert_eq!(said[..4], [0, 0, 0, 3]);
            assert_eq!(said[4..20], *b"IHAVEOPT\0\0\0\x08\0\0\0\0");
            assert_eq!(said[20..], *b"IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04disk\0\x01\0\x03");
        }
    }

    #[test]
    fn an_old_server_is_asked_in_the_old_way() {
        let mut client = ClientHandshake::new("disk", Wanted::Use);
        let mut greeting = GREETING;
        greeting[17] = 1;
        let unknown = |what| reply(what, reply::ERR_UNSUP, &[]);
        for bytes in [greeting.to_vec(), unknown(option::STRUCTURED_REPLY), unknown(option::GO)] {
            assert_eq!(client.receive(&bytes), Ok(None));
        }
        assert!(client.take_output().ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
        let mut last = 4096_u64.to_be_bytes().to_vec();
        last.extend_from_slice(&[0, 1]);
        last.resize(134, 0);
        let info = client.receive(&last).expect("no error").expect("an export");
        assert_eq!((info.bytes, info.structured, info.block_sizes), (4096, false, BlockSizes::DEFAULT));
    }

    #[test]
    fn who_only_asks_says_goodbye() {
        let mut client = ClientHandshake::new("", Wanted::Info);
        let to_info = |kind, content: &[u8]| reply(option::INFO, kind, content);
        let bytes = [
            GREETING.to_vec(),
            reply(option::STRUCTURED_REPLY, reply::ACK, &[]),
            to_info(reply::INFO, &export_info(512, 1)),
            to_info(reply::ACK, &[]),
        ];
        assert!(client.receive(&bytes.concat()).expect("no error").is_some());
        assert!(client.take_output().ends_with(b"IHAVEOPT\0\0\0\x02\0\0\0\0"));
    }

    #[test]
    fn a_refusal_is_a_sentence() {
        let refused = |kind, text: &str| {
            let mut client = ClientHandshake::new("disk", Wanted::Use);
            let structured = reply(option::STRUCTURED_REPLY, reply::ERR_UNSUP, &[]);
            let bytes = [GREETING.to_vec(), structured, reply(option::GO, kind, text.as_bytes())].concat();
            client.receive(&bytes).expect_err("a refusal").to_string()
        };
        assert_eq!(refused(reply::ERR_UNKNOWN, "?"), "has no export named \"disk\"");
        assert_eq!(refused(reply::ERR_TLS_REQD, ""), "wants TLS, which is not supported for backings");
        assert_eq!(refused(reply::ERR_POLICY, "not you\n"), "refuses: not you");
        assert_eq!(refused(reply::ERR_POLICY, ""), "refuses: its policy forbids it");
        assert_eq!(refused(1 << 31 | 77, ""), "refuses: error 0x4d");
    }

    #[test]
    fn what_is_no_nbd_server_is_told_from_one_that_breaks_the_protocol() {
        let first = |bytes: &[u8]| ClientHandshake::new("", Wanted::Use).receive(bytes);
        assert_eq!(first(b"SSH-2.0"), Err(HandshakeError::NotNbd));
        assert_eq!(first(b"NBDMAGI"), Ok(None));
        assert_eq!(first(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0"), Err(HandshakeError::Oldstyle));
        assert_eq!(first(b"NBDMAGICIHAVEOPT\0\0"), Err(HandshakeError::NotFixed));
        let mut late = answers();
        late.push(0);
        assert!(matches!(first(&late), Err(HandshakeError::Violation(_))));
        for sizes in [[0, 4096, 8192], [512, 256, 8192], [512, 4096, 2048], [3, 4096, 8192]] {
            assert!(matches!(
                BlockSizes::parse(&block_sizes(sizes)[2..]),
                Err(HandshakeError::BlockSizes(_))
            ));
        }
        let mut long = reply(option::STRUCTURED_REPLY, reply::ACK, &[]);
        long[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(first(&[&GREETING[..], &long].concat()), Err(HandshakeError::Violation(_))));
    }
}
