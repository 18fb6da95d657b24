//! Our initiator with a target that answers as SPDK's does.

use std::time::Duration;

use ringfab_auth::{CipherSuite, ConfiguredPsk, DhchapKey, Hash, system_random};
use ringfab_front_ends::advice::Advised;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{
    Authentication, AuthenticationFailure, Cause, ConnectError, ConnectOptions, HostIdentity, Key, Keys, Tls,
    TlsKey, Url,
};
use ringfab_tests::raw_tcp::HOST_NQN;
use ringfab_tests::spdk_target::{SpdkKeys, SpdkTarget};
use ringfab_tests::{NQN, wait_until};

/// What a host has.
#[derive(Clone)]
struct Own {
    dhchap: DhchapKey,
    controller: Option<DhchapKey>,
    psk: Option<ConfiguredPsk>,
}

fn generate(hash: Hash) -> DhchapKey {
    DhchapKey::generate(hash, Some(hash), &mut system_random())
}

impl Own {
    fn new(both_ways: bool, suite: Option<CipherSuite>) -> Self {
        Self {
            dhchap: generate(Hash::Sha256),
            controller: both_ways.then(|| generate(Hash::Sha512)),
            psk: suite.map(|suite| ConfiguredPsk::generate(suite, &mut system_random())),
        }
    }

    /// A target with the same keys.
    fn target(&self) -> SpdkTarget {
        SpdkTarget::start(SpdkKeys {
            host: HOST_NQN.to_owned(),
            dhchap: self.dhchap.clone(),
            controller: self.controller.clone(),
            psk: self.psk.clone(),
        })
    }

    fn keys(&self) -> Keys {
        Keys { host: Key::Known(self.dhchap.clone()), controller: self.controller.clone().map(Key::Known) }
    }

    fn connect(&self, target: &SpdkTarget) -> Result<Controller, ConnectError> {
        let url = format!("nvme+tcp://{}/{NQN}?hostnqn={HOST_NQN}&queues=2", target.address);
        let url: Url = url.parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        let mut options = ConnectOptions::new(url, host);
        options.authentication = Some(Authentication::new(self.keys()));
        options.tls = self.psk.clone().map(|psk| Tls::new(TlsKey::Known(psk)));
        options.reconnect.delay = Duration::from_millis(20);
        Controller::connect(options, EngineOptions::default())
    }
}

/// Writes in a capsule and after an R2T, and reads it back in one PDU and in several.
fn exchange(controller: &Controller, seed: u8) {
    for blocks in [1_usize, 8, 200, 512] {
        let written: Vec<u8> = (0..blocks * 512).map(|at| (at / 512) as u8 ^ at as u8 ^ seed).collect();
        controller.write_at(1, 0, &written, false).expect("written");
        let mut read = vec![0; written.len()];
        controller.read_at(1, 0, &mut read).expect("read");
        assert!(read == written, "{blocks} blocks");
    }
    controller.flush(1).expect("flushed");
}

#[test]
fn every_queue_authenticates_with_messages_shorter_than_the_room_for_them_in_clear_and_over_tls() {
    let suites = [None, Some(CipherSuite::Aes128GcmSha256), Some(CipherSuite::Aes256GcmSha384)];
    for (both_ways, suite) in [false, true].into_iter().flat_map(|both| suites.map(|suite| (both, suite))) {
        let own = Own::new(both_ways, suite);
        let target = own.target();
        let controller = own.connect(&target).unwrap_or_else(|error| panic!("{error}"));
        exchange(&controller, 1);
        let seen = target.seen();
        assert_eq!(seen.authenticated, [0, 1, 2], "the admin queue and both I/O queues");
        // Two messages for each queue: the challenge with a DH value of 3072 bits, and Success1.
        let success = 16 + if both_ways { 64 } else { 0 };
        assert_eq!(seen.message_bytes, [16 + 64 + 384, success].repeat(3));
        assert!(seen.r2ts > 0);
        let prefix = suite.map(|suite| match suite {
            CipherSuite::Aes128GcmSha256 => "NVMe0R01 ",
            CipherSuite::Aes256GcmSha384 => "NVMe0R02 ",
        });
        let rightly = |identity: &String| prefix.is_some_and(|prefix| identity.starts_with(prefix));
        assert_eq!(seen.identities.len(), if suite.is_some() { 3 } else { 0 }, "{:?}", seen.identities);
        assert!(seen.identities.iter().all(rightly), "{:?}", seen.identities);
        controller.detach().expect("in order");
    }
}

#[test]
fn a_connection_that_is_not_authenticated_again_goes_on() {
    let own = Own::new(true, None);
    let target = own.target();
    let controller = own.connect(&target).expect("attached");
    exchange(&controller, 1);
    for keys in [None, Some(own.keys())] {
        let error = controller.reauthenticate(keys).expect_err("only once");
        assert!(
            matches!(error.cause, Cause::Authentication(AuthenticationFailure::OnlyOnce)),
            "it says so: {error}"
        );
        let said = Advised(error).to_string();
        assert!(said.contains("does not authenticate a connection again; reset"), "{said}");
        exchange(&controller, 2);
    }
    assert_eq!((target.seen().refused_again, controller.reconnects()), (2, 0));
    // What is advised helps.
    controller.reset().expect("begun");
    wait_until("it is attached anew", || controller.reconnects() == 1);
    exchange(&controller, 3);
    assert_eq!(target.seen().authenticated, [0, 1, 2, 0, 1, 2]);
    controller.detach().expect("in order");
}

#[test]
fn wrong_keys_are_told_from_right_ones_at_both_ends() {
    let own = Own::new(true, None);
    let target = own.target();
    let other_host = Own { dhchap: generate(Hash::Sha256), ..own.clone() };
    let error = other_host.connect(&target).expect_err("another key").to_string();
    assert!(error.contains("the target refuses the key of this host"), "{error}");
    let other_controller = Own { controller: Some(generate(Hash::Sha256)), ..own.clone() };
    let error = other_controller.connect(&target).expect_err("another key").to_string();
    assert!(error.contains("the target has another controller key than this host"), "{error}");
    assert!(target.seen().authenticated.is_empty());
    own.connect(&target).expect("and the right ones are").detach().expect("in order");
}
