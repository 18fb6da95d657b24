//! What a change of the configuration has changed, in lines.

use serde_json::Value;

use super::{list, text};

/// What is different, a line each.
pub(super) fn change_lines(answer: &Value) -> String {
    let changes = list(answer, "changes");
    if changes.is_empty() {
        return "nothing is different\n".to_owned();
    }
    changes.iter().map(|change| change_line(change) + "\n").collect()
}

/// One change of an answer.
pub(super) fn change_line(change: &Value) -> String {
    let sign = match change["kind"].as_str() {
        Some("added") => '+',
        Some("removed") => '-',
        _ => '~',
    };
    let [what, detail] = ["what", "detail"].map(|key| text(change, key));
    let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
    let restart = if change["needs_restart"] == true { " (needs a restart)" } else { "" };
    format!("{sign} {what}{detail}{restart}")
}
