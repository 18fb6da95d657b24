//! Connection establishment, both roles, good and bad.

use proptest::prelude::*;
use ringfab_proto::iwarp::TerminateCode;
use ringfab_proto::iwarp::mpa::{
    Initiator, MpaConfig, MpaError, Negotiated, Outcome, ReadySet, ReadyToReceive, Responder, Revision, Role,
};

fn config() -> MpaConfig {
    MpaConfig { ird: 16, ord: 8, ..MpaConfig::default() }
}

/// Runs both roles against each other in pieces of `chunk`.
fn connect(one: MpaConfig, other: MpaConfig, chunk: usize) -> (Negotiated, Negotiated) {
    let mut initiator = Initiator::new(one, b"from the initiator").unwrap();
    let mut responder = Responder::new(other);
    let pieces: Vec<_> = initiator.request().chunks(chunk).map(<[u8]>::to_vec).collect();
    let (last, front) = pieces.split_last().unwrap();
    front.iter().for_each(|piece| assert_eq!(responder.receive(piece), Ok((piece.len(), false))));
    assert_eq!(responder.receive(last), Ok((last.len(), true)));
    assert_eq!(responder.private_data(), b"from the initiator");
    let (theirs, reply) = responder.accept(b"from the responder").unwrap();
    let mut ours = None;
    for piece in reply.chunks(chunk) {
        let (consumed, outcome) = initiator.receive(piece).unwrap();
        assert_eq!(consumed, piece.len());
        ours = outcome;
    }
    assert_eq!(initiator.private_data(), b"from the responder");
    let Some(Outcome::Accepted(ours)) = ours else { panic!("not accepted: {ours:?}") };
    (ours, theirs)
}

/// A frame by hand.
fn frame(reply: bool, flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let key: &[u8] = if reply { b"MPA ID Rep Frame" } else { b"MPA ID Req Frame" };
    let len = u16::try_from(private_data.len()).unwrap().to_be_bytes();
    [key, &[flags, revision], &len, private_data].concat()
}

fn reply_to(config: MpaConfig, frame: &[u8]) -> Result<Option<Outcome>, MpaError> {
    Initiator::new(config, b"").unwrap().receive(frame).map(|(_, outcome)| outcome)
}

fn request(config: MpaConfig, frame: &[u8]) -> (Responder, Result<(usize, bool), MpaError>) {
    let mut responder = Responder::new(config);
    let result = responder.receive(frame);
    (responder, result)
}

#[test]
fn a_request_has_the_bytes_of_the_specification() {
    let one = Initiator::new(MpaConfig { revision: Revision::One, ..config() }, b"pd").unwrap();
    assert_eq!(one.request(), frame(false, 0x40, 1, b"pd"));
    let two = Initiator::new(MpaConfig { peer_to_peer: Some(ReadySet::ALL), ..config() }, b"pd").unwrap();
    assert_eq!(two.request(), frame(false, 0x50, 2, &[0xc0, 16, 0xc0, 8, b'p', b'd']));
    let plain = Initiator::new(MpaConfig { crc: false, ..config() }, b"").unwrap();
    assert_eq!(plain.request(), frame(false, 0x10, 2, &[0, 16, 0, 8]));
}

#[test]
fn each_side_gets_the_smaller_of_limit_and_wish() {
    let (ours, theirs) = connect(config(), MpaConfig { ird: 4, ord: 100, ..config() }, 1);
    assert_eq!((ours.ird, ours.ord), (16, 4), "their ORD of 100 shrinks to our IRD, our ORD of 8 to theirs");
    assert_eq!((theirs.ird, theirs.ord), (4, 16));
    assert_eq!((ours.role, theirs.role), (Role::Initiator, Role::Responder));
}

#[test]
fn crc_is_used_when_either_side_asks() {
    for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
        let (ours, theirs) =
            connect(MpaConfig { crc: one, ..config() }, MpaConfig { crc: other, ..config() }, 7);
        assert_eq!((ours.crc, theirs.crc), (one || other, one || other));
    }
}

#[test]
fn peer_to_peer_mode_picks_one_first_message_that_both_know() {
    for (wanted, picked) in [
        (ReadySet::ALL, ReadyToReceive::Write),
        (ReadySet { write: false, ..ReadySet::ALL }, ReadyToReceive::Send),
        (ReadySet { read: true, ..ReadySet::default() }, ReadyToReceive::Read),
    ] {
        let (ours, theirs) = connect(MpaConfig { peer_to_peer: Some(wanted), ..config() }, config(), 3);
        assert_eq!((ours.ready, theirs.ready), (Some(picked), Some(picked)));
    }
    let none = MpaConfig { peer_to_peer: Some(ReadySet::default()), ..config() };
    let asked = Initiator::new(none, b"").unwrap();
    assert_eq!(request(config(), asked.request()).1, Err(MpaError::NoMatchingReady));
    let other = frame(true, 0x10, 2, &[0x80, 1, 0x40, 1]);
    let only_write = ReadySet { write: true, ..ReadySet::default() };
    let error = reply_to(MpaConfig { peer_to_peer: Some(only_write), ..config() }, &other).unwrap_err();
    assert_eq!(error, MpaError::NoMatchingReady);
    assert_eq!(error.terminate_code(), TerminateCode::MPA_NO_MATCHING_RTR);
}

#[test]
fn revision_1_on_both_sides_negotiates_no_depths() {
    let one = MpaConfig { revision: Revision::One, ..config() };
    let (ours, theirs) = connect(one, config(), 100);
    assert_eq!((ours.revision, theirs.revision), (Revision::One, Revision::One));
    assert_eq!((ours.ird, ours.ord), (16, 8));
}

#[test]
fn a_responder_of_revision_1_makes_the_initiator_fall_back() {
    let asked = Initiator::new(config(), b"").unwrap();
    let one = MpaConfig { revision: Revision::One, ..config() };
    let (responder, result) = request(one, asked.request());
    assert_eq!(result, Err(MpaError::Revision(2)));
    let reject = responder.reject(b"").unwrap();
    assert_eq!(reject, frame(true, 0x60, 1, b""));
    assert_eq!(reply_to(config(), &reject), Err(MpaError::OnlyRevisionOne));
    assert_eq!(reply_to(config(), &frame(true, 0, 1, b"")), Err(MpaError::OnlyRevisionOne));
    connect(one, one, 50);
}

#[test]
fn a_rejection_carries_private_data() {
    for revision in [Revision::One, Revision::Two] {
        let config = MpaConfig { revision, ..config() };
        let mut initiator = Initiator::new(config, b"").unwrap();
        let (responder, result) = request(config, initiator.request());
        assert!(result.is_ok());
        let reject = responder.reject(b"because").unwrap();
        assert_eq!(initiator.receive(&reject), Ok((reject.len(), Some(Outcome::Rejected))));
        assert_eq!(initiator.private_data(), b"because");
    }
}

#[test]
fn a_peer_that_needs_markers_is_refused() {
    let (responder, result) = request(config(), &frame(false, 0x80, 1, b""));
    assert_eq!(result, Err(MpaError::Markers));
    assert_eq!(responder.reject(b"").unwrap(), frame(true, 0x60, 1, b""));
    assert_eq!(responder.accept(b"").unwrap_err(), MpaError::Markers);
    assert_eq!(reply_to(config(), &frame(true, 0x90, 2, &[0; 4])), Err(MpaError::Markers));
}

#[test]
fn a_peer_that_speaks_nvme_tcp_is_recognized_from_pieces_too() {
    for (piece, expected) in [
        (&b"\0\0\x80"[..], Err(MpaError::NvmeTcp)),
        (&[1, 1, 128], Err(MpaError::NvmeTcp)),
        (&[3, 0, 24], Err(MpaError::NvmeTcp)),
        (&[1, 0, 24], Err(MpaError::Key { offset: 0, found: 1 })),
        (&[3, 0, 128], Err(MpaError::Key { offset: 0, found: 3 })),
    ] {
        let mut responder = Responder::new(config());
        assert_eq!(responder.receive(&piece[..1]), Ok((1, false)));
        assert_eq!(responder.receive(&piece[1..2]), Ok((1, false)));
        assert_eq!(responder.receive(&piece[2..]), expected);
        assert_eq!(request(config(), piece).1, expected, "at once");
    }
}

#[test]
fn malformed_frames_are_refused_as_early_as_possible() {
    assert_eq!(request(config(), b"GET /").1, Err(MpaError::Key { offset: 0, found: b'G' }));
    assert_eq!(request(config(), &[0, 0, 128, 0, 128, 0, 0, 0]).1, Err(MpaError::NvmeTcp), "ICReq");
    assert_eq!(reply_to(config(), &[3, 0, 24, 0, 152, 0, 0, 0]), Err(MpaError::NvmeTcp), "C2HTermReq");
    assert_eq!(request(config(), b"MPA ID Rep").1, Err(MpaError::Key { offset: 9, found: b'p' }));
    for revision in [0, 3, 255] {
        assert_eq!(request(config(), &frame(false, 0, revision, b"")).1, Err(MpaError::Revision(revision)));
    }
    for len in [0, 1, 3] {
        let short = frame(false, 0x10, 2, &vec![0; len]);
        assert_eq!(request(config(), &short).1, Err(MpaError::EnhancedLen(u16::try_from(len).unwrap())));
    }
    assert_eq!(reply_to(config(), &frame(true, 0, 2, &[0; 4])), Err(MpaError::NotEnhanced));
    let header = &frame(false, 0, 1, &[0; 513])[..20];
    assert_eq!(request(config(), header).1, Err(MpaError::PrivateDataLen(513)));
    assert_eq!(Responder::new(config()).accept(b"").unwrap_err(), MpaError::State);
    assert_eq!(Responder::new(config()).reject(b"").unwrap_err(), MpaError::State);
}

#[test]
fn private_data_of_512_bytes_passes_and_513_do_not() {
    let one = MpaConfig { revision: Revision::One, ..config() };
    let asked = Initiator::new(one, &[7; 512]).unwrap();
    let (responder, result) = request(one, asked.request());
    assert_eq!(result, Ok((532, true)));
    assert_eq!(responder.private_data(), [7; 512]);
    assert_eq!(Initiator::new(one, &[0; 513]).unwrap_err(), MpaError::PrivateDataTooLong(513));
    assert!(Initiator::new(config(), &[0; 508]).is_ok(), "the enhanced fields take four bytes");
    assert_eq!(Initiator::new(config(), &[0; 509]).unwrap_err(), MpaError::PrivateDataTooLong(509));
}

#[test]
fn a_reply_that_wants_more_reads_than_offered_is_refused() {
    assert!(reply_to(config(), &frame(true, 0x10, 2, &[0, 1, 0, 16])).is_ok());
    let error = reply_to(config(), &frame(true, 0x10, 2, &[0, 1, 0, 17])).unwrap_err();
    assert_eq!(error, MpaError::InsufficientIrd { wanted: 17, ird: 16 });
    assert_eq!(error.terminate_code(), TerminateCode::MPA_INSUFFICIENT_IRD);
}

#[test]
fn a_peer_that_leaves_the_depths_open_gets_ours() {
    let Ok(Some(Outcome::Accepted(ours))) =
        reply_to(config(), &frame(true, 0x10, 2, &[0x3f, 0xff, 0x3f, 0xff]))
    else {
        panic!("not accepted")
    };
    assert_eq!((ours.ird, ours.ord), (16, 8));
    let (responder, _) = request(config(), &frame(false, 0x10, 2, &[0x3f, 0xff, 0x3f, 0xff]));
    let (theirs, _) = responder.accept(b"").unwrap();
    assert_eq!((theirs.ird, theirs.ord), (16, 8));
}

#[test]
fn a_responder_can_choose_its_depths_after_reading_the_request() {
    let asked = Initiator::new(config(), b"").unwrap();
    let (mut responder, _) = request(MpaConfig::default(), asked.request());
    assert_eq!(responder.peer_depths(), Some((16, 8)));
    responder.set_depths(3, 2);
    let (theirs, _) = responder.accept(b"").unwrap();
    assert_eq!((theirs.ird, theirs.ord), (3, 2));
    assert_eq!(request(config(), &frame(false, 0, 1, b"")).0.peer_depths(), None);
}

#[test]
fn bytes_behind_the_frame_are_left_for_the_fpdu_stream() {
    let mut bytes = frame(false, 0, 1, b"pd");
    let len = bytes.len();
    bytes.extend_from_slice(b"first fpdu");
    let (mut responder, result) = request(config(), &bytes);
    assert_eq!(result, Ok((len, true)));
    assert_eq!(responder.receive(b"more"), Ok((0, true)), "a complete frame takes nothing");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_either_role(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        flags in any::<u8>(),
        revision in 0..4_u8,
        cut in 0..600_usize,
    ) {
        for reply in [false, true] {
            let announced = &bytes[..bytes.len().min(520)];
            let mut input = frame(reply, flags, revision, announced);
            input.truncate(cut);
            let mut responder = Responder::new(config());
            let _ = responder.receive(&input).map(|_| (responder.accept(b""), responder.private_data().len()));
            let _ = responder.reject(b"");
            let mut initiator = Initiator::new(config(), b"").unwrap();
            let _ = initiator.receive(&input);
            let _ = Responder::new(config()).receive(&bytes);
        }
    }
}
