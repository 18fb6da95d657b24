//! What a host leaves unfinished when it resets its controller or leaves it.

use std::time::{Duration, Instant};

use ringfab_spec::sqe::PropertySize;
use ringfab_spec::tcp::{Digests, PduType};
use ringfab_spec::{SglDescriptor, Status, SubmissionEntry};
use ringfab_target::config::Access;
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::{RawTcp, capsule, h2c_data};

const TCP: &str = "transport = \"tcp\"\nio_queues_max = 8";

/// So few buffers that most commands wait for some.
const NAMESPACE: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n\
    [memory]\nsmall_buffers = 64\nlarge_buffers = 32\n";

/// What a reset may take, far below the time after which a silent host is given up. The machine may be busy.
const SOON: Duration = Duration::from_secs(6);

/// Eight queues full of writes of 1 MiB whose data never come.
fn queues(target: &TestTarget, controller: u16) -> Vec<RawTcp> {
    let none = Digests::default();
    let queue = |qid| {
        let mut io = RawTcp::attach_io(target.address(), none, qid, controller);
        for cid in 0..30 {
            let write = SubmissionEntry::write(cid, 1, 0, 2048, false);
            io.say(&capsule(none, write.with_sgl(SglDescriptor::transport(1 << 20)), &[]));
        }
        io
    };
    (1..=8).map(queue).collect()
}

fn wait_until_disabled(admin: &mut RawTcp) {
    let begun = Instant::now();
    let status = SubmissionEntry::property_get(8, 0x1c, PropertySize::Four);
    while admin.command(status).result() & 1 != 0 {
        assert!(begun.elapsed() < SOON, "CSTS.RDY is still set");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_reset_does_not_wait_for_data_that_the_host_does_not_send() {
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let (mut admin, controller) = RawTcp::attach(target.address(), Digests::default());
    let mut queues = queues(&target, controller);
    // What has arrived by then is in the way. If it is less, there is less to wait for.
    std::thread::sleep(Duration::from_millis(200));
    let disable = SubmissionEntry::property_set(7, 0x14, PropertySize::Four, 0x0046_0000);
    assert!(admin.command(disable).status().is_success());
    wait_until_disabled(&mut admin);
    assert!(queues.iter_mut().all(RawTcp::ends), "their connections have ended");
}

#[test]
fn a_host_that_closes_its_admin_connection_only_comes_back_without_waiting_for_its_io_connections() {
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let (admin, controller) = RawTcp::attach(target.address(), Digests::default());
    let mut queues = queues(&target, controller);
    // The same.
    std::thread::sleep(Duration::from_millis(200));
    drop(admin);
    let begun = Instant::now();
    let (_admin, controller) = RawTcp::attach(target.address(), Digests::default());
    let mut io = RawTcp::attach_io(target.address(), Digests::default(), 1, controller);
    assert!(io.command(SubmissionEntry::flush(1, 1)).status().is_success());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(queues.iter_mut().all(RawTcp::ends), "the old connections have ended");
    assert_eq!(target.usage()[0].io_buffers.taken, 1, "a buffer of zeroes is all that is in use");
}

#[test]
fn an_identifier_in_use_is_a_conflict_and_its_command_goes_on() {
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let none = Digests::default();
    let (_admin, controller) = RawTcp::attach(target.address(), none);
    let mut io = RawTcp::attach_io(target.address(), none, 1, controller);
    let write = SubmissionEntry::write(7, 1, 0, 1, false).with_sgl(SglDescriptor::transport(512));
    io.say(&capsule(none, write, &[]));
    let r2t = io.r2t();
    let refused = io.command(SubmissionEntry::flush(7, 1));
    assert_eq!((refused.cid.get(), refused.status()), (7, Status::COMMAND_ID_CONFLICT.with_dnr()));
    io.say(&h2c_data(none, 7, r2t.ttag.get(), 0, &[0x42; 512], true));
    let written = io.response();
    assert_eq!((written.cid.get(), written.status()), (7, Status::SUCCESS));
    let read = SubmissionEntry::read(8, 1, 0, 1).with_sgl(SglDescriptor::transport(512));
    io.say(&capsule(none, read, &[]));
    let data = io.hear();
    assert_eq!((data.header[0], data.data), (PduType::C2H_DATA.0, vec![0x42; 512]));
}

/// A host that keeps the data of its writes back until the namespace is none of its own any more.
#[test]
fn data_that_come_after_a_namespace_was_hidden_are_not_written() {
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let none = Digests::default();
    let (_admin, controller) = RawTcp::attach(target.address(), none);
    let mut io = RawTcp::attach_io(target.address(), none, 1, controller);
    let write = SubmissionEntry::write(7, 1, 0, 1, false).with_sgl(SglDescriptor::transport(512));
    io.say(&capsule(none, write, &[]));
    let r2t = io.r2t();
    let mut manager = target.manager();
    let others = Access::Hosts(["nqn.2026-11.org.ringfab:other".to_owned()].into());
    manager.set_hosts(None, 1, others).expect("hidden");
    io.say(&h2c_data(none, 7, r2t.ttag.get(), 0, &[0x42; 512], true));
    let refused = io.response();
    assert_eq!((refused.cid.get(), refused.status()), (7, Status::INVALID_NAMESPACE.with_dnr()));
    manager.set_hosts(None, 1, Access::AnyHost).expect("shown");
    let read = SubmissionEntry::read(8, 1, 0, 1).with_sgl(SglDescriptor::transport(512));
    io.say(&capsule(none, read, &[]));
    assert_eq!(io.hear().data, [0; 512]);
}
