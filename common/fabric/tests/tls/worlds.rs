//! Simulated links that delay, cut into pieces and break: whatever happens, no byte is wrong.

use ringfab_fabric::tcp::TcpEvent;
use ringfab_reactor::sim::LinkFaults;

use crate::support::{Pair, Time, known, pattern, required};

fn with_faults(seed: u64, faults: LinkFaults) -> Pair {
    let pair = Pair::in_a_world(seed, required());
    let Time::Simulated(world) = &pair.time else { unreachable!("it is a world") };
    world.set_default_link(faults);
    pair
}

#[test]
fn pieces_of_any_size_give_the_same_bytes() {
    for seed in 0..20 {
        let chunk_max = [1, 7, 100, 5000, 100_000][seed as usize % 5];
        let mut pair = with_faults(seed, LinkFaults { chunk_max, ..LinkFaults::default() });
        let connection = pair.establish(Some(&[known()]));
        for (cid, size) in [(1, 100), (2, 8192), (3, 40_000), (4, 131_072)] {
            if chunk_max < 100 && size > 10_000 {
                continue;
            }
            assert!(pair.read(connection, cid, size) == pattern(size, cid), "seed {seed}: {size} read");
            let bytes = pattern(size, 77);
            pair.write(connection, cid, &bytes);
            assert!(pair.written.pop().expect("written").1 == bytes, "seed {seed}: {size} written");
        }
        pair.host.tcp.disconnect(&mut pair.host.reactor, connection);
        pair.drained();
    }
}

#[test]
fn connections_that_break_anywhere_end_at_both_ends() {
    let (mut failed, mut ended) = (0, 0);
    for seed in 0..60 {
        let faults = LinkFaults { cut_probability: 0.05, chunk_max: 3000, ..LinkFaults::default() };
        let mut pair = with_faults(seed, faults);
        let connection = pair.host.connect(pair.listening, Some(&[known()]));
        if pair.outcome(connection).is_err() {
            failed += 1;
        } else {
            pair.host.submit(connection, 1, 0, ringfab_fabric::tcp::SubmitData::None);
            for cid in 2..20 {
                let bytes = pattern(3000, cid);
                let shared_buffer = pair.host.shared_buffer(&bytes);
                let slice = ringfab_fabric::rdma::Slice { shared_buffer, offset: 0, length: 3000 };
                let _ = pair.host.tcp.submit(
                    connection,
                    {
                        let mut sqe = ringfab_spec::SubmissionEntry::new(1, cid, 1);
                        sqe.mptr.set(3000);
                        sqe
                    },
                    ringfab_fabric::tcp::SubmitData::Capsule(slice),
                );
            }
            let finished = pair.until("an end, or all answers", |pair| {
                let answers =
                    pair.host.events.iter().filter(|event| matches!(event, TcpEvent::Response { .. }));
                let all = answers.count() == 19;
                let end = pair.host.events.iter().any(|event| matches!(event, TcpEvent::Disconnected { .. }));
                (all || end).then_some(all)
            });
            ended += u32::from(!finished);
            if finished {
                pair.host.tcp.abort(&mut pair.host.reactor, connection);
            }
        }
        for (cid, bytes) in &pair.written {
            assert!(*bytes == pattern(3000, *cid), "seed {seed}: wrong bytes");
        }
        pair.drained();
    }
    assert!(failed > 2 && ended > 2, "{failed} handshakes and {ended} connections broke");
}
