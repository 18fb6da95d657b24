//! Commands of any bytes.

use proptest::prelude::*;
use ringfab_spec::{FromBytes, Sgl};

use super::*;
use crate::limits::TRANSFER_BYTES_MAX;

const VIEW: NamespaceView = NamespaceView { disk: 3, size: SIZE, read_only: false, ready: true };
const SIZE: NamespaceSize = NamespaceSize { blocks: Blocks(1 << 20), block_shift: 9 };
const BYTES: u64 = 1 << 29;

/// Any 64 bytes, though most often a command that is nearly right.
fn commands() -> impl Strategy<Value = SubmissionEntry> {
    let opcodes = prop::sample::select(vec![0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x19, 0xff]);
    let near_end = prop_oneof![0..(1_u64 << 21), any::<u64>()];
    let kinds = prop::sample::select(vec![0x40_u8, 0x4f, 0x01, 0x00, 0x5a]);
    let parts = (opcodes, near_end, any::<u32>(), kinds, any::<bool>());
    (any::<[u8; 64]>(), parts).prop_map(|(mut bytes, (opcode, lba, blocks, kind, tame))| {
        if tame {
            (bytes[0], bytes[1], bytes[39]) = (opcode, 0x40, kind);
            bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
            bytes[40..48].copy_from_slice(&lba.to_le_bytes());
            bytes[48..52].copy_from_slice(&(blocks & 0x4200_ffff).to_le_bytes());
        }
        SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes")
    })
}

fn extent_of(action: Action) -> Option<Extent> {
    match action {
        Action::Read(extent) | Action::Compare(extent) => Some(extent),
        Action::Write { extent, .. } | Action::WriteZeroes { extent, .. } | Action::Verify { extent, .. } => {
            Some(extent)
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn whatever_a_command_says_its_work_lies_within_the_namespace(command in commands()) {
        let found = parse(&command, |nsid| (nsid == 1).then_some(VIEW));
        let Ok((action, transfer)) = found else { return Ok(()) };
        prop_assert!(transfer.length() <= DataBytes(TRANSFER_BYTES_MAX));
        if let Some(extent) = extent_of(action) {
            let end = extent.offset.checked_add(extent.length.0).expect("no wrap");
            prop_assert!(end <= BYTES && extent.length > DiskBytes(0));
            prop_assert!(transfer == Transfer::None || extent.length.data() == Some(transfer.length()));
        }
    }

    #[test]
    fn whatever_a_command_says_it_changes_nothing_of_what_is_read_only(command in commands()) {
        let view = NamespaceView { read_only: true, ..VIEW };
        if let Ok((action, _)) = parse(&command, |_| Some(view)) {
            prop_assert!(!matches!(action.access(), Access::Writes | Access::Changes), "{:?}", action);
        }
    }

    #[test]
    fn whatever_a_descriptor_says_the_data_lie_within_the_capsule_or_do_not_wrap(
        command in commands(),
        length in 0_u32..=TRANSFER_BYTES_MAX,
        capsule_bytes in 0_u32..=65_536,
        to_host: bool,
        discards: bool,
    ) {
        let data = DataBytes(length);
        let transfer = if to_host { Transfer::ToHost(data) } else { Transfer::ToController(data) };
        let discard = Action::Discard { disk: 3, ranges: 1, next: 0, begun: 0 };
        let action = if discards { discard } else { Action::Controller };
        match host_memory(&command, action, transfer, capsule_bytes) {
            Ok(HostMemory::Capsule { offset }) => {
                prop_assert!(!to_host && u64::from(offset) + u64::from(length) <= u64::from(capsule_bytes));
            }
            Ok(HostMemory::Registered { address, .. }) => {
                prop_assert!(address.checked_add(u64::from(length)).is_some());
            }
            Ok(HostMemory::Transport) => {
                let named = command.sgl.parse();
                let enough = |named: u32| named == length || (discards && named > length);
                let right = matches!(named, Ok(Sgl::TransportDataBlock { length }) if enough(length));
                prop_assert!(right);
            }
            Ok(HostMemory::None) => prop_assert_eq!(length, 0),
            Err(failure) => prop_assert!(failure.status.dnr() && failure.location.is_some()),
        }
    }

    #[test]
    fn whatever_a_range_says_it_lies_within_the_namespace(lba: u64, blocks: u32) {
        if let Ok(extent) = discard_extent(&VIEW, Lba(lba), Blocks(blocks.into())) {
            prop_assert!(extent.offset + extent.length.0 <= BYTES);
        }
    }
}

#[test]
fn without_a_write_cache_every_write_is_durable() {
    let action = |command| parse(&command, |_| Some(VIEW)).expect("it lies within the namespace").0.durable();
    let Action::Write { durable, .. } = action(SubmissionEntry::write(1, 1, 0, 1, false)) else {
        panic!("a write")
    };
    assert!(durable);
    let zeroes = SubmissionEntry::write_zeroes(1, 1, 0, 1, false, false);
    let Action::WriteZeroes { durable, .. } = action(zeroes) else { panic!("zeroes") };
    assert!(durable);
    let Action::Copy(copying) = action(SubmissionEntry::copy(1, 1, 0, 1)) else { panic!("a copy") };
    assert!(copying.durable);
    let read = SubmissionEntry::read(1, 1, 0, 1);
    assert_eq!(action(read), parse(&read, |_| Some(VIEW)).expect("the same").0);
}
