//! What a path is and how far it is: which controller it leads to, and its phase.

use std::net::SocketAddr;
use std::sync::Arc;

use super::phase::Phase;
use crate::error::ConnectError;
use crate::namespace::ControllerInfo;
use crate::options::ConnectOptions;
use crate::path_status::PathState;
use crate::request::PathHandle;
use crate::url::{HostName, Url};

/// The life of a path.
#[derive(Debug)]
pub(crate) struct Life {
    pub(super) handle: PathHandle,
    pub(super) options: Arc<ConnectOptions>,
    pub(super) phase: Phase,
    /// What the controller said of itself, once it was ready.
    pub(super) info: Option<ControllerInfo>,
    /// Why it closes, unless that was asked for.
    pub(super) trouble: Option<ConnectError>,
}

impl Life {
    /// It begins.
    pub(super) fn new(handle: PathHandle, options: Arc<ConnectOptions>) -> Self {
        Self { handle, options, phase: Phase::Delay, info: None, trouble: None }
    }

    /// What it is called, and of which controller it is.
    pub(crate) fn handle(&self) -> PathHandle {
        self.handle
    }

    /// What the controller said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// Whether it was ready once.
    pub(crate) fn was_ready(&self) -> bool {
        self.info.is_some()
    }

    /// Whether it has ended for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Whether it is being left, or was given up.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase.is_final()
    }

    /// How it is, for people. `has_failed`: an attempt has, since the last loss.
    pub(super) fn state(&self, has_failed: bool) -> PathState {
        match self.phase {
            Phase::Live => PathState::Ready,
            phase if phase.is_final() => PathState::Leaving,
            phase if phase.is_attaching() && !self.was_ready() && !has_failed => PathState::Attaching,
            _ => PathState::Lost,
        }
    }

    /// Whether it leads to an address. `connected` is the one that it has, if there is one.
    pub(super) fn leads_to(&self, url: &Url, connected: Option<SocketAddr>) -> bool {
        let own = &self.options.url;
        let same = own.host == url.host && own.port == url.port;
        let connected = match (&url.host, connected) {
            (HostName::Address(host), Some(known)) => host.ip() == known.ip() && url.port == known.port(),
            _ => false,
        };
        own.transport == url.transport && (same || connected)
    }
}
