//! Lines of the log as a parser of logfmt takes them that is not ours (tests/scripts/logfmt.go).

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{have, not_run};

/// A line: names, and values where they have one.
pub type Pairs = Vec<(String, Option<String>)>;

/// Where Debian has the parser.
const PARSER: &str = "/usr/share/gocode/src/github.com/go-logfmt/logfmt";

/// The lines of a log that are events. What programs say to whoever started them has no time, and is prose.
pub fn events(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()) && line.contains("Z "))
        .collect()
}

/// What the parser makes of lines. None, which is said, where it is not installed.
///
/// # Panics
/// When it takes one of them for something else than logfmt.
pub fn parsed(lines: &[&str]) -> Option<Vec<Pairs>> {
    if !have("go") || !Path::new(PARSER).exists() {
        not_run("lines of the log in a parser of logfmt: Go and its package logfmt are not installed");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let parser = folder.path().join("parser");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/logfmt.go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&parser).arg(source);
    build.envs([("GO111MODULE", "off"), ("GOPATH", "/usr/share/gocode"), ("GOFLAGS", "")]);
    let built = build.env("GOCACHE", folder.path().join("cache")).output().expect("go runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut child = Command::new(&parser);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("the parser runs");
    let mut input = child.stdin.take().expect("piped");
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    // One that refuses a line reads no more.
    let _refused = writer.join().expect("the writer");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let answers = String::from_utf8(output.stdout).expect("text");
    let all: Vec<Pairs> =
        answers.lines().map(|line| serde_json::from_str(line).expect("a list of pairs")).collect();
    assert!(output.status.success(), "{said}{:?}", lines.get(all.len()));
    assert_eq!(all.len(), lines.len());
    Some(all)
}

/// Each line of these is logfmt in which no value has lost a part: after the first field there are fields only, but for
/// the count of events that were folded.
///
/// # Panics
/// When that is not so.
pub fn assert_whole(lines: &[&str]) {
    for (pairs, line) in parsed(lines).unwrap_or_default().iter().zip(lines) {
        let fields =
            pairs.iter().skip_while(|(_, value)| value.is_none()).take_while(|(name, _)| name != "…");
        for (name, value) in fields {
            assert!(value.is_some(), "{name} stands alone in {line}");
        }
    }
}

/// The value of a field.
pub fn value<'a>(pairs: &'a [(String, Option<String>)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(one, _)| one == name).and_then(|(_, value)| value.as_deref())
}
