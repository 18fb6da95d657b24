//! Limits on the command line.

use clap::Args;
use ringfab_base::counted;
use serde_json::{Map, Value};

use super::{amount, text};

/// What may be done in a second. Without any of these, nothing is limited.
#[derive(Debug, Args)]
pub struct LimitArguments {
    /// Commands that read in a second.
    #[arg(long, value_name = "N")]
    read_iops: Option<u64>,
    /// Commands that change blocks in a second.
    #[arg(long, value_name = "N")]
    write_iops: Option<u64>,
    /// Bytes that are read in a second, for instance 100MiB.
    #[arg(long, value_name = "SIZE")]
    read_bytes_per_s: Option<String>,
    /// Bytes that are written in a second, for instance 100MiB.
    #[arg(long, value_name = "SIZE")]
    write_bytes_per_s: Option<String>,
    /// How much of a limit may be used at once after a pause, in milliseconds; 50 by default.
    #[arg(long, value_name = "N")]
    burst_ms: Option<u64>,
}

impl LimitArguments {
    /// The table `limits`, as it would stand in a file.
    pub(super) fn into_table(self) -> Map<String, Value> {
        let all = [
            ("read_iops", self.read_iops.map(Value::from)),
            ("write_iops", self.write_iops.map(Value::from)),
            ("read_bytes_per_s", self.read_bytes_per_s.map(Value::from)),
            ("write_bytes_per_s", self.write_bytes_per_s.map(Value::from)),
            ("burst_ms", self.burst_ms.map(Value::from)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// What there is to say of a namespace that is limited.
pub(super) fn namespace_lines(namespace: &Value) -> String {
    let [nsid, subsystem] = ["nsid", "subsystem"].map(|key| text(namespace, key));
    let mut lines = String::new();
    if let Some(limits) = words(&namespace["limits"]) {
        lines.push_str(&format!("  limit of namespace {nsid} of {subsystem}: {limits}\n"));
    }
    for (host, limits) in namespace["host_limits"].as_object().into_iter().flatten() {
        let limits = words(limits).unwrap_or_default();
        lines.push_str(&format!("  limit of {host} on namespace {nsid} of {subsystem}: {limits}\n"));
    }
    lines
}

/// What there is to say of a host with shares or limits.
pub(super) fn host_line(host: &Value) -> String {
    let limits = words(&host["limits"]).map_or_else(String::new, |limits| format!(", at most {limits}"));
    format!("  {} has {}{limits}\n", text(host, "nqn"), counted(text(host, "shares"), "share"))
}

/// Limits in words; none where nothing is limited.
fn words(limits: &Value) -> Option<String> {
    let amounts = [
        ("read_iops", amount::count as fn(u64) -> String, " reads/s"),
        ("write_iops", amount::count, " writes/s"),
        ("read_bytes_per_s", amount::bytes, " read/s"),
        ("write_bytes_per_s", amount::bytes, " written/s"),
    ];
    let one = |(key, amount, unit): &(&str, fn(u64) -> String, &str)| {
        limits[*key].as_u64().map(|value| amount(value) + unit)
    };
    let all: Vec<String> = amounts.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_said_in_words() {
        let namespace = json!({
            "nsid": 2, "subsystem": "nqn.x",
            "limits": { "read_iops": 1000, "write_iops": null, "write_bytes_per_s": 100 << 20, "burst_ms": 50 },
            "host_limits": { "nqn.h": { "write_iops": 7 } },
        });
        assert_eq!(
            namespace_lines(&namespace),
            "  limit of namespace 2 of nqn.x: 1000 reads/s, 100 MiB written/s\n  limit of nqn.h on namespace 2 of \
             nqn.x: 7 writes/s\n"
        );
        assert_eq!(namespace_lines(&json!({ "nsid": 2, "limits": null, "host_limits": {} })), "");
        let host = json!({ "nqn": "nqn.h", "shares": 200, "limits": null });
        assert_eq!(host_line(&host), "  nqn.h has 200 shares\n");
        let host = json!({ "nqn": "nqn.h", "shares": 100, "limits": { "read_bytes_per_s": 1 << 30 } });
        assert_eq!(host_line(&host), "  nqn.h has 100 shares, at most 1 GiB read/s\n");
    }
}
