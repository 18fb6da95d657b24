//! Cross-Controller Reset (NVM Express Base 2.3, section 5.4.3): a host has another controller of its own reset, which
//! it has lost.

use std::ops::Range;

use ringfab_spec::log::{
    CrossControllerResetEntry, CrossControllerResetFlags, CrossControllerResetStatus, LostHostEntry,
    LostPathsHeader,
};

use super::page::Page;
use super::{AdminContext, AdminOutcome};
use crate::command::{Command, dword_offset};
use crate::controller::{Controller, LostController, ResetEntry, are_of_one_host};
use crate::failure::Failure;
use crate::target::Instances;

/// Offsets of the fields of the command.
const ICID: u16 = dword_offset(10);
const CIU: u16 = dword_offset(10) + 2;

/// The other controller ends at once. The data path has its connections, and knows when nothing of it is left.
pub(super) fn reset(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let impacted = command.entry().impacted_controller();
    if impacted.ciu == 0 {
        return Err(Failure::invalid_field(CIU));
    }
    let found = Instances(context.target).find(impacted);
    // Of an identifier that another process gives, nothing is known here. One that is gone is over.
    let is_ours = match &found {
        Some(found) => are_of_one_host(found, controller),
        None => context.served.may_give(controller.subsystem(), impacted.cntlid),
    };
    // An earlier controller may have had this one's identifier, of a process that is gone: that is over.
    if impacted == controller.instance() || !is_ours {
        return Err(Failure::invalid_field(ICID));
    }
    let mut state = controller.state();
    state.resets.check(impacted)?;
    state.resets.begin(impacted, command.command_id(), context.now);
    Ok(AdminOutcome::Reset(impacted))
}

/// The log page: resets whose commands do not wait any more.
pub(super) fn page(controller: &Controller) -> Page {
    let entries: Vec<ResetEntry> = controller.state().resets.entries().collect();
    let header = LostPathsHeader::new(u16::try_from(entries.len()).expect("the log is bounded"));
    let mut page = Page::of(&header);
    for ResetEntry { impacted, is_over } in entries {
        let mut entry = CrossControllerResetEntry::zeroed();
        entry.icid.set(impacted.cntlid);
        entry.ciu = impacted.ciu;
        entry.acid.set(controller.id());
        entry.status = match is_over {
            true => CrossControllerResetStatus::SUCCESS,
            false => CrossControllerResetStatus::IN_PROGRESS,
        };
        entry.flags = CrossControllerResetFlags::default().with_validated(true).with_initiated(true);
        page.push(&entry);
    }
    page
}

/// The Lost Host Communication log page: other controllers that have lost this host.
pub(super) fn lost_page(controller: &Controller) -> Page {
    let entries: Vec<LostController> = controller.state().lost.entries().collect();
    let header = LostPathsHeader::new(u16::try_from(entries.len()).expect("the log is bounded"));
    let mut page = Page::of(&header);
    for LostController { instance, has_quiesced } in entries {
        let mut entry = LostHostEntry::zeroed();
        entry.cntlid.set(instance.cntlid);
        entry.lost = u8::from(has_quiesced);
        entry.ciu = instance.ciu;
        page.push(&entry);
    }
    page
}

/// Which entries a host gets whole that reads so many bytes of the page from an offset on.
pub(super) fn entries_read(offset_bytes: u64, bytes: u32) -> Range<usize> {
    const ENTRY: u64 = size_of::<CrossControllerResetEntry>() as u64;
    let before = |end: u64| end.saturating_sub(LostPathsHeader::SIZE as u64);
    let first = before(offset_bytes).div_ceil(ENTRY);
    let end = before(offset_bytes.saturating_add(bytes.into())) / ENTRY;
    first as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_was_read_in_part_was_not_read() {
        let rows = [
            ((0, 8), 0..0),
            ((0, 16), 0..1),
            ((0, 28), 0..2),
            ((8, 16), 0..2),
            ((12, 16), 1..2),
            ((24, 4), 2..2),
        ];
        for ((offset_bytes, bytes), entries) in rows {
            assert_eq!(entries_read(offset_bytes, bytes), entries, "{offset_bytes} {bytes}");
        }
    }
}
