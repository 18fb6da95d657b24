//! Peers that say nothing, or not enough, and peers that speak something else.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::raw::{RawHost, Secured, run_for};
use crate::support::{Log, PATIENCE, Pair, SHORT, hasty, known, required};

fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

#[test]
fn a_thousand_that_begin_a_handshake_take_little_and_keep_nobody_out() {
    for bytes in [0, 1, 5, 100] {
        let mut pair = Pair::over_loopback(required());
        let mut hello = None;
        let host = RawHost::connect(pair.listening).secure(&mut pair, &known(), |_, flight| {
            hello.get_or_insert_with(|| flight.clone());
            true
        });
        drop(host);
        pair.drained();
        let hello = hello.expect("a flight");
        let before = resident_bytes();
        let mut silent = Vec::new();
        for _ in 0..500 {
            let mut host = RawHost::connect(pair.listening);
            host.send(&mut pair, &hello[..bytes]);
            silent.push(host);
            pair.step();
        }
        // Those that had to give way are closed before long; nobody's time is over yet.
        pair.until("no more than may be in handshake", |pair| {
            (pair.target.tcp.counters().connections <= 64).then_some(())
        });
        // They have had their time, and others come.
        run_for(&mut pair, Duration::from_millis(120));
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < 64 << 20, "{taken} bytes for connections in handshake");
        let connection = pair.establish(Some(&[known()]));
        pair.flush(connection, 1);
        drop(silent);
        pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
        pair.drained();
    }
}

#[test]
fn a_handshake_that_takes_too_long_is_ended_and_named() {
    let ((), log) = Log::of(|| {
        let mut pair = Pair::over_loopback_with(hasty(), required());
        let mut host = RawHost::connect(pair.listening);
        host.send(&mut pair, &[0x16, 3, 1]);
        assert!(host.record(&mut pair).is_none(), "the target closes it");
        pair.drained();
    });
    assert!(log.contains("no complete TLS handshake came in time"), "{log}");
    assert!(log.contains("peer=127.0.0.1:"), "{log}");
}

/// What a controller is told by whoever listens, who says this to what comes and then closes.
fn told_of(answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut bytes = [0; 4096];
        let _ = stream.read(&mut bytes);
        match answer {
            Some(answer) => {
                let _ = stream.write_all(answer);
            }
            // It says nothing until the host gives up.
            None => while stream.read(&mut bytes).is_ok_and(|count| count > 0) {},
        }
    });
    let mut pair = Pair::over_loopback(required());
    pair.host.timeout = if answer.is_none() { SHORT } else { PATIENCE };
    let connection = pair.host.connect(address, Some(&[known()]));
    let error = pair.outcome(connection).expect_err("no controller of ours");
    pair.drained();
    other.join().expect("no panic");
    error
}

#[test]
fn who_connects_learns_that_the_other_end_has_no_tls() {
    let closed = told_of(Some(b""));
    assert!(closed.starts_with("TLS handshake: "), "{closed}");
    assert!(closed.ends_with("TLS may be off there, or this host may have no key there"), "{closed}");
    let silent = told_of(None);
    assert_eq!(silent, "TLS handshake: no answer within 2 s");
    // A C2HTermReq, as a controller without TLS says.
    let refused = told_of(Some(&[3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert!(refused.starts_with("TLS handshake: "), "{refused}");
    assert!(!refused.contains("no answer"), "{refused}");
}

#[test]
fn what_speaks_no_nvme_over_tls_is_refused_as_in_clear_text() {
    let ((), log) = Log::of(|| {
        let mut pair = Pair::over_loopback(required());
        let mut host = Secured::with(&mut pair, &known());
        host.send(&mut pair, ringfab_tls::ContentType::ApplicationData, &[0x55; 128]);
        // A C2HTermReq, and then close_notify.
        assert!(matches!(host.receive(&mut pair), Some(Ok((ringfab_tls::Opened::Data(_), _)))));
        assert!(matches!(host.receive(&mut pair), Some(Ok((ringfab_tls::Opened::Closed, _)))));
        host.host.end();
        pair.drained();
    });
    assert!(log.contains("the peer broke the protocol"), "{log}");
}
