//! A reload of a target with many namespaces while a program works on one of them through a front end.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfab_tests::{NQN, Service, free_port, have, not_run, program, run_bounded};
use serde_json::Value;

/// How many namespaces there are beside the one that is worked on.
const MANY: usize = 300;

/// The configuration of a folder whose first namespaces, so many of them, are others than at the start.
fn text(folder: &Path, port: u16, changed: usize) -> String {
    let [state, socket, disk] = ["state", "control.sock", "disk"].map(|name| folder.join(name));
    let mut text = format!(
        "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = {disk:?}\nallow_page_cache = true\n"
    );
    for number in 0..MANY {
        let nsid = 2 + number + if number < changed { MANY } else { 0 };
        let path = folder.join(format!("disk-{nsid}"));
        write!(text, "[[subsystem.namespace]]\nnsid = {nsid}\npath = {path:?}\nallow_page_cache = true\n")
            .expect("a string takes everything");
    }
    text
}

fn target(port: u16) -> Service {
    Service::start("ringfab-target", |folder| {
        let disk = |name: &str, bytes| {
            fs::File::create(folder.join(name)).and_then(|file| file.set_len(bytes)).expect("a disk");
        };
        disk("disk", 16 << 20);
        (2..2 + 2 * MANY).for_each(|nsid| disk(&format!("disk-{nsid}"), 4096));
        fs::write(folder.join("target.toml"), text(folder, port, 0)).expect("a configuration");
        ["serve", "--config", &folder.join("target.toml").display().to_string()].map(str::to_owned).to_vec()
    })
}

fn ask(target: &Service, arguments: &[&str]) -> String {
    let mut command = Command::new(program("ringfab-target"));
    let output = command.args(arguments).arg("--socket").arg(target.path("control.sock")).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Writes all blocks and verifies them, again and again until told to stop. Returns how often.
fn verify(uri: &str, over: &AtomicBool) -> u32 {
    let mut rounds = 0;
    while !over.load(Ordering::Relaxed) {
        let (uri, seed) = (format!("--uri={uri}"), format!("--randseed={rounds}"));
        let how = ["--name=verify", "--ioengine=nbd", &uri, &seed, "--rw=randwrite", "--bs=4k", "--size=4m"];
        let check = ["--iodepth=8", "--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1"];
        // Otherwise it leaves a file where it runs.
        run_bounded(60, "fio", &[&how[..], &check, &["--verify_state_save=0"]].concat());
        rounds += 1;
    }
    rounds
}

#[test]
fn a_reload_with_many_namespaces_disturbs_nobody_who_works_on_another() {
    if !have("fio") {
        return not_run("a reload under fio: fio is not installed");
    }
    let port = free_port();
    let target = target(port);
    let front = Service::start("ringfab", |folder| {
        let url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}?ns=1");
        let socket = folder.join("socket").display().to_string();
        ["nbd", &url, "--socket", &socket, "--ctrl-loss-timeout", "0s"].map(str::to_owned).to_vec()
    });
    let uri = format!("nbd+unix:///?socket={}", front.path("socket").display());
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let works = scope.spawn(|| verify(&uri, &over));
        let reloads = std::panic::catch_unwind(|| {
            for changed in [1, MANY / 3, MANY] {
                for now in [changed, 0] {
                    let text = text(&target.path(""), port, now);
                    fs::write(target.path("target.toml"), text).expect("a configuration");
                    // Each that changes goes and another one comes.
                    assert_eq!(ask(&target, &["reload"]).lines().count(), 2 * changed);
                }
                assert_eq!(ask(&target, &["reload"]), "nothing is different\n");
            }
        });
        over.store(true, Ordering::Relaxed);
        reloads.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        works.join().expect("it is not disturbed")
    });
    assert!(rounds > 0);
    let status: Value = serde_json::from_str(&ask(&target, &["status", "--json"])).expect("JSON");
    let controllers = status["controllers"].as_array().expect("a list");
    assert_eq!((controllers.len(), &controllers[0]["errors"]), (1, &Value::from(0)), "{controllers:?}");
    let log = target.log();
    let told = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (told(": connected "), told("connected "), told(" WARN "), told(" ERROR ")),
        (1, 1, 0, 0),
        "{log}"
    );
    let front = front.log();
    assert!(!front.contains(" WARN ") && !front.contains(" ERROR "), "{front}");
}
