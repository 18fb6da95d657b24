//! The states of paths, as `status` and `ana show` print them.

use ringfab_process::table::Column;
use serde_json::Value;

use super::table::{Cell, Table};
use super::{list, text};

/// The states of access groups, of an answer that lists them.
pub(super) fn table(answer: &Value) -> Table {
    let mut table = Table::new(&[
        Column::name("SUBSYSTEM").spare(1),
        Column::number("GROUP"),
        Column::text("WAY"),
        Column::text("STATE"),
        Column::text("ON LOST DISK").spare(2),
        Column::text("NAMESPACES").spare(3),
    ]);
    for one in list(answer, "access_groups") {
        let nsids: Vec<String> = list(one, "namespaces").iter().map(ToString::to_string).collect();
        let [subsystem, group, listener, on_lost_disk] =
            ["subsystem", "group", "listener", "on_lost_disk"].map(|key| text(one, key));
        table.rows.push(vec![
            Cell::text(subsystem),
            Cell::text(group),
            Cell::text(listener),
            Cell::text(state(one)),
            Cell::text(on_lost_disk),
            Cell::text(if nsids.is_empty() { "-".to_owned() } else { nsids.join(",") }),
        ]);
    }
    table
}

/// The state in words, with what makes it another than the configured one.
fn state(one: &Value) -> String {
    let [state, configured] = ["state", "configured"].map(|key| text(one, key));
    match (one["draining"] == true, state == configured) {
        (true, _) => format!("{state} (draining)"),
        (false, true) => state,
        (false, false) => format!("{state} (disk gone)"),
    }
}

/// A line for each group that is not simply optimized.
pub(super) fn lines(answer: &Value) -> String {
    let is_told = |one: &&Value| one["state"] != "optimized" || one["draining"] == true;
    let line = |one: &Value| {
        let [group, subsystem, listener] = ["group", "subsystem", "listener"].map(|key| text(one, key));
        format!("  access group {group} of {subsystem} is {} by {listener}\n", state(one))
    };
    list(answer, "access_groups").iter().filter(is_told).map(line).collect()
}
