//! `ringfab-target top` in a terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, PATIENCE, Service, free_port, not_run, program};

/// A terminal of its own for a command.
struct Terminal {
    script: Child,
    shown: Receiver<Vec<u8>>,
}

impl Terminal {
    fn start(command: &str) -> Self {
        let sized = format!("stty rows 24 cols 300; exec {command}");
        let mut script = Command::new("script")
            .args(["-qec", &sized, "/dev/null"])
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        let mut output = script.stdout.take().expect("piped");
        let (sender, shown) = channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length) = output.read(&mut chunk) {
                if length == 0 || sender.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { script, shown }
    }

    /// Waits until a text is written.
    fn until(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            let chunk = self.shown.recv_timeout(left);
            let chunk = chunk.unwrap_or_else(|_| panic!("no {text} in {}", String::from_utf8_lossy(&seen)));
            seen.extend(chunk);
        }
    }

    fn press(&mut self, key: &str) {
        self.script.stdin.as_mut().expect("piped").write_all(key.as_bytes()).expect("pressed");
    }

    fn ends_well(mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.script.try_wait().expect("its state") {
                return assert!(status.success(), "{status}");
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already if all went well.
        let _ended = self.script.kill();
        let _reaped = self.script.wait();
    }
}

#[test]
fn a_terminal_shows_hosts_live_and_other_tables_at_a_key() {
    if !ringfab_tests::have("script") {
        return not_run("ringfab-target top in a terminal: there is no command script");
    }
    let port = free_port();
    let target = Service::start("ringfab-target", |folder| {
        let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
             [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n"
        );
        fs::write(folder.join("target.toml"), text).expect("a configuration");
        let config = folder.join("target.toml").display().to_string();
        ["serve", "--config", &config].map(str::to_owned).to_vec()
    });
    let socket = target.path("control.sock").display().to_string();
    let mut terminal =
        Terminal::start(&format!("{} top --socket {socket}", program("ringfab-target").display()));
    terminal.until("hosts");
    // A host that comes is there without anybody doing anything.
    let url: Url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}").parse().expect("a URL");
    let nqn = "nqn.2026-11.org.ringfab:visible";
    let host = HostIdentity { nqn: nqn.to_owned(), ..HostIdentity::for_url(&url).expect("an identity") };
    let host =
        Controller::connect(ConnectOptions::new(url, host), EngineOptions::default()).expect("attached");
    terminal.until(nqn);
    terminal.press("n");
    terminal.until("memory");
    terminal.press("q");
    terminal.ends_well();
    host.detach().expect("detached");
    // What is no terminal is told what to do instead.
    let piped =
        Command::new(program("ringfab-target")).args(["top", "--socket", &socket]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&piped.stderr).contains("top needs a terminal"));
}
