//! Parses a controller's answers, as far as the initiator needs them.

use std::time::Duration;

use ringfab_base::visible;
use ringfab_spec::features::NumberOfQueues;
use ringfab_spec::identify::{
    ControllerType, DeallocateFeatures, IdentifyController, IdentifyNamespace, IdentifyNvmController,
    NamespaceDescriptor, NamespaceDescriptors, NamespaceList,
};
use ringfab_spec::log::{
    AsyncEvent, CrossControllerResetEntry, CrossControllerResetResult, LostHostEntry, LostPathsHeader,
    NoticeInfo,
};
use ringfab_spec::nqn::NqnField;
use ringfab_spec::property::{self, ShutdownStatus};
use ringfab_spec::zerocopy::{Immutable, KnownLayout, Unaligned};
use ringfab_spec::{CompletionEntry, FromBytes, rdma_cm};
use uuid::Uuid;

use super::data::{AnswerData, Short};
use crate::namespace::NamespaceIdentity;
use crate::retry::RetryDelays;

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

/// I/O queues allocated: as many of a kind as there are of the scarcer one.
pub(crate) fn parse_queue_count(entry: &CompletionEntry) -> u16 {
    let allocated = NumberOfQueues::from_bits(entry.dw0.get());
    u16::try_from(allocated.nsq().min(allocated.ncq())).unwrap_or(u16::MAX)
}

/// Whether an event says that namespaces changed.
pub(crate) fn is_namespace_change(entry: &CompletionEntry) -> bool {
    let event = AsyncEvent::from_bits(entry.dw0.get());
    event.as_notice() == Some(NoticeInfo::NAMESPACE_ATTRIBUTE_CHANGED)
}

/// Whether an event says that access states changed.
pub(crate) fn is_access_change(entry: &CompletionEntry) -> bool {
    AsyncEvent::from_bits(entry.dw0.get()).as_notice() == Some(NoticeInfo::ANA_CHANGE)
}

/// Whether an event says that the discovery log page changed.
pub(crate) fn is_discovery_log_change(entry: &CompletionEntry) -> bool {
    let event = AsyncEvent::from_bits(entry.dw0.get());
    event.as_notice() == Some(NoticeInfo::DISCOVERY_LOG_CHANGE)
}

/// Whether an event says that a Cross-Controller Reset is done.
pub(crate) fn is_reset_done(entry: &CompletionEntry) -> bool {
    let event = AsyncEvent::from_bits(entry.dw0.get());
    event.as_notice() == Some(NoticeInfo::CROSS_CONTROLLER_RESET_COMPLETED)
}

/// Whether an event says that another controller has lost this host.
pub(crate) fn is_lost_host(entry: &CompletionEntry) -> bool {
    let event = AsyncEvent::from_bits(entry.dw0.get());
    event.as_notice() == Some(NoticeInfo::LOST_HOST_COMMUNICATION)
}

/// Whether the answer to a Cross-Controller Reset says that the instance is over already.
pub(crate) fn is_reset_at_once(entry: &CompletionEntry) -> bool {
    CrossControllerResetResult::from_bits(entry.dw0.get()).immediate()
}

/// Reads the Cross-Controller Reset log page.
pub(crate) fn parse_reset_log(data: AnswerData<'_>) -> Result<Vec<CrossControllerResetEntry>, Short> {
    parse_lost_paths(data)
}

/// Reads the Lost Host Communication log page.
pub(crate) fn parse_lost_host_log(data: AnswerData<'_>) -> Result<Vec<LostHostEntry>, Short> {
    parse_lost_paths(data)
}

/// The entries of a log page about lost paths, as many as there are and as came.
fn parse_lost_paths<T: FromBytes + Immutable + KnownLayout + Unaligned + Copy>(
    data: AnswerData<'_>,
) -> Result<Vec<T>, Short> {
    let header: &LostPathsHeader = data.structure();
    data.require_through(header, &header.entries)?;
    let count = usize::from(header.entries.get()).min(LostPathsHeader::ENTRIES_MAX);
    let entries = data.received().get(size_of::<LostPathsHeader>()..).unwrap_or_default();
    let came = entries.chunks_exact(size_of::<T>()).take(count);
    Ok(came.filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect())
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
    /// Whether the NVM Command Set is one of those that CC.CSS chooses by name.
    pub(crate) css_nvm: bool,
    /// Whether CC.CSS can choose all command sets that there are.
    pub(crate) css_iocs: bool,
}

pub(crate) fn parse_capabilities(value: u64) -> Capabilities {
    let cap = property::Capabilities::from_bits(value);
    Capabilities {
        queue_entries_max: u32::from(cap.mqes_z()) + 1,
        // A controller that says zero gets the granularity of the field.
        timeout: Duration::from_millis(500) * u32::from(cap.to().max(1)),
        mpsmin: cap.mpsmin(),
        css_nvm: cap.css_nvm(),
        css_iocs: cap.css_iocs(),
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

/// How a controller and its subsystem are called.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerNames {
    pub(crate) serial: String,
    pub(crate) model: String,
    pub(crate) firmware: String,
    pub(crate) subsystem: String,
}

/// Which commands of the NVM Command Set a controller has beside the mandatory ones (ONCS).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OptionalCommands {
    pub(crate) write_zeroes: bool,
    pub(crate) discard: bool,
    pub(crate) verify: bool,
    pub(crate) compare: bool,
    /// Get LBA Status, an admin command (OACS).
    pub(crate) lba_status: bool,
}

/// What a controller tells of by events, beside what is about lost paths and discovery (OAES).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventNotices {
    pub(crate) namespace_attributes: bool,
    /// That access states change.
    pub(crate) access: bool,
}

/// What a controller says about lost paths (Base 2.3, section 9.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostPathFacts {
    /// Controller Instance Uniquifier; zero where it has no instances.
    pub(crate) ciu: u8,
    /// Controller Instance Random Number.
    pub(crate) cirn: u64,
    /// Resets of other controllers that it does at once (CCRL); zero where it does none.
    pub(crate) resets_max: u8,
    /// How long it may take until nothing is outstanding, once it has lost the host (CQT).
    pub(crate) quiesce: Duration,
    pub(crate) reset_notices: bool,
    pub(crate) lost_host_notices: bool,
}

/// Identify Controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerFacts {
    pub(crate) names: ControllerNames,
    /// Maximum Data Transfer Size, a power of two of the smallest memory page; zero for no limit.
    pub(crate) mdts: u8,
    pub(crate) notices: EventNotices,
    pub(crate) discovery_log_notices: bool,
    pub(crate) traffic_based_keep_alive: bool,
    pub(crate) discovery: bool,
    pub(crate) keep_alive: bool,
    pub(crate) maxcmd: u16,
    /// Aborts outstanding at once (ACL).
    pub(crate) aborts_max: u16,
    /// What it says about trying commands again.
    pub(crate) retry_delays: RetryDelays,
    /// Whether it tells access states (ANA).
    pub(crate) access_states: bool,
    pub(crate) lost_paths: LostPathFacts,
    /// Its access groups at most (NANAGRPID).
    pub(crate) access_groups_max: u32,
    pub(crate) commands: OptionalCommands,
    pub(crate) volatile_write_cache: bool,
    /// Whether it has the Disconnect command.
    pub(crate) disconnect: bool,
    pub(crate) keyed_sgl: bool,
    pub(crate) sgl_offset: bool,
    /// Room in a command capsule, in units of 16 bytes.
    pub(crate) ioccsz: u32,
    /// Where in-capsule data begin behind the command, in units of 16 bytes.
    pub(crate) icdoff: u16,
}

/// Reads the data of an Identify command.
pub(crate) fn parse_controller(data: AnswerData<'_>) -> Result<ControllerFacts, Short> {
    let page: &IdentifyController = data.structure();
    data.require_through(page, &page.ofcs)?;
    Ok(controller_facts(page))
}

fn controller_facts(page: &IdentifyController) -> ControllerFacts {
    ControllerFacts {
        names: ControllerNames {
            serial: page.sn.to_string(),
            model: page.mn.to_string(),
            firmware: page.fr.to_string(),
            subsystem: nqn_text(&page.subnqn),
        },
        mdts: page.mdts,
        notices: EventNotices {
            namespace_attributes: page.oaes.namespace_attribute_notices(),
            access: page.cmic.ana() && page.oaes.ana_change_notices(),
        },
        discovery_log_notices: page.oaes.discovery_log_notices(),
        traffic_based_keep_alive: page.ctratt.tbkas(),
        discovery: page.cntrltype == ControllerType::DISCOVERY,
        keep_alive: page.keep_alive_granularity_ms().is_some(),
        maxcmd: page.maxcmd.get(),
        aborts_max: page.acl(),
        retry_delays: RetryDelays {
            crdt: page.crdt.each_ref().map(|units| Duration::from_millis(100) * u32::from(units.get())),
            anatt: (page.anatt > 0).then(|| Duration::from_secs(page.anatt.into())),
        },
        access_states: page.cmic.ana(),
        lost_paths: LostPathFacts {
            ciu: page.ciu,
            cirn: page.cirn.get(),
            resets_max: page.ccrl,
            quiesce: Duration::from_millis(page.cqt.get().into()),
            reset_notices: page.oaes.cross_controller_reset_notices(),
            lost_host_notices: page.oaes.lost_host_notices(),
        },
        access_groups_max: page.nanagrpid.get(),
        commands: OptionalCommands {
            discard: page.oncs.dataset_management(),
            write_zeroes: page.oncs.write_zeroes(),
            verify: page.oncs.verify(),
            compare: page.oncs.compare(),
            lba_status: page.oacs.get_lba_status(),
        },
        volatile_write_cache: page.vwc.present(),
        disconnect: page.ofcs.disconnect(),
        keyed_sgl: page.sgls.keyed(),
        sgl_offset: page.sgls.address_offset(),
        ioccsz: page.ioccsz.get(),
        icdoff: page.icdoff.get(),
    }
}

/// Limits of the NVM Command Set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NvmLimits {
    /// Whether the controller told them; one that does not may still have some.
    pub(crate) told: bool,
    /// Verify Size Limit, as MDTS.
    pub(crate) vsl: u8,
    /// Write Zeroes Size Limit, as MDTS.
    pub(crate) wzsl: u8,
    /// Dataset Management Ranges Limit; zero for none.
    pub(crate) dmrl: u8,
    /// Dataset Management Range Size Limit in blocks; zero for none.
    pub(crate) dmrsl: u32,
    /// Dataset Management Size Limit in blocks, of all ranges; zero for none.
    pub(crate) dmsl: u64,
    /// Whether Get LBA Status returns allocated blocks.
    pub(crate) allocation: bool,
}

/// Reads the data of an Identify command.
pub(crate) fn parse_nvm_limits(data: AnswerData<'_>) -> Result<NvmLimits, Short> {
    let page: &IdentifyNvmController = data.structure();
    data.require_through(page, &page.dmsl)?;
    Ok(NvmLimits {
        told: true,
        vsl: page.vsl,
        wzsl: page.wzsl,
        dmrl: page.dmrl,
        dmrsl: page.dmrsl.get(),
        dmsl: page.dmsl.get(),
        allocation: page.aocs.ralbas(),
    })
}

/// Appends the namespaces of a list, from the data of an Identify command or of the changed namespaces: up to a zero,
/// or up to the end of what came.
pub(crate) fn parse_active(data: AnswerData<'_>, list: &mut Vec<u32>) -> Result<(), Short> {
    data.require(size_of::<u32>())?;
    list.extend(data.structure::<NamespaceList>().iter());
    Ok(())
}

/// Identify Namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceFacts {
    pub(crate) blocks: u64,
    /// LBA Data Size, a power of two of bytes.
    pub(crate) block_shift: u8,
    pub(crate) metadata_bytes: u16,
    pub(crate) read_only: bool,
    /// Whether Write Zeroes may deallocate (DLFEAT).
    pub(crate) write_zeroes_deallocates: bool,
    /// Whether a deallocated block reads as zeroes (DLFEAT).
    pub(crate) deallocated_reads_zeroes: bool,
    pub(crate) preferred_write_blocks: u32,
    /// What is in the place of the access group; a controller without access states may have anything there.
    pub(crate) ana_group: u32,
    pub(crate) identity: NamespaceIdentity,
}

/// Reads the data of an Identify command.
pub(crate) fn parse_namespace(data: AnswerData<'_>) -> Result<NamespaceFacts, Short> {
    let page: &IdentifyNamespace = data.structure();
    // Up to sixteen formats, the upper bits of the index have no meaning.
    let index = if page.nlbaf_z > 15 { page.flbas.index() } else { page.flbas.index_low() };
    let format = &page.lbaf[usize::from(index)];
    data.require_through(page, format)?;
    Ok(NamespaceFacts {
        blocks: page.nsze.get(),
        block_shift: format.lbads(),
        metadata_bytes: format.ms(),
        read_only: page.nsattr.write_protected(),
        write_zeroes_deallocates: page.dlfeat.write_zeroes(),
        deallocated_reads_zeroes: page.dlfeat.read_behavior() == DeallocateFeatures::READS_ZEROES,
        preferred_write_blocks: if page.nsfeat.optperf() { u32::from(page.npwg_z.get()) + 1 } else { 1 },
        ana_group: page.anagrpid.get(),
        identity: NamespaceIdentity { nguid: nonzero(page.nguid), eui64: nonzero(page.eui64), uuid: None },
    })
}

/// The UUID in a list of identification descriptors, if there is one.
pub(crate) fn parse_uuid(data: AnswerData<'_>) -> Result<Option<Uuid>, Short> {
    data.require(DESCRIPTOR_HEADER_BYTES)?;
    let uuid = NamespaceDescriptors::new(data.received()).find_map(|descriptor| match descriptor {
        Ok(NamespaceDescriptor::Uuid(bytes)) => Some(bytes),
        _ => None,
    });
    Ok(uuid.and_then(nonzero).map(Uuid::from_bytes))
}

/// A descriptor, or the zeroes that end the list.
const DESCRIPTOR_HEADER_BYTES: usize = 4;

/// A name as text; what is not one is shown as far as it is text. What is not printable becomes a dot, so that a peer
/// cannot write to a terminal.
pub(crate) fn nqn_text(field: &NqnField) -> String {
    let bytes = field.bytes().split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    visible(text).to_string()
}

fn nonzero<const N: usize>(bytes: [u8; N]) -> Option<[u8; N]> {
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
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
            let facts = parse_namespace(AnswerData::whole(&data)).expect("enough");
            assert_eq!(facts.block_shift, block_shift, "FLBAS {flbas:#x} of {formats_z}");
        }
    }

    #[test]
    fn a_uuid_is_found_behind_other_descriptors() {
        let mut data = vec![0; 4096];
        (data[0], data[1]) = (1, 8);
        (data[12], data[13]) = (3, 16);
        data[16..32].copy_from_slice(&[7; 16]);
        let uuid = |bytes| parse_uuid(AnswerData::new(&data, bytes)).expect("enough");
        assert_eq!(uuid(4096), Some(Uuid::from_bytes([7; 16])));
        assert_eq!(uuid(32), Some(Uuid::from_bytes([7; 16])), "what came is enough");
        assert_eq!(uuid(31), None);
    }

    #[test]
    fn text_of_a_peer_cannot_control_a_terminal() {
        let mut data = vec![0; 4096];
        data[4..10].copy_from_slice(b"a\x1b[2Jb");
        data[768..775].copy_from_slice(b"nqn.\x1b[H");
        let facts = parse_controller(AnswerData::whole(&data)).expect("enough");
        assert_eq!(
            (facts.names.serial.as_str(), facts.names.subsystem.as_str()),
            ("a.[2Jb", "nqn.\\u{1b}[H")
        );
    }

    #[test]
    fn an_answer_that_is_too_short_for_what_is_read_says_so_and_one_byte_more_is_enough() {
        let mut data = vec![0; 4096];
        data[26] = 2;
        let short = |needed: u32| Some(Short { received: needed - 1, needed });
        let with = |bytes| AnswerData::new(&data, bytes);
        let list = |bytes| parse_active(with(bytes), &mut Vec::new());
        let rows: [(usize, Option<Short>, Option<Short>); 5] = [
            (1806, parse_controller(with(1805)).err(), parse_controller(with(1806)).err()),
            (16, parse_nvm_limits(with(15)).err(), parse_nvm_limits(with(16)).err()),
            // Of the third format.
            (140, parse_namespace(with(139)).err(), parse_namespace(with(140)).err()),
            (4, list(3).err(), list(4).err()),
            (4, parse_uuid(with(3)).err(), parse_uuid(with(4)).err()),
        ];
        for (needed, less, enough) in rows {
            assert_eq!((less, enough), (short(needed as u32), None));
        }
    }

    #[test]
    fn a_list_ends_with_what_came() {
        let (mut data, mut list) = (vec![0; 4096], Vec::new());
        (data[0], data[4]) = (3, 9);
        parse_active(AnswerData::new(&data, 8), &mut list).expect("enough");
        assert_eq!(list, [3, 9]);
    }

    proptest! {
        #[test]
        fn any_identify_data_are_read_without_a_panic(
            seed: [u8; 32], at in 0_usize..4064, received in 0_usize..5000,
        ) {
            let mut room = vec![0xff; 4096];
            room[at..at + 32].copy_from_slice(&seed);
            let data = AnswerData::new(&room, received);
            let _short = parse_controller(data);
            let _short = parse_namespace(data);
            let _short = parse_nvm_limits(data);
            let _short = parse_uuid(data);
            let mut list = Vec::new();
            let _short = parse_active(data, &mut list);
            prop_assert!(list.len() <= NamespaceList::COUNT_MAX);
        }
    }
}
