//! Which namespaces are to be flushed by a host that leaves.

use std::collections::BTreeSet;
use std::ops::Bound;

/// The namespaces that something was written to. Writing to one again allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Written {
    nsids: BTreeSet<u32>,
    /// The one that was noted last, most often the next one, too.
    last: u32,
}

impl Written {
    /// Something is written to a namespace.
    #[inline]
    pub(super) fn note(&mut self, nsid: u32) {
        if self.last != nsid {
            self.last = nsid;
            self.nsids.insert(nsid);
        }
    }

    /// Those with a greater identifier, ascending.
    pub(super) fn after(&self, nsid: u32) -> impl Iterator<Item = u32> + '_ {
        self.nsids.range((Bound::Excluded(nsid), Bound::Unbounded)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_is_there_once_however_often_and_in_whatever_order_it_was_written() {
        let mut written = Written::default();
        assert_eq!(written.after(0).next(), None);
        for nsid in [7, 7, 2, 7, 2, u32::MAX - 1] {
            written.note(nsid);
        }
        assert_eq!(written.after(0).collect::<Vec<_>>(), [2, 7, u32::MAX - 1]);
        assert_eq!(written.after(2).collect::<Vec<_>>(), [7, u32::MAX - 1]);
        assert_eq!(written.after(u32::MAX).next(), None);
    }
}
