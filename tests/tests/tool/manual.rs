//! Man pages, and completions of shells.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfab_tests::{Service, have, not_run, program};
use tempfile::TempDir;

use super::{err, out, output, ringfab, ringfab_target, target};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// All pages: those that the programs write, and those that are files.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let text = folder.to_str().expect("text");
    for mut command in [ringfab(&["manual", "--man", text]), ringfab_target(&["manual", "--man", text])] {
        let written = output(&mut command);
        assert!(written.status.success(), "{written:?}");
    }
    let folders = [folder.to_owned(), workspace().join("configs/man")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let mut pages: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    pages.sort();
    pages
}

#[test]
fn mandoc_finds_nothing_in_any_page() {
    if !have("mandoc") {
        return not_run("man pages: mandoc is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pages = pages(folder.path());
    assert!(pages.len() > 50, "{pages:?}");
    let linted = output(Command::new("mandoc").args(["-T", "lint", "-W", "style"]).args(&pages));
    assert_eq!(out(&linted), "");
    assert!(linted.status.success(), "{linted:?}");
}

#[test]
fn all_pages_have_one_date() {
    let folder = tempfile::tempdir().expect("a folder");
    let date = |page: &PathBuf| {
        let text = fs::read_to_string(page).expect("a page");
        let title = text.lines().find(|line| line.starts_with(".TH ")).expect("a title").to_owned();
        title.split(' ').nth(3).expect("a date").to_owned()
    };
    let dates: BTreeSet<String> = pages(folder.path()).iter().map(date).collect();
    assert_eq!(dates.len(), 1, "{dates:?}");
}

#[test]
fn a_page_has_the_values_and_the_groups_of_the_help() {
    let folder = tempfile::tempdir().expect("a folder");
    pages(folder.path());
    let page = fs::read_to_string(folder.path().join("ringfab-mount.1")).expect("a page");
    let page = page
        .replace("\\-", "-")
        .replace("\\fB", "")
        .replace("\\fI", "")
        .replace("\\fR", "")
        .replace('\n', " ");
    assert!(page.contains("[--nsid NSID]") && page.contains(" SOURCE [DIRECTORY]"), "{page}");
    let help = out(&output(&mut ringfab(&["mount", "--help"])));
    let headings: Vec<&str> =
        help.lines().filter(|line| !line.starts_with(' ') && line.ends_with(':')).collect();
    let mut from = 0;
    for heading in headings.iter().filter(|one| !["Arguments:", "Options:", "Examples:"].contains(one)) {
        let heading = format!(".SH \"{} OPTIONS\"", heading.trim_end_matches(':').to_uppercase());
        let at = page[from..].find(&heading).unwrap_or_else(|| panic!("{heading} is not next in {page}"));
        from += at + heading.len();
    }
    assert!(from > 0, "{help}");
}

/// A folder with the completions of both programs, and volumes.
fn completions() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(folder.path(), private).expect("a private folder");
    let text = folder.path().to_str().expect("text");
    for mut command in
        [ringfab(&["manual", "--completions", text]), ringfab_target(&["manual", "--completions", text])]
    {
        assert!(output(&mut command).status.success());
    }
    let volume = |name: &str| {
        format!(
            "[[volume]]\nname = {name:?}\nurl = \"nvme+tcp://h/nqn.2026-11.org.example:a\"\nwhere = \"/mnt/{name}\"\n"
        )
    };
    fs::write(folder.path().join("volumes.toml"), volume("data") + &volume("dump") + &volume("logs"))
        .expect("a file");
    folder
}

/// A shell that knows our programs, with what it prints.
fn in_shell(folder: &TempDir, shell: &str, arguments: &[&str]) -> Vec<String> {
    let programs = program("ringfab").parent().expect("a folder").display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(shell);
    command.args(arguments).env("PATH", path).env("HOME", folder.path()).current_dir(folder.path());
    command.env("RINGFAB_VOLUMES", folder.path().join("volumes.toml"));
    command.env("RINGFAB_RUNTIME_DIRECTORY", folder.path());
    let output = output(&mut command);
    assert!(output.status.success() && err(&output).is_empty(), "{output:?}");
    out(&output).lines().map(str::to_owned).collect()
}

/// What bash offers for the last of these words.
fn bash(folder: &TempDir, words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let script = format!(
        "source ringfab.bash; COMP_WORDS=({}); COMP_CWORD={}; _ringfab_words ringfab '{last}' '{before}'; \
         [[ ${{#COMPREPLY[@]}} = 0 ]] || printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1
    );
    in_shell(folder, "bash", &["--norc", "--noprofile", "-c", &script])
}

#[test]
fn bash_offers_volumes_and_what_is_attached_and_nothing_hidden() {
    let folder = completions();
    assert_eq!(bash(&folder, &["ringfab", "mount", ""]), ["data", "dump", "logs"]);
    assert_eq!(bash(&folder, &["ringfab", "mount", "--nsid", "1", "-r", "d"]), ["data", "dump"]);
    assert_eq!(bash(&folder, &["ringfab", "--json", "mount", "--retry", "=", "5", "l"]), ["logs"]);
    // The second argument is a directory, and the value of an option none of these.
    let second = bash(&folder, &["ringfab", "mount", "data", ""]);
    assert!(second.iter().all(|one| one.starts_with('-')), "{second:?}");
    assert!(!bash(&folder, &["ringfab", "mount", "--nsid", ""]).contains(&"data".to_owned()));
    let commands = bash(&folder, &["ringfab", ""]);
    assert!(
        commands.contains(&"mount".to_owned()) && commands.contains(&"show-hostnqn".to_owned()),
        "{commands:?}"
    );
    for hidden in ["mount-step", "mount-grow", "complete"] {
        assert!(!commands.contains(&hidden.to_owned()), "{commands:?}");
    }
    let options = bash(&folder, &["ringfab", "mount", "--"]);
    assert!(
        options.contains(&"--mkfs".to_owned()) && !options.contains(&"--keeper".to_owned()),
        "{options:?}"
    );
    let (_target, url) = target();
    let serve = |own: &Path| {
        ["nbd", &url, "--socket", own.join("s").to_str().expect("text")].map(str::to_owned).to_vec()
    };
    let service = Service::start_with("ringfab", serve, &[("RINGFAB_RUNTIME_DIRECTORY", folder.path())]);
    let offered = bash(&folder, &["ringfab", "reset", ""]);
    assert!(offered.len() == 1 && offered[0].starts_with("nbd+unix://"), "{offered:?}");
    assert_eq!(bash(&folder, &["ringfab", "umount", ""]), [""; 0], "it is not mounted");
    drop(service);
}

#[test]
fn zsh_and_fish_offer_volumes() {
    let folder = completions();
    if have("fish") {
        let offered =
            in_shell(&folder, "fish", &["-N", "-c", "source ringfab.fish; complete -C 'ringfab mount da'"]);
        assert!(offered.iter().any(|line| line.starts_with("data")), "{offered:?}");
        let all = in_shell(&folder, "fish", &["-N", "-c", "source ringfab.fish; complete -C 'ringfab m'"]);
        assert!(!all.is_empty() && !all.iter().any(|line| line.starts_with("mount-")), "{all:?}");
    } else {
        not_run("completions of fish: it is not installed");
    }
    if have("zsh") {
        // The functions of zsh's own system work in its editor only.
        let script = "source ./_ringfab 2>/dev/null; _call_program() { shift; eval \"$@\" }; \
                      compadd() { print -l -- $found }; _ringfab_words -J x volumes";
        let script = format!("_ringfab() {{}}; compdef() {{}}; {script}");
        assert_eq!(in_shell(&folder, "zsh", &["-f", "-c", &script]), ["data", "dump", "logs"]);
    } else {
        not_run("completions of zsh: it is not installed");
    }
    let zsh = fs::read_to_string(folder.path().join("_ringfab")).expect("a file");
    for list in ["volumes", "mounted", "attached"] {
        assert!(zsh.contains(&format!(":_ringfab_words {list}'")), "{list}");
    }
}

#[test]
fn what_others_call_it_is_answered_with_what_it_is_here() {
    let said = |command: &mut Command| {
        let output = output(command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        err(&output)
    };
    for (word, instead) in
        [("connect", "`ringfab mount`"), ("disconnect", "`ringfab umount`"), ("status", "`ringfab list`")]
    {
        let said = said(&mut ringfab(&[word]));
        assert!(
            said.contains(&format!("tip: {instead}")) && !said.contains("a similar subcommand"),
            "{said}"
        );
    }
    assert!(
        said(&mut ringfab_target(&["nvmf_create_subsystem"])).contains("tip: `ringfab-target subsystem add`")
    );
}

#[test]
fn a_host_tells_its_name_and_a_list_without_a_subsystem_the_way_to_it() {
    let name = out(&output(&mut ringfab(&["show-hostnqn"])));
    assert!(name.starts_with("nqn.") && name.lines().count() == 1, "{name}");
    let (_target, url) = target();
    let discovery = url.rsplit_once('/').expect("a subsystem").0;
    let said = out(&output(&mut ringfab(&["list", discovery])));
    assert!(said.contains(&format!("`ringfab discover {discovery}` lists the subsystems")), "{said}");
    assert!(!out(&output(&mut ringfab(&["list", &url]))).contains("ringfab discover"));
}
