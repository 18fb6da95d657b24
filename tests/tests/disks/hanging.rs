//! What does not answer costs nobody else anything, and stops nothing.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use ringfab_tests::{PATIENCE, free_port, program};

use super::filesystem::Mounted;
use super::{MIB, Target, cached, config, make_file, serve, wait_until};

/// Longer than anything here takes, and far shorter than for ever.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn what_can_be_known_by_a_look_is_not_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).expect("a FIFO");
    let target = Target::start(&format!(
        "{}[[subsystem.namespace]]\npath = {fifo:?}\nread_only = true\n",
        cached(&make_file(folder.path(), "disk", MIB))
    ));
    assert_eq!(target.state(), "ready");
    let refused = target.status()["namespaces"][1]["reason"].to_string();
    assert!(refused.contains("it is a FIFO, neither a regular file nor a block device"), "{refused}");
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let folder = folder.path().to_str().expect("UTF-8");
    for (path, what) in [
        (fifo.to_str().expect("UTF-8"), "a FIFO"),
        (folder, "a directory"),
        ("/dev/null", "a character device"),
        (socket.to_str().expect("UTF-8"), "a socket"),
    ] {
        let (done, said) = target.run(&["namespace", "add", path]);
        assert!(!done && said.contains(&format!("it is {what}")), "{said}");
    }
}

#[test]
fn a_mount_that_does_not_answer_costs_the_others_nothing_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = make_file(folder.path(), "disk", MIB);
    let silent = Mounted::silent(MIB);
    let hung = silent.path();
    // At the start, ...
    let begun = Instant::now();
    let mut target = Target::start(&(cached(&disk) + &cached(&hung)));
    assert!(begun.elapsed() < SOON, "the start does not wait for it");
    let host = target.attach();
    host.write_at(1, 0, &[1; 512], true).expect("the other disk works");
    let second = target.status()["namespaces"][1].clone();
    assert_eq!(second["state"], "not ready");
    assert!(
        second["reason"].as_str().is_some_and(|why| why.contains("not return"))
            || second["reason"].to_string().contains("hangs"),
        "{second}"
    );
    wait_until("it is named", || {
        let hanging = target.status()["hanging"].to_string();
        hanging.contains(hung.to_str().expect("UTF-8"))
    });
    let (_, said) = target.run(&["status"]);
    assert!(said.contains("has not returned for"), "{said}");
    // ... at an addition, ...
    let other = Mounted::silent(MIB);
    let path = other.path();
    std::thread::scope(|scope| {
        let target = &target;
        let adding = scope.spawn(move || target.run(&["namespace", "add", path.to_str().expect("UTF-8")]));
        // The addition hangs by then. If it does not yet, there is less to wait for.
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let (done, said) = target.run(&["namespace", "list"]);
        assert!(done, "{said}");
        assert!(begun.elapsed() < Duration::from_secs(5), "who only looks does not wait");
        let (done, said) = adding.join().expect("no panic");
        assert!(!done && said.contains("has not returned within 10 s"), "{said}");
    });
    // ... and at the end.
    let begun = Instant::now();
    target.service.signal("TERM");
    let status = target.service.wait(SOON);
    assert!(status.success(), "{}", target.service.log());
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_disk_whose_mount_answers_again_is_served_without_a_restart() {
    let mounted = Mounted::new(MIB);
    mounted.set_hangs(true);
    let target = Target::start(&cached(&mounted.path()));
    assert_eq!(target.state(), "not ready");
    mounted.set_hangs(false);
    wait_until("it is served", || target.state() == "ready");
    target.attach().write_at(1, 0, &[1; 4096], true).expect("it works");
    wait_until("nothing hangs", || target.status()["hanging"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn silent_clients_of_the_control_socket_cost_nobody_anything() {
    let target = Target::start("[[subsystem.namespace]]\nnull = \"1MiB\"\n");
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..100 {
        let mut client = UnixStream::connect(target.socket()).expect("connected");
        // One that has been dropped cannot be written to.
        let _begun = client.write_all(b"{\"command\":");
        silent.push(client);
    }
    let begun = Instant::now();
    for _ in 0..5 {
        let (done, said) = target.run(&["namespace", "list"]);
        assert!(done, "{said}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

#[test]
fn a_state_directory_or_a_configuration_that_does_not_answer_ends_the_start() {
    let silent = Mounted::silent(MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let text = config(folder.path(), free_port(), "[[subsystem.namespace]]\nnull = \"1MiB\"\n");
    let state = format!("state_dir = {:?}", folder.path().join("state"));
    let hung = text.replace(&state, &format!("state_dir = {:?}", silent.folder().join("state")));
    assert_ne!(text, hung);
    let arguments = serve(folder.path(), &hung);
    let said = ends(&arguments);
    assert!(said.contains("has not returned within 10 s") || said.contains("still hangs"), "{said}");
    let at = silent.path().display().to_string();
    let said = ends(&["serve".to_owned(), "--config".to_owned(), at]);
    assert!(said.contains("has not returned within 5 s") || said.contains("still hangs"), "{said}");
}

/// What a target says that ends by itself.
fn ends(arguments: &[String]) -> String {
    let begun = Instant::now();
    let output = Command::new(program("ringfab-target")).args(arguments).output().expect("it runs");
    assert!(!output.status.success() && begun.elapsed() < PATIENCE);
    String::from_utf8_lossy(&output.stderr).into_owned()
}
