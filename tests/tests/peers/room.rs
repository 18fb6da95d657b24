//! A target that may have no more descriptors, or no more memory.

use std::time::{Duration, Instant};

use ringfab_tests::PATIENCE;

use crate::attack::{Act, Attack, Going, Origin};
use crate::attacks::attaches;
use crate::target::{Over, Process};

/// What the process may map beyond what it has when it is idle, in MiB.
const ROOM_MIB: u64 = 96;

fn elsewhere(over: Over, act: Act, count: usize) -> Attack {
    Attack { over, act, from: Origin::Others(1), count }
}

#[test]
fn a_target_with_few_descriptors_lets_the_host_in_that_may_connect() {
    let process = Process::start_with_descriptors(512);
    for act in [Act::Silent, Act::Discovery, Act::Queues] {
        let count = if act == Act::Queues { 6 } else { 800 };
        let _going = Going::start(elsewhere(Over::Tcp, act, count), process.address(Over::Tcp));
        let times = attaches(&process, Over::Tcp, PATIENCE);
        let median = times[times.len() / 2];
        assert!(median.is_some_and(|median| median < Duration::from_secs(5)), "{act:?}: {times:?}");
    }
}

/// Reads all the time, until it is told to stop; how often it did.
fn reads_on(process: &Process, over: Over, during: impl FnOnce()) -> u64 {
    let (there, _) = process.attach(over);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                there
                    .read_at(1, count % 16_384 * 4096, &mut [0; 4096])
                    .expect("the host that was there goes on");
                count += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            count
        });
        during();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        reading.join().expect("no read fails")
    })
}

#[test]
fn who_comes_when_memory_has_run_out_is_turned_away_with_the_reason_and_who_was_there_goes_on() {
    for (over, act, count) in [
        (Over::Tcp, Act::Silent, 800),
        (Over::Tcp, Act::Queues, 6),
        (Over::Tcp, Act::Impostor, 800),
        (Over::Rdma, Act::QueuePair, 800),
    ] {
        let process = Process::start();
        let reads = reads_on(&process, over, || {
            process.limit_memory(process.status("VmSize:") + (ROOM_MIB << 10));
            let going = Going::start(elsewhere(over, act, count), process.address(over));
            let begun = Instant::now();
            while !process.service.log().contains("the process may have no more memory") {
                assert!(begun.elapsed() < PATIENCE, "{over:?} {act:?}: {}", process.tail());
                std::thread::sleep(Duration::from_millis(20));
            }
            // It goes on for a while where there is none.
            std::thread::sleep(Duration::from_millis(500));
            drop(going);
        });
        assert!(reads > 100, "{over:?} {act:?}: {reads} reads");
        // With what they had, others are served: the process lives.
        let times = attaches(&process, over, PATIENCE);
        assert!(times.iter().all(Option::is_some), "{over:?} {act:?}: {times:?} {}", process.tail());
        assert!(!process.service.log().contains("panic"), "{}", process.tail());
    }
}
