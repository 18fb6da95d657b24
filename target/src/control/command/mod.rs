//! The commands that manage a running target.

mod access;
mod amount;
mod changes;
mod configure;
pub mod examples;
mod freeze;
mod keys;
mod limits;
mod namespace;
mod paths;
mod save;
mod status;
mod table;
mod tables;
mod top;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ringfab_base::{counted, shell_quoted, visible};
use ringfab_process::log;
use ringfab_process::terminal::{self, Stream};
use serde_json::Value;

pub use access::{AnaCommand, ana};
pub use configure::{
    HostCommand, ListenerCommand, LogArguments, ReloadArguments, SubsystemCommand, host, listener, log,
    reload, subsystem,
};
pub use freeze::{FreezeArguments, freeze};
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
        output.write_all(text.as_bytes()).map_err(AskError::Output)?;
        if request.is_left_out_of_file() && !self.json {
            self.tell_unsaved();
        }
        Ok(())
    }

    /// Says that what was changed lives only as long as nobody reads the file again, and what keeps it.
    fn tell_unsaved(&self) {
        // The change is made. Whoever cannot ask any more has been told so by its answer.
        let Ok(configured) = self.ask(&Request::Config) else { return };
        let socket = match self.socket.as_os_str() == CONTROL_SOCKET {
            true => String::new(),
            false => format!(" --socket {}", shell_quoted(&self.socket.to_string_lossy())),
        };
        if let Some(note) = unsaved_note(&configured, &socket) {
            log::say(&format!("note: {note}"));
            log::flush();
        }
    }
}

/// What is said of changes that are in no file, if there are any. `socket` is the option that names the target.
fn unsaved_note(configured: &Value, socket: &str) -> Option<String> {
    let file = configured["file"].as_str()?;
    let unsaved = list(configured, "unsaved").len();
    let (are, them) = match unsaved {
        0 => return None,
        1 => ("is", "it"),
        _ => ("are", "them"),
    };
    let file = visible(file);
    Some(format!(
        "{} {are} not in {file}, so the next reload or restart takes {them} back; `ringfab-target config \
         --save{socket}` keeps {them}",
        counted(unsaved, "change")
    ))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_that_is_in_no_file_is_told_with_what_keeps_it() {
        let note = |file: Value, unsaved: &[Value]| {
            unsaved_note(&json!({ "file": file, "unsaved": unsaved }), " --socket /run/s")
        };
        let change = json!({ "kind": "changed", "what": "hosts of nqn.x", "detail": "" });
        assert_eq!(note(json!("/etc/t.toml"), &[]), None);
        assert_eq!(note(Value::Null, std::slice::from_ref(&change)), None, "nothing keeps it");
        let one = note(json!("/etc/t.toml"), std::slice::from_ref(&change)).expect("a note");
        assert_eq!(
            one,
            "1 change is not in /etc/t.toml, so the next reload or restart takes it back; `ringfab-target config \
             --save --socket /run/s` keeps it"
        );
        let two = note(json!("/etc/t.toml"), &[change.clone(), change]).expect("a note");
        assert!(two.starts_with("2 changes are not in") && two.ends_with("keeps them"), "{two}");
    }
}
