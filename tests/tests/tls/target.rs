//! Hosts come to a target over TLS, or do not: hosts whose TLS is that of openssl.

use std::sync::Arc;

use ringfab_auth::{
    Authenticated, CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, HostStep, HostTransaction,
    IdentityVersion, Names, Parties, Policy, SequenceNumbers, TlsPsk, system_random,
};
use ringfab_spec::auth::SecureChannel;
use ringfab_spec::nqn::DISCOVERY_NQN;
use ringfab_spec::property::offset;
use ringfab_spec::sqe::{AuthenticationCommand, PropertySize};
use ringfab_spec::tcp::Digests;
use ringfab_spec::{SglDescriptor, Status, SubmissionEntry};
use ringfab_target::config::OldKeys;
use ringfab_tests::openssl::Client;
use ringfab_tests::raw_tcp::{self, HOST_NQN, RawTcp};
use ringfab_tests::{NQN, Service, TestTarget, free_port, have, not_run, wait_until};

use crate::support::{Guarded, MEMORY, name, write_key};

/// AUTHREQ in dword 0 of the completion of a Connect.
const ATR: u32 = 1 << 17;
const ASCR: u32 = 1 << 18;

impl Guarded {
    /// An admin queue over TLS, as openssl makes it.
    fn over_tls(&self, psk: &TlsPsk) -> Guest {
        let client = Client::connect(self.address(), psk);
        let raw = RawTcp::over(client.stream.try_clone().expect("the same stream")).greet(Digests::default());
        Guest { raw, _client: Some(client) }
    }

    fn in_clear(&self) -> Guest {
        Guest { raw: RawTcp::initialize(self.address(), Digests::default()), _client: None }
    }
}

/// A host with one connection.
struct Guest {
    raw: RawTcp,
    _client: Option<Client>,
}

impl Guest {
    /// Connects an admin queue, or an I/O queue of a controller. The answer: dword 0, or the status.
    fn connect(&mut self, subsystem: &str, queue: (u16, u16)) -> Result<u32, Status> {
        let (id, controller) = queue;
        let capsule = raw_tcp::connect_as(Digests::default(), id, 32, controller, subsystem, HOST_NQN);
        self.raw.say(&capsule);
        let completion = self.raw.response();
        if completion.status().is_success() { Ok(completion.dw0.get()) } else { Err(completion.status()) }
    }

    fn admin(&mut self, subsystem: &str) -> Result<u32, Status> {
        self.connect(subsystem, (0, 0xffff))
    }

    fn controller_status(&mut self) -> Status {
        let entry = SubmissionEntry::property_get(2, offset::CSTS, PropertySize::Four);
        self.raw.command(entry).status()
    }

    fn send(&mut self, message: &[u8]) -> Status {
        let entry = AuthenticationCommand::send(3, message.len() as u32);
        self.raw.say(&raw_tcp::capsule(Digests::default(), entry, message));
        self.raw.response().status()
    }

    fn receive(&mut self) -> Vec<u8> {
        let entry = AuthenticationCommand::receive(4, 4096).with_sgl(SglDescriptor::transport(4096));
        self.raw.say(&raw_tcp::capsule(Digests::default(), entry, &[]));
        let data = self.raw.hear().data;
        // The response follows, as a PDU of its own.
        assert!(self.raw.response().status().is_success());
        data
    }

    /// Authenticates, and has a key made.
    fn authenticate(&mut self, key: &DhchapKey, channel: SecureChannel) -> Result<Authenticated, String> {
        self.authenticate_at(NQN, key, channel)
    }

    fn authenticate_at(
        &mut self,
        subsystem: &str,
        key: &DhchapKey,
        channel: SecureChannel,
    ) -> Result<Authenticated, String> {
        let parties = Parties::new(name(HOST_NQN), name(subsystem), key, None);
        let policy = Arc::new(Policy::new(&[Hash::Sha256], &[Group::Ffdhe2048]).expect("a policy"));
        let (mut transaction, mut message) =
            HostTransaction::start(parties, policy, channel, 7).expect("a policy for this");
        let numbers = SequenceNumbers::new(&mut system_random());
        loop {
            assert!(self.send(&message).is_success());
            let received = self.receive();
            let mut step = transaction.on_message(&received, &numbers, &mut system_random());
            while let HostStep::Compute(computation) = step {
                step = transaction.on_computed(computation.run());
            }
            match step {
                HostStep::Exchange(next) => message = next,
                HostStep::SendLast(last) => {
                    assert!(self.send(&last).is_success());
                    break;
                }
                HostStep::Nothing | HostStep::Compute(_) => break,
            }
        }
        transaction.outcome().expect("it is over").cloned().map_err(|refusal| refusal.to_string())
    }
}

#[test]
fn a_host_whose_tls_is_not_ours_is_served_by_each_identity() {
    if !have("openssl") {
        return not_run("TLS against openssl: it is not installed");
    }
    let guarded = Guarded::start("required", "tls = \"required\"", &["tls_key"]);
    for version in [IdentityVersion::Zero, IdentityVersion::One] {
        for subsystem in [NQN, DISCOVERY_NQN] {
            let mut guest = guarded.over_tls(&guarded.tls(version, subsystem));
            let controller = guest.admin(subsystem).expect("connected");
            assert_eq!(controller & (ATR | ASCR), 0);
            assert_eq!(guest.controller_status(), Status::SUCCESS);
        }
        // The key is for one subsystem.
        let mut guest = guarded.over_tls(&guarded.tls(version, DISCOVERY_NQN));
        assert_eq!(guest.admin(NQN), Err(Status::CONNECT_INVALID_HOST.with_dnr()));
    }
}

#[test]
fn whoever_has_another_key_or_none_does_not_come_to_nvme() {
    if !have("openssl") {
        return not_run("TLS against openssl: it is not installed");
    }
    let guarded = Guarded::start("allowed", "", &["tls_key"]);
    let right = guarded.tls(IdentityVersion::One, NQN);
    let stranger = format!("NVMe0R01 nqn.2026-11.org.ringfab:other {NQN}");
    for (identity, key) in [(right.identity(), "00".repeat(32)), (&*stranger, "11".repeat(32))] {
        let client = Client::connect_as(guarded.address(), identity, &key);
        let mut raw = RawTcp::over(client.stream.try_clone().expect("the same stream"));
        assert!(raw.ends(), "{identity}");
    }
    wait_until("nobody is left", || guarded.target.usage().iter().all(|core| core.tcp_connections == 0));
    assert!(guarded.over_tls(&right).admin(NQN).is_ok());
}

#[test]
fn clear_text_is_let_in_where_it_is_allowed_and_nowhere_else() {
    for (listener, subsystem, connected) in [
        ("off", "", Some(true)),
        ("allowed", "", Some(true)),
        ("allowed", "tls = \"required\"", Some(false)),
        ("required", "", None),
    ] {
        let guarded = Guarded::start(listener, subsystem, &["tls_key"]);
        match connected {
            None => assert!(RawTcp::open(guarded.address()).say_and_end(), "no ICResp at all"),
            Some(true) => assert!(guarded.in_clear().admin(NQN).is_ok()),
            Some(false) => {
                let mut guest = guarded.in_clear();
                assert_eq!(guest.admin(NQN), Err(Status::CONNECT_INVALID_HOST.with_dnr()));
                // Discovery is there for it.
                assert!(guarded.in_clear().admin(DISCOVERY_NQN).is_ok());
            }
        }
    }
}

trait SayAndEnd {
    /// Says ICReq. Whether the other end then ends, without an answer.
    fn say_and_end(self) -> bool;
}

impl SayAndEnd for RawTcp {
    fn say_and_end(mut self) -> bool {
        self.say(&raw_tcp::ic_req(Digests::default()));
        let mut first = [0; 1];
        let read = std::io::Read::read(&mut self.stream, &mut first);
        // An alert of TLS is no ICResp, either.
        matches!(read, Ok(0) | Err(_)) || (first[0] == 21 && self.ends())
    }
}

#[test]
fn a_key_that_goes_takes_its_connections_with_it() {
    if !have("openssl") {
        return not_run("TLS against openssl: it is not installed");
    }
    let guarded = Guarded::start("allowed", "", &["tls_key"]);
    let psk = guarded.tls(IdentityVersion::Zero, NQN);
    let mut guest = guarded.over_tls(&psk);
    guest.admin(NQN).expect("connected");
    let mut clear = guarded.in_clear();
    clear.admin(NQN).expect("connected");
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST_NQN);
    let keys = host.tls.as_mut().expect("a key");
    keys.old = Some(keys.key.clone());
    keys.key.key = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    manager.set_host(host).expect("another key");
    assert_eq!(guest.controller_status(), Status::SUCCESS, "the old one counts beside it");
    // Its identity is that of the new one, too.
    let mut again = guarded.over_tls(&psk);
    again.admin(NQN).expect("connected");
    manager.revoke_old_keys(HOST_NQN).expect("there is an old one");
    assert!(guest.raw.ends() && again.raw.ends());
    assert_eq!(clear.controller_status(), Status::SUCCESS, "it has not used the key");
    let client = Client::connect(guarded.address(), &psk);
    assert!(RawTcp::over(client.stream.try_clone().expect("the same stream")).ends());
}

#[test]
fn a_host_with_a_key_for_authentication_comes_to_tls_with_it() {
    if !have("openssl") {
        return not_run("TLS against openssl: it is not installed");
    }
    let guarded =
        Guarded::start("allowed", "tls = \"required\"\nauthentication = \"required\"", &["dhchap_key"]);
    let mut guest = guarded.in_clear();
    let dw0 = guest.admin(NQN).expect("connected");
    assert_eq!(dw0 & (ATR | ASCR), ATR | ASCR);
    assert_eq!(guest.controller_status(), Status::AUTHENTICATION_REQUIRED.with_dnr());
    let made = guest.authenticate(&guarded.dhchap, SecureChannel::NEW_TLS_PSK).expect("authenticated");
    // In clear text it may do nothing more, nor have I/O queues.
    assert_eq!(guest.controller_status(), Status::AUTHENTICATION_REQUIRED.with_dnr());
    let mut io = guarded.in_clear();
    assert_eq!(io.connect(NQN, (1, dw0 as u16)), Err(Status::CONNECT_INVALID_HOST.with_dnr()));
    drop(guest);
    let psk = made.tls_psk(Names { host: name(HOST_NQN), subsystem: name(NQN) }).expect("a key");
    assert!(psk.identity().starts_with("NVMe1G01 "));
    let mut guest = guarded.over_tls(&psk);
    let dw0 = guest.admin(NQN).expect("connected");
    assert_eq!(dw0 & (ATR | ASCR), 0, "it has authenticated before");
    assert_eq!(guest.controller_status(), Status::SUCCESS);
    let enable = SubmissionEntry::property_set(1, offset::CC, PropertySize::Four, 0x0046_0001);
    assert!(guest.raw.command(enable).status().is_success());
    let mut io = guarded.over_tls(&psk);
    assert_eq!(io.connect(NQN, (1, dw0 as u16)).map(|dw0| dw0 & (ATR | ASCR)), Ok(0));
    // Another key is made over TLS, for the next time. What runs goes on.
    let newer = guest.authenticate(&guarded.dhchap, SecureChannel::REPLACE_TLS_PSK).expect("authenticated");
    let newer = newer.tls_psk(Names { host: name(HOST_NQN), subsystem: name(NQN) }).expect("a key");
    assert_eq!(guest.controller_status(), Status::SUCCESS);
    let client = Client::connect(guarded.address(), &psk);
    assert!(RawTcp::over(client.stream.try_clone().expect("the same stream")).ends(), "the older key");
    let mut again = guarded.over_tls(&newer);
    assert!(again.admin(NQN).is_ok());
    // Without the host's own key there is none that it has made.
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST_NQN);
    let keys = host.authentication.as_mut().expect("a key");
    keys.old = Some(OldKeys { key: keys.key.clone(), controller_key: None });
    keys.key.key = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    manager.set_host(host).expect("another key");
    assert_eq!(again.controller_status(), Status::SUCCESS, "the old one counts beside it");
    manager.revoke_old_keys(HOST_NQN).expect("there is an old one");
    assert!(again.raw.ends() && guest.raw.ends());
    let client = Client::connect(guarded.address(), &newer);
    assert!(RawTcp::over(client.stream.try_clone().expect("the same stream")).ends());
}

#[test]
fn concatenation_is_done_where_it_leads_to_tls_and_not_against_the_configuration() {
    let says = |listener: &str, subsystem: &str, channel| {
        let guarded = Guarded::start(listener, subsystem, &["dhchap_key"]);
        let mut guest = guarded.in_clear();
        let dw0 = guest.admin(NQN)?;
        Ok((
            dw0 & (ATR | ASCR),
            guest.authenticate(&guarded.dhchap, channel).map(|made| made.generated_psk.is_some()),
        ))
    };
    let (new, none) = (SecureChannel::NEW_TLS_PSK, SecureChannel::NONE);
    assert_eq!(says("allowed", "", new), Ok((ATR, Ok(true))));
    assert_eq!(says("allowed", "", none), Ok((ATR, Ok(false))));
    let refused: Status = Status::CONNECT_INVALID_HOST.with_dnr();
    assert_eq!(says("allowed", "tls = \"required\"\nconcatenation = \"refused\"", new), Err(refused));
    for (listener, subsystem, channel) in [
        ("off", "", new),
        ("allowed", "concatenation = \"refused\"", new),
        ("allowed", "", SecureChannel::REPLACE_TLS_PSK),
        ("allowed", "tls = \"required\"", none),
    ] {
        let (_, made) = says(listener, subsystem, channel).expect("connected");
        let refusal = made.expect_err("refused");
        assert!(refusal.contains("concatenation"), "{refusal}");
    }
}

#[test]
fn discovery_asks_for_authentication_where_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    write_key(&folder.path().join("key"), key.to_text().expose());
    let tables = |demand: &str| {
        format!(
            "{MEMORY}[[host]]\nnqn = {HOST_NQN:?}\ndhchap_key = \"file:{}\"\n[discovery]\n{demand}\n",
            folder.path().join("key").display()
        )
    };
    for (demand, asks) in [("", 0), ("authentication = \"required\"", ATR)] {
        let target = TestTarget::with_listener("transport = \"tcp\"", &tables(demand));
        let mut guest =
            Guest { raw: RawTcp::initialize(target.address(), Digests::default()), _client: None };
        assert_eq!(guest.admin(DISCOVERY_NQN).map(|dw0| dw0 & (ATR | ASCR)), Ok(asks));
        let stranger = "nqn.2026-11.org.ringfab:other";
        let mut raw = RawTcp::initialize(target.address(), Digests::default());
        raw.say(&raw_tcp::connect_as(Digests::default(), 0, 32, 0xffff, DISCOVERY_NQN, stranger));
        assert_eq!(raw.response().status().is_success(), asks == 0);
    }
}

/// What a target serves is written to a file, and read again.
#[test]
fn discovery_asks_for_authentication_after_a_reload_and_whoever_has_not_done_so_is_ended() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let key = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    write_key(&folder.path().join("key"), key.to_text().expose());
    let config = folder.path().join("target.toml");
    let socket = folder.path().join("control");
    let write = |demand: &str| {
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nsocket = {socket:?}\n[[listener]]\n\
             address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n[[subsystem]]\nnqn = {NQN:?}\n\
             allow_any_host = true\n{MEMORY}[[host]]\nnqn = {HOST_NQN:?}\ndhchap_key = \"file:{}\"\n\
             [discovery]\nauthentication = {demand:?}\n",
            folder.path().join("state"),
            folder.path().join("key").display(),
        );
        std::fs::write(&config, text).expect("a configuration");
    };
    write("optional");
    let at = config.display().to_string();
    let service =
        Service::start("ringfab-target", |_| ["serve", "--config", &at].map(str::to_owned).to_vec());
    let reload = |demand: &str| {
        write(demand);
        let mut command = std::process::Command::new(ringfab_tests::program("ringfab-target"));
        let output = command.arg("reload").arg("--socket").arg(&socket).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let address = ([127, 0, 0, 1], port).into();
    let guest = || Guest { raw: RawTcp::initialize(address, Digests::default()), _client: None };
    let (mut stranger, mut disk) = (guest(), guest());
    assert_eq!(stranger.admin(DISCOVERY_NQN).map(|dw0| dw0 & ATR), Ok(0));
    disk.admin(NQN).expect("connected");
    disk.authenticate(&key, SecureChannel::NONE).expect("authenticated");
    let said = reload("required");
    assert!(said.contains("~ discovery.authentication: optional -> required"), "{said}");
    assert!(stranger.raw.ends());
    assert!(service.log().contains("its host has not proved who it is, which discovery requires"));
    assert_eq!(disk.controller_status(), Status::SUCCESS, "no discovery controller");
    let mut known = guest();
    assert_eq!(known.admin(DISCOVERY_NQN).map(|dw0| dw0 & ATR), Ok(ATR));
    known.authenticate_at(DISCOVERY_NQN, &key, SecureChannel::NONE).expect("authenticated");
    assert_eq!(known.controller_status(), Status::SUCCESS);
    // It is asked of nobody any more, and who has done so goes on.
    assert!(reload("optional").contains("required -> optional"));
    assert_eq!(known.controller_status(), Status::SUCCESS);
    assert_eq!(guest().admin(DISCOVERY_NQN).map(|dw0| dw0 & ATR), Ok(0));
}

/// Linux hosts never send close_notify.
#[test]
fn a_host_that_has_left_may_end_its_stream_as_it_likes_and_another_one_was_cut_off() {
    if !have("openssl") {
        return not_run("TLS against openssl: it is not installed");
    }
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let configured = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    write_key(&folder.path().join("key"), configured.to_text().expose());
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nsocket = {:?}\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = {port}\ntransport = \"tcp\"\ntls = \"required\"\n[[subsystem]]\nnqn = {NQN:?}\n\
         allow_any_host = true\n{MEMORY}[[host]]\nnqn = {HOST_NQN:?}\ntls_key = \"file:{}\"\n",
        folder.path().join("state"),
        folder.path().join("control"),
        folder.path().join("key").display(),
    );
    std::fs::write(folder.path().join("target.toml"), text).expect("a configuration");
    let config = folder.path().join("target.toml").display().to_string();
    let service =
        Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec());
    let names = Names { host: name(HOST_NQN), subsystem: name(NQN) };
    let retained = configured.retained(names.host, Derivation::Specified);
    let psk = retained.tls(IdentityVersion::One, configured.suite(), names, Derivation::Specified);
    let psk = psk.expect("a key");
    // Enabled, or shut down, or disabled again.
    let (enabled, shut_down, disabled) = (0x0046_0001, 0x0046_4001, 0x0046_0000);
    let rows = [
        (vec![enabled, shut_down], "the host has left"),
        (vec![enabled, disabled], "the host has left"),
        (vec![enabled], "the connection was cut off"),
    ];
    for (number, (registers, said)) in (1..).zip(rows) {
        let client = Client::connect(([127, 0, 0, 1], port).into(), &psk);
        let mut raw =
            RawTcp::over(client.stream.try_clone().expect("the same stream")).greet(Digests::default());
        raw.say(&raw_tcp::connect_as(Digests::default(), 0, 32, 0xffff, NQN, HOST_NQN));
        assert!(raw.response().status().is_success());
        for value in registers {
            let entry = SubmissionEntry::property_set(1, offset::CC, PropertySize::Four, value);
            assert!(raw.command(entry).status().is_success());
        }
        // It is killed.
        drop(client);
        let lines = || -> Vec<String> {
            let log = service.log();
            log.lines().filter(|line| line.contains(" disconnected ")).map(str::to_owned).collect()
        };
        wait_until("the end of the connection", || lines().len() == number);
        assert!(lines()[number - 1].contains(said), "{}", service.log());
    }
    assert_eq!(service.log().matches("cut off").count(), 1, "{}", service.log());
}
