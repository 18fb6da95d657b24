//! Messages that are emitted as they are posted.

use ringfab_proto::iwarp::mpa::{Negotiated, Role};
use ringfab_proto::iwarp::{
    Access, Completion, EngineConfig, EngineError, Inline, PostError, ReadRequest, SendRequest, WorkKind,
    WorkRequest, WorkStatus, WriteRequest,
};

use super::support::{Host, REQUESTER, fpdu, local, negotiated, pair, read_request, send_inline, untagged};

/// A host that connected, with so large FPDUs and 300 bytes of memory.
fn host(ulpdu_len_max: u16, crc: bool) -> (Host, usize) {
    let negotiated = Negotiated { crc, ..negotiated(Role::Initiator) };
    let mut host = Host::with_config(EngineConfig {
        ulpdu_len_max,
        send_queue_depth: 4,
        ..EngineConfig::new(negotiated, REQUESTER)
    });
    let memory = host.allocate((0..=255).cycle().take(300).collect());
    (host, memory)
}

fn send(inline: &[u8], memory: Option<(usize, u32)>) -> WorkRequest<usize> {
    let payload = memory.map(|(handle, len)| local(handle, 7, len));
    let inline = Inline::new(inline);
    WorkRequest::Send(SendRequest { inline, payload, invalidate: None, solicited: false })
}

fn write(memory: usize, to: u64, len: u32) -> WorkRequest<usize> {
    WorkRequest::Write(WriteRequest { stag: 5, to, payload: local(memory, 3, len) })
}

#[test]
fn the_bytes_are_those_of_posting_and_emitting() {
    for crc in [false, true] {
        let invalidate = SendRequest { invalidate: Some(9), solicited: true, ..send_inline(b"both") };
        for work in [
            send(b"", None),
            send(b"capsule", None),
            send(b"capsule", Some((0, 131))),
            WorkRequest::Send(invalidate),
            write(0, 0x1234_5678_9abc, 0),
            write(0, u64::MAX - 200, 200),
        ] {
            let [mut now, mut later] = [(); 2].map(|()| host(1000, crc).0);
            for id in 0..2 {
                assert!(now.post_now(id, work).expect("room"), "{work:?}");
                later.engine.post(id, work).expect("room");
            }
            assert!(now.engine.wants_transmit());
            assert_eq!(now.emit_all(), later.emit_all(), "{work:?}");
            assert!(!now.engine.wants_transmit());
            assert_eq!(later.completions.len(), 2);
            let last = Completion { count: 2, local: None, ..later.completions[1] };
            assert_eq!(now.completions, [last], "{work:?}");
            assert_eq!(now.engine.fpdu_counts(), later.engine.fpdu_counts());
        }
    }
}

#[test]
fn only_what_fits_one_fpdu_goes_now() {
    let (mut host, memory) = host(128, true);
    assert!(host.post_now(1, send(b"0123456789", Some((memory, 100)))).expect("room"), "110 bytes");
    assert!(host.post_now(2, write(memory, 0, 114)).expect("room"));
    host.emit_all();
    assert!(!host.post_now(3, send(b"0123456789", Some((memory, 101)))).expect("room"));
    host.emit_all();
    assert!(!host.post_now(4, write(memory, 0, 115)).expect("room"));
    assert!(!host.post_now(5, send(b"x", None)).expect("room"), "something waits before it");
    host.emit_all();
    assert!(host.post_now(6, send(b"x", None)).expect("room"), "nothing does any more");
    let done: Vec<_> = host.completions.iter().map(|done| (done.wr_id, done.count)).collect();
    assert_eq!(done, [(2, 2), (3, 1), (4, 1), (5, 1)]);
}

#[test]
fn what_is_transmitted_together_completes_together() {
    let (mut host, memory) = host(1000, true);
    let joined = |host: &mut Host, id| {
        assert_eq!(
            host.post_now(id, if id % 2 == 0 { send(b"x", None) } else { write(memory, 0, 9) }),
            Ok(true)
        );
        host.joined
    };
    for round in [0, 10, 20] {
        assert!(!joined(&mut host, round), "what is before it is on its way");
        assert!(joined(&mut host, round + 1));
        let bytes = host.transmit(usize::MAX).len();
        assert!(!joined(&mut host, round + 2), "what is before it is on its way");
        assert!(joined(&mut host, round + 3));
        assert_eq!(host.engine.send_queue_room(), 0, "each takes its place");
        host.engine.transmitted(bytes);
        host.collect();
        host.emit_all();
    }
    let kinds = [WorkKind::Write; 6];
    let done = host.completions.iter().map(|done| (done.wr_id, done.count, done.kind));
    assert!(done.eq([1, 3, 11, 13, 21, 23].into_iter().zip(kinds).map(|(id, kind)| (id, 2, kind))));
    assert_eq!(host.engine.send_queue_room(), 4);

    // What waits ends a run, and so does what came in between.
    assert!(!joined(&mut host, 30));
    host.engine.post(31, send(b"x", None)).expect("room");
    host.emit_all();
    assert!(!joined(&mut host, 32));
    host.emit_all();
    let done: Vec<_> = host.completions[6..].iter().map(|done| (done.wr_id, done.count)).collect();
    assert_eq!(done, [(30, 1), (31, 1), (32, 1)]);
}

#[test]
fn what_cannot_be_posted_does_not_go_now_either() {
    let (mut host, memory) = host(1000, true);
    assert_eq!(host.post_now(0, write(memory, u64::MAX - 10, 10)), Ok(true));
    assert_eq!(host.post_now(0, write(memory, u64::MAX - 9, 10)), Err(PostError::Range));
    for id in 1..4 {
        assert_eq!(host.post_now(id, send(b"x", None)), Ok(true));
    }
    assert_eq!(host.post_now(4, send(b"x", None)), Err(PostError::Full(4)));
    host.engine.stream_ended(0);
    assert_eq!(host.post_now(5, send(b"x", None)), Err(PostError::Ended));
}

#[test]
fn a_responder_that_has_heard_nothing_sends_nothing_now() {
    let mut host = Host::new(negotiated(Role::Responder));
    assert_eq!(host.post_now(1, send(b"early", None)), Ok(false));
    assert_eq!(host.emit_all(), b"");
}

#[test]
fn what_waits_for_the_peer_and_answers_to_it_come_first() {
    let (mut a, mut b) = pair(None);
    let sink = a.allocate(vec![0; 64]);
    let read = ReadRequest { stag: 1, to: 0, sink_stag: 9, sink_to: 0, sink: local(sink, 0, 64) };
    (0..5).for_each(|id| a.engine.post(id, WorkRequest::Read(read)).expect("room"));
    a.emit_all();
    assert_eq!(a.post_now(6, send(b"x", None)), Ok(false), "the fifth READ waits for an answer");

    let source = b.allocate(vec![1; 64]);
    let stag = b.expose(source, 0, Access::RemoteRead);
    let asked = untagged(1, true, [0, 1, 1, 0], &read_request((9, 0), 64, (stag, 0)));
    b.feed(&fpdu(&asked)).expect("a read request");
    assert_eq!(b.post_now(1, send(b"x", None)), Ok(false), "the answer is to be sent");
    b.emit_all();
    assert_eq!(b.post_now(2, send(b"x", None)), Ok(true));
}

#[test]
fn it_completes_when_its_bytes_were_taken_and_comes_back_when_they_never_are() {
    let (mut host, memory) = host(1000, true);
    assert_eq!(host.post_now(1, send(b"x", Some((memory, 9)))), Ok(true));
    host.collect();
    assert!(host.completions.is_empty(), "it was not transmitted");
    host.emit_all();
    assert_eq!(host.post_now(2, write(memory, 0, 9)), Ok(true));
    assert_eq!(host.engine.stream_ended(0), EngineError::Closed);
    host.engine.transport_closed();
    host.collect();
    let done: Vec<_> = host.completions.iter().map(|done| (done.wr_id, done.kind, done.status)).collect();
    assert_eq!(done, [(1, WorkKind::Send, WorkStatus::Done), (2, WorkKind::Write, WorkStatus::Flushed)]);
}
