//! NVMe Qualified Names (NVM Express Base 2.0, section 4.5).
//!
//! A name is UTF-8, of 223 bytes at most. Two things are checked, and each end asks for what it needs:
//!
//! - [`Nqn::new`]: what every name has to keep to. It is not empty, and all of its characters can be seen. A control
//!   character, one that turns the direction of writing, or an invisible one, as a byte order mark, makes two
//!   different names look alike, or a line of a log look like another line. The specification does not forbid them.
//!   Nobody needs them. The names of subsystems that others serve are checked for this alone: Linux serves any name,
//!   and `testnqn` is one that is in use.
//! - [`Nqn::with_form`]: also that it begins as the specification says, `nqn.yyyy-mm.` and a reversed domain. This is
//!   asked of the names of hosts, and of the subsystems that we serve. More than the specification allows is taken
//!   here: any month, any text for the domain, upper case, and a UUID in upper case or that is none. Hosts in use have
//!   such names; every name that nvme-cli, libnvme, the kernel, SPDK and ESXi make by themselves has this form.

use core::fmt;

use ringfab_base::is_visible;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest name, in bytes.
pub const NQN_BYTES_MAX: usize = 223;

/// The well-known name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// How a name made from a UUID begins.
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A name that was checked, borrowed from where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn<'a>(&'a str);

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// It is empty.
    Empty,
    /// It has more than [`NQN_BYTES_MAX`] bytes; how many.
    TooLong(usize),
    /// It is not UTF-8; up to which byte it is.
    NotUtf8(usize),
    /// It has a character that nobody sees, or that a terminal would obey; which, and at which byte.
    Invisible(usize, char),
    /// It does not begin with `nqn.yyyy-mm.` and a domain, and is not one of the well-known forms.
    Form,
    /// Its field has no terminating zero byte.
    NotTerminated,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the NQN is empty"),
            Self::TooLong(length) => {
                write!(f, "the NQN has {length} bytes, at most {NQN_BYTES_MAX} are allowed")
            }
            Self::NotUtf8(offset) => write!(f, "the NQN is not UTF-8 at byte {offset}"),
            Self::Invisible(offset, character) => {
                let code = u32::from(*character);
                write!(f, "the NQN has a character that cannot be seen at byte {offset}, U+{code:04X}")
            }
            Self::Form => f.write_str("an NQN has the form nqn.yyyy-mm.reversed.domain:name"),
            Self::NotTerminated => f.write_str("the NQN field has no terminating zero"),
        }
    }
}

impl core::error::Error for NqnError {}

impl<'a> Nqn<'a> {
    /// Checks what every name must keep to: length and characters. Subsystems with names such as `testnqn` are about.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &'a str) -> Result<Self, NqnError> {
        if text.is_empty() {
            return Err(NqnError::Empty);
        }
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if let Some((offset, one)) = text.char_indices().find(|(_, character)| !is_visible(*character)) {
            return Err(NqnError::Invisible(offset, one));
        }
        Ok(Self(text))
    }

    /// Checks the name of a host, or of a subsystem of ours: also for the form `nqn.yyyy-mm.reversed.domain[:name]`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn with_form(text: &'a str) -> Result<Self, NqnError> {
        let nqn = Self::new(text)?;
        if has_form(text.as_bytes()) { Ok(nqn) } else { Err(NqnError::Form) }
    }

    /// The name.
    pub fn as_str(&self) -> &'a str {
        self.0
    }

    /// Whether it is the well-known name of the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY_NQN
    }
}

impl fmt::Display for Nqn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Nqn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.0)
    }
}

/// `nqn.`, four digits, `-`, two digits, `.`, and at least one more character.
fn has_form(text: &[u8]) -> bool {
    let digits = |range: &[u8]| range.iter().all(u8::is_ascii_digit);
    matches!(text, [b'n', b'q', b'n', b'.', y0, y1, y2, y3, b'-', m0, m1, b'.', _, ..]
        if digits(&[*y0, *y1, *y2, *y3, *m0, *m1]))
}

/// The 256 bytes that a name has on the wire, padded with zeroes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct NqnField([u8; NqnField::SIZE]);

impl NqnField {
    /// Size on the wire, in bytes.
    pub const SIZE: usize = 256;

    /// The field of a name.
    pub fn new(nqn: Nqn<'_>) -> Self {
        let mut bytes = [0; Self::SIZE];
        bytes[..nqn.0.len()].copy_from_slice(nqn.0.as_bytes());
        Self(bytes)
    }

    /// The name in the field, checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(&self) -> Result<Nqn<'_>, NqnError> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(NqnError::NotTerminated)?;
        let text =
            str::from_utf8(&self.0[..length]).map_err(|error| NqnError::NotUtf8(error.valid_up_to()))?;
        Nqn::new(text)
    }

    /// The bytes of the field.
    pub fn bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }
}

impl Default for NqnField {
    fn default() -> Self {
        Self([0; Self::SIZE])
    }
}

impl fmt::Debug for NqnField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(nqn) => write!(f, "NqnField({nqn})"),
            Err(error) => write!(f, "NqnField({error})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::string::ToString;

    use super::*;

    #[test]
    fn names_of_the_specified_forms_are_taken() {
        for text in [DISCOVERY_NQN, "nqn.2014-08.com.example:nvme.host.sys.xyz", "nqn.2026-11.a"] {
            assert_eq!(Nqn::with_form(text).map(|nqn| nqn.as_str()), Ok(text));
        }
        assert!(Nqn::new(DISCOVERY_NQN).unwrap().is_discovery());
    }

    #[test]
    fn names_that_hosts_in_use_have_are_taken_although_they_differ_from_the_specification() {
        for text in [
            "nqn.2014-08.org.nvmexpress:uuid:4C4C4544-0051-5A10-8056-B9C04F4D3832",
            "nqn.2014-08.org.nvmexpress:uuid:none",
            "nqn.2014-08.localdomain:nvme:ESX1",
            "nqn.2014-08.COM.Example:Größe of/a host",
            "nqn.2014-99.com_example",
        ] {
            assert_eq!(Nqn::with_form(text).map(|nqn| nqn.as_str()), Ok(text));
        }
    }

    #[test]
    fn on_the_wire_a_name_needs_no_form() {
        let mut field = [0; 256];
        field[..7].copy_from_slice(b"testnqn");
        assert_eq!(NqnField(field).parse().map(|nqn| nqn.as_str()), Ok("testnqn"));
        assert_eq!(Nqn::with_form("testnqn"), Err(NqnError::Form));
    }

    #[test]
    fn a_name_of_223_bytes_is_taken_and_one_of_224_is_not() {
        let mut text = std::string::String::from("nqn.2014-08.a:");
        text.extend(std::iter::repeat_n('x', NQN_BYTES_MAX - text.len()));
        assert!(Nqn::new(&text).is_ok());
        text.push('x');
        assert_eq!(Nqn::new(&text), Err(NqnError::TooLong(224)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
        assert_eq!(Nqn::with_form("nqn.2014-08."), Err(NqnError::Form));
        assert_eq!(Nqn::with_form("iqn.2014-08.com.example"), Err(NqnError::Form));
        assert_eq!(Nqn::with_form("NQN.2014-08.com.example"), Err(NqnError::Form));
        assert_eq!(Nqn::new("nqn.2014-08.a\nb"), Err(NqnError::Invisible(13, '\n')));
        assert_eq!(
            Nqn::new("\u{feff}nqn.2014-08.a").unwrap_err().to_string(),
            "the NQN has a character that cannot be seen at byte 0, U+FEFF"
        );
        for one in ['\u{202e}', '\u{2066}', '\u{200e}', '\u{61c}', '\u{200b}', '\u{ad}', '\u{85}'] {
            let text = std::format!("nqn.2014-08.a:{one}b");
            assert_eq!(Nqn::with_form(&text), Err(NqnError::Invisible(14, one)));
        }
        assert_eq!(NqnField([b'n'; 256]).parse(), Err(NqnError::NotTerminated));
    }

    proptest! {
        #[test]
        fn any_field_is_a_name_or_an_error_and_a_name_survives_its_field(
            bytes: std::vec::Vec<u8>,
            tail in "[ -~]{1,200}",
        ) {
            let mut field = [0; 256];
            let length = bytes.len().min(256);
            field[..length].copy_from_slice(&bytes[..length]);
            let _ = NqnField(field).parse();
            let text = std::format!("nqn.2014-08.{tail}");
            let nqn = Nqn::new(&text).unwrap();
            let field = NqnField::new(nqn);
            prop_assert_eq!(field.parse(), Ok(nqn));
        }
    }
}
