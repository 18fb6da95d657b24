//! Who gets a controller when there is none left.

use super::*;
use crate::target::pools::CONTROLLERS_MAX;

const GREEDY: &str = "198.51.100.1";
const OTHER: &str = "203.0.113.1";

/// A target whose pool is full of controllers of one address. Each has an I/O queue if asked.
fn full(subsystem: &str, host: &str, queues: bool) -> (Arc<Target>, Vec<Arc<Controller>>) {
    let target = target();
    let attach = |_| {
        let attached = Connect::admin(subsystem, host).send_from(GREEDY, &target, at(0)).unwrap();
        if queues {
            enable(&attached.controller);
            let id = attached.controller.id();
            Connect::queue(1, id, subsystem, host).send_from(GREEDY, &target, at(0)).unwrap();
        }
        attached.controller
    };
    let controllers = (0..CONTROLLERS_MAX).map(attach).collect();
    (target, controllers)
}

fn admin(target: &Arc<Target>, host: &str, address: &str, now: Time) -> Result<Attached, Failure> {
    Connect::admin(DISK, host).send_from(address, target, now)
}

#[test]
fn a_host_elsewhere_gets_the_place_of_one_at_the_address_that_has_all() {
    let (target, controllers) = full(DISK, FRIEND, true);
    let attached = admin(&target, FRIEND, OTHER, at(0)).unwrap();
    let evicted = attached.evicted.expect("somebody made room");
    assert!(controllers.iter().any(|one| Arc::ptr_eq(one, &evicted)));
    assert_eq!(target.controllers().len(), CONTROLLERS_MAX as usize);
    // Its end comes later, and must not be that of another controller.
    target.admin_ended(&evicted);
    assert_eq!(target.controllers().len(), CONTROLLERS_MAX as usize);
}

#[test]
fn who_has_no_io_queue_gives_way_first() {
    let (target, controllers) = full(DISK, FRIEND, true);
    controllers[77].queue_left(&controllers[77].queues()[1]);
    let evicted = admin(&target, FRIEND, OTHER, at(0)).unwrap().evicted.expect("somebody made room");
    assert!(Arc::ptr_eq(&evicted, &controllers[77]));
}

#[test]
fn one_more_of_the_same_host_is_told_to_come_later_unless_one_has_been_idle() {
    let (target, controllers) = full(DISK, FRIEND, true);
    let failure = admin(&target, FRIEND, GREEDY, at(60)).unwrap_err();
    assert_eq!(failure.status, Status::CONNECT_CONTROLLER_BUSY);
    controllers[5].queue_left(&controllers[5].queues()[1]);
    assert_eq!(admin(&target, FRIEND, GREEDY, at(0)).unwrap_err().status, Status::CONNECT_CONTROLLER_BUSY);
    let evicted = admin(&target, FRIEND, GREEDY, at(60)).unwrap().evicted.expect("the idle one");
    assert!(Arc::ptr_eq(&evicted, &controllers[5]));
    target.admin_ended(&target.controllers()[0]);
    assert!(admin(&target, FRIEND, GREEDY, at(60)).unwrap().evicted.is_none());
}

#[test]
fn at_one_address_the_name_that_has_most_gives_way() {
    let (target, _) = full(DISK, FRIEND, true);
    let evicted = admin(&target, STRANGER, GREEDY, at(0)).unwrap().evicted.expect("one of the other name");
    assert_eq!(evicted.host().nqn, FRIEND);
}

#[test]
fn discovery_and_io_have_pools_of_their_own() {
    let (target, _) = full(DISCOVERY_NQN, STRANGER, false);
    assert!(admin(&target, FRIEND, GREEDY, at(0)).unwrap().evicted.is_none());
    let discovery = Connect::admin(DISCOVERY_NQN, FRIEND).send_from(OTHER, &target, at(0)).unwrap();
    assert!(discovery.evicted.expect("somebody made room").is_discovery());
}

#[test]
fn who_has_proved_who_it_is_gives_way_last_and_never_to_one_that_has_yet_to() {
    use crate::target::pools::{Controllers, NewController};
    let target = target();
    let mut pools = Controllers::default();
    for _ in 0..CONTROLLERS_MAX {
        pools.insert(Connect::admin(DISK, FRIEND).send_from(GREEDY, &target, at(0)).unwrap().controller);
        assert_eq!(pools.all().count(), target.controllers().len());
    }
    let shown = crate::target::generated::tests::authenticated(FRIEND, DISK);
    let prove = |controller: &Controller| {
        controller.state().authenticated = Some(shown.clone());
    };
    let all: Vec<Arc<Controller>> = pools.all().cloned().collect();
    all.iter().filter(|one| one.id() != all[500].id()).for_each(|one| prove(one));
    let newcomer = |address: &str, unproved| NewController {
        address: address.parse().unwrap(),
        nqn: FRIEND,
        discovery: false,
        unproved,
    };
    let evicted = pools.make_room(&newcomer(OTHER, true), at(60)).unwrap().expect("somebody made room");
    assert!(Arc::ptr_eq(&evicted, &all[500]));
    pools.insert(evicted);
    prove(&all[500]);
    for address in [OTHER, GREEDY] {
        let busy = pools.make_room(&newcomer(address, true), at(60)).unwrap_err();
        assert_eq!(busy.status, Status::CONNECT_CONTROLLER_BUSY);
    }
    assert!(pools.make_room(&newcomer(OTHER, false), at(60)).unwrap().is_some());
}
