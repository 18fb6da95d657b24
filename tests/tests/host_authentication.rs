//! The initiator proves who it is, and has the target prove the same: DH-HMAC-CHAP (NVM Express Base 2.1, section
//! 8.3.4), over both transports, and everything that ends it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfab_auth::{DhchapKey, Group, Hash, KeySource, Policy, system_random};
use ringfab_front_ends::advice::Advised;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{
    Authentication, AuthenticationFailure, Cause, ConnectError, ConnectOptions, HostIdentity, Key, Keys, Url,
};
use ringfab_target::config::OldKeys;
use ringfab_tests::{NQN, Service, TestTarget, free_port, program, wait_until};
use tempfile::TempDir;

const HOST: &str = "nqn.2026-11.org.ringfab:host";
const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";
const TRANSPORTS: [&str; 2] = ["transport = \"tcp\"", ""];

/// A target that knows the keys of a host, which are in a folder.
struct Guarded {
    target: TestTarget,
    keys: KeyFiles,
}

/// Keys in files.
struct KeyFiles(TempDir);

impl KeyFiles {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a folder"));
        this.put("host", &generate());
        this.put("controller", &generate());
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, key: &DhchapKey) {
        let path = self.path(&format!("{name}.new"));
        fs::write(&path, key.to_text().expose()).expect("a key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
        fs::rename(path, self.path(name)).expect("at once");
    }

    fn at(&self, name: &str) -> Key {
        Key::At(KeySource::File(self.path(name)))
    }

    /// What a host is given.
    fn keys(&self, controller: bool) -> Keys {
        Keys { host: self.at("host"), controller: controller.then(|| self.at("controller")) }
    }

    /// The target's table of the host.
    fn table(&self, more: &str) -> String {
        format!(
            "[[host]]\nnqn = {HOST:?}\ndhchap_key = \"file:{}\"\ndhchap_controller_key = \"file:{}\"\n{more}",
            self.path("host").display(),
            self.path("controller").display()
        )
    }
}

fn generate() -> DhchapKey {
    DhchapKey::generate(Hash::Sha256, Some(Hash::Sha256), &mut system_random())
}

fn known() -> Key {
    Key::Known(generate())
}

impl Guarded {
    fn start(transport: &str, more: &str) -> Self {
        let keys = KeyFiles::new();
        let target = TestTarget::with_listener(transport, &format!("{MEMORY}{}", keys.table(more)));
        Self { target, keys }
    }

    fn options(&self, keys: Keys) -> ConnectOptions {
        options(self.target.url(""), Some(keys))
    }
}

fn options(url: Url, keys: Option<Keys>) -> ConnectOptions {
    let id = "00000000-0000-4000-8000-000000000001".parse().expect("a UUID");
    let mut options = ConnectOptions::new(url, HostIdentity { nqn: HOST.to_owned(), id });
    options.authentication = keys.map(Authentication::new);
    options.reconnect.delay = Duration::from_millis(20);
    options.reconnect.delay_max = Duration::from_millis(200);
    options
}

fn connect(options: ConnectOptions, threads: u16) -> Result<Controller, ConnectError> {
    Controller::connect(options, EngineOptions::with_threads(threads))
}

/// Why attaching fails, which it says at once.
fn refusal(options: ConnectOptions) -> (AuthenticationFailure, String) {
    let begun = Instant::now();
    let error = connect(options, 1).map(drop).expect_err("refused");
    assert!(begun.elapsed() < Duration::from_secs(5), "{error} after {:?}", begun.elapsed());
    let text = Advised(error.clone()).to_string();
    match error.cause {
        Cause::Authentication(failure) => (failure, text),
        _ => panic!("{text}"),
    }
}

/// Threads that write and read back blocks of their own, until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    commands: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(controller: &Controller, threads: u64) -> Self {
        let (stop, commands) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..threads).map(|number| {
            let (stop, commands, controller) = (Arc::clone(&stop), Arc::clone(&commands), controller.clone());
            std::thread::spawn(move || {
                let offset = number * 16_384;
                let mut found = vec![0; 16_384];
                let mut round = 0_u8;
                while !stop.load(Ordering::Relaxed) {
                    round = round.wrapping_add(1);
                    let wanted = vec![round ^ number as u8; 16_384];
                    controller.write_at(1, offset, &wanted, false).expect("written");
                    controller.read_at(1, offset, &mut found).expect("read");
                    assert_eq!(found, wanted, "what was written last");
                    commands.fetch_add(2, Ordering::Relaxed);
                }
            })
        });
        Self { threads: threads.collect(), stop, commands }
    }

    /// Waits until more commands have ended.
    fn goes_on(&self) {
        let before = self.commands.load(Ordering::Relaxed);
        wait_until("I/O goes on", || self.commands.load(Ordering::Relaxed) > before + 20);
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("nothing was wrong"));
    }
}

#[test]
fn both_ends_prove_who_they_are_on_every_queue_of_every_engine() {
    for transport in TRANSPORTS {
        let guarded = Guarded::start(transport, "");
        for (both, threads) in [(false, 1), (true, 1), (true, 2)] {
            let mut options = guarded.options(guarded.keys.keys(both));
            options.queues = 4;
            let controller = connect(options, threads).expect("attached");
            let load = Load::start(&controller, 4);
            load.goes_on();
            load.end();
            controller.detach().expect("in order");
        }
    }
}

#[test]
fn every_hash_and_group_is_offered_alone() {
    let guarded = Guarded::start(TRANSPORTS[0], "dhchap_groups = [\"ffdhe3072\", \"ffdhe2048\", \"null\"]\n");
    for (hash, group) in
        [(Hash::Sha256, Group::Null), (Hash::Sha384, Group::Ffdhe2048), (Hash::Sha512, Group::Ffdhe3072)]
    {
        let mut options = guarded.options(guarded.keys.keys(true));
        let authentication = options.authentication.as_mut().expect("there are keys");
        authentication.policy = Policy::new(&[hash], &[group]).expect("a policy");
        connect(options, 1).expect("attached").detach().expect("in order");
    }
}

#[test]
fn who_does_not_fit_is_told_why_and_what_to_do() {
    for transport in TRANSPORTS {
        let guarded =
            Guarded::start(transport, "dhchap_hashes = [\"sha384\"]\ndhchap_groups = [\"ffdhe2048\"]\n");
        let keys = guarded.keys.keys(true);
        let with = |change: &dyn Fn(&mut ConnectOptions)| {
            let mut options = guarded.options(keys.clone());
            change(&mut options);
            refusal(options).1
        };
        let policy = |hash, group| {
            with(&|options| {
                let authentication = options.authentication.as_mut().expect("there are keys");
                authentication.policy = Policy::new(&[hash], &[group]).expect("a policy");
            })
        };
        let of_keys =
            |new: Keys| with(&|options| options.authentication = Some(Authentication::new(new.clone())));
        for (said, expected) in [
            (with(&|options| options.authentication = None), ["no key is given", "--dhchap-key"]),
            (
                of_keys(Keys { host: known(), ..keys.clone() }),
                ["refuses the key of this host", "compare the key"],
            ),
            (
                of_keys(Keys { controller: Some(known()), ..keys.clone() }),
                ["another controller key", "see who answers"],
            ),
            (policy(Hash::Sha256, Group::Ffdhe2048), ["none of the hash functions", "dhchap_hashes"]),
            (policy(Hash::Sha384, Group::Ffdhe3072), ["none of the DH groups", "dhchap_groups"]),
            (
                of_keys(Keys { host: Key::At(KeySource::File("/nowhere".into())), controller: None }),
                ["the key of this host cannot read /nowhere", "correct the file"],
            ),
        ] {
            assert!(expected.iter().all(|part| said.contains(part)), "{said}, not {expected:?}");
        }
        wait_until("nobody is left", || guarded.target.usage().iter().all(|core| core.queues == 0));
    }
}

#[test]
fn a_target_that_does_not_prove_who_it_is_is_not_used() {
    let keys = KeyFiles::new();
    let with_keys = |target: &TestTarget| options(target.url(""), Some(keys.keys(true)));
    let stranger = TestTarget::with_listener(TRANSPORTS[0], MEMORY);
    let (failure, said) = refusal(with_keys(&stranger));
    assert_eq!(failure, AuthenticationFailure::NotAsked, "{said}");
    // It has no controller key.
    let host =
        format!("{MEMORY}[[host]]\nnqn = {HOST:?}\ndhchap_key = \"file:{}\"\n", keys.path("host").display());
    let half = TestTarget::with_listener(TRANSPORTS[0], &host);
    let (_, said) = refusal(with_keys(&half));
    assert!(said.contains("if a controller key is given here, the target needs one, too"), "{said}");
    // One that requires a key and has none for this host.
    let required = format!("authentication = \"required\"\n{MEMORY}");
    let required = TestTarget::with_listener(TRANSPORTS[0], &required);
    let error = connect(with_keys(&required), 1).map(drop).expect_err("refused");
    let error = Advised(error).to_string();
    assert!(error.contains("requires a key of this host"), "{error}");
}

#[test]
fn queues_authenticate_again_while_io_goes_on_and_a_refusal_is_a_loss_that_is_overcome() {
    for transport in TRANSPORTS {
        let guarded = Guarded::start(transport, "");
        let mut options = guarded.options(guarded.keys.keys(true));
        // Queues that are always full.
        (options.queues, options.depth) = (2, 1);
        let controller = connect(options, 2).expect("attached");
        let load = Load::start(&controller, 8);
        let cntlid = controller.info().cntlid;
        for _ in 0..20 {
            controller.reauthenticate(None).expect("authenticated again");
        }
        load.goes_on();
        assert_eq!(controller.info().cntlid, cntlid, "the connection is the same");
        // A key that cannot be read costs nothing.
        let nowhere = Keys { host: Key::At(KeySource::File("/nowhere".into())), controller: None };
        let error = controller.reauthenticate(Some(nowhere)).expect_err("no file").to_string();
        assert!(error.contains("cannot read /nowhere"), "{error}");
        load.goes_on();
        assert_eq!(controller.info().cntlid, cntlid, "the connection is the same");
        controller.reauthenticate(None).expect("with the keys before");
        // A wrong one costs the connection, which is made again with the keys before.
        let wrong = Keys { host: known(), ..guarded.keys.keys(true) };
        let error = controller.reauthenticate(Some(wrong)).expect_err("refused").to_string();
        assert!(error.contains("refuses the key of this host"), "{error}");
        load.goes_on();
        wait_until("authenticated", || controller.reauthenticate(None).is_ok());
        load.end();
        controller.detach().expect("in order");
    }
}

#[test]
fn queues_authenticate_again_by_themselves() {
    let guarded = Guarded::start(TRANSPORTS[0], "");
    let mut options = guarded.options(guarded.keys.keys(false));
    options.authentication.as_mut().expect("there are keys").repeat = Some(Duration::from_millis(50));
    let controller = connect(options, 1).expect("attached");
    // What the file has by then is what counts: the target refuses it, and has the host come back with it.
    let good = fs::read(guarded.keys.path("host")).expect("the key");
    guarded.keys.put("host", &generate());
    wait_until("refused", || guarded.target.target.controllers().is_empty());
    fs::write(guarded.keys.path("host"), good).expect("a key");
    let mut block = vec![0; 512];
    controller.read_at(1, 0, &mut block).expect("read");
    controller.detach().expect("in order");
}

#[test]
fn a_target_whose_key_is_changed_is_waited_for_and_a_wrong_key_is_no_lost_network() {
    let guarded = Guarded::start(TRANSPORTS[0], "");
    let controller = connect(guarded.options(guarded.keys.keys(true)), 1).expect("attached");
    let load = Load::start(&controller, 2);
    load.goes_on();
    let new = generate();
    let mut manager = guarded.target.manager();
    let mut host = manager.configured().running.host(HOST);
    host.authentication.as_mut().expect("it has a key").key.key = new.clone();
    manager.set_host(host).expect("another key");
    // It counts from the next time on.
    load.goes_on();
    manager.kick_host(None, HOST).expect("connected");
    // The host finds the new one a while later.
    std::thread::sleep(Duration::from_millis(300));
    let before = load.commands.load(Ordering::Relaxed);
    // It must be seen to do nothing.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(load.commands.load(Ordering::Relaxed), before, "the old key is of no use");
    guarded.keys.put("host", &new);
    load.goes_on();
    load.end();
    controller.detach().expect("in order");
}

/// As docs/authentication.md has it: the target has both keys, then the host gets the new ones, then the old ones go.
/// The load never stops, and is interrupted only where somebody disconnects the host.
#[test]
fn keys_of_both_ends_are_replaced_under_load_and_nothing_is_lost() {
    for transport in TRANSPORTS {
        let guarded = Guarded::start(transport, "");
        let controller = connect(guarded.options(guarded.keys.keys(true)), 2).expect("attached");
        let load = Load::start(&controller, 2);
        load.goes_on();
        let (new, new_controller) = (generate(), generate());
        let mut manager = guarded.target.manager();
        let mut host = manager.configured().running.host(HOST);
        let keys = host.authentication.as_mut().expect("it has keys");
        keys.old = Some(OldKeys { key: keys.key.clone(), controller_key: keys.controller_key.clone() });
        keys.key.key = new.clone();
        keys.controller_key.as_mut().expect("there is one").key = new_controller.clone();
        manager.set_host(host).expect("new keys");
        let is_shown = |age: &str| {
            let status = guarded.target.manager().status().expect("cores that answer");
            status.controllers.iter().any(|one| one.authentication.as_ref().is_some_and(|it| it.key == age))
        };
        // Whoever comes back by accident has the old ones still.
        manager.kick_host(None, HOST).expect("connected");
        load.goes_on();
        assert!(is_shown("old"));
        guarded.keys.put("controller", &new_controller);
        guarded.keys.put("host", &new);
        manager.kick_host(None, HOST).expect("connected");
        load.goes_on();
        assert!(is_shown("new") && !is_shown("old"));
        let controllers = guarded.target.target.controllers();
        manager.revoke_old_keys(HOST).expect("there are old ones");
        load.goes_on();
        let ids = |all: Vec<Arc<_>>| all.iter().map(Arc::as_ptr).collect::<Vec<_>>();
        assert_eq!(ids(guarded.target.target.controllers()), ids(controllers), "nobody was disconnected");
        load.end();
        controller.detach().expect("in order");
    }
}

/// A target in a process of its own, which knows the keys.
fn service(port: u16, folder: &Path, table: &str) -> Service {
    Service::start("ringfab-target", |state| {
        let config = state.join("target.toml");
        let text = format!(
            "[target]\nstate_dir = {folder:?}\ncores = 1\ndrain_timeout_s = 5\n[[listener]]\n\
             address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n[[subsystem]]\nnqn = {NQN:?}\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"{}\"\n{table}",
            folder.join("image").display()
        );
        fs::write(&config, text).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
    })
}

#[test]
fn a_target_that_is_killed_is_authenticated_with_again() {
    let (keys, port) = (KeyFiles::new(), free_port());
    let state = tempfile::tempdir().expect("a folder");
    fs::write(state.path().join("image"), vec![0; 1 << 20]).expect("an image");
    let mut target = service(port, state.path(), &keys.table(""));
    let url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}").parse().expect("a URL");
    let mut options = options(url, Some(keys.keys(true)));
    options.queues = 2;
    let controller = connect(options, 2).expect("attached");
    let load = Load::start(&controller, 4);
    for _ in 0..2 {
        load.goes_on();
        target.kill();
        target = service(port, state.path(), &keys.table(""));
    }
    load.goes_on();
    load.end();
    controller.detach().expect("in order");
    assert!(target.log().contains("authenticated"), "{}", target.log());
}

/// What a command says, on both outputs.
fn said(arguments: &[&str], environment: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(program("ringfab"));
    let output = command.args(arguments).envs(environment.iter().copied()).output().expect("it runs");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

#[test]
fn each_command_takes_the_keys_and_shows_none() {
    let guarded = Guarded::start(TRANSPORTS[0], "");
    let url = guarded.target.url("").to_string();
    let key = fs::read_to_string(guarded.keys.path("host")).expect("a key");
    let secret = &key[12..40];
    let file = |name: &str| format!("file:{}", guarded.keys.path(name).display());
    let (host, controller) = (file("host"), file("controller"));
    let named = ["--hostnqn", HOST, "-vvv"];
    let run = |arguments: &[&str], environment: &[(&str, &str)]| {
        let (done, text) = said(&[arguments, &named].concat(), environment);
        assert!(!text.contains(secret), "{arguments:?} shows a key");
        (done, text)
    };
    let both = ["--dhchap-key", &host, "--dhchap-controller-key", &controller];
    let as_linux = ["--dhchap-secret", &host, "--dhchap-ctrl-secret", &controller];
    let in_address = format!("{url}?dhchap_key={host}&dhchap_controller_key={controller}");
    for (arguments, environment) in [
        ([&["list", &url], &both[..]].concat(), &[][..]),
        ([&["smart", &url], &as_linux[..]].concat(), &[]),
        (vec!["list", &in_address, "--json"], &[]),
        (
            vec!["list", &url],
            &[("RINGFAB_DHCHAP_KEY", &*host), ("RINGFAB_DHCHAP_CONTROLLER_KEY", &controller)],
        ),
        ([&["discover", &url], &both[..]].concat(), &[]),
        ([&["doctor", &url], &both[..]].concat(), &[]),
    ] {
        let (done, text) = run(&arguments, environment);
        assert!(done, "{arguments:?}: {text}");
    }
    let (done, text) = run(&["list", &url, "--dhchap-key", &key], &[]);
    assert!(done && text.contains("others on this machine can read the key"), "{text}");
    let other = generate().to_text();
    let wrong = [("RINGFAB_DHCHAP_KEY", other.expose())];
    let (done, text) = run(&["list", &url], &wrong);
    assert!(!done && text.contains("the target refuses the key of this host; compare"), "{text}");
    let (done, text) = run(&["doctor", &url], &wrong);
    assert!(!done && text.contains("What to do: compare the key"), "{text}");
    let (done, text) = run(&["doctor", &url], &[]);
    assert!(!done && text.contains("What to do: give the key"), "{text}");
    let (done, text) = run(&["list", &format!("{url}?dhchap_key={key}")], &[]);
    assert!(!done && text.contains("is a key; put it into a file"), "{text}");
}
