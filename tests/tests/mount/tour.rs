//! README's part about mounting, tried: its commands run line by line, and print what it says.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{free_port, program};

use super::machine::{Machine, Said};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The commands of each block `sh`, and the lines of the block `text` that follows, if one does.
fn blocks(page: &str) -> Vec<(String, Vec<String>)> {
    let (mut blocks, mut inside): (Vec<(String, Vec<String>)>, Option<&str>) = (Vec::new(), None);
    for line in page.lines() {
        match (inside, line.strip_prefix("```")) {
            (Some(_), Some(_)) => inside = None,
            (None, Some(kind)) => {
                inside = Some(kind);
                if kind == "sh" {
                    blocks.push((String::new(), Vec::new()));
                }
            }
            (Some("sh"), None) => {
                let block = blocks.last_mut().expect("pushed where it begins");
                block.0.push_str(&format!("{line}\n"));
            }
            (Some("text"), None) => blocks.last_mut().expect("commands come first").1.push(line.to_owned()),
            _ => {}
        }
    }
    blocks
}

/// Whether a line is as the page has it: spaces are one, and `…` is anything.
fn is_like(wanted: &str, line: &str) -> bool {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = line.as_str();
    for (number, part) in wanted.split('…').map(str::trim).enumerate() {
        match rest.find(part) {
            Some(at) if number > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || wanted.ends_with('…')
}

/// What stands for programs that an installation has: the target in the background, systemd, and a mount(8) that finds
/// the helper and this fstab.
const PROGRAMS: [(&str, &str); 3] = [
    (
        "ringfab-target",
        "TARGET \"$@\" --ready-file FOLDER/ready >>FOLDER/log 2>&1 </dev/null &\necho $! >FOLDER/target.pid\n\
         until [ -e FOLDER/ready ]; do kill -0 $! || exit 1; sleep 0.05; done\n",
    ),
    (
        "systemctl",
        "name=${*##*@}\ncase \"$1\" in\nenable)\n\
         \x20   exec=$(sed -n 's,^ExecStart=/usr/bin/,,p' UNIT | sed \"s,%i,$name,\")\n\
         \x20   $exec >>FOLDER/log 2>&1 </dev/null &\n    echo $! >FOLDER/volume.pid\n\
         \x20   until ringfab list | grep -q connected; do kill -0 $! || exit 1; sleep 0.05; done ;;\nstop)\n\
         \x20   kill \"$(cat FOLDER/volume.pid)\"\n\
         \x20   while kill -0 \"$(cat FOLDER/volume.pid)\" 2>/dev/null; do sleep 0.05; done ;;\nesac\n",
    ),
    (
        "mount",
        "[ $# = 1 ] || exec MOUNT \"$@\"\n\
         while read -r what where kind options rest; do\n    [ \"$where $kind\" = \"$1 ringfab\" ] || continue\n\
         \x20   exec FOLDER/bin/mount.ringfab \"$what\" \"$where\" -o \"$options\"\ndone <FOLDER/fstab\nexit 1\n",
    ),
];

fn here(machine: &Machine, port: u16, text: &str) -> String {
    let folder = machine.text("");
    let folder = folder.trim_end_matches('/');
    let target =
        format!("[target]\nstate_dir = \"{folder}/state\"\n[control]\nenabled = false\n[[listener]]\n");
    let known = [
        ("/etc/ringfab", folder.to_owned()),
        ("/srv/ringfab", folder.to_owned()),
        ("/mnt/disk", machine.text("a")),
        ("/etc/fstab", format!("{folder}/fstab")),
        ("127.0.0.1:4420", format!("127.0.0.1:{port}")),
        ("transport = \"tcp\"\n", format!("transport = \"tcp\"\nport = {port}\n")),
        ("[[listener]]\n", target),
        // The folder of a test need not take direct I/O.
        ("disk.img\"\n", "disk.img\"\ndirect = false\nallow_page_cache = true\n".to_owned()),
        ("target.toml &\n", "target.toml\n".to_owned()),
    ];
    known.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
}

/// Ends the target that the page has started.
struct Ends<'a>(&'a Machine);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        for name in ["volume.pid", "target.pid"] {
            let pid = fs::read_to_string(self.0.path(name)).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = pid {
                // It may have ended by now.
                let _ended = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

#[test]
fn the_readme_is_true() {
    let Some(machine) = Machine::new("README's part about mounting") else { return };
    let page = fs::read_to_string(Path::new(REPOSITORY).join("README.md")).expect("the page");
    let folder = machine.text("");
    fs::create_dir(machine.path("bin")).expect("a folder");
    let real =
        fs::canonicalize("/usr/bin/mount").or_else(|_| fs::canonicalize("/bin/mount")).expect("mount(8)");
    let unit = Path::new(REPOSITORY).join("systemd/ringfab-volume@.service");
    for (name, script) in PROGRAMS {
        let script = script
            .replace("FOLDER", folder.trim_end_matches('/'))
            .replace("TARGET", &program("ringfab-target").display().to_string())
            .replace("MOUNT", &real.display().to_string())
            .replace("UNIT", &unit.display().to_string());
        let path = machine.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\nset -eu\n{script}")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    for name in ["ringfab", "mount.ringfab"] {
        std::os::unix::fs::symlink(program("ringfab"), machine.path("bin").join(name)).expect("a link");
    }
    let _ends = Ends(&machine);
    let port = free_port();
    let path = format!("{}:{}", machine.text("bin"), std::env::var("PATH").expect("a PATH"));
    let blocks = blocks(&page);
    assert!(blocks.len() >= 3, "{blocks:?}");
    for (commands, prints) in blocks {
        let commands = here(&machine, port, &commands);
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60", "sh", "-eu", "-c", &commands]).env("PATH", &path);
        machine.in_environment(&mut command);
        let said = Said::of(&command.stdin(std::process::Stdio::null()).output().expect("sh runs"));
        let log = fs::read_to_string(machine.path("log")).unwrap_or_default();
        assert_eq!(said.code, Some(0), "{commands}\n{said:?}\n{log}");
        let mut printed = said.stdout.lines();
        for wanted in prints.iter().map(|wanted| here(&machine, port, wanted)) {
            assert!(printed.any(|line| is_like(&wanted, line)), "no line as `{wanted}` in\n{}", said.stdout);
        }
    }
    ringfab_tests::wait_until("nothing is left", || machine.is_clean());
}
