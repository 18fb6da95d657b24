//! Both ends against each other.

use proptest::prelude::*;
use ringfab_proto::tcp::{C2hData, CommandData, Engine, Event, Source};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::support::{End, controller_config, digests, host_config, pair};

fn command(cid: u16) -> SubmissionEntry {
    SubmissionEntry::read(cid, 1, 0, 8)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

impl End {
    fn respond(&mut self, cqe: CompletionEntry) {
        self.give(|engine, wire| engine.respond(cqe, wire));
    }

    fn send_data(&mut self, data: C2hData<u32>) {
        self.give(|engine, wire| engine.send_data(data, wire));
    }
}

#[test]
fn a_write_is_fetched_with_one_r2t_in_pdus_of_maxh2cdata() {
    let (mut host, mut controller) = pair(host_config(), controller_config());
    host.memory.insert(1, bytes(20_000));
    let source = Source { handle: 1, offset: 1000, length: 10_000 };
    host.submit(command(3), CommandData::ToController(source)).expect("room");
    controller.input(&host.output()).expect("a command");
    assert!(matches!(controller.take_events()[..], [Event::Command { data_bytes: 0, .. }]));
    let tag = controller.engine.request(3, 0, 10_000).expect("a tag");
    controller.transfers.insert(tag, vec![0; 10_000]);
    host.input(&controller.output()).expect("an R2T");
    let data = host.output();
    assert_eq!(data.len(), 10_000 + 3 * 24, "three PDUs");
    controller.input(&data).expect("the data");
    assert_eq!(controller.take_events(), [Event::TransferEnd { tag, intact: true }]);
    assert_eq!(controller.transfers[&tag], bytes(20_000)[1000..11_000]);
    controller.respond(CompletionEntry::success(3, 1));
    host.input(&controller.output()).expect("the response");
    assert_eq!(controller.engine.transmitted(), 1);
    let cqe = CompletionEntry::success(3, 1);
    assert_eq!(host.take_events(), [Event::Response { cqe, intact: true, received: 0 }]);
}

#[test]
fn success_with_the_last_data_stands_for_the_response() {
    let (mut host, mut controller) = pair(host_config(), controller_config());
    host.memory.insert(1, vec![0; 5000]);
    let sink = Source { handle: 1, offset: 0, length: 5000 };
    host.submit(command(9), CommandData::ToHost(sink)).expect("room");
    controller.input(&host.output()).expect("a command");
    controller.memory.insert(1, bytes(5000));
    let source = Source { handle: 1, offset: 0, length: 4096 };
    controller.send_data(C2hData { cid: 9, offset: 0, source, last: false, success: false });
    let source = Source { handle: 1, offset: 4096, length: 904 };
    controller.send_data(C2hData { cid: 9, offset: 4096, source, last: true, success: true });
    host.input(&controller.output()).expect("the data");
    assert_eq!(controller.engine.transmitted(), 2);
    let cqe = CompletionEntry::success(9, u16::MAX);
    assert_eq!(host.take_events(), [Event::Response { cqe, intact: true, received: 5000 }]);
    assert_eq!(host.memory[&1], bytes(5000));
    // The slot is free again, and its former identifier names nothing.
    host.submit(command(9 + 8), CommandData::None).expect("the same slot");
}

#[test]
fn a_command_with_an_allocation_length_takes_less_with_and_without_success_and_says_how_much_came() {
    for (sent, success) in [(5000, true), (900, true), (1, true), (900, false), (5000, false), (0, false)] {
        let (mut host, mut controller) = pair(host_config(), controller_config());
        host.memory.insert(1, vec![0xee; 5000]);
        controller.memory.insert(1, bytes(5000));
        let sink = Source { handle: 1, offset: 0, length: 5000 };
        host.submit(command(9), CommandData::AllocatedToHost(sink)).expect("room");
        controller.input(&host.output()).expect("a command");
        if sent > 0 {
            let source = Source { handle: 1, offset: 0, length: sent };
            controller.send_data(C2hData { cid: 9, offset: 0, source, last: true, success });
        }
        let mut cqe = CompletionEntry::success(9, u16::MAX);
        if !success {
            cqe = CompletionEntry::success(9, 1);
            controller.respond(cqe);
        }
        host.input(&controller.output()).expect("what came is what there is");
        assert_eq!(host.take_events(), [Event::Response { cqe, intact: true, received: sent }]);
        let (came, rest) = host.memory[&1].split_at(sent as usize);
        assert!(*came == bytes(5000)[..sent as usize] && rest.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn what_is_given_goes_out_in_order_whether_or_not_there_was_room_for_it() {
    let (mut host, mut controller) = pair(host_config(), controller_config());
    for cid in 0..4 {
        host.submit(command(cid), CommandData::None).expect("room");
    }
    controller.input(&host.output()).expect("commands");
    let answer = |cid: u16| CompletionEntry::success(cid, cid);
    controller.respond(answer(0));
    assert!(controller.engine.wants_transmit(), "it is emitted, but not transmitted");
    assert_eq!(controller.engine.transmitted(), 0);
    controller.full = true;
    controller.respond(answer(1));
    controller.full = false;
    controller.respond(answer(2));
    host.input(&controller.output()).expect("responses");
    assert!(!controller.engine.wants_transmit());
    // Given while the others are on their way.
    controller.respond(answer(3));
    assert_eq!(controller.engine.transmitted(), 3);
    host.input(&controller.output()).expect("the last response");
    assert_eq!(controller.engine.transmitted(), 1);
    let expected: Vec<_> =
        (0..4).map(|cid| Event::Response { cqe: answer(cid), intact: true, received: 0 }).collect();
    assert_eq!(host.take_events(), expected);
}

#[test]
fn digests_are_used_as_the_host_asks_and_a_wrong_one_of_data_spoils_its_command_alone() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        let config = ringfab_proto::tcp::HostConfig { digests: digests(header, data), ..host_config() };
        let (mut host, mut controller) = pair(config, controller_config());
        host.memory.insert(1, bytes(600));
        let source = Source { handle: 1, offset: 0, length: 600 };
        host.submit(command(1), CommandData::Capsule(source)).expect("room");
        let mut wire = host.output();
        assert_eq!(wire.len(), 72 + 600 + 4 * usize::from(header) + 4 * usize::from(data));
        wire[200] ^= 1;
        controller.input(&wire).expect("the data digest ends nothing");
        let events = controller.take_events();
        assert_eq!(events[1], Event::CommandEnd { intact: !data });
        host.submit(command(2), CommandData::None).expect("room");
        controller.input(&host.output()).expect("it goes on");
    }
}

#[test]
fn data_start_where_each_end_wants_them() {
    for (header, dwords) in [(false, 1), (true, 1), (true, 2), (true, 16), (false, 32), (true, 32)] {
        let host = ringfab_proto::tcp::HostConfig {
            digests: digests(header, true),
            alignment_dwords: dwords,
            ..host_config()
        };
        let controller =
            ringfab_proto::tcp::ControllerConfig { alignment_dwords: dwords, ..controller_config() };
        let (mut host, mut controller) = pair(host, controller);
        host.memory.insert(1, bytes(512));
        let source = Source { handle: 1, offset: 0, length: 512 };
        host.submit(command(1), CommandData::Capsule(source)).expect("room");
        let wire = host.output();
        let pdo = usize::from(wire[3]);
        assert_eq!((pdo % (usize::from(dwords) * 4), wire[pdo..pdo + 512] == bytes(512)), (0, true));
        controller.input(&wire).expect("aligned as wanted");
        assert_eq!(controller.capsule, bytes(512));
        host.memory.insert(2, vec![0; 512]);
        let sink = Source { handle: 2, offset: 0, length: 512 };
        host.submit(command(2), CommandData::ToHost(sink)).expect("room");
        controller.input(&host.output()).expect("a command");
        controller.memory.insert(1, bytes(512));
        controller.send_data(C2hData { cid: 2, offset: 0, source, last: true, success: true });
        host.input(&controller.output()).expect("aligned as wanted");
        assert_eq!(host.memory[&2], bytes(512));
    }
}

#[test]
fn a_connection_that_was_handed_over_goes_on() {
    let config = ringfab_proto::tcp::HostConfig { digests: digests(true, true), ..host_config() };
    let (mut host, controller) = pair(config, controller_config());
    let negotiated = controller.engine.negotiated().expect("initialized");
    let mut controller = End::new(Engine::resume(controller_config(), negotiated));
    host.memory.insert(1, bytes(100));
    let source = Source { handle: 1, offset: 0, length: 100 };
    host.submit(command(1), CommandData::Capsule(source)).expect("room");
    controller.input(&host.output()).expect("a command");
    assert_eq!(controller.capsule, bytes(100));
}

#[test]
fn data_that_are_received_in_place_count_in_their_digest() {
    let config = ringfab_proto::tcp::HostConfig { digests: digests(true, true), ..host_config() };
    let (mut host, mut controller) = pair(config, controller_config());
    controller.direct = true;
    host.memory.insert(1, vec![0; 4096]);
    let source = Source { handle: 1, offset: 0, length: 4096 };
    host.submit(command(1), CommandData::Capsule(source)).expect("room");
    let wire = host.output();
    let front = 76 + 100;
    controller.input(&wire[..front]).expect("the header and a part of the data");
    controller.input(&wire[wire.len() - 4..]).expect("the digest, after the rest was received in place");
    assert!(matches!(controller.take_events()[..], [_, Event::CommandEnd { intact: true }]));
    assert_eq!(controller.capsule, vec![0; 4096]);
}

/// A conversation's bytes towards the controller, and what they mean when they come at once.
fn conversation(header: bool, data: bool) -> (Vec<u8>, End) {
    let config = ringfab_proto::tcp::HostConfig { digests: digests(header, data), ..host_config() };
    let (mut host, mut controller) = pair(config, controller_config());
    host.memory.insert(1, bytes(9000));
    let source = |offset, length| Source { handle: 1, offset, length };
    host.submit(command(1), CommandData::Capsule(source(0, 700))).expect("room");
    host.submit(command(2), CommandData::ToController(source(5, 8995))).expect("room");
    host.submit(command(3), CommandData::None).expect("room");
    let mut wire = host.output();
    let negotiated = controller.engine.negotiated().expect("initialized");
    controller.input(&wire).expect("commands");
    let tag = controller.engine.request(2, 0, 8995).expect("a tag");
    host.input(&controller.output()).expect("an R2T");
    wire.extend(host.output());
    let mut again = End::new(Engine::resume(controller_config(), negotiated));
    assert_eq!(again.engine.request(2, 0, 8995), Some(tag));
    again.transfers.insert(tag, vec![0; 8995]);
    (wire, again)
}

proptest! {
    #[test]
    fn any_split_of_the_stream_means_the_same(
        header: bool,
        data: bool,
        cuts in prop::collection::vec(1_usize..600, 1..40),
    ) {
        let (wire, mut whole) = conversation(header, data);
        whole.input(&wire).expect("at once");
        let (_, mut split) = conversation(header, data);
        let mut rest = &wire[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*cut));
            split.input(now).expect("in pieces");
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&split.events, &whole.events);
        prop_assert_eq!(&split.transfers, &whole.transfers);
        prop_assert_eq!(&split.transfers[&0], &bytes(9000)[5..]);
    }

    #[test]
    fn a_flipped_bit_never_goes_unnoticed_with_both_digests(place in 0_usize..10_000, bit in 0_u32..8) {
        let (mut wire, mut controller) = conversation(true, true);
        let place = place % wire.len();
        wire[place] ^= 1 << bit;
        let noticed = controller.input(&wire).is_err()
            || !controller.unread.is_empty()
            || controller.events.len() < 5
            || controller.events.iter().any(|event| {
                matches!(event, Event::CommandEnd { intact: false } | Event::TransferEnd { intact: false, .. })
            });
        prop_assert!(noticed);
    }
}
