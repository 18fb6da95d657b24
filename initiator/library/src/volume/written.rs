//! Which namespaces are to be flushed by a host that leaves.

use std::collections::BTreeSet;

/// The namespaces that something was written to. Writing to one again allocates nothing.
#[derive(Debug, Default)]
pub(super) struct WrittenNamespaces {
    nsids: BTreeSet<u32>,
    /// The one that was noted last, most often the next one, too.
    last: u32,
}

impl WrittenNamespaces {
    /// Something is written to a namespace.
    #[inline]
    pub(super) fn note(&mut self, nsid: u32) {
        if self.last != nsid {
            self.last = nsid;
            self.nsids.insert(nsid);
        }
    }

    /// Their identifiers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsids.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_is_there_once_however_often_and_in_whatever_order_it_was_written() {
        let mut written = WrittenNamespaces::default();
        assert_eq!(written.iter().next(), None);
        for nsid in [7, 7, 2, 7, 2, u32::MAX - 1] {
            written.note(nsid);
        }
        assert_eq!(written.iter().collect::<Vec<_>>(), [2, 7, u32::MAX - 1]);
    }
}
