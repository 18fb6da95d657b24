//! The region table on its own.

use proptest::prelude::*;
use ringfab_proto::iwarp::{Access, Region, RegionErrorKind, RegionTable, RegisterError};

use super::support::{PD, REQUESTER};

fn region(handle: usize) -> Region<usize> {
    Region { pd: PD, qp: None, base: 100, len: 50, access: Access::RemoteRead, handle }
}

#[test]
fn every_edge_of_a_region_is_exact() {
    let mut table = RegionTable::new(1);
    let stag = table.register(region(5), || 0xfeed).unwrap();
    let check = |to, len| table.check(stag, to, len, Access::RemoteRead, REQUESTER);
    assert_eq!(check(100, 50).map(|place| (place.handle, place.offset)), Ok((5, 0)));
    assert_eq!(check(149, 1).map(|place| place.offset), Ok(49));
    for (to, len, kind) in [
        (99, 1, RegionErrorKind::BaseOrBounds),
        (150, 1, RegionErrorKind::BaseOrBounds),
        (100, 51, RegionErrorKind::BaseOrBounds),
        (u64::MAX, 2, RegionErrorKind::ToWrap),
    ] {
        assert_eq!(check(to, len).unwrap_err().kind, kind, "{len} bytes at {to}");
    }
}

#[test]
fn a_region_may_end_at_the_last_offset_but_not_wrap() {
    let mut table = RegionTable::new(2);
    let base = u64::MAX - 50;
    table.register(Region { base, ..region(0) }, || 1).unwrap();
    let wrapping = Region { base: base + 1, ..region(0) };
    assert_eq!(table.register(wrapping, || 2), Err(RegisterError::Wrap { base: base + 1, len: 50 }));
}

#[test]
fn a_full_table_and_a_stuck_random_source_are_errors() {
    let mut table = RegionTable::new(1);
    assert_eq!(table.register(region(0), || 0), Err(RegisterError::Random(64)), "STag 0 is never used");
    table.register(region(0), || 9).unwrap();
    assert_eq!(table.register(region(0), || 10), Err(RegisterError::Full(1)));
}

#[test]
fn what_a_peer_has_invalidated_names_nothing_and_is_not_given_out_before_its_owner_lets_go() {
    let mut table = RegionTable::new(2);
    table.register(region(5), || 7).unwrap();
    assert_eq!(table.invalidate(7, REQUESTER).map(|region| region.handle), Some(5));
    let refused = table.check(7, 100, 1, Access::RemoteRead, REQUESTER).unwrap_err();
    assert_eq!(refused.kind, RegionErrorKind::InvalidStag);
    assert!(table.invalidate(7, REQUESTER).is_none());
    let mut drawn = [7, 8].into_iter();
    assert_eq!(table.register(region(6), || drawn.next().unwrap()), Ok(8));
    assert_eq!(table.deregister(7).map(|region| region.handle), Some(5));
    assert_eq!(table.register(region(6), || 7), Ok(7));
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_map(steps in prop::collection::vec((0..4_u8, 0..40_u32), 1..400)) {
        // Few distinct STags that share low bits, so that probe chains are long and wrap around.
        let stag = |n: u32| (n / 5) << 6 | [61, 62, 63, 0, 1][n as usize % 5] | 0x8000_0000;
        // It has to grow for more than half of them.
        let mut table = RegionTable::new(40);
        let (mut map, mut gone) = (std::collections::BTreeMap::new(), std::collections::BTreeSet::new());
        for (step, (what, n)) in steps.into_iter().enumerate() {
            if what > 1 && !map.contains_key(&stag(n)) {
                prop_assert_eq!(table.register(region(step), || stag(n)), Ok(stag(n)));
                map.insert(stag(n), step);
            } else if what == 1 {
                let expected = map.get(&stag(n)).copied().filter(|_| gone.insert(stag(n)));
                prop_assert_eq!(table.invalidate(stag(n), REQUESTER).map(|region| region.handle), expected);
            } else if what == 0 {
                gone.remove(&stag(n));
                prop_assert_eq!(table.deregister(stag(n)).map(|region| region.handle), map.remove(&stag(n)));
            }
            prop_assert_eq!(table.len(), map.len());
            for n in 0..40 {
                let expected = map.get(&stag(n)).copied().filter(|_| !gone.contains(&stag(n)));
                prop_assert_eq!(table.get(stag(n)).map(|region| region.handle), expected);
            }
        }
    }
}
