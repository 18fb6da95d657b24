//! What `--json` prints is what docs/json.md and the two pages beside it say, and they say it of each command.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use ringfab_tests::{TestTarget, not_run, own_mounts};
use tempfile::TempDir;

use super::{out, output, ringfab};

/// The pages, as one text.
fn pages() -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    ["json.md", "json-attached.md", "json-controllers.md"]
        .map(|page| fs::read_to_string(docs.join(page)).expect("the document"))
        .concat()
}

/// The keys that the document has for a command.
fn documented(command: &str) -> BTreeSet<String> {
    let text = pages();
    let part = text.split_once(&format!("## `ringfab {command}`\n"));
    let part = part.unwrap_or_else(|| panic!("docs/json.md has nothing about `ringfab {command}`")).1;
    let part = part.split("\n## ").next().expect("a part");
    let rows = part.lines().filter(|line| line.starts_with("| `"));
    let keys = rows.flat_map(|row| {
        let keys = row.split('|').nth(1).expect("a cell").split('`').skip(1).step_by(2);
        keys.map(str::to_owned).collect::<Vec<_>>()
    });
    keys.collect()
}

/// The keys of a value, down to what is no object and no list.
fn keys(value: &Value, place: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                // There is one for each LBA format.
                if key.starts_with("lbaf") && key != "lbaf0" {
                    continue;
                }
                let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
                if key == "fields" || key == "effects" {
                    // The bits of the specification, which differ from one to the next.
                    assert!(value["value"].is_u64(), "{place}: {value}");
                    found.insert(place);
                    continue;
                }
                keys(value, &place, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{place}[]"), found)),
        _ => drop(found.insert(place.to_owned())),
    }
}

/// Compares what a command has printed with what is documented for it. A key of which there was nothing to print, as
/// `may_miss` has them, only has to be documented.
fn compare(command: &str, printed: &[Value], may_miss: &[&str]) {
    let mut found = BTreeSet::new();
    printed.iter().for_each(|value| keys(value, "", &mut found));
    let mut documented = documented(command);
    let unknown: Vec<_> = found.difference(&documented).collect();
    assert!(unknown.is_empty(), "`ringfab {command}` prints what docs/json.md does not have: {unknown:?}");
    documented.retain(|key| !may_miss.iter().any(|part| key.starts_with(part)));
    let missing: Vec<_> = documented.difference(&found).collect();
    assert!(missing.is_empty(), "docs/json.md has what `ringfab {command}` does not print: {missing:?}");
}

/// What commands are tried on: a target, and a folder for files and for entries of what is attached.
struct Place {
    _target: TestTarget,
    url: String,
    /// The same by another address.
    other_url: String,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let (listener, namespace) = ("transport = \"tcp\"\n", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
        let other = format!("[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n{listener}");
        let target = TestTarget::with_listener(listener, &format!("{}{other}", namespace.repeat(2)));
        let url = target.url("").to_string();
        let [address, other] = [target.address(), target.other_addresses()[0]].map(|one| one.to_string());
        let other_url = url.replace(&address, &other);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(private).tempdir().expect("a folder");
        Self { _target: target, url, other_url, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    /// The address of the discovery controller.
    fn discovery(&self) -> &str {
        self.url.rsplit_once('/').expect("a subsystem").0
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = ringfab(arguments);
        command.env("RINGFAB_RUNTIME_DIRECTORY", self.folder.path()).stdin(Stdio::null());
        command
    }

    /// What a command prints.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = output(self.command(arguments).arg("--json"));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// The first document of a service, and what is printed while it serves. It is ended then.
    fn served<T>(&self, arguments: &[&str], then: impl FnOnce(&Self) -> T) -> (Value, T) {
        let mut command = self.command(arguments);
        let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().expect("it runs");
        let mut text = String::new();
        let mut stdout = child.stdout.take().expect("piped");
        let mut byte = [0];
        let value = loop {
            stdout.read_exact(&mut byte).expect("a document");
            text.push(char::from(byte[0]));
            if let Ok(value) = serde_json::from_str(&text) {
                break value;
            }
        };
        let then = then(self);
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("a process");
        assert!(child.wait().expect("it ends").success());
        (value, then)
    }
}

/// How a command is tried: what it prints, and the documented keys of which it may print none.
struct Shape {
    command: &'static str,
    /// Nothing where this machine has not what it needs.
    printed: fn(&Place) -> Vec<Value>,
    may_miss: &'static [&'static str],
}

const fn shape(command: &'static str, printed: fn(&Place) -> Vec<Value>) -> Shape {
    Shape { command, printed, may_miss: &[] }
}

/// Each command of `ringfab`.
const SHAPES: [Shape; 33] = [
    shape("discover", |place| vec![place.json(&["discover", place.discovery()])]),
    Shape {
        command: "connect-all",
        printed: |place| {
            let all = place.path("all");
            vec![place.served(&["connect-all", place.discovery(), "--nbd", &all], |_| ()).0]
        },
        may_miss: &["removed"],
    },
    shape("doctor", |place| vec![place.json(&["doctor", &place.url])]),
    Shape {
        command: "list",
        printed: |place| {
            let serve = ["nbd", &place.url, "--socket", &place.path("socket")];
            let (_, attached) = place.served(&serve, |place| place.json(&["list"]));
            vec![place.json(&["list", &place.url]), attached]
        },
        may_miss: &["attached[].mounted_at"],
    },
    shape("mount", |place| mounted(place).into_iter().take(1).collect()),
    shape("umount", |place| mounted(place).into_iter().skip(1).collect()),
    shape("reset", |place| {
        let serve = ["nbd", &place.url, "--socket", &place.path("socket")];
        vec![place.served(&serve, |place| place.json(&["reset", "--all"])).1]
    }),
    Shape {
        command: "path list",
        printed: |place| {
            let serve = ["nbd", &place.url, "--socket", &place.path("socket")];
            let list = |place: &Place| place.json(&["path", "list", "--interval", "10ms"]);
            vec![place.served(&serve, list).1]
        },
        may_miss: &["paths[].groups"],
    },
    shape("path add", |place| vec![added(place).0]),
    shape("path remove", |place| vec![added(place).1]),
    shape("volume check", |place| {
        let file = place.path("volumes.toml");
        let (url, place_of) = (&place.url, place.folder.path());
        let text = format!("[[volume]]\nname = \"a\"\nurl = \"{url}?ns=1\"\nwhere = {place_of:?}\n");
        fs::write(&file, text).expect("a file");
        vec![place.json(&["volume", "check", &file])]
    }),
    shape("volume list", |place| {
        let file = place.path("volumes.toml");
        let text = format!("[[volume]]\nname = \"a\"\nurl = {:?}\nwhere = \"/mnt/a\"\n", place.url);
        fs::write(&file, text).expect("a file");
        vec![place.json(&["volume", "list", &file])]
    }),
    shape("show-hostnqn", |place| vec![place.json(&["show-hostnqn"])]),
    shape("id-ctrl", |place| vec![place.json(&["id-ctrl", &place.url])]),
    shape("id-ns", |place| vec![place.json(&["id-ns", &place.url, "--nsid", "1"])]),
    shape("keys generate", |place| vec![place.json(&["keys", "generate", "--tls"])]),
    shape("keys check", |place| vec![place.json(&["keys", "check", &key(place)])]),
    shape("keys identity", |place| {
        vec![place.json(&[&["keys", "identity"][..], &NAMES, &[&key(place)]].concat())]
    }),
    shape("keys pair", |place| vec![place.json(&[&["keys", "pair"][..], &NAMES].concat())]),
    // There may be no device here.
    Shape { command: "devices", printed: |place| vec![place.json(&["devices"])], may_miss: &["[]"] },
    shape("smart", |place| vec![place.json(&["smart", &place.url])]),
    shape("ana-log", |place| vec![place.json(&["ana-log", &place.url])]),
    Shape {
        command: "error-log",
        // The controller of one command has none. Its own test compares the keys of one.
        printed: |place| vec![place.json(&["error-log", &place.url])],
        may_miss: &["errors"],
    },
    shape("effects-log", |place| vec![place.json(&["effects-log", &place.url])]),
    Shape {
        command: "changed-ns-list-log",
        printed: |place| vec![place.json(&["changed-ns-list-log", &place.url])],
        may_miss: &["namespaces"],
    },
    shape("get-feature", |place| vec![place.json(&["get-feature", &place.url])]),
    shape("read", |place| vec![read(place)]),
    shape("write", |place| {
        read(place);
        vec![place.json(&[
            "write",
            &place.url,
            "--nsid",
            "1",
            "-i",
            &place.path("image"),
            "--destroy-data",
            "1",
        ])]
    }),
    shape("trim", |place| {
        vec![place.json(&["trim", &place.url, "--nsid", "1", "--all", "--destroy-data", "1"])]
    }),
    // No mismatch is told where there is none.
    Shape {
        command: "bench",
        printed: |place| vec![measured(place, &[]), measured(place, VERIFY)],
        may_miss: &["verify.first"],
    },
    shape("bench compare", |place| {
        fs::write(place.path("a"), measured(place, &[]).to_string()).expect("a file");
        fs::write(place.path("b"), measured(place, VERIFY).to_string()).expect("a file");
        vec![place.json(&["bench", "compare", &place.path("a"), &place.path("b")])]
    }),
    shape("nbd", |place| {
        let serve = ["nbd", &place.url, "--socket", &place.path("socket")];
        vec![place.served(&serve, |_| ()).0]
    }),
    shape("fuse", |place| {
        if !Path::new("/dev/fuse").exists() {
            not_run("the JSON of ringfab fuse: there is no /dev/fuse");
            return Vec::new();
        }
        own_mounts();
        let files = place.path("files");
        fs::create_dir(&files).expect("a directory");
        vec![place.served(&["fuse", &place.url, &files], |_| ()).0]
    }),
];

const NAMES: [&str; 4] = ["--host", "nqn.2026-11.org.x:h", "--subsystem", "nqn.2026-11.org.x:s"];
const VERIFY: &[&str] = &["--rw", "randrw", "--verify", "--destroy-data", "1"];

fn read(place: &Place) -> Value {
    place.json(&["read", &place.url, "--nsid", "1", "-o", &place.path("image")])
}

fn measured(place: &Place, more: &[&str]) -> Value {
    let load = ["bench", &place.url, "--nsid", "1", "--time", "200ms", "--warmup", "0s", "--depth", "4"];
    place.json(&[&load[..], more].concat())
}

/// What adding a path and removing it print.
fn added(place: &Place) -> (Value, Value) {
    let socket = place.path("socket");
    let serve = ["nbd", &place.url, "--socket", &socket];
    let path = |place: &Place| {
        let added = place.json(&["path", "add", &place.url, &place.other_url]);
        (added, place.json(&["path", "remove", &place.url, &place.other_url]))
    };
    place.served(&serve, path).1
}

/// A file with a key.
fn key(place: &Place) -> String {
    let path = place.path("key");
    let generated = place.json(&["keys", "generate", "--tls"]);
    fs::write(&path, generated["key"].as_str().expect("a key")).expect("a file");
    path
}

/// What mounting and unmounting print, where this machine can.
fn mounted(place: &Place) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/can-loop.sh");
    let can_loop = Command::new(script).status().is_ok_and(|status| status.success());
    if !can_loop || !Path::new("/dev/fuse").exists() {
        not_run("the JSON of ringfab mount: this user has no loop devices, or no /dev/fuse");
        return Vec::new();
    }
    own_mounts();
    let directory = place.path("mounted");
    fs::create_dir(&directory).expect("a directory");
    let mount = ["mount", &place.url, &directory, "--nsid", "1", "--mkfs", "ext2"];
    vec![place.json(&mount), place.json(&["umount", &directory])]
}

#[test]
fn each_command_prints_what_is_documented() {
    for shape in &SHAPES {
        let place = Place::new();
        let printed = (shape.printed)(&place);
        if !printed.is_empty() {
            compare(shape.command, &printed, shape.may_miss);
        }
    }
}

/// What an entry is, in words of which the document has all.
#[test]
fn each_type_of_an_entry_of_discovery_is_documented() {
    let place = Place::new();
    let found = place.json(&["discover", place.discovery()]);
    let text = pages();
    let entries = found["entries"].as_array().expect("a list");
    assert!(!entries.is_empty());
    for entry in entries {
        let kind = entry["subsystem_type"].as_str().expect("text");
        assert!(text.contains(&format!("`{kind}`")), "docs/json.md does not have the type {kind}");
    }
}

/// The commands that `--help` shows, with those below them.
fn commands(above: &str) -> BTreeSet<String> {
    let arguments: Vec<&str> = above.split_whitespace().chain(["--help"]).collect();
    let help = out(&output(&mut ringfab(&arguments)));
    let Some((usage, listed)) = help.split_once("\nCommands:\n") else {
        return BTreeSet::from([above.to_owned()]);
    };
    let listed = listed.split("\n\n").next().expect("a list").lines();
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let below = names.flat_map(|name| commands(format!("{above} {name}").trim_start()));
    // Some are commands of their own, too.
    let own = (usage.contains("<URL>") && !above.is_empty()).then(|| above.to_owned());
    below.chain(own).collect()
}

#[test]
fn each_command_is_documented_and_tried_and_there_are_no_others() {
    let text = pages();
    let documented = text.lines().filter_map(|line| line.strip_prefix("## `ringfab ")?.strip_suffix('`'));
    let documented: BTreeSet<String> = documented.map(str::to_owned).collect();
    let mut commands = commands("");
    assert!(commands.remove("metrics"), "what it prints has a format of its own");
    if !commands.contains("devices") {
        // Built without the verbs.
        commands.insert("devices".to_owned());
    }
    assert_eq!(documented, commands, "docs/json.md, and what --help shows");
    let tried: BTreeSet<String> = SHAPES.iter().map(|shape| shape.command.to_owned()).collect();
    assert_eq!(tried, commands, "SHAPES, and what --help shows");
}
