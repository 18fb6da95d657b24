//! `ringfab bench compare`: two results side by side.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use ringfab_base::VisiblePath as _;
use ringfab_process::table::Column;
use serde_json::{Value, json};

use crate::context::Context;
use crate::output;

/// No result is longer.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What to compare: results of `ringfab bench --json`.
#[derive(Args, Clone)]
pub struct CompareArgs {
    /// The first result
    a: PathBuf,
    /// The second one; the ratio is this one to the first
    b: PathBuf,
}

/// What is compared: where it is in a result, its name, and its unit.
const FIGURES: [(&str, &str, &str); 21] = [
    ("/iops", "rate", "IOPS"),
    ("/mib_per_s", "rate", "MiB/s"),
    ("/read/iops", "read", "IOPS"),
    ("/read/latency_us/mean", "read mean", "us"),
    ("/read/latency_us/stdev", "read stdev", "us"),
    ("/read/latency_us/p50", "read p50", "us"),
    ("/read/latency_us/p90", "read p90", "us"),
    ("/read/latency_us/p99", "read p99", "us"),
    ("/read/latency_us/p99.9", "read p99.9", "us"),
    ("/read/latency_us/p99.99", "read p99.99", "us"),
    ("/read/latency_us/max", "read max", "us"),
    ("/write/iops", "write", "IOPS"),
    ("/write/latency_us/mean", "write mean", "us"),
    ("/write/latency_us/stdev", "write stdev", "us"),
    ("/write/latency_us/p50", "write p50", "us"),
    ("/write/latency_us/p99", "write p99", "us"),
    ("/write/latency_us/p99.9", "write p99.9", "us"),
    ("/write/latency_us/max", "write max", "us"),
    ("/cpu/user_us_per_io", "processor, user", "us per I/O"),
    ("/cpu/system_us_per_io", "processor, system", "us per I/O"),
    ("/copied/per_byte", "copied", "bytes per byte"),
];

/// What has to be the same, or it is said.
const LOADS: [&str; 8] =
    ["rw", "read_percent", "bs", "outstanding", "queues", "numjobs", "size", "interrupted"];

/// A figure of both results.
struct Row {
    name: &'static str,
    unit: &'static str,
    a: f64,
    b: f64,
}

impl Row {
    /// The second to the first; none where there is nothing to divide by.
    fn ratio(&self) -> Option<f64> {
        (self.a > 0.0).then(|| self.b / self.a)
    }
}

/// Compares two results, and prints that.
pub(super) fn run(args: &CompareArgs, context: &Context) -> Result<()> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let (rows, differences) = (rows(&a, &b), differences(&a, &b));
    output::either(context.json, || document(&rows, &differences), || lines(&rows, &differences))
}

fn read(path: &Path) -> Result<Value> {
    let shown = path.visible();
    let file = File::open(path).with_context(|| format!("open {shown}"))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(|| format!("read {shown}"))?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "{shown} is too long for a result");
    let no_result = |why: String| anyhow!("{shown} is not a result of `ringfab bench --json`: {why}");
    let value: Value = serde_json::from_str(&text).map_err(|error| no_result(error.to_string()))?;
    for (pointer, ..) in &FIGURES[..2] {
        if !value.pointer(pointer).is_some_and(Value::is_number) {
            bail!(no_result(format!("it has no {}", pointer.trim_start_matches('/'))));
        }
    }
    Ok(value)
}

/// The figures that both have. A direction without I/O has none.
fn rows(a: &Value, b: &Value) -> Vec<Row> {
    let figure = |value: &Value, pointer: &str| {
        let direction = pointer.split('/').nth(1).unwrap_or_default();
        let idle = value[direction]["count"] == 0;
        value.pointer(pointer).and_then(Value::as_f64).filter(|_| !idle)
    };
    let row = |(pointer, name, unit): &(&str, &'static str, &'static str)| {
        Some(Row { name, unit, a: figure(a, pointer)?, b: figure(b, pointer)? })
    };
    FIGURES.iter().filter_map(row).collect()
}

/// What makes the results differ that is not speed.
fn differences<'a>(a: &'a Value, b: &'a Value) -> Vec<(&'static str, &'a Value, &'a Value)> {
    LOADS.into_iter().map(|key| (key, &a[key], &b[key])).filter(|(_, a, b)| a != b).collect()
}

fn document(rows: &[Row], differences: &[(&str, &Value, &Value)]) -> Value {
    let row = |row: &Row| json!({ "figure": row.name, "unit": row.unit, "a": row.a, "b": row.b, "ratio": row.ratio() });
    let difference = |(key, a, b): &(&str, &Value, &Value)| json!({ "key": key, "a": a, "b": b });
    json!({
        "figures": rows.iter().map(row).collect::<Vec<_>>(),
        "differences": differences.iter().map(difference).collect::<Vec<_>>(),
    })
}

fn lines(rows: &[Row], differences: &[(&str, &Value, &Value)]) -> String {
    let cells = |row: &Row| {
        let ratio = row.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        vec![row.name.to_owned(), number(row.a), number(row.b), ratio, row.unit.to_owned()]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let columns = ["", "A", "B", "B/A", "unit"].map(Column::text);
    let mut text = output::table(&columns, &rows);
    for (key, a, b) in differences {
        text.push_str(&format!("\nThe loads differ: {key} is {a} in A, and {b} in B."));
    }
    text
}

fn number(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(iops: f64, p50: f64, bs: u32) -> Value {
        json!({
            "rw": "randread", "bs": bs, "iops": iops, "mib_per_s": iops / 256.0,
            "read": { "count": 7, "iops": iops, "latency_us": { "p50": p50 } },
            "write": { "count": 0, "iops": 0, "latency_us": { "p50": 0 } },
        })
    }

    #[test]
    fn figures_that_both_have_stand_side_by_side_with_their_ratio() {
        let (a, b) = (result(1000.0, 8.0, 4096), result(1500.0, 6.0, 8192));
        let (rows, differences) = (rows(&a, &b), differences(&a, &b));
        let text = lines(&rows, &differences);
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).expect(begin).to_owned();
        let words = |begin| line(begin).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words("rate"), ["rate", "1000", "1500", "1.500", "IOPS"]);
        assert_eq!(words("read p50"), ["read", "p50", "8.000", "6.000", "0.750", "us"]);
        assert!(!text.contains("write"), "{text}");
        assert!(text.ends_with("The loads differ: bs is 4096 in A, and 8192 in B."), "{text}");
        assert_eq!(document(&rows, &differences)["figures"][0]["ratio"], 1.5);
    }

    #[test]
    fn what_is_no_result_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.json");
        for (text, why) in [("{", "EOF while parsing"), ("{}", "it has no iops"), ("[1]", "it has no iops")] {
            std::fs::write(&file, text).expect("a file");
            let error = read(&file).expect_err("no result").to_string();
            assert!(
                error.contains("a.json is not a result of `ringfab bench --json`") && error.contains(why),
                "{error}"
            );
        }
        assert!(read(&folder.path().join("none")).expect_err("no file").to_string().starts_with("open "));
    }
}
