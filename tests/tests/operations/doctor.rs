//! `ringfab doctor` and `ringfab-target doctor`: each step that can fail is made to fail.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;

use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

const FRIEND: &str = "nqn.2026-11.org.ringfab:friend";

/// A target for one host, with these namespaces.
fn target(port: u16, transport: &str, namespaces: &str) -> Service {
    Service::start("ringfab-target", |folder| {
        let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = {transport:?}\n\
             [[subsystem]]\nnqn = {NQN:?}\nallowed_hosts = [{FRIEND:?}]\n{namespaces}"
        );
        fs::write(folder.join("target.toml"), text).expect("a configuration");
        let config = folder.join("target.toml").display().to_string();
        ["serve", "--config", &config].map(str::to_owned).to_vec()
    })
}

/// What a walk says, and whether all was well.
fn walk(url: &str, host: &str) -> (bool, String) {
    let output = Command::new(program("ringfab")).args(["doctor", url, "--hostnqn", host]).output();
    let output = output.expect("it runs");
    (output.status.success(), String::from_utf8(output.stdout).expect("text"))
}

/// The walk ends at this step, and says this.
fn ends_at(url: &str, host: &str, step: &str, says: &[&str]) {
    let (well, said) = walk(url, host);
    assert!(!well, "{said}");
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
    assert_eq!(failed.len(), 1, "{said}");
    assert!(failed[0].contains(&format!("FAILED  {step} ")), "{said}");
    let advice = said.lines().last().expect("a line");
    assert!(advice.starts_with("What to do: "), "{said}");
    says.iter().for_each(|text| assert!(said.contains(text), "{text} in {said}"));
}

#[test]
fn a_walk_over_either_transport_goes_from_the_name_to_a_first_read() {
    for (transport, scheme) in [("tcp", "nvme+tcp"), ("rdma", "nvme+rdma")] {
        let port = free_port();
        let _target = target(port, transport, "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
        let (well, said) = walk(&format!("{scheme}://localhost:{port}/{NQN}"), FRIEND);
        assert!(well && said.ends_with("All is well.\n"), "{said}");
        let steps = ["name", "route", "port", "who listens", "subsystems", "Connect", "queues", "namespaces"];
        for step in steps.iter().chain(&["first read", "end"]) {
            assert!(said.contains(&format!("ok      {step} ")), "{step} in {said}");
        }
    }
}

#[test]
fn a_walk_that_ends_early_says_where_and_what_to_do() {
    let port = free_port();
    let target = target(port, "tcp", "[[subsystem.namespace]]\npath = \"/nonexistent/disk\"\n");
    let tcp = format!("nvme+tcp://127.0.0.1:{port}");
    ends_at("nvme+tcp://no.such.name.invalid/nqn.x:y", FRIEND, "name", &["has no address"]);
    ends_at(&format!("nvme+tcp://[fe80::1%nope]/{NQN}"), FRIEND, "name", &["no network interface nope"]);
    let unused = free_port();
    ends_at(
        &format!("nvme+tcp://127.0.0.1:{unused}/{NQN}"),
        FRIEND,
        "port",
        &["refused", "start the target"],
    );
    ends_at(&format!("nvme+rdma://127.0.0.1:{port}/{NQN}"), FRIEND, "who listens", &["write nvme+tcp://"]);
    ends_at(
        &format!("{tcp}/{NQN}"),
        "nqn.2026-11.org.ringfab:else",
        "subsystems",
        &["may use none", "host allow"],
    );
    ends_at(&format!("{tcp}/nqn.2026-11.org.ringfab:no"), FRIEND, "subsystems", &["is not among them", NQN]);
    ends_at(&format!("{tcp}/{NQN}?ns=1"), FRIEND, "namespaces", &["not ready"]);
    ends_at(&format!("{tcp}/{NQN}?ns=9"), FRIEND, "namespaces", &["there is no namespace 9"]);
    let (well, said) = walk(&tcp, FRIEND);
    assert!(well && said.contains(NQN), "without a subsystem it ends with those that there are: {said}");
    drop(target);
}

#[test]
fn something_else_that_listens_is_no_target() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in other.incoming().flatten() {
            let mut stream = stream;
            // A peer that has gone does not matter.
            let _gone = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    ends_at(&format!("nvme+tcp://{address}/{NQN}"), FRIEND, "who listens", &["ICReq"]);
}

#[test]
fn the_doctor_of_a_target_sees_what_runs() {
    let port = free_port();
    let service = target(port, "tcp", "[[subsystem.namespace]]\npath = \"/nonexistent/disk\"\n");
    let config = service.path("target.toml");
    wait_until("the control socket is there", || service.path("control.sock").exists());
    let examine = || {
        let output =
            Command::new(program("ringfab-target")).arg("doctor").arg("--json").arg(&config).output();
        let output = output.expect("it runs");
        let looks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.success(), looks["looks"].as_array().expect("a list").clone())
    };
    let trouble = |looks: &[Value], step: &str| {
        let of_step = looks.iter().filter(|look| look["step"] == step);
        of_step.filter_map(|look| look["trouble"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let (well, looks) = examine();
    assert!(!well);
    assert!(trouble(&looks, "namespaces")[0].contains("is not ready"), "{looks:?}");
    assert!(trouble(&looks, "machine")[0].contains("does not exist"), "{looks:?}");
    // The port is in use by the target that serves this configuration, which is no trouble.
    assert_eq!(trouble(&looks, "machine").len(), 1, "{looks:?}");
    assert_eq!(trouble(&looks, "target"), [""; 0]);
    let text = fs::read_to_string(&config)
        .expect("the file")
        .replace("path = \"/nonexistent/disk\"", "nsid = 2\nnull = \"1MiB\"");
    fs::write(&config, text).expect("a configuration");
    let reload = Command::new(program("ringfab-target"))
        .args(["reload", "--socket"])
        .arg(service.path("control.sock"))
        .output()
        .expect("it runs");
    assert!(reload.status.success(), "{reload:?}");
    let (_, looks) = examine();
    assert_eq!(trouble(&looks, "namespaces"), [""; 0], "{looks:?}");
}
