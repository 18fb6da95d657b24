//! The protection of records in this process (RFC 8446, section 5.2).

use std::fmt;
use std::ops::Range;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey};
use ringfab_auth::CipherSuite;

use crate::alert::Alert;
use crate::control::{Control, ControlRecords};
use crate::error::TlsError;
use crate::header::{Header, wanted};
use crate::keys::TrafficKeys;
use crate::wire::{ContentType, HEADER_BYTES, PLAINTEXT_BYTES_MAX, Role};

const TAG_BYTES: usize = MAX_TAG_LEN;

/// What a sealed record has beside its plaintext: header, content type, tag.
pub const SEALED_OVERHEAD: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// How many records keys seal at most.
///
/// RFC 8446 (section 5.5) asks for new keys after 2^24.5 records of full length, which are 388 GB: the chance to tell
/// them from random bytes (the number of blocks, squared, over 2^129) is 2^-60 then. New keys are those of a KeyUpdate,
/// which Linux does not take for NVMe/TCP, or of a new connection, for which its hosts pause for ten seconds. At 1 GB/s
/// that would be every six minutes. So the limit here is 2^32 records, 70 TB, with a chance of 2^-45. Linux itself
/// has no limit but the 2^64 numbers of records.
pub const RECORDS_MAX: u64 = 1 << 32;

/// Keys in the form that the cipher wants.
struct Protection {
    keys: TrafficKeys,
    cipher: LessSafeKey,
}

impl Protection {
    fn new(keys: TrafficKeys) -> Self {
        let algorithm = match keys.suite() {
            CipherSuite::Aes128GcmSha256 => &AES_128_GCM,
            CipherSuite::Aes256GcmSha384 => &AES_256_GCM,
        };
        let key =
            UnboundKey::new(algorithm, keys.key()).expect("a key has the length that its suite asks for");
        Self { keys, cipher: LessSafeKey::new(key) }
    }

    fn nonce(&self) -> Nonce {
        Nonce::assume_unique_for_key(self.keys.nonce())
    }

    /// Encrypts what lies behind the header in `record`, but for the tag, which it adds.
    fn seal(&mut self, record: &mut [u8]) {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let (plaintext, tag_place) = body.split_at_mut(body.len() - TAG_BYTES);
        let sealed = self.cipher.seal_in_place_separate_tag(self.nonce(), Aad::from(header), plaintext);
        tag_place.copy_from_slice(sealed.expect("a record is short enough for the cipher").as_ref());
        self.keys.count();
    }

    /// Decrypts a record in place. Where its content is, and what kind it has.
    fn open(&mut self, record: &mut [u8]) -> Result<(ContentType, Range<usize>), TlsError> {
        if record.len() < SEALED_OVERHEAD {
            return Err(TlsError::Undecryptable);
        }
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let opened = self.cipher.open_in_place(self.nonce(), Aad::from(header), body);
        let plaintext = opened.map_err(|_| TlsError::Undecryptable)?;
        self.keys.count();
        if plaintext.len() > PLAINTEXT_BYTES_MAX + 1 {
            return Err(TlsError::RecordOverflow(plaintext.len()));
        }
        // Padding: zeroes behind the type.
        let Some(end) = plaintext.iter().rposition(|&byte| byte != 0) else {
            return Err(TlsError::OutOfOrder("a record has no content but padding"));
        };
        let content = ContentType::from_number(plaintext[end])
            .filter(|&content| content != ContentType::ChangeCipherSpec)
            .ok_or(TlsError::OutOfOrder("a record has a content that is not known"))?;
        if end == 0 && content != ContentType::ApplicationData {
            return Err(TlsError::OutOfOrder("a record other than data is empty"));
        }
        Ok((content, HEADER_BYTES..HEADER_BYTES + end))
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.keys.fmt(f)
    }
}

/// Seals records. It allocates nothing but for [`Self::new`] and [`Self::update`].
#[derive(Debug)]
pub struct Sealer(Protection);

impl Sealer {
    /// Seals with these keys.
    pub fn new(keys: TrafficKeys) -> Self {
        Self(Protection::new(keys))
    }

    /// Makes one record at the beginning of `output`: the plaintext of `pieces`, one behind the other. Returns how many
    /// bytes the record has, [`SEALED_OVERHEAD`] more than the pieces.
    ///
    /// # Errors
    /// The pieces have more bytes than [`PLAINTEXT_BYTES_MAX`], or `output` has too few. Or the keys have sealed
    /// [`RECORDS_MAX`] records: then the connection has to end, for which an alert can still be sealed.
    pub fn seal(
        &mut self,
        content: ContentType,
        pieces: &[&[u8]],
        output: &mut [u8],
    ) -> Result<usize, TlsError> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let record = output.get_mut(..length + SEALED_OVERHEAD).filter(|_| length <= PLAINTEXT_BYTES_MAX);
        let record = record.ok_or(TlsError::Sealing(length))?;
        let mut rest = &mut record[HEADER_BYTES..];
        for piece in pieces {
            let (place, behind) = rest.split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = behind;
        }
        self.seal_in_place(content, record)?;
        Ok(record.len())
    }

    /// Makes a record of all of `record`, in which the plaintext lies behind the room for the header already.
    ///
    /// # Errors
    /// As for [`Self::seal`].
    pub fn seal_in_place(&mut self, content: ContentType, record: &mut [u8]) -> Result<(), TlsError> {
        if self.0.keys.records() >= RECORDS_MAX && content != ContentType::Alert {
            return Err(TlsError::KeysWorn);
        }
        let bytes = record.len();
        if !(SEALED_OVERHEAD..=SEALED_OVERHEAD + PLAINTEXT_BYTES_MAX).contains(&bytes) {
            return Err(TlsError::Sealing(bytes));
        }
        let header = Header { content: ContentType::ApplicationData, length: bytes - HEADER_BYTES };
        record[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        record[bytes - TAG_BYTES - 1] = content.number();
        self.0.seal(record);
        Ok(())
    }

    /// Seals a KeyUpdate that asks for none, and goes on with the next keys. Linux takes none from a peer of NVMe/TCP:
    /// only a peer that has sent one itself gets one.
    ///
    /// # Errors
    /// As for [`Self::seal`].
    pub fn update(&mut self, output: &mut [u8]) -> Result<usize, TlsError> {
        let length = self.seal(ContentType::Handshake, &[&KEY_UPDATE], output)?;
        *self = Self::new(self.0.keys.next());
        Ok(length)
    }

    /// Seals an alert: close_notify, or that of an error.
    ///
    /// # Errors
    /// `output` has too few bytes.
    pub fn alert(&mut self, alert: Alert, output: &mut [u8]) -> Result<usize, TlsError> {
        self.seal(ContentType::Alert, &[&alert.to_bytes()], output)
    }

    /// The keys, with the number of the next record.
    pub fn keys(&self) -> &TrafficKeys {
        &self.0.keys
    }
}

/// A KeyUpdate that asks for none.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// What a record was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data: these bytes of the record.
    Data(Range<usize>),
    /// Nothing for the application.
    Nothing,
    /// The peer has updated its keys and asks for the same: call [`Sealer::update`] before the next data.
    UpdateRequested,
    /// The peer sends no more (close_notify).
    Closed,
}

/// How many records without data a peer sends one after the other. Each costs as much as one with data, and a
/// KeyUpdate more: a peer could send nothing else. OpenSSL and BoringSSL have the same limit.
pub const WITHOUT_DATA_MAX: u8 = 32;

/// Opens records, and follows what they say of keys. Data allocates nothing.
#[derive(Debug)]
pub struct Opener {
    protection: Protection,
    control: ControlRecords,
    /// Records without data since the last one with data.
    without_data: u8,
}

impl Opener {
    /// Opens what the peer of this end has sealed with these keys.
    pub fn new(keys: TrafficKeys, role: Role) -> Self {
        Self { protection: Protection::new(keys), control: ControlRecords::new(role), without_data: 0 }
    }

    /// How many more bytes of the stream complete the record that `unread` begins with: those of the header first, then
    /// those of the body. Zero: it is complete, or [`Self::open`] will say what is wrong with its header.
    pub fn wanted(unread: &[u8]) -> usize {
        wanted(unread)
    }

    /// Opens exactly one record, in place.
    ///
    /// # Errors
    /// The record, or what it carries, is none that the peer may send. The connection has to end.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, TlsError> {
        let (content, range) = self.decrypt(record)?;
        if content == ContentType::ApplicationData && !range.is_empty() {
            self.control.data()?;
            self.without_data = 0;
            return Ok(Opened::Data(range));
        }
        if self.without_data == WITHOUT_DATA_MAX {
            return Err(TlsError::OutOfOrder("too many records without data follow one another"));
        }
        self.without_data += 1;
        if content == ContentType::ApplicationData {
            self.control.data()?;
            return Ok(Opened::Data(range));
        }
        Ok(match self.control.receive(content, &record[range])? {
            Control::Nothing => Opened::Nothing,
            Control::Closed => Opened::Closed,
            Control::KeyUpdate { requested } => {
                self.protection = Protection::new(self.protection.keys.next());
                if requested { Opened::UpdateRequested } else { Opened::Nothing }
            }
        })
    }

    /// Opens a record of the handshake, which has its own rules for what it carries.
    pub(crate) fn decrypt(&mut self, record: &mut [u8]) -> Result<(ContentType, Range<usize>), TlsError> {
        match Header::of(record)?.content {
            ContentType::ApplicationData => self.protection.open(record),
            _ => Err(TlsError::OutOfOrder("a record is not encrypted")),
        }
    }

    /// The keys, with the number of the next record.
    pub fn keys(&self) -> &TrafficKeys {
        &self.protection.keys
    }
}

#[cfg(test)]
mod tests;
