//! Both ends are ours.

use ringfab_fabric::tcp::{Digests, ListenerTls, ProtectedBy, SubmitData, TcpConfig};

use crate::support::{
    DATA_BYTES_MAX, Log, Node, Pair, SHA256, SHA384, config, known, pattern, psk, required, store,
};

#[test]
fn each_kind_of_listener_takes_whom_it_may_and_names_whom_it_refuses() {
    let (clear, tls) = (None, Some([known()]));
    let allowed = || ListenerTls::Allowed(store(&[known()]));
    let off = "the controller has ended the connection with handshake_failure";
    for (listener, host, expected, logged) in [
        (ListenerTls::Off, &clear, Ok(()), ""),
        (ListenerTls::Off, &tls, Err(off), "it begins with TLS, which is off here"),
        (allowed(), &clear, Ok(()), ""),
        (allowed(), &tls, Ok(()), ""),
        (required(), &clear, Err("ICReq: "), "it does not begin with TLS, which is required here"),
        (required(), &tls, Ok(()), ""),
    ] {
        let what = format!("{listener:?} {}", host.is_some());
        let (peer, log) = Log::of(|| {
            let mut pair = Pair::over_loopback(listener);
            let connection = pair.host.connect(pair.listening, host.as_ref().map(|psks| &psks[..]));
            let outcome = pair.outcome(connection);
            match (&outcome, expected) {
                (Ok(()), Ok(())) => {
                    pair.flush(connection, 1);
                    let security = pair.host.tcp.security(connection).cloned();
                    assert_eq!(security.is_some(), host.is_some(), "{what}");
                    assert_eq!(pair.accepted.len(), 1, "{what}");
                    assert_eq!(pair.accepted[0].1, security, "both ends say the same: {what}");
                    let accepted = pair.target.tcp.security(pair.accepted[0].0);
                    assert_eq!(accepted, security.as_ref(), "{what}");
                    pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
                }
                (Err(text), Err(part)) => assert!(text.contains(part), "{what}: {text}"),
                _ => panic!("{what}: {outcome:?}"),
            }
            pair.drained();
        });
        let () = peer;
        assert!(log.contains(logged), "{what}: {log}");
        if !logged.is_empty() {
            assert!(log.contains("peer=127.0.0.1:"), "the log names the peer: {log}");
        }
    }
}

#[test]
fn who_connects_learns_the_suite_and_the_key_and_who_protects() {
    for suite in [SHA256, SHA384] {
        let psk = psk("NVMe1R0x nqn.host nqn.subsystem", 3, suite);
        let mut pair = Pair::over_loopback(ListenerTls::Required(store(&[known(), psk.clone()])));
        let connection = pair.establish(Some(std::slice::from_ref(&psk)));
        let security = pair.host.tcp.security(connection).cloned().expect("it is protected");
        assert_eq!((security.suite, security.by), (suite, ProtectedBy::Process));
        assert_eq!(security.identity.as_bytes(), psk.identity);
        pair.flush(connection, 1);
    }
}

#[test]
fn keys_that_differ_or_are_unknown_are_told_to_both_ends() {
    let other = psk("NVMe1R01 nqn.other nqn.subsystem", 7, SHA256);
    let differs = psk("NVMe1R01 nqn.host nqn.subsystem digest", 8, SHA256);
    for (offered, at_host, at_target) in [
        (
            other,
            "it has no key with an identity that was offered",
            "the host offers no key that is known here",
        ),
        (differs, "it has another key for this identity", "the key of the host and the key here differ"),
    ] {
        let ((), log) = Log::of(|| {
            let mut pair = Pair::over_loopback(required());
            let connection = pair.host.connect(pair.listening, Some(std::slice::from_ref(&offered)));
            let error = pair.outcome(connection).expect_err("refused");
            assert!(error.starts_with("TLS handshake: ") && error.contains(at_host), "{error}");
            pair.drained();
        });
        let identity = String::from_utf8_lossy(&offered.identity);
        assert!(log.contains(at_target) && log.contains(&*identity), "{log}");
        assert!(log.contains("peer=127.0.0.1:"), "{log}");
    }
}

#[test]
fn data_of_every_size_are_whole_with_and_without_digests() {
    let both = Digests::default().with_header(true).with_data(true);
    for (digests, suite) in [(Digests::default(), SHA256), (both, SHA384)] {
        let psk = psk("key", 5, suite);
        let mut pair = Pair::over_loopback(ListenerTls::Required(store(std::slice::from_ref(&psk))));
        let connection = pair.host.connect_with(pair.listening, Some(&[psk]), digests);
        assert_eq!(pair.outcome(connection), Ok(()));
        let sizes =
            [1, 511, 513, 4096, 8192, 16_383, 16_384, 16_385, 65_536, 131_072, 200_001, DATA_BYTES_MAX];
        for (cid, size) in (1..).zip(sizes) {
            assert!(pair.read(connection, cid, size) == pattern(size, cid), "{size} bytes read");
            let bytes = pattern(size, cid + 100);
            pair.write(connection, cid, &bytes);
            let (of, written) = pair.written.pop().expect("it was answered");
            assert!(of == cid && written == bytes, "{size} bytes written");
        }
        let direct = pair.host.tcp.counters().received_direct_bytes;
        assert!(direct > DATA_BYTES_MAX as u64, "large data went to their place: {direct}");
        pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
        assert_eq!(pair.host_end(), "disconnected here");
        assert_eq!(pair.target_end(), "the peer closed the connection");
        pair.drained();
        let used = [&pair.host, &pair.target].map(|node| node.pool.usage().taken);
        assert_eq!(used, [0, 0], "no memory is left behind");
    }
}

#[test]
fn many_commands_at_once_share_records_and_all_are_answered() {
    let mut pair = Pair::over_loopback(required());
    let connection = pair.establish(Some(&[known()]));
    for round in 0..20 {
        for cid in 0..32 {
            pair.host.submit(connection, cid, 0, SubmitData::None);
        }
        (0..32).for_each(|cid| pair.answered(cid));
        assert!(round < 20);
    }
}

#[test]
fn a_connection_is_adopted_by_another_core_with_what_came_already() {
    for size in [0, 17, 8192] {
        let mut pair = Pair::over_loopback(required());
        pair.other = Some(Node::over_ring(config()));
        let connection = pair.establish(Some(&[known()]));
        // The first capsule, and many behind it before anybody has adopted anything.
        let bytes = pattern(size, 1);
        for cid in 1..=20 {
            if size == 0 {
                pair.host.submit(connection, cid, 0, SubmitData::None);
            } else {
                let shared_buffer = pair.host.shared_buffer(&bytes);
                let slice =
                    ringfab_fabric::rdma::Slice { shared_buffer, offset: 0, length: bytes.len() as u32 };
                pair.host.submit(connection, cid, size, SubmitData::Capsule(slice));
            }
        }
        (1..=20).for_each(|cid| pair.answered(cid));
        if size > 0 {
            assert_eq!(pair.written.len(), 20);
            assert!(pair.written.iter().all(|(_, written)| *written == bytes));
        }
        assert!(pair.read(connection, 21, 300_000) == pattern(300_000, 21));
        assert_eq!(pair.target.tcp.counters().connections, 0, "it has left the first core");
        pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
        assert_eq!(pair.target_end(), "the peer closed the connection");
        pair.drained();
    }
}

#[test]
fn the_target_disconnects_in_an_orderly_way_too_and_an_abort_is_no_such_way() {
    let mut pair = Pair::over_loopback(required());
    let connection = pair.establish(Some(&[known()]));
    pair.flush(connection, 1);
    let accepted = pair.accepted[0].0;
    pair.target.tcp.disconnect(&mut pair.target.reactor, accepted);
    assert_eq!(pair.host_end(), "the peer closed the connection");
    pair.drained();
    let connection = pair.establish(Some(&[known()]));
    pair.flush(connection, 1);
    let accepted = pair.accepted[1].0;
    pair.target.tcp.abort(&mut pair.target.reactor, accepted);
    let reason = pair.host_end();
    assert!(reason.starts_with("the connection broke: "), "{reason}");
    pair.drained();
}

#[test]
fn the_kernel_protects_where_it_can_and_else_this_process() {
    let automatic = TcpConfig { kernel_tls: true, ..config() };
    let mut pair = Pair::over_loopback_with(automatic, required());
    let connection = pair.establish(Some(&[known()]));
    let by = pair.host.tcp.security(connection).expect("it is protected").by;
    // Which it is depends on the kernel. Both ends find the same, and the data are whole.
    for (cid, size) in [(1, 4096), (2, 131_072), (3, DATA_BYTES_MAX)] {
        assert!(pair.read(connection, cid, size) == pattern(size, cid), "{size} bytes read, {by}");
        let bytes = pattern(size, 9);
        pair.write(connection, cid, &bytes);
        assert!(pair.written.pop().expect("written").1 == bytes, "{size} bytes written, {by}");
    }
    assert_eq!(pair.accepted[0].1.as_ref().map(|security| security.by), Some(by));
    pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
    assert_eq!(pair.target_end(), "the peer closed the connection", "{by}");
    pair.drained();
}

#[test]
fn a_connection_that_rests_gives_its_staging_memory_back_and_goes_on() {
    let mut pair = Pair::over_loopback(required());
    let connection = pair.establish(Some(&[known()]));
    assert!(pair.read(connection, 1, DATA_BYTES_MAX) == pattern(DATA_BYTES_MAX, 1));
    for _ in 0..8 {
        for node in [&mut pair.host, &mut pair.target] {
            node.tcp.trim();
            node.reactor.trim_receives(64);
        }
        pair.step();
    }
    assert!(pair.read(connection, 2, DATA_BYTES_MAX) == pattern(DATA_BYTES_MAX, 2));
}
