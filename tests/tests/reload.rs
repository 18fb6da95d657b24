//! A configuration that is changed while hosts work: by its file, and by command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{Service, program, wait_until};
use serde_json::Value;

const A: &str = "nqn.2026-11.org.ringfab:a";
const B: &str = "nqn.2026-11.org.ringfab:b";
const FRIEND: &str = "nqn.2026-11.org.ringfab:friend";

/// A target with its file, which tests write again.
struct Configurable {
    service: Service,
    port: u16,
    /// One that a listener may have later.
    other_port: u16,
}

impl Configurable {
    fn start() -> Self {
        let port = ringfab_tests::free_port();
        let other_port = ringfab_tests::free_port();
        let service = Service::start("ringfab-target", |folder| {
            fs::write(folder.join("target.toml"), text(folder, port, other_port)).expect("a configuration");
            fs::File::create(folder.join("disk")).and_then(|file| file.set_len(1 << 20)).expect("a disk");
            let config = folder.join("target.toml").display().to_string();
            ["serve", "--config", &config].map(str::to_owned).to_vec()
        });
        Self { service, port, other_port }
    }

    fn file(&self) -> PathBuf {
        self.service.path("target.toml")
    }

    /// Writes the file that it was started with again, after these replacements.
    fn write(&self, edits: &[(&str, &str)]) {
        let mut text = text(self.service.path("").as_path(), self.port, self.other_port);
        for (from, to) in edits {
            assert!(text.contains(from), "{from} in {text}");
            text = text.replacen(from, to, 1);
        }
        fs::write(self.file(), text).expect("a configuration");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.service.control(arguments)
    }

    /// What a command prints.
    fn ask(&self, arguments: &[&str]) -> String {
        self.service.ask(arguments)
    }

    /// Why a command fails.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("text")
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.ask(&["status", "--json"])).expect("JSON")
    }

    fn attach(&self, nqn: &str) -> Result<Controller, String> {
        self.attach_at(self.port, nqn)
    }

    /// Attaches as [`FRIEND`], and does not try again.
    fn attach_at(&self, port: u16, nqn: &str) -> Result<Controller, String> {
        let url: Url = format!("nvme+tcp://127.0.0.1:{port}/{nqn}").parse().expect("a URL");
        let host =
            HostIdentity { nqn: FRIEND.to_owned(), ..HostIdentity::for_url(&url).expect("an identity") };
        let mut options = ConnectOptions::new(url, host);
        options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
        Controller::connect(options, EngineOptions::default()).map_err(|error| error.to_string())
    }
}

fn text(folder: &Path, port: u16, other_port: u16) -> String {
    let [state, socket, disk] = ["state", "control.sock", "disk"].map(|name| folder.join(name));
    format!(
        "[target]\nstate_dir = {state:?}\ncores = [0]\nlog = \"info\"\n[control]\nsocket = {socket:?}\n\
         [memory]\nlarge_buffers = 64\n[confinement]\nports = [{other_port}]\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = {A:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"4MiB\"\n\
         [[subsystem]]\nnqn = {B:?}\nallowed_hosts = [{FRIEND:?}]\n[[subsystem.namespace]]\npath = {disk:?}\n\
         direct = false\nallow_page_cache = true\n"
    )
}

fn write(host: &Controller) -> bool {
    host.write_at(1, 0, &[9; 4096], true).is_ok()
}

/// Writes and reads until told to stop. No command may fail.
fn verify(host: &Controller, over: &AtomicBool) -> u32 {
    let mut rounds = 0_u32;
    while !over.load(Ordering::Relaxed) {
        let written = rounds.to_le_bytes().repeat(4096);
        host.write_at(1, 0, &written, false).expect("a write");
        let mut read = vec![0; written.len()];
        host.read_at(1, 0, &mut read).expect("a read");
        assert!(read == written, "round {rounds}");
        rounds += 1;
    }
    rounds
}

/// While `act` runs, a host works on subsystem A over one connection.
fn undisturbed(target: &Configurable, act: impl FnOnce()) {
    let host = target.attach(A).expect("attached");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let works = scope.spawn(|| verify(&host, &over));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A loss of its connection would have been an error: it does not connect again.
        assert!(works.join().expect("it is not disturbed") > 0);
    });
}

#[test]
fn a_reload_changes_what_is_different_and_disturbs_nothing_else() {
    let target = Configurable::start();
    undisturbed(&target, || {
        assert_eq!(target.ask(&["reload"]), "nothing is different\n");
        let friend = target.attach(B).expect("attached");
        assert!(write(&friend));
        let added = "[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:c\"\nallow_any_host = true\n\
                     [[subsystem.namespace]]\nnull = \"1MiB\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:b\"";
        target.write(&[
            ("log = \"info\"", "log = \"info,ringfab_target=debug\"\ndrain_timeout_s = 7"),
            ("transport = \"tcp\"", "transport = \"tcp\"\nio_queues_max = 2"),
            ("memory = \"4MiB\"\n", "memory = \"4MiB\"\n[[subsystem.namespace]]\nnull = \"8MiB\"\n"),
            ("[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:b\"", added),
            (FRIEND, "nqn.2026-11.org.ringfab:else"),
        ]);
        let shown = target.ask(&["reload", "--dry-run"]);
        let expected = [
            "~ target.drain_timeout_s: 30 -> 7".to_owned(),
            "~ target.log: \"info\" -> \"info,ringfab_target=debug\"".to_owned(),
            format!("~ listener tcp 127.0.0.1:{}: io_queues_max 128 -> 2", target.port),
            format!("+ namespace 2 of {A}: 8 MiB of zeroes"),
            format!("~ subsystem {B}: -{FRIEND} +nqn.2026-11.org.ringfab:else"),
            "+ subsystem nqn.2026-11.org.ringfab:c: 1 namespace".to_owned(),
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        assert!(write(&friend), "a look changes nothing");
        assert_eq!(target.ask(&["reload"]), shown);
        wait_until("who may not use it any more is ended", || !write(&friend));
        let refused = target.attach(B).expect_err("it may not");
        assert!(refused.contains("may not") || refused.contains("Host"), "{refused}");
        assert!(target.attach("nqn.2026-11.org.ringfab:c").is_ok(), "at the same address as before");
        assert_eq!(target.status()["namespaces"].as_array().expect("a list").len(), 4);
        assert_eq!(target.ask(&["reload"]), "nothing is different\n");
    });
    assert!(target.service.log().contains(" DEBUG "), "the log has changed");
}

#[test]
fn a_signal_reloads_too() {
    let target = Configurable::start();
    target.write(&[("memory = \"4MiB\"\n", "memory = \"4MiB\"\n[[subsystem.namespace]]\nnull = \"8MiB\"\n")]);
    target.service.signal("HUP");
    wait_until("it is there", || target.ask(&["namespace", "list"]).lines().count() == 4);
    // One that cannot be applied is told in the log, and ends nothing.
    fs::write(target.file(), "nonsense = 1\n").expect("a file");
    target.service.signal("HUP");
    wait_until("it is refused", || target.service.log().contains("the configuration is not reloaded"));
    assert!(target.service.log().contains("nonsense"));
    assert_eq!(target.ask(&["namespace", "list"]).lines().count(), 4);
}

#[test]
fn all_of_a_reload_is_applied_or_nothing() {
    let target = Configurable::start();
    undisturbed(&target, || {
        let generation = || target.status()["configuration"]["generation"].clone();
        let before = generation();
        let null = ("memory = \"4MiB\"\n", "memory = \"4MiB\"\n[[subsystem.namespace]]\nnull = \"8MiB\"\n");

        target.write(&[null, ("large_buffers = 64", "large_buffers = 65")]);
        let error = target.refused(&["reload"]);
        assert!(error.contains("~ memory.large_buffers: 64 -> 65 (needs a restart)"), "{error}");
        assert!(
            error.contains("takes none of the file: ") && !error.contains("nothing has changed"),
            "{error}"
        );

        target.write(&[null, ("allow_any_host = true", "serial = \"S9\"\nallow_any_host = true")]);
        assert!(target.refused(&["reload"]).contains("-> S9 (needs a restart)"));

        fs::write(target.file(), "[[listner]]\n").expect("a file");
        assert!(target.refused(&["reload"]).contains("did you mean listener?"));

        // The listener is exchanged, then a disk is missing: the listener before is bound again.
        let missing = target.service.path("missing");
        let table = format!("memory = \"4MiB\"\n[[subsystem.namespace]]\npath = {missing:?}\n");
        target.write(&[(null.0, &table), ("transport = \"tcp\"", "transport = \"tcp\"\nio_queues_max = 2")]);
        let error = target.refused(&["reload"]);
        assert!(error.contains("missing") && error.contains("No such file"), "{error}");
        assert!(target.attach(A).is_ok());

        // Somebody else has the address of a listener that comes after one was exchanged.
        let taken = std::net::TcpListener::bind(("127.0.0.1", target.other_port)).expect("a port");
        let second = format!(
            "transport = \"tcp\"\nio_queues_max = 2\n[[listener]]\naddress = \"127.0.0.1\"\nport = {}\n",
            taken.local_addr().expect("its address").port()
        );
        target.write(&[null, ("transport = \"tcp\"", &second)]);
        assert!(target.refused(&["reload"]).contains("in use"));
        assert!(target.attach(A).is_ok(), "the listener before is bound again");

        // The same, and the one before that was to give way has not done so yet.
        let main = format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {}\n", target.port);
        let other = main.replace(&target.port.to_string(), &target.other_port.to_string());
        let both = format!("{other}transport = \"tcp\"\n{}", main.replace("127.0.0.1", "0.0.0.0"));
        target.write(&[null, (&main, &both)]);
        assert!(target.refused(&["reload"]).contains("in use"));
        assert!(target.attach(A).is_ok(), "it is bound as before");
        assert!(!target.service.log().contains("cannot be bound again"));

        // Hosts would take another disk for the one that they have.
        let other = target.service.path("other");
        fs::write(&other, vec![0; 1 << 20]).expect("a disk");
        target.write(&[("/disk\"", "/other\"")]);
        let error = target.refused(&["reload"]);
        assert!(error.contains("hosts would take it for the one that they have"), "{error}");

        assert_eq!(generation(), before);
        assert_eq!(target.ask(&["namespace", "list"]).lines().count(), 3);
        assert_eq!(target.ask(&["status"]).matches("not in the file").count(), 0);
    });
}

#[test]
fn a_dry_run_says_why_a_reload_would_be_refused() {
    let target = Configurable::start();
    let missing = target.service.path("missing");
    let table = format!("memory = \"4MiB\"\n[[subsystem.namespace]]\npath = {missing:?}\n");
    // Not among the ports of the configuration.
    let port = ringfab_tests::free_port();
    let listener =
        format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n[[subsystem]]");
    for (edit, shown, why) in [
        (
            ("large_buffers = 64", "large_buffers = 65"),
            "~ memory.large_buffers: 64 -> 65",
            "(needs a restart)",
        ),
        (("memory = \"4MiB\"\n", table.as_str()), "+ namespace 2 of ", "No such file"),
        (("/disk\"", "/other\""), "~ namespace 1 of ", "hosts would take it for the one that they have"),
        (("[[subsystem]]", listener.as_str()), "+ listener tcp 127.0.0.1:", "the target has confined itself"),
    ] {
        fs::write(target.service.path("other"), vec![0; 1 << 20]).expect("a disk");
        target.write(&[edit]);
        let output = target.run(&["reload", "--dry-run"]);
        let [said, error] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.code() == Some(1) && said.starts_with(shown), "{said}{error}");
        assert!(error.starts_with("a reload would be refused: ") && error.contains(why), "{error}");
        assert!(target.refused(&["reload"]).contains(why));
    }
    target.write(&[]);
    assert_eq!(target.ask(&["reload", "--dry-run"]), "nothing is different\n");
}

#[test]
fn a_dry_run_knows_which_addresses_this_machine_has() {
    let target = Configurable::start();
    let port = target.other_port;
    let listener =
        format!("[[listener]]\naddress = \"192.0.2.77\"\nport = {port}\ntransport = \"tcp\"\n[[subsystem]]");
    target.write(&[("[[subsystem]]", listener.as_str())]);
    let said = target.refused(&["reload", "--dry-run"]);
    let expected = format!("cannot listen on 192.0.2.77:{port}: this machine has no such address");
    assert!(said.contains(&expected), "{said}");
    assert!(target.refused(&["reload"]).contains(&format!("cannot listen on 192.0.2.77:{port}")));
    target.write(&[("[[subsystem]]", listener.replace("192.0.2.77", "127.0.0.2").as_str())]);
    assert!(target.ask(&["reload", "--dry-run"]).starts_with("+ listener tcp 127.0.0.2:"));
}

#[test]
fn a_listener_moves_between_addresses_that_have_one_port_and_hosts_stay() {
    let target = Configurable::start();
    undisturbed(&target, || {
        for address in ["0.0.0.0", "127.0.0.1", "0.0.0.0"] {
            target.write(&[("\naddress = \"127.0.0.1\"", &format!("\naddress = {address:?}"))]);
            let shown = target.ask(&["reload"]);
            assert!(shown.ends_with(&format!("+ listener tcp {address}:{}\n", target.port)), "{shown}");
            assert!(target.attach(A).is_ok(), "{address}");
        }
    });
    // Another transport at the same address is another listener.
    let host = target.attach(A).expect("attached");
    assert!(write(&host));
    target.write(&[("transport = \"tcp\"\n", "transport = \"rdma\"\n")]);
    target.ask(&["reload"]);
    wait_until("it is ended", || !write(&host));
    assert!(target.service.log().contains("the listener on which it came is gone"));
}

#[test]
fn a_namespace_that_changes_takes_its_disk_over() {
    let target = Configurable::start();
    undisturbed(&target, || {
        let friend = target.attach(B).expect("attached");
        assert!(write(&friend));
        let disk = fs::File::open(target.service.path("disk")).expect("the disk");
        assert!(disk.try_lock_shared().is_err(), "it is the target's alone");
        target.write(&[("direct = false", "read_only = true\ndirect = false")]);
        assert_eq!(target.ask(&["reload"]), format!("~ namespace 1 of {B}: read_only false -> true\n"));
        assert!(!write(&friend), "it is read-only now");
        friend.read_at(1, 0, &mut [0; 4096]).expect("a read");
        assert!(disk.try_lock_shared().is_ok(), "others may read, too");

        // While somebody else reads it, it cannot be the target's alone again; it stays as it is.
        target.write(&[]);
        let error = target.refused(&["reload"]);
        assert!(error.contains("in use by"), "{error}");
        friend.read_at(1, 0, &mut [0; 4096]).expect("a read");
        assert!(!write(&friend));
        disk.unlock().expect("unlocked");

        // Its disk has changed hands already when the next one turns out to be missing: it is as it was before.
        let missing = target.service.path("missing");
        let more = format!("allow_page_cache = true\n[[subsystem.namespace]]\npath = {missing:?}\n");
        target.write(&[("allow_page_cache = true\n", &more)]);
        assert!(target.refused(&["reload"]).contains("missing"));
        assert!(disk.try_lock_shared().is_ok(), "others may read, as before");
        disk.unlock().expect("unlocked");
        target.write(&[]);
        assert_eq!(target.ask(&["reload"]), format!("~ namespace 1 of {B}: read_only true -> false\n"));
        wait_until("it can be written", || write(&friend));
        assert!(disk.try_lock_shared().is_err(), "it is the target's alone again");
    });
}

#[test]
fn what_is_added_by_command_can_be_secured() {
    let target = Configurable::start();
    let port = target.other_port.to_string();
    let add = |more: &[&str]| {
        let listener = ["listener", "add", "127.0.0.1", "--port", &port, "--transport", "tcp"];
        target.ask(&[&listener[..], more].concat());
    };
    let attach = |nqn| target.attach_at(target.other_port, nqn).map(drop);
    for (more, serves) in [(&["--tls", "required"][..], false), (&["--discovery-only"], false), (&[], true)] {
        add(more);
        assert_eq!(attach(A).is_ok(), serves, "{more:?}: {:?}", attach(A));
        target.ask(&["listener", "remove", &format!("127.0.0.1:{port}")]);
    }
    let guarded = "nqn.2026-11.org.ringfab:guarded";
    target.ask(&["subsystem", "add", guarded, "--host", FRIEND, "--authentication", "required"]);
    let refused = target.attach(guarded).map(drop).expect_err("it has no key");
    assert!(refused.contains("Authentication Required"), "{refused}");
    assert!(
        target.refused(&["subsystem", "add", B, "--host", FRIEND, "--tls", "maybe"]).contains("optional")
    );
}

#[test]
fn what_is_changed_by_command_is_shown_and_can_be_saved() {
    let target = Configurable::start();
    undisturbed(&target, || {
        let new = "nqn.2026-11.org.ringfab:new";
        target.ask(&["subsystem", "add", new, "--host", "nqn.2026-11.org.ringfab:else"]);
        target.ask(&["namespace", "add", "--null", "1MiB", "--subsystem", new]);
        assert!(target.attach(new).is_err());
        assert!(target.refused(&["host", "deny", "nqn.h", "--subsystem", new]).contains("anyway"));
        target.ask(&["host", "allow", FRIEND, "--subsystem", new]);
        let friend = target.attach(new).expect("it may now");
        assert!(write(&friend));
        assert_eq!(target.ask(&["host", "kick", FRIEND, "--subsystem", new]), "1 controller ended\n");
        wait_until("it is ended", || !write(&friend));
        let again = target.attach(new).expect("it may come back");
        target.ask(&["host", "deny", FRIEND, "--subsystem", new]);
        wait_until("it is ended", || !write(&again));
        assert!(target.refused(&["host", "kick", FRIEND, "--subsystem", new]).contains("not connected"));

        let port = target.other_port.to_string();
        let added = target.ask(&["listener", "add", "127.0.0.1", "--port", &port, "--transport", "tcp"]);
        assert_eq!(added, format!("listener 127.0.0.1:{port} added\n"));
        assert!(target.attach_at(port.parse().expect("a port"), A).is_ok());
        target.ask(&["log", "debug"]);
        assert!(target.refused(&["log", "loud"]).contains("neither a level"));

        let status = target.ask(&["status"]);
        for line in [
            format!("not in the file: + subsystem {new}: 1 namespace"),
            format!("not in the file: + listener tcp 127.0.0.1:{port}"),
            "not in the file: ~ target.log: \"info\" -> \"debug\"".to_owned(),
        ] {
            assert!(status.contains(&line), "{line} in {status}");
        }
        let before = fs::read_to_string(target.file()).expect("the file");
        target.ask(&["config", "--save"]);
        let saved = fs::read_to_string(target.file()).expect("the file");
        let kept = saved.replace("log = \"debug\"", "log = \"info\"");
        let mut kept = kept.lines();
        assert!(before.lines().all(|line| kept.any(|one| one == line)), "{before}\n---\n{saved}");
        assert!(saved.contains("log = \"debug\"") && saved.contains(&format!("nqn = {new:?}")), "{saved}");
        assert!(!saved.contains("block_bytes") && !saved.contains("spin_us"), "defaults: {saved}");
        assert_eq!(fs::read_to_string(target.service.path("target.toml.old")).expect("a file"), before);
        assert!(!target.ask(&["status"]).contains("not in the file"));

        target.ask(&["listener", "remove", &format!("127.0.0.1:{port}")]);
        assert!(target.attach_at(port.parse().expect("a port"), A).is_err());
        target.ask(&["subsystem", "remove", new]);
        assert_eq!(target.ask(&["status"]).matches("not in the file: - ").count(), 2);
        // The file is the truth when it is read again.
        assert_eq!(target.ask(&["reload"]).lines().count(), 2);
        assert!(target.attach_at(port.parse().expect("a port"), A).is_ok());
    });
    let only = target.refused(&["listener", "remove", "127.0.0.1:1"]);
    assert!(only.contains("there are 127.0.0.1:"), "{only}");
}

#[test]
fn a_file_that_somebody_has_edited_is_not_written_over() {
    let target = Configurable::start();
    let before = fs::read_to_string(target.file()).expect("the file");
    target.ask(&["log", "debug"]);
    for (edited, advice, why) in [
        (
            before.replace("[target]", "[target]\ndrain_timeout_s = 9"),
            "reload it, or move it away:\n",
            "~ target.drain_timeout_s: 30 -> 9",
        ),
        ("nonsense = 1\n".to_owned(), "correct it, or move it away:\n", "nonsense"),
    ] {
        fs::write(target.file(), &edited).expect("the file");
        let refused = target.refused(&["config", "--save"]);
        assert!(refused.contains(advice) && refused.contains(why), "{refused}");
        assert_eq!(fs::read_to_string(target.file()).expect("the file"), edited);
    }
    // What is moved away is written again.
    fs::rename(target.file(), target.service.path("mine")).expect("moved");
    assert!(target.ask(&["config", "--save"]).ends_with("target.toml is written\n"));
    let written = fs::read_to_string(target.file()).expect("the file");
    assert!(written.contains("log = \"debug\"") && !written.contains("drain_timeout_s"), "{written}");
    // Without a difference, the file stays.
    fs::write(target.file(), format!("# A comment\n{written}")).expect("the file");
    assert!(target.ask(&["config", "--save"]).contains("stays as it is"));
    assert!(fs::read_to_string(target.file()).expect("the file").starts_with("# A comment"));
}

#[test]
fn a_change_by_command_is_told_to_end_with_the_next_reload_until_it_is_saved() {
    let target = Configurable::start();
    let (file, socket) = (target.file(), target.service.path("control.sock"));
    let note = |what: &str, them: &str| {
        let (file, socket) = (file.display(), socket.display());
        format!(
            "note: {what} not in {file}, so the next reload or restart takes {them} back; `ringfab-target config \
             --save --socket {socket}` keeps {them}\n"
        )
    };
    let said = |arguments: &[&str]| {
        let output = target.run(arguments);
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    let one = note("1 change is", "it");
    // The last host of a subsystem may be denied, too. It then waits for its next one, which is told with the command.
    let denied = said(&["host", "deny", FRIEND, "--subsystem", B]);
    assert!(denied.ends_with(&one), "{denied}");
    assert!(
        denied
            .contains(&format!("warning: subsystem {B}: no host may use it yet; `ringfab-target host allow"))
    );
    assert!(target.attach(B).is_err());
    let allow = format!("`ringfab-target host allow {FRIEND} --subsystem {B}` lets it in");
    wait_until("the reason is told", || target.service.log().contains(&allow));
    // The note holds: a reload takes it back.
    assert_eq!(target.ask(&["reload"]), format!("~ subsystem {B}: +{FRIEND}\n"));
    assert!(target.attach(B).is_ok());
    for change in [
        &["log", "debug"][..],
        &["namespace", "add", "--null", "1MiB", "--subsystem", A],
        &["namespace", "limit", "1", "--subsystem", A, "--read-iops", "600"],
        &["namespace", "remove", "1", "--subsystem", A],
        &["host", "set", FRIEND, "--shares", "7"],
        &["subsystem", "remove", B],
    ] {
        assert!(said(change).ends_with(&one), "{change:?}");
        target.ask(&["reload"]);
    }
    assert_eq!(said(&["reload"]), "", "all of it is in the file");
    assert_eq!(said(&["namespace", "resize", "1", "--subsystem", B]), "", "its size is in no file");
    said(&["log", "debug"]);
    assert!(said(&["host", "set", FRIEND, "--shares", "7"]).ends_with(&note("2 changes are", "them")));
    assert_eq!(said(&["log", "info", "--json"]), "", "programs ask for `config`");
    // What the file has, a reload does not take back.
    said(&["config", "--save"]);
    assert_eq!(target.ask(&["reload"]), "nothing is different\n");
}

#[test]
fn what_a_person_wrote_stays_when_a_change_is_saved() {
    let target = Configurable::start();
    let written = format!("# Ask Ann first.\n{}# The end.\n", fs::read_to_string(target.file()).expect("it"))
        .replace("memory = \"4MiB\"", "memory = \"4MiB\"   # scratch")
        .replace("[memory]", "\n# Small machine.\n[memory]");
    fs::write(target.file(), &written).expect("a file");
    assert_eq!(target.ask(&["reload"]), "nothing is different\n");
    target.ask(&["namespace", "add", "--null", "1GiB", "--subsystem", A]);
    target.ask(&["host", "allow", "nqn.2026-11.org.ringfab:new", "--subsystem", B]);
    let said = target.ask(&["config", "--save"]);
    assert!(said.contains(&format!("+ namespace 2 of {A}: 1 GiB of zeroes\n")), "{said}");
    let saved = fs::read_to_string(target.file()).expect("the file");
    let (old, new): (Vec<&str>, Vec<&str>) = (written.lines().collect(), saved.lines().collect());
    let gone: Vec<_> = old.iter().filter(|line| !new.contains(line)).collect();
    let come: Vec<_> = new.iter().filter(|line| !old.contains(line)).collect();
    assert_eq!(gone, [&format!("allowed_hosts = [{FRIEND:?}]")], "{saved}");
    assert!(come.len() == 5 && come[0] == &"nsid = 2" && come[1] == &"null = \"1GiB\"", "{come:#?}");
    assert_eq!(*come[4], format!("allowed_hosts = [{FRIEND:?}, \"nqn.2026-11.org.ringfab:new\"]"));
    // A second time there is nothing to save, and a restart finds what was saved.
    assert!(target.ask(&["config", "--save"]).contains("stays as it is"));
    assert_eq!(target.ask(&["reload"]), "nothing is different\n");
    // What cannot be changed stays, and the lines are printed.
    let strange =
        saved.replacen("null = \"1GiB\"", "null = \"1GiB\"\nlimits = { # why\n  read_iops = 5\n}", 1);
    fs::write(target.file(), &strange).expect("a file");
    target.ask(&["reload"]);
    target.ask(&["namespace", "limit", "2", "--subsystem", A, "--read-iops", "6"]);
    let said = target.refused(&["config", "--save"]);
    assert!(said.contains("stays as it is: limits is one value in several lines"), "{said}");
    assert!(said.contains("limits = { read_iops = 6 }"), "{said}");
    assert_eq!(fs::read_to_string(target.file()).expect("the file"), strange);
}

#[test]
fn names_that_nobody_lets_in_and_limits_that_hosts_do_not_wait_for_are_told() {
    let target = Configurable::start();
    let typo = FRIEND.replace("friend", "freind");
    let said = |output: Output| String::from_utf8(output.stderr).expect("text");
    let warning = said(target.run(&["namespace", "hosts", "1", "--subsystem", B, "--host", &typo]));
    assert!(
        warning.starts_with("warning: ") && warning.contains(&format!("did you mean {FRIEND}?")),
        "{warning}"
    );
    let status = target.status();
    let shown = status["namespaces"].as_array().expect("a list").iter().find(|one| one["subsystem"] == B);
    assert_eq!(shown.expect("it")["hosts"], serde_json::json!([typo]));
    for arguments in [&["status"][..], &["namespace", "list"]] {
        let shown = target.ask(arguments);
        assert!(shown.contains(&format!("namespace 1 of {B} is for these hosts only: {typo}")), "{shown}");
    }
    // Another change does not tell it again, and a reload does.
    let limit = ["namespace", "limit", "1", "--subsystem", A, "--read-bytes-per-s", "1KiB"];
    let warning = said(target.run(&limit));
    assert!(warning.contains("takes 1024 s at this rate") && !warning.contains(&typo), "{warning}");
    let more = format!("allowed_hosts = [{FRIEND:?}]\n[[subsystem.namespace]]\nhosts = [{typo:?}]\n");
    target.write(&[(&format!("allowed_hosts = [{FRIEND:?}]\n[[subsystem.namespace]]\n"), &more)]);
    for arguments in [&["reload", "--dry-run"][..], &["reload"]] {
        let warning = said(target.run(arguments));
        assert!(warning.contains("no host sees this namespace"), "{warning}");
    }
    let file = target.file().display().to_string();
    let check =
        Command::new(program("ringfab-target")).args(["check", "--quiet", &file]).output().expect("it");
    let said_quietly = said(check);
    assert!(said_quietly.contains("no host sees this namespace"), "{said_quietly}");
    assert!(!said_quietly.contains("note: "), "{said_quietly}");
    let check = Command::new(program("ringfab-target")).args(["check", &file]).output().expect("it");
    assert!(said(check).contains("no host sees this namespace"));
    wait_until("a line in the log", || target.service.log().contains("no host sees this namespace"));
}

/// Sends a line to the control socket. What is answered.
fn send(target: &Configurable, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let path = target.service.path("control.sock");
    let mut socket = std::os::unix::net::UnixStream::connect(path).expect("connected");
    socket.write_all(format!("{request}\n").as_bytes()).expect("sent");
    socket.shutdown(std::net::Shutdown::Write).expect("no more");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_key_in_a_request_is_refused_and_not_logged() {
    let target = Configurable::start();
    let secret = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n";
    for host in [
        format!("{{\"nqn\":\"nqn.h\",\"dhchap_key\":\"DHHC-1:00:{secret}:\"}}"),
        format!("{{\"nqn\":\"nqn.h\",\"tls_key\":\"{secret}\"}}"),
        format!("{{\"nqn\":\"nqn.h\",\"shares\":\"DHHC-1:00:{secret}:\"}}"),
        format!("\"NVMeTLSkey-1:01:{secret}:\""),
    ] {
        let answer = send(&target, &format!("{{\"command\":\"host-set\",\"host\":{host}}}"));
        assert!(answer.contains("\"error\""), "{answer}");
    }
    let log = target.service.log();
    assert!(log.matches("a control request was refused").count() == 4 && !log.contains(secret), "{log}");
}

#[test]
fn the_log_has_every_change_and_who_asked_for_it() {
    let target = Configurable::start();
    let allow = |host: &str| {
        let request = format!("{{\"command\":\"host-allow\",\"subsystem\":{B:?},\"host\":{host:?}}}");
        send(&target, &request)
    };
    let hosts: Vec<String> = (0..60).map(|number| format!("nqn.2026-11.org.ringfab:h{number:02}")).collect();
    for host in &hosts {
        assert!(allow(host).contains("\"ok\""));
    }
    for host in &hosts {
        assert!(allow(host).contains("\"error\""), "a host that may already");
    }
    let gone = ["nqn.2026-11.org.ringfab:c", "nqn.2026-11.org.ringfab:d"];
    for nqn in gone {
        let table = format!("{{\"nqn\":{nqn:?},\"allow_any_host\":true,\"namespace\":[]}}");
        let add = send(&target, &format!("{{\"command\":\"subsystem-add\",\"subsystem\":{table}}}"));
        let remove = format!("{{\"command\":\"subsystem-remove\",\"subsystem\":{nqn:?}}}");
        let remove = send(&target, &remove);
        assert!(add.contains("\"ok\"") && remove.contains("\"ok\""), "{add} {remove}");
    }
    let log = target.service.log();
    let told = |what: &str, name: &str| {
        let found = log.lines().find(|line| line.contains(what) && line.contains(name));
        found.unwrap_or_else(|| panic!("{what} of {name} in {log}"))
    };
    let by = format!("process {}", std::process::id());
    for host in &hosts {
        assert!(told("a change is asked for", host).contains(&by));
        told("configuration changed", host);
        assert!(told("a control request was refused request=\"host allow\"", host).contains(&by));
    }
    for nqn in gone {
        assert!(told("a change is asked for request=\"subsystem remove\"", nqn).contains(&by));
        told("configuration changed change=\"- subsystem", nqn);
    }
    // What only looks is not a change: who asks wrongly and often fills no log.
    for _ in 0..60 {
        send(&target, "nonsense");
    }
    let log = target.service.log();
    assert_eq!(log.matches("a control request was refused error=").count(), 20, "{log}");
}

/// The lines of docs/control.md that are sent and answered: each request with its answer, if that is shown.
/// `port` takes the place of the one on the page, which something else may have here.
fn documented(port: u16) -> Vec<(String, Option<Value>)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/control.md");
    let text = fs::read_to_string(page).expect("the page").replace("4421", &port.to_string());
    let mut all: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(request) = line.strip_prefix("> ") {
            all.push((request.to_owned(), String::new()));
        } else if let Some(answer) = line.strip_prefix("< ").or_else(|| line.strip_prefix("    ")) {
            // A long answer goes on in lines that are indented.
            all.last_mut().expect("a request").1.push_str(answer);
        }
    }
    let parsed = |answer: String| {
        (!answer.is_empty())
            .then(|| serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")))
    };
    all.into_iter().map(|(request, answer)| (request, parsed(answer))).collect()
}

/// Whether an answer has the fields of the one that is documented, and no others, with values of the same kind. Values
/// of the texts that are the same on every machine are compared, too.
fn is_like(documented: &Value, found: &Value, at: &str) {
    match (documented, found) {
        (Value::Object(known), Value::Object(fields)) => {
            let names = |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(known), names(fields), "{at}");
            known.iter().for_each(|(name, value)| is_like(value, &fields[name], &format!("{at}.{name}")));
        }
        (Value::Array(known), Value::Array(items)) => {
            let Some(first) = known.first() else { return assert!(items.is_empty(), "{at}: {items:?}") };
            items.iter().for_each(|item| is_like(first, item, at));
        }
        (Value::String(known), Value::String(text)) => {
            let compared = ["what", "kind", "detail", "address", "error", "state", "source"];
            let differs = at.contains("namespace-list") || at.contains("\"status\"");
            if differs || !compared.iter().any(|name| at.ends_with(&format!(".{name}"))) {
                return;
            }
            assert_eq!(known, text, "{at}");
        }
        (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) | (Value::Null, _) => {}
        (known, found) => panic!("{at}: {found} instead of {known}"),
    }
}

#[test]
fn every_request_is_documented_and_answered_as_documented() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let target = Configurable::start();
    let socket =
        std::os::unix::net::UnixStream::connect(target.service.path("control.sock")).expect("connected");
    let mut answers = BufReader::new(socket.try_clone().expect("a second handle"));
    let mut ask = |request: &str| -> Value {
        (&socket).write_all(format!("{request}\n").as_bytes()).expect("sent");
        let mut line = String::new();
        answers.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    };
    // The program names all its commands when it is asked for one that there is not.
    let error = ask("{\"command\":\"?\"}")["error"].as_str().expect("an error").to_owned();
    let all: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    assert!(all.len() > 10, "{error}");
    // One host, with a command that fails, so that all of `status` is there.
    let host = target.attach(A).expect("attached");
    assert!(write(&host) && host.log_page(0x7f, 0, 0, 16).is_err());
    let documented = documented(target.other_port);
    for command in all {
        let named = format!("\"command\":\"{command}\"");
        assert!(
            documented.iter().any(|(request, _)| request.contains(&named)),
            "{command} is not documented"
        );
    }
    for (request, answer) in documented {
        let found = ask(&request);
        match answer {
            Some(answer) => is_like(&answer, &found, &request),
            None => assert!(found.get("ok").is_some(), "{request}: {found}"),
        }
    }
    let status = ask("{\"command\":\"status\"}");
    let controller = &status["ok"]["controllers"][0];
    assert_eq!(
        (&controller["host"], &controller["errors"]),
        (&Value::from(FRIEND), &Value::from(1)),
        "{controller}"
    );
    assert_eq!(controller["total"]["commands"]["write"], 1);
    assert_eq!(controller["total"]["bytes"]["written"], 4096);
}
