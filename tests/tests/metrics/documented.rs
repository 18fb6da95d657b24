//! docs/metrics.md and what the target says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ringfab_tests::wait_until;

use crate::target::{HOST, Seen};

/// A metric as a row of the table: its kind, its labels, what it is.
type Rows = BTreeMap<String, (String, String, String)>;

fn documented() -> Rows {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = fs::read_to_string(root.join("docs/metrics.md")).expect("the document");
    let rows = text.lines().filter(|line| line.starts_with("| `ringfab_"));
    let row = |line: &str| {
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let [_, name, kind, labels, help, _] = &cells[..] else { panic!("{line}") };
        (name.clone(), (kind.clone(), labels.clone(), help.clone()))
    };
    rows.map(row).collect()
}

/// The names of a sample's labels: no value of these samples has a quotation mark.
fn labels(sample: &str) -> BTreeSet<String> {
    let Some((_, inside)) = sample.split_once('{') else { return BTreeSet::new() };
    let names = inside.split("=\"").map(|part| part.rsplit([',', '"']).next().unwrap_or(part));
    let names: Vec<&str> = names.collect();
    names[..names.len() - 1].iter().filter(|name| **name != "le").map(|name| (*name).to_owned()).collect()
}

fn said(text: &str) -> Rows {
    let mut rows = Rows::new();
    let mut current = (String::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            current = (name.to_owned(), help.to_owned(), String::new());
        } else if let Some(kind) = line.strip_prefix(&format!("# TYPE {} ", current.0)) {
            current.2 = kind.to_owned();
        } else {
            let all = labels(line).into_iter().collect::<Vec<_>>().join(", ");
            let (name, help, kind) = current.clone();
            rows.insert(name, (kind, all, help));
        }
    }
    rows
}

#[test]
fn every_metric_is_in_the_document_with_its_labels_and_meaning() {
    let target = Seen::start();
    let _host = target.worked();
    let histograms = "ringfab_queue_phase_duration_seconds_bucket";
    let metrics = || target.get("/metrics", "text/plain");
    wait_until("there are samples", || metrics().contains(histograms) && metrics().contains(HOST));
    let (said, documented) = (said(&metrics()), documented());
    for (name, row) in &said {
        assert_eq!(documented.get(name), Some(row), "{name} in docs/metrics.md");
    }
    assert_eq!(said.len(), documented.len(), "every row is a metric");
}

#[test]
fn a_namespace_that_refuses_all_commands_is_not_ready() {
    let target = Seen::start();
    let host = target.worked();
    let value = |name: &str, nsid: u32| {
        let text = target.get("/metrics", "text/plain");
        let label = format!("nsid=\"{nsid}\"");
        let is_this =
            |line: &&str| line.starts_with(&format!("ringfab_namespace_{name}{{")) && line.contains(&label);
        text.lines().find(is_this).and_then(|line| line.chars().last()).expect("a value")
    };
    assert_eq!([1, 2, 3].map(|nsid| value("ready", nsid)), ['1', '1', '0']);
    assert_eq!([1, 2, 3].map(|nsid| value("detached", nsid)), ['0'; 3]);
    let (path, away) = (target.service.path("disk"), target.service.path("away"));
    std::fs::rename(&path, &away).expect("moved away");
    wait_until("it is seen that its path is gone", || value("detached", 2) == '1');
    assert_eq!(value("ready", 2), '1', "it is served all the same");
    std::fs::rename(&away, &path).expect("moved back");
    wait_until("it is seen that it is back", || value("detached", 2) == '0');
    let disk = std::fs::File::options().write(true).open(target.service.path("disk")).expect("the disk");
    disk.set_len(4096).expect("cut off");
    wait_until("it is noticed", || host.read_at(2, 0, &mut [0; 512]).is_err());
    wait_until("it needs to be reopened", || value("needs_reopen", 2) == '1');
    assert!(host.read_at(2, 0, &mut [0; 512]).is_err());
    assert_eq!([1, 2, 3].map(|nsid| value("ready", nsid)), ['1', '0', '0']);
}
