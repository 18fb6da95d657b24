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

proptest! {
    #[test]
    fn the_table_agrees_with_a_map(steps in prop::collection::vec((any::<bool>(), 0..40_u32), 1..400)) {
        // Few distinct STags that share low bits, so that probe chains are long and wrap around.
        let stag = |n: u32| (n / 5) << 6 | [61, 62, 63, 0, 1][n as usize % 5] | 0x8000_0000;
        let mut table = RegionTable::new(32);
        let mut map = std::collections::BTreeMap::new();
        for (step, (add, n)) in steps.into_iter().enumerate() {
            if add && map.len() < 32 && !map.contains_key(&stag(n)) {
                prop_assert_eq!(table.register(region(step), || stag(n)), Ok(stag(n)));
                map.insert(stag(n), step);
            } else if !add {
                prop_assert_eq!(table.deregister(stag(n)).map(|gone| gone.handle), map.remove(&stag(n)));
            }
            prop_assert_eq!(table.len(), map.len());
            for n in 0..40 {
                prop_assert_eq!(table.get(stag(n)).map(|region| region.handle), map.get(&stag(n)).copied());
            }
        }
    }
}
