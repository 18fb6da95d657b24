//! `ringfab-target ana`: the states of paths.

use std::io::Write;
use std::net::SocketAddr;

use clap::Subcommand;
use ringfab_process::table::Column;
use serde_json::Value;

use super::changes::change_lines;
use super::status::width;
use super::table::{Cell, Table};
use super::{Place, examples, list, text};
use crate::control::client::AskError;
use crate::control::request::Request;

/// What to do with access groups.
#[derive(Debug, Subcommand)]
pub enum AnaCommand {
    /// Put an access group into another state, by some ways or by all.
    #[command(after_help = examples::ANA_SET)]
    Set {
        /// Its identifier, 1 to 128; namespaces of which nothing is said are in 1.
        group: u32,
        /// The state.
        #[arg(value_parser = ["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"])]
        state: String,
        /// NQN of the subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
        /// By this way only: the address of a listener with its port, or a local address of one on all addresses. May
        /// be given several times.
        #[arg(long, value_name = "ADDRESS")]
        listener: Vec<SocketAddr>,
    },
    /// Show the states of all access groups by all ways.
    #[command(after_help = examples::ANA_SHOW)]
    Show,
}

/// Changes or shows states.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn ana(place: &Place, command: AnaCommand, output: &mut impl Write) -> Result<(), AskError> {
    match command {
        AnaCommand::Set { group, state, subsystem, listener } => {
            let request = Request::AnaSet { subsystem, group, state, listeners: listener };
            place.show(&request, output, change_lines)
        }
        AnaCommand::Show => place.show(&Request::AnaShow, output, |answer| table(answer).text(width())),
    }
}

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
