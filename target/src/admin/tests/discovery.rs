//! Discovery: what a host finds, and where.

use super::*;
use crate::config::{Config, SubsystemConfig};
use crate::identity::Identity;

const OWN: &str = "nqn.2024-01.org.example:discovery";

/// Three listeners of which one is for discovery only, a subsystem, a name of its own and two referrals.
const WHOLE: &str = r#"
[discovery]
nqn = "nqn.2024-01.org.example:discovery"
[[discovery.referral]]
address = "192.0.2.77"
[[discovery.referral]]
transport = "rdma"
address = "2001:db8::7"
port = 4420
nqn = "nqn.2024-01.org.example:elsewhere"
[[listener]]
address = "192.0.2.1"
transport = "tcp"
queue_depth_max = 64
[[listener]]
address = "192.0.2.1"
transport = "tcp"
port = 8009
discovery_only = true
[[listener]]
address = "2001:db8::1"
[[subsystem]]
nqn = "nqn.2024-01.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
null = "1GiB"
"#;

fn whole() -> Arc<Target> {
    Target::new(&Config::parse(WHOLE, "whole").unwrap(), &Identity::from_seed([7; 32])).unwrap()
}

/// Transport, address family, kind of subsystem, requirements, number of the listener, flags, port, address and name.
fn described(entry: &[u8]) -> ([u8; 4], u16, u16, String) {
    let text = |from: usize, to: usize| {
        let text = String::from_utf8_lossy(&entry[from..to]).into_owned();
        text.trim_end_matches([' ', '\0']).to_owned()
    };
    let place = format!("{} {} {}", text(512, 768), text(32, 64), text(256, 512));
    (entry[..4].try_into().unwrap(), u16_at(entry, 4), u16_at(entry, 10), place)
}

#[test]
fn entries_say_which_listener_has_which_transport_and_what_is_found_there() {
    let target = whole();
    let controller = enabled(&target, DISCOVERY_NQN);
    let page = bytes(&controller, &log(0x70, 8192));
    let entries = (1..=u64_at(&page, 8) as usize).map(|number| described(&page[number * 1024..][..1024]));
    let expected = [
        // Explicit persistent connections, and the same everywhere.
        ([3, 1, 3, 4], 1, 3, format!("192.0.2.1 4420 {OWN}")),
        ([3, 1, 3, 4], 2, 3, format!("192.0.2.1 8009 {OWN}")),
        ([1, 2, 3, 2], 3, 3, format!("2001:db8::1 4420 {OWN}")),
        ([3, 1, 2, 4], 1, 0, format!("192.0.2.1 4420 {DISK}")),
        ([1, 2, 2, 2], 3, 0, format!("2001:db8::1 4420 {DISK}")),
        ([3, 1, 1, 0], 0, 0, format!("192.0.2.77 8009 {DISCOVERY_NQN}")),
        ([1, 2, 1, 0], 0, 0, "2001:db8::7 4420 nqn.2024-01.org.example:elsewhere".to_owned()),
    ];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
    assert_eq!(u16_at(&page[1024..], 8), 64, "ASQSZ: the listener's depth");
    assert_eq!(u16_at(&page[6 * 1024..], 8), 32, "ASQSZ: what every controller allows");
}

#[test]
fn entries_say_what_serves_a_listener_for_rdma() {
    use ringfab_fabric::rdma::LinkProtocol;
    for (protocol, prtype) in [
        (None, 1),
        (Some(LinkProtocol::InfiniBand), 2),
        (Some(LinkProtocol::RoceV1), 3),
        (Some(LinkProtocol::RoceV2), 4),
        (Some(LinkProtocol::Iwarp), 5),
    ] {
        let target = whole();
        if let Some(protocol) = protocol {
            target.served().listeners()[2].set_link_protocol(protocol);
        }
        let page = bytes(&enabled(&target, DISCOVERY_NQN), &log(0x70, 8192));
        // Queue pairs are reliable connected ones, made with RDMA CM. Of a referral nothing is known.
        let tsas = |number: usize| &page[number * 1024 + 768..][..3];
        assert_eq!((tsas(3), tsas(5), tsas(7)), (&[1, prtype, 1][..], &[1, prtype, 1][..], &[1, 1, 1][..]));
    }
}

#[test]
fn the_discovery_subsystem_is_reached_by_its_own_name_and_by_the_one_that_all_have() {
    let target = whole();
    for nqn in [DISCOVERY_NQN, OWN] {
        let controller = enabled(&target, nqn);
        assert!(controller.is_discovery());
        let page = bytes(&controller, &identify(0x01, 0));
        assert_eq!(&page[768..768 + OWN.len() + 1], format!("{OWN}\0").as_bytes(), "SUBNQN");
    }
    let failure = Connect::admin(OWN, FRIEND).send(&tests::target()).unwrap_err();
    assert_eq!((failure.status.code(), failure.dw0), (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | 256));
}

#[test]
fn a_listener_for_discovery_only_has_no_other_controllers() {
    let target = whole();
    let port = "192.0.2.1:8009".parse().unwrap();
    let failure = Connect::admin(DISK, FRIEND).send_to(port, &target).unwrap_err();
    assert_eq!((failure.status.code(), failure.dw0), (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | 256));
    assert!(Connect::admin(DISCOVERY_NQN, FRIEND).send_to(port, &target).is_ok());
}

#[test]
fn a_referral_that_comes_or_goes_is_told_to_hosts_that_stay_connected() {
    let target = whole();
    let controller = enabled(&target, DISCOVERY_NQN);
    dw0(&controller, &SubmissionEntry::set_features(1, 0x0b, false, 1 << 31));
    run(&controller, &SubmissionEntry::async_event_request(5)).unwrap();
    let mut draft = target.served().draft();
    draft.remove_referral(&target.served().referrals()[0].clone());
    let (served, difference) = target.publish(draft.check().unwrap()).unwrap();
    assert!(difference.discovery && !difference.is_empty());
    target.tell_hosts(&difference);
    assert_eq!(controller.events().next(), Some((5, 0x0070_f002)));
    let controller = Admin { served, ..controller };
    let page = bytes(&controller, &log(0x70, 1024));
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8)), (2, 6));
}

#[test]
fn discovery_shows_what_the_host_may_see_at_the_address_it_came_to() {
    let target = target();
    let controller = enabled(&target, DISCOVERY_NQN);
    let page = bytes(&controller, &log(0x70, 4096));
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8), u16_at(&page, 16)), (1, 3, 0), "GENCTR, NUMREC, RECFMT");
    let own = &page[1024..2048];
    assert_eq!(own[..4], [1, 1, 3, 2], "RDMA, IPv4, the current discovery subsystem, no secure channel");
    assert_eq!((u16_at(own, 4), u16_at(own, 6), u16_at(own, 8), u16_at(own, 10)), (1, 0xffff, 128, 2));
    assert_eq!(&own[256..256 + DISCOVERY_NQN.len() + 1], format!("{DISCOVERY_NQN}\0").as_bytes());
    let entry = &page[2048..3072];
    assert_eq!(entry[..4], [1, 1, 2, 2], "RDMA, IPv4, NVM subsystem, no secure channel");
    assert_eq!((u16_at(entry, 4), u16_at(entry, 6), u16_at(entry, 8)), (1, 0xffff, 128));
    assert_eq!(u16_at(entry, 10), 0, "EFLAGS");
    assert_eq!(&entry[32..37], b"4420 ");
    assert_eq!(&entry[256..256 + DISK.len() + 1], format!("{DISK}\0").as_bytes());
    assert_eq!(&entry[512..522], b"192.0.2.1 ");
    assert_eq!(
        entry[768..771],
        [1, 1, 1],
        "connected, what serves it is not known before it is bound, RDMA CM"
    );
    assert_eq!(&page[3072 + 256..3072 + 256 + PRIVATE.len()], PRIVATE.as_bytes());
}

#[test]
fn discovery_hides_what_the_host_may_not_see_and_counts_changes() {
    let target = target();
    let stranger = Connect::admin(DISCOVERY_NQN, "nqn.2024-01.org.example:stranger").send(&target).unwrap();
    let stranger =
        Admin { served: target.served(), target: Arc::clone(&target), controller: stranger.controller };
    tests::enable(&stranger);
    assert_eq!(u64_at(&bytes(&stranger, &log(0x70, 1024)), 8), 2);
    dw0(&stranger, &SubmissionEntry::set_features(1, 0x0b, false, 1 << 31));
    run(&stranger, &SubmissionEntry::async_event_request(5)).unwrap();
    let change = |edit: &dyn Fn(&mut Draft)| {
        let mut draft = target.served().draft();
        edit(&mut draft);
        let (_, difference) = target.publish(draft.check().unwrap()).unwrap();
        target.tell_hosts(&difference);
    };
    change(&|draft| drop(draft.remove_namespace(DISK, 7).unwrap()));
    assert_eq!(stranger.controller.events().next(), None, "discovery shows no namespaces");
    change(&|draft| draft.set_access(PRIVATE, Access::AnyHost).unwrap());
    assert_eq!(stranger.controller.events().next(), Some((5, 0x0070_f002)));
    let stranger = Admin { served: target.served(), ..stranger };
    let page = bytes(&stranger, &log(0x70, 4096));
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8)), (2, 3));
    assert_eq!(&page[3072 + 256..3072 + 256 + PRIVATE.len()], PRIVATE.as_bytes());
}

#[test]
fn a_large_page_of_discovery_is_for_a_worker_and_shows_what_was_served_when_it_was_asked_for() {
    let target = target();
    let edit = |edit: &dyn Fn(&mut Draft)| {
        let mut draft = target.served().draft();
        edit(&mut draft);
        target.publish(draft.check().unwrap()).unwrap();
    };
    let identity = Identity::from_seed([7; 32]);
    let text = "[[listener]]\naddress = \"0.0.0.0\"\n[[subsystem]]\nnqn = \"nqn.2024-01.org.example:more\"\n\
                allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n";
    let config = Config::parse(text, "more").unwrap().subsystems.remove(0);
    edit(&|draft| {
        for number in 0..31 {
            let one = SubsystemConfig { nqn: format!("{}{number}", config.nqn), ..config.clone() };
            target.add_subsystem(draft, &one, &identity).unwrap();
        }
    });
    let controller = enabled(&target, DISCOVERY_NQN);
    let Ok(AdminOutcome::Slow(work)) = run(&controller, &log(0x70, 3072)) else { panic!("34 entries") };
    edit(&|draft| draft.remove_subsystem(DISK).unwrap());
    let page = work.run().unwrap();
    assert_eq!((page.len(), u64_at(&page, 8)), (3072, 34));
    assert_eq!(&page[2048 + 256..2048 + 256 + DISK.len()], DISK.as_bytes());
    let controller = enabled(&target, DISCOVERY_NQN);
    assert_eq!(u64_at(&bytes(&controller, &log(0x70, 1024)), 8), 33, "so many are made at once");
}

#[test]
fn a_discovery_controller_has_only_what_discovery_needs() {
    let target = target();
    let controller = enabled(&target, DISCOVERY_NQN);
    let page = bytes(&controller, &identify(0x01, 0));
    assert_eq!(page[111], 2, "CNTRLTYPE");
    assert_eq!(u32_at(&page, 92), 1 << 31, "OAES");
    assert_eq!((u32_at(&page, 516), u16_at(&page, 520)), (0, 0), "NN, ONCS");
    assert_eq!(refusal(&controller, &identify(0x02, 0)), (Status::INVALID_FIELD, Some(40)));
    assert_eq!(refusal(&controller, &SubmissionEntry::abort(1, 0, 1)).0, Status::INVALID_OPCODE);
    assert_eq!(refusal(&controller, &log(0x02, 512)), (Status::INVALID_LOG_PAGE, Some(40)));
    let queues = SubmissionEntry::set_features(1, 0x07, false, 0);
    assert_eq!(refusal(&controller, &queues), (Status::INVALID_FIELD, Some(40)));
    assert_eq!(refusal(&enabled(&target, DISK), &log(0x70, 1024)).0, Status::INVALID_LOG_PAGE);
}

#[test]
fn entries_say_where_tls_is_required_and_where_a_host_with_a_key_may_have_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(file.path(), "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:").unwrap();
    let listeners: String = [("off", 1), ("allowed", 2), ("required", 3)]
        .map(|(tls, port)| {
            format!(
                "[[listener]]\naddress = \"192.0.2.1\"\nport = {port}\ntransport = \"tcp\"\ntls = {tls:?}\n"
            )
        })
        .concat();
    let text = |demand: &str| {
        format!(
            "{listeners}[[subsystem]]\nnqn = {DISK:?}\nallow_any_host = true\n{demand}\n\
             [[subsystem.namespace]]\nnull = \"1GiB\"\n[[host]]\nnqn = {FRIEND:?}\ntls_key = \"file:{}\"\n",
            file.path().display()
        )
    };
    // Kind of subsystem, requirements, security type, and port of each entry.
    let entries = |demand: &str, host: &str| {
        let target =
            Target::new(&Config::parse(&text(demand), "tls").unwrap(), &Identity::from_seed([7; 32]));
        let target = target.unwrap();
        let connect = tests::Connect::admin(DISCOVERY_NQN, host);
        let controller = connect.send_to("192.0.2.1:1".parse().unwrap(), &target).unwrap().controller;
        tests::enable(&controller);
        let page = bytes(&Admin { served: target.served(), target, controller }, &log(0x70, 8192));
        let all = (1..=u64_at(&page, 8) as usize).map(|number| page[number * 1024..][..1024].to_vec());
        all.map(|entry| (entry[2], entry[3], entry[768], entry[32])).collect::<Vec<_>>()
    };
    let own = [(3, 4, 0, b'1'), (3, 6, 2, b'2'), (3, 5, 2, b'3')];
    let disk = [(2, 4, 0, b'1'), (2, 6, 2, b'2'), (2, 5, 2, b'3')];
    assert_eq!(entries("", FRIEND), [own, disk].concat());
    // Without a key, a host has no TLS where it need not have it.
    let own_of_stranger = [own[0], (3, 4, 0, b'2'), own[2]];
    assert_eq!(entries("", tests::STRANGER), [own_of_stranger, [disk[0], (2, 4, 0, b'2'), disk[2]]].concat());
    // Without TLS, nobody reaches a subsystem that requires it.
    for (host, own) in [(FRIEND, own), (tests::STRANGER, own_of_stranger)] {
        let required = [(2, 5, 2, b'2'), (2, 5, 2, b'3')];
        assert_eq!(entries("tls = \"required\"", host), [&own[..], &required].concat());
    }
}
