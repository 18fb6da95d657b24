//! The Asymmetric Namespace Access log page (NVM Express Base 2.0, section 5.16.1.13).

use ringfab_spec::log::{AnaGroupDescriptor, AnaLogHeader, AnaLogParameter};
use ringfab_spec::zerocopy::little_endian::U32;

use crate::admin::AdminContext;
use crate::admin::page::Page;
use crate::command::Command;
use crate::config::ANA_GROUP_MAX;
use crate::controller::{Access, Controller};
use crate::limits::NSID_MAX;

/// What the page has at most, as a host works it out from Identify Controller: some read that much. Behind the last
/// group there are zeroes.
const BYTES_MAX: usize = AnaLogHeader::SIZE
    + ANA_GROUP_MAX as usize * AnaGroupDescriptor::SIZE
    + NSID_MAX as usize * size_of::<u32>();

pub(super) fn page(controller: &Controller, context: &AdminContext<'_>, command: Command<'_>) -> Page {
    let groups_only = AnaLogParameter::from_bits((command.dword(10) >> 8 & 0x7f) as u8).groups_only();
    let Some(served) = context.served.of(controller.subsystem()) else { return Page::zeroed(BYTES_MAX) };
    let (change_count, groups) = Access(controller).log(served, true);
    let count = u16::try_from(groups.len()).expect("there are at most 128 groups");
    let mut page = Page::of(&AnaLogHeader::new(change_count, count));
    for group in &groups {
        let nsids = if groups_only { &[][..] } else { &group.nsids };
        let number = u32::try_from(nsids.len()).expect("there are at most 4096 namespaces");
        page.push(&AnaGroupDescriptor::new(group.group, group.state, group.change_count, number));
        nsids.iter().for_each(|nsid| page.push(&U32::new(*nsid)));
    }
    page.fill_up(BYTES_MAX);
    page
}
