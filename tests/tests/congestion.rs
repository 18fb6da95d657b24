//! The options of TCP that a listener or a connection asks for are those that the kernel uses, on that end only.

use std::time::{Duration, Instant};

use ringfab_tests::{TestTarget, have, not_run, run_bounded};

fn setting(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("proc").trim().to_owned()
}

/// An algorithm that is not the system's default, and the default.
fn algorithms() -> Option<(String, String)> {
    let default = setting("tcp_congestion_control");
    let allowed = setting("tcp_allowed_congestion_control");
    let other = allowed.split_whitespace().find(|name| *name != default)?.to_owned();
    Some((other, default))
}

/// The algorithms of the connections whose port on one end is the target's.
fn in_use(end: &str, target: &TestTarget, known: &[&str]) -> Vec<String> {
    let filter = format!("{end} = :{}", target.address().port());
    let text = run_bounded(10, "ss", &["-tinH", "state", "established", &filter]);
    let words = text.split_whitespace().filter(|word| known.contains(word));
    words.map(str::to_owned).collect()
}

#[test]
fn each_end_uses_the_congestion_control_that_it_was_told_and_leaves_the_other_alone() {
    if !have("ss") {
        return not_run("there is no ss to look into the kernel with");
    }
    let Some((other, default)) = algorithms() else {
        return not_run("the system allows one congestion control only");
    };
    let known = [other.as_str(), default.as_str()];
    let namespace = "[[subsystem.namespace]]\nnull = \"1MiB\"\n";
    // An admin queue and an I/O queue.
    let two = |name: &String| vec![name.clone(); 2];

    let target = TestTarget::with_listener(&format!("congestion = {other:?}"), namespace);
    let controller = target.attach_with("");
    assert_eq!(in_use("sport", &target, &known), two(&other), "the listener's");
    assert_eq!(in_use("dport", &target, &known), two(&default));
    controller.detach().expect("detached");
    drop(target);

    let target = TestTarget::start(namespace);
    let controller = target.attach_with(&format!("&congestion={other}"));
    assert_eq!(in_use("dport", &target, &known), two(&other), "the connections'");
    assert_eq!(in_use("sport", &target, &known), two(&default));
    controller.detach().expect("detached");
}

#[test]
fn each_end_of_nvme_tcp_sends_in_the_class_of_service_that_it_was_told() {
    if !have("ss") {
        return not_run("there is no ss to look into the kernel with");
    }
    let target = TestTarget::with_listener(
        "transport = \"tcp\"\ndscp = 26\nuser_timeout_s = 30\nkeep_alive_s = 15",
        "[[subsystem.namespace]]\nnull = \"1MiB\"\n",
    );
    let controller = target.attach_with("&dscp=10");
    let classes = |end: &str| {
        let filter = format!("{end} = :{}", target.address().port());
        let text = run_bounded(10, "ss", &["-tinHo", "--tos", "state", "established", &filter]);
        assert_eq!(text.contains("timer:(keepalive"), end == "sport", "{text}");
        let words = text.split_whitespace().filter_map(|word| word.strip_prefix("tos:"));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(classes("sport"), ["0x68"; 2], "the listener's, of an admin queue and an I/O queue");
    assert_eq!(classes("dport"), ["0x28"; 2], "the connections'");
    controller.detach().expect("detached");
}

#[test]
fn a_connection_of_nvme_tcp_looks_for_the_other_end_when_its_address_says_so() {
    if !have("ss") {
        return not_run("there is no ss to look into the kernel with");
    }
    let namespace = "[[subsystem.namespace]]\nnull = \"1MiB\"\n";
    let target = TestTarget::with_listener("transport = \"tcp\"", namespace);
    let controller = target.attach_with("&tcpkeepalive=15");
    let probes = |end: &str| {
        let filter = format!("{end} = :{}", target.address().port());
        run_bounded(10, "ss", &["-tinHo", "state", "established", &filter])
            .matches("timer:(keepalive")
            .count()
    };
    // Of an admin queue and an I/O queue, once nothing that was sent waits for its acknowledgement.
    let begun = Instant::now();
    while probes("dport") != 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} probe", probes("dport"));
    }
    assert_eq!(probes("sport"), 0);
    controller.detach().expect("detached");
}
