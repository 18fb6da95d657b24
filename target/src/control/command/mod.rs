//! The commands that manage a running target.

mod amount;
mod configure;
pub mod examples;
mod keys;
mod limits;
mod namespace;
mod save;
mod status;
mod table;
mod tables;
mod top;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ringfab_base::{shell_quoted, visible};
use ringfab_process::log;
use ringfab_process::terminal::{self, Stream};
use serde_json::Value;

pub use configure::{
    HostCommand, ListenerCommand, LogArguments, ReloadArguments, SubsystemCommand, host, listener, log,
    reload, subsystem,
};
pub use namespace::{NamespaceCommand, namespace};
pub use save::{ConfigArguments, config};
pub use status::status;
pub use top::{TopArguments, top};

use super::client::{AskError, ask};
use super::request::Request;
use crate::config::CONTROL_SOCKET;

/// How to reach the target.
#[derive(Debug, Args)]
pub struct Place {
    /// The control socket of the target.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET, global = true)]
    socket: PathBuf,
    /// Print JSON for programs.
    #[arg(long, global = true)]
    json: bool,
}

impl Place {
    /// The option for another command to the same target, where it needs one.
    fn option(&self) -> String {
        if self.socket.as_os_str() == CONTROL_SOCKET {
            return String::new();
        }
        format!(" --socket {}", shell_quoted(&self.socket.to_string_lossy()))
    }

    /// Asks.
    fn ask(&self, request: &Request) -> Result<Value, AskError> {
        ask(&self.socket, request)
    }

    /// Asks, and prints the answer: as JSON, or as `text` has it.
    fn show(
        &self,
        request: &Request,
        output: &mut impl Write,
        text: impl FnOnce(&Value) -> String,
    ) -> Result<(), AskError> {
        let answer = ask(&self.socket, request)?;
        if !self.json {
            tell_warnings(&answer);
        }
        let text = match self.json {
            true => format!("{answer}\n"),
            false => terminal::visible_text(Stream::Out, &text(&answer)),
        };
        output.write_all(text.as_bytes()).map_err(AskError::Output)
    }
}

/// What will not work as meant, for people.
fn tell_warnings(answer: &Value) {
    for warning in list(answer, "warnings").iter().filter_map(Value::as_str) {
        log::say(&format!("warning: {}", visible(warning)));
    }
    log::flush();
}

/// A path as the target, whose working directory is another one, needs it.
///
/// # Errors
/// When the working directory cannot be had, or the path is no text.
fn absolute(path: &std::path::Path) -> io::Result<String> {
    let path = std::path::absolute(path)?;
    path.into_os_string().into_string().map_err(|_| io::Error::other("the path is not UTF-8"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A field as text, without the quotes of a string: names, with escapes for what nobody sees in them.
fn text(value: &Value, key: &str) -> String {
    value[key].as_str().map_or_else(|| value[key].to_string(), |text| visible(text).to_string())
}
