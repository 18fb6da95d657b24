//! `ringfab doctor` and `ringfab-target doctor`: each step that can fail is made to fail.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use ringfab_spec::{FabricsType, Status, SubmissionEntry};
use ringfab_tests::between::{Answer, between};
use ringfab_tests::{NQN, Service, free_port, not_run, program, wait_until};
use serde_json::Value;

const FRIEND: &str = "nqn.2026-11.org.ringfab:friend";

/// A target for one host, with these namespaces.
fn target(port: u16, transport: &str, namespaces: &str) -> Service {
    Service::start("ringfab-target", |folder| {
        let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"{transport}\"\n\
             [[subsystem]]\nnqn = {NQN:?}\nallowed_hosts = [{FRIEND:?}]\n{namespaces}"
        );
        fs::write(folder.join("target.toml"), text).expect("a configuration");
        let config = folder.join("target.toml").display().to_string();
        ["serve", "--config", &config].map(str::to_owned).to_vec()
    })
}

/// What a walk says, and whether all was well.
fn walk(url: &str, host: &str) -> (bool, String) {
    walk_in(&[], url, host)
}

/// The same, started by other commands.
fn walk_in(wraps: &[&str], url: &str, host: &str) -> (bool, String) {
    let mut words: Vec<OsString> = wraps.iter().map(OsString::from).collect();
    words.push(program("ringfab").into());
    let output = Command::new(&words[0]).args(&words[1..]).args(["doctor", url, "--hostnqn", host]).output();
    let output = output.expect("it runs");
    (output.status.success(), String::from_utf8(output.stdout).expect("text"))
}

/// The walk ends at this step, and says this.
fn ends_at(url: &str, host: &str, step: &str, says: &[&str]) {
    assert_ends(&walk(url, host), step, says);
}

fn assert_ends(walk: &(bool, String), step: &str, says: &[&str]) {
    let (well, said) = walk;
    assert!(!well, "{said}");
    // A look that has found the reason comes first, and then the step of attaching that fails for it.
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
    assert!(failed.first().is_some_and(|line| line.contains(&format!("FAILED  {step} "))), "{said}");
    assert!(
        failed[1..].iter().all(|line| line.contains("FAILED  Connect ") || step == "who listens"),
        "{said}"
    );
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
        &["may use none", &format!("host allow nqn.2026-11.org.ringfab:else --subsystem {NQN}`")],
    );
    ends_at(&format!("{tcp}/nqn.2026-11.org.ringfab:no"), FRIEND, "subsystems", &["is not among them", NQN]);
    ends_at(&format!("{tcp}/{NQN}?ns=1"), FRIEND, "namespaces", &["not ready"]);
    ends_at(&format!("{tcp}/{NQN}?ns=9"), FRIEND, "namespaces", &["there is no namespace 9"]);
    let (well, said) = walk(&tcp, FRIEND);
    assert!(well && said.contains(NQN), "without a subsystem it ends with those that there are: {said}");
    let next = format!(
        "Discovery works. Nothing was attached or read: the address names no subsystem. `ringfab doctor \
         '{tcp}/{NQN}?hostnqn={FRIEND}'` tries all of it.\n"
    );
    assert!(said.ends_with(&next) && !said.contains("All is well"), "{said}");
    // Nobody attaches anything where discovery shows nothing.
    ends_at(&tcp, "nqn.2026-11.org.ringfab:else", "subsystems", &["may use none", "host allow nqn"]);
    drop(target);
}

/// Says the same to whoever comes, after so many bytes of theirs.
fn says_to_all(after: usize, said: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let answer = move |mut stream: TcpStream| {
        let mut heard = vec![0; after];
        // A peer that has gone does not matter.
        let _gone = stream.read_exact(&mut heard).and_then(|()| stream.write_all(said));
        let _gone = stream.read_to_end(&mut heard);
    };
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || answer(stream))));
    });
    address
}

#[test]
fn something_else_that_listens_is_no_target() {
    let http = says_to_all(0, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    ends_at(
        &format!("nvme+tcp://{http}/{NQN}"),
        FRIEND,
        "who listens",
        &["ICReq", "do: check that the port is for NVMe/TCP"],
    );
    ends_at(
        &format!("nvme+rdma://{http}/{NQN}"),
        FRIEND,
        "who listens",
        &["MPA", "do: check that the port is for NVMe/RDMA"],
    );
}

#[test]
fn a_target_that_hangs_up_before_its_first_word_may_be_starting_or_stopping() {
    for (transport, step) in [("tcp", "ICReq"), ("rdma", "MPA")] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || listener.incoming().flatten().for_each(drop));
        let url = format!("nvme+{transport}://{address}/{NQN}");
        let said =
            [step, "the connection ended before the target answered", "do: the target may be starting"];
        ends_at(&url, FRIEND, "who listens", &said);
    }
}

#[test]
fn a_listener_that_refuses_the_first_words_of_its_transport_is_told_from_none() {
    // MPA reply with the bit R, without private data.
    let rejects = says_to_all(20, b"MPA ID Rep Frame\x60\x01\0\0");
    ends_at(
        &format!("nvme+rdma://{rejects}/{NQN}"),
        FRIEND,
        "who listens",
        &["MPA", "reject", "queue depth"],
    );
    // C2HTermReq: invalid PDU header field.
    let terminates =
        says_to_all(128, &[3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ends_at(&format!("nvme+tcp://{terminates}/{NQN}"), FRIEND, "who listens", &["ICReq", "do: "]);
}

/// A network of its own with nothing but the loopback interface, and a way for `192.0.2.0/24` that leads nowhere.
fn lonely(steps: &str) -> Vec<String> {
    let steps = format!("ip link set lo up && {steps} && exec \"$@\"");
    ["unshare", "--map-root-user", "--net", "sh", "-c", &steps, "sh"].map(str::to_owned).to_vec()
}

#[test]
fn a_way_that_leads_nowhere_is_told_from_a_port_that_nobody_answers() {
    let walk_to_nowhere = |steps: &str| {
        let wraps = lonely(steps);
        let wraps: Vec<&str> = wraps.iter().map(String::as_str).collect();
        walk_in(&wraps, &format!("nvme+tcp://192.0.2.1/{NQN}"), FRIEND)
    };
    if !Command::new("unshare")
        .args(["--map-root-user", "--net", "true"])
        .status()
        .is_ok_and(|it| it.success())
    {
        return not_run("walks without a route: network namespaces cannot be made");
    }
    assert_ends(&walk_to_nowhere("true"), "route", &["no route to 192.0.2.1", "ip route get"]);
    // What is sent there is lost: nobody on this interface has that address.
    let lost = walk_to_nowhere("ip route add 192.0.2.0/24 dev lo");
    assert_ends(&lost, "port", &["port 4420", "a firewall may be in between"]);
}

/// The Connect of a queue to a subsystem, discovery aside.
fn is_connect(command: &SubmissionEntry, data: &[u8]) -> bool {
    let subsystem = || data.get(256..256 + NQN.len()) == Some(NQN.as_bytes());
    command.is_fabrics() && command.fabrics_type() == FabricsType::CONNECT && subsystem()
}

#[test]
fn what_a_target_refuses_behind_discovery_is_named_with_its_step() {
    let port = free_port();
    let _target = target(port, "tcp", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let refused: [(Answer, &str, &[&str]); 3] = [
        (
            |command, data| is_connect(command, data).then_some(Status::CONNECT_CONTROLLER_BUSY.with_dnr()),
            "Connect",
            &["Controller Busy", "detach another host or try later"],
        ),
        (
            |command, data| {
                let is_io = command.cdw10.get() >> 16 == 1;
                (is_io && is_connect(command, data)).then_some(Status::CONNECT_INVALID_HOST.with_dnr())
            },
            "Connect",
            &["Invalid Host", "`ringfab-target host allow nqn."],
        ),
        (
            // Only I/O queues have this opcode without data.
            |command, _| {
                (command.opcode == 2 && command.nsid.get() == 1)
                    .then_some(Status::UNRECOVERED_READ_ERROR.with_dnr())
            },
            "first read",
            &["block 0 of namespace 1", "its disk fails"],
        ),
    ];
    for (answer, step, says) in refused {
        let address = between(SocketAddr::from(([127, 0, 0, 1], port)), answer);
        ends_at(&format!("nvme+tcp://{address}/{NQN}"), FRIEND, step, says);
    }
}

/// What a target is like, and what a host says of it: as its configuration, as the address, and as options.
struct Setup {
    what: &'static str,
    listener: &'static str,
    subsystem: String,
    more: String,
    options: Vec<String>,
    works: bool,
}

/// The table, with keys in this folder.
#[expect(clippy::too_many_lines, reason = "a row for each set-up")]
fn setups(folder: &Path) -> Vec<Setup> {
    let key = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a key");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("for few eyes");
        format!("file:{}", path.display())
    };
    let tls = key("tls", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:");
    let chap = key("chap", "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:");
    let other = key("other", "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:");
    let friend = || format!("allowed_hosts = [{FRIEND:?}]\n");
    let host = |keys: &str| format!("[[host]]\nnqn = {FRIEND:?}\n{keys}\n");
    let setup = |what, works| Setup {
        what,
        listener: "",
        subsystem: friend(),
        more: String::new(),
        options: Vec::new(),
        works,
    };
    let chap_host = host(&format!("dhchap_key = {chap:?}"));
    let authenticates = || format!("{}authentication = \"required\"\n", friend());
    let discovery = "[discovery]\nauthentication = \"required\"\n";
    vec![
        setup("everything works", true),
        Setup {
            subsystem: "allowed_hosts = [\"nqn.2026-11.org.ringfab:other\"]\n".to_owned(),
            ..setup("the host is not allowed", false)
        },
        Setup {
            more: "[[discovery.referral]]\naddress = \"127.0.0.1\"\nport = 9\ntransport = \"tcp\"\n"
                .to_owned(),
            ..setup("a referral that leads nowhere", true)
        },
        Setup {
            subsystem: authenticates(),
            more: chap_host.clone(),
            options: vec![format!("--dhchap-key={chap}")],
            ..setup("authentication", true)
        },
        Setup {
            subsystem: authenticates(),
            more: chap_host.clone(),
            options: vec![format!("--dhchap-key={other}")],
            ..setup("a wrong key", false)
        },
        Setup {
            more: format!("{discovery}{chap_host}"),
            ..setup("discovery asks for authentication, and the host gives no key", false)
        },
        Setup {
            listener: "tls = \"required\"\n",
            subsystem: format!("{}tls = \"required\"\n", friend()),
            more: host(&format!("tls_key = {tls:?}")),
            options: vec![format!("--tls-key={tls}")],
            ..setup("TLS", true)
        },
        Setup {
            listener: "tls = \"required\"\n",
            subsystem: format!("{}tls = \"required\"\n", friend()),
            more: host(&format!("tls_key = {tls:?}")),
            ..setup("TLS at the target's port only", false)
        },
    ]
}

#[test]
fn the_verdict_is_that_of_the_commands_which_attach() {
    let folder = tempfile::tempdir().expect("a folder");
    for setup in setups(folder.path()) {
        let port = free_port();
        let target = serving(port, &setup);
        let url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}?hostnqn={FRIEND}");
        let (doctor, said, reads) = verdicts(&url, &setup.options);
        assert_eq!(doctor, reads, "{}: {said}{}", setup.what, target.log());
        if !setup.what.starts_with("discovery") {
            assert_eq!(reads, setup.works, "{}: {said}{}", setup.what, target.log());
        }
    }
    let nobody = format!("nvme+tcp://127.0.0.1:{}/{NQN}?hostnqn={FRIEND}", free_port());
    let (doctor, said, reads) = verdicts(&nobody, &[]);
    assert!(!doctor && !reads, "{said}");
}

/// What is wrong with discovery alone is a note: nobody who has the address needs it.
#[test]
fn a_discovery_controller_that_refuses_is_a_note_where_the_subsystem_can_be_attached() {
    let port = free_port();
    let _target = target(port, "tcp", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    // Another target's discovery, or none: only the subsystem can be connected.
    let none: Answer = |command, data| {
        let is_connect_to_discovery = command.is_fabrics()
            && command.fabrics_type() == FabricsType::CONNECT
            && !is_connect(command, data);
        is_connect_to_discovery.then_some(Status::CONNECT_INVALID_PARAMETERS.with_dnr())
    };
    // CC.SHN.
    let stays: Answer = |command, _| {
        let sets = command.is_fabrics() && command.fabrics_type() == FabricsType::PROPERTY_SET;
        (sets && command.cdw12.get() >> 14 & 3 != 0).then_some(Status::INTERNAL_ERROR.with_dnr())
    };
    for (answer, noted) in [(none, "who listens"), (stays, "end")] {
        let address = between(SocketAddr::from(([127, 0, 0, 1], port)), answer);
        let url = format!("nvme+tcp://{address}/{NQN}?hostnqn={FRIEND}");
        let (doctor, said, reads) = verdicts(&url, &[]);
        assert!(doctor && reads, "{said}");
        assert!(said.contains(&format!("note    {noted} ")) && said.contains("Attaching works."), "{said}");
        assert!(said.contains("ok      first read "), "{said}");
    }
}

/// Of the doctor, with what it says, and of a command that reads a block.
fn verdicts(url: &str, options: &[String]) -> (bool, String, bool) {
    let run = |arguments: &[&str]| {
        Command::new(program("ringfab")).args(arguments).args(options).output().expect("it runs")
    };
    let doctor = run(&["doctor", url]);
    let reads = run(&["read", &format!("{url}&ns=1"), "--length", "512"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned() + &String::from_utf8_lossy(&reads.stderr);
    (doctor.status.success(), said, reads.status.success())
}

fn serving(port: u16, setup: &Setup) -> Service {
    Service::start("ringfab-target", |folder| {
        let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
        let Setup { listener, subsystem, more, .. } = setup;
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n[[listener]]\n\
             address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n{listener}[[subsystem]]\nnqn = {NQN:?}\n\
             {subsystem}[[subsystem.namespace]]\nmemory = \"1MiB\"\n{more}"
        );
        fs::write(folder.join("target.toml"), text).expect("a configuration");
        let config = folder.join("target.toml").display().to_string();
        ["serve", "--config", &config].map(str::to_owned).to_vec()
    })
}

#[test]
fn fewer_queues_than_asked_for_are_told_with_the_key_that_gives_more() {
    let port = free_port();
    let _target =
        target(port, "tcp\"\nio_queues_max = 2 # \"", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let (well, said) = walk(&format!("nvme+tcp://127.0.0.1:{port}/{NQN}?queues=4"), FRIEND);
    assert!(well && said.contains("2 of 4 I/O queues") && said.contains("see io_queues_max"), "{said}");
}

#[test]
fn the_doctor_of_a_target_sees_what_runs() {
    let port = free_port();
    let service = target(port, "tcp", "[[subsystem.namespace]]\npath = \"/nonexistent/disk\"\n");
    let config = service.path("target.toml");
    wait_until("the control socket is there", || service.path("control.sock").exists());
    let examine = |config: &Path| {
        let output = Command::new(program("ringfab-target")).arg("doctor").arg("--json").arg(config).output();
        let output = output.expect("it runs");
        let looks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.success(), looks["steps"].as_array().expect("a list").clone())
    };
    let trouble = |looks: &[Value], step: &str| {
        let of_step = looks.iter().filter(|look| look["step"] == step);
        of_step.filter_map(|look| look["error"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let (well, looks) = examine(&config);
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
    let (_, looks) = examine(&config);
    assert_eq!(trouble(&looks, "namespaces"), [""; 0], "{looks:?}");
    assert_eq!(trouble(&looks, "file"), [""; 0], "{looks:?}");
    // A copy is another file, whatever it says.
    let copy = service.path("copy.toml");
    fs::copy(&config, &copy).expect("a copy");
    let (well, looks) = examine(&copy);
    assert!(!well && trouble(&looks, "file")[0].contains("target.toml, and not"), "{looks:?}");
}
