//! The commands, as docs/tls.md has them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;
use tempfile::TempDir;

const HOST: &str = "nqn.2026-11.org.ringfab:pair";

fn ringfab(arguments: &[&str]) -> Output {
    Command::new(program("ringfab")).args(arguments).output().expect("it runs")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The lines behind one that begins so, up to an empty one.
fn lines_after<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| !line.starts_with(start))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect()
}

/// A target with what `keys pair` says.
fn target(folder: &Path, port: u16, pair: &str) -> Service {
    let host = lines_after(pair, "In the target's configuration").join("\n");
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = [0, 1]\n[control]\nsocket = {:?}\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = {port}\ntransport = \"tcp\"\ntls = \"allowed\"\n[[subsystem]]\nnqn = {NQN:?}\n\
         allowed_hosts = [{HOST:?}]\nauthentication = \"required\"\ntls = \"required\"\n[[subsystem.namespace]]\n\
         memory = \"8MiB\"\n{host}\n",
        folder.join("state"),
        folder.join("control"),
    );
    fs::write(folder.join("target.toml"), text).expect("a configuration");
    let config = folder.join("target.toml").display().to_string();
    Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec())
}

#[test]
fn two_commands_set_up_a_volume_that_is_authenticated_and_encrypted() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let keys = folder.path().join("keys");
    let make = ["keys", "pair", "--tls", "--host", HOST, "--subsystem", NQN, "--directory"];
    let make = [&make[..], &[keys.to_str().expect("a name")]].concat();
    let pair = said(&ringfab(&make));
    assert!(!pair.contains("DHHC-1:") && !pair.contains("NVMeTLSkey-1:"), "no key is shown: {pair}");
    // A Linux host, or target, is told how the kernel gets the key.
    let file = keys.join(format!("{HOST}.keys"));
    let insert = "--keydata=\"$(key tls_key)\" --identity=1 --insert";
    let connect =
        "--dhchap-secret=\"$(key dhchap_key)\" --dhchap-ctrl-secret=\"$(key dhchap_controller_key)\" --tls";
    assert!(pair.contains(connect) && pair.contains("--trsvcid=4420"), "{pair}");
    let linux = lines_after(&pair, "On a Linux target").join("\n");
    assert!(linux.contains(insert) && linux.contains("/dhchap_ctrl_key"), "{linux}");
    assert!(pair.contains(&format!("chown ringfab {}", file.display())), "{pair}");
    // No key is lost by another try.
    let first = fs::read_to_string(&file).expect("keys");
    said(&ringfab(&make));
    assert!(
        keys.join(format!("{HOST}.2.keys")).exists() && fs::read_to_string(&file).expect("keys") == first
    );
    let service = target(folder.path(), port, &pair);
    // The second command, as it is printed.
    let line = pair.lines().find(|line| line.trim_start().starts_with("ringfab list")).expect("a command");
    let line = line.trim_start().replace("ADDRESS:4420", &format!("127.0.0.1:{port}"));
    let line = line.replace(&format!("/etc/ringfab/{HOST}.keys"), &file.display().to_string());
    let line = line.replacen("ringfab", &program("ringfab").display().to_string(), 1);
    let listed = said(&Command::new("sh").args(["-c", &line]).output().expect("a shell"));
    assert!(listed.contains("8 MiB"), "{listed}");
    // Without one of the keys, nothing is served.
    let less = folder.path().join("less");
    let line = line.replace(&*file.to_string_lossy(), &less.to_string_lossy());
    for key in ["tls_key", "dhchap_key"] {
        let key_begins = format!("{key} = ");
        let rest = first.lines().filter(|line| !line.starts_with(&key_begins));
        // A key of the controller alone is none.
        let rest: Vec<&str> = rest.filter(|line| key == "tls_key" || !line.starts_with("dhchap")).collect();
        fs::write(&less, rest.join("\n")).expect("written");
        fs::set_permissions(&less, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        assert!(!output.status.success(), "without {key}");
        // What lacks is told as that, at both ends.
        let said = String::from_utf8_lossy(&output.stderr);
        let lacks = "no key for TLS is given for it, only one for authentication; give the key for TLS";
        assert_eq!(said.contains(lacks), key == "tls_key", "{said}");
    }
    wait_until("the target says what lacks", || {
        let lacks =
            "the subsystem requires TLS, and the host came in clear text: it has not used its tls_key";
        service.log().lines().any(|line| line.contains("not over TLS") && line.contains(lacks))
    });
    let log = service.log();
    assert!(log.contains("authenticated") && log.contains("TLS_AES_128_GCM_SHA256"), "{log}");
}

/// A target and a host with keys that `keys pair` has made.
struct Pair {
    folder: TempDir,
    url: String,
    /// The options that name the keys.
    options: Vec<String>,
    _service: Service,
}

impl Pair {
    fn new() -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let keys = folder.path().join("keys");
        let make = ["keys", "pair", "--tls", "--host", HOST, "--subsystem", NQN, "--directory"];
        let pair = said(&ringfab(&[&make[..], &[keys.to_str().expect("a name")]].concat()));
        let service = target(folder.path(), port, &pair);
        let url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}?hostnqn={HOST}&queues=2");
        let named = ["--tls-key", "--dhchap-key", "--dhchap-controller-key"];
        // Each option takes its own key of the file.
        let file = format!("file:{}", keys.join(format!("{HOST}.keys")).display());
        let options = named.iter().flat_map(|option| [(*option).to_owned(), file.clone()]).collect();
        Self { folder, url, options, _service: service }
    }

    /// A command on the address, with the keys.
    fn ringfab(&self, command: &str, more: &[&str]) -> Output {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        ringfab(&[&[command, &self.url], more, &options].concat())
    }

    fn status(&self, more: &[&str]) -> String {
        let mut command = Command::new(program("ringfab-target"));
        command.arg("status").arg("--socket").arg(self.folder.path().join("control")).args(more);
        said(&command.output().expect("it runs"))
    }
}

#[test]
fn what_is_written_over_tls_is_verified() {
    let pair = Pair::new();
    let load = "--depth 8 --cores 2 --rw randrw --verify --destroy-data 1 --bs 64k --time 2s --warmup 0s";
    said(&pair.ringfab("bench", &load.split(' ').collect::<Vec<_>>()));
}

#[test]
fn doctor_says_whether_tls_works_and_a_key_on_a_command_line_is_warned_of() {
    let pair = Pair::new();
    let doctor = said(&pair.ringfab("doctor", &[]));
    assert!(doctor.contains("over TLS") && doctor.contains("All is well."), "{doctor}");
    let refused = ringfab(&["doctor", &pair.url]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stdout).contains("What to do"));
    // A key on a command line is a key that others see.
    let text = fs::read_to_string(pair.folder.path().join(format!("keys/{HOST}.keys"))).expect("the keys");
    let text =
        text.lines().find_map(|line| line.strip_prefix("tls_key = ")).expect("the key").trim_matches('"');
    let options: Vec<&str> = pair.options[2..].iter().map(String::as_str).collect();
    let warned = ringfab(&[&["list", &pair.url, "--tls-key", text.trim()][..], &options].concat());
    let warning = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success(), "{warning}");
    assert!(warning.contains("put it into a file") && !warning.contains(text.trim()), "{warning}");
}

#[test]
fn status_says_how_connections_are_protected() {
    let pair = Pair::new();
    // Somebody is connected while it is asked.
    let nbd = Service::start("ringfab", |place| {
        let socket = place.join("nbd.sock").display().to_string();
        let all = ["nbd", &pair.url, "--socket", &socket].map(str::to_owned);
        all.into_iter().chain(pair.options.iter().cloned()).collect()
    });
    let page = pair.status(&[]);
    assert!(page.contains("TLS, both ends"), "{page}");
    let status: Value = serde_json::from_str(&pair.status(&["--json"])).expect("JSON");
    let status = if status["listeners"].is_array() { &status } else { &status["ok"] };
    assert_eq!(status["listeners"][0]["tls"], "allowed");
    let (tls, queues) = (&status["controllers"][0]["tls"], &status["controllers"][0]["queues"]);
    assert_eq!(tls["suite"], "TLS_AES_128_GCM_SHA256");
    assert_eq!((&tls["identity_version"], &tls["key"]), (&1.into(), &"new".into()));
    for queue in queues.as_array().expect("queues") {
        assert!(["kernel", "process"].contains(&queue["tls"].as_str().expect("who protects it")), "{queue}");
    }
    drop(nbd);
}

#[test]
fn connect_all_attaches_with_the_keys_over_tls_or_has_authentication_make_one() {
    let pair = Pair::new();
    let discovery = pair.url.split('/').take(3).collect::<Vec<_>>().join("/");
    let (dhchap, concat) = (pair.options[2..].to_vec(), vec!["--concat".to_owned()]);
    for (options, key) in [(pair.options.clone(), "new"), ([dhchap, concat].concat(), "generated")] {
        let mut all = Service::start("ringfab", |place| {
            let sockets = place.join("all").display().to_string();
            let words = ["connect-all", "--nbd", &sockets, "--hostnqn", HOST, &discovery].map(str::to_owned);
            words.into_iter().chain(options).collect()
        });
        assert!(all.path("all").join(format!("{NQN}.sock")).exists());
        let status: Value = serde_json::from_str(&pair.status(&["--json"])).expect("JSON");
        let status = if status["controllers"].is_array() { &status } else { &status["ok"] };
        let controllers = status["controllers"].as_array().expect("controllers").iter();
        let of_disk = controllers.filter(|one| one["subsystem"] == NQN).collect::<Vec<_>>();
        assert_eq!((of_disk.len(), &of_disk[0]["tls"]["key"]), (1, &key.into()), "{status}");
        all.signal("TERM");
        assert!(all.wait(ringfab_tests::PATIENCE).success());
    }
    // Without a key for TLS, what requires TLS is not attached.
    let nowhere = pair.folder.path().join("none").display().to_string();
    let named = ["connect-all", "--nbd", &nowhere, "--hostnqn", HOST, &discovery];
    let without: Vec<&str> = pair.options[2..].iter().map(String::as_str).collect();
    let refused = ringfab(&[&named[..], &without].concat());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("there is no key"), "{text}");
}
