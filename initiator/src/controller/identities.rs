//! Who the namespaces of a controller are: under one identifier there is one disk, as long as the controller is attached.

use std::collections::HashMap;

use crate::namespace::{Namespace, NamespaceIdentity};

/// The first identity of each namespace, also of those that were removed since.
#[derive(Debug, Default)]
pub(super) struct Identities(HashMap<u32, NamespaceIdentity>);

impl Identities {
    /// Leaves out each namespace that is another disk than it was: who has the old one open would write to the new one.
    pub(super) fn keep_same(&mut self, namespaces: &mut Vec<Namespace>, peer: &str) {
        namespaces.retain(|namespace| {
            let first = self.0.entry(namespace.nsid).or_insert(namespace.identity);
            let same = first.agrees_with(&namespace.identity);
            if !same {
                let nsid = namespace.nsid;
                tracing::warn!(peer, nsid, "the namespace is another disk now; attach again to use that");
            }
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(nsid: u32, nguid: u8) -> Namespace {
        Namespace {
            nsid,
            blocks: 8,
            block_bytes: 4096,
            identity: NamespaceIdentity { nguid: Some([nguid; 16]), ..NamespaceIdentity::default() },
            read_only: false,
            transfer_blocks_max: 1,
            write_zeroes_blocks_max: 0,
            write_zeroes_deallocates: false,
            compares: false,
            verify_blocks_max: 0,
            discard_blocks_max: 0,
            discard_ranges_max: 1,
            discard_total_blocks_max: 0,
            preferred_write_blocks: 1,
        }
    }

    #[test]
    fn a_namespace_that_was_removed_comes_back_only_as_the_same_disk() {
        let mut identities = Identities::default();
        let mut kept = |list: &[Namespace]| {
            let mut list = list.to_vec();
            identities.keep_same(&mut list, "peer");
            list.iter().map(|namespace| namespace.nsid).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[namespace(1, 1), namespace(2, 2)]), [1, 2]);
        assert_eq!(kept(&[namespace(1, 1)]), [1]);
        assert_eq!(kept(&[namespace(1, 1), namespace(2, 3)]), [1], "another disk under the number 2");
        assert_eq!(kept(&[namespace(1, 1), namespace(2, 2)]), [1, 2], "the old one again");
    }
}
