//! `ringfab-target ana`: the states of paths.

use std::io::Write;
use std::net::SocketAddr;

use clap::Subcommand;

use super::changes::change_lines;
use super::status::width;
use super::{Place, examples, paths};
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
        AnaCommand::Show => {
            place.show(&Request::AnaShow, output, |answer| paths::table(answer).text(width()))
        }
    }
}
