//! What no honest peer sends: each is answered with the specified termination request.

use proptest::prelude::*;
use ringfab_proto::tcp::{CommandData, Digests, Engine, EngineError, Event, HostConfig, Source};
use ringfab_spec::tcp::{
    CommonHeader, DataHeader, FatalError, IcReq, IcResp, PduFlags, PduType, ReadyToTransfer, TermReq,
};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, SubmissionEntry};

use super::support::{End, controller_config, digests, framed, host_config, pair};

/// What the end says after these bytes: status and information, in the termination request that it sends.
fn verdict(end: &mut End, bytes: &[u8]) -> Option<(FatalError, u32)> {
    let Err(EngineError::Violation(violation)) = end.input(bytes) else { return None };
    let sent = end.output();
    let (request, quote) = TermReq::read_from_prefix(&sent).expect("a termination request");
    assert_eq!((request.fatal_error(), request.fei.get()), (violation.fes, violation.fei));
    assert_eq!(request.ch.plen.get() as usize, sent.len());
    assert!(bytes.windows(quote.len()).any(|window| window == quote), "it quotes what came");
    assert_eq!(end.engine.receive(&[]), Err(EngineError::Ended));
    Some((violation.fes, violation.fei))
}

fn header(pdu_type: PduType, hlen: u8, pdo: u8, plen: u32) -> CommonHeader {
    CommonHeader::new(pdu_type, PduFlags::default(), hlen, pdo, plen)
}

fn controller() -> End {
    pair(host_config(), controller_config()).1
}

fn capsule(pdo: u8, plen: u32) -> Vec<u8> {
    let mut pdu = header(PduType::CAPSULE_CMD, 72, pdo, plen).as_bytes().to_vec();
    pdu.resize(72, 0);
    pdu
}

fn h2c(cid: u16, tag: u16, offset: u32, length: u32, last: bool) -> Vec<u8> {
    let flags = PduFlags::default().with_last(last);
    let ch = CommonHeader::new(PduType::H2C_DATA, flags, 24, 24, 24 + length);
    let mut pdu = DataHeader::new(ch, cid, tag, offset, length).as_bytes().to_vec();
    pdu.resize(24 + length as usize, 0xaa);
    pdu
}

fn c2h(cid: u16, offset: u32, length: u32, flags: PduFlags) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::C2H_DATA, flags, 24, 24, 24 + length);
    let mut pdu = DataHeader::new(ch, cid, 0, offset, length).as_bytes().to_vec();
    pdu.resize(24 + length as usize, 0xaa);
    pdu
}

fn r2t(cid: u16, offset: u32, length: u32) -> Vec<u8> {
    let ch = header(PduType::R2T, 24, 0, 24);
    ReadyToTransfer::new(ch, cid, 7, offset, length).as_bytes().to_vec()
}

const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
const SEQUENCE: FatalError = FatalError::SEQUENCE_ERROR;
const RANGE: FatalError = FatalError::OUT_OF_RANGE;
const LIMIT: FatalError = FatalError::LIMIT_EXCEEDED;

#[test]
fn wrong_common_headers_are_answered_with_the_field() {
    let cases = [
        ("an unknown type", header(PduType(0x20), 8, 0, 8), FIELD, 0),
        ("a type of ours", header(PduType::R2T, 24, 0, 24), SEQUENCE, 0),
        ("a second ICReq", header(PduType::IC_REQ, 128, 0, 128), SEQUENCE, 0),
        ("another header length", header(PduType::CAPSULE_CMD, 71, 0, 72), FIELD, 2),
        ("a PDU shorter than its header", header(PduType::CAPSULE_CMD, 72, 0, 71), FIELD, 4),
        ("data before the end of the header", header(PduType::CAPSULE_CMD, 72, 68, 80), FIELD, 3),
        ("data off their alignment", header(PduType::CAPSULE_CMD, 72, 74, 80), FIELD, 3),
        ("data behind the end", header(PduType::CAPSULE_CMD, 72, 80, 80), FIELD, 4),
        ("too much in a capsule", header(PduType::CAPSULE_CMD, 72, 72, 72 + 8193), FIELD, 4),
        ("more than MAXH2CDATA", header(PduType::H2C_DATA, 24, 24, 24 + 4097), LIMIT, 0),
        ("the longest that can be said", header(PduType::H2C_DATA, 24, 24, u32::MAX), LIMIT, 0),
    ];
    for (what, ch, fes, fei) in cases {
        assert_eq!(verdict(&mut controller(), ch.as_bytes()), Some((fes, fei)), "{what}");
    }
    let flags = PduFlags::default().with_hdgst(true);
    let digest = CommonHeader { flags, ..header(PduType::CAPSULE_CMD, 72, 0, 76) };
    assert_eq!(verdict(&mut controller(), digest.as_bytes()), Some((FIELD, 1)), "a digest not negotiated on");
}

#[test]
fn the_first_pdu_is_the_one_that_initializes() {
    let fresh = || End::new(Engine::controller(controller_config()));
    assert_eq!(verdict(&mut fresh(), &capsule(0, 72)), Some((SEQUENCE, 0)));
    let mut version = IcReq::new(1, digests(false, false), 1);
    version.pfv.set(1);
    let unsupported = FatalError::UNSUPPORTED_PARAMETER;
    assert_eq!(verdict(&mut fresh(), version.as_bytes()), Some((unsupported, 8)));
    let mut alignment = IcReq::new(1, digests(false, false), 1);
    alignment.hpda_z = 32;
    assert_eq!(verdict(&mut fresh(), alignment.as_bytes()), Some((FIELD, 10)));

    let host = || {
        let mut host = End::new(Engine::host(HostConfig { digests: digests(true, false), ..host_config() }));
        host.output();
        host
    };
    let without = IcResp::new(1, digests(false, false), 4096);
    assert_eq!(verdict(&mut host(), without.as_bytes()), Some((unsupported, 11)));
    let unasked = IcResp::new(1, digests(true, true), 4096);
    assert_eq!(verdict(&mut host(), unasked.as_bytes()), Some((FIELD, 11)));
    let little = IcResp::new(1, digests(true, false), 4095);
    assert_eq!(verdict(&mut host(), little.as_bytes()), Some((FIELD, 12)));
    let mut version = IcResp::new(1, digests(true, false), 4096);
    version.pfv.set(1);
    assert_eq!(verdict(&mut host(), version.as_bytes()), Some((unsupported, 8)));
    let mut alignment = IcResp::new(1, digests(true, false), 4096);
    alignment.cpda_z = 32;
    assert_eq!(verdict(&mut host(), alignment.as_bytes()), Some((FIELD, 10)));
    assert_eq!(verdict(&mut host(), &r2t(1, 0, 1)), Some((SEQUENCE, 0)));
}

#[test]
fn a_wrong_header_digest_ends_the_connection_with_what_was_received() {
    let config = HostConfig { digests: digests(true, false), ..host_config() };
    let (mut host, mut controller) = pair(config, controller_config());
    host.submit(SubmissionEntry::flush(1, 1), CommandData::None).expect("room");
    let mut wire = host.output();
    wire[72..].copy_from_slice(&[1, 2, 3, 4]);
    let wrong = (FatalError::HEADER_DIGEST_ERROR, 0x0403_0201);
    assert_eq!(verdict(&mut controller, &wire), Some(wrong));
}

#[test]
fn data_are_taken_only_as_they_were_asked_for() {
    let asked = || {
        let mut controller = controller();
        let tag = controller.engine.request(5, 0, 6000).expect("a tag");
        controller.output();
        controller.transfers.insert(tag, vec![0; 6000]);
        (controller, tag)
    };
    let wrong = [
        ("an unknown tag", h2c(5, 3, 0, 4096, false), FIELD, 10),
        ("a tag beyond all", h2c(5, 0xffff, 0, 4096, false), FIELD, 10),
        ("another command", h2c(6, 0, 0, 4096, false), FIELD, 8),
        ("not the first byte", h2c(5, 0, 4, 4096, false), SEQUENCE, 0),
        ("behind the end", h2c(5, 0, 6000, 4, true), RANGE, 0),
        ("as far away as can be said", h2c(5, 0, u32::MAX, 4, true), RANGE, 0),
        ("an end that is none", h2c(5, 0, 0, 4096, true), FIELD, 1),
    ];
    for (what, pdu, fes, fei) in wrong {
        assert_eq!(verdict(&mut asked().0, &pdu), Some((fes, fei)), "{what}");
    }
    let mut lie = h2c(5, 0, 0, 4096, false);
    lie[16..20].copy_from_slice(&4095_u32.to_le_bytes());
    assert_eq!(verdict(&mut asked().0, &lie), Some((FIELD, 16)), "another length than the PDU's");

    let (mut controller, tag) = asked();
    controller.input(&h2c(5, tag, 0, 4096, false)).expect("the first part");
    assert_eq!(verdict(&mut controller, &h2c(5, tag, 4096, 1905, true)), Some((RANGE, 0)), "a byte more");
    let (mut controller, tag) = asked();
    controller.input(&h2c(5, tag, 0, 4096, false)).expect("the first part");
    assert_eq!(verdict(&mut controller, &h2c(5, tag, 0, 1904, true)), Some((SEQUENCE, 0)), "the same again");
    let (mut controller, tag) = asked();
    controller.input(&h2c(5, tag, 0, 4096, false)).expect("the first part");
    assert_eq!(verdict(&mut controller, &h2c(5, tag, 4100, 1900, true)), Some((SEQUENCE, 0)), "a gap");
    let (mut controller, tag) = asked();
    controller.input(&h2c(5, tag, 0, 4096, false)).expect("the first part");
    assert_eq!(verdict(&mut controller, &h2c(5, tag, 4096, 1904, false)), Some((FIELD, 1)), "no end");
    let (mut controller, tag) = asked();
    controller.input(&h2c(5, tag, 0, 4096, false)).expect("the first part");
    controller.input(&h2c(5, tag, 4096, 1904, true)).expect("the rest");
    assert_eq!(controller.take_events(), [Event::TransferEnd { tag, intact: true }]);
    assert_eq!(verdict(&mut controller, &h2c(5, tag, 6000, 4, true)), Some((FIELD, 10)), "after the end");
}

/// A host with a Write of 6000 bytes (1), a Read of 600 (2) and a Flush (3) outstanding.
fn host() -> End {
    let (mut host, _) = pair(host_config(), controller_config());
    host.memory.insert(1, vec![0; 6000]);
    let memory = |length| Source { handle: 1, offset: 0, length };
    let commands =
        [CommandData::ToController(memory(6000)), CommandData::ToHost(memory(600)), CommandData::None];
    for (cid, data) in (1..).zip(commands) {
        host.submit(SubmissionEntry::flush(cid, 1), data).expect("room");
    }
    host.output();
    host
}

#[test]
fn r2ts_are_served_only_within_the_data_of_a_command_that_has_some() {
    let wrong = [
        ("an unknown command", r2t(4, 0, 512), FIELD, 8),
        ("a slot's other identifier", r2t(9, 0, 512), FIELD, 8),
        ("a Read", r2t(2, 0, 512), SEQUENCE, 0),
        ("a command without data", r2t(3, 0, 512), SEQUENCE, 0),
        ("not from the first byte", r2t(1, 4, 512), SEQUENCE, 0),
        ("nothing", r2t(1, 0, 0), FIELD, 16),
        ("a byte beyond", r2t(1, 0, 6001), RANGE, 0),
        ("a wrap", r2t(1, 8, u32::MAX), RANGE, 0),
    ];
    for (what, pdu, fes, fei) in wrong {
        assert_eq!(verdict(&mut host(), &pdu), Some((fes, fei)), "{what}");
    }
    let mut again = host();
    again.input(&r2t(1, 0, 6000)).expect("all");
    assert_eq!(verdict(&mut again, &r2t(1, 0, 4)), Some((SEQUENCE, 0)), "the same once more");
    let mut gap = host();
    gap.input(&r2t(1, 0, 512)).expect("the first");
    assert_eq!(verdict(&mut gap, &r2t(1, 516, 512)), Some((SEQUENCE, 0)), "a gap");
    let mut many = host();
    many.input(&r2t(1, 0, 4)).expect("the first");
    many.input(&r2t(1, 4, 4)).expect("the second");
    assert_eq!(verdict(&mut many, &r2t(1, 8, 4)), Some((LIMIT, 0)), "more than MAXR2T");
    let mut served = host();
    served.input(&r2t(1, 0, 4)).expect("the first");
    served.input(&r2t(1, 4, 4)).expect("the second");
    served.output();
    served.input(&r2t(1, 8, 4)).expect("those before were served");
}

#[test]
fn data_to_a_host_come_in_order_and_end_once() {
    let none = PduFlags::default();
    let last = none.with_last(true);
    let wrong = [
        ("an unknown command", c2h(4, 0, 600, last), FIELD, 8),
        ("a Write", c2h(1, 0, 600, last), SEQUENCE, 0),
        ("a command without data", c2h(3, 0, 600, last), SEQUENCE, 0),
        ("not the first byte", c2h(2, 4, 596, last), SEQUENCE, 0),
        ("behind the end", c2h(2, 600, 4, last), RANGE, 0),
        ("as far away as can be said", c2h(2, u32::MAX, 4, last), RANGE, 0),
        ("a byte more", c2h(2, 0, 601, last), RANGE, 0),
        ("success before the end", c2h(2, 0, 512, none.with_success(true)), FIELD, 1),
    ];
    for (what, pdu, fes, fei) in wrong {
        assert_eq!(verdict(&mut host(), &pdu), Some((fes, fei)), "{what}");
    }
    let mut after = host();
    after.input(&c2h(2, 0, 300, last)).expect("an early end");
    assert_eq!(verdict(&mut after, &c2h(2, 300, 300, last)), Some((SEQUENCE, 0)), "data after the last");
    let response = |cid| {
        let mut pdu = header(PduType::CAPSULE_RESP, 24, 0, 24).as_bytes().to_vec();
        pdu.extend_from_slice(CompletionEntry::success(cid, 0).as_bytes());
        pdu
    };
    assert_eq!(verdict(&mut host(), &response(2)), Some((SEQUENCE, 0)), "success before the data");
    assert_eq!(verdict(&mut host(), &response(4)), Some((FIELD, 8)), "an unknown command");
    let mut twice = host();
    twice.input(&response(3)).expect("an answer");
    assert_eq!(verdict(&mut twice, &response(3)), Some((FIELD, 8)), "an answer twice");
}

#[test]
fn what_was_asked_for_is_not_sent_after_the_answer() {
    let mut host = host();
    host.input(&r2t(1, 0, 6000)).expect("an R2T");
    let mut failed = header(PduType::CAPSULE_RESP, 24, 0, 24).as_bytes().to_vec();
    let status = ringfab_spec::Status::INTERNAL_ERROR;
    failed.extend_from_slice(CompletionEntry::new(1, 0, status).as_bytes());
    host.input(&failed).expect("a failure");
    assert_eq!(host.output(), [0_u8; 0]);
}

#[test]
fn a_termination_request_ends_the_connection_without_an_answer() {
    let mut controller = controller();
    let request = TermReq::new(PduType::H2C_TERM_REQ, RANGE, 5, 0);
    let Err(EngineError::Terminated(said)) = controller.input(request.as_bytes()) else {
        panic!("it ends the connection")
    };
    assert_eq!((said.fes, said.fei), (RANGE, 5));
    assert_eq!(controller.output(), [0_u8; 0]);
}

#[test]
fn a_termination_request_of_a_length_that_it_cannot_have_ends_the_connection_without_an_answer() {
    for (hlen, plen) in [(24, 23), (24, 8), (24, 0), (24, 153), (24, u32::MAX), (23, 24), (128, 128)] {
        for (mut end, pdu_type) in [(controller(), PduType::H2C_TERM_REQ), (host(), PduType::C2H_TERM_REQ)] {
            let ended = end.input(header(pdu_type, hlen, 0, plen).as_bytes());
            assert!(matches!(ended, Err(EngineError::Terminated(_))), "{hlen} {plen}: {ended:?}");
            assert_eq!(end.output(), [0_u8; 0]);
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_upset_either_end(bytes in prop::collection::vec(any::<u8>(), 0..600), tame in 0_u8..10, role: bool) {
        let mut end = if role { host() } else { controller() };
        let mut bytes = bytes;
        if let [pdu_type, flags, hlen, pdo, plen @ ..] = &mut bytes[..] {
            *pdu_type = tame;
            (*flags, *hlen, *pdo) = (*flags & 0xc, if tame == 4 { 72 } else { 24 }, if tame == 4 { 72 } else { 24 });
            plen.iter_mut().skip(2).take(2).for_each(|byte| *byte = 0);
        }
        let outcome = end.input(&bytes);
        let sent = end.output();
        let terminated = sent.first().is_some_and(|pdu_type| [2, 3].contains(pdu_type));
        prop_assert_eq!(matches!(outcome, Err(EngineError::Violation(_))), terminated);
    }
    /// PDUs of every type with the lengths and digests that they should have, and any fields, before and after ICReq
    /// and ICResp.
    #[test]
    fn any_fields_of_any_pdu_are_taken_or_answered(
        bytes in prop::collection::vec(prop_oneof![0_u8..12, any::<u8>()], 0..600),
        used: (bool, bool),
        role: bool,
        fresh: bool,
    ) {
        let used = digests(used.0, used.1);
        let config = HostConfig { digests: used, ..host_config() };
        let mut end = match (role, fresh) {
            (true, true) => End::new(Engine::host(config)),
            (false, true) => End::new(Engine::controller(controller_config())),
            (true, false) => waiting_host(config),
            (false, false) => asking_controller(config),
        };
        end.output();
        let stream = framed(&bytes, if fresh { Digests::default() } else { used });
        let outcome = end.input(&stream);
        let sent = end.output();
        let terminates = [[2, 0, 24], [3, 0, 24]];
        let said = sent.windows(3).any(|window| terminates.iter().any(|start| window == start));
        prop_assert!(said || !matches!(outcome, Err(EngineError::Violation(_))), "{:?}", outcome);
        prop_assert!(end.memory.get(&3).is_none_or(|memory| memory.iter().all(|byte| *byte == 0x5a)));
        if outcome.is_err() {
            prop_assert_eq!(end.engine.receive(&stream), Err(EngineError::Ended));
        }
    }
}

/// A host with a Read and a Write of 600 bytes outstanding; the memory of the Write must never change.
fn waiting_host(config: HostConfig) -> End {
    let mut host = pair(config, controller_config()).0;
    host.memory.extend([(1, vec![0; 600]), (3, vec![0x5a; 600])]);
    let memory = |handle| Source { handle, offset: 0, length: 600 };
    for (cid, data) in [(0, CommandData::ToHost(memory(1))), (1, CommandData::ToController(memory(3)))] {
        host.submit(SubmissionEntry::flush(cid, 1), data).expect("room");
    }
    host
}

/// A controller that has asked for 600 bytes of each of two commands.
fn asking_controller(config: HostConfig) -> End {
    let mut controller = pair(config, controller_config()).1;
    for cid in 0..2 {
        let tag = controller.engine.request(cid, 0, 600).expect("a tag");
        controller.transfers.insert(tag, vec![0; 600]);
    }
    controller
}
