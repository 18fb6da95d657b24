//! Links that delay, cut into pieces and break, from a seed: whatever happens, every work request comes back once, in
//! order, no byte is wrong, and no memory stays behind.

use std::collections::VecDeque;
use std::time::Duration;

use ringfab_fabric::rdma::{Access, PostError, QueuePairId, RnicEvent, SendRequest, Work};
use ringfab_reactor::sim::{LinkFaults, World};

use crate::support::{Pair, Time, config, pattern, send_work, slice};

const ROUNDS: u64 = 300;

/// What the target has posted and not got back.
struct Ledger {
    outstanding: VecDeque<u64>,
    posted: u64,
    ended: bool,
}

impl Ledger {
    fn settle(&mut self, id: u64) {
        assert_eq!(self.outstanding.pop_front(), Some(id), "work comes back once and in order");
    }

    fn take(&mut self, event: RnicEvent, expected: &[u8]) {
        assert!(!self.ended, "nothing follows the last event: {event:?}");
        match event {
            RnicEvent::Sent { id, count, .. } => {
                self.outstanding.drain(..count as usize - 1);
                self.settle(id);
            }
            RnicEvent::Flushed { id, sink, .. } => {
                while sink.is_none() && self.outstanding.front().is_some_and(|first| *first < id) {
                    self.outstanding.pop_front();
                }
                self.settle(id);
            }
            RnicEvent::Read { id, sink, .. } => {
                assert!(sink[..] == expected[..sink.len()], "a read brought wrong bytes");
                self.settle(id);
            }
            RnicEvent::Disconnected { .. } => {
                assert!(self.outstanding.is_empty(), "everything is flushed before the last event");
                self.ended = true;
            }
            RnicEvent::Received { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn world(pair: &Pair) -> &World {
    let Time::Simulated(world) = &pair.time else { unreachable!("the pair lives in a world") };
    world
}

/// One random work request of the target.
fn post(pair: &mut Pair, there: QueuePairId, ledger: &mut Ledger, memory: &Memory) {
    let kind = world(pair).random_below(3);
    let length = 1 + world(pair).random_below(memory.bytes.len() as u64) as usize;
    let work = match kind {
        0 => send_work(&ledger.posted.to_le_bytes(), None),
        1 => {
            let source = slice(&pair.target.shared_buffer(&memory.bytes[..length]));
            Work::Write { source, remote_key: memory.writable.0, remote_address: memory.writable.1 }
        }
        _ => {
            let sink = pair.target.buffer(&vec![0; length]);
            let (remote_key, remote_address) = memory.readable;
            Work::Read { sink, length: length as u32, remote_key, remote_address }
        }
    };
    let id = ledger.posted;
    match pair.target.rnic.post_send(there, SendRequest { id, work, signaled: true }) {
        Ok(()) => {
            ledger.outstanding.push_back(id);
            ledger.posted += 1;
        }
        Err(PostError::Full(_) | PostError::Ended(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Memory of the host, by key and address, and the bytes that every transfer moves.
struct Memory {
    bytes: Vec<u8>,
    readable: (u32, u64),
    writable: (u32, u64),
}

/// Takes the host's events: what arrives must be in order. Returns whether it has ended.
fn host_events(pair: &mut Pair, here: QueuePairId, next: &mut u64) -> bool {
    let mut ended = false;
    while let Some(event) = pair.host.events.pop_front() {
        assert!(!ended, "nothing follows the last event: {event:?}");
        match event {
            RnicEvent::Received { head, .. } => {
                let id = u64::from_le_bytes(head.as_slice().try_into().expect("a number"));
                assert!(id >= *next, "messages arrive in order");
                *next = id + 1;
                pair.host.rnic.post_receive(here, 1);
            }
            RnicEvent::Disconnected { .. } => ended = true,
            other => panic!("{other:?}"),
        }
    }
    ended
}

fn run(seed: u64) {
    let mut pair = Pair::in_a_simulated_world_of((config(), config()), seed);
    let (here, there) = pair.connected();
    let bytes = pattern(150_000, seed as u32);
    let (source, room) = (pair.host.shared_buffer(&bytes), pair.host.shared_buffer(&vec![0; bytes.len()]));
    let readable = pair.host.expose(&source, Access::RemoteRead);
    let writable = pair.host.expose(&room, Access::RemoteWrite);
    let memory = Memory {
        bytes,
        readable: (readable.key, readable.address),
        writable: (writable.key, writable.address),
    };
    world(&pair).set_default_link(LinkFaults {
        delay_min: Duration::ZERO,
        delay_max: Duration::from_micros(200),
        chunk_max: [1, 100, 10_000, usize::MAX][(seed % 4) as usize].max(50),
        cut_probability: if seed.is_multiple_of(3) { 0.002 } else { 0.0 },
        ..LinkFaults::default()
    });
    let mut ledger = Ledger { outstanding: VecDeque::new(), posted: 0, ended: false };
    let (mut next, mut host_ended, mut round) = (0, false, 0);
    pair.until("both ends end", |pair| {
        round += 1;
        match round {
            ..ROUNDS => post(pair, there, &mut ledger, &memory),
            ROUNDS => pair.target.disconnect(there),
            _ => {}
        }
        while let Some(event) = pair.target.events.pop_front() {
            ledger.take(event, &memory.bytes);
        }
        host_ended |= host_events(pair, here, &mut next);
        (host_ended && ledger.ended).then_some(())
    });
    drop(pair.host.rnic.revoke(writable.region).expect("exposed to the end"));
    drop(pair.host.rnic.revoke(readable.region).expect("exposed to the end"));
    drop((source, room));
    let taken = (pair.host.pool.usage().taken, pair.target.pool.usage().taken);
    assert_eq!(taken, (0, 0), "memory stayed behind");
    assert_eq!(pair.target.rnic.counters().queue_pairs + pair.host.rnic.counters().queue_pairs, 0);
}

#[test]
fn whatever_the_link_does_work_comes_back_once_and_memory_is_free() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..24).collect(),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "run it again with SEED={seed}");
    }
}
