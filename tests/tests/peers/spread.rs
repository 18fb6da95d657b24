//! Which core serves which queue.

use std::collections::BTreeSet;

use ringfab_tests::TestTarget;

const TWO_CORES: &str = "cores = 2\nspin_us = 20";
const NULL: &str = "[[subsystem.namespace]]\nnull = \"64MiB\"\n";

/// The cores that serve I/O queues.
fn cores(target: &TestTarget) -> Vec<usize> {
    let controllers = target.target.controllers();
    let queues = controllers.iter().flat_map(|controller| controller.queues());
    queues.filter(|queue| queue.id() != 0).map(|queue| queue.core()).collect()
}

fn two_hosts_with_one_queue_each_use_two_cores(listener: &str) {
    let target = TestTarget::with(TWO_CORES, listener, NULL);
    let (_one, _other) = (target.attach(), target.attach());
    assert_eq!(cores(&target).len(), 2);
    assert_eq!(cores(&target).into_iter().collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn two_hosts_with_one_queue_each_use_two_cores_over_rdma() {
    two_hosts_with_one_queue_each_use_two_cores("");
}

#[test]
fn two_hosts_with_one_queue_each_use_two_cores_over_tcp() {
    two_hosts_with_one_queue_each_use_two_cores("transport = \"tcp\"");
}

#[test]
fn the_queues_of_one_host_are_spread_though_others_have_come_and_gone() {
    let target = TestTarget::with(TWO_CORES, "transport = \"tcp\"", NULL);
    let others: Vec<_> = (0..3).map(|_| target.attach()).collect();
    for other in others {
        other.detach().expect("detached");
    }
    let _host = target.attach_with("&queues=4");
    let mut cores = cores(&target);
    cores.sort_unstable();
    assert_eq!(cores, [0, 0, 1, 1]);
}
