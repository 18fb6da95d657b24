//! Peers that take their time, or never come to the point.

use std::io::Write;
use std::time::{Duration, Instant};

use ringfab_spec::tcp::Digests;
use ringfab_spec::{SglDescriptor, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::{RawTcp, capsule, h2c_data, ic_req};

use crate::{MEMORY, TCP};

const FEW: &str = "[memory]\nsmall_buffers = 64\nlarge_buffers = 32\n";

#[test]
fn a_peer_that_says_a_byte_a_second_is_given_up() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let mut host = RawTcp::open(target.address());
    let begun = Instant::now();
    for byte in ic_req(Digests::default()) {
        if host.stream.write_all(&[byte]).is_err() || begun.elapsed() > Duration::from_secs(8) {
            break;
        }
        // It is slow.
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(host.ends() && begun.elapsed() < Duration::from_secs(12), "the handshake has a limit");
}

#[test]
fn three_hundred_connections_that_say_nothing_do_not_keep_others_out_for_long() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let mut idle: Vec<RawTcp> = (0..300).map(|_| RawTcp::open(target.address())).collect();
    for host in &mut idle {
        assert!(host.ends(), "each is closed, at once or after the handshake's limit");
    }
    target.attach().detach().expect("attached and detached");
}

#[test]
fn a_peer_that_gives_its_data_a_byte_a_second_is_given_up() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let none = Digests::default();
    let (_admin, controller) = RawTcp::attach(target.address(), none);
    let mut io = RawTcp::attach_io(target.address(), none, 1, controller);
    let write = SubmissionEntry::write(1, 1, 0, 8, false).with_sgl(SglDescriptor::transport(4096));
    io.say(&capsule(none, write, &[]));
    let tag = io.r2t().ttag.get();
    let begun = Instant::now();
    for byte in h2c_data(none, 1, tag, 0, &[7; 4096], true) {
        if io.stream.write_all(&[byte]).is_err() || begun.elapsed() > Duration::from_secs(14) {
            break;
        }
        // It is slow.
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(io.ends() && begun.elapsed() < Duration::from_secs(16), "{:?}", begun.elapsed());
}

#[test]
fn a_queue_without_its_admin_queue_whose_host_falls_silent_does_not_keep_the_host_out() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let none = Digests::default();
    let (admin, controller) = RawTcp::attach(target.address(), none);
    let mut io = RawTcp::attach_io(target.address(), none, 1, controller);
    let write = SubmissionEntry::write(1, 1, 0, 8, false).with_sgl(SglDescriptor::transport(4096));
    io.say(&capsule(none, write, &[]));
    io.r2t();
    drop(admin);
    let begun = Instant::now();
    // Its next controller is not ready before no command of the last one can change the disk any more.
    let _again = RawTcp::attach(target.address(), none);
    assert!(begun.elapsed() < Duration::from_secs(14), "{:?}", begun.elapsed());
    assert!(io.ends());
}

/// Has more data on its way than the target has buffers, and then does nothing: the others go on after a while.
fn stops_in_the_middle(entry: impl Fn(u16) -> SubmissionEntry) {
    let target = TestTarget::with_listener(TCP, &format!("{MEMORY}{FEW}"));
    let none = Digests::default();
    let (_admin, controller) = RawTcp::attach(target.address(), none);
    let mut io = RawTcp::attach_io(target.address(), none, 1, controller);
    for cid in 0..31 {
        io.say(&capsule(none, entry(cid).with_sgl(SglDescriptor::transport(1 << 20)), &[]));
    }
    let other = target.attach();
    // What has arrived by then is in the way. If it is less, the others wait for less.
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    other.write_at(1, 0, &vec![1; 1 << 20], false).expect("the others go on");
    assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
    other.detach().expect("detached");
    // So long it may be silent.
    std::thread::sleep(Duration::from_secs(12).saturating_sub(begun.elapsed()));
    assert!(io.ends(), "it was given up");
}

#[test]
fn a_peer_that_does_not_give_its_data_holds_up_the_others_for_a_bounded_time() {
    stops_in_the_middle(|cid| SubmissionEntry::write(cid, 1, 0, 2048, false));
}

#[test]
fn a_peer_that_stops_reading_holds_up_the_others_for_a_bounded_time() {
    stops_in_the_middle(|cid| SubmissionEntry::read(cid, 1, 0, 2048));
}
