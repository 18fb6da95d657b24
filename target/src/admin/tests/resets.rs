//! Cross-Controller Reset, and the instances that it is about.

use ringfab_spec::log::ControllerInstance;

use super::*;
use crate::target::{Instances, tests::STRANGER};

const CROSS_CONTROLLER_RESET: u8 = 0x1e;

fn reset(impacted: ControllerInstance) -> SubmissionEntry {
    SubmissionEntry::cross_controller_reset(5, impacted)
}

/// The log page, and which entries of it say that their reset is over.
fn entries(controller: &Admin, remove_completed: bool) -> Vec<(u16, u8)> {
    let read = log(CROSS_CONTROLLER_RESET, 64).with_lsp(u8::from(remove_completed));
    let page = bytes(controller, &read);
    let count = usize::from(u16_at(&page, 0));
    page[8..].chunks(8).take(count).map(|entry| (u16_at(entry, 0), entry[6])).collect()
}

/// The host does without a controller, whose queues have ended.
fn forget(target: &Target, gone: &Admin) {
    gone.controller.end();
    for queue in gone.controller.queues() {
        gone.controller.queue_left(&queue);
        gone.controller.subsystem().queue_ended(&queue);
    }
    target.admin_ended(&gone.controller);
}

#[test]
fn another_instance_begins_with_each_readiness_and_a_discovery_controller_says_none() {
    let (_target, controller) = disk();
    let before = controller.instance();
    for value in [0, 0x0046_0001] {
        controller.property_set(0x14, Some(PropertySize::Four), value, at(1)).unwrap();
        controller.state().registers.disabled_done();
    }
    let now = controller.instance();
    assert_eq!(now.cntlid, before.cntlid);
    assert!(now.ciu != before.ciu && now.cirn != before.cirn && now.ciu != 0);
    let discovery = enabled(&target(), DISCOVERY_NQN);
    let page = bytes(&discovery, &identify(0x01, 0));
    assert_eq!((page[135], u64_at(&page, 136), page[1807]), (0, 0, 0));
    assert_eq!(refusal(&discovery, &reset(before)).0, Status::INVALID_OPCODE);
}

#[test]
fn a_controller_is_reset_for_its_own_host_and_the_log_says_how_far_that_is() {
    let (target, asker) = disk();
    let impacted = enabled(&target, DISK);
    let queue = Connect::queue(1, impacted.id(), DISK, FRIEND).send(&target).unwrap().queue;
    let instance = impacted.instance();
    assert_eq!(run(&asker, &reset(instance)), Ok(AdminOutcome::Reset(instance)));
    assert_eq!(entries(&asker, false), [], "its command waits");
    assert_eq!(run(&asker, &reset(instance)).unwrap_err().status, Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
    asker.state().resets.forget_command(5);
    assert_eq!(entries(&asker, true), [(impacted.id(), 0)], "in progress");

    impacted.controller.queue_left(&queue);
    forget(&target, &impacted);
    let look = |now| Instances(&target).look_at_resets(&asker.controller, now);
    assert_eq!(look(at(1)).completed, [], "a disk may still work for the queue");
    impacted.subsystem().queue_ended(&queue);
    assert_eq!(look(at(1)).completed, [instance]);
    assert_eq!(entries(&asker, true), [(impacted.id(), 1)], "success");
    assert_eq!(entries(&asker, true), [], "it was read, and has left");
}

#[test]
fn an_ended_controller_takes_no_queue() {
    let target = target();
    let ended = enabled(&target, DISK);
    ended.controller.end();
    let refused = Connect::queue(1, ended.id(), DISK, FRIEND).send(&target).expect_err("refused");
    assert_eq!((refused.status.code(), refused.dw0), (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | 16));
}

#[test]
fn an_instance_that_is_gone_or_was_never_there_is_over() {
    let (target, asker) = disk();
    let gone = enabled(&target, DISK);
    let instance = gone.instance();
    forget(&target, &gone);
    let never = ControllerInstance { cirn: !instance.cirn, ..instance };
    for instance in [instance, never] {
        assert_eq!(run(&asker, &reset(instance)), Ok(AdminOutcome::Reset(instance)));
        let news = Instances(&target).look_at_resets(&asker.controller, at(0));
        assert!(news.answers.len() == 1 && news.answers[0].is_over, "{news:?}");
    }
}

#[test]
fn what_is_not_the_hosts_own_is_not_reset() {
    const ICID: Option<u16> = Some(40);
    const CIU: Option<u16> = Some(42);
    let (target, asker) = disk();
    let stranger = Connect::admin(DISK, STRANGER).send(&target).unwrap().controller;
    tests::enable(&stranger);
    let private = enabled(&target, PRIVATE);
    let other_id = {
        let mut connect = Connect::admin(DISK, FRIEND);
        connect.data.hostid = [8; 16];
        connect.send(&target).unwrap().controller
    };
    tests::enable(&other_id);
    for impacted in [asker.instance(), stranger.instance(), private.instance(), other_id.instance()] {
        assert_eq!(refusal(&asker, &reset(impacted)), (Status::INVALID_FIELD, ICID), "{impacted:?}");
    }
    let stranger = stranger.instance();
    let without = ControllerInstance { ciu: 0, ..stranger };
    assert_eq!(refusal(&asker, &reset(without)), (Status::INVALID_FIELD, CIU));
    let reserved = ControllerInstance { cntlid: 0xfff0, ..stranger };
    assert_eq!(refusal(&asker, &reset(reserved)), (Status::INVALID_FIELD, ICID));
}
