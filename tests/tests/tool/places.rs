//! Where things are: what is shown of addresses can be pasted, also into a shell that takes `?` for a pattern, as zsh
//! does, and the folder of a socket need not be there.

use std::path::Path;
use std::process::Command;

use ringfab_tests::{PATIENCE, Service, free_port};

use super::*;
use crate::reset::Machine;

/// What a shell makes of a word that refuses patterns which fit nothing.
fn pasted(word: &str) -> String {
    let script = format!("shopt -s failglob; printf %s {word}");
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert!(output.status.success(), "{word}: {}", err(&output));
    out(&output)
}

#[test]
fn what_list_and_nbd_show_can_be_pasted() {
    let (_target, url) = target();
    let url = format!("{url}?ns=1&queues=2");
    let machine = Machine::new();
    let service = machine.nbd(&url, &[]);
    let socket = service.path("socket").display().to_string();
    let uri = format!("nbd+unix:///?socket={socket}");
    let listed = out(&machine.run(&["list"]));
    let row: Vec<&str> =
        listed.lines().nth(1).expect("a row").split("  ").filter(|cell| !cell.is_empty()).collect();
    let known = machine.json(&["list"]);
    let known = &known["attached"][0];
    for (key, begin) in [("uri", "'nbd+unix"), ("address", "'nvme+")] {
        let cell = row.iter().map(|cell| cell.trim()).find(|cell| cell.starts_with(begin));
        let cell = cell.unwrap_or_else(|| panic!("{key}: {listed}"));
        assert_eq!(Some(pasted(cell).as_str()), known[key].as_str());
    }
    assert_eq!(known["uri"], uri.as_str());
    // And so can what errors tell to run.
    let discovery = url.rsplit_once('/').expect("a subsystem").0.to_owned() + "/?queues=2";
    let told = err(&output(&mut ringfab(&["id-ns", &discovery, "--nsid", "1"])));
    assert!(told.contains(&format!("`ringfab discover '{discovery}'`")), "{told}");
}

#[test]
fn the_folder_of_a_socket_is_made_and_goes() {
    let (_target, url) = target();
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("a folder");
    let socket = place.path().join("new/deep/disk.sock");
    let arguments =
        |_: &Path| ["nbd", &url, "--socket", &socket.display().to_string()].map(str::to_owned).to_vec();
    let mut service =
        Service::start_with("ringfab", arguments, &[("RINGFAB_RUNTIME_DIRECTORY", machine.0.path())]);
    assert!(socket.exists());
    service.signal("TERM");
    assert!(service.wait(PATIENCE).success());
    assert!(!place.path().join("new").exists(), "nothing is left");
    // Nor where nothing can be attached.
    let nobody = format!("nvme+tcp://127.0.0.1:{}/nqn.2026-11.org.example:x", free_port());
    let refused = machine.run(&["nbd", &nobody, "--socket", &socket.display().to_string()]);
    assert!(!refused.status.success() && !place.path().join("new").exists(), "{}", err(&refused));
}
