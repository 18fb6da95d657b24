//! A target that may have no more memory, or no more descriptors.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::attack::{Act, Attack, Going};
use crate::target::{Over, Process};

/// Limits what a target may have from now on.
fn limit(process: &Process, what: &str, value: u64) {
    let pid = process.service.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--{what}={value}:")]).status();
    assert!(limited.expect("prlimit runs").success());
}

#[test]
fn a_target_that_may_have_no_more_memory_refuses_and_serves_who_was_there_and_accepts_again_later() {
    let mut process = Process::start();
    let (there, _) = process.attach(Over::Tcp);
    let bytes = process.status("VmSize:") * 1024;
    limit(&process, "as", bytes + (96 << 20));
    for (over, act) in [(Over::Tcp, Act::Greeting), (Over::Tcp, Act::Queues), (Over::Rdma, Act::QueuePair)] {
        let count = if act == Act::Queues { 8 } else { 1500 };
        let going = Going::start(Attack::elsewhere("memory", over, act, count), process.address(over));
        there.read_at(1, 0, &mut [0; 4096]).expect("who was there goes on");
        drop(going);
    }
    let log = process.service.log();
    assert!(log.contains("127.0.0.2") && log.contains("memory"), "nobody was refused: {}", process.tail());
    let (again, took) = process.attach(Over::Tcp);
    assert!(took < Duration::from_secs(10), "{took:?}");
    again.read_at(1, 0, &mut [0; 4096]).expect("served");
    process.service.signal("TERM");
    assert!(process.service.wait(Duration::from_secs(20)).success(), "{}", process.tail());
}

#[test]
fn a_target_with_few_descriptors_lets_the_host_in_that_may_connect() {
    let process = Process::start_with_descriptors(512);
    for act in [Act::Silent, Act::Discovery, Act::Queues] {
        let count = if act == Act::Queues { 6 } else { 800 };
        let attack = Attack::elsewhere("descriptors", Over::Tcp, act, count);
        let _going = Going::start(attack, process.address(Over::Tcp));
        let begun = Instant::now();
        let (controller, _) = process.attach(Over::Tcp);
        controller.read_at(1, 0, &mut [0; 4096]).expect("served");
        assert!(begun.elapsed() < Duration::from_secs(3), "{act:?}: {:?}", begun.elapsed());
    }
}
