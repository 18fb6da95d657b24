//! What `--json` prints is what docs/json.md says.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{out, output, ringfab, target};

/// The keys that the document has for a command.
fn documented(command: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let text = fs::read_to_string(path).expect("the document");
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

fn json(arguments: &[&str]) -> Value {
    let output = output(ringfab(arguments).arg("--json"));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

#[test]
fn what_looks_at_a_controller_prints_what_is_documented() {
    let (_target, url) = target();
    let discovery = url.rsplit_once('/').expect("a subsystem").0;
    let found = json(&["discover", discovery]);
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md"))
        .expect("it is there");
    for entry in found["entries"].as_array().expect("a list") {
        let kind = entry["subsystem_type"].as_str().expect("text");
        assert!(text.contains(&format!("`{kind}`")), "docs/json.md does not have the type {kind}");
    }
    compare("discover", &[found], &[]);
    compare("doctor", &[json(&["doctor", &url])], &[]);
    compare("list", &[json(&["list", &url])], &[]);
    compare("id-ctrl", &[json(&["id-ctrl", &url])], &[]);
    compare("id-ns", &[json(&["id-ns", &url, "--nsid", "1"])], &[]);
    compare("smart", &[json(&["smart", &url])], &[]);
    // There may be no device here.
    compare("devices", &[json(&["devices"])], &["[]"]);
}

#[test]
fn copies_and_measurements_print_what_is_documented() {
    let (_target, url) = target();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let image = path("image");
    compare("read", &[json(&["read", &url, "--nsid", "1", "-o", &image])], &[]);
    compare("write", &[json(&["write", &url, "--nsid", "1", "-i", &image, "--destroy-data", "1"])], &[]);
    let load = ["bench", &url, "--nsid", "1", "--time", "200ms", "--warmup", "0s", "--depth", "4"];
    let reads = json(&load);
    let both = [&load[..], &["--rw", "randrw", "--verify", "--destroy-data", "1"]].concat();
    let both = json(&both);
    // No mismatch is told where there is none.
    compare("bench", &[reads.clone(), both.clone()], &["verify.first"]);
    fs::write(path("a"), reads.to_string()).expect("a file");
    fs::write(path("b"), both.to_string()).expect("a file");
    compare("bench compare", &[json(&["bench", "compare", &path("a"), &path("b")])], &[]);
}

#[test]
fn keys_print_what_is_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    let generated = json(&["keys", "generate", "--tls"]);
    fs::write(&file, generated["key"].as_str().expect("a key")).expect("a file");
    let path = file.to_str().expect("text");
    compare("keys generate", &[generated], &[]);
    compare("keys check", &[json(&["keys", "check", path])], &[]);
    let names = ["--host", "nqn.2026-11.org.x:h", "--subsystem", "nqn.2026-11.org.x:s"];
    let identity = [&["keys", "identity"][..], &names, &[path]].concat();
    compare("keys identity", &[json(&identity)], &[]);
    compare("keys pair", &[json(&[&["keys", "pair"][..], &names].concat())], &[]);
}

/// The first document of a service, which is ended then.
fn first_of(command: &mut Command) -> Value {
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
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("a process");
    assert!(child.wait().expect("it ends").success());
    value
}

#[test]
fn services_print_what_is_documented() {
    let (_target, url) = target();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let socket = socket.to_str().expect("text");
    compare("nbd", &[first_of(&mut ringfab(&["nbd", &url, "--socket", socket]))], &[]);
    let place = folder.path().join("all");
    let place = place.to_str().expect("text");
    let discovery = url.rsplit_once('/').expect("a subsystem").0;
    let added = first_of(&mut ringfab(&["connect-all", discovery, "--nbd", place]));
    compare("connect-all", &[added], &["removed"]);
}

#[test]
fn only_commands_that_there_are_are_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let text = fs::read_to_string(path).expect("the document");
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("## `ringfab ")?.strip_suffix('`')).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let arguments: Vec<&str> = name.split(' ').chain(["--help"]).collect();
        let help = output(&mut ringfab(&arguments));
        assert!(out(&help).contains(&format!("Usage: ringfab {name}")), "{name}: {help:?}");
    }
}
