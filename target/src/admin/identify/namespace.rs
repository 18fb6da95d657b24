//! The pages that describe a namespace.

use ringfab_block::{Discarded, DiskProperties, PreferredSizes};
use ringfab_spec::identify::{
    CommandSet, DeallocateFeatures, IdentifyNamespace, IndependentNamespace, LbaFormat, NamespaceAttributes,
    NamespaceDescriptor, NamespaceDescriptorList, NamespaceFeatures, NamespaceSharing, NamespaceStatus,
};
use ringfab_spec::log::AnaState;

use super::Page;
use crate::limits::{COPY_BYTES_MAX, COPY_RANGE_BYTES_MAX, COPY_RANGES_MAX};
use crate::model::Namespace;

/// What the target likes itself, where a disk does not say better: runs of the size of a large buffer.
const OPTIMAL_WRITE_BYTES: u32 = 128 << 10;

/// The access group of a namespace, and its state for the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) group: u32,
    pub(super) state: AnaState,
}

pub(super) fn namespace(namespace: &Namespace, access: Access) -> Page {
    let mut page = IdentifyNamespace::zeroed();
    let blocks = namespace.blocks();
    page.nsze.set(blocks);
    page.ncap.set(blocks);
    // Its size stays, so that a host keeps its disk. What is in use is not told where there is no access.
    if !matches!(access.state, AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS) {
        page.nuse.set(namespace.used_blocks().min(blocks));
    }
    let disk = namespace.opened_disk().properties();
    page.nsfeat = features(disk.as_ref());
    page.nmic = NamespaceSharing::default().with_shared(true);
    if let Some(disk) = &disk {
        page.dlfeat = deallocation(disk);
        set_preferred(&mut page, namespace, disk.preferred);
    }
    let copy_bytes = |bytes: u32| bytes >> namespace.block_shift();
    page.mssrl
        .set(u16::try_from(copy_bytes(COPY_RANGE_BYTES_MAX)).expect("1 MiB is 2048 of the smallest blocks"));
    page.mcl.set(copy_bytes(COPY_BYTES_MAX));
    page.msrc_z = u8::try_from(COPY_RANGES_MAX - 1).expect("it fits its field");
    page.nsattr = attributes(namespace);
    page.anagrpid.set(access.group);
    page.nguid = *namespace.nguid();
    let shift = u8::try_from(namespace.block_shift()).expect("below 32");
    page.lbaf[0] = LbaFormat::default().with_lbads(shift);
    Page::of(&page)
}

/// What does not depend on the command set; the only page that tells whether the namespace is ready.
pub(super) fn independent(namespace: &Namespace, access: Access) -> Page {
    let mut page = IndependentNamespace::zeroed();
    page.nsfeat = NamespaceFeatures::default().with_uidreuse(true).bits();
    page.nmic = NamespaceSharing::default().with_shared(true);
    page.nsattr = attributes(namespace);
    page.anagrpid.set(access.group);
    page.nstat = NamespaceStatus::default().with_nrdy(namespace.is_ready());
    Page::of(&page)
}

/// NGUID, UUID and command set.
pub(super) fn descriptors(namespace: &Namespace) -> Page {
    let mut list = NamespaceDescriptorList::new();
    for descriptor in [
        NamespaceDescriptor::Nguid(*namespace.nguid()),
        NamespaceDescriptor::Uuid(*namespace.uuid().as_bytes()),
        NamespaceDescriptor::CommandSet(CommandSet::NVM),
    ] {
        list.push(&descriptor).expect("three descriptors fit a page");
    }
    Page::of(list.as_bytes())
}

/// Identifiers are never used again. The rest is what is known of the disk, once it was opened.
fn features(disk: Option<&DiskProperties>) -> NamespaceFeatures {
    let features = NamespaceFeatures::default().with_uidreuse(true);
    disk.map_or(features, |disk| features.with_thinp(disk.thin).with_optperf(disk.preferred.write != 0))
}

/// What deallocated blocks read as. Those that a disk could not deallocate are no such blocks.
fn deallocation(disk: &DiskProperties) -> DeallocateFeatures {
    let read_behavior = match disk.discarded {
        Discarded::Zeroes | Discarded::ZeroesOrBefore => DeallocateFeatures::READS_ZEROES,
        Discarded::Anything => 0,
    };
    let features = DeallocateFeatures::default().with_read_behavior(read_behavior);
    features.with_write_zeroes(disk.write_zeroes_deallocates)
}

/// What the disk likes best, if it says so (OPTPERF). The optimal size is a multiple of the granularity.
fn set_preferred(page: &mut IdentifyNamespace, namespace: &Namespace, preferred: PreferredSizes) {
    let PreferredSizes { write, discard, optimal_write } = preferred;
    if write == 0 {
        return;
    }
    let write_z = blocks_z(namespace, write);
    let discard_z = blocks_z(namespace, discard);
    let optimal = if optimal_write == 0 { OPTIMAL_WRITE_BYTES } else { optimal_write };
    page.npwg_z.set(write_z);
    page.npwa_z.set(write_z);
    page.npdg_z.set(discard_z);
    page.npda_z.set(discard_z);
    page.nows_z.set(blocks_z(namespace, (optimal - optimal % write).max(write)));
}

fn attributes(namespace: &Namespace) -> NamespaceAttributes {
    NamespaceAttributes::default().with_write_protected(namespace.read_only())
}

/// A size in logical blocks, zero's based: one block when a block is larger or the size unknown, and no more than the
/// field can say.
fn blocks_z(namespace: &Namespace, bytes: u32) -> u16 {
    let blocks = bytes.div_ceil(namespace.block_bytes()).max(1);
    u16::try_from(blocks - 1).unwrap_or(u16::MAX)
}
