//! I/O commands as the target takes them: whatever one says, the work that it becomes lies within its namespace, and
//! its data within its capsule or within addresses that do not wrap.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../../target/src/failure.rs"]
#[expect(dead_code, reason = "the target uses more of it")]
mod failure;
#[path = "../../../target/src/limits.rs"]
#[expect(dead_code, reason = "the target uses more of it")]
mod limits;
/// What I/O commands know of the target's model.
#[path = "../../../target/src/model"]
mod model {
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod disk_failure;
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod epoch;
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod io_record;
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod latency;
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod namespace;
    #[expect(dead_code, reason = "the target uses more of it")]
    pub(crate) mod opened_disk;
    mod readiness;

    pub(crate) use epoch::Epoch;
    pub(crate) use namespace::Namespace;
}
#[path = "../../../target/src/nvm/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the target uses more of it")]
mod nvm;
#[path = "../../../target/src/sync.rs"]
#[expect(unused_imports, reason = "the target uses more of it")]
mod sync;

use std::sync::{Arc, LazyLock};

use ringfab_block::Backing;
use ringfab_fuzz::fuzz_target;
use ringfab_spec::sqe::{CopyRange, DsmRange};
use ringfab_spec::{FromBytes, IoOpcode, SubmissionEntry};
use uuid::Uuid;

use limits::TRANSFER_BYTES_MAX;
use model::namespace::{Index, Indexes, Namespace, NamespaceParameters};
use nvm::{Access, Action, Blocks, Copying, DataBytes, Extent, HostMemory, Lba, NamespaceView, Transfer};

/// Bytes of each namespace.
const BYTES: u64 = 64 << 20;

/// One that can be written, one that cannot, and one whose disk is missing.
static NAMESPACES: LazyLock<[Namespace; 3]> = LazyLock::new(|| {
    let indexes = Indexes::default();
    let named = |nsid, block_bytes, read_only| named(indexes.take(), nsid, block_bytes, read_only);
    let namespaces = [named(1, 512, false), named(2, 4096, true), named(3, 512, false)];
    for namespace in &namespaces[..2] {
        namespace.set_ready(BYTES, true);
    }
    namespaces
});

fn named(index: Index, nsid: u32, block_bytes: u32, read_only: bool) -> Namespace {
    Namespace::new(NamespaceParameters {
        nsid,
        index,
        epoch: Arc::default(),
        block_bytes,
        backing: Backing::Null { bytes: BYTES },
        read_only,
        shared: false,
        nguid: [1; 16],
        uuid: Uuid::from_bytes([2; 16]),
    })
}

fn view(nsid: u32) -> Option<NamespaceView> {
    NAMESPACES.iter().find(|namespace| namespace.nsid() == nsid).map(NamespaceView::of)
}

fuzz_target!(|capsule: &[u8]| {
    let Ok((mut command, data)) = SubmissionEntry::read_from_prefix(capsule) else { return };
    check(&command, data.len() as u32);
    // The same command for a namespace that there is and an opcode that it has, which mutations seldom hit.
    let known = [
        IoOpcode::READ,
        IoOpcode::WRITE,
        IoOpcode::COMPARE,
        IoOpcode::FLUSH,
        IoOpcode::WRITE_ZEROES,
        IoOpcode::DATASET_MANAGEMENT,
        IoOpcode::VERIFY,
        IoOpcode::COPY,
        IoOpcode::CANCEL,
    ];
    command.nsid.set(1 + command.nsid.get() % 3);
    command.opcode = known[usize::from(command.opcode) % known.len()].0;
    command.flags = 0b01 << 6;
    check(&command, data.len() as u32);
    for range in data.chunks_exact(DsmRange::SIZE) {
        let range = DsmRange::read_from_bytes(range).expect("as long as a range");
        let namespace = view(1).expect("it is there");
        let (first, count) = (Lba(range.slba.get()), Blocks(range.nlb.get().into()));
        if let Ok(extent) = nvm::discard_extent(&namespace, first, count) {
            check_extent(extent);
        }
    }
    if let Ok((Action::Copy(copying), _)) = nvm::parse(&command, view) {
        check_copy(&copying, data);
    }
});

/// A Copy that is let through reads and writes within its namespace only.
fn check_copy(copying: &Copying, data: &[u8]) {
    let ranges: Vec<CopyRange> = data
        .chunks_exact(CopyRange::SIZE)
        .map(|range| CopyRange::read_from_bytes(range).expect("as long as a range"))
        .collect();
    let namespace = view(copying.disk as u32 + 1).expect("it is there");
    let copying = Copying { ranges: copying.ranges.min(ranges.len() as u16), ..*copying };
    if nvm::check_copy(&namespace, &copying, |index| ranges[usize::from(index)]).is_ok() {
        let extents =
            ranges[..usize::from(copying.ranges)].iter().map(|range| nvm::copy_extent(&namespace, range));
        let extents: Vec<Extent> = extents.map(|extent| extent.expect("it was checked")).collect();
        extents.iter().copied().for_each(check_extent);
        let bytes: u64 = extents.iter().map(|extent| extent.length.0).sum();
        assert!(copying.to + bytes <= BYTES);
    }
}

fn check(command: &SubmissionEntry, capsule_bytes: u32) {
    let Ok((action, transfer)) = nvm::parse(command, view) else { return };
    if let Action::Read(extent)
    | Action::Compare(extent)
    | Action::Write { extent, .. }
    | Action::WriteZeroes { extent, .. }
    | Action::Verify { extent, .. } = action
    {
        check_extent(extent);
        assert!(transfer == Transfer::None || extent.length.data() == Some(transfer.length()));
    }
    let changes = matches!(action.access(), Access::Writes | Access::Changes);
    assert!(!changes || command.nsid.get() == 1, "only one namespace can be written");
    let DataBytes(length) = transfer.length();
    assert!(length <= TRANSFER_BYTES_MAX);
    match nvm::host_memory(command, action, transfer, capsule_bytes) {
        Ok(HostMemory::Capsule { offset }) => {
            assert!(matches!(transfer, Transfer::ToController(DataBytes(1..))));
            assert!(u64::from(offset) + u64::from(length) <= u64::from(capsule_bytes));
        }
        Ok(HostMemory::Registered { address, .. }) => {
            assert!(address.checked_add(u64::from(length)).is_some());
        }
        Ok(HostMemory::Transport) => assert!(length > 0),
        Ok(HostMemory::None) => assert_eq!(length, 0),
        Err(failure) => assert!(!failure.status.is_success()),
    }
}

fn check_extent(extent: Extent) {
    assert!(extent.disk < 2, "the third has no disk");
    assert!(extent.offset.checked_add(extent.length.0).is_some_and(|end| end <= BYTES));
}
