//! A target that may have no more descriptors.

use std::time::{Duration, Instant};

use crate::attack::{Act, Attack, Going};
use crate::target::{Over, Process};

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
