//! Namespaces that only some hosts of their subsystem see.

use super::*;
use crate::target::tests::STRANGER;

/// Two controllers of one subsystem: of a host that sees namespace 7, and of one that does not.
struct Two {
    target: Arc<Target>,
    friend: Admin,
    stranger: Admin,
}

fn two() -> Two {
    let target = target();
    show(&target, &Access::Hosts([FRIEND.to_owned()].into()));
    let friend = enabled(&target, DISK);
    let stranger = Connect::admin(DISK, STRANGER).send(&target).unwrap().controller;
    tests::enable(&stranger);
    let stranger = Admin { served: target.served(), target: Arc::clone(&target), controller: stranger };
    Two { target, friend, stranger }
}

/// Shows namespace 7 to other hosts, and tells those.
fn show(target: &Target, hosts: &Access) {
    let mut draft = target.served().draft();
    draft.show_namespace(DISK, 7, hosts).unwrap();
    let (_, difference) = target.publish(draft.check().unwrap()).unwrap();
    assert_eq!(difference.is_empty(), difference.shown.is_empty());
    target.tell_hosts(&difference);
}

impl Two {
    /// The same controllers with what is served now.
    fn now(self) -> Self {
        let served = || self.target.served();
        let friend = Admin { served: served(), ..self.friend };
        let stranger = Admin { served: served(), ..self.stranger };
        Self { target: self.target, friend, stranger }
    }
}

fn listed(controller: &Admin, cns: u8) -> Vec<u32> {
    let page = bytes(controller, &identify(cns, 0));
    page.chunks(4).map(|nsid| u32_at(nsid, 0)).take_while(|nsid| *nsid != 0).collect()
}

#[test]
fn a_hidden_namespace_is_in_no_list_and_is_inactive_to_every_identify() {
    let Two { friend, stranger, .. } = two();
    let command_set = |controller: &Admin, cns: u8| {
        let page = bytes(controller, &SubmissionEntry::identify(1, cns, 0, 0, 0));
        (u32_at(&page, 0), u32_at(&page, 4))
    };
    for cns in [0x02, 0x10] {
        assert_eq!((listed(&friend, cns), listed(&stranger, cns)), (vec![1, 7], vec![1]), "CNS {cns:#x}");
    }
    assert_eq!((command_set(&friend, 0x07), command_set(&stranger, 0x07)), ((1, 7), (1, 0)));
    for cns in [0x00, 0x08, 0x11] {
        assert!(bytes(&friend, &identify(cns, 7)).iter().any(|byte| *byte != 0), "CNS {cns:#x}");
        assert!(bytes(&stranger, &identify(cns, 7)).iter().all(|byte| *byte == 0), "CNS {cns:#x}");
    }
    for cns in [0x03, 0x12] {
        bytes(&friend, &identify(cns, 7));
        assert_eq!(refusal(&stranger, &identify(cns, 7)), (Status::INVALID_NAMESPACE, Some(4)));
    }
    let controllers = |nsid| {
        let page = bytes(&friend, &identify(0x12, nsid));
        u16_at(&page, 0)
    };
    assert_eq!((controllers(1), controllers(7)), (2, 1), "the controllers to which it is attached");
    let largest = |controller: &Admin| u32_at(&bytes(controller, &identify(0x01, 0)), 516);
    assert_eq!(largest(&friend), largest(&stranger), "NN says how many there could be");
}

#[test]
fn a_hidden_namespace_has_no_features() {
    let Two { friend, stranger, .. } = two();
    let mut set = SubmissionEntry::set_features(1, 0x05, false, 9);
    set.nsid.set(7);
    dw0(&friend, &set);
    assert_eq!(refusal(&stranger, &set), (Status::INVALID_NAMESPACE, Some(4)));
    set.nsid.set(u32::MAX);
    dw0(&stranger, &set);
    let mut get = SubmissionEntry::get_features(1, 0x05, 0, 0);
    get.nsid.set(7);
    assert_eq!(dw0(&friend, &get), 9);
    assert_eq!(refusal(&stranger, &get), (Status::INVALID_NAMESPACE, Some(4)));
}

#[test]
fn health_is_that_of_the_namespaces_that_the_host_sees() {
    let Two { target, friend, stranger } = two();
    let warning = |controller: &Admin| bytes(controller, &log(0x02, 512))[0];
    let hidden = Arc::clone(&target.namespaces()[1]);
    hidden.mark_lost(|| "it was pulled out".to_owned());
    hidden.count_media_error();
    assert_eq!((warning(&friend), warning(&stranger)), (1 << 2, 0), "reliability degraded");
    let errors = |controller: &Admin| u64_at(&bytes(controller, &log(0x02, 512)), 160);
    assert_eq!((errors(&friend), errors(&stranger)), (1, 0));
}

#[test]
fn only_hosts_that_see_a_namespace_are_told_of_it() {
    let two = two();
    for controller in [&two.friend, &two.stranger] {
        dw0(controller, &SubmissionEntry::set_features(1, 0x0b, false, 1 << 8));
        run(controller, &SubmissionEntry::async_event_request(5)).unwrap();
    }
    let changed = |controller: &Admin| listed_changes(controller);
    let disk = Arc::clone(two.target.served().subsystems()[0].subsystem());
    two.target.namespace_changed(&disk, 7);
    assert_eq!((changed(&two.friend), changed(&two.stranger)), (vec![7], vec![]));
    assert!(two.friend.events().next().is_none() && two.stranger.events().next().is_none());

    // To hosts that see it from now on it comes; to those that do not, it goes. Others are not told.
    show(&two.target, &Access::Hosts([FRIEND.to_owned(), STRANGER.to_owned()].into()));
    let two = two.now();
    assert_eq!((changed(&two.friend), changed(&two.stranger)), (vec![], vec![7]));
    assert_eq!(listed(&two.stranger, 0x02), [1, 7]);
    show(&two.target, &Access::Hosts([STRANGER.to_owned()].into()));
    let two = two.now();
    assert_eq!((changed(&two.friend), changed(&two.stranger)), (vec![7], vec![]));
    assert_eq!(listed(&two.friend, 0x02), [1]);

    let mut draft = two.target.served().draft();
    draft.remove_namespace(DISK, 7).unwrap();
    let (_, difference) = two.target.publish(draft.check().unwrap()).unwrap();
    two.target.tell_hosts(&difference);
    assert_eq!((changed(&two.friend), changed(&two.stranger)), (vec![], vec![7]), "it is removed");
}

/// What the log of changed namespaces has, which is read with it.
fn listed_changes(controller: &Admin) -> Vec<u32> {
    // Takes the event that came with it.
    let _event = controller.events().next();
    let page = bytes(controller, &log(0x04, 4096));
    page.chunks(4).map(|nsid| u32_at(nsid, 0)).take_while(|nsid| *nsid != 0).collect()
}
