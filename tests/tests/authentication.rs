//! Hosts prove who they are to a target (DH-HMAC-CHAP), as their queues meet it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use ringfab_auth::{
    DhchapKey, Group, Hash, HostStep, HostTransaction, KeySource, Parties, Policy, Refusal, SequenceNumbers,
    system_random,
};
use ringfab_fabric::rdma::{Access, QueuePairId};
use ringfab_spec::auth::SecureChannel;
use ringfab_spec::nqn::Nqn;
use ringfab_spec::property::offset;
use ringfab_spec::sqe::{AuthenticationCommand, ConnectData, PropertySize};
use ringfab_spec::{IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::config::{HostConfig, OldKeys};
use ringfab_tests::raw_host::{CC_ENABLE, HOST_ID, RawHost};
use ringfab_tests::{NQN, TestTarget, wait_until};
use tempfile::TempDir;

const HOST: &str = "nqn.2026-11.org.ringfab:host";

/// AUTHREQ.ATR in dword 0 of the completion of a Connect.
const ATR: u32 = 1 << 17;

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";

/// A target that knows the keys of a host, and the folder with these.
struct Guarded {
    target: TestTarget,
    _folder: TempDir,
    key: DhchapKey,
    controller_key: DhchapKey,
}

fn write_key(path: &Path, key: &DhchapKey) {
    fs::write(path, key.to_text().expose()).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
}

fn generate(hash: Hash) -> DhchapKey {
    DhchapKey::generate(hash, Some(hash), &mut system_random())
}

impl Guarded {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, controller_key) = (generate(Hash::Sha256), generate(Hash::Sha512));
        let [path, controller_path] = ["host", "controller"].map(|name| folder.path().join(name));
        write_key(&path, &key);
        write_key(&controller_path, &controller_key);
        let host = format!(
            "{MEMORY}[[host]]\nnqn = {HOST:?}\ndhchap_key = \"file:{}\"\ndhchap_controller_key = \"file:{}\"\n{more}",
            path.display(),
            controller_path.display()
        );
        Self { target: TestTarget::start(&host), _folder: folder, key, controller_key }
    }

    /// What a host knows that authenticates the target, too.
    fn both(&self) -> Credentials {
        Credentials::new(&self.key, Some(&self.controller_key))
    }
}

/// What a host proves who it is with.
#[derive(Clone)]
struct Credentials {
    parties: Arc<Parties>,
    policy: Arc<Policy>,
}

impl Credentials {
    fn new(key: &DhchapKey, controller_key: Option<&DhchapKey>) -> Self {
        let (host, subsystem) = (Nqn::new(HOST).expect("a name"), Nqn::new(NQN).expect("a name"));
        let policy = Arc::new(Policy::at_least(Hash::Sha256, Group::Ffdhe2048));
        Self { parties: Parties::new(host, subsystem, key, controller_key), policy }
    }

    fn with(self, hash: Hash, group: Group) -> Self {
        Self { policy: Arc::new(Policy::new(&[hash], &[group]).expect("a policy")), ..self }
    }
}

/// A host with one connection.
struct Guest {
    host: RawHost,
    queue: QueuePairId,
    controller_id: u16,
    /// Whether it was asked to authenticate.
    asked: bool,
    transactions: u16,
    numbers: SequenceNumbers,
}

impl Guest {
    fn connect(target: &TestTarget, name: &str) -> Result<Self, Status> {
        let mut host = RawHost::new(target.address());
        let queue = host.open_queue(0, 32);
        let completion = connect(&mut host, queue, name, 0, ConnectData::CNTLID_DYNAMIC);
        if completion.status() != Status::SUCCESS {
            return Err(completion.status());
        }
        let (dw0, numbers) = (completion.dw0.get(), SequenceNumbers::new(&mut system_random()));
        let (asked, controller_id) = (dw0 & ATR != 0, dw0 as u16);
        Ok(Self { host, queue, controller_id, asked, transactions: 0, numbers })
    }

    fn send(&mut self, message: &[u8]) -> Status {
        let entry = AuthenticationCommand::send(self.host.next_cid(), message.len() as u32);
        self.host.command_with(self.queue, &entry, message).status()
    }

    fn receive(&mut self) -> Vec<u8> {
        let entry = AuthenticationCommand::receive(self.host.next_cid(), 4096);
        let (completion, bytes) = self.host.fetch(self.queue, &entry, 4096);
        assert_eq!(completion.status(), Status::SUCCESS);
        bytes
    }

    /// Authenticates. Returns whether the controller was authenticated as well.
    fn authenticate(&mut self, credentials: &Credentials) -> Result<bool, Refusal> {
        self.transactions += 1;
        let Credentials { parties, policy } = credentials.clone();
        let started = HostTransaction::start(parties, policy, SecureChannel::NONE, self.transactions);
        let (mut transaction, mut message) = started.expect("a policy for this");
        let mut random = system_random();
        loop {
            assert_eq!(self.send(&message), Status::SUCCESS);
            let received = self.receive();
            let mut step = transaction.on_message(&received, &self.numbers, &mut random);
            while let HostStep::Compute(computation) = step {
                step = transaction.on_computed(computation.run());
            }
            match step {
                HostStep::Exchange(next) => message = next,
                HostStep::SendLast(last) => {
                    assert_eq!(self.send(&last), Status::SUCCESS);
                    break;
                }
                HostStep::Nothing | HostStep::Compute(_) => break,
            }
        }
        let outcome = transaction.outcome().expect("it is over");
        outcome.map(|authenticated| authenticated.controller_too)
    }

    fn controller_status(&mut self) -> Status {
        let entry = SubmissionEntry::property_get(self.host.next_cid(), offset::CSTS, PropertySize::Four);
        self.host.command(self.queue, &entry).status()
    }

    fn enable(&mut self) {
        let cid = self.host.next_cid();
        let entry = SubmissionEntry::property_set(cid, offset::CC, PropertySize::Four, CC_ENABLE);
        assert_eq!(self.host.command(self.queue, &entry).status(), Status::SUCCESS);
    }

    /// One more queue of the controller, on which the same commands follow.
    fn connect_io(&mut self) -> u32 {
        self.queue = self.host.open_queue(1, 32);
        let completion = connect(&mut self.host, self.queue, HOST, 1, self.controller_id);
        assert_eq!(completion.status(), Status::SUCCESS);
        completion.dw0.get()
    }

    fn read(&mut self) -> Status {
        let entry = SubmissionEntry::read(self.host.next_cid(), 1, 0, 1);
        self.host.fetch(self.queue, &entry, 512).0.status()
    }
}

fn connect(
    host: &mut RawHost,
    queue: QueuePairId,
    name: &str,
    queue_id: u16,
    controller_id: u16,
) -> ringfab_spec::CompletionEntry {
    let (subsystem, name) = (Nqn::new(NQN).expect("a name"), Nqn::new(name).expect("a name"));
    let data = ConnectData::new(HOST_ID, controller_id, subsystem, name);
    let entry = SubmissionEntry::connect(host.next_cid(), queue_id, 32, 0, false);
    host.command_with(queue, &entry, data.as_bytes())
}

#[test]
fn a_host_proves_who_it_is_on_each_queue_and_may_do_nothing_before() {
    let guarded = Guarded::start("");
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    assert!(guest.asked);
    assert_eq!(guest.controller_status(), Status::AUTHENTICATION_REQUIRED.with_dnr());
    assert_eq!(guest.authenticate(&guarded.both()), Ok(true));
    assert_eq!(guest.controller_status(), Status::SUCCESS);
    // Again, while it goes on.
    assert_eq!(guest.authenticate(&Credentials::new(&guarded.key, None)), Ok(false));
    guest.enable();
    assert_ne!(guest.connect_io() & ATR, 0);
    assert_eq!(guest.read(), Status::AUTHENTICATION_REQUIRED.with_dnr());
    assert_eq!(guest.authenticate(&guarded.both()), Ok(true));
    assert_eq!(guest.read(), Status::SUCCESS);
}

#[test]
fn every_hash_and_group_is_spoken() {
    let guarded = Guarded::start(
        "dhchap_groups = [\"ffdhe3072\", \"ffdhe2048\", \"ffdhe4096\", \"null\", \
         \"secp256r1\", \"secp384r1\", \"mlkem768\", \"mlkem1024\", \"secp256r1mlkem768\", \"secp384r1mlkem1024\"]\n",
    );
    for (hash, group) in [
        (Hash::Sha256, Group::Null),
        (Hash::Sha384, Group::Ffdhe2048),
        (Hash::Sha512, Group::Ffdhe3072),
        (Hash::Sha256, Group::Ffdhe4096),
        (Hash::Sha256, Group::Secp256r1),
        (Hash::Sha384, Group::Secp384r1),
        (Hash::Sha256, Group::MlKem768),
        (Hash::Sha512, Group::MlKem1024),
        (Hash::Sha256, Group::Secp256r1MlKem768),
        (Hash::Sha384, Group::Secp384r1MlKem1024),
    ] {
        let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
        assert_eq!(guest.authenticate(&guarded.both().with(hash, group)), Ok(true), "{hash} {group}");
        assert_eq!(guest.controller_status(), Status::SUCCESS);
    }
}

#[test]
fn whoever_has_another_key_or_accepts_less_is_refused_and_disconnected() {
    let guarded = Guarded::start("dhchap_hashes = [\"sha384\"]\ndhchap_groups = [\"ffdhe3072\"]\n");
    for (credentials, why) in [
        (Credentials::new(&generate(Hash::Sha256), None), "Authentication failed"),
        (guarded.both().with(Hash::Sha256, Group::Ffdhe3072), "Hash function not usable"),
        (guarded.both().with(Hash::Sha384, Group::Null), "DH group not usable"),
    ] {
        let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
        let refusal = guest.authenticate(&credentials).expect_err("refused").to_string();
        assert!(refusal.contains(why), "{refusal}");
        guest.host.end(guest.queue);
    }
    // A target with another key than the host knows is no target for it.
    let wrong = Credentials::new(&guarded.key, Some(&generate(Hash::Sha256)));
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    let refusal = guest.authenticate(&wrong.with(Hash::Sha384, Group::Ffdhe3072)).expect_err("refused");
    assert!(!refusal.to_string().is_empty());
    guest.host.end(guest.queue);
    wait_until("nobody is left", || guarded.target.usage().iter().all(|core| core.queues == 0));
}

#[test]
fn a_host_without_a_key_is_let_in_unless_the_subsystem_asks_for_one() {
    let guarded = Guarded::start("");
    let mut stranger = Guest::connect(&guarded.target, "nqn.2026-11.org.ringfab:other").expect("connected");
    assert!(!stranger.asked);
    assert_eq!(stranger.controller_status(), Status::SUCCESS);
    // It was not asked, and has nothing to say.
    assert_eq!(stranger.send(&[0; 8]), Status::INVALID_FIELD.with_dnr());
    let target = TestTarget::start(&format!("authentication = \"required\"\n{MEMORY}"));
    let refused = Guest::connect(&target, "nqn.2026-11.org.ringfab:other").map(|_| ()).expect_err("refused");
    assert_eq!(refused, Status::AUTHENTICATION_REQUIRED.with_dnr());
}

#[test]
fn what_is_no_message_ends_a_transaction_and_no_length_ends_more() {
    let guarded = Guarded::start("");
    for length in [1_usize, 8, 200, 4096] {
        let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
        assert_eq!(guest.send(&vec![0xee; length]), Status::SUCCESS);
        let answer = guest.receive();
        assert_eq!(answer[..2], [0, 0xf1], "AUTH_Failure1");
        guest.host.end(guest.queue);
    }
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    for (length, secp) in [(0, 0xe9_u32), (4097, 0xe9), (8, 0)] {
        let mut entry = AuthenticationCommand::send(guest.host.next_cid(), length);
        entry.cdw10.set(entry.cdw10.get() & 0x00ff_ffff | secp << 24);
        let entry = entry.with_sgl(SglDescriptor::in_capsule(0, length.min(8)));
        guest.host.send(guest.queue, entry.as_bytes(), Some(&[0; 8]));
        assert_eq!(guest.host.completion(guest.queue).status(), Status::INVALID_FIELD.with_dnr());
    }
    // A Receive that comes first is out of order, and one with little room waits for nobody.
    let small = guest.host.expose(&[0; 4], Access::RemoteWrite);
    let entry = AuthenticationCommand::receive(guest.host.next_cid(), 4).with_sgl(small.sgl());
    assert_eq!(guest.host.command(guest.queue, &entry).status(), Status::INVALID_FIELD.with_dnr());
    assert_eq!(guest.receive()[..2], [0, 0xf1]);
    guest.host.end(guest.queue);
}

#[test]
fn shares_and_limits_that_are_set_take_no_key_away() {
    let guarded = Guarded::start("");
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    assert_eq!(guest.authenticate(&guarded.both()), Ok(true));
    let host = HostConfig { shares: 200, ..HostConfig::new(HOST.to_owned()) };
    assert_eq!(guarded.target.manager().set_host(host).expect("other shares").len(), 1);
    assert_eq!(guest.controller_status(), Status::SUCCESS);
    assert!(Guest::connect(&guarded.target, HOST).expect("connected").asked);
}

#[test]
fn a_host_goes_on_while_its_key_and_what_it_may_use_stay() {
    let guarded = Guarded::start("");
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    assert_eq!(guest.authenticate(&guarded.both()), Ok(true));
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST);
    let authentication = host.authentication.as_mut().expect("it has a key");
    authentication.key.source = KeySource::File("/elsewhere".into());
    authentication.hashes.reverse();
    authentication.groups.reverse();
    assert!(!manager.set_host(host.clone()).expect("the same key").is_empty());
    assert_eq!(guest.controller_status(), Status::SUCCESS);
    // What it may have used is refused from now on.
    let authentication = host.authentication.as_mut().expect("it has a key");
    assert!(authentication.hashes.len() > 1);
    authentication.hashes.truncate(1);
    manager.set_host(host).expect("fewer hashes");
    guest.host.end(guest.queue);
}

/// The life of a key: another one comes, which counts from the next time. The old one counts beside it if that is
/// configured, and ends who has shown it when it is taken away.
#[test]
fn a_replaced_key_counts_from_the_next_time_on_and_a_revoked_one_ends_who_has_shown_it() {
    let guarded = Guarded::start("");
    let mut first = Guest::connect(&guarded.target, HOST).expect("connected");
    assert_eq!(first.authenticate(&guarded.both()), Ok(true));
    let new = generate(Hash::Sha384);
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST);
    let keys = host.authentication.as_mut().expect("it has a key");
    let old = OldKeys { key: keys.key.clone(), controller_key: keys.controller_key.clone() };
    keys.key.key = new.clone();
    manager.set_host(host.clone()).expect("another key");
    assert_eq!(first.controller_status(), Status::SUCCESS, "it goes on");
    let with_old = Credentials::new(&guarded.key, None);
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    assert!(guest.authenticate(&with_old).is_err(), "it does not count any more");
    let shown = |age: &str| {
        let status = guarded.target.manager().status().expect("cores that answer");
        status.controllers.iter().any(|one| one.authentication.as_ref().is_some_and(|shown| shown.key == age))
    };
    assert!(shown("replaced"));
    // Both count, and no more once the time is over.
    host.authentication.as_mut().expect("keys").old = Some(old);
    host.old_keys_until = "2000-01-01T00:00:00Z".parse().ok();
    manager.set_host(host.clone()).expect("both keys");
    let mut guest = Guest::connect(&guarded.target, HOST).expect("connected");
    assert!(guest.authenticate(&with_old).is_err(), "its time is over");
    host.old_keys_until = "2999-01-01T00:00:00Z".parse().ok();
    manager.set_host(host).expect("both keys");
    let mut second = Guest::connect(&guarded.target, HOST).expect("connected");
    assert_eq!(second.authenticate(&with_old), Ok(false));
    let mut third = Guest::connect(&guarded.target, HOST).expect("connected");
    assert_eq!(third.authenticate(&Credentials::new(&new, None)), Ok(false));
    assert!(shown("old") && shown("new") && !shown("replaced"));
    // Taken away.
    let said = manager.revoke_old_keys(HOST).expect("there is one");
    assert_eq!(said.len(), 1, "{said:?}");
    first.host.end(first.queue);
    second.host.end(second.queue);
    assert_eq!(third.controller_status(), Status::SUCCESS);
    assert!(shown("new") && !shown("old"));
    let error = manager.revoke_old_keys(HOST).expect_err("the last key stays");
    assert!(error.contains("has no old key; `host deny` keeps a host away"), "{error}");
}

#[test]
fn who_authenticates_again_is_asked_for_the_key_that_counts_now() {
    let guarded = Guarded::start("");
    let [mut first, mut second] = [(); 2].map(|()| Guest::connect(&guarded.target, HOST).expect("connected"));
    for guest in [&mut first, &mut second] {
        assert_eq!(guest.authenticate(&guarded.both()), Ok(true));
    }
    let new = generate(Hash::Sha384);
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST);
    host.authentication.as_mut().expect("it has a key").key.key = new.clone();
    manager.set_host(host).expect("another key");
    assert_eq!(first.authenticate(&Credentials::new(&new, None)), Ok(false));
    let status = manager.status().expect("cores that answer");
    let keys = status.controllers.iter().map(|one| one.authentication.as_ref().map(|shown| shown.key));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    assert_eq!(keys, [Some("new"), Some("replaced")]);
    assert!(second.authenticate(&guarded.both()).is_err(), "its key counts no more");
    assert_eq!(first.controller_status(), Status::SUCCESS);
}
