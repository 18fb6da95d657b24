//! Our initiator authenticates in clear text, and comes back over TLS with the key that this has made.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ringfab_auth::{DhchapKey, Group, Hash, Policy, system_random};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{
    Authentication, AuthenticationFailure, Cause, ConnectError, ConnectOptions, HostIdentity, Key, Keys,
    Step, TlsFailure, Url,
};
use ringfab_tests::raw_tcp::HOST_NQN;
use ringfab_tests::{NQN, program, wait_until};

use crate::ends::exchange;
use crate::support::Guarded;

/// The first byte of an ICReq, and that of a TLS handshake.
const CLEAR: u8 = 0;
const TLS: u8 = 22;

/// What a host of a target with keys has: with a hash function, and with or without the controller's key.
fn options(guarded: &Guarded, url: Url, hash: Hash, both_ways: bool) -> ConnectOptions {
    let host = HostIdentity::for_url(&url).expect("an identity");
    let controller = both_ways.then(|| Key::Known(guarded.controller.clone()));
    let mut authentication =
        Authentication::new(Keys { host: Key::Known(guarded.dhchap.clone()), controller });
    authentication.policy = Policy::new(&[hash], &[Group::Null, Group::Ffdhe2048]).expect("a policy");
    let mut options = ConnectOptions::new(url, host);
    options.authentication = Some(authentication);
    options.concatenation = true;
    options.reconnect.delay = Duration::from_millis(50);
    options
}

fn connect(options: ConnectOptions, threads: u16) -> Result<Controller, ConnectError> {
    Controller::connect(options, EngineOptions::with_threads(threads))
}

/// A target that takes part, and a host that has a key there.
fn guarded(listener: &str, subsystem: &str) -> Guarded {
    Guarded::on_cores(
        2,
        ringfab_auth::CipherSuite::Aes128GcmSha256,
        listener,
        subsystem,
        &["dhchap_key", "dhchap_controller_key"],
    )
}

fn url(guarded: &Guarded, address: SocketAddr) -> Url {
    let mut url = guarded.target.url(&format!("&hostnqn={HOST_NQN}&queues=4&depth=16"));
    url.port = address.port();
    url
}

/// The identities of the keys of the host's controllers at the target; none where one is in clear text.
fn identities(guarded: &Guarded) -> Vec<Option<String>> {
    let all = guarded.target.target.controllers();
    let all = all.iter().map(|one| one.host()).filter(|host| host.nqn == HOST_NQN);
    all.map(|host| host.tls.as_ref().map(|tls| tls.identity().to_owned())).collect()
}

/// The one key of the host, as long as it has one connection.
fn identity(guarded: &Guarded) -> String {
    match &identities(guarded)[..] {
        [Some(identity)] => identity.clone(),
        other => panic!("not one controller over TLS: {other:?}"),
    }
}

/// Passes everything on between a host and a target, and cuts it off.
struct Wire {
    address: SocketAddr,
    passing: Arc<Mutex<Passing>>,
}

#[derive(Default)]
struct Passing {
    /// The first byte of each connection, which says what it is.
    first: Vec<u8>,
    streams: Vec<TcpStream>,
    /// Whether those that begin with TLS are answered in clear text.
    takes_tls_away: bool,
}

impl Wire {
    fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let passing = Arc::<Mutex<Passing>>::default();
        let shared = Arc::clone(&passing);
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let passing = Arc::clone(&shared);
                // Either end may go at any time.
                thread::spawn(move || drop(pass_on(host, target, &passing)));
            }
        });
        Self { address, passing }
    }

    fn passing(&self) -> MutexGuard<'_, Passing> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts every connection, without what TLS says at an end.
    fn cut(&self) {
        for stream in self.passing().streams.drain(..) {
            // It may be gone already.
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(mut host: TcpStream, target: SocketAddr, passing: &Mutex<Passing>) -> io::Result<()> {
    let mut first = [0];
    host.read_exact(&mut first)?;
    let mut target = TcpStream::connect(target)?;
    {
        let mut passing = passing.lock().unwrap_or_else(PoisonError::into_inner);
        passing.first.push(first[0]);
        passing.streams.extend([host.try_clone()?, target.try_clone()?]);
        if first[0] == TLS && passing.takes_tls_away {
            let icresp = [1_u8, 0, 128, 0, 128, 0, 0, 0];
            return host.write_all(&[&icresp[..], &[0; 120]].concat());
        }
    }
    target.write_all(&first)?;
    let (mut from_target, mut to_host) = (target.try_clone()?, host.try_clone()?);
    thread::spawn(move || {
        let _gone = io::copy(&mut from_target, &mut to_host);
        to_host.shutdown(Shutdown::Write)
    });
    io::copy(&mut host, &mut target)?;
    target.shutdown(Shutdown::Write)
}

#[test]
fn only_the_first_connection_is_in_clear_text_and_all_others_have_the_key_that_it_has_made() {
    for (hash, both_ways, threads, subsystem) in [
        (Hash::Sha256, false, 1, ""),
        (Hash::Sha384, true, 2, "tls = \"required\"\nauthentication = \"required\""),
    ] {
        let guarded = guarded("allowed", subsystem);
        let wire = Wire::new(guarded.address());
        let url = url(&guarded, wire.address);
        let controller = connect(options(&guarded, url, hash, both_ways), threads).expect("attached");
        assert_eq!(controller.info().queues, 4);
        exchange(&controller, 1);
        assert_eq!(wire.passing().first, [CLEAR, TLS, TLS, TLS, TLS, TLS]);
        let suite = if hash == Hash::Sha256 { "NVMe1G01" } else { "NVMe1G02" };
        assert!(identity(&guarded).starts_with(&format!("{suite} {HOST_NQN} {NQN} ")));
        controller.detach().expect("in order");
        wait_until("the end of all controllers", || identities(&guarded).is_empty());
    }
}

#[test]
fn a_connection_that_was_cut_comes_back_with_another_key() {
    let guarded = guarded("allowed", "tls = \"required\"");
    let wire = Wire::new(guarded.address());
    let options = options(&guarded, url(&guarded, wire.address), Hash::Sha256, true);
    let controller = connect(options, 2).expect("attached");
    exchange(&controller, 1);
    let mut known = vec![identity(&guarded)];
    for round in 2..5 {
        wire.passing().first.clear();
        wire.cut();
        // The target may still have the controller of before.
        exchange(&controller, round);
        let mut newest = None;
        wait_until("one controller", || {
            let all = identities(&guarded);
            newest = all.first().cloned().flatten();
            all.len() == 1
        });
        let newest = newest.expect("over TLS");
        assert!(!known.contains(&newest), "each connection has a key of its own");
        known.push(newest);
        let first = wire.passing().first.clone();
        assert_eq!((first[0], first.iter().filter(|one| **one == CLEAR).count()), (CLEAR, 1), "{first:?}");
    }
    controller.detach().expect("in order");
}

/// Whether a key with this identity still opens a connection at the target.
fn opens(guarded: &Guarded, identity: &str) -> bool {
    let target = &guarded.target.target;
    target.psks(&target.served(), identity.as_bytes()).is_ok()
}

#[test]
fn it_authenticates_again_over_tls_and_each_time_another_key_replaces_the_one_before() {
    for (hash, both_ways, threads) in [(Hash::Sha256, false, 1), (Hash::Sha384, true, 2)] {
        let guarded = guarded("allowed", "tls = \"required\"\nauthentication = \"required\"");
        let wire = Wire::new(guarded.address());
        let mut options = options(&guarded, url(&guarded, wire.address), hash, both_ways);
        let controller = connect(options.clone(), threads).expect("attached");
        let (cntlid, first) = (controller.info().cntlid, identity(&guarded));
        assert!(opens(&guarded, &first));
        for round in 1..4 {
            controller.reauthenticate(None).expect("authenticated again");
            exchange(&controller, round);
        }
        // What runs goes on as it was, and the key that it began with opens nothing more.
        assert_eq!((controller.info().cntlid, identity(&guarded)), (cntlid, first.clone()));
        assert!(!opens(&guarded, &first));
        assert_eq!(wire.passing().first.len(), 6, "the connections are the same");
        // With a wrong key the connection is lost, and made again with the key before.
        let wrong = Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        let keys = options.authentication.as_mut().expect("keys").keys.clone();
        let refused = controller.reauthenticate(Some(Keys { host: wrong, ..keys }));
        assert!(refused.expect_err("refused").to_string().contains("refuses the key of this host"));
        exchange(&controller, 4);
        wait_until("authenticated again", || controller.reauthenticate(None).is_ok());
        controller.detach().expect("in order");
    }
}

#[test]
fn it_authenticates_again_by_itself_while_io_goes_on() {
    let guarded = guarded("allowed", "tls = \"required\"");
    let mut options = options(&guarded, url(&guarded, guarded.address()), Hash::Sha256, true);
    options.authentication.as_mut().expect("keys").repeat = Some(Duration::from_millis(20));
    let controller = connect(options, 2).expect("attached");
    let (cntlid, first) = (controller.info().cntlid, identity(&guarded));
    let mut round = 0;
    wait_until("another key", || {
        exchange(&controller, round);
        round += 1;
        !opens(&guarded, &first)
    });
    assert_eq!(controller.info().cntlid, cntlid, "the connection is the same");
    controller.detach().expect("in order");
}

/// As two mounts of one host do.
#[test]
fn controllers_of_one_host_have_keys_of_their_own() {
    let guarded = guarded("allowed", "tls = \"required\"");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..8 {
                    let options = options(&guarded, url(&guarded, guarded.address()), Hash::Sha256, false);
                    let controller = connect(options, 1).expect("attached");
                    controller.reauthenticate(None).expect("authenticated again");
                    controller.read_at(1, 0, &mut [0; 512]).expect("read");
                    controller.detach().unwrap_or_else(|error| panic!("round {round}: {error}"));
                }
            });
        }
    });
}

/// Whoever can change what is on the network lets the host authenticate, and answers in clear text to TLS.
#[test]
fn tls_is_not_taken_away_after_the_authentication() {
    let guarded = guarded("allowed", "");
    let wire = Wire::new(guarded.address());
    wire.passing().takes_tls_away = true;
    let url = url(&guarded, wire.address);
    let error = connect(options(&guarded, url, Hash::Sha256, false), 1).expect_err("clear text");
    assert_eq!(error.step, Step::Tls, "{error}");
    assert!(matches!(error.cause, Cause::Tls(TlsFailure::Generated(_))), "{error}");
    assert_eq!(wire.passing().first, [CLEAR, TLS]);
}

#[test]
fn what_is_in_the_way_is_said() {
    let failure = |guarded: &Guarded, options| {
        let error = connect(options, 1).expect_err("refused");
        assert!(identities(guarded).iter().all(Option::is_none));
        match error.cause {
            Cause::Authentication(failure) => failure,
            other => panic!("{other}"),
        }
    };
    let usual = |guarded: &Guarded| options(guarded, url(guarded, guarded.address()), Hash::Sha256, true);
    for (listener, subsystem) in [("off", ""), ("allowed", "concatenation = \"refused\"")] {
        let guarded = guarded(listener, subsystem);
        let said = failure(&guarded, usual(&guarded));
        assert!(matches!(said, AuthenticationFailure::Refused(_)), "{said}");
        assert!(said.to_string().contains("whether authentication makes a key for TLS"), "{said}");
    }
    // The target has no key for the host.
    let without = Guarded::start("allowed", "", &[]);
    assert_eq!(failure(&without, usual(&without)), AuthenticationFailure::NoConcatenation);
    let guarded = guarded("allowed", "tls = \"required\"");
    let other = || Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
    let mut wrong = usual(&guarded);
    wrong.authentication.as_mut().expect("keys").keys.host = other();
    let said = failure(&guarded, wrong);
    assert_eq!(said.to_string(), "the target refuses the key of this host");
    let mut wrong = usual(&guarded);
    wrong.authentication.as_mut().expect("keys").keys.controller = Some(other());
    let said = failure(&guarded, wrong);
    assert!(said.to_string().starts_with("the target has another controller key"), "{said}");
    // Nothing to authenticate with, nothing that makes a key, and not asked for though the target demands it.
    let mut none = usual(&guarded);
    none.authentication = None;
    assert_eq!(failure(&guarded, none), AuthenticationFailure::NothingToConcatenate);
    let long = options(&guarded, url(&guarded, guarded.address()), Hash::Sha512, false);
    assert_eq!(failure(&guarded, long), AuthenticationFailure::MakesNoKey("hash functions"));
    let mut clear = usual(&guarded);
    clear.concatenation = false;
    assert_eq!(failure(&guarded, clear), AuthenticationFailure::SecureChannel);
}

#[test]
fn commands_take_the_option_and_addresses_say_the_same() {
    let guarded = guarded("allowed", "tls = \"required\"");
    let file = |name: &str| format!("file:{}", guarded.folder.path().join(name).display());
    let (host, controller) = (file("dhchap_key"), file("dhchap_controller_key"));
    let at = format!("nvme+tcp://{}", guarded.address());
    let (disk, named) = (format!("{at}/{NQN}"), format!("dhchap_key={host}"));
    let keys = ["--dhchap-key", &host, "--dhchap-controller-key", &controller, "--hostnqn", HOST_NQN];
    let in_address = format!("{disk}?{named}&concat=on&hostnqn={HOST_NQN}");
    let both = [&keys[..], &["--concat"]].concat();
    for (arguments, said) in [
        ([&["list", &disk], &both[..]].concat(), "1 MiB"),
        (vec!["list", &in_address], "1 MiB"),
        ([&["discover", &at], &both[..]].concat(), NQN),
        ([&["doctor", &disk], &both[..]].concat(), "over TLS"),
        ([&["list", &disk, "--reauthenticate", "1h"], &both[..]].concat(), "1 MiB"),
        ([&["read", &disk, "--length", "4k", "-o", "/dev/null"], &both[..]].concat(), ""),
    ] {
        let output = Command::new(program("ringfab")).args(&arguments).output().expect("it runs");
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && text.contains(said), "{arguments:?}: {text}");
    }
    let rdma = disk.replace("nvme+tcp", "nvme+rdma");
    for (arguments, said) in [
        ([&["list", &disk], &keys[..]].concat(), "(--tls-key); if it has none, use --concat"),
        (
            vec!["list", &disk, "--hostnqn", HOST_NQN],
            "over TLS only, and no key for TLS is given for it; give",
        ),
        (vec!["list", &disk, "--concat"], "give --keys, or --dhchap-key"),
        ([&["list", &rdma], &both[..]].concat(), "--concat is for NVMe/TCP"),
        ([&["list", &disk, "--dhchap-groups", "null"], &both[..]].concat(), "without a DH group"),
        ([&["list", &disk, "--tls-key", &host], &both[..]].concat(), "cannot be used with"),
    ] {
        let output = Command::new(program("ringfab")).args(&arguments).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{arguments:?}: {text}");
    }
}
