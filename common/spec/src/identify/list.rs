//! Lists of identifiers (NVM Express Base 2.0, sections 4.6 and 5.17.2.21).

use zerocopy::little_endian::{U16, U32, U64};

use super::CommandSet;
use crate::macros::{bits, wire};

wire! {
    /// A Namespace List: identifiers in increasing order, padded with zeroes; CNS 02h, 07h, 10h, 1Ah.
    pub struct NamespaceList[4096] {
        /// Namespace identifiers.
        0 => pub nsids: [U32; 1024],
    }
}

impl NamespaceList {
    /// How many identifiers a list holds.
    pub const COUNT_MAX: usize = 1024;

    /// The first of these identifiers, which are in increasing order, that are greater than `after`.
    pub fn following(after: u32, nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::zeroed();
        let greater = nsids.into_iter().filter(|nsid| *nsid > after);
        for (entry, nsid) in list.nsids.iter_mut().zip(greater) {
            *entry = U32::new(nsid);
        }
        list
    }

    /// The identifiers up to the padding.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }

    /// The identifier to ask for the rest with, when the list is full.
    pub fn continue_after(&self) -> Option<u32> {
        self.nsids.last().map(|nsid| nsid.get()).filter(|nsid| *nsid != 0)
    }
}

wire! {
    /// A Controller List: identifiers in increasing order; CNS 12h and 13h.
    pub struct ControllerList[4096] {
        /// Number of Identifiers.
        0 => count: U16,
        /// Controller identifiers.
        2 => cntlids: [U16; 2047],
    }
}

impl ControllerList {
    /// How many identifiers a list holds.
    pub const COUNT_MAX: usize = 2047;

    /// The first of these identifiers, which are in increasing order, that are `from` or greater.
    pub fn starting_at(from: u16, cntlids: impl IntoIterator<Item = u16>) -> Self {
        let mut list = Self::zeroed();
        let mut count = 0;
        let wanted = cntlids.into_iter().filter(|cntlid| *cntlid >= from);
        for (entry, cntlid) in list.cntlids.iter_mut().zip(wanted) {
            *entry = U16::new(cntlid);
            count += 1;
        }
        list.count = U16::new(count);
        list
    }

    /// The identifiers; at most those which are there, whatever count the list announces.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.cntlids.iter().map(|cntlid| cntlid.get()).take(usize::from(self.count.get()))
    }
}

bits! {
    /// An I/O Command Set Vector: a combination of command sets which may be enabled together.
    pub struct CommandSetVector(U64 as u64) {
        /// NVM Command Set.
        nvm / with_nvm: bool = 0:0;
        /// Key Value Command Set.
        key_value / with_key_value: bool = 1:1;
        /// Zoned Namespace Command Set.
        zoned_namespace / with_zoned_namespace: bool = 2:2;
    }
}

impl CommandSetVector {
    /// Whether a command set is in the combination.
    pub fn contains(self, command_set: CommandSet) -> bool {
        self.bits().checked_shr(u32::from(command_set.0)).is_some_and(|bits| bits & 1 != 0)
    }
}

wire! {
    /// Identify I/O Command Set data structure, CNS 1Ch.
    pub struct CommandSetVectors[4096] {
        /// Combinations; the feature I/O Command Set Profile selects one by its index.
        0 => pub vectors: [CommandSetVector; 512],
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_namespace_list_has_its_golden_bytes() {
        let list = NamespaceList::following(1, [1, 2, 0x0102_0304]);
        assert_eq!(list.as_bytes()[..12], [2, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [2, 0x0102_0304]);
        assert_eq!(list.continue_after(), None);
    }

    #[test]
    fn a_full_namespace_list_says_where_to_go_on() {
        assert_eq!(NamespaceList::following(0, 1..=1023).continue_after(), None);
        assert_eq!(NamespaceList::following(0, 1..=1024).continue_after(), Some(1024));
        let rest = NamespaceList::following(1024, 1..=1025);
        assert_eq!(rest.iter().collect::<Vec<_>>(), [1025]);
    }

    #[test]
    fn a_controller_list_has_its_golden_bytes() {
        let list = ControllerList::starting_at(2, [1, 2, 0x0304]);
        assert_eq!(list.as_bytes()[..8], [2, 0, 2, 0, 4, 3, 0, 0]);
        assert_eq!(ControllerList::starting_at(0, 0..3000).iter().count(), 2047);
    }

    #[test]
    fn a_controller_list_that_announces_too_many_ends_where_it_ends() {
        let list = ControllerList { count: U16::new(u16::MAX), ..ControllerList::zeroed() };
        assert_eq!(list.iter().count(), ControllerList::COUNT_MAX);
    }

    #[test]
    fn a_vector_contains_its_command_sets() {
        let vector = CommandSetVector::default().with_nvm(true).with_zoned_namespace(true);
        assert_eq!(vector.as_bytes(), [5, 0, 0, 0, 0, 0, 0, 0]);
        assert!(vector.contains(CommandSet::NVM) && vector.contains(CommandSet::ZONED_NAMESPACE));
        assert!(!vector.contains(CommandSet::KEY_VALUE) && !vector.contains(CommandSet(200)));
    }

    proptest! {
        #[test]
        fn reading_list_after_list_finds_every_namespace(
            nsids in proptest::collection::btree_set(1..u32::MAX, 0..3000),
        ) {
            let (mut found, mut after) = (Vec::new(), Some(0));
            while let Some(start) = after {
                let list = NamespaceList::following(start, nsids.iter().copied());
                found.extend(list.iter());
                after = list.continue_after();
            }
            prop_assert_eq!(found, nsids.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_lists(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
            let nsids = NamespaceList::ref_from_bytes(&bytes).unwrap();
            prop_assert!(nsids.iter().all(|nsid| nsid != 0));
            let cntlids = ControllerList::ref_from_bytes(&bytes).unwrap();
            prop_assert!(cntlids.iter().count() <= ControllerList::COUNT_MAX);
        }
    }
}
