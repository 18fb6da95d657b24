//! Freezes: snapshots of several volumes are of one instant, and writes go on whatever becomes of who has asked.

mod clock;

use std::process::{Child, Command, Output, Stdio};

use clock::{BLOCK_BYTES, ClockLoad, VOLUME_BYTES, WRITERS};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, Service, free_port, wait_until};
use serde_json::Value;

/// How often copies are made.
const TRIES: u32 = 5;

/// A target with two volumes, on two cores.
struct Target {
    service: Service,
    port: u16,
}

impl Target {
    fn start() -> Self {
        Self::start_with("")
    }

    /// With more tables `[[subsystem.namespace]]`.
    fn start_with(more: &str) -> Self {
        let port = free_port();
        let service = Service::start("ringfab-target", |folder| {
            let volumes = ["a", "b"].map(|name| {
                let path = folder.join(name);
                let file = std::fs::File::create(&path).expect("a file");
                file.set_len(VOLUME_BYTES).expect("a size");
                format!("[[subsystem.namespace]]\npath = {path:?}\n")
            });
            let more = more.replace("FOLDER", &folder.display().to_string());
            let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
            let text = format!(
                "[target]\nstate_dir = {state:?}\ncores = 2\n[control]\nsocket = {socket:?}\n[[listener]]\n\
                 address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n[[subsystem]]\nnqn = {NQN:?}\n\
                 allow_any_host = true\n{}{more}",
                volumes.concat()
            );
            let config = folder.join("target.toml");
            std::fs::write(&config, text).expect("a configuration");
            ["serve", "--config", &config.display().to_string()].map(str::to_owned).to_vec()
        });
        let this = Self { service, port };
        wait_until("the socket is there", || this.service.path("control.sock").exists());
        this
    }

    fn attach(&self) -> Controller {
        let url: Url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port).parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        let mut options = ConnectOptions::new(url, host);
        options.queues = 2;
        Controller::connect(options, EngineOptions::default()).expect("attached")
    }

    /// `ringfab-target freeze` with these words.
    fn freeze(&self, words: &[&str]) -> Command {
        let mut command = self.service.command(&["freeze"]);
        command.args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.freeze(words).output().expect("it runs")
    }

    /// What it says when it fails.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// How often the log says something.
    fn said(&self, what: &str) -> usize {
        self.service.log().matches(what).count()
    }

    /// A freeze that lasts until its standard input is closed, which is there when this returns.
    fn freeze_until_told(&self, words: &[&str]) -> Child {
        let before = self.said(" frozen");
        let mut command = self.freeze(words);
        let child = command.args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        wait_until("it is frozen", || self.said(" frozen") > before);
        child.expect("it runs")
    }

    /// How many commands wait, and hold nothing.
    fn held_back(&self) -> u64 {
        let status: Value = serde_json::from_str(&self.service.ask(&["status", "--json"])).expect("JSON");
        let cores = status["cores"].as_array().expect("cores").iter();
        let states = cores.flat_map(|core| core["states"].as_array().expect("states"));
        let held = states.filter(|one| one["state"] == "held_back");
        held.map(|one| one["commands"].as_u64().expect("a number")).sum()
    }

    /// What a volume has now.
    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.service.path(name)).expect("a volume")
    }
}

#[test]
fn copies_of_two_volumes_are_of_one_instant_with_a_freeze_and_only_with_it() {
    let target = Target::start();
    let controller = target.attach();
    let mut copies = Vec::new();
    let load = ClockLoad::start(&controller);
    // A machine that is slower than a freeze lasts tries again.
    for _ in 0..TRIES {
        load.wait_until_it_runs();
        let mut asker = target.freeze_until_told(&["1", "2", "--for", "10s"]);
        let one = target.content("a");
        // Each thread would write now.
        wait_until("the load waits", || target.held_back() == WRITERS);
        let two = target.content("b");
        drop(asker.stdin.take());
        if asker.wait().expect("its end").success() {
            copies.push([one, two]);
        }
    }
    assert!(!copies.is_empty(), "no freeze was long enough: {}", target.service.log());
    // The same without.
    let one = target.content("a");
    let before = load.now();
    wait_until("the load goes on", || load.now() > before + 10 * WRITERS);
    let unfrozen = [one, target.content("b")];
    let written = load.finish();
    for [one, two] in &copies {
        assert_eq!(written.check([one, two]), Ok(()));
    }
    let [one, two] = &unfrozen;
    assert!(written.check([one, two]).is_err(), "who copies one after the other gets two moments");
    controller.detach().expect("detached");
}

#[test]
fn writes_wait_and_reads_do_not_until_the_command_ends_or_who_asked_is_gone() {
    let target = Target::start();
    let controller = target.attach();
    for is_killed in [false, true] {
        let mut asker = target.freeze_until_told(&["1", "--for", "10s"]);
        let writer = {
            let controller = controller.clone();
            std::thread::spawn(move || controller.write_at(1, 0, &[7; BLOCK_BYTES], false))
        };
        // The other volume is not frozen, and neither are reads and flushes.
        controller.write_at(2, 0, &[8; BLOCK_BYTES], false).expect("written");
        controller.read_at(1, 8192, &mut [0; BLOCK_BYTES]).expect("read");
        controller.flush(1).expect("flushed");
        wait_until("it waits", || target.held_back() == 1);
        assert!(!writer.is_finished(), "it waits");
        if is_killed {
            asker.kill().expect("killed");
        }
        drop(asker.stdin.take());
        assert_eq!(asker.wait().expect("its end").success(), !is_killed);
        writer.join().expect("no panic").expect("written");
    }
    wait_until("both are over", || target.said(" thawed") == 2);
    assert_eq!(target.said("the time was over"), 0, "{}", target.service.log());
    controller.detach().expect("detached");
}

#[test]
fn a_freeze_is_over_with_its_time_and_who_asked_is_told() {
    let target = Target::start();
    let controller = target.attach();
    let mut asker = target.freeze(&["1", "--for", "300ms", "--", "cat"]);
    let mut asker = asker.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    wait_until("its time is over", || target.said("the time was over") == 1);
    controller.write_at(1, 0, &[7; BLOCK_BYTES], false).expect("written while the command still runs");
    drop(asker.stdin.take());
    let output = asker.wait_with_output().expect("its end");
    let told = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("took longer than the freeze, which ended after 300ms"), "{told}");
    controller.detach().expect("detached");
}

#[test]
fn what_cannot_be_frozen_and_what_fails_is_a_sentence() {
    let shared = "[[subsystem.namespace]]\npath = \"FOLDER/c\"\nshared = true\n".repeat(2);
    let target = Target::start_with(&shared);
    let early = target.refused(&["3", "--", "true"]);
    assert!(early.contains("namespace 3 of") && early.contains("is not ready"), "{early}");
    let file = std::fs::File::create(target.service.path("c")).expect("a file");
    file.set_len(VOLUME_BYTES).expect("a size");
    let failed = target.refused(&["1", "--", "false"]);
    assert!(failed.contains("the command has failed: exit status: 1"), "{failed}");
    let missing = target.refused(&["1", "--", "/nonexistent"]);
    assert!(missing.contains("/nonexistent cannot be run: No such file"), "{missing}");
    let unknown = target.refused(&["9", "--", "true"]);
    assert!(unknown.contains(&format!("there is no namespace 9 in {NQN}")), "{unknown}");
    wait_until("all are ready", || !target.service.ask(&["namespace", "list"]).contains("not ready"));
    let half = target.refused(&["3", "--", "true"]);
    assert!(half.contains("have one disk: name both"), "{half}");
    let elsewhere = target.refused(&["1", "--subsystem", "nqn.2026-11.org.ringfab:none", "--", "true"]);
    assert!(elsewhere.contains("there is no subsystem nqn.2026-11.org.ringfab:none"), "{elsewhere}");
    let both = target.run(&["3", "4", &format!("{NQN}/1"), "--subsystem", NQN, "--", "true"]);
    assert!(both.status.success(), "{}", String::from_utf8_lossy(&both.stderr));
    let told = String::from_utf8(both.stdout).expect("text");
    assert!(told.starts_with("frozen for ") && told.ends_with(" ms\n"), "{told}");
    // All of these are over.
    let controller = target.attach();
    for nsid in [1, 3] {
        controller.write_at(nsid, 0, &[7; BLOCK_BYTES], false).expect("written");
    }
    controller.detach().expect("detached");
}

#[test]
fn two_who_freeze_the_same_volumes_in_different_orders_take_turns() {
    let target = Target::start();
    let freezes: Vec<Child> = (0..6)
        .map(|number| {
            let names = if number % 2 == 0 { ["1", "2"] } else { ["2", "1"] };
            let words = [&names[..], &["--for", "10s", "--", "true"]].concat();
            target.freeze(&words).stdout(Stdio::null()).spawn().expect("it runs")
        })
        .collect();
    for mut freeze in freezes {
        assert!(freeze.wait().expect("its end").success(), "{}", target.service.log());
    }
    let mut first = target.freeze_until_told(&["1", "--for", "10s"]);
    let late = target.refused(&["1", "2", "--for", "200ms", "--", "true"]);
    assert!(late.contains("not frozen: after 200ms, namespace 1 of"), "{late}");
    drop(first.stdin.take());
    assert!(first.wait().expect("its end").success());
}
