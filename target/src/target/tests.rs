//! Connect, from a host's side: what is refused, with which place, and what is not.

mod access;
mod pools;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use ringfab_block::{Discarded, DiskProperties, PreferredSizes};
use ringfab_reactor::Time;
use ringfab_spec::sqe::{ConnectCommand, ConnectData, PropertySize};
use ringfab_spec::{IntoBytes, Nqn, Status, SubmissionEntry, zerocopy};

use super::*;
use crate::controller::{Candidate, IoAccess, PropertyEffect};
use crate::failure::Failure;
use crate::model::Way;
use ringfab_spec::nqn::DISCOVERY_NQN;

pub(crate) const DISK: &str = "nqn.2024-01.org.example:disk";
pub(crate) const PRIVATE: &str = "nqn.2024-01.org.example:private";
pub(crate) const FRIEND: &str = "nqn.2024-01.org.example:friend";
pub(crate) const STRANGER: &str = "nqn.2024-01.org.example:stranger";

const CONFIG: &str = r#"
[[listener]]
address = "0.0.0.0"
queue_depth_max = 128
io_queues_max = 4

[[subsystem]]
nqn = "nqn.2024-01.org.example:disk"
serial = "S1"
allow_any_host = true
[[subsystem.namespace]]
null = "1GiB"
[[subsystem.namespace]]
nsid = 7
memory = "1MiB"
block_bytes = 4096
read_only = true

[[subsystem]]
nqn = "nqn.2024-01.org.example:private"
allowed_hosts = ["nqn.2024-01.org.example:friend"]
[[subsystem.namespace]]
path = "/nonexistent/disk.img"
"#;

/// A second on the clock of these tests.
pub(crate) fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A target whose null and memory namespaces are ready, as cores report them.
pub(crate) fn target() -> Arc<Target> {
    let config = Config::parse(CONFIG, "test.toml").unwrap();
    let target = Target::new(&config, &Identity::from_seed([7; 32])).unwrap();
    let pages = PreferredSizes { write: 4096, discard: 4096, optimal_write: 0 };
    for namespace in target.namespaces().iter().take(2) {
        let properties = DiskProperties::new(1 << 30).with_discarded(Discarded::Zeroes).with_preferred(pages);
        namespace.opened_disk().set_properties(properties.with_write_zeroes_deallocates(true));
    }
    target.namespaces()[0].set_ready(1 << 30, false);
    target.namespaces()[1].set_ready(1 << 20, false);
    target
}

/// A host's Connect, to be bent before it is sent.
pub(crate) struct Connect {
    pub(crate) command: ConnectCommand,
    pub(crate) data: ConnectData,
    pub(crate) transport_queue: u16,
}

impl Connect {
    pub(crate) fn admin(subsystem: &str, host: &str) -> Self {
        Self::queue(0, 0xffff, subsystem, host)
    }

    pub(crate) fn queue(queue: u16, controller: u16, subsystem: &str, host: &str) -> Self {
        let command = SubmissionEntry::connect(1, queue, 32, 5000, false);
        let (subsystem, host) = (Nqn::new(subsystem).unwrap(), Nqn::new(host).unwrap());
        Self {
            command: ConnectCommand::of(&command),
            data: ConnectData::new([9; 16], controller, subsystem, host),
            transport_queue: queue,
        }
    }

    pub(crate) fn send(self, target: &Arc<Target>) -> Result<Attached, Failure> {
        self.send_from("192.0.2.2", target, at(0))
    }

    /// Sends it from an address at a time.
    fn send_from(self, address: &str, target: &Arc<Target>, now: Time) -> Result<Attached, Failure> {
        let from = SocketAddr::new(address.parse().unwrap(), 40_000);
        self.send_between(from, "192.0.2.1:4420".parse().unwrap(), target, now)
    }

    /// Sends it to another listener.
    pub(crate) fn send_to(self, listener: SocketAddr, target: &Arc<Target>) -> Result<Attached, Failure> {
        self.send_between("192.0.2.2:40000".parse().unwrap(), listener, target, at(0))
    }

    fn send_between(
        self,
        peer: SocketAddr,
        listener: SocketAddr,
        target: &Arc<Target>,
        now: Time,
    ) -> Result<Attached, Failure> {
        let command: SubmissionEntry = zerocopy::transmute!(self.command);
        let served = target.served();
        let way = way(&served, listener);
        let request = ConnectRequest {
            tls: None,
            served: &served,
            command: &command,
            data: self.data.as_bytes(),
            queue_id: self.transport_queue,
            queue_entries: 128,
            core: 3,
            way: &way,
            peer,
        };
        target.connect(&request, now)
    }
}

/// The way by which a host comes at an address of ours.
pub(crate) fn way(served: &Served, local: SocketAddr) -> Way {
    let listener = served.listeners().iter().find(|one| one.covers(local)).or(served.listeners().first());
    Way { local, listener: Arc::clone(listener.expect("a listener")) }
}

#[test]
fn a_listener_on_all_addresses_is_a_way_for_each_of_them() {
    let target = target();
    let ways = ["192.0.2.1:4420", "198.51.100.1:4420"].map(|local| {
        let local = local.parse().unwrap();
        let way = Connect::admin(DISK, FRIEND).send_to(local, &target).unwrap().controller.way();
        assert_eq!(way.local, local);
        way
    });
    let served = target.served();
    assert!(ways.iter().all(|way| Arc::ptr_eq(&way.listener, &served.listeners()[0])));
}

/// Enables a controller as a Linux host does.
pub(crate) fn enable(controller: &Controller) {
    let effect = controller.property_set(0x14, Some(PropertySize::Four), 0x0046_0001, at(0));
    assert_eq!(effect, Ok(PropertyEffect::Enabled));
}

/// The admin queue of an enabled controller.
pub(crate) fn enabled(target: &Arc<Target>, subsystem: &str) -> Arc<Controller> {
    let controller = Connect::admin(subsystem, FRIEND).send(target).unwrap().controller;
    enable(&controller);
    controller
}

/// Dword 0 of a refusal for a wrong parameter.
fn parameter(result: Result<Attached, Failure>) -> u32 {
    let failure = result.expect_err("refused");
    assert_eq!(failure.status, Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    failure.dw0
}

/// A parameter in the Connect data.
const IN_DATA: u32 = 1 << 16;

#[test]
fn an_admin_queue_makes_a_controller_and_an_io_queue_joins_it() {
    let target = target();
    let controller = enabled(&target, DISK);
    let joined = Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).unwrap();
    assert!(Arc::ptr_eq(&joined.controller, &controller));
    assert_eq!((joined.queue.id(), joined.queue.entries(), joined.queue.core()), (1, 32, 3));
    assert!(joined.queue.flow_control());
    assert_eq!(controller.io_queues(), 1);
    assert_eq!(controller.state().queues.core_of(1), Some(3));
}

#[test]
fn each_wrong_parameter_is_refused_with_its_place() {
    let target = target();
    let bend = |bend: fn(&mut Connect)| {
        let mut connect = Connect::admin(DISK, FRIEND);
        bend(&mut connect);
        connect.send(&target)
    };
    assert_eq!(parameter(bend(|c| c.command.sqsize_z.set(0))), 44);
    assert_eq!(parameter(bend(|c| c.command.sqsize_z.set(128))), 44);
    assert!(bend(|c| c.command.sqsize_z.set(127)).is_ok());
    assert_eq!(parameter(bend(|c| c.transport_queue = 1)), 42);
    assert_eq!(parameter(bend(|c| c.command.cattr = 0x10)), 46);
    assert_eq!(parameter(bend(|c| c.data.cntlid.set(5))), 16 | IN_DATA);
    assert_eq!(parameter(bend(|c| c.data.cntlid.set(0xfffe))), 16 | IN_DATA);
    assert_eq!(parameter(bend(|c| c.data.subnqn = Default::default())), 256 | IN_DATA);
    let unknown = Connect::admin("nqn.2024-01.org.example:other", FRIEND).send(&target);
    assert_eq!(parameter(unknown), 256 | IN_DATA);
    let format = bend(|c| c.command.recfmt.set(1)).unwrap_err();
    assert_eq!(format.status, Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
}

#[test]
fn a_host_needs_a_name_wherever_it_connects_and_any_that_hosts_in_use_have_is_one() {
    let target = target();
    let named = |subsystem, name: &str| {
        let connect = Connect::admin(subsystem, FRIEND);
        let mut data = connect.data.as_bytes().to_vec();
        data[512..768].fill(0);
        data[512..512 + name.len()].copy_from_slice(name.as_bytes());
        let data = zerocopy::FromBytes::read_from_bytes(&data).unwrap();
        Connect { data, ..connect }.send(&target)
    };
    for subsystem in [DISK, PRIVATE, DISCOVERY_NQN] {
        for none in [
            "",
            "testhost",
            "iqn.2014-08.org.example:a",
            "iqn.x",
            "nqn.2014-08.",
            "nqn.2014-08.org.example:\u{202e}a",
            "\u{feff}nqn.2014-08.org.example:a",
            "nqn.2014-08.org.example:a\u{2066}",
            "nqn.2014-08.org.example:a\u{200b}",
        ] {
            assert_eq!(parameter(named(subsystem, none)), 512 | IN_DATA, "{none:?} at {subsystem}");
        }
    }
    for name in [
        "nqn.2014-08.org.nvmexpress:uuid:4C4C4544-0051-5A10-8056-B9C04F4D3832",
        "nqn.2014-08.localdomain:nvme:ESX1",
        "nqn.2014-08.org.example:Größe of a host",
    ] {
        assert!(named(DISK, name).is_ok(), "{name}");
    }
}

#[test]
fn names_without_an_end_and_with_control_characters_are_refused() {
    let target = target();
    for (offset, place) in [(256, 256 | IN_DATA), (512, 512 | IN_DATA)] {
        for bytes in [&[b'a'; 256][..], b"nqn.2024-01.org.e:\x1b\0", b"\xff\xfe\0"] {
            let connect = Connect::admin(DISK, FRIEND);
            let mut data = connect.data.as_bytes().to_vec();
            data[offset..offset + 256].fill(0);
            data[offset..offset + bytes.len()].copy_from_slice(bytes);
            let data = zerocopy::FromBytes::read_from_bytes(&data).unwrap();
            assert_eq!(parameter(Connect { data, ..connect }.send(&target)), place);
        }
    }
}

#[test]
fn a_host_that_is_not_allowed_is_an_invalid_host() {
    let target = target();
    let failure = Connect::admin(PRIVATE, STRANGER).send(&target).unwrap_err();
    assert_eq!(failure.status, Status::CONNECT_INVALID_HOST.with_dnr());
    assert!(Connect::admin(PRIVATE, FRIEND).send(&target).is_ok());
    assert!(Connect::admin(DISCOVERY_NQN, STRANGER).send(&target).is_ok());
}

#[test]
fn an_io_queue_has_to_name_the_controller_of_its_own_host() {
    let target = target();
    let controller = enabled(&target, DISK);
    let id = controller.id();
    assert_eq!(parameter(Connect::queue(1, id + 1, DISK, FRIEND).send(&target)), 16 | IN_DATA);
    assert_eq!(parameter(Connect::queue(1, 0xffff, DISK, FRIEND).send(&target)), 16 | IN_DATA);
    assert_eq!(parameter(Connect::queue(1, id, PRIVATE, FRIEND).send(&target)), 16 | IN_DATA);
    assert_eq!(parameter(Connect::queue(1, id, DISK, STRANGER).send(&target)), 512 | IN_DATA);
    let mut other_id = Connect::queue(1, id, DISK, FRIEND);
    other_id.data.hostid[15] ^= 1;
    assert_eq!(parameter(other_id.send(&target)), IN_DATA);
}

#[test]
fn io_queues_need_a_ready_controller_a_granted_number_and_a_free_one() {
    let target = target();
    let controller = Connect::admin(DISK, FRIEND).send(&target).unwrap().controller;
    let connect = |queue| Connect::queue(queue, controller.id(), DISK, FRIEND).send(&target);
    assert_eq!(connect(1).unwrap_err().status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    enable(&controller);
    assert!(connect(1).is_ok());
    assert_eq!(connect(1).unwrap_err().status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    assert!(connect(4).is_ok());
    assert_eq!(parameter(connect(5)), 42);
    controller.queue_left(&controller.queues()[1]);
    assert!(connect(1).is_ok());
}

#[test]
fn queues_that_authenticate_have_a_place_for_each_identifier_where_their_host_is() {
    let target = target();
    let controller = enabled(&target, DISK);
    let (own, elsewhere) = (controller.address(), "198.51.100.9".parse().unwrap());
    assert!(Candidate::new(&controller, 1, own).is_none(), "the host has proved nothing");
    controller.state().authenticated = Some(generated::tests::authenticated(FRIEND, DISK));
    let first = Candidate::new(&controller, 1, own).expect("a place");
    assert!(Candidate::new(&controller, 1, own).is_none(), "one is enough");
    assert!(Candidate::new(&controller, 2, own).is_some());
    assert!(Candidate::new(&controller, 3, elsewhere).is_none());
    // It is no queue: who comes for the same identifier is taken.
    assert_eq!(controller.io_queues(), 0);
    assert!(Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).is_ok());
    drop(first);
    assert!(Candidate::new(&controller, 1, own).is_some());
}

#[test]
fn a_discovery_controller_takes_no_io_queue() {
    let target = target();
    let controller = enabled(&target, DISCOVERY_NQN);
    assert!(controller.is_discovery());
    assert_eq!(parameter(Connect::queue(1, controller.id(), DISCOVERY_NQN, FRIEND).send(&target)), 42);
}

#[test]
fn a_controller_goes_with_its_admin_queue_and_its_identifier_comes_again_last() {
    let target = target();
    let first = enabled(&target, DISK);
    target.admin_ended(&first);
    assert_eq!(first.io_access(), IoAccess::Ended);
    assert!(target.controllers().is_empty());
    assert_eq!(parameter(Connect::queue(1, first.id(), DISK, FRIEND).send(&target)), 16 | IN_DATA);
    assert_ne!(enabled(&target, DISK).id(), first.id());
}

#[test]
fn any_bytes_in_a_connect_are_refused_or_taken_without_a_panic() {
    let target = target();
    for bit in 0..1024 * 8 {
        let connect = Connect::admin(DISK, FRIEND);
        let mut data = connect.data.as_bytes().to_vec();
        data[bit / 8] ^= 1 << (bit % 8);
        let data = zerocopy::FromBytes::read_from_bytes(&data).unwrap();
        if let Ok(attached) = (Connect { data, ..connect }).send(&target) {
            target.admin_ended(&attached.controller);
        }
    }
    assert!(target.controllers().is_empty());
}

#[test]
fn a_reset_ends_io_and_a_silent_host_expires_unless_it_has_traffic() {
    let target = target();
    let controller = enabled(&target, DISK);
    let queue = Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).unwrap().queue;
    // Connect asked for 5 s; one second of grace is added.
    assert_eq!(controller.state().keep_alive.deadline(), Some(at(6)));
    queue.note_traffic();
    assert!(!controller.expired(at(6)), "traffic renews");
    assert_eq!(controller.state().keep_alive.deadline(), Some(at(12)));
    assert!(!controller.expired(at(11)));
    assert!(controller.expired(at(12)));
    assert_eq!(controller.io_access(), IoAccess::Allowed);
    controller.end();
    assert_eq!(controller.io_access(), IoAccess::Ended);
}

#[test]
fn counters_stay_with_the_subsystem_after_their_queue_has_ended() {
    let target = target();
    let controller = enabled(&target, DISK);
    let queue = Connect::queue(1, controller.id(), DISK, FRIEND).send(&target).unwrap().queue;
    queue.io().note_read(4096);
    queue.io().note_write(512);
    let before = controller.subsystem().counters();
    assert_eq!((before.commands_read, before.bytes_read, before.bytes_written), (1, 4096, 512));
    controller.queue_left(&queue);
    controller.subsystem().queue_ended(&queue);
    assert_eq!(controller.subsystem().counters(), before);
}
