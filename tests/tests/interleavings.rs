//! What cores share without a lock, under every interleaving and every order of memory accesses that the language
//! allows (loom). The files themselves are compiled here once more, on loom's atomics in place of the processor's.

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use sync::{AtomicU32, Ordering};

/// What the two files below take from the `sync` module of their crate.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

    /// Another thread has to run before a wait can end.
    pub(crate) fn wait(_: &mut u32) {
        loom::thread::yield_now();
    }
}

#[path = "../../common/memory/src/page_word.rs"]
mod page_word;
#[path = "../../common/reactor/src/ring/wake_flags.rs"]
mod wake_flags;

/// A page of two numbers, which are read and written with no order of their own: only the page's word gives them one.
struct Page {
    word: AtomicU32,
    numbers: [AtomicU64; 2],
}

impl Page {
    fn new() -> Arc<Self> {
        Arc::new(Self { word: AtomicU32::new(0), numbers: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn set(&self, value: u64) {
        self.numbers.iter().for_each(|number| number.store(value, Ordering::Relaxed));
    }

    fn get(&self) -> [u64; 2] {
        [0, 1].map(|at| self.numbers[at].load(Ordering::Relaxed))
    }
}

#[test]
fn a_page_is_read_as_one_write_left_it() {
    loom::model(|| {
        let page = Page::new();
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            page_word::write(&other.word);
            other.set(1);
            page_word::end_write(&other.word);
        });
        page_word::read(&page.word);
        let seen = page.get();
        page_word::end_read(&page.word);
        assert_eq!(seen[0], seen[1]);
        writer.join().expect("the writer ends");
        assert!(page_word::try_read(&page.word));
        assert_eq!(page.get(), [1; 2], "the write is visible once its writer has ended");
    });
}

#[test]
fn borrowed_pages_are_not_written_before_their_reader_has_left() {
    loom::model(|| {
        let page = Page::new();
        // The borrow begins before anybody wants to write.
        assert!(page_word::try_read(&page.word));
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            page_word::write(&other.word);
            other.set(1);
            page_word::end_write(&other.word);
        });
        assert_eq!(page.get(), [0; 2]);
        page_word::end_read(&page.word);
        writer.join().expect("the writer ends");
        assert_eq!(page.get(), [1; 2]);
    });
}

#[test]
fn a_writer_sees_what_the_one_before_it_has_written() {
    loom::model(|| {
        let page = Page::new();
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            page_word::write(&other.word);
            other.set(other.get()[0] + 1);
            page_word::end_write(&other.word);
        });
        // As a core does: it takes the page if it is free, and otherwise it waits for it.
        if !page_word::try_write(&page.word) {
            page_word::write(&page.word);
        }
        page.set(page.get()[0] + 1);
        page_word::end_write(&page.word);
        writer.join().expect("the writer ends");
        assert!(page_word::try_write(&page.word), "everybody has left");
        assert_eq!(page.get(), [2; 2]);
    });
}

/// A loop that sleeps, as the reactor's does, and a mailbox that the flags order.
struct Mailbox {
    flags: wake_flags::WakeFlags,
    messages: AtomicU64,
    /// The eventfd.
    bell: Notify,
}

impl Mailbox {
    fn new() -> Arc<Self> {
        let (flags, messages) = (wake_flags::WakeFlags::new(), AtomicU64::new(0));
        Arc::new(Self { flags, messages, bell: Notify::new() })
    }

    fn send(&self, message: u64) {
        self.messages.fetch_or(message, Ordering::Relaxed);
        if self.flags.request() {
            self.bell.notify();
        }
    }

    /// Sleeps until somebody rings, unless a wake-up has come. Loom fails when nobody ever does.
    fn sleep(&self) {
        if self.flags.prepare_sleep() {
            assert!(self.flags.is_sleeping());
            self.bell.wait();
        }
        self.flags.end_sleep();
    }
}

/// So many senders each send a message of their own; the loop turns and sleeps until it has all of them.
fn no_wake_up_is_lost(senders: u64) {
    let all = (1 << senders) - 1;
    let mailbox = Mailbox::new();
    let threads: Vec<_> = (0..senders)
        .map(|number| {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.send(1 << number))
        })
        .collect();
    while mailbox.messages.load(Ordering::Relaxed) != all {
        if !mailbox.flags.take() {
            mailbox.sleep();
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("the sender ends"));
}

#[test]
fn a_loop_that_goes_to_sleep_misses_no_message() {
    loom::model(|| no_wake_up_is_lost(1));
}

#[test]
fn a_loop_that_goes_to_sleep_misses_no_message_of_several_senders() {
    let mut model = loom::model::Builder::new();
    // With more, the time grows beyond all bounds and nothing new is found.
    model.preemption_bound = Some(3);
    model.check(|| no_wake_up_is_lost(2));
}

#[test]
fn what_a_sender_wrote_is_visible_to_the_loop_that_has_taken_its_wake_up() {
    loom::model(|| {
        let mailbox = Mailbox::new();
        let letter = Arc::new(AtomicU64::new(0));
        let (other, written) = (Arc::clone(&mailbox), Arc::clone(&letter));
        let sender = thread::spawn(move || {
            written.store(7, Ordering::Relaxed);
            other.send(1);
        });
        while !mailbox.flags.take() {
            mailbox.sleep();
        }
        assert_eq!(letter.load(Ordering::Relaxed), 7);
        sender.join().expect("the sender ends");
    });
}
