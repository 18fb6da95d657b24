//! What an ordinary host says, cut at every byte and flipped at every byte: the connection ends, and everything else
//! goes on.

use std::io::Write;

use ringfab_spec::tcp::Digests;
use ringfab_spec::{SglDescriptor, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::{RawTcp, capsule, connect, h2c_data, ic_req};

use crate::{MEMORY, TCP};

/// Few buffers: a target that lost one for each hundred sessions would soon stand still.
const FEW: &str = "[memory]\nsmall_buffers = 64\nlarge_buffers = 32\n";

fn target() -> TestTarget {
    TestTarget::with_listener(TCP, &format!("{MEMORY}{FEW}"))
}

/// Everything that a host can say without hearing an answer.
fn session(digests: Digests) -> Vec<u8> {
    let identify = SubmissionEntry::identify(4, 1, 0, 0, 0).with_sgl(SglDescriptor::transport(4096));
    let plain = SglDescriptor::transport(0);
    [
        ic_req(digests),
        connect(digests, 0, 0xffff),
        capsule(digests, SubmissionEntry::keep_alive(3).with_sgl(plain), &[]),
        capsule(digests, identify, &[]),
        capsule(digests, SubmissionEntry::async_event_request(5).with_sgl(plain), &[]),
    ]
    .concat()
}

/// Says these bytes and no more; the other end ends.
fn play(target: &TestTarget, bytes: &[u8], what: &str) {
    let mut host = RawTcp::open(target.address());
    // It may end before it has heard all.
    let _ended = host.stream.write_all(bytes);
    host.finish();
    assert!(host.ends(), "{what}: the connection did not end");
}

/// As many buffers as ever, and nobody left.
fn finish(target: &TestTarget) {
    let newcomer = target.attach();
    for _ in 0..32 {
        newcomer.compare(1, 0, &vec![0; 1 << 20]).expect("as many buffers as ever");
    }
    newcomer.detach().expect("detached");
    let begun = std::time::Instant::now();
    while !target.target.controllers().is_empty() {
        assert!(begun.elapsed().as_secs() < 30, "controllers are left");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_session_may_be_cut_anywhere() {
    let target = target();
    let digests = Digests::default().with_header(true).with_data(true);
    let all = session(digests);
    for cut in 0..=all.len() {
        play(&target, &all[..cut], &format!("cut at {cut}"));
    }
    finish(&target);
}

#[test]
fn a_session_may_be_damaged_anywhere() {
    let target = target();
    for digests in [Digests::default(), Digests::default().with_header(true).with_data(true)] {
        let all = session(digests);
        for at in 0..all.len() {
            for mask in [0xff, 0x01] {
                let mut changed = all.clone();
                changed[at] ^= mask;
                play(&target, &changed, &format!("byte {at} by {mask:#x}"));
            }
        }
    }
    finish(&target);
}

#[test]
fn data_that_were_asked_for_may_be_cut_anywhere() {
    let target = target();
    let digests = Digests::default().with_data(true);
    let (_admin, controller) = RawTcp::attach(target.address(), digests);
    let served = target.target.controllers();
    for cut in (0..24 + 1024 + 4).step_by(7) {
        while served[0].io_queues() != 0 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        let mut io = RawTcp::attach_io(target.address(), digests, 1, controller);
        let write = SubmissionEntry::write(1, 1, 0, 2, false).with_sgl(SglDescriptor::transport(1024));
        io.say(&capsule(digests, write, &[]));
        let tag = io.r2t().ttag.get();
        io.say(&h2c_data(digests, 1, tag, 0, &[0; 1024], true)[..cut]);
        io.finish();
        assert!(io.ends(), "cut at {cut}");
    }
    drop((_admin, served));
    finish(&target);
}
