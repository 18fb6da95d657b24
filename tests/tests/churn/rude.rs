//! Hosts that are slow, stop in the middle, and go without a word.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfab_fabric::rdma::Access;
use ringfab_spec::tcp::{DataHeader, Digests, PduType};
use ringfab_spec::{FromBytes, SglDescriptor, SubmissionEntry};
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::raw_tcp::{RawTcp, capsule, h2c_data};
use ringfab_tests::world::content::Random;

use super::Addresses;

/// I/O queues of a host.
const QUEUES: u16 = 4;

/// The first block of the first one's part of namespace 1, behind those of all others.
const FIRST_BLOCK: u64 = 100_000;

/// Blocks of a part, and of each command: 256 KiB.
const BLOCKS: u32 = 512;
const BYTES: usize = BLOCKS as usize * 512;

/// What such a host has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Did {
    left_in_the_middle: u64,
    gave_slowly: u64,
    took_slowly: u64,
}

/// Until it is over, each time another way to be rude.
pub(crate) fn work(addresses: Addresses, seed: u64, number: u64, over: &AtomicBool) -> Did {
    let mut random = Random::new(seed, 3000 + number);
    let (mut did, mut round) = (Did::default(), 0_u8);
    while !over.load(Ordering::Relaxed) {
        round = round.wrapping_add(1);
        if number.is_multiple_of(2) {
            over_tcp(addresses.tcp, number, round, &mut random, &mut did);
        } else {
            over_rdma(addresses.rdma, &mut random, &mut did);
        }
        std::thread::sleep(Duration::from_millis(random.below(100)));
    }
    did
}

/// A Write or a Read of its whole part.
fn entry(cid: u16, writes: bool, number: u64) -> SubmissionEntry {
    let lba = FIRST_BLOCK + number * u64::from(BLOCKS);
    let entry = if writes {
        SubmissionEntry::write(cid, 1, lba, BLOCKS, false)
    } else {
        SubmissionEntry::read(cid, 1, lba, BLOCKS)
    };
    entry.with_sgl(SglDescriptor::transport(BYTES as u32))
}

fn over_tcp(address: SocketAddr, number: u64, round: u8, random: &mut Random, did: &mut Did) {
    let digests = Digests::default().with_header(random.one_in(2)).with_data(random.one_in(2));
    let (_admin, controller) = RawTcp::attach(address, digests);
    let mut queues: Vec<RawTcp> =
        (1..=QUEUES).map(|qid| RawTcp::attach_io(address, digests, qid, controller)).collect();
    if random.one_in(2) {
        did.left_in_the_middle += 1;
        for (index, io) in queues.iter_mut().enumerate() {
            for cid in 0..6 {
                io.say(&capsule(
                    digests,
                    entry(cid, (index + usize::from(cid)).is_multiple_of(2), number),
                    &[],
                ));
            }
            let last = capsule(digests, SubmissionEntry::flush(9, 1), &[]);
            io.say(&last[..random.below(last.len() as u64) as usize]);
        }
        // It holds what it has begun for any time.
        return std::thread::sleep(Duration::from_millis(random.below(1000)));
    }
    let data = pattern(number, round);
    let pause = Duration::from_millis(1 + random.below(15));
    give_slowly(&mut queues[0], digests, number, &data, pause);
    did.gave_slowly += 1;
    let found = take_slowly(&mut queues[1], digests, number, pause);
    did.took_slowly += 1;
    assert!(found == data, "round {round} of host {number} came back changed");
}

fn pattern(number: u64, round: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 512) as u8 ^ round ^ (number as u8) << 6).collect()
}

/// Gives the data of a Write in pieces, with pauses.
fn give_slowly(io: &mut RawTcp, digests: Digests, number: u64, data: &[u8], pause: Duration) {
    const PIECE: usize = 8192;
    io.say(&capsule(digests, entry(1, true, number), &[]));
    let mut given = 0;
    while given < data.len() {
        let asked = io.r2t();
        let end = (asked.r2to.get() + asked.r2tl.get()) as usize;
        assert_eq!(asked.r2to.get() as usize, given);
        while given < end {
            let next = end.min(given + PIECE);
            let pdu = h2c_data(digests, 1, asked.ttag.get(), given as u32, &data[given..next], next == end);
            let half = pdu.len() / 2;
            io.say(&pdu[..half]);
            std::thread::sleep(pause);
            io.say(&pdu[half..]);
            given = next;
        }
    }
    assert!(io.response().status().is_success());
}

/// Takes the data of a Read with pauses.
fn take_slowly(io: &mut RawTcp, digests: Digests, number: u64, pause: Duration) -> Vec<u8> {
    io.say(&capsule(digests, entry(2, false, number), &[]));
    let mut data = vec![0xee; BYTES];
    loop {
        std::thread::sleep(pause);
        let pdu = io.hear();
        if pdu.header[0] == PduType::CAPSULE_RESP.0 {
            return data;
        }
        let header = DataHeader::read_from_bytes(&pdu.header).expect("C2HData");
        let at = header.datao.get() as usize;
        data[at..at + pdu.data.len()].copy_from_slice(&pdu.data);
    }
}

/// Exposes memory, has commands work on it, does nothing for a while, and is gone.
fn over_rdma(address: SocketAddr, random: &mut Random, did: &mut Did) {
    let mut host = RawHost::new(address);
    let association = host.attach();
    let queues: Vec<_> = (1..=QUEUES).map(|qid| host.attach_io(association, qid, 32)).collect();
    let memory = [Access::RemoteRead, Access::RemoteWrite].map(|access| host.expose(&[7; BYTES], access));
    for queue in queues {
        let entries: Vec<_> = (0..12)
            .map(|cid| entry(cid, cid % 2 == 0, 1).with_sgl(memory[usize::from(cid % 2)].sgl()))
            .collect();
        host.send_and_stop(queue, &entries);
    }
    did.left_in_the_middle += 1;
    // It holds what it has begun for any time.
    std::thread::sleep(Duration::from_millis(random.below(2000)));
}
