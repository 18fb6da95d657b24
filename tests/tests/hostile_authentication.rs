//! Hosts that try to be let in without a key, or to be no trouble only to themselves.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use ringfab_auth::{DhchapKey, Group, Hash, Message, Negotiate, Policy, Proposal, Reply, system_random};
use ringfab_base::SplitMix64;
use ringfab_spec::auth::{GroupId, HashId, SecureChannel};
use ringfab_spec::property::offset;
use ringfab_spec::sqe::{AuthenticationCommand, PropertySize};
use ringfab_spec::tcp::Digests;
use ringfab_spec::{SglDescriptor, Status, SubmissionEntry};
use ringfab_target::core::State;
use ringfab_tests::member::{Credentials, Member, Wire};
use ringfab_tests::raw_tcp::capsule;
use ringfab_tests::{PATIENCE, TestTarget, wait_until};
use tempfile::TempDir;

const HOST: &str = "nqn.2026-11.org.ringfab:host";
/// Another one, without a key.
const OTHER: &str = "nqn.2026-11.org.ringfab:other";
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Beginnings of messages.
const CHALLENGE: [u8; 2] = [1, 1];
const SUCCESS1: [u8; 2] = [1, 3];
const FAILURE1: [u8; 2] = [0, 0xf1];

/// Bytes of a message before what follows its fixed part.
const FIXED: usize = 16;

/// A target with the keys of a host.
struct Guarded {
    target: TestTarget,
    key: DhchapKey,
    controller_key: DhchapKey,
    _folder: TempDir,
}

impl Guarded {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let generate = || DhchapKey::generate(Hash::Sha256, Some(Hash::Sha256), &mut system_random());
        let (key, controller_key) = (generate(), generate());
        let [path, controller_path] = [("host", &key), ("controller", &controller_key)].map(|(name, key)| {
            let path = folder.path().join(name);
            fs::write(&path, key.to_text().expose()).expect("a key");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
            path
        });
        let host = format!(
            "[[subsystem.namespace]]\nmemory = \"1MiB\"\n[[host]]\nnqn = {HOST:?}\n\
             dhchap_key = \"file:{}\"\ndhchap_controller_key = \"file:{}\"\n{more}",
            path.display(),
            controller_path.display()
        );
        let target = TestTarget::with_listener("transport = \"tcp\"", &host);
        Self { target, key, controller_key, _folder: folder }
    }

    fn wire(&self) -> Wire {
        let (wire, completion) =
            Wire::connect(LOCALHOST, self.target.address(), 0, 0xffff, HOST, PATIENCE).expect("connected");
        assert_ne!(completion.dw0.get() >> 16, 0, "it is asked to authenticate");
        wire
    }

    fn credentials(&self, hash: Hash, group: Group) -> Credentials {
        Credentials::new(HOST, &self.key, Policy::new(&[hash], &[group]).expect("a policy"))
    }

    /// The host that may connect still can, and nobody else is left.
    fn is_well(&self) {
        let credentials = self.credentials(Hash::Sha256, Group::Ffdhe2048);
        let member = Member::attach(LOCALHOST, self.target.address(), &credentials, PATIENCE);
        assert_eq!(member.expect("the host with the key").read().expect("data").len(), 4096);
        wait_until("nobody is left", || self.target.usage().iter().all(|core| core.queues == 0));
    }
}

fn status() -> SubmissionEntry {
    SubmissionEntry::property_get(0, offset::CSTS, PropertySize::Four)
}

fn negotiate(hashes: &[Hash], groups: &[Group]) -> Vec<u8> {
    let hashes: Vec<HashId> = hashes.iter().map(|hash| hash.id()).collect();
    let groups: Vec<GroupId> = groups.iter().map(|group| group.id()).collect();
    let offer = Some(Proposal { hashes, groups });
    Message::Negotiate(Negotiate { t_id: 5, secure_channel: SecureChannel::NONE, offer }).to_bytes()
}

fn reply(response: &[u8], challenge: Option<&[u8]>, value: &[u8]) -> Vec<u8> {
    let none = vec![0; response.len()];
    Message::Reply(Reply {
        t_id: 5,
        seqnum: 1,
        challenge_valid: challenge.is_some(),
        response,
        challenge: challenge.unwrap_or(&none),
        value,
    })
    .to_bytes()
}

/// What the target says to a reply, and why: the explanation of its failure.
fn answer_to(wire: &mut Wire, message: &[u8]) -> ([u8; 2], u8) {
    wire.send(message).expect("a Send succeeds");
    let answer = wire.receive().expect("a message");
    ([answer[0], answer[1]], answer[7])
}

/// More hosts than a core has buffers for admin commands wait for what takes long to compute, each at an address of its
/// own. None of them holds a buffer meanwhile, so a host without a key gets in.
#[test]
fn those_who_wait_for_a_computation_keep_nobody_out() {
    const WAITING: u16 = 200;
    let guarded = Guarded::start("dhchap_groups = [\"ffdhe8192\"]\n");
    let address = guarded.target.address();
    let message = negotiate(&[Hash::Sha256], &[Group::Ffdhe8192]);
    let waiting: Vec<Wire> = (0..WAITING)
        .map(|number| {
            let [high, low] = (number + 2).to_be_bytes();
            let from = Ipv4Addr::new(127, 0, high, low).into();
            let (mut wire, _) = Wire::connect(from, address, 0, 0xffff, HOST, PATIENCE).expect("connected");
            wire.send(&message).expect("a Send succeeds");
            wire.ask().expect("it goes on");
            wire
        })
        .collect();
    let core = || guarded.target.usage().remove(0);
    let are_many = || core().commands_in(State::Computing) > u64::from(WAITING) / 2;
    let mut came = 0;
    while are_many() {
        let usage = core();
        let buffers = usage.admin_buffers;
        assert!(buffers.taken < buffers.total / 4, "{buffers:?}");
        let connected = Wire::connect(LOCALHOST, address, 0, 0xffff, OTHER, PATIENCE);
        drop(connected.expect("a host without a key"));
        came += 1;
    }
    assert!(came > 0, "nobody waited any more");
    drop(waiting);
    wait_until("nobody is left", || core().queues == 0);
}

/// A stranger who knows all that a Connect has to say has connections for every I/O queue of the host's controller, at
/// an address of its own and at that of the host.
#[test]
fn who_has_not_proved_who_it_is_has_no_queue_of_the_hosts_controller() {
    let guarded = Guarded::start("");
    let address = guarded.target.address();
    let credentials = guarded.credentials(Hash::Sha256, Group::Ffdhe2048);
    let (mut admin, controller) =
        Wire::attach_admin(LOCALHOST, address, &credentials, PATIENCE).expect("the host with the key");
    let connect = |from: IpAddr, queue| Wire::connect(from, address, queue, controller, HOST, PATIENCE);
    let elsewhere = IpAddr::from([127, 0, 0, 2]);
    let mut before = Vec::new();
    let mut io = Vec::new();
    for queue in 1..=8 {
        let strangers =
            [elsewhere, LOCALHOST, LOCALHOST].map(|from| connect(from, queue).expect("connected").0);
        let (mut wire, completion) = connect(LOCALHOST, queue).expect("nobody has the identifier");
        assert_ne!(completion.dw0.get() >> 16, 0, "it is asked to authenticate");
        wire.authenticate(&credentials).expect("it has the key");
        io.push(wire);
        // They have little time to authenticate, so they ask at once.
        for mut stranger in strangers {
            assert_eq!(
                stranger.status_of(SubmissionEntry::read(0, 1, 0, 8)).expect("an answer"),
                Status::AUTHENTICATION_REQUIRED.with_dnr()
            );
            before.push(stranger);
        }
    }
    // What strangers are refused is in no log of the host's controller.
    assert_eq!(errors(&mut admin), 0, "an entry of the Error Information log");
    // From now on the identifiers are in use, and are that also when the strangers have gone.
    let in_use = |queue| {
        let refused = connect(LOCALHOST, queue).expect_err("the identifier is in use").to_string();
        assert_eq!(refused, Status::COMMAND_SEQUENCE_ERROR.with_dnr().to_string());
    };
    in_use(1);
    drop(before);
    let queues = || guarded.target.usage().iter().map(|core| core.queues).sum::<usize>();
    wait_until("the strangers are gone", || queues() == 1 + io.len());
    (1..=8).for_each(in_use);
    for wire in &mut io {
        assert_eq!(wire.read().expect("data").len(), 4096);
    }
    drop((admin, io));
    guarded.is_well();
}

/// A host needs five commands to authenticate. One that sends others is told so for a while, and no longer.
#[test]
fn who_sends_commands_without_authenticating_is_disconnected() {
    let guarded = Guarded::start("");
    for identify in [SubmissionEntry::identify(0, 1, 0, 0, 0), status()] {
        let mut wire = guarded.wire();
        let mut refused = 0;
        while let Ok(answer) = wire.status_of(identify) {
            assert_eq!(answer, Status::AUTHENTICATION_REQUIRED.with_dnr());
            refused += 1;
            assert!(refused <= 64, "as many as it likes");
        }
        // The Connect is the first of 64, and the one that is too many is answered, too.
        assert_eq!(refused, 64);
        assert!(wire.ends());
    }
    // A wrong message counts, too.
    let mut wire = guarded.wire();
    let mut refused = 0;
    while wire.status_of(AuthenticationCommand::receive(0, 0)).is_ok() {
        refused += 1;
    }
    assert_eq!(refused, 64);
    guarded.is_well();
}

/// Who says the name of a host, and has not proved to be that host, is in no number that is the host's.
#[test]
fn who_has_yet_to_authenticate_counts_as_nobody() {
    let guarded = Guarded::start("");
    let target = &guarded.target.target;
    let counts = || {
        let status = guarded.target.manager().view().status().expect("the cores answer");
        let (listener, subsystem) = (&status.listeners[0], &status.subsystems[0]);
        assert_eq!(
            (listener.controllers, listener.authenticating),
            (subsystem.controllers, subsystem.authenticating)
        );
        assert_eq!(status.namespaces[0].controllers, subsystem.controllers);
        (subsystem.controllers, subsystem.authenticating)
    };
    let state = || {
        let status = guarded.target.manager().view().status().expect("the cores answer");
        status.controllers.first().map(|one| (one.host.clone(), one.state))
    };
    let queues = || {
        let of_host = |one: &ringfab_target::model::host_account::HostUsage| one.nqn.as_deref() == Some(HOST);
        target.served().subsystems()[0]
            .subsystem()
            .hosts()
            .iter()
            .find(|one| of_host(one))
            .map(|one| one.queues)
    };
    let mut wire = guarded.wire();
    assert_eq!(counts(), (0, 1));
    assert_eq!(state(), Some((HOST.to_owned(), "authenticating")));
    assert_eq!(queues(), None, "the host has never been here");
    wire.authenticate(&guarded.credentials(Hash::Sha256, Group::Ffdhe2048)).expect("it has the key");
    assert_eq!(counts(), (1, 0));
    assert_eq!(state(), Some((HOST.to_owned(), "connected")));
    assert_eq!(queues(), Some(1));
    let stranger = guarded.wire();
    assert_eq!((counts(), queues()), ((1, 1), Some(1)));
    drop(wire);
    wait_until("the host has left", || (counts(), queues()) == ((0, 1), Some(0)));
    drop(stranger);
    wait_until("the stranger has left", || (counts(), queues()) == ((0, 0), Some(0)));
    guarded.is_well();
}

/// Two connections of the host itself, which has lost sight of one: who proves first who it is has the queue.
#[test]
fn of_two_connections_for_a_queue_the_first_that_authenticates_has_it() {
    let guarded = Guarded::start("");
    let address = guarded.target.address();
    let credentials = guarded.credentials(Hash::Sha256, Group::Ffdhe2048);
    let (admin, controller) =
        Wire::attach_admin(LOCALHOST, address, &credentials, PATIENCE).expect("the host with the key");
    let connect = || Wire::connect(LOCALHOST, address, 1, controller, HOST, PATIENCE).expect("connected").0;
    let (mut slow, mut quick) = (connect(), connect());
    quick.authenticate(&credentials).expect("it has the key");
    let late = slow.authenticate(&credentials).expect_err("the queue is another's").to_string();
    assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr().to_string());
    assert!(slow.ends());
    assert_eq!(quick.read().expect("data").len(), 4096);
    drop(quick);
    let queues = || guarded.target.usage().iter().map(|core| core.queues).sum::<usize>();
    wait_until("only the admin queue is there", || queues() == 1);
    let mut again = connect();
    again.authenticate(&credentials).expect("the identifier is free again");
    assert_eq!(again.read().expect("data").len(), 4096);
    drop((admin, again));
    guarded.is_well();
}

/// How many entries the first 16 of the Error Information log have.
fn errors(admin: &mut Wire) -> usize {
    const ENTRY: usize = 64;
    let bytes = 16 * ENTRY as u32;
    let log =
        admin.fetch(SubmissionEntry::get_log_page(0, 1, 0xffff_ffff, 0, bytes, false), bytes).expect("a log");
    log.chunks(ENTRY).filter(|entry| entry[..8] != [0; 8]).count()
}

#[test]
fn what_was_said_before_is_of_no_use_to_anybody() {
    let guarded = Guarded::start("dhchap_groups = [\"ffdhe2048\", \"null\"]\n");
    for group in [Group::Ffdhe2048, Group::Null] {
        let mut wire = guarded.wire();
        let policy = Policy::new(&[Hash::Sha256], &[group]).expect("a policy");
        let credentials = Credentials::both_ways(HOST, &guarded.key, Some(&guarded.controller_key), policy);
        let said = wire.authenticate_with(&credentials, |_| ()).expect("it has the key");
        assert_eq!((said.len(), wire.status_of(status()).expect("an answer")), (3, Status::SUCCESS));
        let mut wire = guarded.wire();
        wire.send(&said[0]).expect("a Send succeeds");
        assert_eq!(wire.receive().expect("a message")[..2], CHALLENGE);
        assert_eq!(answer_to(&mut wire, &said[1]), (FAILURE1, 1), "{group}: Authentication failed");
        assert!(wire.ends());
        // The last message alone.
        let mut wire = guarded.wire();
        assert_eq!(answer_to(&mut wire, &said[2]), (FAILURE1, 7), "{group}: Incorrect protocol message");
        assert!(wire.ends());
    }
    guarded.is_well();
}

#[test]
fn the_targets_own_challenge_and_response_do_not_let_anybody_in() {
    let guarded = Guarded::start("dhchap_groups = [\"null\"]\n");
    let challenged = || {
        let mut wire = guarded.wire();
        wire.send(&negotiate(&[Hash::Sha256], &[Group::Null])).expect("a Send succeeds");
        let challenge = wire.receive().expect("a challenge");
        (wire, challenge[FIXED..FIXED + 32].to_vec())
    };
    // As the challenge, and as the response.
    let (mut wire, own) = challenged();
    assert_eq!(answer_to(&mut wire, &reply(&own, Some(&own), &[])), (FAILURE1, 1));
    // On another connection at the same time: the target answers no challenge of one who has not proved who it is.
    let (_first, own) = challenged();
    let (mut second, _) = challenged();
    assert_eq!(answer_to(&mut second, &reply(&[7; 32], Some(&own), &[])), (FAILURE1, 1));
    drop(_first);
    drop((wire, second));
    wait_until("nobody is left", || guarded.target.usage().iter().all(|core| core.queues == 0));
}

#[test]
fn no_weaker_hash_or_group_than_the_configured_ones_is_taken() {
    let guarded = Guarded::start("dhchap_hashes = [\"sha384\"]\ndhchap_groups = [\"ffdhe3072\"]\n");
    let weak = [Group::Null, Group::Ffdhe2048, Group::Secp256r1];
    for (message, why) in [
        (negotiate(&[Hash::Sha256], &[Group::Ffdhe3072]), 4),
        (negotiate(&[Hash::Sha384], &weak), 5),
        (negotiate(&[Hash::Sha384], &[]), 5),
        (negotiate(&[], &[Group::Ffdhe3072]), 4),
    ] {
        let mut wire = guarded.wire();
        assert_eq!(answer_to(&mut wire, &message), (FAILURE1, why));
        assert!(wire.ends());
    }
    // Of several, the configured one is taken; the reply cannot choose another one.
    let mut wire = guarded.wire();
    wire.send(&negotiate(&Hash::ALL, &Group::ALL)).expect("a Send succeeds");
    let challenge = wire.receive().expect("a challenge");
    assert_eq!((challenge[8], challenge[9]), (Hash::Sha384.id().0, Group::Ffdhe3072.id().0));
    assert_eq!(
        answer_to(&mut wire, &reply(&[7; 48], None, &[])),
        (FAILURE1, 6),
        "no value, as in the null group"
    );
    let mut wire = guarded.wire();
    wire.send(&negotiate(&Hash::ALL, &Group::ALL)).expect("a Send succeeds");
    wire.receive().expect("a challenge");
    assert_eq!(answer_to(&mut wire, &reply(&[7; 32], None, &[7; 384])), (FAILURE1, 6), "as with SHA-256");
}

#[test]
fn a_value_that_is_none_of_the_group_is_refused_whatever_the_response() {
    let guarded = Guarded::start("dhchap_groups = [\"ffdhe2048\", \"secp256r1\", \"mlkem768\"]\n");
    let number = |low: u8| [vec![0; 255], vec![low]].concat();
    // The prime begins and ends with eight bytes FFh, and two numbers that are too large are made of these.
    let values = [
        (Group::Ffdhe2048, number(0)),
        (Group::Ffdhe2048, number(1)),
        (Group::Ffdhe2048, vec![0xff; 256]),
        (Group::Secp256r1, vec![0; 68]),
        (Group::Secp256r1, [vec![4], vec![0; 67]].concat()),
        (Group::Secp256r1, [vec![4], vec![0xff; 64], vec![0; 3]].concat()),
        (Group::Secp256r1, vec![4; 64]),
        (Group::MlKem768, vec![0; 1184]),
    ];
    for (group, value) in values {
        let mut wire = guarded.wire();
        wire.send(&negotiate(&[Hash::Sha256], &[group])).expect("a Send succeeds");
        assert_eq!(wire.receive().expect("a challenge")[..2], CHALLENGE);
        assert_eq!(answer_to(&mut wire, &reply(&[7; 32], None, &value)), (FAILURE1, 6), "{group} {value:x?}");
    }
    // The target's own value.
    let mut wire = guarded.wire();
    wire.send(&negotiate(&[Hash::Sha256], &[Group::Ffdhe2048])).expect("a Send succeeds");
    let challenge = wire.receive().expect("a challenge");
    let own = challenge[FIXED + 32..FIXED + 32 + 256].to_vec();
    assert_eq!(answer_to(&mut wire, &reply(&[7; 32], None, &own)), (FAILURE1, 6));
    // A ciphertext that means nothing has a secret that nobody knows.
    let mut wire = guarded.wire();
    wire.send(&negotiate(&[Hash::Sha256], &[Group::MlKem768])).expect("a Send succeeds");
    wire.receive().expect("a challenge");
    assert_eq!(answer_to(&mut wire, &reply(&[7; 32], None, &[7; 1088])), (FAILURE1, 1));
    guarded.is_well();
}

/// Cut before each byte, and with each byte changed that the target looks at.
#[test]
fn no_part_of_an_honest_message_lets_anybody_in() {
    let guarded = Guarded::start("dhchap_groups = [\"secp256r1\", \"ffdhe2048\"]\n");
    let credentials = guarded.credentials(Hash::Sha256, Group::Secp256r1);
    let lengths = guarded.wire().authenticate_with(&credentials, |_| ()).expect("it has the key");
    let [negotiate, reply] = [lengths[0].len(), lengths[1].len()];
    for (number, length) in [(0, negotiate), (1, reply)] {
        for at in 1..length {
            let mut messages = 0..;
            let cut = guarded.wire().authenticate_with(&credentials, |message| {
                if messages.next() == Some(number) {
                    message.truncate(at);
                }
            });
            assert!(cut.is_err(), "message {number}, cut at {at}");
        }
    }
    // The identifier of the transaction, the lengths, the response and the value. Nobody asks for the challenge.
    let response = FIXED..FIXED + 32;
    let looked_at = (0..2).chain(4..7).chain(10..12).chain(response).chain(FIXED + 64..reply);
    for at in looked_at {
        let mut messages = 0..;
        let changed = guarded.wire().authenticate_with(&credentials, |message| {
            if messages.next() == Some(1) {
                message[at] ^= 0x10;
            }
        });
        assert!(changed.is_err(), "byte {at}");
    }
    guarded.is_well();
}

/// What one who has no key can do next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Negotiate,
    OtherGroup,
    Reply,
    OldReply,
    Success2,
    Failure2,
    Noise,
    Nothing,
    Receive,
    SmallReceive,
    Property,
    Identify,
    Read,
    Again,
}

const ACTS: [Act; 14] = [
    Act::Negotiate,
    Act::OtherGroup,
    Act::Reply,
    Act::OldReply,
    Act::Success2,
    Act::Failure2,
    Act::Noise,
    Act::Nothing,
    Act::Receive,
    Act::SmallReceive,
    Act::Property,
    Act::Identify,
    Act::Read,
    Act::Again,
];

/// Does it. Whether the connection goes on.
fn act(wire: &mut Wire, act: Act, old: &[Vec<u8>], random: &mut SplitMix64) -> std::io::Result<()> {
    let mut send = |wire: &mut Wire, message: &[u8]| {
        let cut = random.below(4) == 0;
        let length = if cut { random.below(message.len() as u64) as usize + 1 } else { message.len() };
        wire.send(&message[..length])
    };
    match act {
        Act::Negotiate => send(wire, &negotiate(&[Hash::Sha256], &[Group::Ffdhe2048])),
        Act::OtherGroup => send(wire, &negotiate(&Hash::ALL, &Group::ALL)),
        Act::Reply => send(wire, &reply(&[7; 32], None, &[7; 256])),
        Act::OldReply => send(wire, &old[1]),
        Act::Success2 => send(wire, &Message::Success2(5).to_bytes()),
        Act::Failure2 => send(wire, &[0, 0xf0, 0, 0, 5, 0, 1, 1]),
        Act::Noise => send(wire, &[0xa5; 333]),
        Act::Nothing => wire.status_of(AuthenticationCommand::send(0, 0)).map(drop),
        Act::Receive => {
            let message = wire.receive()?;
            assert_ne!(message.get(..2), Some(&SUCCESS1[..]), "somebody without a key was let in");
            Ok(())
        }
        Act::SmallReceive => wire.status_of(AuthenticationCommand::receive(0, 4)).map(drop),
        Act::Property => refused(wire, status()),
        Act::Identify => refused(wire, SubmissionEntry::identify(0, 1, 0, 0, 0)),
        Act::Read => refused(wire, SubmissionEntry::read(0, 1, 0, 8)),
        Act::Again => {
            let refused = wire.status_of(SubmissionEntry::connect(0, 0, 32, 0, false))?;
            assert!(!refused.is_success());
            Ok(())
        }
    }
}

fn refused(wire: &mut Wire, entry: SubmissionEntry) -> std::io::Result<()> {
    assert_eq!(wire.status_of(entry)?, Status::AUTHENTICATION_REQUIRED.with_dnr());
    Ok(())
}

#[test]
fn in_whatever_order_messages_and_commands_come_nobody_without_a_key_is_let_in() {
    let guarded = Guarded::start("dhchap_groups = [\"ffdhe2048\", \"null\", \"mlkem768\"]\n");
    let credentials = guarded.credentials(Hash::Sha256, Group::Ffdhe2048);
    let old = guarded.wire().authenticate_with(&credentials, |_| ()).expect("it has the key");
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let mut wire = guarded.wire();
        let mut done = Vec::new();
        for _ in 0..random.below(10) {
            let one = ACTS[random.below(ACTS.len() as u64) as usize];
            done.push(one);
            // A refused Send or Receive is an error as well; the connection may go on.
            let _refused = act(&mut wire, one, &old, &mut random);
        }
        if let Ok(found) = wire.status_of(status()) {
            assert_eq!(found, Status::AUTHENTICATION_REQUIRED.with_dnr(), "{seed}: {done:?}");
        }
    }
    guarded.is_well();
}

/// Before, a queue has a few slots only. Afterwards it has as many as it has entries.
#[test]
fn a_queue_gets_its_slots_when_its_host_has_proved_who_it_is() {
    let guarded = Guarded::start("");
    // Messages whose data do not come.
    let announced = |cid: u16| {
        let entry = AuthenticationCommand::send(cid, 2048).with_sgl(SglDescriptor::transport(2048));
        capsule(Digests::default(), entry, &[])
    };
    let hungry = |wire: &mut Wire, count: u16| {
        let all: Vec<u8> = (200..200 + count).flat_map(announced).collect();
        wire.say(&all).expect("it is said");
    };
    let mut stranger = guarded.wire();
    hungry(&mut stranger, 5);
    assert!(stranger.ends(), "more commands than it has slots");
    let mut member = guarded.wire();
    member.authenticate(&guarded.credentials(Hash::Sha256, Group::Ffdhe2048)).expect("it has the key");
    hungry(&mut member, 20);
    let queues = || guarded.target.usage().iter().map(|core| core.queues).sum::<usize>();
    wait_until("the stranger is gone", || queues() == 1);
    // It must be seen to stay.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(queues(), 1, "the member is still there");
}
