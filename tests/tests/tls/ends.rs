//! Our initiator and our target.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use ringfab_auth::{CipherSuite, ConfiguredPsk, KeySource, system_random};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::{DiscoveryLog, discover};
use ringfab_initiator::{
    Cause, ConnectError, ConnectOptions, HostIdentity, Step, Tls, TlsFailure, TlsKey, Url,
};
use ringfab_tests::raw_tcp::HOST_NQN;
use ringfab_tests::{NQN, PATIENCE, Service, free_port};

use crate::support::{Guarded, write_key};

fn options(url: Url, tls: Option<Tls>) -> ConnectOptions {
    let host = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, host);
    options.tls = tls;
    options
}

fn known(psk: &ConfiguredPsk) -> Option<Tls> {
    Some(Tls::new(TlsKey::Known(psk.clone())))
}

impl Guarded {
    fn url(&self, parameters: &str) -> Url {
        self.target.url(&format!("&hostnqn={HOST_NQN}{parameters}"))
    }

    fn connect(&self, tls: Option<Tls>, parameters: &str) -> Result<Controller, ConnectError> {
        Controller::connect(options(self.url(parameters), tls), EngineOptions::default())
    }

    fn discover(&self, tls: Option<Tls>, parameters: &str) -> Result<DiscoveryLog, ConnectError> {
        let url = Url { subsystem: None, ..self.url(parameters) };
        discover(options(url, tls), EngineOptions::default())
    }
}

/// Writes and reads what is larger than a record of TLS, and what is smaller.
pub(crate) fn exchange(controller: &Controller, seed: u8) {
    for blocks in [1_usize, 8, 129, 256] {
        let written: Vec<u8> = (0..blocks * 512).map(|at| (at / 512) as u8 ^ at as u8 ^ seed).collect();
        controller.write_at(1, 0, &written, false).expect("written");
        let mut read = vec![0; written.len()];
        controller.read_at(1, 0, &mut read).expect("read");
        assert!(read == written, "{blocks} blocks");
    }
}

#[test]
fn a_host_is_served_over_tls_or_in_clear_text_as_both_ends_say() {
    let rows = [
        ("off", "", None, Some(Step::Tls)),
        ("allowed", "", None, None),
        ("allowed", "tls = \"required\"", Some(Step::FabricsConnect), None),
        ("required", "", Some(Step::Initialize), None),
        ("required", "tls = \"required\"", Some(Step::Initialize), None),
    ];
    for (listener, subsystem, clear, tls) in rows {
        let guarded = Guarded::start(listener, subsystem, &["tls_key"]);
        for (key, expected) in [(None, clear), (known(&guarded.psk), tls)] {
            let is_tls = key.is_some();
            let connected = guarded.connect(key, "");
            let what = format!("{listener} {subsystem} {is_tls}");
            match (connected, expected) {
                (Ok(controller), None) => {
                    exchange(&controller, 1);
                    let served = guarded.target.target.controllers();
                    let of_host = served.iter().find(|one| one.host().nqn == HOST_NQN).expect("it is there");
                    assert_eq!(of_host.host().tls.is_some(), is_tls, "{what}");
                    controller.detach().expect("in order");
                }
                (Err(error), Some(step)) => {
                    assert_eq!(error.step, step, "{what}: {error}");
                }
                (other, _) => panic!("{what}: {other:?}"),
            }
        }
    }
}

#[test]
fn what_is_wrong_with_a_key_is_said() {
    let guarded = Guarded::start("allowed", "", &["tls_key"]);
    let other = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    let longer = ConfiguredPsk::generate(CipherSuite::Aes256GcmSha384, &mut system_random());
    for wrong in [&other, &longer] {
        let error = guarded.connect(known(wrong), "").expect_err("another key");
        assert!(matches!(error.cause, Cause::Tls(TlsFailure::Handshake(_))), "{error}");
    }
    // The target does not know this host.
    let stranger = guarded.target.url("&hostnqn=nqn.2026-11.org.ringfab:other");
    let refused = Controller::connect(options(stranger, known(&guarded.psk)), EngineOptions::default());
    assert_eq!(refused.expect_err("no key").step, Step::Tls);
    let error = guarded.connect(None, "&tls=on").expect_err("no key");
    assert!(matches!(error.cause, Cause::Tls(TlsFailure::NoKey)), "{error}");
    let file = Tls::new(TlsKey::At(KeySource::File("/nonexistent/key".into())));
    let error = guarded.connect(Some(file), "").expect_err("no file");
    assert!(error.to_string().contains("TLS: the key for TLS cannot read /nonexistent/key"), "{error}");
    // The address may say that the key is not for it.
    guarded.connect(known(&guarded.psk), "&tls=off").expect("in clear text").detach().expect("in order");
}

/// Whoever answers in clear text is not listened to.
#[test]
fn tls_is_not_taken_away() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    // The host comes once with all its identities, and once with the older one.
    let other = thread::spawn(move || {
        [(); 2].map(|()| {
            let (mut stream, _) = listener.accept().expect("a host");
            let mut first = [0; 5];
            stream.read_exact(&mut first).expect("the header of a record");
            let icresp = [1_u8, 0, 128, 0, 128, 0, 0, 0];
            stream.write_all(&[&icresp[..], &[0; 120]].concat()).expect("an answer");
            first[0]
        })
    });
    let psk = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    let url: Url = format!("nvme+tcp://{address}/{NQN}?hostnqn={HOST_NQN}").parse().expect("a URL");
    let error =
        Controller::connect(options(url, known(&psk)), EngineOptions::default()).expect_err("clear text");
    assert_eq!(error.step, Step::Tls, "{error}");
    assert_eq!(other.join().expect("it answered"), [22; 2], "a handshake each time");
}

/// The first record of a host with this name: a ClientHello with its identities.
fn hello_of(host: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let connects = thread::spawn({
        let psk = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
        let url: Url = format!("nvme+tcp://{address}/{NQN}?hostnqn={host}").parse().expect("a URL");
        move || Controller::connect(options(url, known(&psk)), EngineOptions::default()).map(drop)
    });
    let (mut stream, _) = listener.accept().expect("a host");
    let mut record = vec![0; 5];
    stream.read_exact(&mut record).expect("the header of a record");
    record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
    stream.read_exact(&mut record[5..]).expect("a record");
    drop((stream, listener));
    connects.join().expect("it ends").expect_err("nobody answers");
    record
}

/// Sends a record from an address of this machine, and reads what is answered until the end.
fn say_from(source: [u8; 4], port: u16, record: &[u8]) -> Vec<u8> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from((source, 0)).into()).expect("an address");
    socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).expect("connected");
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(record).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end");
    answer
}

#[test]
fn a_refused_handshake_is_one_line_that_says_who_and_why_and_nobody_hides_others() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nenabled = false\n[[listener]]\n\
         address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\ntls = \"allowed\"\n[[subsystem]]\n\
         nqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n",
        folder.path().join("state"),
    );
    let file = folder.path().join("target.toml");
    std::fs::write(&file, text).expect("a configuration");
    let config = file.display().to_string();
    let service =
        Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec());
    let hosts: Vec<String> = (0..8).map(|number| format!("nqn.2026-11.org.ringfab:h{number}")).collect();
    let hellos: Vec<Vec<u8>> = hosts.iter().map(|host| hello_of(host)).collect();
    // One address with few names, another with many: more of them than are told apart.
    for _ in 0..40 {
        assert!(say_from([127, 0, 0, 2], port, &hellos[0]).starts_with(&[21, 3, 3]), "an alert");
    }
    for hello in hellos.iter().cycle().take(80) {
        say_from([127, 0, 0, 4], port, hello);
    }
    say_from([127, 0, 0, 3], port, &hellos[1]);
    let log = || service.log();
    ringfab_tests::wait_until("the last one is told", || log().contains("peer=127.0.0.3:"));
    let log = log();
    let shown = |line: &&str| !line.contains(" more like this");
    let of = |what: &str| log.lines().filter(shown).filter(|line| line.contains(what)).collect::<Vec<_>>();
    let [line] = of("peer=127.0.0.3:")[..] else { panic!("one line: {log}") };
    let names = format!("host={:?} subsystem={NQN:?}", hosts[1]);
    let reason = format!("no key that is known here (the host {} has no tls_key)", hosts[1]);
    assert!(line.contains(" WARN ") && line.contains(&names) && line.contains(&reason), "{line}");
    assert_eq!(of("peer=127.0.0.2:").len(), 5, "{log}");
    assert_eq!(of("peer=127.0.0.4:").len(), 3 * 5 + 20, "{log}");
    let stray: Vec<_> = of("has no tls_key").into_iter().filter(|line| !line.contains("peer=")).collect();
    assert!(stray.is_empty(), "{stray:?}");
}

#[test]
fn several_queues_are_served_over_tls_by_their_cores() {
    for suite in [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384] {
        let guarded = Guarded::on_cores(2, suite, "required", "tls = \"required\"", &["tls_key"]);
        let url = guarded.url("&queues=4&depth=16");
        let threads = EngineOptions::with_threads(2);
        let controller = Controller::connect(options(url, known(&guarded.psk)), threads).expect("attached");
        assert_eq!(controller.info().queues, 4);
        for round in 0..8 {
            exchange(&controller, round);
        }
        let usage = guarded.target.usage();
        assert!(usage.iter().all(|core| core.queues >= 2), "both cores have some");
        controller.detach().expect("in order");
    }
}

/// The host reads its key again.
#[test]
fn a_host_comes_back_with_the_new_key_after_the_old_one_has_gone() {
    let guarded = Guarded::start("required", "", &["tls_key"]);
    let file = Tls::new(TlsKey::At(KeySource::File(guarded.key_file())));
    let mut with = options(guarded.url(""), Some(file));
    with.reconnect.delay = Duration::from_millis(50);
    let controller = Controller::connect(with, EngineOptions::default()).expect("attached");
    exchange(&controller, 1);
    let newer = ConfiguredPsk::generate(CipherSuite::Aes256GcmSha384, &mut system_random());
    write_key(&guarded.key_file(), newer.to_text().expose());
    guarded.change_key(&newer);
    exchange(&controller, 2);
    controller.detach().expect("in order");
    // Who still has the old one does not come back.
    assert_eq!(guarded.connect(known(&guarded.psk), "").expect_err("an old key").step, Step::Tls);
}

#[test]
fn discovery_over_tls_or_in_clear_text_says_where_tls_is_required() {
    let guarded = Guarded::start("allowed", "tls = \"required\"", &["tls_key"]);
    for (tls, parameters) in [(None, ""), (known(&guarded.psk), ""), (known(&guarded.psk), "&tls=off")] {
        let log = guarded.discover(tls.clone(), parameters).expect("a log page");
        let entry = log.entries.iter().find(|entry| entry.is_subsystem()).expect("the subsystem");
        assert!(entry.secure_channel_required);
        let url = entry.url.clone().expect("an address");
        assert_eq!(url.tls, Some(true), "{url}");
        // What is found is attached over TLS, if there is a key.
        let attached = Controller::connect(options(url, tls.clone()), EngineOptions::default());
        match tls {
            Some(_) => exchange(&attached.expect("attached"), 3),
            None => assert!(matches!(attached.expect_err("no key").cause, Cause::Tls(TlsFailure::NoKey))),
        }
    }
    let guarded = Guarded::start("required", "", &["tls_key"]);
    assert!(guarded.discover(None, "").is_err());
    assert!(guarded.discover(known(&guarded.psk), "").is_ok());
}

#[test]
fn a_host_comes_back_over_tls_after_the_target_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let psk = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
    write_key(&folder.path().join("key"), psk.to_text().expose());
    std::fs::write(folder.path().join("disk"), vec![0; 1 << 20]).expect("a disk");
    let port = free_port();
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nsocket = {:?}\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = {port}\ntransport = \"tcp\"\ntls = \"required\"\n[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
         tls = \"required\"\n[[subsystem.namespace]]\npath = {:?}\ndirect = false\nallow_page_cache = true\n\
         [[host]]\nnqn = {HOST_NQN:?}\ntls_key = \"file:{}\"\n",
        folder.path().join("state"),
        folder.path().join("control"),
        folder.path().join("disk"),
        folder.path().join("key").display()
    );
    let file = folder.path().join("target.toml");
    std::fs::write(&file, text).expect("a configuration");
    let start = || {
        let config = file.display().to_string();
        Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec())
    };
    let mut service = start();
    let url: Url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}?hostnqn={HOST_NQN}").parse().expect("a URL");
    let mut with = options(url, known(&psk));
    with.reconnect.delay = Duration::from_millis(50);
    let controller = Controller::connect(with, EngineOptions::default()).expect("attached");
    for round in 0..3 {
        exchange(&controller, round);
        service.kill();
        service = start();
    }
    let begun = Instant::now();
    exchange(&controller, 9);
    assert!(begun.elapsed() < PATIENCE);
    controller.detach().expect("in order");
    let log = service.log();
    assert!(log.contains("TLS_AES_128_GCM_SHA256"), "{log}");
    let (_, base64) =
        psk.to_text().expose().split_once("01:").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a key");
    assert!(!log.contains(&base64[..20]), "no key in the log");
}
