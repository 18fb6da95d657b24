//! Connect over TLS: the key of the connection says whose it is, and the configuration who needs one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use ringfab_auth::{CipherSuite, ConfiguredPsk, Derivation, IdentityVersion, KeySource, Names, TlsPsk};
use ringfab_fabric::tcp::{ProtectedBy, Security};
use tempfile::NamedTempFile;

use super::*;
use crate::config::{Demands, ListenerTls};
use crate::model::TlsChannel;
use crate::target::{NoPsk, tls_key_age};

const OWN: &str = "nqn.2024-01.org.example:discovery";
const CLEAR: &str = "192.0.2.1:4420";
const ALLOWED: &str = "192.0.2.1:4421";
const REQUIRED: &str = "192.0.2.1:4422";

/// A target with a key for a host.
struct Guarded {
    target: Arc<Target>,
    key: ConfiguredPsk,
    _file: NamedTempFile,
}

fn guarded(suite: CipherSuite, derivation: &str) -> Guarded {
    let key = ConfiguredPsk::generate(suite, &mut system_random());
    let file = NamedTempFile::new().unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(file.path(), key.to_text().expose()).unwrap();
    let listeners: String = [(4420, "off"), (4421, "allowed"), (4422, "required")]
        .map(|(port, tls)| {
            format!(
                "[[listener]]\naddress = \"192.0.2.1\"\nport = {port}\ntransport = \"tcp\"\ntls = {tls:?}\n"
            )
        })
        .concat();
    let (_, subsystems) = CONFIG.split_once("[[subsystem]]").unwrap();
    let text = format!(
        "[discovery]\nnqn = {OWN:?}\n{listeners}[[subsystem]]{subsystems}\n[[host]]\nnqn = {FRIEND:?}\n\
         tls_key = \"file:{}\"\ntls_derivation = {derivation:?}\n",
        file.path().display()
    );
    let config = Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
    let target = Target::new(&config, &Identity::from_seed([7; 32])).unwrap();
    Guarded { target, key, _file: file }
}

impl Guarded {
    fn psk(&self, version: IdentityVersion, host: &str, subsystem: &str, derivation: Derivation) -> TlsPsk {
        let names = Names { host: Nqn::new(host).unwrap(), subsystem: Nqn::new(subsystem).unwrap() };
        let retained = self.key.retained(names.host, derivation);
        retained.tls(version, self.key.suite(), names, derivation).unwrap()
    }

    /// The one key with an identity.
    fn find(&self, identity: &[u8]) -> Result<TlsPsk, NoPsk> {
        let mut found = self.target.psks(&self.target.served(), identity)?;
        assert_eq!(found.len(), 1);
        Ok(found.remove(0))
    }

    fn channel(&self, host: &str, subsystem: &str) -> Arc<TlsChannel> {
        self.channel_of(IdentityVersion::One, host, subsystem)
    }

    fn channel_of(&self, version: IdentityVersion, host: &str, subsystem: &str) -> Arc<TlsChannel> {
        let psk = self.psk(version, host, subsystem, Derivation::Specified);
        let (identity, suite) = (psk.identity().to_owned(), psk.suite());
        let (psk, by) = (psk.secret().clone(), ProtectedBy::Process);
        Arc::new(TlsChannel::new(&Security { suite, identity, psk, by }).unwrap())
    }

    fn change(&self, edit: impl FnOnce(&mut crate::model::Draft)) -> Vec<&'static str> {
        let mut draft = self.target.served().draft();
        edit(&mut draft);
        let (served, difference) = self.target.publish(draft.check().unwrap()).unwrap();
        assert!(!difference.is_empty());
        let without = self.target.controllers_without_right(&served, &difference);
        self.target.move_to_listeners(&served, &difference);
        without.into_iter().map(|(_, why)| why).collect()
    }
}

fn at_listener(
    connect: &Connect,
    target: &Arc<Target>,
    listener: &str,
    tls: Option<&Arc<TlsChannel>>,
) -> Result<Attached, String> {
    let served = target.served();
    let way = way(&served, listener.parse().unwrap());
    let command: SubmissionEntry = zerocopy::transmute!(connect.command);
    let request = ConnectRequest {
        served: &served,
        command: &command,
        data: connect.data.as_bytes(),
        queue_id: connect.transport_queue,
        queue_entries: 128,
        core: 3,
        way: &way,
        peer: "192.0.2.2:40000".parse().unwrap(),
        tls,
    };
    target.connect(&request, at(0)).map_err(|failure| Refusal::new(target, &request, failure).to_string())
}

#[test]
fn a_key_is_found_by_each_of_its_identities_and_by_no_other() {
    for suite in [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384] {
        let derivations = [
            ("specified", Derivation::Specified),
            ("libnvme-before-2025-07", Derivation::LibnvmeBefore202507),
        ];
        for (name, derivation) in derivations {
            let guarded = guarded(suite, name);
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                for subsystem in [DISK, PRIVATE, DISCOVERY_NQN, OWN] {
                    let psk = guarded.psk(version, FRIEND, subsystem, derivation);
                    assert_eq!(guarded.find(psk.identity().as_bytes()), Ok(psk));
                }
            }
            let other = match derivation {
                Derivation::Specified => Derivation::LibnvmeBefore202507,
                Derivation::LibnvmeBefore202507 => Derivation::Specified,
            };
            let psk = guarded.psk(IdentityVersion::One, FRIEND, DISK, other);
            assert_eq!(guarded.find(psk.identity().as_bytes()), Err(NoPsk::Other(FRIEND.to_owned())));
        }
    }
}

#[test]
fn who_may_not_use_a_subsystem_finds_no_key_for_it() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let find = |identity: String| guarded.find(identity.as_bytes()).map(drop).unwrap_err().to_string();
    assert!(find(format!("NVMe0R01 {STRANGER} {PRIVATE}")).contains("is not among the allowed_hosts"));
    assert!(find(format!("NVMe0R01 {STRANGER} {DISK}")).contains("has no tls_key"));
    assert!(
        find(format!("NVMe0R01 {FRIEND} nqn.2024-01.org.example:nothing")).contains("there is no subsystem")
    );
    assert!(find(format!("NVMe0R02 {FRIEND} {DISK}")).contains("has another identity"), "another suite");
    assert!(find(format!("NVMe1R01 {FRIEND} {DISK} wrong")).contains("has another identity"));
    assert!(find(format!("NVMe1G01 {FRIEND} {DISK} digest")).contains("no key was made"));
    assert!(find("Client_identity".to_owned()).contains("none of NVMe/TCP"));
}

#[test]
fn the_names_of_a_connect_are_those_of_the_key() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let target = &guarded.target;
    let tls = guarded.channel(FRIEND, DISK);
    let refused = |host, subsystem| {
        at_listener(&Connect::admin(subsystem, host), target, ALLOWED, Some(&tls)).map(drop).unwrap_err()
    };
    let told = format!("the TLS key of the connection is that of {FRIEND} for {DISK}");
    assert_eq!([refused(STRANGER, DISK), refused(FRIEND, PRIVATE), refused(FRIEND, OWN)], [&*told; 3]);
    let admin = at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&tls)).unwrap();
    assert_eq!(admin.controller.host().tls.as_ref(), Some(&tls));
    enable(&admin.controller);
    // All queues of the controller are over TLS, or none.
    let queue = |tls| {
        let connect = Connect::queue(1, admin.controller.id(), DISK, FRIEND);
        at_listener(&connect, target, ALLOWED, tls).map(drop)
    };
    let told = "the connection is in clear text, and the other queues of the controller are over TLS";
    assert_eq!(queue(None).unwrap_err(), told);
    queue(Some(&tls)).unwrap();
    let admin = at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, None).unwrap();
    enable(&admin.controller);
    let connect = Connect::queue(1, admin.controller.id(), DISK, FRIEND);
    let told = "the connection is over TLS, and the other queues of the controller are in clear text";
    assert_eq!(at_listener(&connect, target, ALLOWED, Some(&tls)).map(drop).unwrap_err(), told);
    // A key for discovery has the name by which the host asks for it.
    for name in [DISCOVERY_NQN, OWN] {
        let tls = guarded.channel(FRIEND, name);
        assert!(at_listener(&Connect::admin(name, FRIEND), target, REQUIRED, Some(&tls)).is_ok());
    }
}

#[test]
fn clear_text_is_refused_where_tls_is_required() {
    let guarded = guarded(CipherSuite::Aes256GcmSha384, "specified");
    let target = &guarded.target;
    let refused = |listener| {
        at_listener(&Connect::admin(PRIVATE, FRIEND), target, listener, None).map(drop).unwrap_err()
    };
    let lacks = "and the connection is in clear text: the host has not used its tls_key (ringfab: --tls-key, Linux: \
                 nvme connect --tls)";
    assert_eq!(refused(REQUIRED), format!("the listener requires TLS, {lacks}"));
    assert!(at_listener(&Connect::admin(PRIVATE, FRIEND), target, CLEAR, None).is_ok());
    let tls = guarded.channel(FRIEND, PRIVATE);
    assert!(at_listener(&Connect::admin(PRIVATE, FRIEND), target, ALLOWED, Some(&tls)).is_ok());
    let demands = Demands { tls: true, ..Demands::default() };
    let ended = guarded.change(|draft| draft.set_demands(PRIVATE, demands).unwrap());
    assert_eq!(ended, ["its connections are in clear text, and the subsystem requires TLS"]);
    for listener in [CLEAR, ALLOWED] {
        assert_eq!(refused(listener), format!("the subsystem requires TLS, {lacks}"));
    }
}

#[test]
fn a_listener_that_takes_the_place_of_another_has_its_controllers_and_they_end_with_it() {
    let guarded = guarded(CipherSuite::Aes256GcmSha384, "specified");
    let target = &guarded.target;
    let connect = |listener| at_listener(&Connect::admin(DISK, FRIEND), target, listener, None).unwrap();
    let (clear, allowed) = (connect(CLEAR).controller, connect(ALLOWED).controller);
    let before = clear.way().listener;
    let config = crate::config::ListenerConfig { io_queues_max: 1, ..before.config().clone() };
    let none: [&str; 0] = [];
    assert_eq!(guarded.change(|draft| draft.replace_listener(before.port_id(), config).unwrap()), none);
    let now = clear.way().listener;
    assert!(!Arc::ptr_eq(&now, &before) && now.config().io_queues_max == 1);
    assert_eq!(allowed.way().listener.address(), ALLOWED.parse().unwrap());
    let ended = guarded.change(|draft| draft.remove_listener(now.port_id()).unwrap());
    assert_eq!(ended, ["the listener on which it came is gone"], "that of the other one is still there");
}

#[test]
fn whoever_used_a_key_that_is_gone_is_ended_and_does_not_come_back() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let target = &guarded.target;
    let channels = [DISK, DISCOVERY_NQN].map(|name| guarded.channel(FRIEND, name));
    for tls in &channels {
        at_listener(&Connect::admin(tls.subsystem(), FRIEND), target, ALLOWED, Some(tls)).unwrap();
    }
    at_listener(&Connect::admin(DISK, FRIEND), target, CLEAR, None).unwrap();
    let host = target.served().limited_host(FRIEND).unwrap().config().clone();
    let ended = guarded.change(|draft| draft.set_host(&crate::config::HostConfig { tls: None, ..host }));
    assert_eq!(ended, ["the key of its TLS is revoked"; 2], "not the one in clear text");
    let refused = at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&channels[0]));
    assert_eq!(refused.map(drop).unwrap_err(), format!("the host {FRIEND} has no tls_key"));
}

#[test]
fn the_same_key_at_another_place_ends_nobody() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let target = &guarded.target;
    let tls = guarded.channel(FRIEND, DISK);
    at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&tls)).unwrap();
    let mut host = target.served().limited_host(FRIEND).unwrap().config().clone();
    host.tls.as_mut().unwrap().key.source = KeySource::File("/elsewhere".into());
    let none: [&str; 0] = [];
    assert_eq!(guarded.change(|draft| draft.set_host(&host)), none);
    let derivation = &mut host.tls.as_mut().unwrap().derivation;
    assert_eq!(*derivation, Derivation::Specified);
    *derivation = Derivation::LibnvmeBefore202507;
    assert_eq!(guarded.change(|draft| draft.set_host(&host)), none, "it counts from the next connection");
    let refused = at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&tls)).map(drop);
    assert!(refused.unwrap_err().contains("has another identity"));
}

/// The life of a key: new, old beside a newer one, and taken away.
#[test]
fn an_old_key_counts_beside_the_new_one_and_ends_connections_when_it_is_taken_away() {
    use crate::config::ConfiguredKey;
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let (target, none): (_, [&str; 0]) = (&guarded.target, []);
    let versions = [IdentityVersion::Zero, IdentityVersion::One];
    let old = versions.map(|version| guarded.channel_of(version, FRIEND, DISK));
    let newer = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    let mut host = target.served().limited_host(FRIEND).unwrap().config().clone();
    let keys = host.tls.as_mut().unwrap();
    keys.old = Some(keys.key.clone());
    keys.key = ConfiguredKey { source: KeySource::File("/newer".into()), key: newer.clone() };
    host.old_keys_until = "2000-01-01T00:00:00Z".parse().ok();
    let connect = |tls| at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(tls)).map(drop);
    for tls in &old {
        connect(tls).unwrap();
    }
    assert_eq!(guarded.change(|draft| draft.set_host(&host)), none, "a newer key has come");
    // Its time is over.
    assert!(old.iter().all(|tls| connect(tls).is_err()));
    host.old_keys_until = "2999-01-01T00:00:00Z".parse().ok();
    assert_eq!(guarded.change(|draft| draft.set_host(&host)), none);
    for tls in &old {
        connect(tls).unwrap();
        assert_eq!(tls_key_age(tls, &target.served()), "old");
    }
    // An identity of version 0 does not say which key it is.
    assert_eq!(target.psks(&target.served(), old[0].identity().as_bytes()).map(|psks| psks.len()), Ok(2));
    assert_eq!(target.psks(&target.served(), old[1].identity().as_bytes()).map(|psks| psks.len()), Ok(1));
    let with_new = Guarded { key: newer, ..guarded };
    let new = versions.map(|version| with_new.channel_of(version, FRIEND, DISK));
    let target = &with_new.target;
    for tls in &new {
        at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(tls)).unwrap();
        assert_eq!(tls_key_age(tls, &target.served()), "new");
    }
    host.tls.as_mut().unwrap().old = None;
    let ended = with_new.change(|draft| draft.set_host(&host));
    assert_eq!(ended, ["the key of its TLS is revoked"; 4], "those with the old key, and no others");
    assert_eq!(tls_key_age(&old[1], &target.served()), "replaced");
}

/// The handshake may have begun before the key became another one, which an identity of version 0 does not say.
#[test]
fn a_connection_with_the_key_of_yesterday_is_refused_whatever_its_identity_says() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let before: Vec<_> = [IdentityVersion::Zero, IdentityVersion::One]
        .map(|version| guarded.channel_of(version, FRIEND, DISK))
        .into();
    let target = &guarded.target;
    let mut host = target.served().limited_host(FRIEND).unwrap().config().clone();
    host.tls.as_mut().unwrap().key.key =
        ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    guarded.change(|draft| draft.set_host(&host));
    let refused = before.iter().map(|tls| {
        at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(tls)).map(drop).unwrap_err()
    });
    let refused: Vec<String> = refused.collect();
    assert!(refused[0].contains("has another tls_key now"), "{refused:?}");
    assert!(refused[1].contains("has another identity"), "{refused:?}");
}

#[test]
fn a_listener_that_requires_tls_now_ends_who_is_in_clear_text() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let target = &guarded.target;
    let tls = guarded.channel(FRIEND, DISK);
    at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&tls)).unwrap();
    at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, None).unwrap();
    let ended = guarded.change(|draft| {
        let old = target.served().listeners()[1].config().clone();
        let new = crate::config::ListenerConfig { tls: ListenerTls::Required, ..old };
        draft.replace_listener(2, new).unwrap();
    });
    let told = "its connections are in clear text, and the listener on which it came requires TLS";
    assert_eq!(ended, [told]);
}

#[test]
fn whoever_has_a_key_that_authentication_has_made_is_ended_when_the_subsystem_refuses_such_keys() {
    let guarded = guarded(CipherSuite::Aes128GcmSha256, "specified");
    let target = &guarded.target;
    let names = Names { host: Nqn::new(FRIEND).unwrap(), subsystem: Nqn::new(DISK).unwrap() };
    let authenticated = crate::target::generated::tests::authenticated(FRIEND, DISK);
    let psk = target.keep_psk(names, &authenticated, None, at(0)).unwrap();
    let (identity, suite, by) = (psk.identity().to_owned(), psk.suite(), ProtectedBy::Process);
    let security = Security { suite, identity, psk: psk.secret().clone(), by };
    let made = Arc::new(TlsChannel::new(&security).unwrap());
    let configured = guarded.channel(FRIEND, DISK);
    for tls in [&made, &configured] {
        at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(tls)).unwrap();
    }
    let demands = Demands { concatenation: false, ..Demands::default() };
    let ended = guarded.change(|draft| draft.set_demands(DISK, demands).unwrap());
    assert_eq!(ended, ["authentication has made its key for TLS, which the subsystem refuses"]);
    assert!(at_listener(&Connect::admin(DISK, FRIEND), target, ALLOWED, Some(&made)).is_err());
}
