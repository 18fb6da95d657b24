//! README and the pages of docs: their lengths, the index, their blocks, and what leads to them.

use super::{OWN_FOLDER, files, root};
use std::collections::BTreeSet;
use std::fs;

/// Lines of README, and of each page of docs.
const README_LINES_MAX: usize = 200;
const PAGE_LINES_MAX: usize = 250;

/// Kinds of blocks, which CONTRIBUTING.md explains. `tests/boot/guest/page.sh` runs `sh`, and compares `text`.
const KINDS: [&str; 9] = ["sh", "text", "console", "toml", "yaml", "ini", "fstab", "protocol", "rust"];

/// A block between fences.
struct Block {
    /// Where it begins: the document and the line.
    place: String,
    /// What stands behind the opening fence.
    marks: String,
    lines: Vec<String>,
    /// The kind of the block before, in the same document.
    before: Option<String>,
}

impl Block {
    fn kind(&self) -> &str {
        self.marks.split(' ').next().unwrap_or("")
    }

    /// What it needs that not every machine has.
    fn needs(&self) -> Option<&str> {
        self.marks.split_once(" needs=").map(|(_, needs)| needs).filter(|needs| !needs.is_empty())
    }
}

/// README, and what lies in docs.
fn pages() -> Vec<(String, String)> {
    let ours = |path: &str| path == "README.md" || path.starts_with("docs/");
    files(".md").into_iter().filter(|(path, _)| ours(path)).collect()
}

fn blocks() -> Vec<Block> {
    let (mut blocks, own): (Vec<Block>, _) =
        (Vec::new(), ["CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"]);
    for (path, text) in files(".md") {
        if path != "README.md" && !path.starts_with("docs/") && !own.contains(&path.as_str()) {
            continue;
        }
        let (mut inside, mut before) = (false, None);
        for (number, line) in text.lines().enumerate() {
            match line.trim_start().strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(marks) => {
                    inside = true;
                    let place = format!("{path}:{}", number + 1);
                    let block =
                        Block { place, marks: marks.to_owned(), lines: Vec::new(), before: before.take() };
                    before = Some(block.kind().to_owned());
                    blocks.push(block);
                }
                None if inside => blocks.last_mut().expect("it has begun").lines.push(line.to_owned()),
                None => {}
            }
        }
        assert!(!inside, "{path}: the last block has no end");
    }
    blocks
}

#[test]
fn the_readme_and_the_pages_are_short() {
    let pages = pages();
    assert!(pages.len() > 30, "only {} pages: they are elsewhere now", pages.len());
    for (path, text) in pages {
        let most = if path == "README.md" { README_LINES_MAX } else { PAGE_LINES_MAX };
        let lines = text.lines().count();
        assert!(lines <= most, "{path} has {lines} lines, {most} are allowed: split it");
    }
}

#[test]
fn every_page_is_in_the_index_once_and_the_readme_leads_to_it() {
    let index = fs::read_to_string(root().join("docs/README.md")).expect("the index");
    let rows: Vec<&str> = index.lines().filter(|line| line.starts_with("| [")).collect();
    for (path, _) in pages() {
        let Some(name) = path.strip_prefix("docs/").filter(|name| *name != "README.md") else { continue };
        let found = rows.iter().filter(|row| row.starts_with(&format!("| [{name}]({name}) |"))).count();
        assert_eq!(found, 1, "docs/README.md has {found} rows for {name}");
    }
    let readme = fs::read_to_string(root().join("README.md")).expect("README");
    assert!(readme.contains("](docs/README.md)"), "README.md does not lead to the index");
}

#[test]
fn every_block_is_of_a_known_kind_and_what_is_not_run_says_what_it_needs() {
    let mut run = 0;
    for block in blocks() {
        let (place, kind) = (&block.place, block.kind());
        assert!(KINDS.contains(&kind), "{place}: a block of the kind `{kind}`: see CONTRIBUTING.md");
        assert_eq!(
            block.needs().is_some(),
            block.marks.contains(' '),
            "{place}: only needs=WHAT may follow the kind"
        );
        match kind {
            "sh" => run += 1,
            "console" => assert!(block.needs().is_some(), "{place}: it is not run, and does not say why"),
            "text" => assert!(
                matches!(block.before.as_deref(), Some("sh")) || place.starts_with("docs/confinement.md"),
                "{place}: nothing prints this: commands come before it"
            ),
            _ => {}
        }
    }
    assert!(run > 30, "only {run} blocks of commands: they have another form now");
}

/// zsh takes an address with a question mark for a pattern, finds no file, and runs nothing.
#[test]
fn addresses_with_a_question_mark_are_quoted_in_commands() {
    let programs = ["ringfab ", "mount ", "nbdinfo ", "qemu-img ", "nvme "];
    let bare = |command: &str| {
        let words = command.split_whitespace();
        words.filter(|word| word.contains("://") && word.contains('?')).any(|word| {
            let before = command.split(word).next().unwrap_or("");
            let is_quoted = word.starts_with(['\'', '"']) || before.matches('\'').count() % 2 == 1;
            !is_quoted && !word.starts_with("url=")
        })
    };
    let commands = blocks().into_iter().filter(|block| ["sh", "console"].contains(&block.kind()));
    for block in commands {
        for line in &block.lines {
            assert!(!bare(line), "{}: quote the address: {line}", block.place);
        }
    }
    for (path, text) in files(".md") {
        for command in text.split('`').skip(1).step_by(2) {
            let is_command = programs.iter().any(|program| command.starts_with(program));
            assert!(!is_command || !bare(command), "{path}: quote the address: {command}");
        }
    }
}

/// The anchors of a document, as its readers' programs make them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let headings = headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    let kept = |one: char| one.is_alphanumeric() || [' ', '-', '_'].contains(&one);
    headings
        .map(|heading| heading.to_lowercase().chars().filter(|one| kept(*one)).collect::<String>())
        .map(|heading| heading.replace(' ', "-"))
        .collect()
}

#[test]
fn every_anchor_that_a_link_names_is_there() {
    let mut count = 0;
    for (document, text) in files(".md") {
        let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let Some((path, anchor)) = link.split_once('#').filter(|_| !link.contains("://")) else {
                continue;
            };
            let path = if path.is_empty() { root().join(&document) } else { root().join(folder).join(path) };
            let there = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{document} leads to {link}"));
            assert!(
                anchors(&there).contains(anchor),
                "{document} leads to {link}, which has no such heading"
            );
            count += 1;
        }
    }
    assert!(count > 15, "only {count} links with an anchor: they have another form now");
}

/// Messages, help, units, man pages and comments that name a page.
#[test]
fn every_page_that_a_source_names_is_there() {
    let mut count = 0;
    let endings =
        [".rs", ".sh", ".toml", ".conf", ".service", ".8", ".5", "Makefile", "Containerfile", "postinst"];
    for ending in endings {
        for (path, text) in files(ending).into_iter().filter(|(path, _)| !path.starts_with(OWN_FOLDER)) {
            for rest in text.split("docs/").skip(1) {
                let name: String = rest
                    .chars()
                    .take_while(|one| one.is_ascii_alphanumeric() || "-_./".contains(*one))
                    .collect();
                let Some(name) = name.find(".md").map(|end| &name[..end + 3]) else { continue };
                assert!(
                    root().join("docs").join(name).exists(),
                    "{path} names docs/{name}, which is not there"
                );
                count += 1;
            }
        }
    }
    assert!(count > 40, "only {count} pages are named: sources have another form now");
}
