//! Cancel (NVM Express Base 2.1, section 7.1): a host ends commands of a queue, on that queue.

use std::sync::{Arc, MutexGuard};

use ringfab_spec::sqe::CancelResult;
use ringfab_spec::tcp::Digests;
use ringfab_spec::{CompletionEntry, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::core::State;
use ringfab_tests::devices::library::{Image, LibraryDriver};
use ringfab_tests::raw_tcp::{RawTcp, capsule, h2c_data};
use ringfab_tests::{TestTarget, wait_until};

const BLOCK: usize = 4096;

fn none() -> Digests {
    Digests::default()
}

/// A queue whose first command, 1, is a write of ones to block 0, which the disk has and does not do yet.
struct Queue {
    target: TestTarget,
    image: Arc<Image>,
    admin: RawTcp,
    io: RawTcp,
}

impl Queue {
    fn start(image: &Arc<Image>) -> Self {
        let target = TestTarget::with_device_on_cores(1, LibraryDriver(Arc::clone(image)));
        let (admin, controller) = RawTcp::attach(target.address(), none());
        let mut io = RawTcp::attach_io(target.address(), none(), 1, controller);
        io.say(&capsule(none(), SubmissionEntry::write(1, 1, 0, 1, false), &[1; BLOCK]));
        let this = Self { target, image: Arc::clone(image), admin, io };
        this.wait_for(State::AtDisk, 1);
        this
    }

    fn wait_for(&self, state: State, count: u64) {
        let commands = || self.target.usage().iter().map(|core| core.commands_in(state)).sum::<u64>();
        wait_until("commands wait where they should", || commands() == count);
    }

    /// Sends half of a write of twos to block 1, which is command 2. Returns the rest of it.
    fn half_a_write(&mut self) -> Vec<u8> {
        let write =
            SubmissionEntry::write(2, 1, 1, 1, false).with_sgl(SglDescriptor::transport(BLOCK as u32));
        self.io.say(&capsule(none(), write, &[]));
        let tag = self.io.r2t().ttag.get();
        self.io.say(&h2c_data(none(), 2, tag, 0, &[2; BLOCK / 2], false));
        h2c_data(none(), 2, tag, BLOCK as u32 / 2, &[2; BLOCK / 2], true)
    }

    /// Sends half of a fused operation about block 0.
    fn half(&mut self, cid: u16, fuse: u8) {
        let mut half = match fuse {
            SubmissionEntry::FUSE_FIRST => SubmissionEntry::compare(cid, 1, 0, 1),
            _ => SubmissionEntry::write(cid, 1, 0, 1, false),
        };
        half.flags |= fuse;
        self.io.say(&capsule(none(), half, &[1; BLOCK]));
    }

    fn send(&mut self, sqe: SubmissionEntry) {
        self.io.say(&capsule(none(), sqe.with_sgl(SglDescriptor::transport(0)), &[]));
    }

    fn hears(&mut self, cid: u16, status: Status) {
        let CompletionEntry { cid: heard, .. } = *self.answer(status);
        assert_eq!(heard.get(), cid);
    }

    fn answer(&mut self, status: Status) -> Box<CompletionEntry> {
        let completion = self.io.response();
        assert_eq!(completion.status().code(), status, "of command {}", completion.cid.get());
        Box::new(completion)
    }

    /// How many have ended, and how many will.
    fn canceled(&mut self, cid: u16) -> (u16, u16) {
        let completion = self.answer(Status::SUCCESS);
        assert_eq!(completion.cid.get(), cid);
        let result = CancelResult::from_bits(completion.dw0.get());
        (result.aborted(), result.deferred())
    }

    /// Lets the disk do what it has, and looks that nothing else was done.
    fn only_the_first_is_done(&mut self, held: MutexGuard<'_, ()>) {
        drop(held);
        self.hears(1, Status::SUCCESS);
        self.send(SubmissionEntry::flush(90, 1));
        self.hears(90, Status::SUCCESS);
        let image = self.image.bytes();
        assert_eq!((image[0], image[BLOCK]), (1, 0));
    }
}

#[test]
fn what_waits_ends_at_once_what_is_on_its_way_with_its_data_and_what_a_disk_has_goes_on() {
    let image = Image::new(16 * BLOCK);
    let held = image.hold();
    let mut queue = Queue::start(&image);
    let rest = queue.half_a_write();
    queue.half(3, SubmissionEntry::FUSE_FIRST);
    queue.wait_for(State::AwaitFused, 1);
    queue.send(SubmissionEntry::cancel_all(9, u32::MAX, 1));
    queue.hears(3, Status::ABORT_REQUESTED);
    assert_eq!(queue.canceled(9), (1, 1));
    queue.io.say(&rest);
    queue.hears(2, Status::ABORT_REQUESTED);
    queue.only_the_first_is_done(held);
}

#[test]
fn one_command_is_canceled_for_its_namespace_or_for_all_and_others_are_not() {
    let image = Image::new(16 * BLOCK);
    let held = image.hold();
    let mut queue = Queue::start(&image);
    let rest = queue.half_a_write();
    for cid in [1, 7] {
        queue.send(SubmissionEntry::cancel(9, 1, 1, cid));
        assert_eq!(queue.canceled(9), (0, 0), "a disk has it, or there is none");
    }
    queue.send(SubmissionEntry::cancel(10, 1, 1, 2));
    assert_eq!(queue.canceled(10), (0, 1));
    queue.send(SubmissionEntry::cancel(11, u32::MAX, 1, 2));
    assert_eq!(queue.canceled(11), (0, 0), "that is on its way already");
    queue.io.say(&rest);
    queue.hears(2, Status::ABORT_REQUESTED);
    queue.only_the_first_is_done(held);
}

#[test]
fn a_pair_that_waits_for_its_blocks_ends_whole_and_claims_nothing() {
    let image = Image::new(16 * BLOCK);
    let held = image.hold();
    let mut queue = Queue::start(&image);
    queue.half(3, SubmissionEntry::FUSE_FIRST);
    queue.half(4, SubmissionEntry::FUSE_SECOND);
    queue.wait_for(State::AwaitClaim, 1);
    queue.send(SubmissionEntry::cancel(9, 1, 1, 3));
    queue.hears(3, Status::ABORT_REQUESTED);
    queue.hears(4, Status::ABORTED_FAILED_FUSED);
    assert_eq!(queue.canceled(9), (1, 0));
    drop(held);
    queue.hears(1, Status::SUCCESS);
    queue.half(5, SubmissionEntry::FUSE_FIRST);
    queue.half(6, SubmissionEntry::FUSE_SECOND);
    queue.hears(5, Status::SUCCESS);
    queue.hears(6, Status::SUCCESS);
}

#[test]
fn an_abort_ends_what_is_on_its_way_and_says_that_it_was_not_at_once() {
    let image = Image::new(16 * BLOCK);
    let held = image.hold();
    let mut queue = Queue::start(&image);
    let rest = queue.half_a_write();
    assert_eq!(queue.admin.command(SubmissionEntry::abort(9, 1, 2)).result(), 1);
    queue.io.say(&rest);
    queue.hears(2, Status::ABORT_REQUESTED);
    assert_eq!(queue.admin.command(SubmissionEntry::abort(9, 1, 1)).result(), 1, "a disk has it");
    queue.only_the_first_is_done(held);
}

#[test]
fn a_cancel_of_another_queue_or_without_a_meaning_is_an_invalid_field() {
    let image = Image::new(16 * BLOCK);
    let held = image.hold();
    let mut queue = Queue::start(&image);
    let mut of_one = SubmissionEntry::cancel_all(10, 1, 1);
    of_one.cdw10.set(1 << 16 | 1);
    let mut reserved = SubmissionEntry::cancel(11, 1, 1, 1);
    reserved.cdw11.set(2);
    for wrong in [SubmissionEntry::cancel(9, 1, 2, 1), of_one, reserved] {
        queue.send(wrong);
        queue.hears(wrong.cid.get(), Status::INVALID_FIELD);
    }
    queue.send(SubmissionEntry::cancel(12, 9, 1, 1));
    queue.hears(12, Status::INVALID_NAMESPACE);
    queue.only_the_first_is_done(held);
}
