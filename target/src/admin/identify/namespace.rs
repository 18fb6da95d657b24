//! The pages that describe a namespace.

use ringfab_spec::identify::{
    CommandSet, DeallocateFeatures, IdentifyNamespace, IndependentNamespace, LbaFormat, NamespaceAttributes,
    NamespaceDescriptor, NamespaceDescriptorList, NamespaceFeatures, NamespaceSharing, NamespaceStatus,
};

use super::Page;
use crate::limits::{COPY_BYTES_MAX, COPY_RANGE_BYTES_MAX, COPY_RANGES_MAX};
use crate::model::Namespace;

/// What files and disks like: whole pages, and runs of the size of a large buffer.
const PREFERRED_BYTES: u32 = 4096;
const OPTIMAL_WRITE_BYTES: u32 = 128 << 10;

pub(super) fn namespace(namespace: &Namespace) -> Page {
    let mut page = IdentifyNamespace::zeroed();
    let blocks = namespace.blocks();
    page.nsze.set(blocks);
    page.ncap.set(blocks);
    page.nuse.set(namespace.used_blocks().min(blocks));
    page.nsfeat = features();
    page.nmic = NamespaceSharing::default().with_shared(true);
    let reads = DeallocateFeatures::default().with_read_behavior(DeallocateFeatures::READS_ZEROES);
    page.dlfeat = reads.with_write_zeroes(true);
    let preferred_z = blocks_z(namespace, PREFERRED_BYTES);
    page.npwg_z.set(preferred_z);
    page.npwa_z.set(preferred_z);
    page.npdg_z.set(preferred_z);
    page.npda_z.set(preferred_z);
    page.nows_z.set(blocks_z(namespace, OPTIMAL_WRITE_BYTES));
    let copy_bytes = |bytes: u32| bytes >> namespace.block_shift();
    page.mssrl
        .set(u16::try_from(copy_bytes(COPY_RANGE_BYTES_MAX)).expect("1 MiB is 2048 of the smallest blocks"));
    page.mcl.set(copy_bytes(COPY_BYTES_MAX));
    page.msrc_z = u8::try_from(COPY_RANGES_MAX - 1).expect("it fits its field");
    page.nsattr = attributes(namespace);
    page.nguid = *namespace.nguid();
    let shift = u8::try_from(namespace.block_shift()).expect("below 32");
    page.lbaf[0] = LbaFormat::default().with_lbads(shift);
    Page::of(&page)
}

/// What does not depend on the command set; the only page that tells whether the namespace is ready.
pub(super) fn independent(namespace: &Namespace) -> Page {
    let mut page = IndependentNamespace::zeroed();
    page.nsfeat = NamespaceFeatures::default().with_uidreuse(true).bits();
    page.nmic = NamespaceSharing::default().with_shared(true);
    page.nsattr = attributes(namespace);
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

/// Identifiers are never used again, and the preferred sizes are given.
fn features() -> NamespaceFeatures {
    NamespaceFeatures::default().with_uidreuse(true).with_optperf(true)
}

fn attributes(namespace: &Namespace) -> NamespaceAttributes {
    NamespaceAttributes::default().with_write_protected(namespace.read_only())
}

/// A size in logical blocks, zero's based; one block when a block is larger.
fn blocks_z(namespace: &Namespace, bytes: u32) -> u16 {
    let blocks = (bytes >> namespace.block_shift()).max(1);
    u16::try_from(blocks - 1).expect("128 KiB are 256 of the smallest blocks")
}
