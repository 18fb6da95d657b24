//! docs/operations.md, tried: its commands run in its order, and print what it says.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfab_tests::{free_port, have, not_run, program};

/// A block of the page: commands, and the lines that they print.
#[derive(Debug)]
struct Block {
    line: usize,
    commands: String,
    prints: Vec<String>,
}

/// The blocks that are marked `sh`, with the lines of the block `text` that follows.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut inside): (Vec<Block>, Option<&str>) = (Vec::new(), None);
    for (number, line) in page.lines().enumerate() {
        match (inside, line.strip_prefix("```")) {
            (Some(_), Some(_)) => inside = None,
            (None, Some(kind)) => {
                inside = Some(kind);
                if kind == "sh" {
                    blocks.push(Block { line: number + 1, commands: String::new(), prints: Vec::new() });
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

/// What stands for the service manager: it starts the target, and tells it to reload and to end.
fn write_systemctl(folder: &Path, target: &Path) {
    let (folder, target) = (folder.display(), target.display());
    let script = format!(
        "#!/bin/sh\nset -eu\ncase \"$1\" in\n\
         start)\n    {target} serve --config {folder}/target.toml --ready-file {folder}/ready \\\n\
         \u{20}       >{folder}/log 2>&1 </dev/null &\n    echo $! >{folder}/pid\n\
         \u{20}   until [ -e {folder}/ready ] && [ -e {folder}/control.sock ]; do\n\
         \u{20}       kill -0 $(cat {folder}/pid)\n        sleep 0.05\n    done ;;\n\
         reload) {target} reload --socket {folder}/control.sock ;;\n\
         stop)\n    pid=$(cat {folder}/pid)\n    kill $pid\n\
         \u{20}   while kill -0 $pid 2>/dev/null; do sleep 0.05; done\n    rm {folder}/pid ;;\nesac\n"
    );
    write_program(&folder.to_string(), "systemctl", &script);
}

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

/// Ends what a tour that failed has left running.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let Ok(process) = fs::read_to_string(self.0.join("pid")) else { return };
        // It may have ended by itself.
        let _gone = Command::new("kill").arg("-KILL").arg(process.trim()).status();
    }
}

#[test]
fn the_tour_is_as_the_page_says() {
    if !have("truncate") {
        return not_run("the tour of docs/operations.md: there is no command truncate");
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = fs::read_to_string(page).expect("the page");
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    fs::create_dir(place.join("bin")).expect("a folder");
    let (target, initiator) = (program("ringfab-target"), program("ringfab"));
    write_systemctl(place, &target);
    write_wrapper(place, &target);
    let port = free_port().to_string();
    // The places of an installation, as they are here.
    let here = |text: &str| {
        let shown = place.display().to_string();
        let mut text = text.to_owned();
        for known in ["/etc/ringfab", "/srv/ringfab", "/run/ringfab"] {
            text = text.replace(known, &shown);
        }
        let listener = format!("transport = \"tcp\"\nport = {port}\n");
        let text = text.replace("/var/lib/ringfab", &format!("{shown}/state"));
        text.replace("127.0.0.1:4420", &format!("127.0.0.1:{port}"))
            .replace("transport = \"tcp\"\n", &listener)
    };
    let path = format!(
        "{}:{}:{}",
        place.join("bin").display(),
        initiator.parent().expect("a folder").display(),
        std::env::var("PATH").expect("a PATH")
    );
    let _ended = Ended(place);
    let blocks = blocks(&page);
    assert!(blocks.len() > 8, "{blocks:?}");
    for Block { line, commands, prints } in blocks {
        let output = Command::new("sh")
            .args(["-eu", "-c", &here(&commands)])
            .env("PATH", &path)
            .current_dir(place)
            .stdin(Stdio::null())
            .output()
            .expect("sh runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        let log = fs::read_to_string(place.join("log")).unwrap_or_default();
        assert!(output.status.success(), "line {line}: {commands}{said}{errors}\n{log}");
        let mut printed = said.lines();
        for wanted in prints.iter().map(|wanted| here(wanted)) {
            let found = printed.any(|one| is_like(&wanted, one));
            assert!(found, "line {line}: no line as `{wanted}` in\n{said}{errors}\n{log}");
        }
    }
}
