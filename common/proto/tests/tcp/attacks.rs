//! Attacks on NVMe/TCP that have had numbers elsewhere, and their neighbours: every PDU, in every state, for every kind
//! of command. SECURITY.md lists the numbers.

use ringfab_proto::tcp::{CommandData, Engine, EngineError, Event, HostConfig, Source};
use ringfab_spec::tcp::{
    CommonHeader, DataHeader, FatalError, IcReq, PduFlags, PduType, ReadyToTransfer, TermReq, field,
};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, Status, SubmissionEntry};

use super::support::{End, controller_config, digests, host_config, pair};

const FIELD: FatalError = FatalError::INVALID_HEADER_FIELD;
const SEQUENCE: FatalError = FatalError::SEQUENCE_ERROR;

/// Bytes of each command that has data.
const LENGTH: u32 = 600;
/// What the host's memory is full of: none of it may go where it was not asked for.
const SECRET: u8 = 0x5a;

/// The kinds of commands, each outstanding under its number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    WithoutData,
    InCapsule,
    ToController,
    ToHost,
    AllocatedToHost,
    /// Nothing is outstanding under this identifier.
    Unknown,
}

const KINDS: [Kind; 6] = [
    Kind::WithoutData,
    Kind::InCapsule,
    Kind::ToController,
    Kind::ToHost,
    Kind::AllocatedToHost,
    Kind::Unknown,
];

/// A host with a command of each kind outstanding.
fn host(config: HostConfig) -> End {
    let mut host = pair(config, controller_config()).0;
    for kind in KINDS {
        let cid = kind as u16;
        host.memory.insert(cid.into(), vec![SECRET; 2 * LENGTH as usize]);
        let memory = Source { handle: cid.into(), offset: 0, length: LENGTH };
        let data = match kind {
            Kind::WithoutData => CommandData::None,
            Kind::InCapsule => CommandData::Capsule(memory),
            Kind::ToController => CommandData::ToController(memory),
            Kind::ToHost => CommandData::ToHost(memory),
            Kind::AllocatedToHost => CommandData::AllocatedToHost(memory),
            Kind::Unknown => continue,
        };
        host.submit(SubmissionEntry::flush(cid, 1), data).expect("room");
    }
    host.output();
    host
}

fn data(pdu_type: PduType, cid: u16, tag: u16, offset: u32, length: u32, flags: PduFlags) -> Vec<u8> {
    let ch = CommonHeader::new(pdu_type, flags, 24, 24, 24 + length);
    let mut pdu = DataHeader::new(ch, cid, tag, offset, length).as_bytes().to_vec();
    pdu.resize(24 + length as usize, 0xaa);
    pdu
}

fn c2h(kind: Kind, length: u32, success: bool) -> Vec<u8> {
    let flags = PduFlags::default().with_last(true).with_success(success);
    data(PduType::C2H_DATA, kind as u16, 0, 0, length, flags)
}

fn response(kind: Kind, status: Status) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::CAPSULE_RESP, PduFlags::default(), 24, 0, 24);
    let mut pdu = ch.as_bytes().to_vec();
    pdu.extend_from_slice(CompletionEntry::new(kind as u16, 0, status).as_bytes());
    pdu
}

fn r2t(kind: Kind, offset: u32, length: u32) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::R2T, PduFlags::default(), 24, 0, 24);
    ReadyToTransfer::new(ch, kind as u16, 7, offset, length).as_bytes().to_vec()
}

/// What an end makes of bytes: how it ends the connection, if it does. It says so to the peer and nothing else, sends
/// nothing of what it has, and takes nothing more.
fn verdict(end: &mut End, bytes: &[u8]) -> Option<(FatalError, u32)> {
    let error = end.input(bytes).err()?;
    let sent = end.output();
    let EngineError::Violation(violation) = error else {
        assert_eq!(sent, [0_u8; 0], "a termination is not answered");
        return Some((FatalError(0), 0));
    };
    let (request, quote) = TermReq::read_from_prefix(&sent).expect("a termination request");
    assert_eq!((request.fatal_error(), request.fei.get()), (violation.fes, violation.fei));
    assert!(bytes.starts_with(quote), "it quotes what came and nothing of its own");
    assert_eq!(end.engine.receive(&[]), Err(EngineError::Ended));
    assert_eq!(end.engine.receive(bytes), Err(EngineError::Ended));
    assert!(!end.engine.wants_transmit());
    Some((violation.fes, violation.fei))
}

/// CVE-2026-89480: less data than a Read has, and then success.
#[test]
fn a_short_read_is_never_reported_complete() {
    for bytes in [1, LENGTH / 2, LENGTH - 1] {
        let mut end = host(host_config());
        assert_eq!(verdict(&mut end, &c2h(Kind::ToHost, bytes, true)), Some((SEQUENCE, 0)), "{bytes}");
        let mut end = host(host_config());
        end.input(&c2h(Kind::ToHost, bytes, false)).expect("an early end");
        let good = response(Kind::ToHost, Status::SUCCESS);
        assert_eq!(verdict(&mut end, &good), Some((SEQUENCE, 0)), "{bytes}");
        // A failure may come after any part of the data.
        let mut end = host(host_config());
        end.input(&c2h(Kind::ToHost, bytes, false)).expect("an early end");
        end.input(&response(Kind::ToHost, Status::INTERNAL_ERROR)).expect("a failure");
        assert!(matches!(end.take_events()[..], [Event::Response { received, .. }] if received == bytes));
    }
    let mut end = host(host_config());
    assert_eq!(verdict(&mut end, &response(Kind::ToHost, Status::SUCCESS)), Some((SEQUENCE, 0)), "no data");
}

/// CVE-2026-89481: an R2T for a command that has nothing to send must not read memory, and CVE-2026-89482: data for a
/// command that expects none must not be written anywhere.
#[test]
fn each_kind_of_command_is_answered_as_it_can_be_and_nothing_else_is_read_or_written() {
    let (unknown, sequence) = (Some((FIELD, field::CCCID)), Some((SEQUENCE, 0)));
    for kind in KINDS {
        let to_host = matches!(kind, Kind::ToHost | Kind::AllocatedToHost);
        let is_known = kind != Kind::Unknown;
        let only = |when: bool| match (is_known, when) {
            (false, _) => unknown,
            (true, true) => None,
            (true, false) => sequence,
        };
        let rows = [
            ("all data", c2h(kind, LENGTH, false), only(to_host)),
            ("all data and SUCCESS", c2h(kind, LENGTH, true), only(to_host)),
            ("a part and SUCCESS", c2h(kind, 4, true), only(kind == Kind::AllocatedToHost)),
            ("an R2T", r2t(kind, 0, LENGTH), only(kind == Kind::ToController)),
            ("success", response(kind, Status::SUCCESS), only(kind != Kind::ToHost)),
            ("a failure", response(kind, Status::INTERNAL_ERROR), only(true)),
        ];
        for (what, pdu, expected) in rows {
            let mut end = host(host_config());
            assert_eq!(verdict(&mut end, &pdu), expected, "{what} of {kind:?}");
            if expected.is_none() && what == "an R2T" {
                let sent = end.output();
                assert_eq!(sent.len(), 24 + LENGTH as usize, "as much as was asked for");
            }
            let may_write = to_host && (what.starts_with("all data") || what.starts_with("a part"));
            for (handle, memory) in &end.memory {
                let own = may_write && *handle == u32::from(kind as u16);
                assert!(own || memory.iter().all(|byte| *byte == SECRET), "{what} of {kind:?}: {handle}");
                assert!(memory[LENGTH as usize..].iter().all(|byte| *byte == SECRET), "beyond its end");
            }
        }
    }
}

/// CVE-2025-38264: R2Ts for a command that still waits to be sent, or whose data do, must not make a loop of what is
/// sent, nor a second copy.
#[test]
fn an_r2t_for_a_command_that_is_not_sent_yet_sends_its_data_once_and_behind_it() {
    let mut end = pair(host_config(), controller_config()).0;
    end.memory.insert(1, vec![SECRET; LENGTH as usize]);
    end.full = true;
    let memory = Source { handle: 1, offset: 0, length: LENGTH };
    end.submit(SubmissionEntry::flush(2, 1), CommandData::ToController(memory)).expect("room");
    // The identifier was guessed.
    end.input(&r2t(Kind::ToController, 0, 300)).expect("the command is outstanding");
    end.input(&r2t(Kind::ToController, 300, 4)).expect("as many as MAXR2T");
    end.full = false;
    let sent = end.output();
    assert_eq!(sent[0], PduType::CAPSULE_CMD.0);
    assert_eq!((sent[72], sent.len()), (PduType::H2C_DATA.0, 72 + 24 + 300 + 24 + 4));
    assert_eq!(end.output(), [0_u8; 0], "and that is all");
    for again in [r2t(Kind::ToController, 0, 300), r2t(Kind::ToController, 300, 4)] {
        let mut end = host(host_config());
        end.input(&r2t(Kind::ToController, 0, 300)).expect("the first");
        end.input(&r2t(Kind::ToController, 300, 4)).expect("the second");
        assert_eq!(verdict(&mut end, &again), Some((SEQUENCE, 0)), "the same again");
    }
    let mut end = host(host_config());
    end.input(&r2t(Kind::ToController, 0, 4)).expect("the first");
    end.input(&r2t(Kind::ToController, 4, 4)).expect("the second");
    let limit = Some((FatalError::LIMIT_EXCEEDED, 0));
    assert_eq!(verdict(&mut end, &r2t(Kind::ToController, 8, 4)), limit, "what waits has a bound");
}

/// CVE-2026-89969: a second ICReq, with digests that were agreed on, is longer than any other header.
#[test]
fn a_second_icreq_ends_the_connection_with_any_digests_and_whatever_lengths_it_says() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        for (flag, plen) in [(false, 128), (true, 132), (true, 128), (false, 132), (true, u32::MAX)] {
            let config = HostConfig { digests: digests(header, data), ..host_config() };
            let mut controller = pair(config, controller_config()).1;
            let mut request = IcReq::new(1, digests(true, true), 1);
            request.ch.flags = PduFlags::default().with_hdgst(flag);
            request.ch.plen.set(plen);
            let mut bytes = request.as_bytes().to_vec();
            bytes.extend([0xaa; 64]);
            assert_eq!(
                verdict(&mut controller, &bytes),
                Some((SEQUENCE, 0)),
                "{header} {data} {flag} {plen}"
            );
        }
    }
}

/// CVE-2026-22998, and unsolicited data in general: data for a tag that asked for none, in every state of the command
/// that they name.
#[test]
fn data_that_nobody_has_asked_for_end_the_connection_in_every_state_of_their_command() {
    let last = PduFlags::default().with_last(true);
    let unsolicited = |tag| data(PduType::H2C_DATA, 5, tag, 0, 512, last);
    let expected = Some((FIELD, field::TTAG));
    let fresh = || pair(host_config(), controller_config()).1;
    for tag in [0, 1, 7, 8, 0xffff] {
        assert_eq!(verdict(&mut fresh(), &unsolicited(tag)), expected, "there is no command");
        let mut before = End::new(Engine::controller(controller_config()));
        assert_eq!(verdict(&mut before, &unsolicited(tag)), Some((SEQUENCE, 0)), "before ICReq");
    }
    let (mut host, mut commanded) = pair(host_config(), controller_config());
    host.memory.insert(1, vec![0; 512]);
    let memory = Source { handle: 1, offset: 0, length: 512 };
    host.submit(SubmissionEntry::flush(5, 1), CommandData::Capsule(memory)).expect("room");
    commanded.input(&host.output()).expect("a command with its data");
    assert_eq!(verdict(&mut commanded, &unsolicited(0)), expected, "its data were in the capsule");
    let mut answered = fresh();
    let tag = answered.engine.request(5, 0, 512).expect("a tag");
    answered.transfers.insert(tag, vec![0; 512]);
    answered.output();
    answered.input(&unsolicited(tag)).expect("they were asked for");
    assert_eq!(verdict(&mut answered, &unsolicited(tag)), expected, "they have come");
}

/// CVE-2026-23112 and CVE-2026-52989: data of a length or at an offset outside of what was asked for reach no memory,
/// and the connection ends at once.
#[test]
fn data_outside_of_what_was_asked_for_reach_no_memory() {
    let starts = [0, 4, 300, 596, 600, 604, u32::MAX - 3, u32::MAX];
    for (offset, length) in
        starts.into_iter().flat_map(|offset| [4, 300, 600, 604, 4096].map(|l| (offset, l)))
    {
        let mut controller = pair(host_config(), controller_config()).1;
        let tag = controller.engine.request(5, 0, 600).expect("a tag");
        controller.transfers.insert(tag, vec![SECRET; 600]);
        controller.output();
        let fits = offset == 0 && length <= 600;
        let flags = PduFlags::default().with_last(length == 600);
        let pdu = data(PduType::H2C_DATA, 5, tag, offset, length, flags);
        assert_eq!(verdict(&mut controller, &pdu).is_none(), fits, "{length} bytes at {offset}");
        let untouched = controller.transfers[&tag].iter().all(|byte| *byte == SECRET);
        assert_eq!(untouched, !fits, "{length} bytes at {offset}");
    }
}

/// Length of the header of a type, and which end sends it.
fn form(pdu_type: PduType) -> Option<(u8, bool)> {
    Some(match pdu_type {
        PduType::IC_REQ => (128, true),
        PduType::IC_RESP => (128, false),
        PduType::H2C_TERM_REQ => (24, true),
        PduType::C2H_TERM_REQ => (24, false),
        PduType::CAPSULE_CMD => (72, true),
        PduType::CAPSULE_RESP | PduType::C2H_DATA | PduType::R2T => (24, false),
        PduType::H2C_DATA => (24, true),
        _ => return None,
    })
}

/// Either end, before or after ICReq and ICResp.
fn an_end(to_host: bool, initialized: bool) -> End {
    let mut end = match (to_host, initialized) {
        (true, true) => host(host_config()),
        (true, false) => End::new(Engine::host(host_config())),
        (false, true) => pair(host_config(), controller_config()).1,
        (false, false) => End::new(Engine::controller(controller_config())),
    };
    end.output();
    end
}

/// Every type, to either end, before and after ICReq and ICResp, with each header length.
#[test]
fn every_type_is_taken_from_one_end_in_one_state_alone() {
    for number in 0..=u8::MAX {
        let pdu_type = PduType(number);
        for (to_host, initialized) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut end = an_end(to_host, initialized);
            let Some((hlen, from_host)) = form(pdu_type) else {
                let ch = CommonHeader::new(pdu_type, PduFlags::default(), 8, 0, 8);
                assert_eq!(verdict(&mut end, ch.as_bytes()), Some((FIELD, field::PDU_TYPE)), "{number}");
                continue;
            };
            let initializes = matches!(pdu_type, PduType::IC_REQ | PduType::IC_RESP);
            let ends = matches!(pdu_type, PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ);
            let what = format!("type {number} to host: {to_host}, initialized: {initialized}");
            let wrong = [hlen - 1, hlen + 1, 0, 8, 255];
            let out_of_place = from_host == to_host || (!ends && initializes == initialized);
            for said in [&[hlen][..], &wrong].concat() {
                let ch = CommonHeader::new(pdu_type, PduFlags::default(), said, 0, u32::from(hlen));
                let mut pdu = ch.as_bytes().to_vec();
                pdu.resize(hlen.into(), 0);
                let verdict = verdict(&mut an_end(to_host, initialized), &pdu);
                match () {
                    () if out_of_place => assert_eq!(verdict, Some((SEQUENCE, 0)), "{what}"),
                    () if ends => assert_eq!(verdict, Some((FatalError(0), 0)), "{what}"),
                    () if said != hlen => assert_eq!(verdict, Some((FIELD, field::HLEN)), "{what}"),
                    // What it says is another table's matter.
                    () => {}
                }
            }
        }
    }
}
