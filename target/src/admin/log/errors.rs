//! Error Information.

use ringfab_spec::log::{ErrorInformation, ParameterErrorLocation, TransportType};

use super::Page;
use crate::config::Transport;
use crate::controller::{Controller, ERROR_ENTRIES_MAX_Z, ErrorRecord};
use crate::failure::ErrorLocation;

/// The last errors, newest first; an entry with a count of zero is not used.
pub(super) fn page(controller: &Controller) -> Page {
    let transport = match controller.limits().transport {
        Transport::Rdma => TransportType::RDMA,
        Transport::Tcp => TransportType::TCP,
    };
    let mut entries = vec![ErrorInformation::zeroed(); usize::from(ERROR_ENTRIES_MAX_Z) + 1];
    for (slot, (count, record)) in entries.iter_mut().zip(controller.state().errors.entries()) {
        *slot = entry(*count, record, transport);
    }
    let mut page = Page::zeroed(0);
    entries.iter().for_each(|entry| page.push(entry));
    page
}

fn entry(count: u64, record: &ErrorRecord, transport: TransportType) -> ErrorInformation {
    let mut entry = ErrorInformation::zeroed();
    entry.error_count.set(count);
    entry.sqid.set(record.queue_id);
    entry.cid.set(record.command_id);
    entry.set_status(record.status);
    entry.parameter_error_location = record.location.map_or_else(ParameterErrorLocation::none, place);
    entry.lba.set(record.lba);
    entry.nsid.set(record.nsid);
    entry.trtype = transport;
    entry
}

fn place(location: ErrorLocation) -> ParameterErrorLocation {
    let byte = u8::try_from(location.byte).expect("a command has 64 bytes");
    ParameterErrorLocation::default().with_byte(byte).with_bit(location.bit)
}
