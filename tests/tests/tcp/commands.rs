//! Commands whose data come in capsules, or are asked for: pairs that are fused, and lists of ranges.

use ringfab_spec::sqe::CopyRange;
use ringfab_spec::tcp::Digests;
use ringfab_spec::{IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::{RawTcp, capsule, h2c_data};

use crate::{MEMORY, TCP};

const BLOCK: usize = 512;

/// A queue with data digests, and the admin queue that keeps its controller.
struct Host {
    io: RawTcp,
    with: Digests,
    _admin: RawTcp,
}

impl Host {
    fn new(target: &TestTarget) -> Self {
        let with = Digests::default().with_data(true);
        let (admin, controller) = RawTcp::attach(target.address(), with);
        Self { io: RawTcp::attach_io(target.address(), with, 1, controller), with, _admin: admin }
    }

    /// Sends a command with its data in the capsule, or none of it.
    fn send(&mut self, sqe: SubmissionEntry, data: &[u8], in_capsule: bool) {
        let described = sqe.with_sgl(SglDescriptor::transport(data.len() as u32));
        let pdu = if in_capsule { capsule(self.with, sqe, data) } else { capsule(self.with, described, &[]) };
        self.io.say(&pdu);
    }

    /// Gives the data that the target asks for next, of one of these commands; a byte of it may be damaged.
    fn give(&mut self, commands: &[(u16, &[u8])], damaged: bool) {
        let asked = self.io.r2t();
        let (cid, data) = commands.iter().find(|(cid, _)| *cid == asked.cccid.get()).expect("one of them");
        assert_eq!((asked.r2to.get(), asked.r2tl.get()), (0, data.len() as u32));
        let mut pdu = h2c_data(self.with, *cid, asked.ttag.get(), 0, data, true);
        if damaged {
            let last = pdu.len() - 1;
            pdu[last] ^= 1;
        }
        self.io.say(&pdu);
    }

    fn answers<const N: usize>(&mut self) -> [(u16, Status); N] {
        std::array::from_fn(|_| {
            let entry = self.io.response();
            (entry.cid.get(), entry.status())
        })
    }
}

fn pair() -> [SubmissionEntry; 2] {
    let compare = SubmissionEntry::compare(1, 1, 8, 1).with_fuse(SubmissionEntry::FUSE_FIRST);
    [compare, SubmissionEntry::write(2, 1, 8, 1, false).with_fuse(SubmissionEntry::FUSE_SECOND)]
}

#[test]
fn a_fused_pair_works_wherever_its_data_are() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let mut host = Host::new(&target);
    for (round, capsules) in [[true, true], [true, false], [false, true], [false, false]].iter().enumerate() {
        let [compare, write] = pair();
        let (from, to) = ([round as u8; BLOCK], [round as u8 + 1; BLOCK]);
        host.send(compare, &from, capsules[0]);
        host.send(write, &to, capsules[1]);
        let asked = capsules.iter().filter(|in_capsule| !**in_capsule).count();
        (0..asked).for_each(|_| host.give(&[(1, &from), (2, &to)], false));
        assert_eq!(host.answers(), [(1, Status::SUCCESS), (2, Status::SUCCESS)], "{capsules:?}");
    }
    let [compare, write] = pair();
    host.send(compare, &[0; BLOCK], true);
    host.send(write, &[9; BLOCK], true);
    let neither = [(1, Status::COMPARE_FAILURE.with_dnr()), (2, Status::ABORTED_FAILED_FUSED.with_dnr())];
    assert_eq!(host.answers(), neither);
    let mut read = [0; BLOCK];
    target.attach().read_at(1, 8 * BLOCK as u64, &mut read).expect("read");
    assert_eq!(read, [4; BLOCK]);
}

#[test]
fn a_half_whose_data_are_damaged_takes_the_other_with_it() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let mut host = Host::new(&target);
    let failed = Status::ABORTED_FAILED_FUSED.with_dnr();
    for damaged in [1, 2] {
        let [compare, write] = pair();
        host.send(compare, &[0; BLOCK], false);
        host.send(write, &[1; BLOCK], false);
        let data: [(u16, &[u8]); 2] = [(1, &[0; BLOCK]), (2, &[1; BLOCK])];
        for turn in 0..2 {
            host.give(&data, turn + 1 == damaged);
        }
        let mut answers = host.answers::<2>();
        answers.sort_unstable();
        assert_eq!(answers.map(|(cid, _)| cid), [1, 2]);
        let statuses = answers.map(|(_, status)| status);
        assert!(
            statuses.contains(&Status::TRANSIENT_TRANSPORT_ERROR) && statuses.contains(&failed),
            "{answers:?}"
        );
    }
    let [compare, write] = pair();
    host.send(compare, &[0; BLOCK], true);
    host.send(write, &[1; BLOCK], true);
    assert_eq!(host.answers(), [(1, Status::SUCCESS), (2, Status::SUCCESS)], "nothing was written before");
}

#[test]
fn copy_and_verify_do_what_they_say() {
    let target = TestTarget::with_listener(TCP, MEMORY);
    let ordinary = target.attach();
    let blocks: Vec<u8> = (0..16_u8).flat_map(|block| [block; BLOCK]).collect();
    ordinary.write_at(1, 0, &blocks, false).expect("written");
    let mut host = Host::new(&target);
    let ranges = [CopyRange::new(9, 2), CopyRange::new(1, 1)];
    let list: Vec<u8> = ranges.iter().flat_map(|range| range.as_bytes().to_vec()).collect();
    for (in_capsule, to) in [(true, 100), (false, 200)] {
        host.send(SubmissionEntry::copy(1, 1, to, 2), &list, in_capsule);
        if !in_capsule {
            host.give(&[(1, &list)], false);
        }
        assert_eq!(host.answers(), [(1, Status::SUCCESS)]);
        let mut read = [0; 3 * BLOCK];
        ordinary.read_at(1, to * BLOCK as u64, &mut read).expect("read");
        assert_eq!([read[0], read[BLOCK], read[2 * BLOCK]], [9, 10, 1]);
    }
    ordinary.verify(1, 0, 4 << 20).expect("all of it can be read");
}
