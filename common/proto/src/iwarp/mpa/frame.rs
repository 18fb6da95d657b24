//! The frames themselves: 16 bytes of key, flags, revision, private data.

use ringfab_spec::iwarp::{EnhancedHeader, InboundDepth, MpaFlags, MpaHeader, OutboundDepth};
use ringfab_spec::{FromBytes, IntoBytes};

use super::{MpaError, PRIVATE_DATA_LEN_MAX, ReadySet, Revision};

/// The fields of a frame, apart from its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) markers: bool,
    pub(super) crc: bool,
    pub(super) reject: bool,
    pub(super) revision: Revision,
    pub(super) enhanced: Option<Enhanced>,
}

/// The enhanced fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Enhanced {
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) peer_to_peer: Option<ReadySet>,
}

/// Collects a frame from pieces; holds at most one.
#[derive(Debug)]
pub(super) struct Collector {
    key: [u8; 16],
    bytes: Vec<u8>,
    fields: Option<Fields>,
}

impl Collector {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self { key, bytes: Vec::with_capacity(MpaHeader::SIZE + PRIVATE_DATA_LEN_MAX), fields: None }
    }

    /// Takes bytes up to the end of the frame. Wrong bytes are found as early as they arrive.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<usize, MpaError> {
        let mut consumed = 0;
        loop {
            let want = self.want()?;
            if want == 0 {
                break;
            }
            let piece = &input[consumed..input.len().min(consumed + want)];
            if piece.is_empty() {
                return Ok(consumed);
            }
            self.bytes.extend_from_slice(piece);
            consumed += piece.len();
            self.check_key()?;
        }
        if let (None, Some(header)) = (self.fields, self.header()) {
            self.fields = Some(self.parse(header)?);
        }
        Ok(consumed)
    }

    /// The fields of the frame, once it is complete.
    pub(super) fn fields(&self) -> Option<Fields> {
        self.fields
    }

    /// The revision byte, as soon as the header is there, whether or not it is supported.
    pub(super) fn revision_byte(&self) -> Option<u8> {
        self.header().map(|header| header.revision)
    }

    /// Whether the header announces the enhanced fields.
    pub(super) fn is_enhanced(&self) -> bool {
        self.header().is_some_and(|header| header.revision == 2 && header.flags.enhanced())
    }

    /// The private data for the upper layer, without the enhanced fields.
    pub(super) fn private_data(&self) -> &[u8] {
        let enhanced = self.fields.is_some_and(|fields| fields.enhanced.is_some());
        self.body().get(if enhanced { EnhancedHeader::SIZE } else { 0 }..).unwrap_or_default()
    }

    /// The header, as soon as it is there.
    fn header(&self) -> Option<MpaHeader> {
        MpaHeader::read_from_prefix(&self.bytes).ok().map(|(header, _)| header)
    }

    /// What is there behind the header.
    fn body(&self) -> &[u8] {
        self.bytes.get(MpaHeader::SIZE..).unwrap_or_default()
    }

    /// How many bytes the frame still lacks, as far as they are known to follow.
    fn want(&self) -> Result<usize, MpaError> {
        let Some(header) = self.header() else { return Ok(MpaHeader::SIZE - self.bytes.len()) };
        let announced = header.pd_length.get();
        if usize::from(announced) > PRIVATE_DATA_LEN_MAX {
            return Err(MpaError::PrivateDataLen(announced));
        }
        if !(1..=2).contains(&header.revision) {
            return Err(MpaError::Revision(header.revision));
        }
        Ok(usize::from(announced) - self.body().len())
    }

    fn check_key(&self) -> Result<(), MpaError> {
        let wrong = self.bytes.iter().zip(self.key).position(|(found, expected)| *found != expected);
        let Some(offset) = wrong else { return Ok(()) };
        match self.bytes[..] {
            // Type and header length of an ICReq, an ICResp or a C2HTermReq. Until the third byte is there,
            // the peer may speak NVMe/TCP.
            [0 | 1 | 3] | [0 | 1 | 3, _] => Ok(()),
            [0 | 1, _, 128, ..] | [3, _, 24, ..] => Err(MpaError::NvmeTcp),
            _ => Err(MpaError::Key { offset, found: self.bytes[offset] }),
        }
    }

    fn parse(&self, header: MpaHeader) -> Result<Fields, MpaError> {
        Ok(Fields {
            markers: header.flags.markers(),
            crc: header.flags.crc(),
            reject: header.flags.reject(),
            revision: if header.revision == 1 { Revision::One } else { Revision::Two },
            enhanced: if self.is_enhanced() { Some(self.parse_enhanced(header)?) } else { None },
        })
    }

    fn parse_enhanced(&self, header: MpaHeader) -> Result<Enhanced, MpaError> {
        let Ok((EnhancedHeader { ird, ord }, _)) = EnhancedHeader::read_from_prefix(self.body()) else {
            return Err(MpaError::EnhancedLen(header.pd_length.get()));
        };
        let ready = ReadySet { send: ird.rtr_send(), write: ord.rtr_write(), read: ord.rtr_read() };
        Ok(Enhanced { ird: ird.ird(), ord: ord.ord(), peer_to_peer: ird.peer_to_peer().then_some(ready) })
    }
}

/// Builds a frame.
pub(super) fn build(key: [u8; 16], fields: Fields, private_data: &[u8]) -> Result<Vec<u8>, MpaError> {
    let enhanced = fields.enhanced.map(Enhanced::to_header);
    let enhanced = enhanced.as_ref().map_or(&[][..], |header| header.as_bytes());
    let len = enhanced.len() + private_data.len();
    let announced = match u16::try_from(len) {
        Ok(announced) if len <= PRIVATE_DATA_LEN_MAX => announced,
        _ => return Err(MpaError::PrivateDataTooLong(private_data.len())),
    };
    let revision = if fields.revision == Revision::One { 1 } else { 2 };
    let header = MpaHeader { key, flags: fields.flags(), revision, pd_length: announced.into() };
    Ok([header.as_bytes(), enhanced, private_data].concat())
}

impl Fields {
    fn flags(self) -> MpaFlags {
        let flags = MpaFlags::default().with_markers(self.markers).with_crc(self.crc);
        flags.with_reject(self.reject).with_enhanced(self.enhanced.is_some())
    }
}

impl Enhanced {
    fn to_header(self) -> EnhancedHeader {
        let ready = self.peer_to_peer.unwrap_or_default();
        let ird = InboundDepth::default().with_ird(self.ird).with_rtr_send(ready.send);
        let ord = OutboundDepth::default().with_ord(self.ord).with_rtr_write(ready.write);
        EnhancedHeader {
            ird: ird.with_peer_to_peer(self.peer_to_peer.is_some()),
            ord: ord.with_rtr_read(ready.read),
        }
    }
}
