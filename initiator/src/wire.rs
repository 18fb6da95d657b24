//! Commands as they are built and answers as they are read: the only place that knows where a field lies.

use std::num::NonZeroU16;
use std::time::Duration;

use ringfab_spec::features::{AsyncEventConfiguration, FeatureId, NumberOfQueues};
use ringfab_spec::nqn::NqnError;
use ringfab_spec::property::{self, Configuration, ShutdownNotification, ShutdownStatus, offset};
use ringfab_spec::rdma_cm;
use ringfab_spec::sqe::{ConnectData, PropertySize};
use ringfab_spec::{CompletionEntry, FromBytes, Nqn, SglDescriptor, SubmissionEntry};
use uuid::Uuid;

use crate::identity::HostIdentity;
use crate::namespace::NamespaceIdentity;

/// A response capsule.
pub(crate) const RESPONSE_BYTES: usize = CompletionEntry::SIZE;
/// Asks for any controller.
pub(crate) const CNTLID_DYNAMIC: u16 = ConnectData::CNTLID_DYNAMIC;
/// Entries of a list of active namespaces.
pub(crate) const ACTIVE_LIST_ENTRIES: usize = 1024;
/// Identifiers are given when a command is sent.
const NO_CID: u16 = 0;

/// Identify's selector (CNS) of what to return (Base 2.0, figure 273).
mod cns {
    pub(super) const NAMESPACE: u8 = 0x00;
    pub(super) const CONTROLLER: u8 = 0x01;
    pub(super) const ACTIVE_NAMESPACES: u8 = 0x02;
    pub(super) const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    pub(super) const IO_COMMAND_SET_CONTROLLER: u8 = 0x06;
}

pub(crate) fn read(nsid: u32, lba: u64, nlb: u32) -> SubmissionEntry {
    SubmissionEntry::read(NO_CID, nsid, lba, nlb)
}

pub(crate) fn write(nsid: u32, lba: u64, nlb: u32, fua: bool) -> SubmissionEntry {
    SubmissionEntry::write(NO_CID, nsid, lba, nlb, fua)
}

pub(crate) fn compare(nsid: u32, lba: u64, nlb: u32) -> SubmissionEntry {
    SubmissionEntry::compare(NO_CID, nsid, lba, nlb)
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
pub(crate) fn connect(qid: u16, size: u16, keep_alive: Duration) -> SubmissionEntry {
    let kato_ms = u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX);
    SubmissionEntry::connect(NO_CID, qid, u32::from(size), kato_ms, false)
}

/// The data of a Connect.
pub(crate) fn connect_data(
    host: &HostIdentity,
    cntlid: u16,
    subsystem: &str,
) -> Result<ConnectData, NqnError> {
    let (subsystem, host_nqn) = (Nqn::new(subsystem)?, Nqn::new(&host.nqn)?);
    Ok(ConnectData::new(host.id.into_bytes(), cntlid, subsystem, host_nqn))
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

/// Enables, with the entry sizes of the NVM Command Set: 64 and 16 bytes.
fn enabled() -> Configuration {
    Configuration::default().with_en(true).with_iosqes(6).with_iocqes(4)
}

pub(crate) fn set_enabled() -> SubmissionEntry {
    SubmissionEntry::property_set(NO_CID, offset::CC, PropertySize::Four, u64::from(enabled().bits()))
}

pub(crate) fn set_shutdown() -> SubmissionEntry {
    let value = enabled().with_shn(ShutdownNotification::NORMAL);
    SubmissionEntry::property_set(NO_CID, offset::CC, PropertySize::Four, u64::from(value.bits()))
}

pub(crate) fn identify_controller() -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, cns::CONTROLLER, 0, 0, 0)
}

pub(crate) fn identify_nvm_limits() -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, cns::IO_COMMAND_SET_CONTROLLER, 0, 0, 0)
}

pub(crate) fn identify_active(after: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, cns::ACTIVE_NAMESPACES, after, 0, 0)
}

pub(crate) fn identify_namespace(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, cns::NAMESPACE, nsid, 0, 0)
}

pub(crate) fn identify_descriptors(nsid: u32) -> SubmissionEntry {
    SubmissionEntry::identify(NO_CID, cns::NAMESPACE_DESCRIPTORS, nsid, 0, 0)
}

pub(crate) fn changed_namespaces(length: u32) -> SubmissionEntry {
    /// Changed Namespace List (Base 2.0, section 5.16.1.5).
    const CHANGED_NAMESPACES: u8 = 0x04;
    log_page(CHANGED_NAMESPACES, NSID_ALL, 0, length)
}

/// Get Log Page, clearing its event; `length` is a multiple of four.
pub(crate) fn log_page(page: u8, nsid: u32, offset: u64, length: u32) -> SubmissionEntry {
    SubmissionEntry::get_log_page(NO_CID, page, nsid, offset, length, false)
}

/// Stands for all namespaces, or for the controller.
pub(crate) const NSID_ALL: u32 = 0xffff_ffff;

pub(crate) fn set_queue_count(queues: u16) -> SubmissionEntry {
    let count = NonZeroU16::new(queues).unwrap_or(NonZeroU16::MIN);
    let value = NumberOfQueues::from_counts(count, count);
    SubmissionEntry::set_features(NO_CID, FeatureId::NUMBER_OF_QUEUES.0, false, value.bits())
}

/// I/O queues allocated: as many of a kind as there are of the scarcer one.
pub(crate) fn parse_queue_count(entry: &CompletionEntry) -> u16 {
    let allocated = NumberOfQueues::from_bits(entry.dw0.get());
    u16::try_from(allocated.nsq().min(allocated.ncq())).unwrap_or(u16::MAX)
}

/// The notices that we act on, of those that the controller has (OAES has their bits).
pub(crate) fn set_event_config(facts: &ControllerFacts) -> SubmissionEntry {
    let has = AsyncEventConfiguration::from_bits(facts.oaes).namespace_attribute_notices();
    let value = AsyncEventConfiguration::default().with_namespace_attribute_notices(has);
    SubmissionEntry::set_features(NO_CID, FeatureId::ASYNC_EVENT_CONFIGURATION.0, false, value.bits())
}

/// Whether an event says that namespaces changed: type Notice, information Namespace Attribute Changed.
pub(crate) fn is_namespace_change(entry: &CompletionEntry) -> bool {
    let dw0 = entry.dw0.get();
    dw0 & 0b111 == 2 && dw0 >> 8 & 0xff == 0
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

pub(crate) fn set_keyed_data(entry: &mut SubmissionEntry, address: u64, length: u32, key: u32) {
    entry.sgl = SglDescriptor::keyed(address, length, key, true);
}

/// The private data with which a queue connects.
pub(crate) fn cm_request(qid: u16, size: u16) -> rdma_cm::Request {
    rdma_cm::Request::new(qid, size, size, 0)
}

/// How many commands a controller that accepted can receive; `None` when what it said is not of NVMe/RDMA.
pub(crate) fn accept_queue_size(private_data: &[u8]) -> Option<u16> {
    let (accept, _) = rdma_cm::Accept::read_from_prefix(private_data).ok()?;
    (accept.recfmt.get() == 0).then(|| accept.crqsize.get())
}

/// What a controller that rejected said.
pub(crate) fn reject_text(private_data: &[u8]) -> String {
    match rdma_cm::Reject::read_from_prefix(private_data) {
        Ok((reject, _)) => reject.status().to_string(),
        Err(_) => "it gave no NVMe/RDMA reason".to_owned(),
    }
}

/// CAP, as far as it matters here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    /// Entries that a queue can have.
    pub(crate) queue_entries_max: u32,
    /// How long enabling may take.
    pub(crate) timeout: Duration,
    /// The smallest memory page is 2^(12 + this) bytes.
    pub(crate) mpsmin: u8,
}

pub(crate) fn parse_capabilities(value: u64) -> Capabilities {
    let cap = property::Capabilities::from_bits(value);
    Capabilities {
        queue_entries_max: u32::from(cap.mqes_z()) + 1,
        // A controller that says zero gets the granularity of the field.
        timeout: Duration::from_millis(500) * u32::from(cap.to().max(1)),
        mpsmin: cap.mpsmin(),
    }
}

pub(crate) fn parse_version(value: u64) -> (u16, u8, u8) {
    let version = property::Version::from_bits(value as u32);
    (version.mjr(), version.mnr(), version.ter())
}

/// CSTS, as far as it matters here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControllerStatus {
    pub(crate) ready: bool,
    pub(crate) fatal: bool,
    pub(crate) shutdown_complete: bool,
}

pub(crate) fn parse_status(value: u64) -> ControllerStatus {
    let status = property::ControllerStatus::from_bits(value as u32);
    ControllerStatus {
        ready: status.rdy(),
        fatal: status.cfs(),
        shutdown_complete: status.shst() == ShutdownStatus::COMPLETE,
    }
}

/// Identify Controller (Base 2.0, figure 275), as far as it matters here.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerFacts {
    pub(crate) serial: String,
    pub(crate) model: String,
    pub(crate) firmware: String,
    pub(crate) subsystem: String,
    pub(crate) mdts: u8,
    pub(crate) oaes: u32,
    pub(crate) traffic_based_keep_alive: bool,
    pub(crate) discovery: bool,
    /// Keep Alive Support, in units of 100 ms; zero for none.
    pub(crate) keep_alive_unit: u16,
    pub(crate) maxcmd: u16,
    pub(crate) write_zeroes: bool,
    pub(crate) discard: bool,
    pub(crate) volatile_write_cache: bool,
    pub(crate) keyed_sgl: bool,
    pub(crate) sgl_offset: bool,
    pub(crate) ioccsz: u32,
    pub(crate) icdoff: u16,
}

/// Reads 4096 bytes.
pub(crate) fn parse_controller(data: &[u8]) -> ControllerFacts {
    let (ctratt, oncs, sgls) = (u32_at(data, 96), u16_at(data, 520), u32_at(data, 536));
    ControllerFacts {
        serial: text_at(data, 4, 20),
        model: text_at(data, 24, 40),
        firmware: text_at(data, 64, 8),
        subsystem: text_at(data, 768, 256),
        mdts: data[77],
        oaes: u32_at(data, 92),
        traffic_based_keep_alive: ctratt & 1 << 6 != 0,
        discovery: data[111] == 2,
        keep_alive_unit: u16_at(data, 320),
        maxcmd: u16_at(data, 514),
        discard: oncs & 1 << 2 != 0,
        write_zeroes: oncs & 1 << 3 != 0,
        volatile_write_cache: data[525] & 1 != 0,
        keyed_sgl: sgls & 1 << 2 != 0,
        sgl_offset: sgls & 1 << 20 != 0,
        ioccsz: u32_at(data, 1792),
        icdoff: u16_at(data, 1800),
    }
}

/// Limits of the NVM Command Set (NVM Command Set 1.0, figure 118), as far as they matter here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NvmLimits {
    /// Write Zeroes Size Limit, as MDTS.
    pub(crate) wzsl: u8,
    /// Dataset Management Ranges Limit; zero for none.
    pub(crate) dmrl: u8,
    /// Dataset Management Range Size Limit in blocks; zero for none.
    pub(crate) dmrsl: u32,
}

pub(crate) fn parse_nvm_limits(data: &[u8]) -> NvmLimits {
    NvmLimits { wzsl: data[1], dmrl: data[3], dmrsl: u32_at(data, 4) }
}

/// Appends the namespaces of an active list; it ends with a zero.
pub(crate) fn parse_active(data: &[u8], list: &mut Vec<u32>) {
    let entries = data.chunks_exact(4).take(ACTIVE_LIST_ENTRIES).map(|bytes| u32_at(bytes, 0));
    list.extend(entries.take_while(|nsid| *nsid != 0));
}

/// Identify Namespace (NVM Command Set 1.0, figure 97), as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceFacts {
    pub(crate) blocks: u64,
    pub(crate) block_shift: u8,
    pub(crate) metadata_bytes: u16,
    pub(crate) read_only: bool,
    pub(crate) preferred_write_blocks: u32,
    pub(crate) identity: NamespaceIdentity,
}

/// Reads 4096 bytes.
pub(crate) fn parse_namespace(data: &[u8]) -> NamespaceFacts {
    let (flbas, many_formats) = (data[26], data[25] > 15);
    let high = if many_formats { usize::from(flbas >> 5 & 0b11) << 4 } else { 0 };
    let format = 128 + 4 * (usize::from(flbas & 0xf) | high);
    let optimal = data[24] & 1 << 4 != 0;
    let identity = NamespaceIdentity {
        nguid: nonzero(bytes_at(data, 104)),
        eui64: nonzero(bytes_at(data, 120)),
        uuid: None,
    };
    NamespaceFacts {
        blocks: u64::from_le_bytes(bytes_at(data, 0)),
        block_shift: data[format + 2],
        metadata_bytes: u16_at(data, format),
        read_only: data[99] & 1 != 0,
        preferred_write_blocks: if optimal { u32::from(u16_at(data, 64)) + 1 } else { 1 },
        identity,
    }
}

/// The UUID in a list of identification descriptors (Base 2.0, figure 277).
pub(crate) fn parse_uuid(data: &[u8]) -> Option<Uuid> {
    const HEADER_BYTES: usize = 4;
    const UUID: u8 = 3;
    let mut rest = data;
    loop {
        let (kind, length) = (*rest.first()?, usize::from(*rest.get(1)?));
        let value = rest.get(HEADER_BYTES..HEADER_BYTES + length)?;
        if length == 0 {
            return None;
        }
        if kind == UUID {
            return nonzero::<16>(value.try_into().ok()?).map(Uuid::from_bytes);
        }
        rest = &rest[HEADER_BYTES + length..];
    }
}

fn nonzero<const N: usize>(bytes: [u8; N]) -> Option<[u8; N]> {
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}

fn bytes_at<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&data[at..at + N]);
    bytes
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(data, at))
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(data, at))
}

/// Text padded with spaces or zeroes; what is not printable becomes a dot, so that a peer cannot write to a terminal.
pub(crate) fn text_at(data: &[u8], at: usize, length: usize) -> String {
    let bytes = &data[at..at + length];
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    let shown = text.trim_end().chars().map(|one| if one.is_control() { '.' } else { one });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_in_use_is_found_also_beyond_the_first_sixteen() {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&1000_u64.to_le_bytes());
        data[128 + 4 + 2] = 9;
        data[128 + 4 * 17 + 2] = 12;
        for (formats_z, flbas, block_shift) in [(20, 0x01, 9), (20, 0x21, 12), (15, 0x21, 9), (20, 0x61, 0)] {
            (data[25], data[26]) = (formats_z, flbas);
            assert_eq!(parse_namespace(&data).block_shift, block_shift, "FLBAS {flbas:#x} of {formats_z}");
        }
    }

    #[test]
    fn a_uuid_is_found_behind_other_descriptors() {
        let mut data = vec![0; 4096];
        (data[0], data[1]) = (1, 8);
        (data[12], data[13]) = (3, 16);
        data[16..32].copy_from_slice(&[7; 16]);
        assert_eq!(parse_uuid(&data), Some(Uuid::from_bytes([7; 16])));
        assert_eq!(parse_uuid(&data[..31]), None);
    }

    #[test]
    fn text_of_a_peer_cannot_control_a_terminal() {
        assert_eq!(text_at(b"a\x1b[2Jb  \0x", 0, 10), "a.[2Jb");
    }

    #[test]
    fn the_request_for_a_queue_says_its_size_in_both_directions() {
        use ringfab_spec::IntoBytes;
        assert_eq!(cm_request(3, 129).as_bytes()[..8], [0, 0, 3, 0, 129, 0, 128, 0]);
    }

    proptest! {
        #[test]
        fn any_identify_data_are_read_without_a_panic(seed: [u8; 32], at in 0_usize..4064) {
            let mut data = vec![0xff; 4096];
            data[at..at + 32].copy_from_slice(&seed);
            parse_controller(&data);
            parse_namespace(&data);
            parse_nvm_limits(&data);
            parse_uuid(&data);
            let mut list = Vec::new();
            parse_active(&data, &mut list);
            prop_assert!(list.len() <= ACTIVE_LIST_ENTRIES);
        }
    }
}
