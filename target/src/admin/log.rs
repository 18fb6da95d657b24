//! Get Log Page (NVM Express Base 2.0, section 5.16).

mod ana;
mod effects;
mod errors;
mod health;

use ringfab_spec::Status;
use ringfab_spec::log::{
    ActiveFirmware, ChangedNamespaceList, CrossControllerResetLogParameter, FirmwareSlot, LogId,
    SupportedLogPages,
};

use super::discovery::Discovery;
use super::page::Page;
use super::{AdminContext, AdminOutcome, AdminWork, FIRMWARE, NSID, Transfer, Work, ascii, reset};
use crate::command::{Command, dword_offset};
use crate::controller::Controller;
use crate::failure::Failure;
use crate::limits::ADMIN_DATA_BYTES_MAX;
use crate::limits::NSID_BROADCAST;

const IO_PAGES: &[LogId] = &[
    LogId::SUPPORTED_LOG_PAGES,
    LogId::ERROR_INFORMATION,
    LogId::SMART,
    LogId::FIRMWARE_SLOT,
    LogId::CHANGED_NAMESPACE_LIST,
    LogId::COMMAND_EFFECTS,
    LogId::ANA,
    LogId::FEATURE_EFFECTS,
    LogId::MI_COMMAND_EFFECTS,
    LogId::CROSS_CONTROLLER_RESET,
    LogId::LOST_HOST_COMMUNICATION,
];
const DISCOVERY_PAGES: &[LogId] = &[LogId::SUPPORTED_LOG_PAGES, LogId::ERROR_INFORMATION, LogId::DISCOVERY];

const LID: u16 = dword_offset(10);
const NUMDL: u16 = dword_offset(10) + 2;
const LPOL: u16 = dword_offset(12);

/// The parts of a Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogRequest {
    page: LogId,
    /// Log Specific Parameter.
    specific: u8,
    retain_event: bool,
    offset_bytes: u64,
    bytes: u32,
}

pub(super) fn transfer(command: Command<'_>) -> Result<Transfer, Failure> {
    LogRequest::parse(command).map(|request| Transfer::ToHost(request.bytes))
}

pub(super) fn get_log_page(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let request = LogRequest::parse(command)?;
    if !pages(controller).contains(&request.page) {
        return Err(Failure::at(Status::INVALID_LOG_PAGE, LID));
    }
    check_nsid(command)?;
    let page = match request.page {
        LogId::DISCOVERY => {
            let slow = SlowPage { discovery: Discovery::new(controller, context.served), request };
            if slow.discovery.is_large() {
                // What changes while it is made is news again.
                if !request.retain_event {
                    read(controller, request.page);
                }
                return Ok(AdminOutcome::Slow(AdminWork(Work::Page(slow))));
            }
            slow.discovery.page()
        }
        _ => build(controller, context, command, request)?,
    };
    let bytes = cut(&page.into_bytes(), request)?;
    if request.removes_completed() {
        let entries = reset::entries_read(request.offset_bytes, request.bytes);
        controller.state().resets.remove_completed(entries);
    }
    if !request.retain_event {
        read(controller, request.page);
    }
    Ok(AdminOutcome::Data { bytes, dw0: 0 })
}

/// A page that takes long to make, and the part of it that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlowPage {
    discovery: Discovery,
    request: LogRequest,
}

impl SlowPage {
    /// The part that was asked for.
    pub(super) fn build(self) -> Result<Vec<u8>, Failure> {
        cut(&self.discovery.page().into_bytes(), self.request)
    }
}

impl LogRequest {
    fn parse(command: Command<'_>) -> Result<Self, Failure> {
        const RETAIN_EVENT: u32 = 1 << 15;
        const INDEX_OFFSET: u32 = 1 << 23;
        let numd_z = u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
        let bytes = (numd_z + 1) * 4;
        if bytes > u64::from(ADMIN_DATA_BYTES_MAX) {
            return Err(Failure::invalid_field(NUMDL));
        }
        let offset_bytes = command.u64(LPOL);
        if !offset_bytes.is_multiple_of(4) {
            return Err(Failure::invalid_field(LPOL));
        }
        // No page here is indexed by anything but bytes.
        if command.dword(14) & INDEX_OFFSET != 0 {
            return Err(Failure::at_bit(Status::INVALID_FIELD, dword_offset(14) + 2, 7));
        }
        Ok(Self {
            page: LogId(command.u8(LID)),
            specific: command.entry().lsp(),
            retain_event: command.dword(10) & RETAIN_EVENT != 0,
            offset_bytes,
            bytes: u32::try_from(bytes).expect("bounded above"),
        })
    }

    /// Whether what has been read of resets that are over leaves the log.
    fn removes_completed(self) -> bool {
        self.page == LogId::CROSS_CONTROLLER_RESET
            && CrossControllerResetLogParameter::from_bits(self.specific).remove_completed()
    }
}

fn pages(controller: &Controller) -> &'static [LogId] {
    if controller.is_discovery() { DISCOVERY_PAGES } else { IO_PAGES }
}

fn build(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
    request: LogRequest,
) -> Result<Page, Failure> {
    Ok(match request.page {
        LogId::SUPPORTED_LOG_PAGES => supported(controller),
        LogId::ERROR_INFORMATION => errors::page(controller),
        LogId::SMART => health::page(controller, context),
        LogId::FIRMWARE_SLOT => firmware_slot(),
        LogId::CHANGED_NAMESPACE_LIST => changed_namespaces(controller),
        LogId::COMMAND_EFFECTS => effects::commands(controller, command.u8(effects::CSI))?,
        LogId::ANA => ana::page(controller, context, command),
        LogId::FEATURE_EFFECTS => effects::features(controller),
        // There is no management endpoint, hence none of its commands.
        LogId::MI_COMMAND_EFFECTS => Page::zeroed(4096),
        LogId::CROSS_CONTROLLER_RESET => reset::page(controller),
        LogId::LOST_HOST_COMMUNICATION => reset::lost_page(controller),
        // Every page that a controller has is one of these, or that of discovery.
        _ => return Err(Failure::at(Status::INVALID_LOG_PAGE, LID)),
    })
}

/// No page is about one namespace, not even that of health (LPA bit 0 is clear).
fn check_nsid(command: Command<'_>) -> Result<(), Failure> {
    if matches!(command.nsid(), 0 | NSID_BROADCAST) { Ok(()) } else { Err(Failure::invalid_field(NSID)) }
}

/// The part that was asked for. Beyond the end of the page there are zeroes; to begin there is an error.
fn cut(page: &[u8], request: LogRequest) -> Result<Vec<u8>, Failure> {
    let offset = usize::try_from(request.offset_bytes).ok().filter(|offset| *offset <= page.len());
    let rest = &page[offset.ok_or(Failure::invalid_field(LPOL))?..];
    let mut bytes = vec![0; request.bytes as usize];
    let used = rest.len().min(bytes.len());
    bytes[..used].copy_from_slice(&rest[..used]);
    Ok(bytes)
}

/// The host has seen a page: what it says is not news any more.
fn read(controller: &Controller, page: LogId) {
    if page == LogId::LOST_HOST_COMMUNICATION {
        controller.state().lost.read();
    }
    controller.events().log_read(page);
}

fn supported(controller: &Controller) -> Page {
    let mut log = SupportedLogPages::zeroed();
    pages(controller).iter().for_each(|id| log.support(*id));
    Page::of(&log)
}

/// One slot, active, with our revision.
fn firmware_slot() -> Page {
    let mut log = FirmwareSlot::zeroed();
    log.afi = ActiveFirmware::default().with_active_slot(1);
    log.frs[0] = ascii(FIRMWARE);
    Page::of(&log)
}

fn changed_namespaces(controller: &Controller) -> Page {
    Page::of(&ChangedNamespaceList::from_nsids(controller.events().changed_namespaces()))
}
