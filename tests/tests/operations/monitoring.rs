//! docs/monitoring.md with a Prometheus, which the boot that runs the commands of all pages does not have: its commands
//! run in its order, and print what it says.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringfab_tests::{free_port, have, not_run, program};
use tempfile::TempDir;

/// A block of the page: commands, and the lines that they print.
#[derive(Debug)]
struct Block {
    line: usize,
    /// A program that not every machine has.
    needs: Option<String>,
    commands: String,
    prints: Vec<String>,
}

/// The blocks that are marked `sh`, or `sh needs=PROGRAM`, with the lines of the block `text` that follows.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut inside): (Vec<Block>, Option<&str>) = (Vec::new(), None);
    for (number, line) in page.lines().enumerate() {
        match (inside, line.strip_prefix("```")) {
            (Some(_), Some(_)) => inside = None,
            (None, Some(marks)) => {
                let (kind, needs) =
                    marks.split_once(" needs=").map_or((marks, None), |(kind, needs)| (kind, Some(needs)));
                inside = Some(kind);
                if kind == "sh" {
                    let (needs, commands) = (needs.map(str::to_owned), String::new());
                    blocks.push(Block { line: number + 1, needs, commands, prints: Vec::new() });
                }
            }
            (Some("sh"), None) => {
                let block = blocks.last_mut().expect("pushed where it begins");
                block.commands.push_str(line);
                block.commands.push('\n');
            }
            (Some("text"), None) => {
                blocks.last_mut().expect("commands come first").prints.push(line.to_owned());
            }
            _ => {}
        }
    }
    blocks
}

/// Whether a line is as the page has it: spaces are one, and `…` is anything.
fn is_like(wanted: &str, line: &str) -> bool {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (wanted, line) = (squeezed(wanted), squeezed(line));
    let mut parts = wanted.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part.trim()) else { return false };
        rest = &rest[at + part.trim().len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || rest.is_empty(),
    }
}

/// What stands for the service manager: it starts and ends the target and Prometheus, and tells the target to reload.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
# end PROCESS: until it has ended.
end() {
    [ -e FOLDER/$1.pid ] || return 0
    pid=$(cat FOLDER/$1.pid)
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    rm FOLDER/$1.pid
}
start_ringfab() {
    rm -f FOLDER/ready
    TARGET serve --config FOLDER/target.toml --ready-file FOLDER/ready >>FOLDER/log 2>&1 </dev/null &
    echo $! >FOLDER/ringfab.pid
    until [ -e FOLDER/ready ] && [ -e FOLDER/control.sock ]; do
        kill -0 "$(cat FOLDER/ringfab.pid)"
        sleep 0.05
    done
}
# Until it has scraped the target, which a person would not notice.
start_prometheus() {
    prometheus --config.file=FOLDER/prometheus/prometheus.yml --storage.tsdb.path=FOLDER/prometheus/data \
        --web.listen-address=127.0.0.1:PROMETHEUS --log.level=error >>FOLDER/log 2>&1 </dev/null &
    echo $! >FOLDER/prometheus.pid
    until promtool query instant http://127.0.0.1:PROMETHEUS up 2>/dev/null | grep -q '=> 1'; do
        kill -0 "$(cat FOLDER/prometheus.pid)"
        sleep 0.1
    done
}
case "$1 $2" in
"start ringfab-target") start_ringfab ;;
"stop ringfab-target") end ringfab ;;
"restart ringfab-target") end ringfab; start_ringfab ;;
"reload ringfab-target") TARGET reload --socket FOLDER/control.sock ;;
"restart prometheus") end prometheus; start_prometheus ;;
*) exit 1 ;;
esac
"#;

/// The program with the control socket of this place, which users need not name.
fn write_wrapper(folder: &Path, target: &Path) {
    let (folder, target) = (folder.display(), target.display());
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\ncheck|doctor) exec {target} \"$@\" ;;\n\
         *) exec {target} \"$@\" --socket {folder}/control.sock ;;\nesac\n"
    );
    write_program(&folder.to_string(), "ringfab-target", &script);
}

fn write_program(folder: &str, name: &str, script: &str) {
    let path = Path::new(folder).join("bin").join(name);
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// Where README has come to, which is where each page begins, in a folder whose file system need not take direct I/O.
const BEGINNING: &str = r#"
truncate -s 1G /srv/ringfab/disk.img
cat >/etc/ringfab/target.toml <<'END'
[target]
cores = 1
state_dir = "/var/lib/ringfab"

[control]
socket = "/run/ringfab/control.sock"

[[listener]]
address = "127.0.0.1"
transport = "tcp"

[[subsystem]]
nqn = "nqn.2026-11.com.example:disks"
allowed_hosts = ["nqn.2026-11.com.example:host-1"]

[[subsystem.namespace]]
path = "/srv/ringfab/disk.img"
direct = false
allow_page_cache = true
END
systemctl start ringfab-target
"#;

/// An installation in a folder of its own, on ports of its own.
struct Installation {
    place: TempDir,
    target: PathBuf,
    /// The ports of the target, its metrics and Prometheus.
    ports: [u16; 3],
}

impl Installation {
    fn new() -> Self {
        let installation = Self {
            place: tempfile::tempdir().expect("a folder"),
            target: program("ringfab-target"),
            ports: [free_port(), free_port(), free_port()],
        };
        for folder in ["bin", "prometheus"] {
            fs::create_dir(installation.place.path().join(folder)).expect("a folder");
        }
        let folder = installation.folder();
        let script = SYSTEMCTL
            .replace("FOLDER", &folder)
            .replace("TARGET", &installation.target.display().to_string())
            .replace("PROMETHEUS", &installation.ports[2].to_string());
        write_program(&folder, "systemctl", &script);
        // What it would install is there, or its block is not run.
        write_program(&folder, "apt-get", "#!/bin/sh\n");
        write_wrapper(installation.place.path(), &installation.target);
        installation
    }

    fn folder(&self) -> String {
        self.place.path().display().to_string()
    }

    /// A text of the page with the places and ports that are here.
    fn here(&self, text: &str) -> String {
        let (folder, [target, metrics, prometheus]) = (self.folder(), self.ports);
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("configs");
        let known = [
            ("/etc/ringfab", folder.clone()),
            ("/srv/ringfab", folder.clone()),
            ("/run/ringfab", folder.clone()),
            ("/var/lib/ringfab", format!("{folder}/state")),
            ("/etc/prometheus", format!("{folder}/prometheus")),
            ("/usr/share/doc/ringfab-target/configs", configs.display().to_string()),
            ("127.0.0.1:4420", format!("127.0.0.1:{target}")),
            ("127.0.0.1:9420", format!("127.0.0.1:{metrics}")),
            ("127.0.0.1:9090", format!("127.0.0.1:{prometheus}")),
            ("transport = \"tcp\"\n", format!("transport = \"tcp\"\nport = {target}\n")),
            // Nobody has to wait for these here.
            ("interval: 15s", "interval: 1s".to_owned()),
        ];
        known.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }

    /// What the commands of a block print, standard error and the programs' log included when they fail.
    fn run(&self, commands: &str) -> Result<String, String> {
        let (bin, initiator) = (self.place.path().join("bin"), program("ringfab"));
        let initiator = initiator.parent().expect("a folder").display();
        let path = format!("{}:{initiator}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let output = Command::new("sh")
            .args(["-eu", "-c", &format!("exec 2>&1\n{}", self.here(commands))])
            .env("PATH", &path)
            .current_dir(self.place.path())
            .stdin(Stdio::null())
            .output()
            .expect("sh runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        let log = fs::read_to_string(self.place.path().join("log")).unwrap_or_default();
        if output.status.success() { Ok(said) } else { Err(format!("{said}{errors}\n{log}")) }
    }
}

impl Drop for Installation {
    /// Ends what runs still.
    fn drop(&mut self) {
        for process in ["ringfab.pid", "prometheus.pid"] {
            let Ok(process) = fs::read_to_string(self.place.path().join(process)) else { continue };
            // It may have ended by itself.
            let _gone = Command::new("kill").arg("-KILL").arg(process.trim()).status();
        }
    }
}

#[test]
fn metrics_and_alerts_are_as_the_page_says() {
    if !have("truncate") || !have("curl") {
        return not_run("docs/monitoring.md: there is no command truncate, or no curl");
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md");
    let page = fs::read_to_string(page).expect("the page");
    let installation = Installation::new();
    installation.run(BEGINNING).expect("a target");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 3, "{blocks:?}");
    for Block { line, needs, commands, prints } in blocks {
        if let Some(program) = needs.filter(|program| !have(program)) {
            not_run(&format!("docs/monitoring.md, line {line}: {program} is not installed"));
            continue;
        }
        let said = installation.run(&commands).unwrap_or_else(|said| panic!("line {line}: {said}"));
        let mut printed = said.lines();
        for wanted in prints.iter().map(|wanted| installation.here(wanted)) {
            let found = printed.any(|one| is_like(&wanted, one));
            assert!(found, "line {line}: no line as `{wanted}` in\n{said}");
        }
    }
}
