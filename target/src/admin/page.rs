//! A data structure on its way to the host.

use ringfab_spec::IntoBytes;
use ringfab_spec::zerocopy::Immutable;

/// The bytes of a structure.
pub(super) struct Page(Vec<u8>);

impl Page {
    /// So many zeroes.
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// The bytes of one structure.
    pub(super) fn of<T: IntoBytes + Immutable>(structure: &T) -> Self {
        Self(structure.as_bytes().to_vec())
    }

    /// One more structure after what is there.
    pub(super) fn push<T: IntoBytes + Immutable>(&mut self, structure: &T) {
        self.0.extend_from_slice(structure.as_bytes());
    }

    /// Zeroes up to so many bytes.
    pub(super) fn fill_up(&mut self, bytes: usize) {
        self.0.resize(bytes.max(self.0.len()), 0);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
