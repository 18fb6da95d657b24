//! Where keys are not: in what both our ends say to anyone, in core files, and in their memory once they should have
//! forgotten them.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, IdentityVersion, Names, Policy,
    system_random,
};
use ringfab_spec::nqn::Nqn;
use ringfab_tests::member::{Credentials, Member};
use ringfab_tests::{NQN, PATIENCE, Service, free_port, program, wait_until};

const HOST: &str = "nqn.2026-11.org.ringfab:host";

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Bytes of the shortest piece of a key that is looked for: by chance, no such piece is anywhere.
const PIECE: usize = 16;

/// A target with the keys of a host, in files.
struct Guarded {
    service: Service,
    port: u16,
    key: DhchapKey,
    controller_key: DhchapKey,
    tls_key: ConfiguredPsk,
}

fn write_key(path: &Path, text: &str) {
    fs::write(path, text).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
}

fn configuration(folder: &Path, port: u16, metrics: u16, with_keys: bool) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    let keys = if with_keys {
        let (key, controller_key, tls_key) = (path("key"), path("controller-key"), path("tls-key"));
        format!(
            "[[host]]\nnqn = {HOST:?}\ndhchap_key = \"file:{key}\"\n\
             dhchap_controller_key = \"file:{controller_key}\"\ntls_key = \"file:{tls_key}\"\n"
        )
    } else {
        String::new()
    };
    format!(
        "[target]\nstate_dir = {:?}\ncores = 1\nlog = \"trace\"\n[control]\nsocket = {:?}\n\
         [metrics]\naddress = \"127.0.0.1:{metrics}\"\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\ntls = \"allowed\"\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\nmemory = \"1MiB\"\n{keys}",
        path("state"),
        path("control.sock")
    )
}

impl Guarded {
    fn start(metrics: u16) -> Self {
        let generate = |hash| DhchapKey::generate(hash, Some(hash), &mut system_random());
        let (key, controller_key, port) = (generate(Hash::Sha384), generate(Hash::Sha256), free_port());
        let tls_key = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random());
        let service = Service::start("ringfab-target", |folder| {
            write_key(&folder.join("key"), key.to_text().expose());
            write_key(&folder.join("controller-key"), controller_key.to_text().expose());
            write_key(&folder.join("tls-key"), tls_key.to_text().expose());
            let file = folder.join("target.toml");
            fs::write(&file, configuration(folder, port, metrics, true)).expect("a configuration");
            ["serve", "--config", &file.display().to_string()].map(str::to_owned).to_vec()
        });
        Self { service, port, key, controller_key, tls_key }
    }

    fn attach(&self, key: &DhchapKey, group: Group) -> std::io::Result<Member> {
        let policy = Policy::new(&[Hash::Sha256, Hash::Sha512], &[group]).expect("a policy");
        let credentials = Credentials::new(HOST, key, policy);
        Member::attach(LOCALHOST, SocketAddr::new(LOCALHOST, self.port), &credentials, PATIENCE)
    }

    /// What a command prints, with its errors.
    fn ask(&self, arguments: &[&str]) -> String {
        let socket = self.service.path("control.sock");
        let mut command = Command::new(program("ringfab-target"));
        let output = command.args(arguments).arg("--socket").arg(socket).output().expect("it runs");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
    }

    /// A command of ours with the keys of the host, in files, over TLS. It says all that it can.
    fn ringfab(&self, command: &str, more: &[&str]) -> Command {
        let file = |name: &str| format!("file:{}", self.service.path(name).display());
        let mut ringfab = Command::new(program("ringfab"));
        ringfab.arg(command).arg(format!("nvme+tcp://127.0.0.1:{}/{NQN}?hostnqn={HOST}", self.port));
        ringfab.args(["--dhchap-key", &file("key"), "--dhchap-controller-key", &file("controller-key")]);
        ringfab.args(["--tls-key", &file("tls-key")]).args(more);
        ringfab.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "full");
        ringfab
    }

    /// What nobody may see, and how it is called: all keys as they are written, and their bytes, also transformed.
    fn secrets(&self) -> Vec<(&'static str, Vec<u8>)> {
        [self.written(), self.derived()].concat()
    }

    /// Those of the keys for TLS that are derived from what is written, and the transformed keys for authentication.
    fn derived(&self) -> Vec<(&'static str, Vec<u8>)> {
        let name = |text| Nqn::new(text).expect("a name");
        let transformed = |key: &DhchapKey, owner| key.transformed(name(owner)).expose().to_vec();
        let names = Names { host: name(HOST), subsystem: name(NQN) };
        let retained = self.tls_key.retained(names.host, Derivation::Specified);
        let suite = self.tls_key.suite();
        let psk = retained.tls(IdentityVersion::One, suite, names, Derivation::Specified).expect("a key");
        vec![
            ("the host's transformed key", transformed(&self.key, HOST)),
            ("the controller's transformed key", transformed(&self.controller_key, NQN)),
            ("the retained key for TLS", retained.secret().expose().to_vec()),
            ("the TLS PSK", psk.secret().expose().to_vec()),
        ]
    }

    /// Those that are written.
    fn written(&self) -> Vec<(&'static str, Vec<u8>)> {
        let text = |key: &DhchapKey| key.to_text().expose().as_bytes()["DHHC-1:01:".len()..].to_vec();
        let bytes = |key: &DhchapKey| {
            let untransformed =
                DhchapKey::parse(&key.to_text().expose().replace(":01:", ":00:").replace(":02:", ":00:"));
            untransformed.expect("the same key").transformed(Nqn::new(NQN).expect("a name")).expose().to_vec()
        };
        let tls_text = self.tls_key.to_text().expose().as_bytes().to_vec();
        // One that is used as it is shows its bytes.
        let plain = self.tls_key.to_text().expose().replace("-1:01:", "-1:00:");
        let plain = ConfiguredPsk::parse(&plain).expect("the same key");
        let host = Nqn::new(HOST).expect("a name");
        let tls_bytes = plain.retained(host, Derivation::Specified).secret().expose().to_vec();
        vec![
            ("the host's key as text", text(&self.key)),
            ("the host's key", bytes(&self.key)),
            ("the controller's key as text", text(&self.controller_key)),
            ("the controller's key", bytes(&self.controller_key)),
            ("the key for TLS as text", tls_text["NVMeTLSkey-1:01:".len()..].to_vec()),
            ("the key for TLS", tls_bytes),
        ]
    }

    /// Which pieces of any secret are in these bytes.
    fn found_in(&self, bytes: &[u8]) -> Vec<&'static str> {
        found_in(&self.secrets(), bytes)
    }

    /// The same of the memory of the target.
    fn found_in_memory(&self) -> Vec<String> {
        found_in_memory(&self.secrets(), self.service.id())
    }
}

/// Which pieces of secrets are in these bytes, as they are and as hexadecimal digits.
fn found_in(secrets: &[(&'static str, Vec<u8>)], bytes: &[u8]) -> Vec<&'static str> {
    let mut pieces = Vec::new();
    for (name, secret) in secrets.iter().map(|(name, secret)| (*name, secret)) {
        for piece in secret.chunks_exact(PIECE) {
            let hex: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
            let list: Vec<String> = piece.iter().map(u8::to_string).collect();
            pieces.push((name, piece.to_vec()));
            pieces.push((name, hex.to_uppercase().into_bytes()));
            pieces.push((name, hex.into_bytes()));
            // As derived `Debug` prints it.
            pieces.push((name, list.join(", ").into_bytes()));
        }
    }
    let first: Vec<bool> = (0..=u8::MAX).map(|byte| pieces.iter().any(|(_, one)| one[0] == byte)).collect();
    let mut found = Vec::new();
    for at in 0..bytes.len() {
        if first[usize::from(bytes[at])] {
            let here = pieces.iter().filter(|(_, piece)| bytes[at..].starts_with(piece));
            found.extend(here.map(|(name, _)| *name));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The same of all memory that a process can write. Its stacks and its heap are there.
fn found_in_memory(secrets: &[(&'static str, Vec<u8>)], id: u32) -> Vec<String> {
    let folder = PathBuf::from(format!("/proc/{id}"));
    let maps = fs::read_to_string(folder.join("maps")).expect("its own process");
    let mut memory = fs::File::open(folder.join("mem")).expect("its own process");
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")))
    {
        let range = line.split(' ').next().expect("a range");
        let (start, end) = range.split_once('-').expect("a range");
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        memory.seek(SeekFrom::Start(start)).expect("an address");
        let mut bytes = Vec::new();
        // What is not resident, or a device's, cannot be read.
        let _partly = (&memory).take(end - start).read_to_end(&mut bytes);
        let place = line.split_whitespace().nth(5).unwrap_or("anonymous").to_owned();
        found.extend(found_in(secrets, &bytes).into_iter().map(|name| format!("{name} in {range} {place}")));
    }
    found
}

/// What is said of hosts that succeed and of those that do not.
#[test]
fn no_key_is_in_what_the_target_says() {
    let metrics = free_port();
    let guarded = Guarded::start(metrics);
    let wrong = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    let _there = guarded.attach(&guarded.key, Group::Ffdhe2048).expect("its key");
    assert!(guarded.attach(&wrong, Group::Ffdhe2048).is_err());
    assert!(guarded.attach(&guarded.key, Group::Null).is_err());
    let mut said = vec![guarded.ask(&["status"]), guarded.ask(&["status", "--json"])];
    assert!(said[1].contains(HOST), "{}", said[1]);
    let file = guarded.service.path("target.toml").display().to_string();
    for arguments in [vec!["check", &file], vec!["doctor", &file], vec!["doctor", "--json", &file]] {
        let output = Command::new(program("ringfab-target")).args(arguments).output().expect("it runs");
        said.extend([output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    }
    assert!(said.iter().any(|text| text.contains("dhchap_key")), "the resolved configuration: {said:?}");
    let address = format!("127.0.0.1:{metrics}");
    for path in ["/metrics", "/"] {
        let mut stream = std::net::TcpStream::connect(&address).expect("metrics");
        std::io::Write::write_all(&mut stream, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
            .expect("a request");
        stream.shutdown(std::net::Shutdown::Write).expect("all of it");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("200 OK"), "{text}");
        said.push(text);
    }
    // Keys that cannot be read.
    let text = guarded.key.to_text();
    for broken in [
        text.expose().replace("DHHC-1", "dhhc-1"),
        text.expose().replace("=:", ":"),
        text.expose()[..40].to_owned(),
    ] {
        fs::write(guarded.service.path("key"), &broken).expect("a key");
        said.push(guarded.ask(&["reload"]));
    }
    // The key in place of where it is.
    let inline = configuration(&guarded.service.path(""), guarded.port, metrics, true).replacen(
        "dhchap_key = \"file:",
        &format!("dhchap_key = \"{}", text.expose()),
        1,
    );
    fs::write(&file, inline).expect("a configuration");
    said.push(guarded.ask(&["reload"]));
    said.push(guarded.service.log());
    assert!(said.last().is_some_and(|log| log.contains("not authenticated")), "a log at level trace");
    for text in said {
        assert_eq!(guarded.found_in(text.as_bytes()), Vec::<&str>::new(), "{text}");
    }
}

#[test]
fn a_key_that_was_taken_away_is_in_no_memory() {
    let metrics = free_port();
    let guarded = Guarded::start(metrics);
    let wrong = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    for group in [Group::Ffdhe2048, Group::Ffdhe3072] {
        drop(guarded.attach(&guarded.key, group).expect("its key"));
        assert!(guarded.attach(&wrong, group).is_err());
    }
    let there = guarded.attach(&guarded.key, Group::Ffdhe4096).expect("its key");
    let over_tls = guarded.ringfab("list", &[]).output().expect("it runs");
    assert!(over_tls.status.success(), "{}", String::from_utf8_lossy(&over_tls.stderr));
    let found = guarded.found_in_memory();
    assert!(found.iter().any(|one| one.contains("host's")), "what is in use is found: {found:?}");
    assert!(found.iter().any(|one| one.contains("for TLS")), "what is in use is found: {found:?}");
    let text = configuration(&guarded.service.path(""), guarded.port, metrics, false);
    fs::write(guarded.service.path("target.toml"), text).expect("a configuration");
    let answer = guarded.ask(&["reload"]);
    drop(there);
    wait_until("nobody is left", || !guarded.ask(&["status", "--json"]).contains(HOST));
    let mut found = guarded.found_in_memory();
    let begun = std::time::Instant::now();
    while !found.is_empty() && begun.elapsed() < PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(250));
        found = guarded.found_in_memory();
    }
    assert_eq!(found, Vec::<String>::new(), "{answer}");
}

#[test]
fn a_target_with_keys_leaves_no_core_file() {
    let mut guarded = Guarded::start(free_port());
    let pid = guarded.service.id().to_string();
    let limit = Command::new("prlimit").args(["--pid", &pid, "--core=unlimited"]).status();
    assert!(limit.expect("prlimit runs").success());
    guarded.service.signal("ABRT");
    let status = guarded.service.wait(PATIENCE);
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false));
}

/// Our initiator, at a target that takes its keys and at one that does not.
#[test]
fn no_key_is_in_what_the_initiator_says() {
    let guarded = Guarded::start(free_port());
    let other = guarded.service.path("other");
    write_key(&other, DhchapKey::generate(Hash::Sha256, None, &mut system_random()).to_text().expose());
    let other = format!("file:{}", other.display());
    let (key, tls) = (guarded.key.to_text(), guarded.tls_key.to_text());
    let at = format!("nvme+tcp://127.0.0.1:{}/{NQN}?hostnqn={HOST}", guarded.port);
    let mut said = Vec::new();
    let mut run = |command: &mut Command, succeeds: bool| {
        let output = command.output().expect("it runs");
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert_eq!(output.status.success(), succeeds, "{command:?}: {text}");
        said.push(text);
    };
    for (command, more) in
        [("list", &["--json"][..]), ("doctor", &[]), ("doctor", &["--json"]), ("smart", &[])]
    {
        run(&mut guarded.ringfab(command, more), true);
    }
    let plain = |arguments: &[&str]| {
        let mut ringfab = Command::new(program("ringfab"));
        ringfab.args(["list", &at]).args(arguments).env("RUST_LOG", "trace");
        ringfab
    };
    let file = |name: &str| format!("file:{}", guarded.service.path(name).display());
    run(&mut plain(&["--concat", "--dhchap-key", &file("key")]), true);
    // A wrong one, and the keys themselves on the command line and in the environment, right and broken.
    run(&mut plain(&["--dhchap-key", &other]), false);
    run(&mut plain(&["--dhchap-key", &other, "--tls-key", &file("tls-key")]), false);
    run(&mut plain(&["--dhchap-key", key.expose(), "--tls-key", tls.expose()]), true);
    run(plain(&[]).env("RINGFAB_DHCHAP_KEY", key.expose()).env("RINGFAB_TLS_KEY", tls.expose()), true);
    for (option, text) in [("--dhchap-key", key.expose()), ("--tls-key", tls.expose())] {
        run(&mut plain(&[option, &text.replace("-1:", "-2:")]), false);
        run(&mut plain(&[option, &text[..text.len() - 2]]), false);
        run(&mut plain(&[option, &format!("file:{text}")]), false);
    }
    run(&mut plain(&["--dhchap-key", tls.expose()]), false);
    run(&mut plain(&["--tls-key", key.expose()]), false);
    assert!(said[0].contains("authenticated"), "a log at level trace: {}", said[0]);
    for text in said {
        assert_eq!(guarded.found_in(text.as_bytes()), Vec::<&str>::new(), "{text}");
    }
}

/// While connections last, an initiator keeps what it needs for them, and nothing of what is written in files.
#[test]
fn what_is_written_of_keys_is_not_in_the_memory_of_an_initiator() {
    let guarded = Guarded::start(free_port());
    let file = |name: &str| format!("file:{}", guarded.service.path(name).display());
    let keys = ["--dhchap-key", &file("key"), "--dhchap-controller-key", &file("controller-key")];
    let url = format!("nvme+tcp://127.0.0.1:{}/{NQN}?hostnqn={HOST}&queues=2", guarded.port);
    for (tls, in_use) in
        [(vec!["--tls-key".to_owned(), file("tls-key")], true), (vec!["--concat".to_owned()], false)]
    {
        let serving = Service::start("ringfab", |place| {
            let socket = place.join("nbd.sock").display().to_string();
            let all = ["nbd", &url, "--socket", &socket, "--cores", "2"].into_iter().chain(keys);
            all.map(str::to_owned).chain(tls).collect()
        });
        let found = found_in_memory(&guarded.written(), serving.id());
        assert_eq!(found, Vec::<String>::new());
        let found = found_in_memory(&guarded.derived(), serving.id());
        assert_eq!(found.iter().any(|one| one.starts_with("the TLS PSK")), in_use, "{found:?}");
    }
}
