//! Cross-Controller Reset (NVM Express Base 2.3, sections 5.4.3 and 8.3.3): a host that has lost a controller has
//! another one end it, and may rely on that.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use ringfab_spec::identify::IdentifyController;
use ringfab_spec::log::{
    ControllerInstance, CrossControllerResetEntry, CrossControllerResetStatus, LogId, LostHostEntry,
    LostPathsHeader,
};
use ringfab_spec::tcp::{CapsuleResp, Digests, PduType};
use ringfab_spec::{CompletionEntry, FromBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::core::State;
use ringfab_tests::devices::library::{Image, LibraryDriver};
use ringfab_tests::raw_tcp::{RawTcp, capsule, connect, h2c_data};
use ringfab_tests::{PATIENCE, TestTarget, wait_until};

const BLOCK: usize = 4096;

/// Asynchronous Event Configuration: Cross-Controller Reset Completed, and Lost Host Communication.
const RESET_NOTICES: u32 = 1 << 20;
const LOSS_NOTICES: u32 = 1 << 21;

fn none() -> Digests {
    Digests::default()
}

/// A host with two controllers, of which the lost one has two I/O queues on as many cores, and a disk that can be held.
struct Two {
    image: Arc<Image>,
    target: TestTarget,
    /// The admin queue of the one that still works.
    other: RawTcp,
    other_id: u16,
    lost: Lost,
}

struct Lost {
    admin: RawTcp,
    io: [RawTcp; 2],
    instance: ControllerInstance,
}

fn two() -> Two {
    let image = Image::new(16 * BLOCK);
    let target = TestTarget::with_device_on_cores(2, LibraryDriver(Arc::clone(&image)));
    let lost = lost(&target);
    let (other, other_id) = RawTcp::attach(target.address(), none());
    Two { image, target, other, other_id, lost }
}

fn lost(target: &TestTarget) -> Lost {
    let (mut admin, controller) = RawTcp::attach(target.address(), none());
    let io = [1, 2].map(|qid| RawTcp::attach_io(target.address(), none(), qid, controller));
    let page = fetch(&mut admin, SubmissionEntry::identify(1, 1, 0, 0, 0), IdentifyController::SIZE);
    let page = IdentifyController::read_from_bytes(&page).expect("a page");
    assert_eq!((page.cntlid.get(), page.ccrl), (controller, 4));
    let instance = ControllerInstance { cntlid: controller, ciu: page.ciu, cirn: page.cirn.get() };
    Lost { admin, io, instance }
}

/// A command that brings data.
fn fetch(admin: &mut RawTcp, sqe: SubmissionEntry, length: usize) -> Vec<u8> {
    admin.say(&capsule(none(), sqe.with_sgl(SglDescriptor::transport(length as u32)), &[]));
    let pdu = admin.hear();
    assert_eq!(pdu.header[0], PduType::C2H_DATA.0, "{pdu:x?}");
    assert!(admin.response().status().is_success());
    pdu.data
}

/// Sends a command without data.
fn send(admin: &mut RawTcp, sqe: SubmissionEntry) {
    admin.say(&capsule(none(), sqe.with_sgl(SglDescriptor::transport(0)), &[]));
}

/// The log page: which controllers, and how far their resets are.
fn log(admin: &mut RawTcp, remove_completed: bool) -> Vec<(u16, CrossControllerResetStatus)> {
    let sqe = SubmissionEntry::get_log_page(7, LogId::CROSS_CONTROLLER_RESET.0, 0, 0, 64, false);
    let page = fetch(admin, sqe.with_lsp(u8::from(remove_completed)), 64);
    let (header, entries) = LostPathsHeader::read_from_prefix(&page).expect("a header");
    let entries = entries.chunks(CrossControllerResetEntry::SIZE).take(header.entries.get().into());
    let entries = entries.map(|entry| CrossControllerResetEntry::read_from_bytes(entry).expect("an entry"));
    entries.map(|entry| (entry.icid.get(), entry.status)).collect()
}

/// The log page of controllers that have lost the host: which, and whether they have quiesced.
fn lost_log(admin: &mut RawTcp) -> Vec<(u16, u8)> {
    let sqe = SubmissionEntry::get_log_page(7, LogId::LOST_HOST_COMMUNICATION.0, 0, 0, 64, false);
    let page = fetch(admin, sqe, 64);
    let (header, entries) = LostPathsHeader::read_from_prefix(&page).expect("a header");
    let entries = entries.chunks(LostHostEntry::SIZE).take(header.entries.get().into());
    let entries = entries.map(|entry| LostHostEntry::read_from_bytes(entry).expect("an entry"));
    entries.map(|entry| (entry.cntlid.get(), entry.lost)).collect()
}

/// Nothing is heard for a while, which has to be seen.
fn is_silent(queue: &RawTcp) -> bool {
    queue.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("an option");
    let silent = queue.stream.peek(&mut [0]).is_err();
    queue.stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    silent
}

impl Two {
    /// The first queue of the lost controller has a write of ones with the disk, which is held.
    fn write_with_the_disk(&mut self, cid: u16) {
        let before = self.image.calls();
        let write = SubmissionEntry::write(cid, 1, 0, 1, false);
        self.lost.io[0].say(&capsule(none(), write, &[1; BLOCK]));
        wait_until("the disk has the write", || self.image.calls() == before + 1);
    }

    fn block(&self, lba: usize) -> u8 {
        self.image.bytes()[lba * BLOCK]
    }

    fn reset(&mut self, cid: u16) {
        send(&mut self.other, SubmissionEntry::cross_controller_reset(cid, self.lost.instance));
    }
}

fn immediate(completion: &CompletionEntry) -> (u16, Status, u64) {
    (completion.cid.get(), completion.status(), completion.result())
}

#[test]
fn nothing_of_a_reset_controller_is_done_after_that_is_confirmed() {
    let mut two = two();
    let image = Arc::clone(&two.image);
    let held = image.hold();
    two.write_with_the_disk(1);
    // The second queue has sent half of what it writes.
    let write = SubmissionEntry::write(2, 1, 1, 1, false).with_sgl(SglDescriptor::transport(BLOCK as u32));
    two.lost.io[1].say(&capsule(none(), write, &[]));
    let tag = two.lost.io[1].r2t().ttag.get();
    two.lost.io[1].say(&h2c_data(none(), 2, tag, 0, &[2; BLOCK / 2], false));

    two.reset(9);
    assert!(is_silent(&two.other), "a disk works for the old controller");
    let rest = h2c_data(none(), 2, tag, BLOCK as u32 / 2, &[2; BLOCK / 2], true);
    let _ended = two.lost.io[1].stream.write_all(&rest);
    assert!(two.lost.io.iter_mut().all(RawTcp::ends), "all connections have ended");
    let mut late = RawTcp::initialize(two.target.address(), none());
    late.say(&connect(none(), 2, two.lost.instance.cntlid));
    assert_eq!(late.response().status().code(), Status::CONNECT_INVALID_PARAMETERS, "a queue comes too late");

    drop(held);
    assert_eq!(immediate(&two.other.response()), (9, Status::SUCCESS, 1), "Immediate Reset Successful");
    assert_eq!((two.block(0), two.block(1)), (1, 0), "what had begun is done, and nothing else");
    assert_eq!(log(&mut two.other, false), []);
    two.reset(10);
    assert_eq!(immediate(&two.other.response()), (10, Status::SUCCESS, 1), "it is over for good");
}

#[test]
fn a_reset_that_takes_long_is_in_the_log_and_its_end_is_an_event() {
    let mut two = two();
    let image = Arc::clone(&two.image);
    let configure = SubmissionEntry::set_features(3, 0x0b, false, RESET_NOTICES);
    assert!(two.other.command(configure).status().is_success());
    send(&mut two.other, SubmissionEntry::async_event_request(4));
    let held = image.hold();
    two.write_with_the_disk(1);
    two.reset(9);
    assert_eq!(immediate(&two.other.response()), (9, Status::SUCCESS, 0), "it waits, but not for ever");
    let lost = two.lost.instance.cntlid;
    assert_eq!(log(&mut two.other, true), [(lost, CrossControllerResetStatus::IN_PROGRESS)]);
    two.reset(10);
    let again = two.other.response();
    assert_eq!((again.cid.get(), again.status().code()), (10, Status::CROSS_CONTROLLER_RESET_IN_PROGRESS));

    drop(held);
    let event = two.other.response();
    assert_eq!((event.cid.get(), event.result()), (4, 0x001e_f402));
    assert_eq!(log(&mut two.other, true), [(lost, CrossControllerResetStatus::SUCCESS)]);
    assert_eq!(log(&mut two.other, false), [], "it was read");
    assert_eq!(two.block(0), 1);
}

#[test]
fn a_command_that_waits_for_a_reset_can_be_aborted_and_the_reset_goes_on() {
    let mut two = two();
    let image = Arc::clone(&two.image);
    let held = image.hold();
    two.write_with_the_disk(1);
    two.reset(9);
    send(&mut two.other, SubmissionEntry::abort(10, 0, 9));
    let answers = [two.other.response(), two.other.response()];
    assert_eq!(
        answers.map(|answer| (answer.cid.get(), answer.status().code(), answer.result())),
        [(9, Status::ABORT_REQUESTED, 0), (10, Status::SUCCESS, 0)]
    );
    let lost = two.lost.instance.cntlid;
    assert_eq!(log(&mut two.other, false), [(lost, CrossControllerResetStatus::IN_PROGRESS)]);
    drop(held);
    wait_until("nothing is left of it", || {
        log(&mut two.other, false) == [(lost, CrossControllerResetStatus::SUCCESS)]
    });
}

#[test]
fn the_fifth_reset_at_once_is_one_too_many() {
    let mut two = two();
    let image = Arc::clone(&two.image);
    let held = image.hold();
    let mut lost: Vec<Lost> = (0..4).map(|_| lost(&two.target)).collect();
    for (number, lost) in lost.iter_mut().enumerate() {
        let write = SubmissionEntry::write(1, 1, number as u64, 1, false);
        lost.io[0].say(&capsule(none(), write, &[1; BLOCK]));
    }
    let at_disk = || two.target.usage().iter().map(|core| core.commands_in(State::AtDisk)).sum::<u64>();
    wait_until("the disk has all of them", || at_disk() == 4);
    for (cid, lost) in lost.iter().enumerate() {
        send(&mut two.other, SubmissionEntry::cross_controller_reset(cid as u16, lost.instance));
    }
    two.reset(9);
    let refused = two.other.response();
    let expected = (9, Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED);
    assert_eq!((refused.cid.get(), refused.status().code()), expected);
    drop(held);
    for _ in 0..4 {
        assert_eq!(two.other.response().result(), 1);
    }
}

#[test]
fn an_instance_is_reset_and_not_what_has_its_controller_identifier() {
    let mut two = two();
    let ControllerInstance { cntlid, ciu, cirn } = two.lost.instance;
    let wrong = [
        ControllerInstance { ciu: ciu ^ 1 | 2, ..two.lost.instance },
        ControllerInstance { cirn: !cirn, ..two.lost.instance },
        // A target that was killed and started again gives the first host the same identifier once more.
        ControllerInstance { cntlid: two.other_id, ..two.lost.instance },
    ];
    for (cid, instance) in wrong.into_iter().enumerate() {
        let reset = SubmissionEntry::cross_controller_reset(cid as u16, instance);
        assert_eq!(immediate(&two.other.command(reset)), (cid as u16, Status::SUCCESS, 1), "that is over");
    }
    let write = SubmissionEntry::write(1, 1, 0, 1, false);
    two.lost.io[0].say(&capsule(none(), write, &[1; BLOCK]));
    let pdu = two.lost.io[0].hear();
    let response = CapsuleResp::read_from_bytes(&pdu.header).expect("as long as one").cqe;
    assert!(response.status().is_success(), "controller {cntlid} is another instance, and works on");
}

#[test]
fn a_command_that_comes_while_its_controller_ends_may_be_tried_elsewhere() {
    let mut two = two();
    let cntlid = two.lost.instance.cntlid;
    let controller = two.target.target.controllers().into_iter().find(|one| one.id() == cntlid);
    controller.expect("it is there").end();
    let write = SubmissionEntry::write(1, 1, 0, 1, false);
    two.lost.io[0].say(&capsule(none(), write, &[1; BLOCK]));
    let pdu = two.lost.io[0].hear();
    let response = CapsuleResp::read_from_bytes(&pdu.header).expect("as long as one").cqe;
    assert_eq!(response.status(), Status::INTERNAL_PATH_ERROR, "a path's error, without Do Not Retry");
}

#[test]
fn an_io_queue_that_is_lost_takes_its_controller_along_and_the_host_is_told_by_another() {
    let mut two = two();
    let image = Arc::clone(&two.image);
    let configure = SubmissionEntry::set_features(3, 0x0b, false, LOSS_NOTICES);
    assert!(two.other.command(configure).status().is_success());
    let mut io = RawTcp::attach_io(two.target.address(), none(), 1, two.other_id);
    let held = image.hold();
    two.write_with_the_disk(1);
    send(&mut two.other, SubmissionEntry::async_event_request(4));
    two.lost.io[0].stream.shutdown(Shutdown::Both).expect("it is connected");
    assert!(two.lost.admin.ends() && two.lost.io[1].ends(), "all of its connections have ended");
    let event = two.other.response();
    assert_eq!((event.cid.get(), event.result()), (4, 0x001f_f502));
    let lost = two.lost.instance.cntlid;
    assert_eq!(lost_log(&mut two.other), [(lost, 0)], "a disk works for it");

    // What the host sends again by the other controller waits for what the disk has.
    let calls = two.image.calls();
    io.say(&capsule(none(), SubmissionEntry::write(5, 1, 0, 1, false), &[2; BLOCK]));
    send(&mut two.other, SubmissionEntry::async_event_request(6));
    assert!(is_silent(&io) && two.image.calls() == calls, "the disk has not seen it");
    drop(held);
    let written = io.response();
    assert_eq!((written.cid.get(), written.status()), (5, Status::SUCCESS));
    assert_eq!(two.block(0), 2, "what came last is there");
    assert_eq!(two.other.response().cid.get(), 6, "it has quiesced");
    assert_eq!(lost_log(&mut two.other), [(lost, 1)]);
    assert_eq!(lost_log(&mut two.other), [], "it was read");
}

#[test]
fn an_io_queue_that_ends_with_nothing_outstanding_leaves_its_controller_as_hosts_do_that_leave() {
    let mut two = two();
    for io in &two.lost.io {
        io.stream.shutdown(Shutdown::Both).expect("it is connected");
    }
    assert!(two.lost.io.iter_mut().all(RawTcp::ends));
    let alive = two.lost.admin.command(SubmissionEntry::keep_alive(3));
    assert!(alive.status().is_success());
    assert_eq!(lost_log(&mut two.other), []);
}
