//! `ringfab discover`: what it prints, which referrals it follows, and what it sees come and go.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::EngineOptions;
use ringfab_initiator::discovery::DiscoveryWatch;
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_spec::AdminOpcode;
use ringfab_spec::tcp::PduType;
use ringfab_target::Config;
use ringfab_target::control::Manager;
use ringfab_tests::tamper::{Passing, Tamper, unchanged};
use ringfab_tests::{PATIENCE, TestTarget, program};

const NQN: &str = ringfab_tests::NQN;
const NAMESPACE: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";

const OTHER: &str = "nqn.2026-11.org.ringfab:other";

/// Adds a subsystem. What is returned can take it away again.
fn add_other(target: &TestTarget) -> Manager {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = {OTHER:?}\nallow_any_host = true\n{NAMESPACE}"
    );
    let config = Config::parse(&text, "other").expect("valid");
    let mut manager = target.manager();
    manager.add_subsystem(config.subsystems[0].clone()).expect("it is added");
    manager
}

fn ringfab(arguments: &[&str]) -> String {
    let output = Command::new(program("ringfab")).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The last word of each line is a URL.
fn urls(text: &str) -> Vec<&str> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect()
}

#[test]
fn the_next_command_takes_the_urls_that_discovery_prints() {
    let target = TestTarget::with_listener("transport = \"tcp\"", NAMESPACE);
    let found = ringfab(&["discover", &format!("nvme+tcp://{}", target.address())]);
    let place = format!("nvme+tcp://{}/", target.address());
    assert_eq!(urls(&found), [place.clone(), format!("{place}{NQN}")]);
    assert!(found.contains("current discovery subsystem  "), "{found}");
    // The discovery subsystem itself can be asked, and the other can be attached.
    assert_eq!(ringfab(&["discover", urls(&found)[0]]), found);
    assert!(ringfab(&["list", urls(&found)[1]]).contains("1 MiB"));
}

#[test]
fn referrals_are_followed_on_request_and_not_in_circles() {
    let last = TestTarget::with_listener("transport = \"tcp\"", NAMESPACE);
    let refers = |port: u16, more: &str| {
        let referral = |port: u16| {
            format!("[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"127.0.0.1\"\nport = {port}\n")
        };
        format!("{NAMESPACE}{more}{}", referral(port))
    };
    // Itself, somebody who is not there, and another one.
    let own = ringfab_tests::free_port();
    let listener = format!("[[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\nport = {own}\n");
    let away = refers(1, &listener).replacen(NAMESPACE, "", 1);
    let itself = refers(own, "").replacen(NAMESPACE, "", 1);
    let text =
        format!("{NAMESPACE}{away}{itself}{}", refers(last.address().port(), "").replacen(NAMESPACE, "", 1));
    let first = TestTarget::start(&text);
    let url = format!("nvme+tcp://127.0.0.1:{own}");
    let has_last =
        |found: &str| urls(found).contains(&format!("nvme+tcp://{}/{NQN}", last.address()).as_str());
    let alone = ringfab(&["discover", &url]);
    assert!(!has_last(&alone) && alone.contains("discovery subsystem referral"), "{alone}");
    let followed = ringfab(&["discover", "--referrals", &url]);
    assert!(has_last(&followed), "{followed}");
    assert!(urls(&followed).contains(&format!("nvme+rdma://{}/{NQN}", first.address()).as_str()));
}

/// Ends it whatever happens.
struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[test]
fn a_subsystem_that_comes_or_goes_is_printed_by_who_stays_connected() {
    let target = TestTarget::with_listener("transport = \"tcp\"", NAMESPACE);
    let url = format!("nvme+tcp://{}", target.address());
    let mut command = Command::new(program("ringfab"));
    command.args(["discover", "--follow", &url]).stdout(Stdio::piped());
    let mut watch = Watch(command.spawn().expect("it runs"));
    let mut lines =
        BufReader::new(watch.0.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let first = lines.find(|line| line.ends_with(NQN)).expect("what is there");
    assert!(first.starts_with("nvme subsystem"), "{first}");
    let begun = Instant::now();
    let mut manager = add_other(&target);
    let place = format!("nvme subsystem {url}/{OTHER}");
    assert_eq!(lines.next(), Some(format!("+ {place}")));
    manager.remove_subsystem(OTHER).expect("it is there");
    assert_eq!(lines.next(), Some(format!("- {place}")));
    assert!(begun.elapsed() < POLL_WITH_EVENTS / 3, "it is told, and does not ask");
}

/// How often a controller that tells of changes is asked all the same.
const POLL_WITH_EVENTS: Duration = Duration::from_secs(60);

/// Watches a target through a proxy, which hides that it tells of changes or only counts its requests for events.
/// Returns how many of these came.
fn watched(hide: bool) -> usize {
    let target = TestTarget::with_listener("transport = \"tcp\"", NAMESPACE);
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let tamper = Tamper::start(target.address(), move |mut pdu: Passing, sink| {
        const HEADER: usize = 24;
        let is_request =
            pdu.pdu_type() == PduType::CAPSULE_CMD && pdu.bytes[8] == AdminOpcode::ASYNC_EVENT_REQUEST.0;
        counted.fetch_add(usize::from(is_request), Ordering::Relaxed);
        if hide && pdu.pdu_type() == PduType::C2H_DATA && pdu.bytes.len() == HEADER + 4096 {
            // The highest bit of OAES in Identify Controller.
            pdu.bytes[HEADER + 95] &= 0x7f;
        }
        unchanged(&pdu, sink)
    });
    let url: Url = format!("nvme+tcp://{}", tamper.address).parse().expect("an address");
    let options = ConnectOptions::new(url.clone(), HostIdentity::for_url(&url).expect("an identity"));
    let (tell, told) = channel();
    let mut watch = DiscoveryWatch::new(options, EngineOptions::default(), move || {
        let _over = tell.send(());
    });
    watch.add(&url).expect("a thread");
    let mut wait_for = |nqns: &[&str]| loop {
        told.recv_timeout(PATIENCE).expect("it reports");
        let trouble = watch.take(false);
        assert!(trouble.is_empty(), "{trouble:?}");
        let entries = watch.entries();
        let found: Vec<_> =
            entries.iter().filter(|one| one.is_subsystem()).map(|one| one.subsystem.as_str()).collect();
        if found == nqns {
            return;
        }
    };
    wait_for(&[NQN]);
    add_other(&target);
    wait_for(&[NQN, OTHER]);
    requests.load(Ordering::Relaxed)
}

#[test]
fn a_controller_that_tells_of_no_changes_is_asked_again_and_again() {
    assert!(watched(false) >= 2, "one request for each event, and the next");
    assert_eq!(watched(true), 0, "what it does not announce is not asked for");
}

#[test]
fn what_a_controller_knew_stays_known_while_it_is_away() {
    let target = TestTarget::with_listener("transport = \"tcp\"", NAMESPACE);
    let url: Url = format!("nvme+tcp://{}", target.address()).parse().expect("an address");
    let options = ConnectOptions::new(url.clone(), HostIdentity::for_url(&url).expect("an identity"));
    let (tell, told) = channel();
    let mut watch = DiscoveryWatch::new(options, EngineOptions::default(), move || {
        let _over = tell.send(());
    });
    watch.add(&url).expect("a thread");
    told.recv_timeout(PATIENCE).expect("it reports");
    assert!(watch.take(true).is_empty() && watch.is_settled() && watch.has_log(&url));
    let known = watch.entries();
    target.end().expect("an orderly end");
    told.recv_timeout(PATIENCE).expect("it reports");
    let trouble = watch.take(true);
    assert!(!trouble.is_empty() && trouble[0].url == url, "{trouble:?}");
    assert_eq!(watch.entries(), known);
    watch.remove(&url);
    assert!(watch.entries().is_empty());
}
