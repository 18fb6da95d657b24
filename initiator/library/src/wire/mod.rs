//! Builds commands; [`answers`] parses the answers.

pub(crate) mod answers;
pub(crate) mod data;

use std::num::NonZeroU16;
use std::time::Duration;

use ringfab_fabric::rdma::RemoteBuffer;
use ringfab_spec::features::{AsyncEventConfiguration, FeatureId, HostBehaviorSupport, NumberOfQueues};
use ringfab_spec::identify::{Cns, NamespaceList};
use ringfab_spec::lba_status::LbaStatusAction;
use ringfab_spec::log::{AnaLogParameter, ControllerInstance, CrossControllerResetLogParameter, LogId};
use ringfab_spec::nqn::NqnError;
use ringfab_spec::property::{Configuration, ShutdownNotification, offset};
use ringfab_spec::rdma_cm;
use ringfab_spec::sqe::{AuthenticationCommand, ConnectData, LogPageDword10, PropertySize};
use ringfab_spec::{CompletionEntry, Nqn, SglDescriptor, SubmissionEntry};

use crate::identity::HostIdentity;
use answers::{Capabilities, ControllerFacts};

pub(crate) use ringfab_spec::identify::NSID_ALL;

/// A response capsule.
pub(crate) const RESPONSE_BYTES: usize = CompletionEntry::SIZE;
/// Asks for any controller.
pub(crate) const CNTLID_DYNAMIC: u16 = ConnectData::CNTLID_DYNAMIC;
/// Entries of a list of active namespaces.
pub(crate) const ACTIVE_LIST_ENTRIES: usize = NamespaceList::COUNT_MAX;
/// CC.CSS: all command sets that the controller has (Base 2.0, figure 46).
const CSS_ALL_SUPPORTED: u8 = 0b110;
/// Identifiers are given when a command is sent.
const NO_CID: u16 = 0;

pub(crate) fn read(nsid: u32, lba: u64, nlb: u32) -> SubmissionEntry {
    SubmissionEntry::read(NO_CID, nsid, lba, nlb)
}

pub(crate) fn write(nsid: u32, lba: u64, nlb: u32, fua: bool) -> SubmissionEntry {
    SubmissionEntry::write(NO_CID, nsid, lba, nlb, fua)
}

pub(crate) fn compare(nsid: u32, lba: u64, nlb: u32) -> SubmissionEntry {
    SubmissionEntry::compare(NO_CID, nsid, lba, nlb)
}

pub(crate) fn verify(nsid: u32, lba: u64, nlb: u32) -> SubmissionEntry {
    SubmissionEntry::verify(NO_CID, nsid, lba, nlb)
}

pub(crate) fn write_zeroes(nsid: u32, lba: u64, nlb: u32, deallocate: bool, fua: bool) -> SubmissionEntry {
    SubmissionEntry::write_zeroes(NO_CID, nsid, lba, nlb, deallocate, fua)
}

pub(crate) fn discard(nsid: u32, ranges: u32) -> SubmissionEntry {
    SubmissionEntry::deallocate(NO_CID, nsid, ranges as u16)
}

pub(crate) fn flush(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::flush(NO_CID, nsid)
}

pub(crate) fn abort(sqid: u16, cid: u16) -> SubmissionEntry {
    SubmissionEntry::abort(NO_CID, sqid, cid)
}

pub(crate) fn keep_alive() -> SubmissionEntry {
    SubmissionEntry::keep_alive(NO_CID)
}

pub(crate) fn async_event_request() -> SubmissionEntry {
    SubmissionEntry::async_event_request(NO_CID)
}

/// Connect of a queue of `size` entries. A keep-alive timeout too long for its field is the longest.
pub(crate) fn connect(qid: u16, size: u16, keep_alive: Duration, flow_control: bool) -> SubmissionEntry {
    let kato_ms = u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX);
    SubmissionEntry::connect(NO_CID, qid, u32::from(size), kato_ms, !flow_control)
}

/// The data of a Connect.
pub(crate) fn connect_data(
    host: &HostIdentity,
    cntlid: u16,
    subsystem: &str,
) -> Result<ConnectData, NqnError> {
    let (subsystem, host_nqn) = (Nqn::new(subsystem)?, Nqn::with_form(&host.nqn)?);
    Ok(ConnectData::new(host.id.into_bytes(), cntlid, subsystem, host_nqn))
}

/// Authentication Send of a message of so many bytes.
pub(crate) fn authentication_send(length: u32) -> SubmissionEntry {
    AuthenticationCommand::send(NO_CID, length)
}

/// Authentication Receive of a message of at most so many bytes.
pub(crate) fn authentication_receive(length: u32) -> SubmissionEntry {
    AuthenticationCommand::receive(NO_CID, length)
}

pub(crate) fn get_capabilities() -> SubmissionEntry {
    SubmissionEntry::property_get(NO_CID, offset::CAP, PropertySize::Eight)
}

pub(crate) fn get_version() -> SubmissionEntry {
    SubmissionEntry::property_get(NO_CID, offset::VS, PropertySize::Four)
}

pub(crate) fn get_status() -> SubmissionEntry {
    SubmissionEntry::property_get(NO_CID, offset::CSTS, PropertySize::Four)
}

/// Enables, with the entry sizes of the NVM Command Set, 64 and 16 bytes, and with what CAP allows: the smallest memory
/// page, and the NVM Command Set by whichever name the controller knows it.
fn enabled(capabilities: &Capabilities) -> Configuration {
    let css = if !capabilities.css_nvm && capabilities.css_iocs { CSS_ALL_SUPPORTED } else { 0 };
    let sizes = Configuration::default().with_iosqes(6).with_iocqes(4);
    sizes.with_en(true).with_mps(capabilities.mpsmin).with_css(css)
}

pub(crate) fn set_enabled(capabilities: &Capabilities) -> SubmissionEntry {
    let value = enabled(capabilities);
    SubmissionEntry::property_set(NO_CID, offset::CC, PropertySize::Four, u64::from(value.bits()))
}

pub(crate) fn set_shutdown(capabilities: &Capabilities) -> SubmissionEntry {
    let value = enabled(capabilities).with_shn(ShutdownNotification::NORMAL);
    SubmissionEntry::property_set(NO_CID, offset::CC, PropertySize::Four, u64::from(value.bits()))
}

/// Ends an I/O queue; it goes out on that queue.
pub(crate) fn disconnect() -> SubmissionEntry {
    SubmissionEntry::disconnect(NO_CID)
}

pub(crate) fn identify_controller() -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, Cns::CONTROLLER.0, 0, 0, 0)
}

pub(crate) fn identify_nvm_limits() -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, Cns::COMMAND_SET_CONTROLLER.0, 0, 0, 0)
}

pub(crate) fn identify_active(after: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, Cns::ACTIVE_NAMESPACES.0, after, 0, 0)
}

pub(crate) fn identify_namespace(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, Cns::NAMESPACE.0, nsid, 0, 0)
}

pub(crate) fn identify_descriptors(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, Cns::NAMESPACE_DESCRIPTORS.0, nsid, 0, 0)
}

/// Get LBA Status of allocated blocks, for an answer of so many bytes. Where there are more blocks than the command can
/// name, it is for all up to the end of the namespace.
pub(crate) fn allocated(nsid: u32, lba: u64, blocks: u64, bytes: usize) -> SubmissionEntry {
    let length = u16::try_from(blocks).unwrap_or(0);
    SubmissionEntry::get_lba_status(NO_CID, nsid, lba, length, bytes as u32, LbaStatusAction::ALLOCATED)
}

pub(crate) fn changed_namespaces(length: u32) -> SubmissionEntry {
    log_page(LogId::CHANGED_NAMESPACE_LIST.0, NSID_ALL, 0, length)
}

/// Cross-Controller Reset of an instance of another controller.
pub(crate) fn cross_controller_reset(impacted: ControllerInstance) -> SubmissionEntry {
    SubmissionEntry::cross_controller_reset(NO_CID, impacted)
}

/// Which resets are done. What is, leaves the log.
pub(crate) fn reset_log(length: u32) -> SubmissionEntry {
    let parameter = CrossControllerResetLogParameter::default().with_remove_completed(true);
    log_page(LogId::CROSS_CONTROLLER_RESET.0, 0, 0, length).with_lsp(parameter.bits())
}

/// Which controllers have lost this host.
pub(crate) fn lost_host_log(length: u32) -> SubmissionEntry {
    log_page(LogId::LOST_HOST_COMMUNICATION.0, 0, 0, length)
}

/// The log page of access states from a byte on, without the namespaces of each group.
pub(crate) fn access_log(offset: u32, length: u32) -> SubmissionEntry {
    let mut entry = log_page(LogId::ANA.0, NSID_ALL, offset.into(), length);
    let parameter = AnaLogParameter::default().with_groups_only(true).bits();
    let dword = LogPageDword10::from_bits(entry.cdw10.get()).with_lsp(parameter);
    entry.cdw10.set(dword.bits());
    entry
}

/// Get Log Page, clearing its event; `length` is a multiple of four.
pub(crate) fn log_page(page: u8, nsid: u32, offset: u64, length: u32) -> SubmissionEntry {
    SubmissionEntry::get_log_page(NO_CID, page, nsid, offset, length, false)
}

pub(crate) fn set_queue_count(queues: u16) -> SubmissionEntry {
    let count = NonZeroU16::new(queues).unwrap_or(NonZeroU16::MIN);
    let value = NumberOfQueues::from_counts(count, count);
    SubmissionEntry::set_features(NO_CID, FeatureId::NUMBER_OF_QUEUES.0, false, value.bits())
}

/// The notices that we act on, of those that the controller has.
pub(crate) fn set_event_config(facts: &ControllerFacts) -> SubmissionEntry {
    let value = AsyncEventConfiguration::default()
        .with_namespace_attribute_notices(facts.notices.namespace_attributes)
        .with_cross_controller_reset_notices(facts.lost_paths.reset_notices)
        .with_lost_host_notices(facts.lost_paths.lost_host_notices)
        .with_ana_change_notices(facts.notices.access)
        .with_discovery_log_notices(facts.discovery_log_notices);
    SubmissionEntry::set_features(NO_CID, FeatureId::ASYNC_EVENT_CONFIGURATION.0, false, value.bits())
}

/// Says that we honour the delays with which a controller asks for another try; `HostBehaviorSupport` goes with it.
pub(crate) fn set_host_behavior() -> (SubmissionEntry, HostBehaviorSupport) {
    let entry = SubmissionEntry::set_features(NO_CID, FeatureId::HOST_BEHAVIOR_SUPPORT.0, false, 0);
    let mut behavior = HostBehaviorSupport::zeroed();
    behavior.acre = 1;
    (entry, behavior)
}

pub(crate) fn set_identifier(entry: &mut SubmissionEntry, cid: u16) {
    entry.cid.set(cid);
}

pub(crate) fn set_no_data(entry: &mut SubmissionEntry) {
    // A keyed block of no bytes: what other hosts send, and what controllers that look at the type anyway accept.
    entry.sgl = SglDescriptor::keyed(0, 0, 0, false);
}

pub(crate) fn set_in_capsule_data(entry: &mut SubmissionEntry, length: u32) {
    entry.sgl = SglDescriptor::in_capsule(0, length);
}

pub(crate) fn set_transport_data(entry: &mut SubmissionEntry, length: u32) {
    entry.sgl = SglDescriptor::transport(length);
}

pub(crate) fn set_keyed_data(entry: &mut SubmissionEntry, exposed: &RemoteBuffer) {
    let RemoteBuffer { address, length, key, invalidate, .. } = *exposed;
    entry.sgl = SglDescriptor::keyed(address, length, key, invalidate);
}

/// The private data with which a queue connects.
pub(crate) fn cm_request(qid: u16, size: u16, responses: u16) -> rdma_cm::Request {
    rdma_cm::Request::new(qid, size, responses, 0)
}

#[cfg(test)]
mod tests {
    use ringfab_spec::IntoBytes;

    use super::*;

    #[test]
    fn a_controller_is_enabled_as_its_capabilities_allow() {
        let plain = Capabilities { css_nvm: true, ..Capabilities::default() };
        assert_eq!(enabled(&plain).bits(), 0x0046_0001);
        let large_pages = Capabilities { mpsmin: 2, ..plain };
        assert_eq!(enabled(&large_pages).bits(), 0x0046_0101);
        let by_all = Capabilities { css_iocs: true, css_nvm: false, ..plain };
        assert_eq!(enabled(&by_all).bits(), 0x0046_0061);
        assert_eq!(
            enabled(&Capabilities { css_iocs: true, ..plain }).css(),
            0,
            "by its own name if it has one"
        );
    }

    #[test]
    fn the_request_for_a_queue_says_its_size_in_both_directions() {
        assert_eq!(cm_request(3, 129, 130).as_bytes()[..8], [0, 0, 3, 0, 130, 0, 128, 0]);
    }
}
