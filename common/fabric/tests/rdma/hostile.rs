//! Peers that are no RNICs: bytes on a plain socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ringfab_fabric::rdma::{
    Access, ConnectError, DisconnectReason, ListenParameters, QueuePairId, RemoteBuffer, RnicEvent,
    SendRequest,
};
use ringfab_proto::iwarp::crc;

use crate::support::{End, Pair, config, pattern, send_work, slice};

const REQUEST: &[u8] = b"MPA ID Req Frame\x00\x01\x00\x00";
const REPLY: &[u8] = b"MPA ID Rep Frame\x00\x01\x00\x00";

pub(crate) fn pair() -> Pair {
    Pair::over_loopback((config(), config()))
}

pub(crate) fn stranger(pair: &Pair) -> TcpStream {
    stranger_at(pair.listening)
}

fn stranger_at(listening: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(listening).expect("connected");
    stream.set_nonblocking(true).expect("an option");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Everything that comes until the stream ends.
fn last_words(pair: &mut Pair, stream: &mut TcpStream) -> Vec<u8> {
    let mut words = Vec::new();
    pair.until("the end of the stream", |_| match stream.read_to_end(&mut words) {
        Ok(_) => Some(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
        Err(error) => panic!("{error}"),
    });
    words
}

/// A stranger that has been accepted, with CRCs.
pub(crate) fn accepted(pair: &mut Pair, mut stream: TcpStream) -> (TcpStream, QueuePairId) {
    stream.write_all(REQUEST).expect("written");
    let request = pair.connect_request();
    let attributes = pair.target.attributes();
    let accepted = pair.target.rnic.accept(&mut pair.target.reactor, request, &attributes, b"");
    pair.until("established", |pair| {
        matches!(pair.target.events.pop_front(), Some(RnicEvent::Established { .. })).then_some(())
    });
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("the reply");
    assert_eq!(&reply[..16], &REPLY[..16]);
    (stream, accepted.expect("accepted"))
}

#[test]
fn garbage_instead_of_an_mpa_request_is_closed_without_a_word() {
    let mut pair = pair();
    let mut stream = stranger(&pair);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    assert_eq!(last_words(&mut pair, &mut stream), b"");
    assert!(pair.target.events.is_empty());
}

#[test]
fn a_request_that_asks_for_markers_is_refused_in_words() {
    let mut pair = pair();
    let mut stream = stranger(&pair);
    stream.write_all(b"MPA ID Req Frame\x80\x01\x00\x00").expect("written");
    let words = last_words(&mut pair, &mut stream);
    assert_eq!(&words[..16], &REPLY[..16]);
    assert_ne!(words[16] & 0x20, 0, "the reject bit");
}

#[test]
fn half_a_request_is_closed_after_the_handshake_timeout() {
    let mut pair = pair();
    let mut stream = stranger(&pair);
    stream.write_all(&REQUEST[..19]).expect("written");
    let begun = std::time::Instant::now();
    assert_eq!(last_words(&mut pair, &mut stream), b"");
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
    assert!(pair.target.events.is_empty());
}

#[test]
fn a_request_that_comes_byte_by_byte_is_understood() {
    let mut pair = pair();
    let mut stream = stranger(&pair);
    for byte in REQUEST {
        stream.write_all(&[*byte]).expect("written");
        pair.run_for(Duration::from_millis(1));
    }
    assert_eq!(pair.connect_request().initiator_depth_max, None, "revision 1 does not say");
}

#[test]
fn bytes_behind_a_request_before_its_reply_are_refused() {
    let mut pair = pair();
    let mut stream = stranger(&pair);
    stream.write_all(&[REQUEST, b"x"].concat()).expect("written");
    assert_eq!(last_words(&mut pair, &mut stream), b"");
    assert!(pair.target.events.is_empty());
}

/// A listener with room for few in handshake, and strangers that came to it.
fn few_handshakes(pair: &mut Pair, strangers: usize) -> (SocketAddr, Vec<TcpStream>) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let parameters = ListenParameters { half_open_max: 8, ..ListenParameters::new(any) };
    let listening = pair.target.rnic.listen(&mut pair.target.reactor, &parameters).expect("listening").1;
    (listening, (0..strangers).map(|_| stranger_at(listening)).collect())
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn who_comes_while_as_many_as_may_are_in_handshake_is_served_though_they_stay_silent() {
    let mut pair = pair();
    let (listening, mut silent) = few_handshakes(&mut pair, 8);
    // They have had time enough.
    pair.run_for(Duration::from_millis(110));
    let mut two_more = [stranger_at(listening), stranger_at(listening)];
    for stream in &mut two_more {
        stream.write_all(REQUEST).expect("written");
    }
    pair.connect_request();
    pair.connect_request();
    assert!(!is_open(&mut silent[0]) && !is_open(&mut silent[1]), "the oldest have given way");
    assert!(silent[2..].iter_mut().all(is_open), "and nobody else");
    // Who has gone while it waited is in nobody's way.
    let gone = stranger_at(listening);
    pair.run_for(Duration::from_millis(100));
    drop((gone, silent));
    pair.run_for(Duration::from_millis(100));
    pair.connected();
}

#[test]
fn who_waits_for_a_handshake_waits_for_one_place_and_not_for_all_who_came_before() {
    let mut pair = pair();
    let (listening, mut silent) = few_handshakes(&mut pair, 16);
    let mut last = stranger_at(listening);
    last.write_all(REQUEST).expect("written");
    pair.connect_request();
    assert!(silent[8..].iter_mut().all(is_open), "eight were in handshake, and the others are at most now");
}

#[test]
fn garbage_instead_of_an_fpdu_is_answered_by_a_terminate() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, there) = accepted(&mut pair, stream);
    stream.write_all(&[0; 64]).expect("written");
    let (reason, _) = pair.disconnected(End::Target, there);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    let words = last_words(&mut pair, &mut stream);
    assert_eq!(words[3] & 0x0f, 7, "the opcode of a Terminate: {words:02x?}");
}

#[test]
fn a_terminate_to_a_peer_that_never_closes_is_bounded() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, there) = accepted(&mut pair, stream);
    stream.write_all(&[0; 64]).expect("written");
    let begun = std::time::Instant::now();
    pair.disconnected(End::Target, there);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(stream);
}

#[test]
fn a_stream_that_ends_inside_an_fpdu_is_broken() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, there) = accepted(&mut pair, stream);
    stream.write_all(&[1, 0, 0x41, 0x43]).expect("written");
    drop(stream);
    let (reason, _) = pair.disconnected(End::Target, there);
    assert!(matches!(reason, DisconnectReason::Broken(_)), "{reason:?}");
}

/// A plain socket that plays the target; its own thread would be no simpler.
fn false_target(pair: &mut Pair, reply: &[u8]) -> (TcpStream, QueuePairId) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let here = pair.host.connect(listener.local_addr().expect("an address"), b"");
    listener.set_nonblocking(true).expect("an option");
    let mut stream = pair.until("a connection", |_| listener.accept().ok()).0;
    stream.set_nonblocking(true).expect("an option");
    let mut request = [0; 24];
    pair.until("the request", |_| match stream.peek(&mut request) {
        Ok(24) => Some(()),
        _ => None,
    });
    stream.read_exact(&mut request).expect("the request");
    stream.write_all(reply).expect("written");
    (stream, here)
}

#[test]
fn a_connection_to_nobody_is_refused() {
    let mut pair = pair();
    // No outgoing connection gets a port that low, as it may one that is merely free.
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    pair.host.connect(nobody, b"");
    pair.until("refused", |pair| match pair.host.events.pop_front()? {
        RnicEvent::ConnectFailed { error: ConnectError::Connect(error), .. } => Some(error),
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_target_that_never_replies_is_given_up_in_time() {
    let mut pair = pair();
    let (_stream, _) = false_target(&mut pair, b"");
    pair.until("timed out", |pair| match pair.host.events.pop_front()? {
        RnicEvent::ConnectFailed { error: ConnectError::TimedOut { step: "MPA", seconds: 3 }, .. } => {
            Some(())
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_target_that_replies_nonsense_is_no_target() {
    let mut pair = pair();
    let (_stream, _) = false_target(&mut pair, b"SSH-2.0-something else");
    pair.until("failed", |pair| match pair.host.events.pop_front()? {
        RnicEvent::ConnectFailed { error: ConnectError::Mpa(_), .. } => Some(()),
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_target_of_revision_one_is_asked_again_in_its_own_words() {
    let mut target = config();
    target.mpa_revision = 1;
    let mut pair = Pair::over_loopback((config(), target));
    pair.connected();
}

#[test]
fn a_host_of_revision_one_is_understood() {
    let mut host = config();
    host.mpa_revision = 1;
    let mut pair = Pair::over_loopback((host, config()));
    pair.connected();
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_direct_receive_leaves_nothing_behind() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, there) = accepted(&mut pair, stream);
    let room = pair.target.shared_buffer(&vec![0; 131_072]);
    let remote = pair.target.expose(&room, Access::RemoteWrite);
    // The header of an RDMA Write of 60,000 bytes and a third of them.
    let mut fpdu = 60_014_u16.to_be_bytes().to_vec();
    fpdu.extend_from_slice(&[0xc1, 0x40]);
    fpdu.extend_from_slice(&remote.key.to_be_bytes());
    fpdu.extend_from_slice(&remote.address.to_be_bytes());
    stream.write_all(&fpdu).expect("written");
    pair.run_for(Duration::from_millis(20));
    stream.write_all(&pattern(20_000, 1)).expect("written");
    pair.run_for(Duration::from_millis(20));
    assert!(pair.target.rnic.counters().received_direct_bytes > 0);
    drop(stream);
    let (reason, _) = pair.disconnected(End::Target, there);
    assert!(matches!(reason, DisconnectReason::Broken(_)), "{reason:?}");
    drop(pair.target.rnic.revoke(remote.region).expect("still exposed"));
    room.into_unique().expect("nothing in flight holds it");
}

/// A segment of an RDMA Write, to `at` bytes behind the start of an exposure.
pub(crate) fn write_fpdu(remote: RemoteBuffer, at: usize, payload: &[u8], last: bool) -> Vec<u8> {
    let control = if last { 0xc1 } else { 0x81 };
    let address = remote.address + at as u64;
    fpdu(&[&[control, 0x40], &remote.key.to_be_bytes()[..], &address.to_be_bytes(), payload].concat())
}

/// An FPDU with its length, padding and CRC.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ulpdu.len()).expect("one FPDU");
    let mut fpdu = [&length.to_be_bytes()[..], ulpdu].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    fpdu.extend_from_slice(&crc::of(&fpdu));
    fpdu
}

#[test]
fn a_short_message_in_segments_is_one_message_and_counts_as_copied() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, _) = accepted(&mut pair, stream);
    let segment = |control: u8, offset: u32, payload: &[u8]| {
        let numbers = [0, 0, 1, offset].map(u32::to_be_bytes).concat();
        fpdu(&[&[control, 0x43], numbers.as_slice(), payload].concat())
    };
    let segments = [segment(0x01, 0, b"one "), segment(0x01, 4, b"short "), segment(0x41, 10, b"message")];
    stream.write_all(&segments.concat()).expect("written");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"one short message");
    assert_eq!(pair.target.rnic.counters().copied_bytes.received, 17);
    // And in one segment.
    let whole = [&[0x41, 0x43], [0, 0, 2, 0].map(u32::to_be_bytes).concat().as_slice(), b"another"].concat();
    stream.write_all(&fpdu(&whole)).expect("written");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"another");
    assert_eq!(pair.target.rnic.counters().copied_bytes.received, 17 + 7);
}

#[test]
fn what_trickles_in_behind_much_else_is_not_moved_again_and_again() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, _) = accepted(&mut pair, stream);
    let room = pair.target.shared_buffer(&vec![0; 8192]);
    let remote = pair.target.expose(&room, Access::RemoteWrite);
    let first = write_fpdu(remote, 0, &pattern(4096, 1), true);
    let second = write_fpdu(remote, 0, &pattern(8192, 2), true);
    let (begin, rest) = second.split_at(4096);
    let much = [first.repeat(30).as_slice(), begin].concat();
    stream.write_all(&much).expect("written");
    pair.run_for(Duration::from_millis(20));
    for few in rest.chunks(64) {
        stream.write_all(few).expect("written");
        pair.run_for(Duration::from_millis(1));
    }
    let copied = pair.target.rnic.counters().copied_bytes.received;
    let payloads = 30 * 4096 + 8192;
    assert!((payloads..payloads + 8192).contains(&copied), "{copied} bytes copied for {payloads}");
    pair.target.rnic.revoke(remote.region).expect("exposed");
    assert!(
        room.into_unique().expect("nobody else holds it")[..] == pattern(8192, 2)[..],
        "the last one is there"
    );
}

#[test]
fn revoking_memory_under_a_running_write_ends_the_connection_and_frees_the_memory() {
    let mut pair = pair();
    let stream = stranger(&pair);
    let (mut stream, there) = accepted(&mut pair, stream);
    let room = pair.target.shared_buffer(&vec![0; 65_536]);
    let remote = pair.target.expose(&room, Access::RemoteWrite);
    let mut fpdu = 60_014_u16.to_be_bytes().to_vec();
    fpdu.extend_from_slice(&[0xc1, 0x40]);
    fpdu.extend_from_slice(&remote.key.to_be_bytes());
    fpdu.extend_from_slice(&remote.address.to_be_bytes());
    stream.write_all(&fpdu).expect("written");
    pair.run_for(Duration::from_millis(20));
    drop(pair.target.rnic.revoke(remote.region).expect("exposed"));
    let room = room.into_unique().expect_err("the receive in flight holds it");
    stream.write_all(&pattern(20_000, 1)).expect("written");
    let (reason, _) = pair.disconnected(End::Target, there);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    room.into_unique().expect("nothing in flight holds it");
}

#[test]
fn a_peer_that_stops_reading_cannot_hold_up_a_disconnect() {
    let mut pair = pair();
    let (_stream, here) = false_target(&mut pair, REPLY_ENHANCED);
    pair.established(here);
    let data = pair.host.shared_buffer(&vec![0; 1 << 20]);
    for id in 0..16 {
        let work = send_work(&[0; 64], Some(slice(&data)));
        pair.host.rnic.post_send(here, SendRequest { id, work, signaled: false }).expect("posted");
    }
    pair.run_for(Duration::from_millis(100));
    pair.host.disconnect(here);
    let (reason, flushed) = pair.disconnected(End::Host, here);
    assert_eq!(reason, DisconnectReason::Local);
    assert!(!flushed.is_empty(), "sixteen megabytes do not fit the socket");
    data.into_unique().expect("every shared_buffer came back");
}

#[test]
fn a_target_that_is_slow_to_answer_the_first_message_is_nudged_a_few_times() {
    let mut pair = pair();
    let (mut stream, here) = false_target(&mut pair, REPLY_ENHANCED);
    pair.established(here);
    pair.host.send(here, 1, b"connect");
    let (message, empty_write) = (2 + 18 + 7 + 1 + 4, 2 + 14 + 4);
    let mut received = Vec::new();
    pair.until("three nudges", |_| {
        let error = stream.read_to_end(&mut received).expect_err("the stream goes on");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        (received.len() >= message + 3 * empty_write).then_some(())
    });
    for at in [0, 1, 2].map(|number| message + number * empty_write) {
        assert_eq!(received[at..at + 4], [0, 14, 0xc1, 0x40], "a tagged, last FPDU of an RDMA Write");
    }
}

/// An enhanced reply of revision 2 with IRD and ORD 8.
const REPLY_ENHANCED: &[u8] = b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x08\x00\x08";
