//! The pages that describe the controller.

use ringfab_spec::identify::{
    AnaCapabilities, ControllerAttributes, ControllerList, ControllerType, EntrySizes, FabricsCommands,
    FirmwareUpdates, FusedOperations, IdentifyController, IdentifyNvmController, LogPageAttributes,
    MultiPath, OptionalAdminActions, OptionalAdminCommands, OptionalEvents, OptionalNvmCommands,
    SglAlignment, SglSupport, VolatileCacheAttributes,
};
use ringfab_spec::log::ControllerInstance;
use ringfab_spec::property::Version;
use ringfab_spec::{Nqn, NqnField};

use crate::admin::{FIRMWARE, ascii};
use crate::config::{ANA_GROUP_MAX, Transport};
use crate::controller::{
    COMMAND_QUIESCE_TIME, Controller, ERROR_ENTRIES_MAX_Z, EVENT_REQUESTS_MAX_Z, KEEP_ALIVE_GRANULARITY,
    RESETS_MAX, VERSION, supported_events,
};
use crate::limits::NSID_MAX;
use crate::limits::{DSM_BLOCKS_MAX, DSM_RANGE_BLOCKS_MAX, DSM_RANGES_MAX, FUSED_BYTES_MAX};
use crate::target::Target;

/// Maximum Data Transfer Size: a power of two of 4 KiB pages; 1 MiB.
const MDTS: u8 = 8;

/// The longest that a controller needs to be ready again, in microseconds: what CAP.TO says.
const READY_US_MAX: u32 = 15_000_000;

/// The longest that a shutdown takes, which flushes every disk, in microseconds. A host may wait for no longer than
/// this, and Linux for a minute at most.
const SHUTDOWN_US_MAX: u32 = 60_000_000;

/// Write Zeroes Size Limit: a power of two of 4 KiB pages; 256 MiB, which is all that the field of a command can say.
const WZSL: u8 = 16;

/// Bytes of the largest logical block that a namespace can have.
const BLOCK_BYTES_MAX: u32 = 4096;

/// ANA Transition Time: how long a host waits at most while a group is in the state "change".
const ANA_TRANSITION_SECONDS: u8 = 10;

/// Bytes of a command capsule without data.
const CAPSULE_BYTES: u32 = 64;

pub(super) fn controller(controller: &Controller) -> IdentifyController {
    let mut page = IdentifyController::zeroed();
    common(&mut page, controller);
    if controller.is_discovery() {
        page.cntrltype = ControllerType::DISCOVERY;
        page.lpa = LogPageAttributes::default().with_extended_data(true);
    } else {
        io(&mut page);
        instance(&mut page, controller);
    }
    fabrics(&mut page, controller);
    page
}

/// What both kinds of controller say.
fn common(page: &mut IdentifyController, controller: &Controller) {
    let subsystem = controller.subsystem();
    page.sn = ascii(subsystem.serial());
    page.mn = ascii(subsystem.model());
    page.fr = ascii(FIRMWARE);
    page.mdts = MDTS;
    page.cntlid.set(controller.id());
    page.ver = Version::from_bits(VERSION);
    page.oaes = OptionalEvents::from_bits(supported_events(controller.is_discovery()));
    page.ctratt = ControllerAttributes::default().with_hids(true).with_tbkas(true);
    page.aerl_z = EVENT_REQUESTS_MAX_Z;
    page.elpe_z = ERROR_ENTRIES_MAX_Z;
    let granularity_100ms = KEEP_ALIVE_GRANULARITY.as_millis() / 100;
    page.kas.set(u16::try_from(granularity_100ms).expect("a second is ten units"));
    let entries = controller.limits().queue_entries_max;
    page.maxcmd.set(u16::try_from(entries).expect("the configuration bounds the depth"));
}

/// What only a controller with I/O queues says.
fn io(page: &mut IdentifyController) {
    page.cmic = MultiPath::default().with_ports(true).with_controllers(true).with_ana(true);
    access(page);
    page.cntrltype = ControllerType::IO;
    page.rtd3r.set(READY_US_MAX);
    page.rtd3e.set(SHUTDOWN_US_MAX);
    page.oacs = OptionalAdminCommands::default().with_get_lba_status(true);
    page.acl_z = 3;
    page.frmw = FirmwareUpdates::default().with_slot1_read_only(true).with_slots(1);
    let pages = LogPageAttributes::default().with_command_effects(true).with_extended_data(true);
    page.lpa = pages.with_supported_log_pages(true);
    page.sqes = EntrySizes::submission();
    page.cqes = EntrySizes::completion();
    page.nn.set(NSID_MAX);
    page.mnan.set(NSID_MAX);
    let commands = OptionalNvmCommands::default().with_compare(true).with_dataset_management(true);
    let commands = commands.with_write_zeroes(true).with_save_select(true).with_timestamp(true);
    page.oncs = commands.with_verify(true).with_copy(true);
    page.fuses = FusedOperations::default().with_compare_and_write(true);
    // Of the largest blocks there are.
    let fused_blocks = FUSED_BYTES_MAX / BLOCK_BYTES_MAX;
    page.acwu_z.set(u16::try_from(fused_blocks - 1).expect("it fits its field"));
    // Copy Descriptor Format 0.
    page.cdfs.set(1);
    // Also when no namespace has one: such may be added, and a host that asks only once would never flush them.
    page.vwc = VolatileCacheAttributes::default()
        .with_present(true)
        .with_flush_behavior(VolatileCacheAttributes::FLUSH_ALL_SUPPORTED);
}

/// By what a host knows this instance of the controller, how many such others it may have reset at once, and how long
/// it has to wait for one that it cannot have reset.
fn instance(page: &mut IdentifyController, controller: &Controller) {
    let ControllerInstance { ciu, cirn, .. } = controller.instance();
    page.ciu = ciu;
    page.cirn.set(cirn);
    page.ccrl = RESETS_MAX;
    let quiesce_ms = COMMAND_QUIESCE_TIME.as_millis();
    page.cqt.set(u16::try_from(quiesce_ms).expect("it fits its field"));
}

/// What a controller says of access groups. It may be in all states, and namespaces change their groups.
fn access(page: &mut IdentifyController) {
    let states = AnaCapabilities::default().with_optimized(true).with_non_optimized(true);
    let states = states.with_inaccessible(true).with_persistent_loss(true).with_change(true);
    page.anacap = states;
    page.anatt = ANA_TRANSITION_SECONDS;
    page.anagrpmax.set(ANA_GROUP_MAX);
    page.nanagrpid.set(ANA_GROUP_MAX);
}

/// The limits of commands that transfer nothing, or lists of ranges only. Those of Dataset Management are recommended:
/// what is beyond them is done, too.
pub(super) fn nvm() -> IdentifyNvmController {
    let mut page = IdentifyNvmController::zeroed();
    page.vsl = MDTS;
    page.wzsl = WZSL;
    page.dmrl = u8::try_from(DSM_RANGES_MAX).expect("it fits its field");
    page.dmrsl.set(DSM_RANGE_BLOCKS_MAX);
    page.dmsl.set(DSM_BLOCKS_MAX);
    // The only action of Get LBA Status that there is.
    page.aocs = OptionalAdminActions::default().with_ralbas(true);
    page
}

/// What a fabric adds.
fn fabrics(page: &mut IdentifyController, controller: &Controller) {
    let sgls = SglSupport::default().with_alignment(SglAlignment::BYTE).with_address_offset(true);
    page.sgls = match controller.limits().transport {
        Transport::Rdma => sgls.with_keyed(true),
        Transport::Tcp => sgls.with_transport(true),
    };
    let nqn = Nqn::new(controller.subsystem().nqn()).expect("the configuration was checked");
    page.subnqn = NqnField::new(nqn);
    let capsule_bytes = CAPSULE_BYTES + controller.limits().in_capsule_bytes;
    page.ioccsz.set(capsule_bytes / IdentifyController::CAPSULE_UNIT);
    page.iorcsz.set(1);
    // FCATT stays zero: controllers are made when hosts connect (the dynamic controller model).
    page.msdbd = 1;
    page.ofcs = FabricsCommands::default().with_disconnect(!controller.is_discovery());
}

/// The identifiers of those of the subsystem's controllers that are asked for, from one on, ascending.
pub(super) fn controllers(
    controller: &Controller,
    target: &Target,
    from: u16,
    asked_for: impl Fn(&Controller) -> bool,
) -> ControllerList {
    let all = target.controllers();
    let nqn = controller.subsystem().nqn();
    let own = all.iter().filter(|other| other.subsystem().nqn() == nqn && asked_for(other));
    ControllerList::starting_at(from, own.map(|other| other.id()))
}
