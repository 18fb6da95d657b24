//! The rules of the house that a machine can check. An exception carries its reason, and the lists only shrink.

#![cfg(test)]

mod documents;
mod layers;
mod missing;
mod pasted;
mod pauses;
mod public;
mod sizes;
mod source;
mod tuples;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates in the order of the arrows: each may depend on these of ours, and on no others.
const ARROWS: [(&str, &[&str]); 20] = [
    ("common/base", &[]),
    ("common/spec", &["base"]),
    ("common/crc", &[]),
    ("common/proto", &["spec", "crc"]),
    ("common/memory", &[]),
    ("common/reactor", &["base", "memory"]),
    ("common/auth", &["base", "spec"]),
    ("common/tls", &["auth"]),
    ("common/fabric", &["base", "spec", "auth", "tls", "proto", "memory", "reactor"]),
    ("common/block", &["base", "memory", "reactor"]),
    ("common/nbd", &["base", "proto", "memory", "reactor", "block"]),
    ("common/rbd", &["base", "block", "reactor"]),
    ("common/fuse", &["base", "memory"]),
    ("common/process", &["base", "memory"]),
    (
        "target",
        &["base", "spec", "auth", "proto", "memory", "reactor", "fabric", "block", "nbd", "rbd", "process"],
    ),
    ("initiator/library", &["base", "spec", "auth", "memory", "reactor", "fabric"]),
    (
        "initiator/front-ends",
        &["base", "spec", "auth", "proto", "memory", "reactor", "fabric", "fuse", "process", "initiator"],
    ),
    ("initiator/command", &["base", "spec", "fabric", "process", "auth", "initiator", "front-ends"]),
    (
        "tests",
        &[
            "base",
            "spec",
            "auth",
            "tls",
            "proto",
            "memory",
            "reactor",
            "fabric",
            "block",
            "nbd",
            "process",
            "target",
            "initiator",
        ],
    ),
    // It measures the programs from outside, and uses the initiator as other programs do. The target it asks for its
    // status, and starts it with more threads than there are processors.
    ("tests/bench", &["auth", "tls", "memory", "reactor", "fabric", "target", "initiator"]),
];

/// Where `unsafe` may stand, and why.
const UNSAFE: [(&str, &str); 7] = [
    ("common/crc/", "calls code for instructions that not every processor has"),
    ("common/memory/", "owns the raw memory"),
    ("common/reactor/", "hands memory to the kernel"),
    ("common/fuse/", "hands memory to the kernel"),
    ("common/fabric/src/rdma/verbs/", "calls libibverbs and librdmacm"),
    ("common/rbd/src/native/", "calls librados and librbd"),
    ("tests/tests/allocations", "counts the calls of an allocator"),
];

/// These files name what they look for.
const OWN_FOLDER: &str = "tests/house/src/";

/// Characters that a line may have.
const LINE_CHARACTERS_MAX: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_path_buf()
}

/// The files that begin our crates, from the root.
fn crate_roots() -> impl Iterator<Item = String> {
    let files = |(folder, _)| ["lib", "main"].map(|file| format!("{folder}/src/{file}.rs"));
    ARROWS.into_iter().flat_map(files).filter(|file| root().join(file).exists())
}

/// Every file of ours below a folder whose name ends so, with its path from the root.
fn files(ending: &str) -> Vec<(String, String)> {
    let (root, mut found, mut folders) = (root(), Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").map(|entry| entry.expect("an entry")) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type().expect("a type").is_dir() {
                if !name.starts_with('.') && name != "corpus" {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let relative =
                    path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
                found.push((relative, fs::read_to_string(&path).expect("text")));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} files: the test looks in the wrong place");
    found
}

/// The code of a file without its comments and strings, roughly: enough to find words.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_build_folder_is_not_the_crate_named_target() {
    let executable = std::env::current_exe().expect("this executable");
    let inside = executable.components().any(|part| part.as_os_str() == "target");
    assert!(!inside, "{} lies below a folder named target", executable.display());
    let config = fs::read_to_string(root().join(".cargo/config.toml")).expect("the cargo configuration");
    assert!(config.lines().any(|line| line.trim() == "target-dir = \".build\""));
    let ignored = fs::read_to_string(root().join(".gitignore")).expect("the ignore list");
    assert!(ignored.lines().any(|line| line.trim() == "/.build"));
    for pattern in ["target", "/target", "target/", "/target/"] {
        assert!(!ignored.lines().any(|line| line.trim() == pattern), "{pattern} would drop a crate");
    }
}

#[test]
fn crates_depend_only_on_those_above_them() {
    for (folder, allowed) in ARROWS {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or("");
        let used: BTreeSet<&str> = normal
            .lines()
            .filter_map(|line| line.strip_prefix("ringfab-"))
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .collect();
        for one in used {
            assert!(allowed.contains(&one), "{folder} must not depend on ringfab-{one}");
        }
    }
}

#[test]
fn only_binaries_use_anyhow() {
    // The command ringfab, its front ends, and the benchmark of the programs.
    let commands = ["initiator/command/", "initiator/front-ends/", "tests/bench/src/"];
    for (path, text) in files(".rs") {
        let of_command = commands.iter().any(|part| path.starts_with(part));
        let binary = path.ends_with("/main.rs") || of_command || path.starts_with(OWN_FOLDER);
        assert!(binary || !code(&text).contains("anyhow::"), "{path} is library code");
    }
}

#[test]
fn unsafe_stands_only_where_it_is_argued() {
    for (path, text) in files(".rs") {
        let code = code(&text);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in code.lines().enumerate() {
            let unsafe_here = ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|word| line.contains(word));
            if !unsafe_here || path.starts_with(OWN_FOLDER) {
                continue;
            }
            assert!(
                UNSAFE.iter().any(|(place, _)| path.starts_with(place)),
                "{path}:{} is unsafe",
                number + 1
            );
            let before = lines[number.saturating_sub(12)..=number].join("\n");
            assert!(
                before.contains("SAFETY:") || before.contains("# Safety"),
                "{path}:{} argues nothing",
                number + 1
            );
        }
    }
}

#[test]
fn crates_without_need_of_it_forbid_unsafe() {
    for folder in ["common/base", "common/spec", "common/proto"] {
        let text = fs::read_to_string(root().join(folder).join("src/lib.rs")).expect("a crate");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{folder}");
    }
}

#[test]
fn numbers_of_things_agree_with_their_words() {
    let nouns =
        ["listeners", "subsystems", "namespaces", "controllers", "changes", "shares", "disks", "times"];
    for (path, text) in files(".rs") {
        let is_ours =
            ["target/src/", "initiator/", "common/process/"].iter().any(|part| path.starts_with(part));
        if !is_ours || path.ends_with("tests.rs") || path.contains("/examples/") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        // Limits are never one, and `changes` is a verb, too.
        let allowed =
            |line: &&str| ["_MAX}", "{0}", "changes nothing"].iter().any(|part| line.contains(part));
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !allowed(line)) {
            let one = nouns.iter().find(|noun| line.contains(&format!("}} {noun}")));
            assert!(one.is_none(), "{path}:{} has \"1 {}\": write counted()", number + 1, one.unwrap_or(&""));
        }
    }
}

#[test]
fn lines_are_short_enough_to_read() {
    let endings = [".rs", ".md", ".sh", ".toml", ".py", ".c", "Makefile"];
    for (path, text) in endings.into_iter().flat_map(files) {
        for (number, line) in text.lines().enumerate() {
            let length = line.chars().count();
            // A row of a table cannot go on in the next line.
            let text = line.trim_start().trim_start_matches("//").trim_start_matches(['/', '!']).trim_start();
            let row = (path.ends_with(".md") || line.trim_start().starts_with("//")) && text.starts_with('|');
            // Nor can a message of a protocol whose messages are lines.
            let message =
                path == "docs/control.md" && ["> {", "< {"].iter().any(|sign| line.starts_with(sign));
            let allowed = row || message || length <= LINE_CHARACTERS_MAX;
            assert!(
                allowed,
                "{path}:{} has {length} characters, {LINE_CHARACTERS_MAX} are allowed",
                number + 1
            );
        }
    }
}

#[test]
fn nothing_is_left_open() {
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimplemented", "!(")];
    for ending in [".rs", ".sh", ".toml"] {
        for (path, text) in files(ending) {
            for mark in marks {
                assert!(!text.contains(mark), "{path} says {mark}");
            }
        }
    }
}

#[test]
fn every_test_that_the_conformance_table_names_is_there() {
    let table = fs::read_to_string(root().join("tests/CONFORMANCE.md")).expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut count = 0;
    for row in rows {
        let proof = row.trim_end_matches(" |").rsplit(" | ").next().expect("a last column");
        let mut names = proof.split('`').skip(1).step_by(2);
        let path = names.next().expect("a file");
        let text = fs::read_to_string(root().join(path)).expect(path);
        for name in names {
            // Properties have arguments.
            assert!(text.contains(&format!("fn {name}(")), "{path}: {name}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} tests were found: the table has another form now");
}

#[test]
fn each_row_of_what_tls_was_tried_with_names_its_test() {
    let text = fs::read_to_string(root().join("docs/tls.md")).expect("the document");
    let (_, tried) = text.split_once("\n## Tried with\n").expect("a chapter");
    let rows: Vec<&str> = tried.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() > 5, "only {rows:?} were found: the table has another form now");
    for row in rows {
        assert!(row.contains("(`tests/") || row.contains("(`common/"), "no test: {row}");
    }
}

#[test]
fn every_path_that_a_document_names_is_there() {
    const FOLDERS: [&str; 7] =
        ["common/", "configs/", "docs/", "initiator/", "systemd/", "target/", "tests/"];
    let mut count = 0;
    for (document, text) in files(".md") {
        for name in text.split('`').skip(1).step_by(2) {
            let path = name.split(':').next().unwrap_or(name);
            let plain = path.chars().all(|one| one.is_ascii_alphanumeric() || "/._-".contains(one));
            if plain && FOLDERS.iter().any(|folder| path.starts_with(folder)) {
                assert!(root().join(path).exists(), "{document} names {path}, which is not there");
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} paths were found: documents have another form now");
}

/// Where the links of a document lead, pictures included, as paths from the root.
fn links(document: &str, text: &str) -> BTreeSet<PathBuf> {
    let folder = Path::new(document).parent().expect("a file has a folder");
    let places = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(place, _)| place);
    let ours = places.filter(|place| !place.contains("://") && !place.starts_with(['#', '<', '/']));
    ours.map(|place| folder.join(place.split('#').next().unwrap_or(place))).collect()
}

#[test]
fn every_link_of_a_document_leads_somewhere_and_every_picture_is_shown_and_small() {
    const PICTURE_BYTES_MAX: u64 = 150_000;
    let mut shown = BTreeSet::new();
    for (document, text) in files(".md") {
        for link in links(&document, &text) {
            let path = root().join(&link);
            assert!(path.exists(), "{document} leads to {}, which is not there", link.display());
            shown.insert(path.canonicalize().expect("it exists"));
        }
    }
    assert!(shown.len() > 15, "only {shown:?} were found: documents have another form now");
    for picture in fs::read_dir(root().join("docs/pictures")).expect("pictures") {
        let picture = picture.expect("an entry");
        let (name, bytes) = (picture.file_name(), picture.metadata().expect("its size").len());
        let path = picture.path().canonicalize().expect("it exists");
        assert!(shown.contains(&path), "no document shows {name:?}");
        assert!(bytes < PICTURE_BYTES_MAX, "{name:?} has {bytes} bytes");
    }
}

#[test]
fn silenced_lints_say_why() {
    for (path, text) in files(".rs") {
        for (number, line) in text.lines().enumerate() {
            let silences = line.contains("[allow(") || line.contains("[expect(");
            let here = text.lines().skip(number).take(4).collect::<Vec<_>>().join(" ");
            let excused = path.starts_with(OWN_FOLDER);
            assert!(
                !silences || excused || here.contains("reason ="),
                "{path}:{} gives no reason",
                number + 1
            );
        }
    }
}

#[test]
fn scripts_stop_at_the_first_error() {
    for (path, text) in files(".sh") {
        // What is sourced only has it from who sources it.
        let sourced = !text.starts_with("#!");
        assert!(sourced || text.contains("set -euo pipefail"), "{path}");
    }
}

#[test]
fn every_example_configuration_is_parsed_by_a_test() {
    let of_target = fs::read_to_string(root().join("target/src/config/tests.rs")).expect("the tests");
    let of_volumes = "initiator/front-ends/src/volumes/file.rs";
    let tests = of_target + &fs::read_to_string(root().join(of_volumes)).expect("the tests of volumes");
    for (path, _) in files(".toml").into_iter().filter(|(path, _)| path.starts_with("configs/")) {
        let name = path.rsplit('/').next().expect("a name");
        assert!(tests.contains(name), "no test parses {path}");
    }
}

/// A path in what a person reads is `path.visible()`, and in JSON, a command or an address `to_string_lossy()`:
/// `display()` writes escape codes, ends of lines and what turns a line around as they are.
#[test]
fn the_programs_show_no_path_as_it_is() {
    let mut looked = 0;
    for (path, text) in files(".rs") {
        let is_of_programs =
            ["target/src/", "initiator/command/src/", "initiator/front-ends/src/", "initiator/library/src/"]
                .iter()
                .any(|folder| path.starts_with(folder));
        if !is_of_programs || path.contains("/tests") {
            continue;
        }
        looked += 1;
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let is_shown_raw = line.contains(".display()") && !line.trim_start().starts_with("//");
            assert!(!is_shown_raw, "{path}:{}: use `visible()` or `to_string_lossy()`: {line}", number + 1);
        }
    }
    assert!(looked > 100, "only {looked} files: sources are elsewhere now");
}
