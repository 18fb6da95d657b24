//! The engine against itself, in one process.

use proptest::prelude::*;
use ringfab_proto::iwarp::mpa::{Negotiated, ReadyToReceive, Role};
use ringfab_proto::iwarp::{
    Access, EngineConfig, EngineError, Inline, PostError, ReadRequest, SendRequest, TerminateCode, WorkKind,
    WorkRequest, WorkStatus, WriteRequest,
};

use super::support::{Host, REQUESTER, local, negotiated, pair, run, send_inline};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn read(stag: u32, to: u64, handle: usize, len: u32) -> WorkRequest<usize> {
    WorkRequest::Read(ReadRequest {
        stag,
        to,
        sink_stag: 0xabcd,
        sink_to: 0x10_0000,
        sink: local(handle, 0, len),
    })
}

#[test]
fn a_send_a_write_and_a_read_deliver_their_bytes() {
    let (mut a, mut b) = pair(None);
    b.post_recvs(1);
    let source = b.allocate(pattern(200_000, 1));
    let target = b.allocate(vec![0; 200_000]);
    let (r, w) =
        (b.expose(source, 0x1000, Access::RemoteRead), b.expose(target, 0x9000, Access::RemoteWrite));
    let sink = a.allocate(vec![0; 150_000]);
    let data = a.allocate(pattern(131_072, 2));
    a.send(1, b"capsule");
    let payload = local(data, 0, 131_072);
    a.engine.post(2, WorkRequest::Write(WriteRequest { stag: w, to: 0x9000 + 100, payload })).unwrap();
    a.engine.post(3, read(r, 0x1000 + 5, sink, 150_000)).unwrap();
    run(&mut a, &mut b, 1 << 20, 10_000).unwrap();
    assert_eq!(b.messages, [b"capsule".to_vec()]);
    assert_eq!(b.memory[target][100..100 + 131_072], a.memory[data][..]);
    assert_eq!(a.memory[sink][..], b.memory[source][5..150_005]);
    let ids: Vec<_> = a.completions.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(ids, [(1, WorkStatus::Done), (2, WorkStatus::Done), (3, WorkStatus::Done)]);
    assert!(
        a.direct_bytes > 100_000,
        "large payloads arrive straight in place, {} bytes did",
        a.direct_bytes
    );
}

#[test]
fn a_read_of_no_bytes_completes_without_a_valid_stag() {
    let (mut a, mut b) = pair(None);
    let sink = a.allocate(Vec::new());
    a.engine.post(9, read(0, 0, sink, 0)).unwrap();
    run(&mut a, &mut b, 1 << 20, 7).unwrap();
    assert_eq!(a.completions.len(), 1);
    assert_eq!(a.completions[0].kind, WorkKind::Read);
}

#[test]
fn every_kind_of_send_arrives_as_what_it_is() {
    let (mut a, mut b) = pair(None);
    b.post_recvs(4);
    let memory = b.allocate(vec![0; 16]);
    let stags = [b.expose(memory, 0, Access::RemoteRead), b.expose(memory, 0, Access::RemoteWrite)];
    for (solicited, invalidate) in
        [(false, None), (true, None), (false, Some(stags[0])), (true, Some(stags[1]))]
    {
        a.engine
            .post(0, WorkRequest::Send(SendRequest { invalidate, solicited, ..send_inline(b"x") }))
            .unwrap();
    }
    run(&mut a, &mut b, 1 << 20, 33).unwrap();
    assert_eq!(b.solicited, [false, true, false, true]);
    assert_eq!(b.invalidated, stags);
    assert!(stags.iter().all(|stag| b.regions.get(*stag).is_none()), "both regions are gone");
}

#[test]
fn a_responder_is_silent_until_the_first_fpdu_arrived() {
    let (mut a, mut b) = pair(None);
    a.post_recvs(1);
    b.post_recvs(1);
    b.send(1, b"early");
    assert!(!b.engine.wants_transmit());
    assert!(b.emit_all().is_empty());
    a.send(2, b"first");
    run(&mut a, &mut b, 1 << 20, 1000).unwrap();
    assert_eq!(a.messages, [b"early".to_vec()]);
}

#[test]
fn a_ready_message_of_each_kind_opens_the_responder_and_uses_no_buffer() {
    for ready in [ReadyToReceive::Send, ReadyToReceive::Write, ReadyToReceive::Read] {
        for depth in [0, 4] {
            let config = |role| Negotiated { ready: Some(ready), ird: depth, ord: depth, ..negotiated(role) };
            let (mut a, mut b) = (Host::new(config(Role::Initiator)), Host::new(config(Role::Responder)));
            a.post_recvs(1);
            b.send(1, b"from the responder");
            run(&mut a, &mut b, 1 << 20, 5).unwrap();
            assert_eq!(a.messages, [b"from the responder".to_vec()], "{ready:?}");
            b.post_recvs(1);
            a.send(2, b"from the initiator");
            run(&mut a, &mut b, 1 << 20, 5).unwrap();
            assert_eq!(b.messages, [b"from the initiator".to_vec()], "{ready:?}");
            assert_eq!(a.completions.len(), 1, "the ready message is nobody's work request");
        }
    }
}

#[test]
fn a_nudge_moves_nothing_and_is_for_a_peer_that_has_not_answered() {
    let (mut a, mut b) = pair(None);
    a.post_recvs(1);
    b.post_recvs(1);
    assert!(!a.engine.post_empty_write(), "nothing was said yet");
    a.send(1, b"hello");
    let hello = a.emit_all();
    assert!(a.engine.post_empty_write());
    let empty_write = a.emit_all();
    assert_eq!(empty_write.len(), 2 + 14 + 4, "a tagged header and nothing behind it");
    b.feed(&hello).unwrap();
    b.feed(&empty_write).unwrap();
    assert!(!b.engine.post_empty_write(), "the responder is not the one to post it");
    b.send(2, b"welcome");
    run(&mut a, &mut b, 1 << 20, 1000).unwrap();
    assert!(!a.engine.post_empty_write(), "there is an answer");
    assert_eq!((a.messages, b.messages), (vec![b"welcome".to_vec()], vec![b"hello".to_vec()]));
    assert_eq!(a.completions.len(), 1, "an empty write is nobody's work request");
}

#[test]
fn work_behind_a_read_beyond_the_limit_waits_for_its_turn() {
    let (mut a, mut b) = pair(None);
    b.post_recvs(1);
    let source = b.allocate(pattern(4096, 3));
    let stag = b.expose(source, 0, Access::RemoteRead);
    let sink = a.allocate(vec![0; 4096]);
    (0..6).for_each(|id| a.engine.post(id, read(stag, 0, sink, 4096)).unwrap());
    a.send(6, b"behind");
    let first = a.emit_all();
    assert_eq!(first.len(), 4 * (2 + 18 + 28 + 4), "four requests, which is the ORD, and nothing else");
    b.feed(&first).unwrap();
    assert!(b.messages.is_empty());
    a.feed(&b.emit_all()).unwrap();
    run(&mut a, &mut b, 1 << 20, 1000).unwrap();
    assert_eq!(b.messages, [b"behind".to_vec()]);
    assert_eq!(a.completions.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_send_behind_a_read_completes_after_it() {
    let (mut a, mut b) = pair(None);
    b.post_recvs(1);
    let source = b.allocate(pattern(64, 3));
    let stag = b.expose(source, 0, Access::RemoteRead);
    let sink = a.allocate(vec![0; 64]);
    a.engine.post(1, read(stag, 0, sink, 64)).unwrap();
    a.send(2, b"x");
    let bytes = a.emit_all();
    assert!(a.completions.is_empty(), "the send is transmitted, but the read before it is not done");
    b.feed(&bytes).unwrap();
    a.feed(&b.emit_all()).unwrap();
    assert_eq!(a.completions.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [1, 2]);
}

/// Opcode and last flag of each FPDU.
fn opcodes(bytes: &[u8]) -> Vec<(u8, bool)> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while !rest.is_empty() {
        found.push((rest[3] & 15, rest[2] & 0x40 != 0));
        let ulpdu_len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        rest = &rest[(2 + ulpdu_len).next_multiple_of(4) + 4..];
    }
    found
}

#[test]
fn messages_alternate_with_read_responses_and_never_mix_with_them() {
    let (mut a, mut b) = pair(None);
    let source = b.allocate(pattern(100_000, 3));
    let stag = b.expose(source, 0, Access::RemoteRead);
    let sink = a.allocate(vec![0; 100_000]);
    (0..2).for_each(|id| a.engine.post(id, read(stag, 0, sink, 100_000)).unwrap());
    let target = a.allocate(vec![0; 100_000]);
    let target = a.expose(target, 0, Access::RemoteWrite);
    let payload = local(source, 0, 100_000);
    for id in 0..2 {
        b.engine.post(id, WorkRequest::Write(WriteRequest { stag: target, to: 0, payload })).unwrap();
    }
    b.feed(&a.emit_all()).unwrap();
    let bytes = b.emit_all();
    let (write, response) = ([(0, false), (0, true)], [(2, false), (2, true)]);
    assert_eq!(opcodes(&bytes), [write, response, write, response].concat());
    a.feed(&bytes).unwrap();
    assert_eq!((b.engine.fpdu_counts().emitted, b.engine.fpdu_counts().received), (8, 2));
    assert_eq!((a.engine.fpdu_counts().emitted, a.engine.fpdu_counts().received), (2, 8));
}

#[test]
fn completions_wait_for_the_transport() {
    let (mut a, _) = pair(None);
    a.send(1, b"x");
    let emitted = a.transmit(usize::MAX).len();
    a.engine.transmitted(emitted - 1);
    assert!(a.engine.poll_completion().is_none());
    a.engine.transmitted(1);
    assert_eq!(a.engine.poll_completion().map(|done| done.wr_id), Some(1));
}

#[test]
fn everything_comes_back_when_the_transport_is_gone() {
    let (mut a, _) = pair(None);
    let memory = a.allocate(vec![0; 64]);
    a.engine.post(1, read(1, 0, memory, 64)).unwrap();
    a.emit_all();
    let payload = local(memory, 0, 64);
    a.engine.post(2, WorkRequest::Write(WriteRequest { stag: 1, to: 0, payload })).unwrap();
    assert_eq!(a.engine.stream_ended(0), EngineError::Closed);
    a.collect();
    assert!(a.completions.is_empty(), "the transport may still use the memory");
    a.engine.transport_closed();
    a.collect();
    let flushed: Vec<_> = a.completions.iter().map(|done| (done.wr_id, done.status, done.local)).collect();
    let all = Some(local(memory, 0, 64));
    assert_eq!(flushed, [(1, WorkStatus::Flushed, all), (2, WorkStatus::Flushed, all)]);
    assert_eq!(a.engine.post(3, WorkRequest::Send(send_inline(b""))), Err(PostError::Ended));
}

#[test]
fn the_send_queue_refuses_what_it_cannot_do() {
    let mut config = EngineConfig::new(Negotiated { ord: 0, ..negotiated(Role::Initiator) }, REQUESTER);
    config.send_queue_depth = 1;
    let mut a = Host::with_config(config);
    let memory = a.allocate(vec![0; 64]);
    assert_eq!(a.engine.post(1, read(1, 0, memory, 64)), Err(PostError::NoReads));
    let wrapping = WriteRequest { stag: 1, to: u64::MAX, payload: local(memory, 0, 64) };
    assert_eq!(a.engine.post(1, WorkRequest::Write(wrapping)), Err(PostError::Range));
    a.send(1, b"fits");
    assert_eq!(a.engine.send_queue_room(), 0);
    assert_eq!(a.engine.post(2, WorkRequest::Send(send_inline(b"x"))), Err(PostError::Full(1)));
}

#[test]
fn a_region_that_ends_while_it_is_read_ends_the_connection() {
    let (mut a, mut b) = pair(None);
    let source = b.allocate(pattern(300_000, 3));
    let stag = b.expose(source, 0, Access::RemoteRead);
    let sink = a.allocate(vec![0; 300_000]);
    a.engine.post(1, read(stag, 0, sink, 300_000)).unwrap();
    b.feed(&a.emit_all()).unwrap();
    a.feed(&b.emit(1)).unwrap();
    b.regions.deregister(stag).expect("it was there");
    let error = a.feed(&b.emit_all()).unwrap_err();
    let EngineError::Terminated(terminate) = error else { panic!("got {error}") };
    assert_eq!(terminate.code, TerminateCode::RDMAP_INVALID_STAG);
    assert!(matches!(b.engine.error(), Some(EngineError::Violation(_))));
}

#[test]
fn a_local_terminate_reaches_the_peer_once() {
    let (mut a, mut b) = pair(None);
    a.engine.terminate(TerminateCode::MPA_INSUFFICIENT_IRD);
    let bytes = a.emit_all();
    assert!(a.emit_all().is_empty());
    let error = b.feed(&bytes).unwrap_err();
    assert!(error.to_string().contains("Insufficient IRD Resources"), "{error}");
    assert!(b.emit_all().is_empty(), "a Terminate is not answered");
}

#[derive(Clone, Debug)]
enum Op {
    Send { inline: usize, payload: u32, invalidate: bool },
    Write(u32),
    Read(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![Just(0), 1..100_u32, 4000..5000_u32, 0..150_000_u32];
    prop_oneof![
        (0..=Inline::LEN_MAX, len.clone(), any::<bool>())
            .prop_map(|(inline, payload, invalidate)| Op::Send { inline, payload, invalidate }),
        len.clone().prop_map(Op::Write),
        len.prop_map(Op::Read),
    ]
}

#[derive(Clone, Debug)]
struct World {
    crc: bool,
    depths: (u16, u16),
    ulpdu_len_max: u16,
    direct_min: usize,
    use_direct: bool,
    budget: usize,
    chunk: usize,
    ops: [Vec<Op>; 2],
}

fn world() -> impl Strategy<Value = World> {
    let wire =
        (any::<bool>(), (1..5_u16, 1..5_u16), prop_oneof![Just(u16::MAX), 128..3000_u16, 4000..20_000_u16]);
    let placing = (prop_oneof![Just(1_usize), Just(2048), 1..9000_usize], any::<bool>());
    let moving = (1..200_000_usize, prop_oneof![1..40_usize, 1000..70_000_usize]);
    let ops = || prop::collection::vec(op(), 0..9);
    (wire, placing, moving, (ops(), ops())).prop_map(|(wire, placing, moving, ops)| World {
        crc: wire.0,
        depths: wire.1,
        ulpdu_len_max: wire.2,
        direct_min: placing.0,
        use_direct: placing.1,
        budget: moving.0,
        chunk: moving.1,
        ops: [ops.0, ops.1],
    })
}

impl World {
    fn host(&self, role: Role) -> Host {
        let (ird, ord) = if role == Role::Initiator { self.depths } else { (self.depths.1, self.depths.0) };
        let negotiated = Negotiated { crc: self.crc, ird, ord, ..negotiated(role) };
        let mut config = EngineConfig::new(negotiated, REQUESTER);
        config.ulpdu_len_max = self.ulpdu_len_max;
        config.direct_min = self.direct_min;
        let mut host = Host::with_config(config);
        host.use_direct = self.use_direct;
        host.post_recvs(16);
        host
    }
}

/// What must be true at the end: pieces of memory of both sides that are equal.
#[derive(Default)]
struct Expected {
    messages: Vec<Vec<u8>>,
    invalidated: Vec<u32>,
    equal: Vec<((bool, usize), (bool, usize))>,
}

fn post(op: &Op, id: u64, own: &mut Host, peer: &mut Host, side: bool, expected: &mut Expected) {
    let seed = id << 1 | u64::from(side);
    let work = match *op {
        Op::Send { inline, payload, invalidate } => {
            let front = pattern(inline, seed);
            let back = pattern(payload as usize, seed + 1000);
            expected.messages.push([front.clone(), back.clone()].concat());
            let handle = own.allocate(back);
            let memory = peer.allocate(vec![0; 8]);
            let invalidate = invalidate.then(|| peer.expose(memory, 0, Access::RemoteWrite));
            expected.invalidated.extend(invalidate);
            let inline = Inline::new(&front);
            let payload = Some(local(handle, 0, payload));
            WorkRequest::Send(SendRequest { inline, payload, invalidate, solicited: false })
        }
        Op::Write(len) => {
            let source = own.allocate(pattern(len as usize, seed));
            let target = peer.allocate(vec![0; len as usize]);
            let stag = peer.expose(target, 77, Access::RemoteWrite);
            expected.equal.push(((side, source), (!side, target)));
            WorkRequest::Write(WriteRequest { stag, to: 77, payload: local(source, 0, len) })
        }
        Op::Read(len) => {
            let source = peer.allocate(pattern(len as usize, seed));
            let sink = own.allocate(vec![0; len as usize]);
            let stag = peer.expose(source, u64::from(u32::MAX), Access::RemoteRead);
            expected.equal.push(((side, sink), (!side, source)));
            read(stag, u64::from(u32::MAX), sink, len)
        }
    };
    own.post_now(id, work).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_work_on_both_sides_in_any_pieces_delivers_exact_bytes(world in world()) {
        let (mut a, mut b) = (world.host(Role::Initiator), world.host(Role::Responder));
        let (mut from_a, mut from_b) = (Expected::default(), Expected::default());
        // The initiator has to speak first.
        a.engine.post(1000, WorkRequest::Send(send_inline(b"first"))).unwrap();
        from_a.messages.push(b"first".to_vec());
        for (id, op) in (0..).zip(&world.ops[0]) {
            post(op, id, &mut a, &mut b, false, &mut from_a);
        }
        for (id, op) in (0..).zip(&world.ops[1]) {
            post(op, id, &mut b, &mut a, true, &mut from_b);
        }
        run(&mut a, &mut b, world.budget, world.chunk).unwrap();
        prop_assert_eq!(&b.messages, &from_a.messages);
        prop_assert_eq!(&a.messages, &from_b.messages);
        prop_assert_eq!(&b.invalidated, &from_a.invalidated);
        prop_assert_eq!(&a.invalidated, &from_b.invalidated);
        let at = |(side, handle): (bool, usize)| if side { &b.memory[handle] } else { &a.memory[handle] };
        for (one, other) in from_a.equal.iter().chain(&from_b.equal) {
            prop_assert!(at(*one) == at(*other), "{one:?} differs from {other:?}");
        }
        prop_assert_eq!(a.completions.len(), world.ops[0].len() + 1);
        prop_assert_eq!(b.completions.len(), world.ops[1].len());
        for host in [&a, &b] {
            prop_assert!(host.completions.iter().all(|done| done.status == WorkStatus::Done));
            prop_assert!(host.staging.is_empty());
        }
        let ids: Vec<_> = b.completions.iter().map(|done| done.wr_id).collect();
        prop_assert!(ids.is_sorted());
    }
}
