//! Every admin command, as a host sees it.

mod access;
mod discovery;
mod resets;
mod shown;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringfab_block::{Discarded, DiskProperties, PreferredSizes};
use ringfab_reactor::Time;
use ringfab_spec::sqe::PropertySize;

use super::*;
use crate::config::{Access, Config};
use crate::controller::{ErrorRecord, PropertyEffect};
use crate::failure::ErrorLocation;
use crate::identity::Identity;
use crate::model::Draft;
use crate::target::Target;
use crate::target::tests::{self, Connect, DISK, FRIEND, PRIVATE, at, target};
use ringfab_spec::nqn::DISCOVERY_NQN;

/// A controller with its target.
struct Admin {
    served: Arc<Served>,
    target: Arc<Target>,
    controller: Arc<Controller>,
}

impl Admin {
    fn at(&self, now: Time) -> AdminContext<'_> {
        AdminContext {
            served: &self.served,
            target: &self.target,
            now,
            wall: Duration::from_secs(1_700_000_000),
        }
    }
}

impl Deref for Admin {
    type Target = Controller;

    fn deref(&self) -> &Controller {
        &self.controller
    }
}

fn enabled(target: &Arc<Target>, subsystem: &str) -> Admin {
    Admin {
        served: target.served(),
        target: Arc::clone(target),
        controller: tests::enabled(target, subsystem),
    }
}

/// An enabled controller with its target.
fn disk() -> (Arc<Target>, Admin) {
    let target = target();
    let controller = enabled(&target, DISK);
    (target, controller)
}

fn run(controller: &Admin, command: &SubmissionEntry) -> Result<AdminOutcome, Failure> {
    run_with(controller, command, &[])
}

/// Runs a command and checks that it keeps to the transfer that it announced.
fn run_with(controller: &Admin, command: &SubmissionEntry, data: &[u8]) -> Result<AdminOutcome, Failure> {
    let transfer = controller.admin_transfer(command);
    let outcome = controller.admin(&controller.at(Time::ZERO), command, data);
    if let Ok(AdminOutcome::Data { bytes, .. }) = &outcome {
        assert_eq!(transfer, Ok(Transfer::ToHost(u32::try_from(bytes.len()).unwrap())));
    }
    outcome
}

fn bytes(controller: &Admin, command: &SubmissionEntry) -> Vec<u8> {
    match run(controller, command) {
        Ok(AdminOutcome::Data { bytes, .. }) => bytes,
        other => panic!("no data: {other:?}"),
    }
}

fn dw0(controller: &Admin, command: &SubmissionEntry) -> u32 {
    match run(controller, command) {
        Ok(AdminOutcome::Complete { dw0 }) => dw0,
        other => panic!("no completion: {other:?}"),
    }
}

fn refusal(controller: &Admin, command: &SubmissionEntry) -> (Status, Option<u16>) {
    let failure = run(controller, command).expect_err("refused");
    assert!(failure.status.dnr(), "{failure}");
    (failure.status.code(), failure.location.map(|location| location.byte))
}

fn identify(cns: u8, nsid: u32) -> SubmissionEntry {
    SubmissionEntry::identify(1, cns, nsid, 0, 0)
}

fn log(page: u8, length: u32) -> SubmissionEntry {
    SubmissionEntry::get_log_page(1, page, u32::MAX, 0, length, false)
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

#[test]
fn identify_controller_has_what_a_linux_host_insists_on() {
    let (_target, controller) = disk();
    let page = bytes(&controller, &identify(0x01, 0));
    assert_eq!(&page[4..24], b"S1                  ");
    assert_eq!(&page[24..31], b"Ringfab");
    assert_eq!(&page[64..72], b"0.1.0   ");
    assert_eq!(page[77], 8, "MDTS: 1 MiB");
    assert_eq!(u16_at(&page, 78), controller.id());
    assert_eq!(u32_at(&page, 80), 0x0002_0000);
    assert_eq!(u32_at(&page, 92), 1 << 8 | 1 << 11 | 1 << 20 | 1 << 21, "OAES");
    assert_eq!(u32_at(&page, 96), 0x41, "CTRATT: 128-bit host identifier, TBKAS");
    assert_eq!(page[111], 1, "CNTRLTYPE");
    assert_eq!((page[259], page[262]), (3, 63), "AERL, ELPE");
    assert_eq!(u16_at(&page, 320), 10, "KAS");
    assert_eq!((page[512], page[513]), (0x66, 0x44), "SQES, CQES");
    assert_eq!(u16_at(&page, 514), 128, "MAXCMD");
    assert_eq!(u32_at(&page, 516), 4096, "NN");
    assert_eq!(u16_at(&page, 520), 0b1_1101_1101, "ONCS");
    assert_eq!((u16_at(&page, 522), u16_at(&page, 532)), (1, 15), "FUSES: Compare and Write, ACWU: 64 KiB");
    assert_eq!(
        page[525], 0b111,
        "VWC: present, also for who is added later, and Flush takes the broadcast identifier"
    );
    assert_eq!(u32_at(&page, 536), 0x0010_0005, "SGLS: keyed, in-capsule by offset");
    assert_eq!(u32_at(&page, 540), 4096, "MNAN");
    assert_eq!(&page[768..768 + DISK.len()], DISK.as_bytes());
    assert_eq!(page[768 + DISK.len()], 0);
    let instance = controller.instance();
    assert_eq!((page[135], u64_at(&page, 136)), (instance.ciu, instance.cirn), "CIU, CIRN");
    assert!(instance.ciu != 0 && instance.cirn != 0);
    assert_eq!((page[1807], u16_at(&page, 386)), (4, 6500), "CCRL, CQT in milliseconds");
    assert_eq!((u32_at(&page, 1792), u32_at(&page, 1796)), ((64 + 8192) / 16, 1), "IOCCSZ, IORCSZ");
    assert_eq!((u16_at(&page, 1800), page[1802], page[1803]), (0, 0, 1), "ICDOFF, FCATT, MSDBD");
    assert_eq!(page.len(), 4096);
}

#[test]
fn identify_namespace_describes_size_format_and_protection() {
    let (target, controller) = disk();
    let page = bytes(&controller, &identify(0x00, 7));
    for offset in [0, 8, 16] {
        assert_eq!(u64_at(&page, offset), 256, "blocks of 4 KiB in 1 MiB");
    }
    assert_eq!((page[25], page[26]), (0, 0), "one format, in use");
    assert_eq!(page[30], 1, "NMIC");
    assert_eq!(page[33], 9, "DLFEAT");
    assert_eq!(page[99], 1, "NSATTR: write protected");
    assert_eq!(&page[104..120], target.namespaces()[1].nguid());
    assert_eq!(u32_at(&page, 128), 12 << 16, "LBAF0");
    let small = bytes(&controller, &identify(0x00, 1));
    assert_eq!(u32_at(&small, 128), 9 << 16);
    assert_eq!((u16_at(&small, 64), u16_at(&small, 72)), (7, 255), "NPWG, NOWS");
}

#[test]
fn identify_namespace_says_of_a_disk_what_is_known_in_blocks_from_zero() {
    let (target, controller) = disk();
    let sizes = |write, discard, optimal_write| PreferredSizes { write, discard, optimal_write };
    let plain = DiskProperties::new(1 << 20);
    let of = |properties: DiskProperties| {
        target.namespaces()[1].opened_disk().set_properties(properties);
        let page = bytes(&controller, &identify(0x00, 7));
        let fields = [64, 66, 68, 70, 72].map(|offset| u16_at(&page, offset));
        (page[24], page[33], fields)
    };
    // Blocks of 4 KiB. NSFEAT: identifiers are not used again (8), OPTPERF (16), THINP (1).
    assert_eq!(of(plain), (8, 0, [0; 5]), "nothing is known");
    assert_eq!(of(plain.with_preferred(sizes(0, 4096, 65_536))), (8, 0, [0; 5]), "too little is known");
    assert_eq!(of(plain.with_preferred(sizes(512, 0, 0))), (24, 0, [0, 0, 0, 0, 31]), "less than a block");
    let striped = sizes(65_536, 1 << 20, 196_608);
    assert_eq!(of(plain.with_preferred(striped)).2, [15, 15, 255, 255, 47]);
    assert_eq!(of(plain.with_preferred(sizes(65_536, 0, 100_000))).2[4], 15, "a multiple of the granularity");
    assert_eq!(of(plain.with_preferred(sizes(1 << 20, 0, 0))).2, [255, 255, 0, 0, 255]);
    assert_eq!(
        of(plain.with_preferred(sizes(4096, 1 << 31, 0))).2[2],
        u16::MAX,
        "more than the field can say"
    );
    assert_eq!(of(plain.with_thin(true)).0, 9);
    for (discarded, dlfeat) in
        [(Discarded::Zeroes, 1), (Discarded::ZeroesOrBefore, 1), (Discarded::Anything, 0)]
    {
        assert_eq!(of(plain.with_discarded(discarded)).1, dlfeat);
        assert_eq!(of(plain.with_discarded(discarded).with_write_zeroes_deallocates(true)).1, dlfeat | 8);
    }
}

#[test]
fn inactive_namespaces_are_zero_and_invalid_ones_are_refused() {
    let (_target, controller) = disk();
    for cns in [0x00, 0x08, 0x11] {
        assert!(bytes(&controller, &identify(cns, 2)).iter().all(|byte| *byte == 0));
        assert!(bytes(&controller, &identify(cns, 4096)).iter().all(|byte| *byte == 0));
        for nsid in [0, 4097, u32::MAX] {
            assert_eq!(refusal(&controller, &identify(cns, nsid)), (Status::INVALID_NAMESPACE, Some(4)));
        }
    }
    assert_eq!(refusal(&controller, &identify(0x03, 2)), (Status::INVALID_NAMESPACE, Some(4)));
}

#[test]
fn lists_of_namespaces_ascend_from_the_one_that_is_given() {
    let (_target, controller) = disk();
    for cns in [0x02, 0x07, 0x10] {
        let list = |nsid| bytes(&controller, &identify(cns, nsid));
        assert_eq!((u32_at(&list(0), 0), u32_at(&list(0), 4), u32_at(&list(0), 8)), (1, 7, 0));
        assert_eq!((u32_at(&list(1), 0), u32_at(&list(1), 4)), (7, 0));
        assert_eq!(u32_at(&list(u32::MAX - 2), 0), 0);
        assert_eq!(refusal(&controller, &identify(cns, u32::MAX - 1)).0, Status::INVALID_NAMESPACE);
    }
}

#[test]
fn descriptors_are_nguid_uuid_and_command_set() {
    let (target, controller) = disk();
    let page = bytes(&controller, &identify(0x03, 1));
    let namespace = target.namespaces().remove(0);
    assert_eq!(page[..4], [2, 16, 0, 0]);
    assert_eq!(&page[4..20], namespace.nguid());
    assert_eq!(page[20..24], [3, 16, 0, 0]);
    assert_eq!(&page[24..40], namespace.uuid().as_bytes());
    assert_eq!(page[40..45], [4, 1, 0, 0, 0]);
    assert!(page[45..].iter().all(|byte| *byte == 0));
}

#[test]
fn pages_of_command_sets_know_the_nvm_command_set_only() {
    let (_target, controller) = disk();
    assert_eq!(u64_at(&bytes(&controller, &SubmissionEntry::identify(1, 0x1c, 0, 0xffff, 0)), 0), 1);
    let other = SubmissionEntry::identify(1, 0x1c, 0, controller.id() + 1, 0);
    assert_eq!(refusal(&controller, &other), (Status::INVALID_FIELD, Some(42)));
    for cns in [0x05, 0x06, 0x07] {
        assert!(run(&controller, &identify(cns, 1)).is_ok());
        let zoned = SubmissionEntry::identify(1, cns, 1, 0, 2);
        assert_eq!(refusal(&controller, &zoned), (Status::INVALID_FIELD, Some(47)));
    }
    let independent = bytes(&controller, &identify(0x08, 7));
    assert_eq!((independent[1], independent[8], independent[14]), (1, 1, 1), "NMIC, NSATTR, NSTAT");
    assert_eq!(refusal(&controller, &identify(0x7f, 0)), (Status::INVALID_FIELD, Some(40)));
}

/// As nvme-cli does: where CAP says that hosts may choose command sets (bit 43), it asks for set 2, too.
#[test]
fn a_host_finds_the_effects_of_every_command_set_that_cap_makes_it_ask_for() {
    let (_target, controller) = disk();
    let cap = controller.property_get(0, Some(PropertySize::Eight)).expect("CAP");
    let asked: Vec<u8> =
        [(37, 0), (43, 2)].iter().filter(|(bit, _)| cap >> bit & 1 != 0).map(|(_, csi)| *csi).collect();
    assert!(asked.contains(&0), "the NVM Command Set");
    for csi in asked {
        let mut command = log(0x05, 4096);
        command.cdw14.set(u32::from(csi) << 24);
        assert!(run(&controller, &command).is_ok(), "command set {csi}");
    }
}

#[test]
fn the_list_of_controllers_has_those_of_the_subsystem() {
    let (target, controller) = disk();
    let second = enabled(&target, DISK);
    enabled(&target, PRIVATE);
    let page = bytes(&controller, &identify(0x13, 0));
    assert_eq!((u16_at(&page, 0), u16_at(&page, 2), u16_at(&page, 4)), (2, controller.id(), second.id()));
    let from_second = SubmissionEntry::identify(1, 0x13, 0, second.id(), 0);
    assert_eq!(u16_at(&bytes(&controller, &from_second), 0), 1);
    assert_eq!(u16_at(&bytes(&controller, &identify(0x12, 1)), 0), 2);
    for (nsid, status) in [(u32::MAX, Status::INVALID_FIELD), (2, Status::INVALID_NAMESPACE)] {
        assert_eq!(refusal(&controller, &identify(0x12, nsid)), (status, Some(4)));
    }
}

#[test]
fn unknown_opcodes_fused_commands_and_early_commands_are_refused() {
    let (target, controller) = disk();
    for code in (0..=u8::MAX).filter(|code| !opcodes(false).contains(&AdminOpcode(*code))) {
        let command = SubmissionEntry { opcode: code, ..SubmissionEntry::zeroed() };
        assert_eq!(refusal(&controller, &command), (Status::INVALID_OPCODE, Some(0)), "{code:#x}");
    }
    let fused = SubmissionEntry { flags: 1, ..identify(1, 0) };
    assert_eq!(refusal(&controller, &fused), (Status::INVALID_FIELD, Some(1)));
    let early = Connect::admin(DISK, FRIEND).send(&target).unwrap().controller;
    let early = Admin { served: target.served(), target, controller: early };
    assert_eq!(refusal(&early, &identify(1, 0)).0, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn the_number_of_queues_is_granted_up_to_the_listeners_and_only_before_io() {
    let (target, controller) = disk();
    let set = |value| SubmissionEntry::set_features(1, 0x07, false, value);
    let get = SubmissionEntry::get_features(1, 0x07, 0, 0);
    assert_eq!(dw0(&controller, &get), 0x0003_0003);
    assert_eq!(dw0(&controller, &set(0x0001_0001)), 0x0001_0001);
    assert_eq!(dw0(&controller, &set(0x007f_00ff)), 0x0003_0003);
    assert_eq!(refusal(&controller, &set(0xffff)), (Status::INVALID_FIELD, Some(44)));
    assert_eq!(refusal(&controller, &set(0xffff_0000)), (Status::INVALID_FIELD, Some(46)));
    Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).unwrap();
    assert_eq!(refusal(&controller, &set(0)).0, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn every_feature_says_what_it_can_and_none_is_saveable() {
    let (_target, controller) = disk();
    for feature in features::supported(&controller) {
        let capabilities = SubmissionEntry::get_features(1, feature.id, 3, 1);
        let expected = u32::from(feature.changeable) << 2 | u32::from(feature.namespace_specific) << 1;
        assert_eq!(dw0(&controller, &capabilities), expected, "{:#x}", feature.id);
        let save = SubmissionEntry::set_features(1, feature.id, true, 0);
        assert_eq!(refusal(&controller, &save), (Status::FEATURE_NOT_SAVEABLE, Some(43)));
        let mut nonsense = SubmissionEntry::get_features(1, feature.id, 4, 1);
        nonsense.cdw11.set(1);
        assert_eq!(refusal(&controller, &nonsense), (Status::INVALID_FIELD, Some(41)));
    }
    assert_eq!(refusal(&controller, &SubmissionEntry::get_features(1, 0x08, 0, 0)).1, Some(40));
}

#[test]
fn features_keep_what_was_set_until_a_reset() {
    let target = target();
    let controller = enabled(&target, PRIVATE);
    for (id, value, default) in
        [(0x01, 0x0102_0304, 0), (0x04, 350, 0xffff), (0x06, 0, 1), (0x0a, 1, 0), (0x0b, 0x1ff, 0)]
    {
        assert_eq!(dw0(&controller, &SubmissionEntry::set_features(1, id, false, value)), 0);
        assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, id, 0, 0)), value, "{id:#x}");
        assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, id, 1, 0)), default, "{id:#x}");
    }
    assert!(!controller.write_cache_enabled());
    let four = Some(PropertySize::Four);
    assert_eq!(controller.property_set(0x14, four, 0, at(1)), Ok(PropertyEffect::Disabled));
    controller.state().registers.disabled_done();
    controller.property_set(0x14, four, 0x0046_0001, at(2)).unwrap();
    assert!(controller.write_cache_enabled());
    assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, 0x0b, 0, 0)), 0);
}

#[test]
fn what_a_feature_cannot_be_set_to_is_refused_with_its_place() {
    let (_target, controller) = disk();
    let set = |id, value| refusal(&controller, &SubmissionEntry::set_features(1, id, false, value));
    assert_eq!(set(0x02, 1), (Status::INVALID_FIELD, Some(44)), "power state 1");
    assert_eq!(set(0x04, 1 << 16), (Status::INVALID_FIELD, Some(46)), "sensor 1");
    assert_eq!(set(0x0b, 1 << 9), (Status::INVALID_FIELD, Some(45)), "firmware notices");
    assert_eq!(set(0x19, 1), (Status::COMMAND_SET_COMBINATION_REJECTED, Some(44)));
    assert_eq!(set(0x81, 1).0, Status::COMMAND_SEQUENCE_ERROR);
    let mut namespace = SubmissionEntry::set_features(1, 0x0f, false, 1);
    namespace.nsid.set(1);
    assert_eq!(refusal(&controller, &namespace), (Status::FEATURE_NOT_NAMESPACE_SPECIFIC, Some(4)));
    let mut recovery = SubmissionEntry::set_features(1, 0x05, false, 1 << 16);
    recovery.nsid.set(1);
    assert_eq!(refusal(&controller, &recovery), (Status::INVALID_FIELD, Some(46)));
    recovery.cdw11.set(30);
    assert_eq!(dw0(&controller, &recovery), 0);
    assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, 0x05, 0, 1)), 30);
    assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, 0x05, 0, 7)), 0);
    assert_eq!(
        refusal(&controller, &SubmissionEntry::get_features(1, 0x05, 0, 2)).0,
        Status::INVALID_NAMESPACE
    );
}

#[test]
fn a_timestamp_goes_on_from_what_was_set() {
    let (_target, controller) = disk();
    let set = SubmissionEntry::set_features(1, 0x0e, false, 0);
    assert_eq!(controller.admin_transfer(&set), Ok(Transfer::ToController(8)));
    assert!(run_with(&controller, &set, &[0; 7]).is_err());
    run_with(&controller, &set, &1_000_000_u64.to_le_bytes()).unwrap();
    let get = SubmissionEntry::get_features(1, 0x0e, 0, 0);
    let later = controller.at(at(3));
    let Ok(AdminOutcome::Data { bytes, .. }) = controller.admin(&later, &get, &[]) else { panic!("no data") };
    assert_eq!(u64_at(&bytes, 0), 1_003_000 | 1 << 49);
}

#[test]
fn the_host_identifier_is_that_of_connect_in_its_long_form() {
    let (_target, controller) = disk();
    let mut get = SubmissionEntry::get_features(1, 0x81, 0, 0);
    assert_eq!(refusal(&controller, &get), (Status::INVALID_FIELD, Some(44)));
    get.cdw11.set(1);
    assert_eq!(bytes(&controller, &get), [9; 16]);
}

#[test]
fn the_keep_alive_timer_can_be_set_and_renewed() {
    let (_target, controller) = disk();
    assert_eq!(dw0(&controller, &SubmissionEntry::set_features(1, 0x0f, false, 2500)), 0);
    assert_eq!(dw0(&controller, &SubmissionEntry::get_features(1, 0x0f, 0, 0)), 3000, "rounded up to KAS");
    assert_eq!(controller.state().keep_alive.deadline(), Some(at(4)));
    let later = controller.at(at(3));
    controller.admin(&later, &SubmissionEntry::keep_alive(1), &[]).unwrap();
    assert!(!controller.expired(at(6)));
    assert!(controller.expired(at(7)));
}

#[test]
fn an_event_wakes_the_core_and_completes_a_parked_request() {
    let (target, controller) = disk();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    controller.events().set_wake(Some(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    })));
    dw0(&controller, &SubmissionEntry::set_features(1, 0x0b, false, 1 << 8));
    assert_eq!(run(&controller, &SubmissionEntry::async_event_request(40)), Ok(AdminOutcome::Park));
    assert_eq!(controller.events().next(), None);
    let served = target.served();
    target.namespace_changed(served.subsystems()[0].subsystem(), 7);
    target.namespace_changed(served.subsystems()[1].subsystem(), 1);
    assert_eq!(woken.load(Ordering::Relaxed), 1, "only its own subsystem's");
    assert_eq!(controller.events().next(), Some((40, 0x0004_0002)));
    let retained = SubmissionEntry::get_log_page(1, 0x04, u32::MAX, 0, 4096, true);
    assert_eq!(u32_at(&bytes(&controller, &retained), 0), 7);
    let read = bytes(&controller, &log(0x04, 4096));
    assert_eq!((u32_at(&read, 0), u32_at(&read, 4)), (7, 0));
    assert_eq!(u32_at(&bytes(&controller, &log(0x04, 4096)), 0), 0, "what was read is not news");
}

#[test]
fn one_event_request_more_than_the_limit_is_refused() {
    let (_target, controller) = disk();
    for command_id in 0..4 {
        assert_eq!(
            run(&controller, &SubmissionEntry::async_event_request(command_id)),
            Ok(AdminOutcome::Park)
        );
    }
    let fifth = SubmissionEntry::async_event_request(9);
    assert_eq!(refusal(&controller, &fifth).0, Status::AER_LIMIT_EXCEEDED);
    assert!(controller.events().unpark(2));
    assert_eq!(run(&controller, &fifth), Ok(AdminOutcome::Park));
}

#[test]
fn abort_names_the_queue_to_look_in_if_there_is_one() {
    let (_target, controller) = disk();
    let abort = run(&controller, &SubmissionEntry::abort(1, 0, 77));
    assert_eq!(abort, Ok(AdminOutcome::Abort { queue_id: 0, command_id: 77 }));
    assert_eq!(dw0(&controller, &SubmissionEntry::abort(1, 3, 77)), 1, "not aborted");
}

#[test]
fn the_error_log_has_real_entries_newest_first() {
    let (_target, controller) = disk();
    let record = ErrorRecord {
        queue_id: 2,
        command_id: 0x1234,
        status: Status::LBA_OUT_OF_RANGE.with_dnr(),
        location: Some(ErrorLocation { byte: 40, bit: 3 }),
        lba: 0x1_0000_0001,
        nsid: 7,
        at: Time::ZERO,
    };
    controller.record_error(record);
    controller.record_error(ErrorRecord { location: None, status: Status::WRITE_FAULT, ..record });
    let page = bytes(&controller, &log(0x01, 192));
    assert_eq!(u64_at(&page, 0), 2);
    assert_eq!(u16_at(&page, 14), 0xffff);
    assert_eq!(u64_at(&page, 64), 1);
    assert_eq!((u16_at(&page, 72), u16_at(&page, 74)), (2, 0x1234));
    assert_eq!(u16_at(&page, 76), 0x4080 << 1);
    assert_eq!(u16_at(&page, 78), 0x0328);
    assert_eq!((u64_at(&page, 80), u32_at(&page, 88)), (0x1_0000_0001, 7));
    assert_eq!(u64_at(&page, 128), 0, "not used");
    let health = bytes(&controller, &log(0x02, 512));
    assert_eq!((u64_at(&health, 160), u64_at(&health, 176)), (0, 2), "media errors are the disks'; entries");
}

#[test]
fn the_error_log_names_the_transport_of_its_controller() {
    for (transport, number) in [("rdma", 1), ("tcp", 3)] {
        let text = format!(
            "[[listener]]\naddress = \"192.0.2.1\"\ntransport = {transport:?}\n[[subsystem]]\nnqn = {DISK:?}\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n"
        );
        let config = Config::parse(&text, transport).unwrap();
        let target = Target::new(&config, &Identity::from_seed([7; 32])).unwrap();
        let controller = enabled(&target, DISK);
        let (status, location) = (Status::INVALID_FIELD, None);
        controller.record_error(ErrorRecord {
            queue_id: 1,
            command_id: 1,
            status,
            location,
            lba: 0,
            nsid: 1,
            at: Time::ZERO,
        });
        assert_eq!(bytes(&controller, &log(0x01, 64))[29], number, "TRTYPE over {transport}");
    }
}

#[test]
fn health_counts_what_queues_have_done() {
    let (target, controller) = disk();
    let queue = Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).unwrap().queue;
    queue.io().note_read(512 * 1000);
    queue.io().note_write(512 * 1000 + 1);
    target.namespaces()[0].count_media_error();
    let page = bytes(&controller, &log(0x02, 512));
    assert_eq!(u64_at(&page, 160), 1, "media errors, also of before this controller");
    assert_eq!((page[0], page[3], page[4], page[5]), (0, 100, 10, 0));
    assert_eq!((u64_at(&page, 32), u64_at(&page, 48)), (1, 2));
    assert_eq!((u64_at(&page, 64), u64_at(&page, 80)), (1, 1));
    for page in [0x00, 0x01, 0x02, 0x03, 0x04, 0x05] {
        let of_namespace = SubmissionEntry::get_log_page(1, page, 1, 0, 512, false);
        assert_eq!(refusal(&controller, &of_namespace), (Status::INVALID_FIELD, Some(4)));
    }
}

#[test]
fn the_logs_of_what_is_supported_agree_with_what_is() {
    let (_target, controller) = disk();
    let pages = bytes(&controller, &log(0x00, 1024));
    for page in 0..=u8::MAX {
        let supported = u32_at(&pages, usize::from(page) * 4) & 1 != 0;
        assert_eq!(run(&controller, &log(page, 4)).is_ok(), supported, "log page {page:#x}");
    }
    let commands = bytes(&controller, &log(0x05, 4096));
    for code in 0..=u8::MAX {
        let supported = u32_at(&commands, usize::from(code) * 4) & 1 != 0;
        assert_eq!(supported, opcodes(false).contains(&AdminOpcode(code)), "opcode {code:#x}");
    }
    assert_eq!(u32_at(&commands, 1024 + 4) & 0xf, 0b11, "Write changes blocks");
    let features = bytes(&controller, &log(0x12, 1024));
    for id in 0..=u8::MAX {
        let supported = u32_at(&features, usize::from(id) * 4) & 1 != 0;
        let asked = run(&controller, &SubmissionEntry::get_features(1, id, 3, 1));
        assert_eq!(asked.is_ok(), supported, "feature {id:#x}");
    }
    assert_eq!(&bytes(&controller, &log(0x03, 512))[..16], b"\x01\0\0\0\0\0\0\x000.1.0   ");
}

#[test]
fn log_pages_can_be_read_in_parts_and_not_beyond_their_end() {
    let (_target, controller) = disk();
    let part = |offset, length| SubmissionEntry::get_log_page(1, 0x00, 0, offset, length, false);
    let whole = bytes(&controller, &part(0, 1024));
    assert_eq!(bytes(&controller, &part(8, 16)), whole[8..24]);
    let over = bytes(&controller, &part(1020, 16));
    assert_eq!(over[..4], whole[1020..]);
    assert_eq!(over[4..], [0; 12]);
    assert_eq!(bytes(&controller, &part(1024, 4)), [0; 4]);
    assert_eq!(refusal(&controller, &part(1028, 4)), (Status::INVALID_FIELD, Some(48)));
    assert_eq!(refusal(&controller, &part(2, 4)), (Status::INVALID_FIELD, Some(48)));
    assert_eq!(refusal(&controller, &part(u64::MAX - 3, 4)), (Status::INVALID_FIELD, Some(48)));
    // As much as MDTS says.
    assert_eq!(bytes(&controller, &part(0, 1 << 20)).len(), 1 << 20);
    assert_eq!(refusal(&controller, &part(0, (1 << 20) + 4)), (Status::INVALID_FIELD, Some(42)));
    let mut by_index = part(0, 4);
    by_index.cdw14.set(1 << 23);
    assert_eq!(refusal(&controller, &by_index), (Status::INVALID_FIELD, Some(58)));
}

#[test]
fn no_command_whatever_its_bytes_makes_a_controller_panic() {
    let (target, controller) = disk();
    let discovery = enabled(&target, DISCOVERY_NQN);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..20_000 {
        let mut bytes = [0; 64];
        for chunk in bytes.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        let mut command: SubmissionEntry = ringfab_spec::zerocopy::transmute!(bytes);
        command.opcode = opcodes(false)[usize::from(command.opcode) % opcodes(false).len()].0;
        command.flags &= 0xfc;
        // Small identifiers meet something; wild ones are refused early.
        command.cdw10.set(command.cdw10.get() & 0x8000_871f);
        for controller in [&controller, &discovery] {
            let _refused_or_not = run_with(controller, &command, &bytes[..8]);
        }
    }
}
