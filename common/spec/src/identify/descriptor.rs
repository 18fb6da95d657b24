//! The Namespace Identification Descriptor list (NVM Express Base 2.0, section 5.17.2.3), CNS 03h.

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::{CommandSet, DATA_LEN};
use crate::macros::{open_enum, wire};

open_enum! {
    /// Namespace Identifier Type (NIDT).
    pub struct NamespaceIdType(u8) {
        EUI64 = 1 => "IEEE Extended Unique Identifier";
        NGUID = 2 => "Namespace Globally Unique Identifier";
        UUID = 3 => "Namespace UUID";
        COMMAND_SET = 4 => "Command Set Identifier";
    }
}

wire! {
    /// What stands before each identifier.
    #[derive(Copy)]
    pub struct NamespaceDescriptorHeader[4] {
        /// Namespace Identifier Type; 0 ends the list.
        0 => pub nidt: NamespaceIdType,
        /// Namespace Identifier Length, in bytes.
        1 => pub nidl: u8,
        2 => reserved2: [u8; 2],
    }
}

/// One identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor<'a> {
    /// IEEE Extended Unique Identifier, most significant byte first.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier, most significant byte first.
    Nguid([u8; 16]),
    /// Namespace UUID, in the byte order of RFC 4122.
    Uuid([u8; 16]),
    /// The I/O command set of the namespace.
    CommandSet(CommandSet),
    /// An identifier of a type that this crate does not know.
    Unknown {
        /// Its type.
        nidt: NamespaceIdType,
        /// Its bytes.
        nid: &'a [u8],
    },
}

impl<'a> NamespaceDescriptor<'a> {
    /// The type of the identifier.
    pub const fn nidt(&self) -> NamespaceIdType {
        match self {
            Self::Eui64(_) => NamespaceIdType::EUI64,
            Self::Nguid(_) => NamespaceIdType::NGUID,
            Self::Uuid(_) => NamespaceIdType::UUID,
            Self::CommandSet(_) => NamespaceIdType::COMMAND_SET,
            Self::Unknown { nidt, .. } => *nidt,
        }
    }

    /// The bytes of the identifier.
    pub fn nid(&self) -> &[u8] {
        match self {
            Self::Eui64(nid) => nid,
            Self::Nguid(nid) | Self::Uuid(nid) => nid,
            Self::CommandSet(command_set) => command_set.as_bytes(),
            Self::Unknown { nid, .. } => nid,
        }
    }

    /// Types the identifier; none when it has not the length of its type.
    fn parse(nidt: NamespaceIdType, nid: &'a [u8]) -> Option<Self> {
        match nidt {
            NamespaceIdType::EUI64 => nid.try_into().ok().map(Self::Eui64),
            NamespaceIdType::NGUID => nid.try_into().ok().map(Self::Nguid),
            NamespaceIdType::UUID => nid.try_into().ok().map(Self::Uuid),
            NamespaceIdType::COMMAND_SET => match nid {
                [csi] => Some(Self::CommandSet(CommandSet(*csi))),
                _ => None,
            },
            _ => Some(Self::Unknown { nidt, nid }),
        }
    }
}

/// Why a descriptor is not one, or does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// An identifier has not the length of its type.
    Length {
        /// Offset of the descriptor in the list, in bytes.
        offset: usize,
        /// Its type.
        nidt: NamespaceIdType,
        /// Its length, in bytes.
        nidl: u8,
    },
    /// The list ends within a descriptor.
    Truncated {
        /// Offset of the descriptor in the list, in bytes.
        offset: usize,
    },
    /// There is no room in the list for one more descriptor, or its identifier has more than 255 bytes.
    Full,
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { offset, nidt, nidl } => {
                write!(f, "the descriptor at byte {offset} has {nidl} bytes of {nidt}")
            }
            Self::Truncated { offset } => write!(f, "the list ends within the descriptor at byte {offset}"),
            Self::Full => f.write_str("the descriptor does not fit the list"),
        }
    }
}

impl core::error::Error for DescriptorError {}

/// The descriptors in a list, up to its end or to the first error.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptors<'a> {
    list: &'a [u8],
    offset: usize,
    ended: bool,
}

impl<'a> NamespaceDescriptors<'a> {
    /// Reads the list in these bytes.
    pub const fn new(list: &'a [u8]) -> Self {
        Self { list, offset: 0, ended: false }
    }

    /// The descriptor at the current offset, and the offset behind it; none at the end of the list.
    fn read(&self) -> Result<Option<(NamespaceDescriptor<'a>, usize)>, DescriptorError> {
        let offset = self.offset;
        let rest = self.list.get(offset..).unwrap_or_default();
        let truncated = DescriptorError::Truncated { offset };
        if matches!(rest.first(), None | Some(0)) {
            return Ok(None);
        }
        let (header, rest) = NamespaceDescriptorHeader::ref_from_prefix(rest).map_err(|_| truncated)?;
        let (nidt, nidl) = (header.nidt, header.nidl);
        let nid = rest.get(..usize::from(nidl)).ok_or(truncated)?;
        let wrong = DescriptorError::Length { offset, nidt, nidl };
        let descriptor = NamespaceDescriptor::parse(nidt, nid).ok_or(wrong)?;
        Ok(Some((descriptor, offset + NamespaceDescriptorHeader::SIZE + nid.len())))
    }
}

impl<'a> Iterator for NamespaceDescriptors<'a> {
    type Item = Result<NamespaceDescriptor<'a>, DescriptorError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.read() {
            Ok(Some((descriptor, offset))) => {
                self.offset = offset;
                Some(Ok(descriptor))
            }
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        }
    }
}

/// A list that is being written.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptorList {
    bytes: [u8; DATA_LEN],
    len: usize,
}

impl NamespaceDescriptorList {
    /// A list without descriptors.
    pub const fn new() -> Self {
        Self { bytes: [0; DATA_LEN], len: 0 }
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// When it does not fit, or its type is 0, which would end the list.
    pub fn push(&mut self, descriptor: &NamespaceDescriptor<'_>) -> Result<(), DescriptorError> {
        let (nidt, nid) = (descriptor.nidt(), descriptor.nid());
        let nidl = u8::try_from(nid.len()).map_err(|_| DescriptorError::Full)?;
        if nidt.0 == 0 {
            return Err(DescriptorError::Length { offset: self.len, nidt, nidl });
        }
        let header = NamespaceDescriptorHeader { nidt, nidl, ..NamespaceDescriptorHeader::zeroed() };
        let end = self.len + NamespaceDescriptorHeader::SIZE + nid.len();
        let place = self.bytes.get_mut(self.len..end).ok_or(DescriptorError::Full)?;
        let (front, back) = place.split_at_mut(NamespaceDescriptorHeader::SIZE);
        front.copy_from_slice(header.as_bytes());
        back.copy_from_slice(nid);
        self.len = end;
        Ok(())
    }

    /// The data of the Identify command: the descriptors, padded with zeroes.
    pub const fn as_bytes(&self) -> &[u8; DATA_LEN] {
        &self.bytes
    }
}

impl Default for NamespaceDescriptorList {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_has_its_golden_bytes() {
        let mut list = NamespaceDescriptorList::new();
        list.push(&NamespaceDescriptor::Uuid([0x11; 16])).unwrap();
        list.push(&NamespaceDescriptor::CommandSet(CommandSet::NVM)).unwrap();
        let bytes = list.as_bytes();
        assert_eq!(bytes[..6], [3, 16, 0, 0, 0x11, 0x11]);
        assert_eq!(bytes[19..27], [0x11, 4, 1, 0, 0, 0, 0, 0]);
        let read = NamespaceDescriptors::new(bytes).collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(
            read,
            [NamespaceDescriptor::Uuid([0x11; 16]), NamespaceDescriptor::CommandSet(CommandSet::NVM)]
        );
    }

    #[test]
    fn an_identifier_of_the_wrong_length_is_an_error_and_the_end() {
        let bytes = [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 1, 0, 0, 0];
        let mut read = NamespaceDescriptors::new(&bytes);
        assert_eq!(read.next(), Some(Ok(NamespaceDescriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8]))));
        let error = DescriptorError::Length { offset: 12, nidt: NamespaceIdType::NGUID, nidl: 8 };
        assert_eq!(read.next(), Some(Err(error)));
        assert_eq!(read.next(), None);
        let text = "the descriptor at byte 12 has 8 bytes of Namespace Globally Unique Identifier";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_list_may_end_after_a_descriptor_and_not_within() {
        let bytes = [4, 1, 0, 0, 2];
        assert!(NamespaceDescriptors::new(&bytes).all(|descriptor| descriptor.is_ok()));
        for end in 1..bytes.len() {
            let mut read = NamespaceDescriptors::new(&bytes[..end]);
            assert_eq!(read.next(), Some(Err(DescriptorError::Truncated { offset: 0 })), "{end} bytes");
        }
        assert_eq!(NamespaceDescriptors::new(&[]).next(), None);
    }

    #[test]
    fn a_full_list_takes_no_descriptor_more() {
        let mut list = NamespaceDescriptorList::new();
        for _ in 0..DATA_LEN / 20 {
            list.push(&NamespaceDescriptor::Nguid([7; 16])).unwrap();
        }
        let before = *list.as_bytes();
        assert_eq!(list.push(&NamespaceDescriptor::Uuid([8; 16])), Err(DescriptorError::Full));
        assert_eq!(list.as_bytes(), &before);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read_and_what_was_read_can_be_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..DATA_LEN),
        ) {
            let mut list = NamespaceDescriptorList::new();
            let read: Vec<_> = NamespaceDescriptors::new(&bytes).map_while(Result::ok).collect();
            for descriptor in &read {
                list.push(descriptor).unwrap();
            }
            let again: Vec<_> = NamespaceDescriptors::new(list.as_bytes()).map(Result::unwrap).collect();
            prop_assert_eq!(read, again);
        }
    }
}
