//! What somebody asks over the socket of an entry, and what is answered.

use ringfab_initiator::Url;
use ringfab_initiator::blocking::Controller;
use serde::{Deserialize, Serialize};

use super::facts::Status;
use crate::paths::beside;

/// What is asked. Who asks for nothing, or for what nobody knows, gets the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// How it is.
    Status,
    /// Reset the controller.
    Reset,
    /// Attach by this address, too.
    AddPath(String),
    /// Leave this path.
    RemovePath(String),
}

const RESET: &str = "reset";
const STATUS: &str = "status";
const ADD_PATH: &str = "path add ";
const REMOVE_PATH: &str = "path remove ";

impl Asked {
    /// What a text asks for.
    pub(super) fn of(text: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(text) else { return Self::Status };
        match (text, text.strip_prefix(ADD_PATH), text.strip_prefix(REMOVE_PATH)) {
            (RESET, ..) => Self::Reset,
            (_, Some(address), _) => Self::AddPath(address.to_owned()),
            (_, _, Some(path)) => Self::RemovePath(path.to_owned()),
            _ => Self::Status,
        }
    }

    /// How it is asked.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Status => STATUS.to_owned(),
            Self::Reset => RESET.to_owned(),
            Self::AddPath(address) => format!("{ADD_PATH}{address}"),
            Self::RemovePath(path) => format!("{REMOVE_PATH}{path}"),
        }
    }

    /// Does what is asked, and says what begins.
    pub(super) fn begin(&self, controller: &Controller) -> Option<Result<Option<String>, String>> {
        match self {
            Self::Status => None,
            Self::Reset => Some(controller.reset().map(|()| None).map_err(|error| error.to_string())),
            Self::AddPath(address) => Some(add_path(controller, address).map(Some)),
            Self::RemovePath(path) => Some(remove_path(controller, path).map(Some)),
        }
    }
}

fn add_path(controller: &Controller, address: &str) -> Result<String, String> {
    let url: Url = address.parse().map_err(|error| format!("{error}"))?;
    let url = beside(&url, &controller.options().url).map_err(|error| error.to_string())?;
    let path = controller.add_path(url).map_err(|error| error.cause.to_string())?;
    Ok(path.to_string())
}

fn remove_path(controller: &Controller, path: &str) -> Result<String, String> {
    let id = path.parse()?;
    controller.remove_path(id).map_err(|error| error.cause.to_string())?;
    Ok(path.to_owned())
}

/// The answer to somebody who asks for a change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Whether it has begun.
    #[serde(default)]
    pub(crate) begun: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    /// The path that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// How it was just before.
    #[serde(flatten)]
    pub(crate) before: Status,
}

impl Answer {
    pub(super) fn new(result: Result<Option<String>, String>, before: Status) -> Self {
        match result {
            Ok(path) => Self { begun: true, refused: None, path, before },
            Err(refused) => Self { begun: false, refused: Some(refused), path: None, before },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood_and_everything_else_asks_for_the_status() {
        let address = "nvme+tcp://192.0.2.1/nqn.2026-11.com.example:a?ns=1";
        let all = [
            Asked::Status,
            Asked::Reset,
            Asked::AddPath(address.to_owned()),
            Asked::RemovePath("2.1".to_owned()),
        ];
        for asked in all {
            assert_eq!(Asked::of(asked.text().as_bytes()), asked);
        }
        for other in [&b""[..], b"reset it", b"path", b"path add", &[0xff, 0xfe]] {
            assert_eq!(Asked::of(other), Asked::Status, "{other:?}");
        }
    }
}
