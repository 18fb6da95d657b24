//! MPA Request and Reply frames. In pieces they mean the same as in one.
#![cfg_attr(feature = "libfuzzer", no_main)]

use ringfab_fuzz::fuzz_target;
use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig, ReadySet, ReadyToReceive, Responder, Revision};

fuzz_target!(|input: &[u8]| {
    let [flags, frame @ ..] = input else { return };
    let revision = if flags & 1 == 0 { Revision::Two } else { Revision::One };
    let peer_to_peer = (flags & 2 != 0).then_some(ReadySet::from(ReadyToReceive::Write));
    let config = MpaConfig { revision, crc: flags & 4 != 0, ird: 8, ord: 8, peer_to_peer };
    respond(config, frame);
    initiate(config, frame);
});

fn respond(config: MpaConfig, frame: &[u8]) {
    let mut whole = Responder::new(config);
    let expected = whole.receive(frame);
    if let Ok((consumed, _)) = expected {
        assert!(consumed <= frame.len());
    }
    let mut pieces = Responder::new(config);
    let mut state = Ok((0, false));
    for byte in frame.chunks(1) {
        state = pieces.receive(byte);
        if !matches!(state, Ok((_, false))) {
            break;
        }
    }
    assert_eq!(state.map(|(_, complete)| complete), expected.map(|(_, complete)| complete));
    assert_eq!(whole.private_data(), pieces.private_data());
    if let Ok((_, true)) = expected
        && let Ok((agreed, _)) = whole.accept(b"welcome")
    {
        assert!(agreed.ird <= config.ird && agreed.ord <= config.ord);
    }
    let _answer = whole.reject(b"no");
}

fn initiate(config: MpaConfig, frame: &[u8]) {
    let mut whole = Initiator::new(config, b"hello").expect("it fits");
    let expected = whole.receive(frame);
    let mut pieces = Initiator::new(config, b"hello").expect("it fits");
    let mut state = Ok((0, None));
    for byte in frame.chunks(1) {
        state = pieces.receive(byte);
        if !matches!(state, Ok((_, None))) {
            break;
        }
    }
    assert_eq!(state.map(|(_, outcome)| outcome), expected.map(|(_, outcome)| outcome));
    assert_eq!(whole.private_data(), pieces.private_data());
}
