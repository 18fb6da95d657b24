//! Text in fields of a fixed length (NVM Express Base 2.0, section 1.4.2: ASCII strings are left justified
//! and padded with spaces).

use core::fmt;
use core::str;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An ASCII string of at most `N` bytes, padded with spaces.
///
/// Some implementations pad with zeroes instead; both paddings are trimmed when reading.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct AsciiField<const N: usize>([u8; N]);

impl<const N: usize> AsciiField<N> {
    /// The text padded to the field's length. Errors when it is too long or not printable ASCII.
    pub fn new(text: &str) -> Result<Self, TextError> {
        if text.len() > N {
            return Err(TextError::TooLong { length: text.len(), length_max: N });
        }
        if let Some(offset) = text.bytes().position(|byte| !is_printable(byte)) {
            return Err(TextError::NotPrintable { offset });
        }
        let mut field = [b' '; N];
        field[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(field))
    }

    /// The field's bytes, padding included.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The text without its padding. Errors at the first byte that is not printable ASCII.
    pub fn to_str(&self) -> Result<&str, TextError> {
        let text = trim(&self.0);
        if let Some(offset) = text.iter().position(|byte| !is_printable(*byte)) {
            return Err(TextError::NotPrintable { offset });
        }
        str::from_utf8(text).map_err(|error| TextError::NotPrintable { offset: error.valid_up_to() })
    }
}

impl<const N: usize> Default for AsciiField<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

/// Shows the text; a byte that is not printable shows as `.`, so that a peer cannot write to a terminal.
impl<const N: usize> fmt::Display for AsciiField<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        trim(&self.0).iter().try_for_each(|byte| f.write_char(printable(*byte)))
    }
}

impl<const N: usize> fmt::Debug for AsciiField<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Why a text does not fit a field, or a field holds no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// The text has more bytes than the field.
    TooLong {
        /// Length of the text, in bytes.
        length: usize,
        /// Length of the field, in bytes.
        length_max: usize,
    },
    /// A byte is not a printable ASCII character.
    NotPrintable {
        /// Offset of that byte in the text.
        offset: usize,
    },
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, length_max } => {
                write!(f, "the text has {length} bytes, its field holds {length_max}")
            }
            Self::NotPrintable { offset } => write!(f, "byte {offset} is not printable ASCII"),
        }
    }
}

impl core::error::Error for TextError {}

/// ASCII as the specification means it: 20h to 7Eh.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e)
}

const fn printable(byte: u8) -> char {
    if is_printable(byte) { byte as char } else { '.' }
}

/// Cuts the padding, of spaces or of zeroes, from the right.
fn trim(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    &bytes[..end]
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_text_is_padded_with_spaces() {
        let field = AsciiField::<8>::new("1.0").unwrap();
        assert_eq!(field.bytes(), b"1.0     ");
        assert_eq!(field.to_str(), Ok("1.0"));
    }

    #[test]
    fn a_text_of_the_fields_length_fits_and_one_byte_more_does_not() {
        assert!(AsciiField::<4>::new("abcd").is_ok());
        assert_eq!(AsciiField::<4>::new("abcde"), Err(TextError::TooLong { length: 5, length_max: 4 }));
    }

    #[test]
    fn a_control_character_is_an_error_and_shows_as_a_dot() {
        let field = AsciiField::<4>::read_from_bytes(b"a\x1bb\0").unwrap();
        assert_eq!(field.to_str(), Err(TextError::NotPrintable { offset: 1 }));
        assert_eq!(field.to_string(), "a.b");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_shown_and_read(bytes: [u8; 20]) {
            let field = AsciiField::<20>::read_from_bytes(&bytes).unwrap();
            prop_assert!(field.to_string().len() <= 20);
            if let Ok(text) = field.to_str() {
                let again = AsciiField::<20>::new(text).unwrap();
                prop_assert_eq!(again.to_str(), Ok(text));
            }
        }
    }
}
