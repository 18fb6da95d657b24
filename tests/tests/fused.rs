//! Fused pairs of several hosts against each other, on several cores: no update is lost, and no other command sees one
//! half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ringfab_block::{BlockError, DriveStatus};
use ringfab_fabric::rdma::{Access, QueuePairId};
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::devices::drive::{Drive, DriveDriver};
use ringfab_tests::raw_host::{Exposed, RawHost};

const HOSTS: usize = 4;
const UPDATES: u32 = 150;
const BLOCK: usize = 512;
/// Blocks of the counter, as many as a pair may have: one that is half written could be seen.
const BLOCKS: u32 = 128;

/// Ends the threads that wait for this one, also when it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A host with one queue on a core of its choice.
struct Counter {
    host: RawHost,
    io: QueuePairId,
    lba: u64,
}

impl Counter {
    fn new(target: &TestTarget, queue_id: u16, lba: u64) -> Self {
        let mut host = RawHost::new(target.address());
        let association = host.attach();
        let io = host.attach_io(association, queue_id, 32);
        Self { host, io, lba }
    }

    /// The counter's value, which all of its blocks are full of.
    fn read(&mut self) -> u32 {
        let words = self.read_words();
        assert!(words.iter().all(|word| *word == words[0]), "half of an update was seen");
        words[0]
    }

    /// What its blocks are full of. An ordinary write of several blocks is not atomic: a read on another core may see
    /// half.
    fn read_words(&mut self) -> Vec<u32> {
        let entry = SubmissionEntry::read(self.host.next_cid(), 1, self.lba, BLOCKS);
        let (completion, bytes) = self.host.fetch(self.io, &entry, BLOCKS as usize * BLOCK);
        assert_eq!(completion.status(), Status::SUCCESS);
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Makes `from` one more, unless it is `from` no longer.
    fn update(&mut self, from: u32) -> bool {
        let (lba, first, second) = (self.lba, self.host.next_cid(), self.host.next_cid());
        let compare = SubmissionEntry::compare(first, 1, lba, BLOCKS).with_fuse(SubmissionEntry::FUSE_FIRST);
        let write =
            SubmissionEntry::write(second, 1, lba, BLOCKS, false).with_fuse(SubmissionEntry::FUSE_SECOND);
        let data = [self.expose(from), self.expose(from + 1)];
        for (entry, data) in [compare, write].iter().zip(&data) {
            self.host.send(self.io, entry.with_sgl(data.sgl()).as_bytes(), None);
        }
        let statuses = [(); 2].map(|()| self.host.completion(self.io).status().code());
        data.into_iter().for_each(|data| self.host.revoke(data));
        match statuses {
            [Status::SUCCESS, Status::SUCCESS] => true,
            [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED] => false,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, value: u32) {
        let entry = SubmissionEntry::write(self.host.next_cid(), 1, self.lba, BLOCKS, false);
        let data = self.expose(value);
        let completion = self.host.command(self.io, &entry.with_sgl(data.sgl()));
        assert_eq!(completion.status(), Status::SUCCESS);
        self.host.revoke(data);
    }

    /// Blocks that are full of a value.
    fn expose(&mut self, value: u32) -> Exposed {
        let data = value.to_le_bytes().repeat(BLOCKS as usize * BLOCK / 4);
        self.host.expose(&data, Access::RemoteRead)
    }
}

/// All hosts count the same counter up, while another host writes beside it and a third one looks all the time.
fn count(namespace: &str) {
    count_at(&[TestTarget::with_target("cores = 2\nspin_us = 20", namespace)]);
}

/// The same at targets that serve the same disk, each to some of the hosts.
fn count_at(targets: &[TestTarget]) {
    let last = targets.last().expect("a target");
    let (done, over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for host in 0..HOSTS {
            let (target, done, over) = (&targets[host % targets.len()], &done, &over);
            scope.spawn(move || {
                // Queue n is on core n - 1, of two.
                let mut counter = Counter::new(target, 1 + (host / targets.len()) as u16 % 2, 8);
                let ended = Over(over);
                for _ in 0..UPDATES {
                    while !{
                        let value = counter.read();
                        counter.update(value)
                    } {}
                    done.fetch_add(1, Ordering::Relaxed);
                }
                // The last one that is done ends the others, and so does one that fails.
                if done.load(Ordering::Relaxed) < HOSTS as u32 * UPDATES {
                    std::mem::forget(ended);
                }
            });
        }
        let (target, over) = (&targets[0], &over);
        scope.spawn(move || {
            let neighbour = target.attach();
            let mut written = 0_u8;
            while !over.load(Ordering::Relaxed) {
                written = written.wrapping_add(1);
                let block = [written; BLOCK];
                neighbour.write_at(1, 7 * BLOCK as u64, &block, false).expect("a write before it");
                neighbour
                    .write_at(1, (8 + u64::from(BLOCKS)) * BLOCK as u64, &block, false)
                    .expect("a write behind it");
            }
        });
        scope.spawn(move || {
            let (mut counter, mut before) = (Counter::new(last, 2, 8), 0);
            while !over.load(Ordering::Relaxed) {
                let value = counter.read();
                assert!(value >= before, "an update was undone");
                before = value;
            }
        });
    });
    assert_eq!(Counter::new(last, 1, 8).read(), HOSTS as u32 * UPDATES, "an update was lost");
}

/// One host writes the counter as a whole, again and again, while others count it up from what they have read.
#[test]
fn a_write_is_never_lost_between_a_compare_and_its_write() {
    const WRITES: u32 = 400;
    let target =
        TestTarget::with_target("cores = 2\nspin_us = 20", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut counter = Counter::new(&target, 2, 8);
                while !over.load(Ordering::Relaxed) {
                    let value = counter.read_words()[0];
                    counter.update(value);
                }
            });
        }
        scope.spawn(|| {
            let _over = Over(&over);
            let mut counter = Counter::new(&target, 1, 8);
            for write in 1..=WRITES {
                // The upper half says how often this host has written; counting up leaves it as it is.
                counter.write(write << 16);
                let seen = counter.read() >> 16;
                assert_eq!(
                    seen, write,
                    "a write was undone by a pair that had compared what was there before"
                );
            }
        });
    });
}

#[test]
fn no_update_is_lost_in_memory() {
    count("[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
}

#[test]
fn no_update_is_lost_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("a disk");
    count(&format!("[[subsystem.namespace]]\npath = {path:?}\ndirect = false\nallow_page_cache = true\n"));
}

/// Targets that serve a drive, which compares and writes so many bytes at once.
fn serve_drive(drive: &Arc<Drive>, targets: usize) -> Vec<TestTarget> {
    let serve = || TestTarget::with_device_over("rdma", 2, BLOCK as u32, DriveDriver(Arc::clone(drive)));
    std::iter::repeat_with(serve).take(targets).collect()
}

/// A claim keeps the order of one target only: what is between the two is the drive's own.
#[test]
fn no_update_is_lost_on_a_drive_that_two_targets_share() {
    let drive = Drive::with_compare_and_write(1 << 20, BLOCKS * BLOCK as u32);
    count_at(&serve_drive(&drive, 2));
    assert!(drive.compared() >= HOSTS * UPDATES as usize, "{} operations of the drive", drive.compared());
}

#[test]
fn no_update_is_lost_on_a_drive_that_does_one_thing_after_the_other() {
    let drive = Drive::new(1 << 20);
    count_at(&serve_drive(&drive, 1));
    assert_eq!(drive.compared(), 0);
}

#[test]
fn a_pair_that_a_drive_cannot_do_at_once_is_refused_and_what_another_target_has_written_is_found() {
    let drive = Drive::with_compare_and_write(1 << 20, BLOCK as u32);
    let targets = serve_drive(&drive, 1);
    let mut host = RawHost::new(targets[0].address());
    let association = host.attach();
    let io = host.attach_io(association, 1, 32);
    let mut exchange = |blocks: u32, from: u8, to: u8| {
        let (first, second) = (host.next_cid(), host.next_cid());
        let compare = SubmissionEntry::compare(first, 1, 8, blocks).with_fuse(SubmissionEntry::FUSE_FIRST);
        let write =
            SubmissionEntry::write(second, 1, 8, blocks, true).with_fuse(SubmissionEntry::FUSE_SECOND);
        let length = blocks as usize * BLOCK;
        let data = [from, to].map(|byte| host.expose(&vec![byte; length], Access::RemoteRead));
        for (entry, data) in [compare, write].iter().zip(&data) {
            host.send(io, entry.with_sgl(data.sgl()).as_bytes(), None);
        }
        let statuses = [first, second].map(|cid| {
            let completion = host.completion(io);
            assert_eq!(completion.cid.get(), cid, "in their order");
            completion.status()
        });
        data.into_iter().for_each(|data| host.revoke(data));
        statuses
    };
    let first = |status: Status| [status.with_dnr(), Status::ABORTED_FAILED_FUSED.with_dnr()];
    assert_eq!(exchange(2, 0, 1), first(Status::ATOMIC_WRITE_UNIT_EXCEEDED));
    assert_eq!((exchange(1, 0, 1), drive.bytes()[8 * BLOCK]), ([Status::SUCCESS; 2], 1));
    drive.bytes()[9 * BLOCK - 1] = 9;
    assert_eq!((exchange(1, 1, 2), drive.bytes()[8 * BLOCK]), (first(Status::COMPARE_FAILURE), 1));
    assert_eq!(drive.compared(), 2);
    // What goes wrong otherwise is said of the first half, too.
    let fault = DriveStatus::from_bits(Status::WRITE_FAULT.with_dnr().bits());
    drive.answer((Err(BlockError::Drive(fault)), 0));
    assert_eq!(exchange(1, 1, 2), first(Status::WRITE_FAULT));
}
