//! Names that others chose, in everything that a target says: nothing in them moves a cursor, ends a line or turns one.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

/// The name of a file with what a terminal obeys, what forges a row, and what turns the rest of a line around.
const EVIL: &str = "disk\u{1b}[2J\nforged row\u{202e}.img";

/// As people read it.
const SHOWN: &str = "disk\\u{1b}[2J\\nforged row\\u{202e}.img";

fn target(ports: [u16; 2]) -> Service {
    Service::start("ringfab-target", |folder| {
        let [state, socket, disk] = ["state", "control.sock", EVIL].map(|name| folder.join(name));
        fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).expect("a disk");
        let disk = serde_json::to_string(disk.to_str().expect("text")).expect("a string of TOML, too");
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
             [metrics]\naddress = \"127.0.0.1:{}\"\n[[listener]]\naddress = \"127.0.0.1\"\nport = {}\n\
             transport = \"tcp\"\n[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = {disk}\n[[subsystem.namespace]]\npath = \"/nowhere/{}\"\n",
            ports[1], ports[0], "\\u202e\\u001b\\n",
        );
        fs::write(folder.join("target.toml"), text).expect("a configuration");
        let config = folder.join("target.toml").display().to_string();
        ["serve", "--config", &config].map(str::to_owned).to_vec()
    })
}

fn run(name: &str, arguments: &[&str]) -> Output {
    Command::new(program(name)).args(arguments).output().expect("it runs")
}

/// Nothing of a name is obeyed in what people read.
fn assert_harmless(what: &str, text: &str) {
    for one in ['\u{1b}', '\u{202e}'] {
        assert!(!text.contains(one), "{what} has {one:?}: {text:?}");
    }
    assert!(!text.lines().any(|line| line.starts_with("forged row")), "{what} has a forged row: {text:?}");
}

#[test]
fn a_name_with_escape_codes_is_shown_and_not_obeyed_by_anything_that_a_target_says() {
    let ports = [free_port(), free_port()];
    let target = target(ports);
    let [config, socket] = ["target.toml", "control.sock"].map(|name| target.path(name));
    wait_until("the control socket is there", || socket.exists());
    let [config, socket] = [&config, &socket].map(|path| path.to_str().expect("text"));
    let asked: [&[&str]; 3] = [&["status"], &["namespace", "list"], &["config"]];
    let mut shown = false;
    for words in asked {
        let output = run("ringfab-target", &[words, &["--socket", socket]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert_harmless(&words.join(" "), &text);
        shown |= text.contains(SHOWN);
    }
    assert!(shown, "some command shows the whole name");
    for words in [["check", config], ["doctor", config]] {
        let output = run("ringfab-target", &words);
        for text in [output.stdout, output.stderr] {
            assert_harmless(words[0], &String::from_utf8(text).expect("text"));
        }
    }
    for page in ["/", "/metrics"] {
        assert_harmless(page, &fetched(ports[1], page));
    }
    assert_harmless("the log", &target.log());
    // Programs get the name as it is.
    let json = run("ringfab-target", &["status", "--json", "--socket", socket]).stdout;
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let source = json["namespaces"][0]["source"].as_str().expect("a name");
    assert_eq!(Path::new(source).file_name().and_then(|name| name.to_str()), Some(EVIL));
}

fn fetched(port: u16, page: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the listener of metrics");
    write!(stream, "GET {page} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}
