//! Hosts that break the protocol: each is told how, and nobody else notices.

use ringfab_spec::tcp::{CapsuleResp, Digests, FatalError, PduType, ReadyToTransfer, TermReq};
use ringfab_spec::{FromBytes, IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::{RawTcp, capsule, connect, h2c_data, ic_req};

use crate::{DIGESTS, MEMORY, TCP};

fn digests(used: (bool, bool)) -> Digests {
    let (header, data) = used;
    Digests::default().with_header(header).with_data(data)
}

const NONE: (bool, bool) = (false, false);

/// A Write of 4096 bytes that the target has to ask for.
fn write(cid: u16) -> SubmissionEntry {
    SubmissionEntry::write(cid, 1, 0, 8, false).with_sgl(SglDescriptor::transport(4096))
}

/// An I/O queue, and the admin queue that keeps its controller.
fn io(target: &TestTarget, with: Digests) -> (RawTcp, RawTcp) {
    let (admin, controller) = RawTcp::attach(target.address(), with);
    (RawTcp::attach_io(target.address(), with, 1, controller), admin)
}

#[test]
fn a_wrong_data_digest_spoils_its_command_alone() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    for choice in DIGESTS.into_iter().filter(|(_, data)| *data) {
        let with = digests(choice);
        let (mut io, _admin) = io(&target, with);
        let sqe = SubmissionEntry::write(1, 1, 0, 1, false);
        let mut damaged = capsule(with, sqe, &[7; 512]);
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        io.say(&damaged);
        assert_eq!(io.response().status().code(), Status::TRANSIENT_TRANSPORT_ERROR, "in the capsule");

        io.say(&capsule(with, write(2), &[]));
        let asked = io.r2t();
        assert_eq!((asked.cccid.get(), asked.r2to.get(), asked.r2tl.get()), (2, 0, 4096));
        let mut damaged = h2c_data(with, 2, asked.ttag.get(), 0, &[7; 4096], true);
        let byte = damaged.len() - 100;
        damaged[byte] ^= 1;
        io.say(&damaged);
        assert_eq!(io.response().status().code(), Status::TRANSIENT_TRANSPORT_ERROR, "in H2CData");

        io.say(&capsule(with, SubmissionEntry::write(3, 1, 0, 1, false), &[7; 512]));
        assert!(io.response().status().is_success(), "and it goes on");
    }
    let controller = target.attach();
    let mut read = [0; 4096];
    controller.read_at(1, 512, &mut read[512..]).expect("read");
    assert_eq!(read[512..], [0; 4096 - 512], "nothing of the damaged data was written");
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let with = digests((true, true));
    let (mut io, _admin) = io(&target, with);
    let mut damaged = capsule(with, SubmissionEntry::flush(1, 1), &[]);
    damaged[20] ^= 1;
    let digest = u32::from_le_bytes([damaged[72], damaged[73], damaged[74], damaged[75]]);
    io.say(&damaged);
    assert_eq!(io.termination(), (FatalError::HEADER_DIGEST_ERROR, digest));

    drop(_admin);
    let (mut io, _admin) = self::io(&target, with);
    io.say(&capsule(with, write(2), &[]));
    let mut damaged = h2c_data(with, 2, io.r2t().ttag.get(), 0, &[7; 4096], true);
    damaged[24..28].copy_from_slice(&[1, 2, 3, 4]);
    io.say(&damaged);
    assert_eq!(io.termination(), (FatalError::HEADER_DIGEST_ERROR, 0x0403_0201), "of H2CData");
}

#[test]
fn a_termination_request_is_not_answered() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let request = TermReq::new(PduType::H2C_TERM_REQ, FatalError::SEQUENCE_ERROR, 0, 0);
    for plen in [24_u32, 152, 153, 23, u32::MAX] {
        let (mut io, _admin) = io(&target, digests(NONE));
        let mut pdu = request.as_bytes().to_vec();
        pdu[4..8].copy_from_slice(&plen.to_le_bytes());
        pdu.resize(152, 0);
        io.say(&pdu[..pdu.len().min(plen.max(24) as usize)]);
        let mut heard = Vec::new();
        let ended = std::io::Read::read_to_end(&mut io.stream, &mut heard);
        assert!(heard.is_empty(), "{plen}: {heard:x?}, {ended:?}");
    }
}

#[test]
fn pdus_out_of_order_and_beyond_the_limits_end_the_connection_with_their_reason() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let healthy = target.attach();
    let none = digests(NONE);
    let field = FatalError::INVALID_HEADER_FIELD;
    let cases: [(&str, Vec<u8>, (FatalError, u32)); 6] = [
        ("a second ICReq", ic_req(none), (FatalError::SEQUENCE_ERROR, 0)),
        ("data for an unknown tag", h2c_data(none, 1, 9, 0, &[0; 512], true), (field, 10)),
        ("data for a tag beyond all", h2c_data(none, 1, 0xffff, 0, &[0; 512], true), (field, 10)),
        (
            "more than MAXH2CDATA",
            h2c_data(none, 1, 0, 0, &[0; (128 << 10) + 4], true),
            (FatalError::LIMIT_EXCEEDED, 0),
        ),
        ("more than a capsule may have", capsule(none, write(1), &[0; 8196]), (field, 4)),
        ("an unknown type", vec![0x55, 0, 8, 0, 8, 0, 0, 0], (field, 0)),
    ];
    for (what, bytes, wanted) in cases {
        let (mut io, _admin) = io(&target, none);
        // Of a PDU that is too long, no more is read than says so.
        io.say(&bytes[..bytes.len().min(72)]);
        assert_eq!(io.termination(), wanted, "{what}");
    }
    let mut early = RawTcp::open(target.address());
    early.say(&connect(none, 0, 0xffff));
    assert_eq!(early.termination(), (FatalError::SEQUENCE_ERROR, 0), "a capsule before ICReq");
    healthy.flush(1).expect("the others go on");
}

#[test]
fn data_other_than_asked_for_end_the_connection() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let none = digests(NONE);
    let range = (FatalError::OUT_OF_RANGE, 0);
    let cases = [
        ("beyond the end", 0, 4100, true, range),
        ("not from the first byte", 4, 4092, true, (FatalError::SEQUENCE_ERROR, 0)),
        ("an end that is none", 0, 512, true, (FatalError::INVALID_HEADER_FIELD, 1)),
        ("no end", 0, 4096, false, (FatalError::INVALID_HEADER_FIELD, 1)),
    ];
    for (what, offset, length, last, wanted) in cases {
        let (mut io, _admin) = io(&target, none);
        io.say(&capsule(none, write(5), &[]));
        let tag = io.r2t().ttag.get();
        io.say(&h2c_data(none, 5, tag, offset, &vec![0; length], last)[..24]);
        assert_eq!(io.termination(), wanted, "{what}");
    }
    let (mut io, _admin) = io(&target, none);
    io.say(&capsule(none, write(5), &[]));
    let tag = io.r2t().ttag.get();
    let data = h2c_data(none, 5, tag, 0, &[0; 4096], true);
    io.say(&data);
    assert!(io.response().status().is_success(), "the command had its data");
    io.say(&data[..24]);
    assert_eq!(io.termination(), (FatalError::INVALID_HEADER_FIELD, 10), "data after the end");
}

#[test]
fn a_keyed_descriptor_is_none_that_tcp_can_reach() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let (mut io, _admin) = io(&target, digests(NONE));
    let keyed = SglDescriptor::keyed(0x1000, 4096, 7, false);
    io.say(&capsule(digests(NONE), SubmissionEntry::read(1, 1, 0, 8).with_sgl(keyed), &[]));
    assert_eq!(io.response().status().code(), Status::SGL_TYPE_INVALID);
}

#[test]
fn what_comes_before_connect_is_refused() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let mut host = RawTcp::initialize(target.address(), digests(NONE));
    let refused = host.command(SubmissionEntry::flush(1, 1));
    assert_eq!(refused.status().code(), Status::COMMAND_SEQUENCE_ERROR);
}

/// CVE-2026-80788: a descriptor of memory that nobody has asks for none of ours. What a command has no use for is not
/// asked for, where the descriptor may be longer than its data.
#[test]
fn a_descriptor_of_much_memory_takes_no_more_of_ours_than_the_command_has_data() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let none = digests(NONE);
    let (mut io, _admin) = io(&target, none);
    let before = target.usage()[0].io_buffers.taken;
    for bytes in [u32::MAX, 1 << 31, (1 << 20) + 512, 0] {
        let sgl = SglDescriptor::transport(bytes);
        let mut cid = 0;
        let mut answered = |queue: &mut RawTcp, command: SubmissionEntry, data_bytes: u32| {
            cid += 1;
            let mut command = command.with_sgl(sgl);
            command.cid.set(cid);
            queue.say(&capsule(none, command, &[]));
            let pdu = queue.hear();
            if pdu.header[0] == PduType::R2T.0 {
                let asked = ReadyToTransfer::read_from_bytes(&pdu.header).expect("as long as one");
                assert_eq!(asked.r2tl.get(), data_bytes, "{command:?}");
                let zeroes = vec![0; data_bytes as usize];
                queue.say(&h2c_data(none, cid, asked.ttag.get(), 0, &zeroes, true));
                return queue.response();
            }
            let answer = CapsuleResp::read_from_bytes(&pdu.header).expect("a response").cqe;
            assert_eq!(answer.status().code(), Status::DATA_SGL_LENGTH_INVALID, "{command:?}");
            answer
        };
        for (command, data_bytes) in [
            (SubmissionEntry::read(1, 1, 0, 8), 4096),
            (SubmissionEntry::write(1, 1, 0, 8, false), 4096),
            (SubmissionEntry::compare(1, 1, 0, 8), 4096),
            (SubmissionEntry::deallocate(1, 1, 1), 16),
            (SubmissionEntry::copy(1, 1, 8, 1), 32),
        ] {
            answered(&mut io, command, data_bytes);
        }
    }
    assert_eq!(target.usage()[0].io_buffers.taken, before);
    assert!(io.command(SubmissionEntry::flush(99, 1)).status().is_success(), "and it goes on");
}

/// CVE-2026-46135: whoever says ICReq and goes, with and without a reset.
#[test]
fn whoever_initializes_a_connection_and_goes_leaves_nothing_behind() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let healthy = target.attach();
    for round in 0..200 {
        let mut host = RawTcp::open(target.address());
        if round % 2 == 0 {
            // What comes is not read: the system resets the connection.
            socket2::SockRef::from(&host.stream)
                .set_linger(Some(std::time::Duration::ZERO))
                .expect("an option");
        }
        host.say(&ic_req(digests(NONE)));
    }
    let (mut io, _admin) = io(&target, digests(NONE));
    assert!(io.command(SubmissionEntry::flush(1, 1)).status().is_success());
    healthy.flush(1).expect("the others go on");
    let queues = || target.usage()[0].queues;
    ringfab_tests::wait_until("their connections have gone", || queues() <= 4);
}
