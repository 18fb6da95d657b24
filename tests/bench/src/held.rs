//! Controllers that are attached and idle, held by a process of their own (see [`crate::hold`]).

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::case::Transport;
use crate::place::INITIATOR_CORE;
use crate::service::Service;
use crate::target::{Setup, Target};

/// Depth of each I/O queue.
const DEPTH: u16 = 128;

/// What to attach, each controller for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) transport: Transport,
    pub(crate) controllers: usize,
    /// I/O queues of each.
    pub(crate) queues: u16,
    /// All in one moment, rather than one after the other.
    pub(crate) at_once: bool,
    /// The namespace to use, or all.
    pub(crate) nsid: Option<u32>,
}

/// How long the attachments took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Took {
    /// From the first step of the first to the last step of the last.
    pub(crate) all_ms: f64,
    /// The longest of a single one.
    pub(crate) worst_ms: f64,
    /// The one that was ready last.
    pub(crate) last_ms: f64,
}

/// The process, until this is dropped.
pub(crate) struct Held {
    pub(crate) service: Service,
    pub(crate) took: Took,
    _folder: TempDir,
}

impl Hold {
    /// Connections that it makes, admin queues included.
    pub(crate) fn connections(&self) -> usize {
        self.controllers * (usize::from(self.queues) + 1)
    }

    /// Attaches all of it.
    pub(crate) fn start(&self, setup: &Setup, target: &Target) -> Result<Held> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("ready");
        let mut command = Command::new(std::env::current_exe().context("this program")?);
        command.arg("hold").arg(target.url(setup, self.transport, false, self.nsid));
        let (count, queues) = (self.controllers.to_string(), self.queues.to_string());
        command.args(["--count", &count, "--queues", &queues, "--depth", &DEPTH.to_string()]);
        if self.at_once {
            command.arg("--at-once");
        }
        command.arg("--ready-file").arg(&ready);
        let log = folder.path().join("log");
        let service = Service::start(command, Some(INITIATOR_CORE), &log, || ready.exists())?;
        let took = serde_json::from_slice(&fs::read(&ready)?).context("how long it took")?;
        Ok(Held { service, took, _folder: folder })
    }
}
