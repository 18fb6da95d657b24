//! Recorded sessions, cut and flipped everywhere, and plain noise.

use proptest::prelude::*;
use ringfab_proto::iwarp::mpa::{Negotiated, ReadyToReceive, Role};
use ringfab_proto::iwarp::{
    Access, EngineConfig, EngineError, ReadRequest, SendRequest, WorkRequest, WriteRequest,
};

use super::support::{Host, REQUESTER, local, negotiated, send_inline};

/// A responder ready for [`session`]: the same STags each time, since the random source is seeded.
fn responder(crc: bool, direct_min: usize) -> (Host, [u32; 3]) {
    let ready = Some(ReadyToReceive::Write);
    let mut config = EngineConfig::new(Negotiated { crc, ready, ..negotiated(Role::Responder) }, REQUESTER);
    config.direct_min = direct_min;
    let mut host = Host::with_config(config);
    let source = host.allocate((0..=255).collect());
    let target = host.allocate(vec![0; 300]);
    let stags = [
        host.expose(source, 0x1000, Access::RemoteRead),
        host.expose(target, 0x2000, Access::RemoteWrite),
        host.expose(target, 0x3000, Access::RemoteWrite),
    ];
    host.post_recvs(8);
    (host, stags)
}

/// What an initiator sends: every kind of message once.
fn session(crc: bool) -> Vec<u8> {
    let (_, stags) = responder(crc, 2048);
    let ready = Some(ReadyToReceive::Write);
    let mut config = EngineConfig::new(Negotiated { crc, ready, ..negotiated(Role::Initiator) }, REQUESTER);
    config.ulpdu_len_max = 128;
    let mut host = Host::with_config(config);
    let data = host.allocate((0..300_u32).map(|i| i.to_be_bytes()[3]).collect());
    let send = SendRequest { payload: Some(local(data, 0, 201)), ..send_inline(b"capsule") };
    let write = WriteRequest { stag: stags[1], to: 0x2000, payload: local(data, 0, 300) };
    let read =
        ReadRequest { stag: stags[0], to: 0x1000, sink_stag: 1, sink_to: 2, sink: local(data, 0, 256) };
    let invalidate = SendRequest { invalidate: Some(stags[2]), solicited: true, ..send_inline(b"done") };
    let works = [
        WorkRequest::Send(send),
        WorkRequest::Write(write),
        WorkRequest::Read(read),
        WorkRequest::Send(invalidate),
    ];
    works.into_iter().for_each(|work| host.engine.post(0, work).unwrap());
    host.emit_all()
}

/// Everything a peer's bytes changed.
fn outcome(
    host: &mut Host,
    bytes: &[u8],
    chunk: usize,
) -> (Option<EngineError>, Vec<Vec<u8>>, Vec<u8>, Vec<u8>) {
    let error = bytes.chunks(chunk).try_for_each(|piece| host.feed(piece)).err();
    let emitted = host.emit_all();
    (error, std::mem::take(&mut host.messages), host.memory[1].clone(), emitted)
}

#[test]
fn a_session_means_the_same_in_any_pieces() {
    for crc in [false, true] {
        let bytes = session(crc);
        let whole = outcome(&mut responder(crc, 2048).0, &bytes, usize::MAX);
        assert_eq!(whole.0, None);
        assert_eq!(whole.1.len(), 2);
        for chunk in 1..bytes.len() {
            for direct_min in [1, 50, 2048] {
                let mut host = responder(crc, direct_min).0;
                host.use_direct = chunk % 2 == 0;
                assert_eq!(
                    outcome(&mut host, &bytes, chunk),
                    whole,
                    "pieces of {chunk}, direct from {direct_min}"
                );
            }
        }
    }
}

#[test]
fn a_session_cut_at_every_byte_is_an_incomplete_session() {
    let bytes = session(true);
    for cut in 0..bytes.len() {
        let mut host = responder(true, 1).0;
        host.feed(&bytes[..cut]).expect("nothing wrong so far");
        let unconsumed = host.staging.len();
        let inside = unconsumed > 0 || host.engine.direct().is_some();
        let error = host.engine.stream_ended(unconsumed);
        if inside {
            assert!(matches!(error, EngineError::Truncated { .. }), "cut at {cut}: {error}");
        }
        host.engine.transport_closed();
        assert!(host.engine.poll_completion().is_none());
    }
}

#[test]
fn every_flipped_bit_of_a_session_with_crc_is_detected() {
    let bytes = session(true);
    let good = outcome(&mut responder(true, 2048).0, &bytes, usize::MAX);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            for direct_min in [1, usize::MAX] {
                let mut host = responder(true, direct_min).0;
                let (error, messages, ..) = outcome(&mut host, &bad, 61);
                // A longer length field makes the engine wait for bytes that never come: that is detected as well.
                let waits = !host.staging.is_empty() || host.engine.direct().is_some();
                assert!(error.is_some() || waits, "bit {bit} of byte {at} went unnoticed");
                assert!(
                    messages.len() < 2 && good.1.starts_with(&messages),
                    "a damaged message was delivered"
                );
            }
        }
    }
}

#[test]
fn every_flipped_byte_without_crc_ends_in_an_answer_and_not_in_a_panic() {
    let bytes = session(false);
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            let mut host = responder(false, 1).0;
            let (error, _, _, emitted) = outcome(&mut host, &bad, 100);
            if matches!(error, Some(EngineError::Violation(_))) {
                assert!(!emitted.is_empty(), "a violation is answered by a Terminate");
            }
        }
    }
}

#[test]
fn lengths_at_their_limits_are_refused_or_awaited() {
    for len in [0, 1, 13, 14, 17, 18, 65_534, 65_535_u16] {
        for control in [0x41, 0xc1_u8] {
            let mut bytes = len.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[control, 0x43]);
            bytes.resize((2 + usize::from(len)).next_multiple_of(4) + 4, 0);
            let mut host = responder(false, usize::MAX).0;
            let result = host.feed(&bytes);
            assert!(result.is_err(), "length {len} control {control:#x}: {result:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn noise_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        keep in 0..200_usize,
        chunk in 1..50_usize,
        direct_min in 1..100_usize,
    ) {
        let mut bytes = session(false);
        bytes.truncate(keep);
        bytes.extend_from_slice(&noise);
        let mut host = responder(false, direct_min).0;
        let _ = outcome(&mut host, &bytes, chunk);
        host.engine.transport_closed();
    }

    #[test]
    fn plausible_headers_with_wild_fields_never_panic(
        controls in prop::collection::vec((any::<bool>(), any::<bool>(), 0..9_u8, any::<[u8; 3]>()), 1..20),
        fields in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255), any::<u8>()], 60),
        len in 0..60_usize,
    ) {
        let mut host = responder(true, 1).0;
        for (tagged, last, opcode, seed) in controls {
            let mut ulpdu = vec![u8::from(tagged) << 7 | u8::from(last) << 6 | 1, 0x40 | opcode];
            ulpdu.extend_from_slice(&fields[..len]);
            ulpdu.extend_from_slice(&seed);
            if host.feed(&super::support::fpdu(&ulpdu)).is_err() {
                break;
            }
            host.emit_all();
        }
    }
}
