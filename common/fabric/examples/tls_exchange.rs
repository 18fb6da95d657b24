//! Exchanges data over TLS between two ends in this process, each of which is protected by the kernel or by the
//! process, and says which it was.
//!
//!     tls_exchange [kernel]
//!
//! With `kernel`, an end that asks the kernel and is not protected by it is a failure; else it may be one of a kernel
//! without TLS. Data of many sizes go both ways, and peers end, cut and change what they send. Exits with a panic when
//! something is wrong.
#![allow(clippy::print_stdout, reason = "what it finds is its output")]

#[path = "../tests/tls/raw.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod raw;
#[path = "../tests/tls/support.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod support;

use ringfab_fabric::tcp::{Digests, ListenerTls, ProtectedBy, TcpConfig, prepare_kernel_tls};
use ringfab_tls::{Alert, ContentType, TlsError};

use crate::raw::{RESPONSE_BYTES, Secured, command};
use crate::support::{
    DATA_BYTES_MAX, PATIENCE, Pair, SHA256, SHA384, config, known, pattern, psk, required, store,
};

const SIZES: [usize; 10] = [1, 512, 4096, 8192, 16_384, 16_385, 65_536, 131_072, 300_001, DATA_BYTES_MAX];

fn main() {
    prepare_kernel_tls();
    let must = std::env::args().nth(1).is_some_and(|word| word == "kernel");
    for (host, target) in [(false, false), (false, true), (true, false), (true, true)] {
        for suite in [SHA256, SHA384] {
            exchange(host, target, suite, must);
        }
    }
    hostile(must);
    println!("all is as it should be");
}

fn asking(kernel: bool) -> TcpConfig {
    TcpConfig { kernel_tls: kernel, handshake_timeout: PATIENCE, ..config() }
}

fn exchange(host: bool, target: bool, suite: ringfab_fabric::tcp::CipherSuite, must: bool) {
    let psk = psk("NVMe1R01 nqn.host nqn.subsystem digest", 4, suite);
    let tls = ListenerTls::Required(store(std::slice::from_ref(&psk)));
    let mut pair = Pair::between((asking(host), asking(target)), tls);
    pair.host.timeout = PATIENCE;
    for digests in [Digests::default(), Digests::default().with_header(true).with_data(true)] {
        let connection = pair.host.connect_with(pair.listening, Some(std::slice::from_ref(&psk)), digests);
        assert_eq!(pair.outcome(connection), Ok(()));
        for (cid, size) in (1..).zip(SIZES) {
            assert!(pair.read(connection, cid, size) == pattern(size, cid), "{size} bytes read");
            let bytes = pattern(size, cid + 50);
            pair.write(connection, cid, &bytes);
            assert!(pair.written.pop().expect("written").1 == bytes, "{size} bytes written");
        }
        let at_host = pair.host.tcp.security(connection).expect("protected").by;
        let (_, accepted) = pair.accepted.pop().expect("somebody came");
        let at_target = accepted.expect("protected").by;
        for (asked, by) in [(host, at_host), (target, at_target)] {
            assert!(asked || by == ProtectedBy::Process);
            assert!(!(must && asked) || by == ProtectedBy::Kernel, "the kernel protects nothing");
        }
        println!(
            "{suite}: host by the {at_host}, target by the {at_target}: {} sizes both ways",
            SIZES.len()
        );
        pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
        assert_eq!(pair.target_end(), "the peer closed the connection");
        pair.drained();
        pair.host.events.clear();
    }
}

/// What a target makes of peers that do not only send data.
fn hostile(must: bool) {
    let mut pair = Pair::between((asking(false), asking(true)), required());
    let mut told = |act: fn(&mut Pair, &mut Secured)| {
        let mut host = Secured::adopted(&mut pair, &known());
        act(&mut pair, &mut host);
        host.host.end();
        let reason = pair.target_end();
        pair.drained();
        let (_, security) = pair.accepted.pop().expect("somebody came");
        let by = security.expect("protected").by;
        assert!(!must || by == ProtectedBy::Kernel, "the kernel protects nothing");
        println!("target by the {by}: {reason}");
        (reason, by)
    };
    let closed = told(|pair, host| host.send(pair, ContentType::Alert, &Alert::CLOSE_NOTIFY.to_bytes()));
    assert_eq!(closed.0, "the peer closed the connection");
    assert!(told(|_, _| {}).0.contains("without TLS's close_notify"));
    let alert = told(|pair, host| host.send(pair, ContentType::Alert, &Alert::INTERNAL_ERROR.to_bytes()));
    assert!(alert.0.contains("internal_error"), "{}", alert.0);
    let changed = told(|pair, host| {
        let mut record = host.seal(ContentType::ApplicationData, &command(2));
        record[30] ^= 1;
        host.host.send(pair, &record);
        match host.receive(pair) {
            Some(Err(TlsError::PeerAlert { alert, .. })) => assert_eq!(alert, Alert::BAD_RECORD_MAC),
            other => panic!("no alert: {other:?}"),
        }
    });
    assert!(changed.0.starts_with("TLS: a record"), "{}", changed.0);
    let cut = told(|pair, host| {
        let record = host.seal(ContentType::ApplicationData, &command(2));
        host.host.send(pair, &record[..record.len() - 1]);
    });
    assert!(cut.0.contains("cut off"), "{}", cut.0);
    let updated = told(|pair, host| {
        let mut record = [0; 64];
        let length = host.sealer.update(&mut record).expect("sealed");
        host.host.send(pair, &record[..length]);
    });
    let expected = if updated.1 == ProtectedBy::Kernel { "KeyUpdate" } else { "without TLS's close_notify" };
    assert!(updated.0.contains(expected), "{}", updated.0);
    let small = told(|pair, host| {
        command(3).iter().for_each(|byte| host.send(pair, ContentType::ApplicationData, &[*byte]));
        host.receive_data(pair, RESPONSE_BYTES);
        host.send(pair, ContentType::Alert, &Alert::CLOSE_NOTIFY.to_bytes());
    });
    assert_eq!(small.0, "the peer closed the connection");
}
