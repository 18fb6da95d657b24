//! Peers that take their time, or never come to the point.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::Access;
use ringfab_spec::SubmissionEntry;
use ringfab_tests::busy::Busy;
use ringfab_tests::player::ends;
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::wait_until;

#[test]
fn a_peer_that_says_a_byte_a_second_is_given_up() {
    let busy = Busy::start();
    let mut stream = TcpStream::connect(busy.target.address()).expect("connected");
    let begun = Instant::now();
    for byte in b"MPA ID Req Frame" {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        // It is slow.
        std::thread::sleep(Duration::from_secs(1));
        if begun.elapsed() > Duration::from_secs(8) {
            break;
        }
    }
    assert!(ends(&mut stream), "the handshake has a limit");
    drop(stream);
    busy.finish();
}

#[test]
fn three_hundred_connections_that_say_nothing_do_not_keep_others_out_for_long() {
    let busy = Busy::start();
    let mut idle: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(busy.target.address()).expect("connected")).collect();
    for stream in &mut idle {
        assert!(ends(stream), "each is closed, at once or after the handshake's limit");
    }
    drop(idle);
    busy.finish();
}

#[test]
fn a_thousand_connections_that_leave_at_once_leave_nothing() {
    let busy = Busy::start();
    for index in 0..1000 {
        let mut stream = TcpStream::connect(busy.target.address()).expect("connected");
        if index % 2 == 0 {
            stream.write_all(b"MPA ID Req").expect("written");
        }
    }
    busy.finish();
}

/// Has more data on its way than the target has buffers, and then does nothing: the others go on, and it is given up
/// after a while.
fn stops_in_the_middle(access: Access, entry: impl Fn(u16) -> SubmissionEntry) {
    let busy = Busy::start();
    let mut host = RawHost::new(busy.target.address());
    let association = host.attach();
    let io = host.attach_io(association, 1, 128);
    let memory = host.expose(&vec![7; 1 << 20], access);
    let entries: Vec<_> = (0..100).map(|cid| entry(cid).with_sgl(memory.sgl())).collect();
    let queues = || busy.target.usage().iter().map(|core| core.queues).sum::<usize>();
    let with_it = queues();
    host.send_and_stop(io, &entries);
    let other = busy.target.attach();
    // What has arrived by then is in the way. If it is less, the others wait for less.
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    other.write_at(1, 0, &vec![1; 1 << 20], false).expect("the others go on");
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(13), "{waited:?}");
    other.detach().expect("detached");
    wait_until("the one that has stopped is given up", || queues() < with_it);
    // Whoever looks again finds that its connection is gone.
    let reason = host.end(io);
    assert_ne!(reason, ringfab_fabric::rdma::DisconnectReason::Local);
    drop(host);
    busy.finish();
}

#[test]
fn a_host_that_closes_its_admin_connection_only_comes_back_without_waiting_for_its_io_connection() {
    let busy = Busy::start();
    let (mut admin, mut host) = (RawHost::new(busy.target.address()), RawHost::new(busy.target.address()));
    let association = admin.attach();
    let io = host.attach_io(association, 1, 128);
    let memory = host.expose(&vec![7; 1 << 20], Access::RemoteRead);
    let write = |cid| SubmissionEntry::write(cid, 1, 0, 2048, false).with_sgl(memory.sgl());
    host.send_and_stop(io, &(0..100).map(write).collect::<Vec<_>>());
    // What has arrived by then is in the way. If it is less, the host waits for less.
    std::thread::sleep(Duration::from_millis(300));
    drop(admin);
    let begun = Instant::now();
    let mut again = RawHost::new(busy.target.address());
    let association = again.attach();
    again.attach_io(association, 1, 32);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    drop((host, again));
    busy.finish();
}

#[test]
fn a_peer_that_does_not_give_its_data_holds_up_the_others_for_a_bounded_time() {
    stops_in_the_middle(Access::RemoteRead, |cid| SubmissionEntry::write(cid, 1, 0, 2048, false));
}

#[test]
fn a_peer_that_stops_reading_holds_up_the_others_for_a_bounded_time() {
    stops_in_the_middle(Access::RemoteWrite, |cid| SubmissionEntry::read(cid, 1, 0, 2048));
}
