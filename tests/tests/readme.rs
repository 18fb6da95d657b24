//! The commands of README's "While it runs" work in their order, on a target with one subsystem.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ringfab_tests::{Service, free_port, program};

/// The lines of the block that begins with one subsystem more.
fn commands() -> String {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("README");
    let part = readme.split_once("\n## While it runs\n").expect("the part").1;
    let blocks = part.split("\n```\n").map(|block| block.trim_start_matches("```"));
    let block = blocks.into_iter().find(|block| block.starts_with("new=")).expect("the block");
    block.lines().map(|line| line.to_owned() + "\n").collect()
}

fn text(folder: &Path, port: u16, later: u16) -> String {
    let [state, socket] = ["state", "control.sock"].map(|name| folder.join(name));
    format!(
        "# The file of the test.\n[target]\nstate_dir = {state:?}\ncores = [0]\n\n[control]\nsocket = {socket:?}\n\n\
         [confinement]\npaths = [{folder:?}]\nports = [{later}] # for the listener that comes\n\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example:first\"\nallow_any_host = true\n\n\
         [[subsystem.namespace]]\nmemory = \"4MiB\"\n"
    )
}

#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let (port, later) = (free_port(), free_port());
    let service = Service::start("ringfab-target", |folder| {
        fs::write(folder.join("target.toml"), text(folder, port, later)).expect("a configuration");
        ["serve", "--config", &folder.join("target.toml").display().to_string()].map(str::to_owned).to_vec()
    });
    let before = fs::read_to_string(service.path("target.toml")).expect("the file");
    // A program of this name that asks this target.
    let tool = service.path("ringfab-target");
    let real = program("ringfab-target");
    let script = format!(
        "#!/bin/sh\nexec {} \"$@\" --socket {}\n",
        real.display(),
        service.path("control.sock").display()
    );
    fs::write(&tool, script).expect("a script");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("executable");
    let folder = service.path("").display().to_string();
    let commands = commands()
        .replace("/srv/ringfab/", &folder)
        // The file system of the test may have no direct I/O, and `top` needs a terminal.
        .replace("new.img --subsystem", "new.img --page-cache --subsystem")
        .replace("listener add 127.0.0.2", &format!("listener add 127.0.0.2 --port {later}"))
        .replace("; ringfab-target top", "");
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-e", "-c", &commands]).env("PATH", path).output().expect("sh");
    let [said, wrong] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{commands}\n{said}\n{wrong}");
    // Each change is told not to be in the file yet.
    let (notes, wrong): (Vec<&str>, Vec<&str>) = wrong.lines().partition(|line| line.starts_with("note: "));
    assert_eq!(wrong, [""; 0], "{commands}");
    assert!(notes.iter().all(|note| note.contains("`ringfab-target config --save")), "{notes:?}");
    let saved = fs::read_to_string(service.path("target.toml")).expect("the file");
    for line in before.lines().filter(|line| !line.is_empty()) {
        assert!(saved.contains(line), "{line} in {saved}");
    }
    assert!(
        saved.contains("nqn = \"nqn.2026-11.org.example:new\"") && saved.contains("log = \"debug\""),
        "{saved}"
    );
    assert!(said.contains("is for these hosts only: nqn.2026-11.org.example:host-1"), "{said}");
}
