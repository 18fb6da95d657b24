//! Latency of sampled commands, by namespace, host and queue.

use ringfab_initiator::blocking::Controller;
use ringfab_target::model::latency::{Latency, Phase};
use ringfab_target::model::{IoSum, Subsystem};
use ringfab_tests::{NQN, TestTarget, wait_until};

const COMMANDS: u64 = 640;

/// Data of a size that is fetched.
const BYTES: u64 = 256 << 10;

fn work(host: &Controller) {
    let mut data = vec![7; BYTES as usize];
    for _ in 0..COMMANDS / 2 {
        host.write_at(1, 0, &data, false).expect("a write");
        host.read_at(1, 0, &mut data).expect("a read");
    }
}

/// What a histogram's sum is of phases that follow each other.
fn check(latency: &Latency, samples: u64) {
    assert_eq!(latency.total.count(), samples);
    assert!(latency.phases.iter().all(|phase| phase.count() == samples));
    let phases: u64 = latency.phases.iter().map(|phase| phase.sum_ns).sum();
    assert!(latency.total.sum_ns >= phases, "{latency:?}");
    assert!(latency.phases[Phase::Receive as usize].sum_ns > 0, "the target waited for data of writes");
    assert!(latency.phases[Phase::Send as usize].sum_ns > 0, "sending takes time");
}

fn host_of(subsystem: &Subsystem) -> IoSum {
    let hosts = subsystem.hosts();
    assert_eq!(hosts.len(), 1, "{hosts:?}");
    assert!(hosts[0].nqn.as_deref().is_some_and(|nqn| nqn.starts_with("nqn.")));
    hosts[0].io.clone()
}

#[test]
fn one_command_in_so_many_is_in_the_histograms_of_its_namespace_host_and_queue() {
    for listener in ["transport = \"tcp\"", ""] {
        let target = TestTarget::with_listener(listener, "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
        let served = target.target.served();
        let (subsystem, namespace) = (served.find(NQN).expect("served").subsystem(), || {
            served.namespaces().next().expect("a namespace").1.io()
        });
        let host = target.attach_with("&queues=1");
        work(&host);
        // The last answer may be on its way to the counter still.
        let commands = || namespace().counters.commands_read + namespace().counters.commands_write;
        wait_until("every command is counted", || commands() == COMMANDS);
        let counters = namespace().counters;
        assert_eq!(
            (counters.bytes_read, counters.bytes_written),
            (COMMANDS / 2 * BYTES, COMMANDS / 2 * BYTES)
        );
        assert_eq!(counters.commands_failed, 0);
        let samples = || namespace().latency.map_or(0, |latency| latency.total.count());
        // Some commands are those of attaching, and the sample of the core is of all its queues.
        wait_until("one in 64 is sampled", || samples() >= COMMANDS / 64 - 1);
        let samples = samples();
        check(&namespace().latency.expect("samples"), samples);
        check(&host_of(subsystem).latency.expect("samples"), samples);
        let controllers = target.target.controllers();
        let queue = controllers[0].queues().into_iter().find(|queue| queue.id() == 1).expect("a queue");
        check(&queue.io().latency().expect("samples"), samples);
        let before = host_of(subsystem);
        drop(queue);
        host.detach().expect("detached");
        wait_until("its queues are gone", || subsystem.hosts().iter().all(|host| host.queues == 0));
        assert_eq!(host_of(subsystem).latency, before.latency, "what it did is remembered");
    }
}
