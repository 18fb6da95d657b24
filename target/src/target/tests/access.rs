//! Access groups: states by ways, who is told, who can leave, and what follows the disks.

use super::*;
use crate::config::AccessGroup;
use crate::controller::Access;
use ringfab_spec::log::AnaState;

/// What a host asks for that wants to hear of access groups: bit 11 of the configuration.
const HEARS: u32 = 1 << 11;

fn connect(target: &Arc<Target>, address: &str, host: &str) -> Arc<Controller> {
    let attached = Connect::admin(DISK, host).send_to(address.parse().unwrap(), target).unwrap();
    attached.controller.events().configure(HEARS);
    assert!(attached.controller.events().park(7));
    attached.controller
}

fn change(target: &Target, edit: impl FnOnce(&mut crate::model::Draft)) {
    let old = target.served();
    let mut draft = old.draft();
    edit(&mut draft);
    let (next, difference) = target.publish(draft.check().unwrap()).unwrap();
    target.begin_access(&old, &next, &difference);
    target.tell_hosts(&difference);
}

fn state(target: &Target, controller: &Controller) -> AnaState {
    let served = target.served();
    Access(controller).state(served.find(DISK).unwrap(), 1)
}

fn set(target: &Target, group: AccessGroup) {
    change(target, |draft| {
        draft.set_access_groups(DISK, |groups| drop(groups.insert(1, group))).unwrap();
    });
}

const ONE: &str = "192.0.2.1:4420";
const OTHER: &str = "198.51.100.1:4420";

#[test]
fn a_state_is_that_of_a_way_and_its_change_is_told_to_who_has_asked() {
    let target = target();
    let [one, other] = [ONE, OTHER].map(|way| connect(&target, way, FRIEND));
    let served = target.served();
    for controller in [&one, &other] {
        assert_eq!(Access(controller).log(served.find(DISK).unwrap(), true).0, 0);
    }
    let ways = [(ONE.parse().unwrap(), AnaState::INACCESSIBLE)].into();
    set(&target, AccessGroup { ways, ..AccessGroup::default() });
    assert_eq!((state(&target, &one), state(&target, &other)), (AnaState::INACCESSIBLE, AnaState::OPTIMIZED));
    assert_eq!((one.events().next(), other.events().next()), (Some((7, 0x000c_0302)), None));
    let served = target.served();
    let served = served.find(DISK).unwrap();
    assert!(!Access(&one).has_read_log() && Access(&other).has_read_log());
    let (count, groups) = Access(&one).log(served, true);
    assert_eq!((count, groups[0].change_count, groups[0].nsids.as_slice()), (1, 1, &[1, 7][..]));
    assert!(
        Access(&one).has_read_log()
            && Access(&one).is_restricted(served)
            && !Access(&other).is_restricted(served)
    );
}

#[test]
fn a_group_follows_its_disks_when_none_of_them_is_there() {
    let target = target();
    let host = connect(&target, ONE, FRIEND);
    let on_lost_disk = crate::config::OnLostDisk::PersistentLoss;
    set(&target, AccessGroup { on_lost_disk, ..AccessGroup::default() });
    let _told = host.events().next();
    host.events().log_read(ringfab_spec::log::LogId::ANA);
    let namespaces = target.namespaces();
    let subsystem = Arc::clone(target.served().find(DISK).unwrap().subsystem());
    namespaces[0].set_not_ready("gone");
    target.namespace_changed(&subsystem, 1);
    assert_eq!(state(&target, &host), AnaState::OPTIMIZED, "the other disk works");
    namespaces[1].set_not_ready("gone");
    assert!(host.events().park(8));
    target.namespace_changed(&subsystem, 7);
    assert_eq!(state(&target, &host), AnaState::PERSISTENT_LOSS);
    assert_eq!(host.events().next(), Some((8, 0x000c_0302)));
    namespaces[1].set_ready(1 << 20, false);
    assert_eq!(state(&target, &host), AnaState::OPTIMIZED);
}

#[test]
fn only_a_host_that_hears_of_it_and_has_another_way_is_asked_to_leave() {
    let text = CONFIG.replace("0.0.0.0", "192.0.2.1");
    let text = text + "[[listener]]\naddress = \"198.51.100.1\"\n";
    let config = Config::parse(&text, "test.toml").unwrap();
    let target = Target::new(&config, &Identity::from_seed([7; 32])).unwrap();
    let [leaves, stays] = [ONE, OTHER].map(|way| connect(&target, way, FRIEND));
    let alone = connect(&target, ONE, STRANGER);
    let deaf = connect(&target, ONE, FRIEND);
    deaf.events().configure(0);
    target.namespaces()[0].set_ready(1 << 30, false);
    let served = target.served();
    for controller in [&leaves, &stays, &alone, &deaf] {
        Access(controller).log(served.find(DISK).unwrap(), true);
    }
    let old = target.served();
    let mut draft = old.draft();
    draft.close_ways(&[1].into());
    let (next, difference) = target.publish(draft.check().unwrap()).unwrap();
    let taken = target.begin_access(&old, &next, &difference);
    target.tell_hosts(&difference);
    let taken: Vec<u16> = taken.iter().map(|(controller, _)| controller.id()).collect();
    assert_eq!(taken, [leaves.id()]);
    let expected = [
        (&leaves, AnaState::INACCESSIBLE),
        (&stays, AnaState::OPTIMIZED),
        (&alone, AnaState::OPTIMIZED),
        (&deaf, AnaState::OPTIMIZED),
    ];
    for (controller, expected) in expected {
        assert_eq!(state(&target, controller), expected);
    }
    assert!(leaves.events().next().is_some() && stays.events().next().is_none());
}

#[test]
fn controllers_get_identifiers_of_the_range_and_none_that_is_another_subsystem_s() {
    let target = target();
    change(&target, |draft| draft.set_controller_ids(DISK, Some((1, 2))).unwrap());
    let served = target.served();
    let disk = served.find(DISK).unwrap();
    assert!(disk.gives(1) && disk.gives(2) && !disk.gives(3));
    let ids: Vec<u16> = (0..2).map(|_| connect(&target, ONE, FRIEND).id()).collect();
    assert_eq!(ids, [1, 2]);
    let full = Connect::admin(DISK, FRIEND).send(&target).unwrap_err();
    assert_eq!(full.status, Status::CONNECT_CONTROLLER_BUSY);
    let other = Connect::admin(PRIVATE, FRIEND).send(&target).unwrap().controller;
    assert_eq!(other.id(), 3);
}
