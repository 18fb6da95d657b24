//! Scatter gather list descriptors (NVM Express Base 2.0, section 4.1.2; RDMA Transport 1.0, section 3.2).

use zerocopy::little_endian::U64;

use crate::macros::wire;

wire! {
    /// A descriptor: the data pointer of a command on fabrics, or an entry of a list.
    #[derive(Copy)]
    pub struct SglDescriptor[16] {
        /// Address or offset.
        0 => pub address: U64,
        /// Length and key, in the form of the type.
        8 => rest: [u8; 7],
        /// Type in bits 7:4, subtype in bits 3:0.
        15 => identifier: u8,
    }
}

/// Descriptor types, in bits 7:4 of the identifier.
mod kind {
    pub(super) const DATA_BLOCK: u8 = 0x0;
    pub(super) const KEYED_DATA_BLOCK: u8 = 0x4;
    pub(super) const TRANSPORT_DATA_BLOCK: u8 = 0x5;
}

/// Descriptor subtypes, in bits 3:0 of the identifier.
mod subtype {
    pub(super) const ADDRESS: u8 = 0x0;
    pub(super) const OFFSET: u8 = 0x1;
    pub(super) const TRANSPORT: u8 = 0xa;
    pub(super) const INVALIDATE_KEY: u8 = 0xf;
}

/// A descriptor that can only be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Data Block with the Address subtype: memory of the controller's own bus; not used on fabrics.
    DataBlockAddress {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Data Block with the Offset subtype: data in the capsule.
    DataBlockOffset {
        /// First byte, from the start of the in-capsule data.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Keyed Data Block: memory that the host registered.
    KeyedDataBlock {
        /// First byte.
        address: u64,
        /// Bytes, at most 2^24 - 1.
        length: u32,
        /// Remote key.
        key: u32,
        /// Whether the host asks for its key to be invalidated with the response.
        invalidate: bool,
    },
    /// Transport Data Block with the transport's own subtype: data moved by PDUs of the transport.
    TransportDataBlock {
        /// Bytes.
        length: u32,
    },
}

impl Sgl {
    /// Bytes of the memory that it describes.
    pub fn length(self) -> u32 {
        match self {
            Sgl::DataBlockAddress { length, .. }
            | Sgl::DataBlockOffset { length, .. }
            | Sgl::KeyedDataBlock { length, .. }
            | Sgl::TransportDataBlock { length } => length,
        }
    }
}

/// Why a descriptor is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglError {
    /// The type or its subtype is not one that a command may have here; the identifier byte.
    Identifier(u8),
}

impl core::fmt::Display for SglError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Identifier(identifier) => write!(f, "SGL descriptor identifier {identifier:#04x}"),
        }
    }
}

impl core::error::Error for SglError {}

impl SglDescriptor {
    /// Offset of the identifier byte in the descriptor.
    pub const IDENTIFIER_OFFSET: u16 = 15;

    /// The longest block that a keyed descriptor can name.
    pub const KEYED_LENGTH_MAX: u32 = (1 << 24) - 1;

    /// Data in the capsule.
    pub fn in_capsule(offset: u64, length: u32) -> Self {
        Self::unkeyed(kind::DATA_BLOCK << 4 | subtype::OFFSET, offset, length)
    }

    /// Data that a transport moves by its own PDUs.
    pub fn transport(length: u32) -> Self {
        Self::unkeyed(kind::TRANSPORT_DATA_BLOCK << 4 | subtype::TRANSPORT, 0, length)
    }

    /// Memory that the host registered. A length beyond [`SglDescriptor::KEYED_LENGTH_MAX`] is a programmer's
    /// error and panics.
    pub fn keyed(address: u64, length: u32, key: u32, invalidate: bool) -> Self {
        assert!(length <= Self::KEYED_LENGTH_MAX, "longer than a keyed descriptor can say");
        let subtype = if invalidate { subtype::INVALIDATE_KEY } else { subtype::ADDRESS };
        let ([l0, l1, l2, _], [k0, k1, k2, k3]) = (length.to_le_bytes(), key.to_le_bytes());
        Self {
            address: U64::new(address),
            rest: [l0, l1, l2, k0, k1, k2, k3],
            identifier: kind::KEYED_DATA_BLOCK << 4 | subtype,
        }
    }

    /// The descriptor as a value that can only be valid. The bytes that descriptors without a key reserve (12 to 14)
    /// are not looked at: Linux builds an in-capsule descriptor over the one that the same tag used before, and leaves
    /// bytes of the old key there.
    ///
    /// # Errors
    /// [`SglError`] with the offending byte.
    pub fn parse(&self) -> Result<Sgl, SglError> {
        let [b0, b1, b2, b3, b4, b5, b6] = self.rest;
        let address = self.address.get();
        let length = u32::from_le_bytes([b0, b1, b2, b3]);
        match (self.identifier >> 4, self.identifier & 0xf) {
            (kind::DATA_BLOCK, subtype::ADDRESS) => Ok(Sgl::DataBlockAddress { address, length }),
            (kind::DATA_BLOCK, subtype::OFFSET) => Ok(Sgl::DataBlockOffset { offset: address, length }),
            (kind::TRANSPORT_DATA_BLOCK, subtype::TRANSPORT) => Ok(Sgl::TransportDataBlock { length }),
            (kind::KEYED_DATA_BLOCK, subtype @ (subtype::ADDRESS | subtype::INVALIDATE_KEY)) => {
                Ok(Sgl::KeyedDataBlock {
                    address,
                    length: u32::from_le_bytes([b0, b1, b2, 0]),
                    key: u32::from_le_bytes([b3, b4, b5, b6]),
                    invalidate: subtype == subtype::INVALIDATE_KEY,
                })
            }
            _ => Err(SglError::Identifier(self.identifier)),
        }
    }

    fn unkeyed(identifier: u8, address: u64, length: u32) -> Self {
        let [l0, l1, l2, l3] = length.to_le_bytes();
        Self { address: U64::new(address), rest: [l0, l1, l2, l3, 0, 0, 0], identifier }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_keyed_descriptor_has_its_golden_bytes() {
        let descriptor = SglDescriptor::keyed(0x1122_3344_5566_7788, 0x0001_0203, 0xa1b2_c3d4, true);
        let golden = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 2, 1, 0xd4, 0xc3, 0xb2, 0xa1, 0x4f];
        assert_eq!(descriptor.as_bytes(), golden);
        let kept = SglDescriptor::keyed(0, 1, 2, false);
        assert_eq!(kept.as_bytes()[15], 0x40);
    }

    #[test]
    fn an_in_capsule_descriptor_has_its_golden_bytes() {
        let golden = [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0x01];
        assert_eq!(SglDescriptor::in_capsule(16, 8192).as_bytes(), golden);
        assert_eq!(SglDescriptor::transport(8192).as_bytes()[15], 0x5a);
    }

    #[test]
    fn the_offending_byte_is_named() {
        let mut bytes = [0; 16];
        bytes[15] = 0x30;
        assert_eq!(SglDescriptor::read_from_bytes(&bytes).unwrap().parse(), Err(SglError::Identifier(0x30)));
    }

    #[test]
    fn bytes_of_an_earlier_key_in_an_in_capsule_descriptor_do_not_matter() {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(SglDescriptor::keyed(0x1000, 4096, 0xa1b2_c3d4, true).as_bytes());
        bytes[..12].copy_from_slice(&SglDescriptor::in_capsule(0, 4096).as_bytes()[..12]);
        bytes[15] = 0x01;
        assert_ne!(bytes[12..15], [0; 3]);
        let parsed = SglDescriptor::read_from_bytes(&bytes).unwrap().parse();
        assert_eq!(parsed, Ok(Sgl::DataBlockOffset { offset: 0, length: 4096 }));
    }

    proptest! {
        #[test]
        fn what_parses_is_built_again_from_its_parts(bytes: [u8; 16], kind in 0_u8..6, subtype in 0_u8..16) {
            let mut bytes = bytes;
            bytes[15] = kind << 4 | subtype;
            if kind != super::kind::KEYED_DATA_BLOCK {
                bytes[12..15].fill(0);
            }
            let descriptor = SglDescriptor::read_from_bytes(&bytes).unwrap();
            let rebuilt = match descriptor.parse() {
                Ok(Sgl::KeyedDataBlock { address, length, key, invalidate }) => {
                    SglDescriptor::keyed(address, length, key, invalidate)
                }
                Ok(Sgl::DataBlockOffset { offset, length }) => SglDescriptor::in_capsule(offset, length),
                _ => return Ok(()),
            };
            prop_assert_eq!(rebuilt, descriptor);
        }
    }
}
