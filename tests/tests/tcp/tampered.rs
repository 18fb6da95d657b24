//! Targets that break the protocol: the initiator says how, comes back, and has its data right in the end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_spec::IntoBytes;
use ringfab_spec::tcp::{
    CommonHeader, DataHeader, Digests, FatalError, IcResp, PduFlags, PduType, ReadyToTransfer, TermReq,
};
use ringfab_tests::recording::From;
use ringfab_tests::tamper::{Passing, Tamper, unchanged};
use ringfab_tests::{NQN, TestTarget};

use crate::{MEMORY, TCP};

const LENGTH: usize = 65_536;

const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
const SEQUENCE: FatalError = FatalError::SEQUENCE_ERROR;

fn connect(address: SocketAddr, options: &str) -> Result<Controller, String> {
    connect_with(address, options, Duration::from_millis(500))
}

/// With this time for a command.
fn connect_with(address: SocketAddr, options: &str, io: Duration) -> Result<Controller, String> {
    let url: Url = format!("nvme+tcp://{address}/{NQN}?{options}").parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, host);
    options.reconnect.delay = Duration::from_millis(20);
    options.timeouts.io = io;
    options.timeouts.connect = Duration::from_secs(2);
    Controller::connect(options, EngineOptions::default()).map_err(|error| error.to_string())
}

/// Writes, for which the target asks with an R2T, and reads back.
fn work(controller: &Controller) {
    let written: Vec<u8> = (0..LENGTH).map(|at| (at * 11 + at / 512) as u8).collect();
    controller.write_at(1, 0, &written, false).expect("written");
    let mut read = vec![0xee; LENGTH];
    controller.read_at(1, 0, &mut read).expect("read");
    assert!(read == written, "the data came back changed");
}

/// Passes on another PDU instead of the first one of a type on the first I/O queue. What the initiator says to that.
fn tampered(
    options: &str,
    which: PduType,
    change: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
) -> Vec<(FatalError, u32)> {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let (connected, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let tamper = Tamper::start(target.address(), move |mut pdu: Passing, sink: &mut TcpStream| {
        let ours = pdu.from == From::Target && pdu.connection == 1;
        // The first response is that to Connect.
        let response = ours && pdu.pdu_type() == PduType::CAPSULE_RESP;
        let connects = response && !connected.swap(true, Ordering::Relaxed);
        let meant = ours && !connects && pdu.pdu_type() == which;
        if meant && !done.swap(true, Ordering::Relaxed) {
            pdu.bytes = change(pdu.bytes);
        }
        unchanged(&pdu, sink)
    });
    let controller = connect(tamper.address, options).expect("attached");
    work(&controller);
    // What was wrong may have come behind the last answer.
    std::thread::sleep(Duration::from_millis(30));
    work(&controller);
    controller.detach().expect("detached");
    tamper.terminations()
}

/// Writes a field of a header.
fn set(at: usize, value: impl AsRef<[u8]>) -> impl Fn(Vec<u8>) -> Vec<u8> {
    let value = value.as_ref().to_vec();
    move |mut pdu| {
        pdu[at..at + value.len()].copy_from_slice(&value);
        pdu
    }
}

/// Of the data of a read only the first block, with SUCCESS.
fn short(mut pdu: Vec<u8>) -> Vec<u8> {
    const HEADER: usize = 24;
    pdu.truncate(HEADER + 512);
    pdu = set(4, (HEADER as u32 + 512).to_le_bytes())(pdu);
    pdu = set(16, 512_u32.to_le_bytes())(pdu);
    let flags = PduFlags::default().with_last(true).with_success(true);
    set(1, flags.as_bytes())(pdu)
}

/// Instead of data, a request for data of the same command.
fn r2t_instead(pdu: &[u8]) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::R2T, PduFlags::default(), 24, 0, 24);
    let cid = u16::from_le_bytes([pdu[8], pdu[9]]);
    ReadyToTransfer::new(ch, cid, 1, 0, 512).as_bytes().to_vec()
}

/// Instead of a request for data, data for the same command.
fn data_instead(pdu: &[u8]) -> Vec<u8> {
    let flags = PduFlags::default().with_last(true).with_success(true);
    let ch = CommonHeader::new(PduType::C2H_DATA, flags, 24, 24, 24 + 512);
    let cid = u16::from_le_bytes([pdu[8], pdu[9]]);
    let mut data = DataHeader::new(ch, cid, 0, 0, 512).as_bytes().to_vec();
    data.resize(24 + 512, 0xaa);
    data
}

fn twice(mut pdu: Vec<u8>) -> Vec<u8> {
    pdu.extend_from_within(..);
    pdu
}

#[test]
fn a_target_that_breaks_the_protocol_is_told_how() {
    let (resp, data, r2t) = (PduType::CAPSULE_RESP, PduType::C2H_DATA, PduType::R2T);
    type Change = Box<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>;
    let unknown = 0x7fff_u16.to_le_bytes();
    let beyond = (LENGTH as u32).to_le_bytes();
    let second = IcResp::new(1, Digests::default(), 1 << 17).as_bytes().to_vec();
    let cases: Vec<(&str, PduType, Change, (FatalError, u32))> = vec![
        ("an unknown type", resp, Box::new(set(0, [0x55])), (FIELD, 0)),
        ("a type that only we may send", resp, Box::new(set(0, [4])), (SEQUENCE, 0)),
        ("a second ICResp", resp, Box::new(move |_| second.clone()), (SEQUENCE, 0)),
        ("a digest that was not agreed on", resp, Box::new(set(1, [1])), (FIELD, 1)),
        ("another header length", resp, Box::new(set(2, [23])), (FIELD, 2)),
        ("data inside the header", data, Box::new(set(3, [20])), (FIELD, 3)),
        ("a response with data", resp, Box::new(set(4, [28])), (FIELD, 4)),
        ("a PDU without an end", data, Box::new(set(4, u32::MAX.to_le_bytes())), (FIELD, 16)),
        ("a response to nothing", resp, Box::new(set(8 + 12, unknown)), (FIELD, 8)),
        ("a response twice", resp, Box::new(twice), (FIELD, 8)),
        ("data for nothing", data, Box::new(set(8, unknown)), (FIELD, 8)),
        ("data beyond", data, Box::new(set(12, beyond)), (FatalError::OUT_OF_RANGE, 0)),
        ("SUCCESS before the end", data, Box::new(set(1, [8])), (FIELD, 1)),
        ("data after the end", data, Box::new(twice), (FIELD, 8)),
        ("an R2T for nothing outstanding", r2t, Box::new(set(8, unknown)), (FIELD, 8)),
        ("an R2T that does not follow", r2t, Box::new(twice), (SEQUENCE, 0)),
        ("an R2T beyond", r2t, Box::new(set(12, beyond)), (FatalError::OUT_OF_RANGE, 0)),
        ("a short read", data, Box::new(short), (SEQUENCE, 0)),
        ("an R2T for a read", data, Box::new(|pdu| r2t_instead(&pdu)), (SEQUENCE, 0)),
        ("data for a write", r2t, Box::new(|pdu| data_instead(&pdu)), (SEQUENCE, 0)),
        ("an R2T for no bytes", r2t, Box::new(set(16, [0; 4])), (FIELD, 16)),
    ];
    for (what, which, change, wanted) in cases {
        assert_eq!(tampered("", which, change), [wanted], "{what}");
    }
}

#[test]
fn a_wrong_header_digest_of_any_pdu_ends_the_connection_with_what_was_received() {
    for which in [PduType::CAPSULE_RESP, PduType::C2H_DATA, PduType::R2T] {
        let said = tampered("hdgst=on&ddgst=on", which, set(24, [1, 2, 3, 4]));
        assert_eq!(said, [(FatalError::HEADER_DIGEST_ERROR, 0x0403_0201)], "{which:?}");
    }
}

#[test]
fn a_wrong_data_digest_costs_no_connection() {
    let damage = |mut pdu: Vec<u8>| {
        let last = pdu.len() - 1;
        pdu[last] ^= 1;
        pdu
    };
    for options in ["ddgst=on", "hdgst=on&ddgst=on"] {
        assert_eq!(tampered(options, PduType::C2H_DATA, damage), []);
    }
}

#[test]
fn a_termination_request_is_not_answered() {
    let request = TermReq::new(PduType::C2H_TERM_REQ, SEQUENCE, 0, 0).as_bytes().to_vec();
    let long = set(4, 153_u32.to_le_bytes())(request.clone());
    for pdu in [request, long] {
        assert_eq!(tampered("", PduType::CAPSULE_RESP, move |_| pdu.clone()), []);
    }
}

/// A target of which the first I/O queue behaves otherwise from its first data on: the initiator goes on with another
/// connection, in time.
fn given_up(pass: impl Fn(Passing, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static) {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let begun = AtomicBool::new(false);
    let tamper = Tamper::start(target.address(), move |pdu: Passing, sink: &mut TcpStream| {
        let data = [PduType::R2T, PduType::C2H_DATA].contains(&pdu.pdu_type());
        let odd = pdu.connection == 1 && (begun.load(Ordering::Relaxed) || data);
        if odd {
            begun.store(true, Ordering::Relaxed);
            return pass(pdu, sink);
        }
        unchanged(&pdu, sink)
    });
    let controller = connect(tamper.address, "").expect("attached");
    let started = Instant::now();
    work(&controller);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    controller.detach().expect("detached");
}

#[test]
fn a_target_that_falls_silent_is_given_up() {
    given_up(|_, _| Ok(()));
}

#[test]
fn a_target_that_stops_reading_is_given_up() {
    given_up(|pdu, sink| {
        if pdu.from == From::Host {
            // Its fault is to be slow.
            std::thread::sleep(Duration::from_secs(5));
        }
        unchanged(&pdu, sink)
    });
}

#[test]
fn a_target_that_says_a_byte_a_second_is_given_up() {
    given_up(|pdu, sink| {
        pdu.bytes.iter().try_for_each(|byte| {
            // Its fault is to be slow.
            std::thread::sleep(Duration::from_secs(1));
            sink.write_all(&[*byte])
        })
    });
    // And before anything is agreed on.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let slow = std::thread::spawn(move || {
        let (mut host, _) = listener.accept().expect("a host");
        let _request = host.read(&mut [0; 128]);
        let response = IcResp::new(1, Digests::default(), 1 << 17);
        for byte in response.as_bytes() {
            if host.write_all(&[*byte]).is_err() {
                return;
            }
            // Its fault is to be slow.
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    let begun = Instant::now();
    let error = connect(address, "").expect_err("it never comes to the point");
    assert!(error.contains("ICReq") && begun.elapsed() < Duration::from_secs(30), "{error}");
    slow.join().expect("the connection was ended");
}

#[test]
fn an_address_says_how_long_what_was_sent_may_stay_unacknowledged() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let stopped = AtomicBool::new(false);
    let tamper = Tamper::start(target.address(), move |pdu: Passing, sink: &mut TcpStream| {
        let data = pdu.from == From::Host && pdu.pdu_type() == PduType::H2C_DATA;
        if data && pdu.connection == 1 && !stopped.swap(true, Ordering::Relaxed) {
            // It reads no more, so that what follows finds no room.
            std::thread::sleep(Duration::from_secs(30));
        }
        unchanged(&pdu, sink)
    });
    // Long before a command would be given up. Then the target waits for what it has asked for on the old connection.
    let controller =
        connect_with(tamper.address, "usertimeout=1", Duration::from_secs(60)).expect("attached");
    let written: Vec<u8> = (0..8 << 20).map(|at| (at * 11 + at / 512) as u8).collect();
    let begun = Instant::now();
    controller.write_at(1, 0, &written, false).expect("over another connection");
    let took = begun.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(15)).contains(&took), "{took:?}");
    let mut read = vec![0; written.len()];
    controller.read_at(1, 0, &mut read).expect("read");
    assert!(read == written, "the data came back changed");
    controller.detach().expect("detached");
}
