//! Orderly ends, with the real program: hosts that can go elsewhere are told first, have a status that they may try
//! again, and are waited for until they have read which groups are inaccessible.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfab_fabric::rdma::QueuePairId;
use ringfab_spec::features::FeatureId;
use ringfab_spec::log::{AnaState, LogId};
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::raw_host::{Association, RawHost};
use ringfab_tests::{NQN, Service, free_port, program};

/// A request for events of access groups: bit 11 of the configuration.
const HEARS: u32 = 1 << 11;

/// An event of type notice about access groups, whose page is 0Ch.
const ACCESS_CHANGED: u32 = 0x000c_0302;

fn text(folder: &Path, ports: &[u16], subsystem: &str) -> String {
    let [state_dir, socket] = ["state", "control.sock"].map(|name| folder.join(name));
    let listener = |port| format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\n");
    let listeners: String = ports.iter().map(listener).collect();
    format!(
        "[target]\nstate_dir = {state_dir:?}\ncores = [0]\n[control]\nsocket = {socket:?}\n{listeners}\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n{subsystem}[[subsystem.namespace]]\nmemory = \"1MiB\"\n"
    )
}

fn serve(ports: &[u16], subsystem: &str) -> Service {
    Service::start("ringfab-target", |folder| {
        let config = folder.join("target.toml");
        fs::write(&config, text(folder, ports, subsystem)).expect("a configuration");
        ["serve", "--config", &config.display().to_string()].map(str::to_owned).to_vec()
    })
}

fn drain(service: &Service, port: u16) -> Child {
    let mut command = Command::new(program("ringfab-target"));
    command.args(["listener", "drain", &format!("127.0.0.1:{port}"), "--socket"]);
    let command = command.arg(service.path("control.sock")).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it runs")
}

/// A controller of a host, by one way.
struct Way {
    host: RawHost,
    association: Association,
    io: QueuePairId,
}

impl Way {
    fn to(port: u16) -> Self {
        let mut host = RawHost::new(([127, 0, 0, 1], port).into());
        let association = host.attach();
        let io = host.attach_io(association, 1, 32);
        Self { host, association, io }
    }

    /// Asks for events of access groups.
    fn hear(&mut self) {
        let admin = self.association.admin;
        let configure = SubmissionEntry::set_features(
            self.host.next_cid(),
            FeatureId::ASYNC_EVENT_CONFIGURATION.0,
            false,
            HEARS,
        );
        assert_eq!(self.host.command(admin, &configure).status(), Status::SUCCESS);
        let request = SubmissionEntry::async_event_request(self.host.next_cid());
        self.host.send(admin, request.as_bytes(), None);
    }

    /// The event that comes.
    fn event(&mut self) -> u32 {
        self.host.completion(self.association.admin).dw0.get()
    }

    fn flush(&mut self) -> Status {
        let entry = SubmissionEntry::flush(self.host.next_cid(), 1);
        self.host.command(self.io, &entry).status()
    }

    /// The state of the only group.
    fn read_log(&mut self) -> AnaState {
        let entry = SubmissionEntry::get_log_page(self.host.next_cid(), LogId::ANA.0, u32::MAX, 0, 52, false);
        let (completion, page) = self.host.fetch(self.association.admin, &entry, 52);
        assert_eq!(completion.status(), Status::SUCCESS);
        AnaState(page[32])
    }
}

#[test]
fn a_host_with_two_ways_is_told_and_waited_for_before_one_of_them_ends() {
    let ports = [free_port(), free_port()];
    let service = serve(&ports, "");
    let [mut drained, mut stays] = ports.map(Way::to);
    drained.hear();
    assert_eq!((drained.flush(), stays.flush()), (Status::SUCCESS, Status::SUCCESS));
    let command = drain(&service, ports[0]);
    assert_eq!(drained.event(), ACCESS_CHANGED);
    assert_eq!(drained.flush(), Status::ANA_INACCESSIBLE, "without Do Not Retry");
    assert_eq!(stays.flush(), Status::SUCCESS);
    assert_eq!(drained.read_log(), AnaState::INACCESSIBLE);
    let output = command.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drained.host.end(drained.io);
    assert_eq!(stays.flush(), Status::SUCCESS);
    assert_eq!(stays.read_log(), AnaState::OPTIMIZED);
    let log = service.log();
    assert!(log.contains("hosts are asked to go elsewhere"), "{log}");
    assert!(!log.contains("a host has not read that it is to go elsewhere"), "{log}");
}

#[test]
fn a_host_with_one_way_works_until_its_listener_ends() {
    let ports = [free_port(), free_port()];
    let service = serve(&ports, "");
    let mut alone = Way::to(ports[0]);
    alone.hear();
    let output = drain(&service, ports[0]).wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // No event and no status before the end: its commands are the next connection's.
    alone.host.end(alone.io);
    assert!(!service.log().contains("hosts are asked to go elsewhere"));
}

#[test]
fn the_end_of_one_of_several_processes_is_told_first() {
    let port = free_port();
    let mut service = serve(&[port], "controller_ids = \"100-199\"\n");
    let mut host = Way::to(port);
    assert!((100..200).contains(&host.association.controller_id));
    host.hear();
    service.signal("TERM");
    assert_eq!(host.event(), ACCESS_CHANGED);
    assert_eq!(host.flush(), Status::ANA_INACCESSIBLE);
    assert_eq!(host.read_log(), AnaState::INACCESSIBLE);
    host.host.end(host.io);
    assert!(service.wait(Duration::from_secs(30)).success());
}
