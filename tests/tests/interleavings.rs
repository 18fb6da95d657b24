//! What cores share without a lock, under every interleaving and every order of memory accesses that the language
//! allows (loom). The files themselves are compiled here once more, on loom's atomics in place of the processor's.

use std::sync::Arc;

use io_access::IoAccess;
use loom::sync::{Mutex, Notify};
use loom::thread;
use sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What the files below take from the `sync` module of their crate.
mod sync {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
    };

    /// Another thread has to run before a wait can end.
    pub(crate) fn wait(_: &mut u32) {
        loom::thread::yield_now();
    }
}

#[path = "../../common/rbd/src/native/answers.rs"]
#[allow(unsafe_code, reason = "it stands where that is argued")]
mod answers;
#[path = "../../target/src/model/epoch.rs"]
#[expect(unreachable_pub, reason = "it is public where it belongs")]
mod epoch;
#[path = "../../target/src/controller/io_access.rs"]
mod io_access;
#[path = "../../common/memory/src/page_word.rs"]
mod page_word;
#[path = "../../target/src/model/readiness.rs"]
mod readiness;
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

#[test]
fn a_namespace_that_is_ready_has_the_size_that_was_set_before() {
    loom::model(|| {
        let namespace = Arc::new(readiness::Readiness::new(Arc::default()));
        let other = Arc::clone(&namespace);
        let core = thread::spawn(move || other.set_ready(8));
        let (ready, blocks) = namespace.get();
        assert!(!ready || blocks == 8, "ready with {blocks} blocks");
        assert!(core.join().expect("the core ends"), "hosts see a difference");
        assert_eq!((namespace.is_ready(), namespace.blocks()), (true, 8));
    });
}

#[test]
fn of_two_cores_that_report_the_same_of_a_disk_one_says_that_it_is_new() {
    loom::model(|| {
        let namespace = Arc::new(readiness::Readiness::new(Arc::default()));
        assert!(namespace.set_ready(8));
        let other = Arc::clone(&namespace);
        let core = thread::spawn(move || other.set_not_ready());
        let here = namespace.set_not_ready();
        assert!(core.join().expect("the core ends") != here, "the disk has gone once");
        let other = Arc::clone(&namespace);
        let core = thread::spawn(move || other.set_ready(8));
        let here = namespace.set_ready(8);
        assert!(core.join().expect("the core ends") != here, "the disk is back once");
    });
}

#[test]
fn a_command_that_was_let_through_is_judged_again_once_its_namespace_is_not_ready() {
    loom::model(|| {
        let epoch = Arc::new(epoch::Epoch::default());
        let namespace = Arc::new(readiness::Readiness::new(Arc::clone(&epoch)));
        namespace.set_ready(7);
        let other = Arc::clone(&namespace);
        let closing = thread::spawn(move || {
            other.set_not_ready();
        });
        let judged_in = epoch.now();
        let was_let_through = namespace.is_ready();
        // It waits, and is judged again in a new epoch only.
        let now = epoch.now();
        if now != judged_in {
            assert!(!namespace.is_ready(), "who finds a new epoch finds what began it");
        }
        closing.join().expect("it ends");
        assert!(!was_let_through || epoch.now() != judged_in, "it would run on an old verdict");
    });
}

#[test]
fn a_core_that_finds_io_allowed_finds_what_the_controller_was_set_up_with() {
    loom::model(|| {
        let gate = Arc::new(io_access::IoGate::new());
        let set_up = Arc::new(AtomicU64::new(0));
        let (other, written) = (Arc::clone(&gate), Arc::clone(&set_up));
        let admin = thread::spawn(move || {
            written.store(7, Ordering::Relaxed);
            other.set(true, false);
        });
        while gate.get() != IoAccess::Allowed {
            thread::yield_now();
        }
        assert_eq!(set_up.load(Ordering::Relaxed), 7);
        admin.join().expect("the admin queue's core ends");
    });
}

#[test]
fn io_of_a_controller_that_has_ended_stays_refused_whatever_other_cores_decide() {
    loom::model(|| {
        let gate = Arc::new(io_access::IoGate::new());
        let (enabling, fencing) = (Arc::clone(&gate), Arc::clone(&gate));
        let threads = [
            thread::spawn(move || enabling.set(true, true)),
            thread::spawn(move || {
                let lock = || ();
                fencing.end_fence(lock, || false, |()| true);
            }),
        ];
        gate.end();
        assert_eq!((gate.get(), gate.has_ended()), (IoAccess::Ended, true));
        threads.into_iter().for_each(|thread| thread.join().expect("a core ends"));
        assert_eq!(gate.get(), IoAccess::Ended);
    });
}

#[test]
fn a_fence_that_is_new_is_not_ended_by_an_older_look_for_orphans() {
    loom::model(|| {
        let gate = Arc::new(io_access::IoGate::new());
        let (state, orphans) = (Arc::new(Mutex::new(true)), Arc::new(AtomicBool::new(false)));
        let (other, locked, left) = (Arc::clone(&gate), Arc::clone(&state), Arc::clone(&orphans));
        // A connection ends with a command at its disk, and the controller that is ready next is fenced.
        let admin = thread::spawn(move || {
            left.store(true, Ordering::Release);
            let state = locked.lock().expect("nobody panics");
            other.set(*state, left.load(Ordering::Acquire));
        });
        gate.end_fence(
            || state.lock().expect("nobody panics"),
            || orphans.load(Ordering::Acquire),
            |state| **state,
        );
        admin.join().expect("the admin queue's core ends");
        assert_eq!(gate.get(), IoAccess::Fenced);
    });
}

/// What two threads of librbd have answered: the core takes each answer once, with what it says, and is told of the
/// first of those that it has not taken.
#[test]
fn no_answer_is_lost_or_taken_twice_and_the_core_hears_of_those_that_it_has_not_taken() {
    loom::model(|| {
        let list = Arc::new(answers::Answers::new());
        let told = Arc::new(AtomicU32::new(0));
        let threads = [0, 1].map(|slot| {
            let (list, told) = (Arc::clone(&list), Arc::clone(&told));
            thread::spawn(move || {
                if list.put(Arc::new(answers::Answer::new(slot)), i64::from(slot) + 5) {
                    told.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let mut taken = Vec::new();
        list.take(|answer| taken.push((answer.slot(), answer.result())));
        let (early, takes) = (taken.len(), u32::from(!taken.is_empty()));
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        list.take(|answer| taken.push((answer.slot(), answer.result())));
        taken.sort_unstable();
        assert_eq!(taken, [(0, 5), (1, 6)]);
        // One signal for each list that was not empty when it was taken.
        assert_eq!(told.load(Ordering::Relaxed), takes + u32::from(early < 2));
    });
}

/// A core that is not interested any more takes what is there; what comes later is dropped.
#[test]
fn an_answer_that_comes_while_a_list_is_closed_is_taken_or_dropped() {
    loom::model(|| {
        let (list, answer) = (Arc::new(answers::Answers::new()), Arc::new(answers::Answer::new(3)));
        let (other, given) = (Arc::clone(&list), Arc::clone(&answer));
        let thread = thread::spawn(move || other.put(given, 1));
        list.close(|answer| assert_eq!((answer.slot(), answer.result()), (3, 1)));
        thread.join().expect("it ends");
        assert_eq!(Arc::strong_count(&answer), 1, "nobody has it any more");
    });
}
