//! Commands of `ringfab` that administrators know from nvme-cli.

use std::process::{Command, Output};

use ringfab_tests::{TestTarget, program};
use serde_json::Value;

const MIB: usize = 1 << 20;
const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\nblock_bytes = 4096\n";

fn ringfab(target: &TestTarget, command: &str, more: &[&str]) -> Output {
    let url = target.url("").to_string();
    Command::new(program("ringfab")).args([command, &url]).args(more).output().expect("it runs")
}

fn said(target: &TestTarget, command: &str, more: &[&str]) -> String {
    let output = ringfab(target, command, more);
    assert!(output.status.success(), "{command} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(target: &TestTarget, command: &str, more: &[&str]) -> Value {
    serde_json::from_str(&said(target, command, &[more, &["--json"]].concat())).expect("JSON")
}

/// The exit code, and what was complained of.
fn refused(target: &TestTarget, command: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = ringfab(target, command, more);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn trim_takes_what_was_named_and_nothing_else_and_only_where_it_was_confirmed() {
    let target = TestTarget::start(MEMORY);
    let fill = || target.attach().write_at(1, 0, &vec![7; MIB], false).expect("written");
    let zeroes = || {
        let mut bytes = vec![1; MIB];
        target.attach().read_at(1, 0, &mut bytes).expect("read");
        let blocks = bytes.chunks(4096).enumerate();
        let zero = blocks.filter(|(_, block)| block.iter().all(|byte| *byte == 0));
        zero.map(|(number, _)| number).collect::<Vec<_>>()
    };
    fill();
    let (code, why) = refused(&target, "trim", &["--all"]);
    assert!(code == Some(2) && why.contains("--destroy-data 1"), "{why}");
    let (code, why) = refused(&target, "trim", &["--all", "--destroy-data", "2"]);
    assert!(code == Some(2) && why.contains("not with"), "{why}");
    assert_eq!(refused(&target, "trim", &["--force"]).0, Some(2), "nothing is named");
    for (wrong, complaint) in [
        (&["--offset", "100", "--length", "4096"][..], "multiples of a block"),
        (&["--offset", "4096", "--length", "2MiB"], "do not fit"),
        (&["--slbs", "5", "--blocks", "252"], "do not fit"),
    ] {
        let (code, why) = refused(&target, "trim", &[wrong, &["--force"]].concat());
        assert!(code == Some(1) && why.contains(complaint), "{wrong:?}: {why}");
    }
    assert!(zeroes().is_empty());
    let done = json(&target, "trim", &["--offset", "8KiB", "--length", "12KiB", "--destroy-data", "1"]);
    assert_eq!((&done["bytes"], &done["nsid"]), (&Value::from(12_288), &Value::from(1)));
    assert_eq!(zeroes(), [2, 3, 4]);
    said(&target, "trim", &["-s", "10,20", "-b", "1,2", "-f"]);
    assert_eq!(zeroes(), [2, 3, 4, 10, 20, 21]);
    fill();
    said(&target, "trim", &["--offset", "1020KiB", "--zeroout", "--force"]);
    assert_eq!(zeroes(), [255]);
    assert_eq!(said(&target, "trim", &["--all", "--force"]).trim(), "1 MiB of namespace 1 trimmed");
    assert_eq!(zeroes().len(), 256);
}

#[test]
fn features_are_shown_one_by_one_and_all() {
    let target = TestTarget::start(MEMORY);
    let all = json(&target, "get-feature", &[]);
    let ids = all["features"].as_array().expect("a list").iter();
    let ids: Vec<u64> = ids.map(|feature| feature["feature_id"].as_u64().expect("a number")).collect();
    assert!([1, 2, 4, 5, 6, 7, 0x0b, 0x0e, 0x0f, 0x81].iter().all(|id| ids.contains(id)), "{ids:?}");
    let text = said(&target, "get-feature", &["-f", "0x07", "-H"]);
    assert!(text.starts_with("0x07 (Number of Queues): "), "{text}");
    assert!(text.contains("I/O submission queues"), "{text}");
    let supported = json(&target, "get-feature", &["-f", "5", "-s", "3"]);
    assert_eq!(supported["features"][0]["fields"]["namespace_specific"], true, "{supported}");
    let (code, why) = refused(&target, "get-feature", &["-f", "3"]);
    assert!(code == Some(1) && why.contains("Invalid Field"), "{why}");
    assert_eq!(refused(&target, "get-feature", &["-f", "300"]).0, Some(2));
}

#[test]
fn log_pages_and_bits_are_shown_for_people_and_programs() {
    let target = TestTarget::start(MEMORY);
    assert!(
        said(&target, "error-log", &[]).starts_with("no errors; this command has a controller of its own")
    );
    assert_eq!(json(&target, "error-log", &["-e", "2"])["errors"], Value::Array(Vec::new()));
    assert!(said(&target, "changed-ns-list-log", &[]).contains("no namespace"));
    let groups = said(&target, "ana-log", &[]);
    let row: Vec<_> = groups.lines().nth(1).expect("a group").split_whitespace().collect();
    assert_eq!(row, ["1", "optimized", "0", "1"], "{groups}");
    assert_eq!(json(&target, "changed-ns", &[])["too_many"], false);
    let effects = json(&target, "effects-log", &[]);
    let find = |queue: &str, name: &str| {
        let commands = effects[queue].as_array().expect("a list");
        commands.iter().find(|command| command["name"] == name).expect("the command").clone()
    };
    assert_eq!(find("io", "Write")["effects"]["lbcc"], true);
    assert_eq!(find("admin", "Get LBA Status")["opcode"], 0x86);
    let text = said(&target, "effects", &["-H"]);
    assert!(text.contains("Dataset Management") && text.contains("lbcc"), "{text}");
    let text = said(&target, "id-ctrl", &["-H"]);
    assert!(text.contains("dataset management") && text.contains("get lba status"), "{text}");
    let document = json(&target, "id-ctrl", &["-H"]);
    assert_eq!(document["oncs"]["write_zeroes"], true);
    assert!(json(&target, "id-ctrl", &[])["oncs"].is_u64(), "as before");
    let text = said(&target, "id-ns", &["-H"]);
    assert!(text.contains("blocks of 4 KiB") && text.contains("in use"), "{text}");
}
