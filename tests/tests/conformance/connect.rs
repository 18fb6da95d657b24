//! Connect commands that are wrong.

use ringfab_spec::cqe::ConnectParameter;
use ringfab_spec::nqn::{Nqn, NqnField};
use ringfab_spec::sqe::{ConnectCommand, ConnectData};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::raw_host::RawHost;

use crate::bench::{Bench, PRIVATE_NQN};

/// Connects an admin queue of 32 entries with a changed command and changed data, and after the refusal
/// properly.
fn admin(command: impl FnOnce(&mut ConnectCommand), data: impl FnOnce(&mut ConnectData)) -> CompletionEntry {
    let mut bench = Bench::new();
    let queue = bench.host.open_queue(0, 32);
    let good = SubmissionEntry::connect(1, 0, 32, 0, false);
    let mut changed = ConnectCommand::of(&good);
    command(&mut changed);
    let entry = SubmissionEntry::read_from_bytes(changed.as_bytes()).expect("64 bytes");
    let mut bytes = RawHost::connect_data(ConnectData::CNTLID_DYNAMIC);
    data(&mut bytes);
    let completion = bench.host.command_with(queue, &entry, bytes.as_bytes());
    let good_data = RawHost::connect_data(ConnectData::CNTLID_DYNAMIC);
    let second = bench.host.command_with(queue, &good, good_data.as_bytes());
    assert_eq!(second.status(), Status::SUCCESS, "a refused Connect can be corrected");
    completion
}

/// Connects I/O queue 1 of a ready controller in the same way.
fn io(command: impl FnOnce(&mut ConnectCommand), data: impl FnOnce(&mut ConnectData)) -> CompletionEntry {
    let mut bench = Bench::new();
    let association = bench.host.attach();
    let queue = bench.host.open_queue(1, 32);
    let mut changed = ConnectCommand::of(&SubmissionEntry::connect(1, 1, 32, 0, false));
    command(&mut changed);
    let entry = SubmissionEntry::read_from_bytes(changed.as_bytes()).expect("64 bytes");
    let mut bytes = RawHost::connect_data(association.controller_id);
    data(&mut bytes);
    let completion = bench.host.command_with(queue, &entry, bytes.as_bytes());
    assert_eq!(bench.host.connect_io(queue, association, 1, 32).status(), Status::SUCCESS);
    completion
}

fn is_invalid_parameter(completion: &CompletionEntry, place: ConnectParameter) {
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    assert_eq!(completion.connect_parameter(), place);
}

fn name(text: &str) -> NqnField {
    NqnField::new(Nqn::new(text).expect("a name"))
}

#[test]
fn another_format_is_incompatible() {
    for format in [1, u16::MAX] {
        let completion = admin(|command| command.recfmt.set(format), |_| {});
        assert_eq!(completion.status(), Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
    }
}

#[test]
fn a_size_of_one_or_above_the_connection_s_is_an_invalid_parameter() {
    for sqsize_z in [0, 32, 1023, u16::MAX] {
        let completion = admin(|command| command.sqsize_z.set(sqsize_z), |_| {});
        is_invalid_parameter(&completion, ConnectParameter::Command(44));
        let completion = io(|command| command.sqsize_z.set(sqsize_z), |_| {});
        is_invalid_parameter(&completion, ConnectParameter::Command(44));
    }
}

#[test]
fn another_queue_than_the_connection_was_made_for_is_an_invalid_parameter() {
    is_invalid_parameter(&admin(|command| command.qid.set(1), |_| {}), ConnectParameter::Command(42));
    is_invalid_parameter(&io(|command| command.qid.set(0), |_| {}), ConnectParameter::Command(42));
    is_invalid_parameter(&io(|command| command.qid.set(2), |_| {}), ConnectParameter::Command(42));
}

#[test]
fn reserved_attributes_are_an_invalid_parameter() {
    is_invalid_parameter(&admin(|command| command.cattr = 0x80, |_| {}), ConnectParameter::Command(46));
}

#[test]
fn a_subsystem_that_is_not_here_is_an_invalid_parameter() {
    let unknown = admin(|_| {}, |data| data.subnqn = name("nqn.2026-11.org.ringfab:another"));
    is_invalid_parameter(&unknown, ConnectParameter::Data(256));
}

#[test]
fn names_that_are_no_names_are_invalid_parameters() {
    let bad: [[u8; 256]; 3] = [[0; 256], [b'n'; 256], [0xff; 256]];
    for bytes in bad {
        let field = || NqnField::read_from_bytes(&bytes).expect("256 bytes");
        let completion = admin(|_| {}, |data| data.subnqn = field());
        is_invalid_parameter(&completion, ConnectParameter::Data(256));
        let completion = admin(|_| {}, |data| data.hostnqn = field());
        is_invalid_parameter(&completion, ConnectParameter::Data(512));
    }
}

#[test]
fn a_host_that_is_not_allowed_is_told_so() {
    let completion = admin(|_| {}, |data| data.subnqn = name(PRIVATE_NQN));
    assert_eq!(completion.status(), Status::CONNECT_INVALID_HOST.with_dnr());
    let friend = admin(
        |command| command.qid.set(1),
        |data| (data.subnqn, data.hostnqn) = (name(PRIVATE_NQN), name("nqn.2026-11.org.ringfab:a-friend")),
    );
    is_invalid_parameter(&friend, ConnectParameter::Command(42));
}

#[test]
fn a_particular_controller_cannot_be_asked_for() {
    for controller_id in [0, 1, 0xfffe] {
        let completion = admin(|_| {}, |data| data.cntlid.set(controller_id));
        is_invalid_parameter(&completion, ConnectParameter::Data(16));
    }
}

#[test]
fn an_io_queue_joins_only_the_controller_that_its_own_host_made() {
    for controller_id in [0x7abc, 0xfffe, 0xffff] {
        let completion = io(|_| {}, |data| data.cntlid.set(controller_id));
        is_invalid_parameter(&completion, ConnectParameter::Data(16));
    }
    let completion = io(|_| {}, |data| data.hostid[15] ^= 1);
    is_invalid_parameter(&completion, ConnectParameter::Data(0));
    let completion = io(|_| {}, |data| data.hostnqn = name("nqn.2026-11.org.ringfab:somebody"));
    is_invalid_parameter(&completion, ConnectParameter::Data(512));
    let completion = io(|_| {}, |data| data.subnqn = name("nqn.2014-08.org.nvmexpress.discovery"));
    is_invalid_parameter(&completion, ConnectParameter::Data(16));
}

#[test]
fn a_queue_beyond_those_granted_is_an_invalid_parameter() {
    let mut bench = Bench::new();
    let association = bench.host.attach();
    let cid = bench.host.next_cid();
    let set = SubmissionEntry::set_features(cid, 0x07, false, 0x0001_0001);
    assert_eq!(bench.host.command(association.admin, &set).dw0.get(), 0x0001_0001);
    let third = bench.host.open_queue(3, 32);
    let completion = bench.host.connect_io(third, association, 3, 32);
    is_invalid_parameter(&completion, ConnectParameter::Command(42));
    bench.host.attach_io(association, 2, 32);
}

#[test]
fn a_queue_that_is_connected_already_is_out_of_sequence() {
    let (mut bench, attached) = Bench::attached();
    let twin = bench.host.open_queue(1, 32);
    let completion = bench.host.connect_io(twin, attached.association, 1, 32);
    assert_eq!(completion.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    bench.io_works(attached);
}

#[test]
fn an_io_queue_before_the_controller_is_enabled_is_out_of_sequence() {
    let mut bench = Bench::new();
    let association = bench.host.associate(0);
    let queue = bench.host.open_queue(1, 32);
    let completion = bench.host.connect_io(queue, association, 1, 32);
    assert_eq!(completion.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    bench.host.enable(association);
    assert_eq!(bench.host.connect_io(queue, association, 1, 32).status(), Status::SUCCESS);
}

#[test]
fn connect_data_of_another_length_have_an_invalid_length() {
    let mut bench = Bench::new();
    let queue = bench.host.open_queue(0, 32);
    for length in [0_u32, 512, 1023, 1025, 4096] {
        let entry =
            SubmissionEntry::connect(1, 0, 32, 0, false).with_sgl(SglDescriptor::in_capsule(0, length));
        bench.host.send(queue, entry.as_bytes(), Some(&vec![0; length.max(1) as usize]));
        let completion = bench.host.completion(queue);
        assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID.with_dnr(), "{length} bytes");
    }
}
