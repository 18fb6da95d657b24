//! Capsules that are no command, or that come at the wrong time.

use std::time::Duration;

use ringfab_fabric::rdma::DisconnectReason;
use ringfab_spec::sqe::ConnectData;
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::raw_host::RawHost;

use crate::bench::Bench;

#[test]
fn a_capsule_shorter_than_a_command_ends_the_queue() {
    for length in [0, 1, 16, 63] {
        let (mut bench, attached) = Bench::attached();
        bench.host.send(attached.io, &[0; 64][..length], None);
        let reason = bench.host.end(attached.io);
        assert_eq!(reason, DisconnectReason::PeerClosed, "{length} bytes");
        bench.host.controller_status(attached.association);
    }
}

#[test]
fn a_capsule_longer_than_the_queue_takes_is_answered_by_a_terminate() {
    let (mut bench, attached) = Bench::attached();
    let entry = SubmissionEntry::flush(1, 1);
    bench.host.send(attached.io, entry.as_bytes(), Some(&vec![0; 8193]));
    let reason = bench.host.end(attached.io);
    assert!(matches!(reason, DisconnectReason::PeerTerminated(_)), "{reason:?}");
    bench.host.controller_status(attached.association);
}

#[test]
fn a_capsule_as_long_as_the_queue_takes_is_a_command() {
    let (mut bench, attached) = Bench::attached();
    let entry = SubmissionEntry::flush(1, 1);
    bench.host.send(attached.io, entry.as_bytes(), Some(&vec![0; 8192]));
    assert_eq!(bench.host.completion(attached.io).status(), Status::SUCCESS);
}

#[test]
fn more_commands_than_the_queue_has_entries_are_answered_by_a_terminate() {
    let mut bench = Bench::new();
    let admin = bench.host.open_queue(0, 4);
    let entry = SubmissionEntry::connect(0, 0, 4, 0, false);
    let data = RawHost::connect_data(ConnectData::CNTLID_DYNAMIC);
    let connected = bench.host.command_with(admin, &entry, data.as_bytes());
    let association =
        ringfab_tests::raw_host::Association { admin, controller_id: connected.connect_cntlid() };
    bench.host.enable(association);
    for cid in 100..104 {
        bench.host.send(admin, SubmissionEntry::async_event_request(cid).as_bytes(), None);
    }
    assert!(bench.host.is_silent(admin, Duration::from_millis(100)), "four wait for events");
    bench.host.send(admin, SubmissionEntry::keep_alive(104).as_bytes(), None);
    let reason = bench.host.end(admin);
    assert!(matches!(reason, DisconnectReason::PeerTerminated(_)), "{reason:?}");
}

#[test]
fn a_second_connect_is_out_of_sequence() {
    let (mut bench, attached) = Bench::attached();
    for (queue, queue_id) in [(attached.admin, 0), (attached.io, 1)] {
        let cid = bench.host.next_cid();
        let entry = SubmissionEntry::connect(cid, queue_id, 32, 0, false);
        let data = RawHost::connect_data(if queue_id == 0 {
            ConnectData::CNTLID_DYNAMIC
        } else {
            attached.association.controller_id
        });
        let completion = bench.host.command_with(queue, &entry, data.as_bytes());
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        assert_eq!(completion.status(), status);
        bench.is_logged(attached, queue_id, &entry, (status, None));
    }
    bench.io_works(attached);
}

#[test]
fn commands_before_the_connect_are_out_of_sequence() {
    let mut bench = Bench::new();
    let association = bench.host.attach();
    let (admin, io) = (bench.host.open_queue(0, 32), bench.host.open_queue(1, 32));
    let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    for queue in [admin, io] {
        let commands = [
            SubmissionEntry::flush(1, 1),
            SubmissionEntry::read(2, 1, 0, 1),
            SubmissionEntry::keep_alive(3),
            SubmissionEntry::property_get(4, 0, ringfab_spec::sqe::PropertySize::Eight),
            SubmissionEntry::disconnect(5),
        ];
        for command in commands {
            assert_eq!(bench.host.command(queue, &command).status(), status);
        }
    }
    // None of it kept the queue from connecting.
    assert_eq!(bench.host.connect_io(io, association, 1, 32).status(), Status::SUCCESS);
}

#[test]
fn a_queue_that_never_connects_is_ended_in_time() {
    let mut bench = Bench::new();
    let queue = bench.host.open_queue(1, 32);
    let begun = std::time::Instant::now();
    assert_eq!(bench.host.end(queue), DisconnectReason::PeerClosed);
    let waited = begun.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(8)).contains(&waited), "{waited:?}");
}

#[test]
fn a_queue_that_is_disconnected_answers_and_ends() {
    let (mut bench, attached) = Bench::attached();
    let cid = bench.host.next_cid();
    let entry = SubmissionEntry::disconnect(cid);
    assert_eq!(bench.host.command(attached.io, &entry).status(), Status::SUCCESS);
    assert_eq!(bench.host.end(attached.io), DisconnectReason::PeerClosed);
    let io = bench.host.attach_io(attached.association, 1, 16);
    bench.io_works(crate::bench::Attached { io, ..attached });
}

#[test]
fn an_admin_queue_cannot_be_disconnected_by_command() {
    let (mut bench, attached) = Bench::attached();
    let entry = SubmissionEntry::disconnect(bench.host.next_cid());
    bench.admin_refused(attached, &entry, (Status::INVALID_QUEUE_TYPE, None));
}

#[test]
fn a_disconnect_of_another_format_is_incompatible() {
    let (mut bench, attached) = Bench::attached();
    let mut entry = SubmissionEntry::disconnect(bench.host.next_cid());
    entry.cdw10.set(1);
    bench.io_refused(attached, &entry, (Status::CONNECT_INCOMPATIBLE_FORMAT, Some((40, 0))));
    bench.io_works(attached);
}

#[test]
fn of_two_connects_one_behind_the_other_only_the_first_is_taken() {
    let mut bench = Bench::new();
    let before = bench.target.target.controllers().len();
    let admin = bench.host.open_queue(0, 32);
    let data = RawHost::connect_data(ConnectData::CNTLID_DYNAMIC);
    let memory = bench.host.expose(data.as_bytes(), ringfab_fabric::rdma::Access::RemoteRead);
    // Both wait for their data, which the target reads from the host, before either is executed.
    for cid in [1, 2] {
        let entry = SubmissionEntry::connect(cid, 0, 32, 0, false).with_sgl(memory.sgl());
        bench.host.send(admin, entry.as_bytes(), None);
    }
    let mut statuses = [bench.host.completion(admin).status(), bench.host.completion(admin).status()];
    statuses.sort_unstable();
    assert_eq!(statuses, [Status::SUCCESS, Status::COMMAND_SEQUENCE_ERROR.with_dnr()]);
    assert_eq!(bench.target.target.controllers().len(), before + 1);
    bench.host.close(admin);
    while bench.target.target.controllers().len() != before {
        std::thread::sleep(Duration::from_millis(5));
    }
}
