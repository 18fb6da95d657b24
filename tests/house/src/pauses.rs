//! A test waits for what it needs, never for a time: on a busy machine, what takes a moment takes ten. A `sleep` is the
//! pause of a loop that looks again, or has its reason beside it.

use super::{OWN_FOLDER, files};

/// How a language says what this rule is about.
struct Words {
    /// Whether a line of code sleeps.
    sleeps: fn(&str) -> bool,
    /// Whether a line begins a loop that goes on until something is so.
    looks_again: fn(&str) -> bool,
    /// Whether a line begins a function.
    begins_function: fn(&str) -> bool,
    /// What begins a comment.
    comment: &'static str,
}

const RUST: Words = Words {
    sleeps: |line| line.contains("thread::sleep(") || line.trim_start().starts_with("sleep("),
    looks_again: |line| {
        line.split("//")
            .next()
            .is_some_and(|code| ["loop {", "while "].iter().any(|word| code.contains(word)))
    },
    begins_function: |line| {
        line.split("fn ").next().is_some_and(|before| before.len() < line.len()) && line.ends_with('{')
    },
    comment: "//",
};

const SHELL: Words = Words {
    sleeps: |line| line.match_indices("sleep ").any(|(place, _)| begins_command(&line[..place])),
    looks_again: |line| line.split_whitespace().any(|word| ["while", "until"].contains(&word)),
    begins_function: |line| line.ends_with("() {") || line.ends_with("() ("),
    comment: "#",
};

/// Whether a command of the shell may begin behind this.
fn begins_command(before: &str) -> bool {
    let before = before.trim_end();
    let word = before.split_whitespace().next_back().unwrap_or("");
    before.ends_with([';', '{', '(', ')', '&', '|']) || ["", "do", "then", "else"].contains(&word)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Whether a line is in a loop that looks again, as its indentation says.
fn is_in_a_loop(lines: &[&str], place: usize, words: &Words) -> bool {
    if (words.looks_again)(lines[place]) {
        return true;
    }
    let mut depth = indent(lines[place]);
    for line in lines[..place].iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < depth {
            if (words.begins_function)(line) {
                return false;
            }
            if (words.looks_again)(line) {
                return true;
            }
            depth = indent(line);
        }
    }
    false
}

/// The lines that sleep without a reason.
fn without_reason(text: &str, words: &Words) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let is_comment = |line: &str| line.trim_start().starts_with(words.comment);
    let sleeps = |line: &str| !is_comment(line) && (words.sleeps)(line);
    let has_reason = |place: usize| {
        lines[place].contains(&format!(" {} ", words.comment)) || place > 0 && is_comment(lines[place - 1])
    };
    let places = (0..lines.len()).filter(|place| sleeps(lines[*place]));
    places
        .filter(|place| !is_in_a_loop(&lines, *place, words) && !has_reason(*place))
        .map(|place| place + 1)
        .collect()
}

#[test]
fn a_pause_looks_again_or_has_its_reason_beside_it() {
    let rust =
        files(".rs").into_iter().filter(|(path, _)| path.starts_with("tests/") || path.contains("/tests/"));
    let shell = files(".sh").into_iter();
    let all = rust.map(|file| (file, &RUST)).chain(shell.map(|file| (file, &SHELL)));
    let mut found = Vec::new();
    for ((path, text), words) in all {
        if !path.starts_with(OWN_FOLDER) {
            found.extend(without_reason(&text, words).into_iter().map(|line| format!("{path}:{line}")));
        }
    }
    assert!(
        found.is_empty(),
        "these wait for a time. Wait for what is needed, or say why not:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_pause_without_a_reason_is_found_and_the_pause_of_a_loop_is_none() {
    let rust = "fn waits() {\n    start();\n    std::thread::sleep(MOMENT);\n    while !is_ready() {\n        \
                std::thread::sleep(MOMENT);\n    }\n    // It must be seen to do nothing for a while.\n    \
                std::thread::sleep(MOMENT);\n}\n";
    assert_eq!(without_reason(rust, &RUST), [3]);
    let shell = "start_load &\nsleep 2\nuntil is_ready; do sleep 0.1; done\nfor _ in 1 2; do\n    sleep 1\ndone\n\
                 # The timer itself is tested.\nsleep 3\nExecStart=sleep 4\nif true; then sleep 5; fi\n";
    assert_eq!(without_reason(shell, &SHELL), [2, 5, 10]);
}
