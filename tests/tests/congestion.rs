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

/// What the kernel says of the connections of one target.
struct Connections {
    port: u16,
    /// Those that there were before any host came: the system may give a listener the port from which another program
    /// on this machine is connected to something else.
    others: Vec<String>,
}

impl Connections {
    fn of(target: &TestTarget) -> Self {
        let mut connections = Self { port: target.address().port(), others: Vec::new() };
        connections.others =
            ["sport", "dport"].iter().flat_map(|end| connections.at(end)).map(|line| ends(&line)).collect();
        connections
    }

    /// A line each, as `ss` prints it, of the sockets at the target (`sport`) or at its hosts (`dport`).
    fn at(&self, end: &str) -> Vec<String> {
        let filter = format!("{end} = :{}", self.port);
        let text = run_bounded(10, "ss", &["-tinHoO", "--tos", "state", "established", &filter]);
        text.lines().filter(|line| !self.others.contains(&ends(line))).map(str::to_owned).collect()
    }

    /// Those of the words that a socket's line has, for each socket.
    fn words(&self, end: &str, known: &[&str]) -> Vec<String> {
        let lines = self.at(end);
        let words = lines.iter().flat_map(|line| line.split_whitespace()).filter(|word| known.contains(word));
        words.map(str::to_owned).collect()
    }
}

/// The two addresses of a connection: the third and the fourth column, behind the lengths of its queues.
fn ends(line: &str) -> String {
    line.split_whitespace().skip(2).take(2).collect::<Vec<_>>().join(" ")
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
    let connections = Connections::of(&target);
    let controller = target.attach_with("");
    assert_eq!(connections.words("sport", &known), two(&other), "the listener's");
    assert_eq!(connections.words("dport", &known), two(&default));
    controller.detach().expect("detached");
    drop(target);

    let target = TestTarget::start(namespace);
    let connections = Connections::of(&target);
    let controller = target.attach_with(&format!("&congestion={other}"));
    assert_eq!(connections.words("dport", &known), two(&other), "the connections'");
    assert_eq!(connections.words("sport", &known), two(&default));
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
    let connections = Connections::of(&target);
    let controller = target.attach_with("&dscp=10");
    let classes = |end: &str| {
        let text = connections.at(end).join("\n");
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
    let connections = Connections::of(&target);
    let controller = target.attach_with("&tcpkeepalive=15");
    let probes = |end: &str| {
        let lines = connections.at(end);
        lines.iter().filter(|line| line.contains("timer:(keepalive")).count()
    };
    // Of an admin queue and an I/O queue, once nothing that was sent waits for its acknowledgement.
    let begun = Instant::now();
    while probes("dport") != 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} probe", probes("dport"));
    }
    assert_eq!(probes("sport"), 0);
    controller.detach().expect("detached");
}
