//! Sends of bytes that are lent, over the real kernel.

mod support;

use std::rc::Rc;
use std::sync::Arc;

use ringfab_memory::{BorrowedPages, CoreMemory, Pool, SharedMemory};
use ringfab_reactor::{Payload, SendBatch};
use support::*;

/// Memory that is a pattern from end to end, and what lends it.
fn lender(pool: &Pool, bytes: usize) -> (Rc<CoreMemory>, BorrowedPages) {
    let memory = CoreMemory::new(Arc::new(SharedMemory::new(bytes).expect("memory")));
    let borrowed = BorrowedPages::default();
    for offset in (0..bytes).step_by(4096) {
        let mut page = pool.take(4096).expect("a buffer");
        pattern(&mut page, offset);
        memory.write(&borrowed, offset, &page.share(), 0, 4096);
    }
    (memory, borrowed)
}

#[test]
fn what_is_lent_arrives_as_it_was_although_it_changes_before_a_socket_takes_the_rest() {
    const PIECE: usize = 1 << 20;
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(PIECE, 8);
    let (memory, borrowed) = lender(&pool, 8 * PIECE);
    let mut batch = SendBatch::new(8, 17);
    batch.push_bytes(b"in front");
    for offset in (0..8 * PIECE).step_by(PIECE) {
        let buffer = pool.take(PIECE).expect("a buffer");
        let shared_buffer = memory.borrow_pages(&borrowed, offset, buffer).expect("nobody writes");
        // Pieces need not begin where what was lent does.
        batch.push_shared(shared_buffer.clone(), 0, 100);
        batch.push_shared(shared_buffer, 100, PIECE - 100);
    }
    reactor.send(near, batch, token(1));
    reactor.send_borrowed();
    borrowed.end_all();
    let copied = borrowed.copied_bytes();
    assert!(copied > 0 && copied.is_multiple_of(PIECE as u64), "8 MiB do not fit into a socket: {copied}");
    memory.zero(&borrowed, 0, 8 * PIECE);
    let mut read = 0;
    reactor.receive(far, receive(100_000), token(2));
    while read < 8 + 8 * PIECE {
        let completion = next(&mut reactor);
        let bytes = completion.result.expect("no error on this connection") as usize;
        let Payload::Receive(operation) = completion.payload else {
            assert_eq!(bytes, 8 + 8 * PIECE);
            continue;
        };
        let front = 8_usize.saturating_sub(read).min(bytes);
        assert_pattern(&operation.staging()[front..bytes], (read + front) - 8);
        read += bytes;
        reactor.receive(far, operation, token(2));
    }
}

#[test]
fn what_is_lent_and_sent_at_once_is_not_copied_and_its_buffer_is_free_with_the_loan() {
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(4096, 2);
    let (memory, borrowed) = lender(&pool, 8192);
    let mut batch = SendBatch::new(0, 2);
    for offset in [4096, 0] {
        let buffer = pool.take(4096).expect("a buffer");
        batch.push_shared(memory.borrow_pages(&borrowed, offset, buffer).expect("nobody writes"), 0, 4096);
    }
    reactor.send(near, batch, token(1));
    reactor.send_borrowed();
    borrowed.end_all();
    assert_eq!((borrowed.copied_bytes(), pool.usage().taken), (0, 0));
    assert_eq!(expect(&mut reactor, token(1)).result.expect("sent"), 8192);
    let mut operation = receive(8192);
    for (offset, expected) in [(0, 4096), (4096, 0)] {
        operation.set_target(None, 0, 4096);
        reactor.receive(far, operation, token(2));
        let completion = expect(&mut reactor, token(2));
        assert_eq!(completion.result.expect("received"), 4096, "from {offset}");
        let Payload::Receive(received) = completion.payload else { panic!("not a receive") };
        assert_pattern(&received.staging()[..4096], expected);
        operation = received;
    }
}
