//! In its steady state the reactor allocates nothing per operation.
#![allow(unsafe_code, reason = "counting allocations needs an allocator of its own")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use ringfab_memory::Pool;
use ringfab_reactor::{FileId, FileOptions, FileRange, Payload, Reactor, ReceiveOp, SendBatch, SocketId};
use support::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's with the same arguments; counting touches a cell of the calling thread
// that needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System.alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn ten_thousand_messages_timers_reads_and_writes_allocate_nothing() {
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(8192, 4);
    reactor.register_pool(&pool);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 1 << 16]).expect("a file");
    let (file, _) = reactor.files().open(&path, FileOptions::default()).expect("open");
    let mut held = Held { batch: SendBatch::new(4096, 4), operation: ReceiveOp::new(65536) };
    for _ in 0..500 {
        held = round(&mut reactor, near, far, &pool, file, held);
    }
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..10_000 {
        held = round(&mut reactor, near, far, &pool, file, held);
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    let allocated = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), allocated + 1, "the count counts");
}

/// What a message is sent with and received with, again and again.
struct Held {
    batch: Box<SendBatch>,
    operation: Box<ReceiveOp>,
}

/// A message there, a file read and a file write meanwhile, and a timer set and cancelled.
fn round(
    reactor: &mut Reactor,
    near: SocketId,
    far: SocketId,
    pool: &Pool,
    file: FileId,
    held: Held,
) -> Held {
    let Held { mut batch, mut operation } = held;
    let timer = reactor.set_timer(reactor.now() + Duration::from_secs(9), token(9));
    batch.clear();
    batch.push_bytes(&[7; 100]);
    batch.push_shared(pool.take(8192).expect("a buffer").share(), 0, 4096);
    operation.set_target(None, 0, 65536);
    reactor.receive(far, operation, token(1));
    reactor.send(near, batch, token(2));
    reactor.files().read(
        file,
        FileRange { offset: 0, at: 0, length: 4096 },
        pool.take(8192).expect("a buffer"),
        token(3),
    );
    let source = pool.take(8192).expect("a buffer").share();
    reactor.files().write(file, FileRange { offset: 8192, at: 0, length: 4096 }, source, false, token(4));
    let (mut sent, mut received, mut bytes, mut pending) = (None, None, 0, 4);
    while pending > 0 {
        let completion = next(reactor);
        let count = completion.result.expect("no failure");
        pending -= 1;
        match completion.payload {
            Payload::Send(batch) => sent = Some(batch),
            Payload::Receive(mut operation) => {
                bytes += count;
                if bytes < 4196 {
                    operation.set_target(None, 0, 65536);
                    reactor.receive(far, operation, token(1));
                    pending += 1;
                } else {
                    received = Some(operation);
                }
            }
            Payload::Buffer(_) | Payload::SharedBuffer(_) => assert_eq!(count, 4096),
            other => panic!("{other:?}"),
        }
    }
    reactor.cancel_timer(timer);
    Held { batch: sent.expect("sent"), operation: received.expect("received") }
}
