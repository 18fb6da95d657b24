//! What a host has of a controller from a connection to its end (Base 2.0, section 1.5.5): queues, the sequence of
//! commands that runs on them, and the keep-alive. The path decides when one begins and ends.

use std::sync::Arc;

use ringfab_memory::Pool;
use ringfab_reactor::Time;

use super::connector::Connector;
use super::keep_alive::KeepAlive;
use super::queues::Queues;
use super::reports::Reports;
use super::sequence::{Action, Context, Sequence};
use crate::command::{Command, Owner};
use crate::options::ConnectOptions;
use crate::path_status::PathStatus;
use crate::resources::Resources;
use crate::retry::RetryDelays;
use crate::url::HostName;

/// The association with a controller, or this engine's part of it.
#[derive(Debug)]
pub(crate) struct Association {
    pub(super) queues: Queues,
    pub(super) sequence: Sequence,
    pub(super) keep_alive: KeepAlive,
}

impl Association {
    /// None yet.
    pub(super) fn new(options: &Arc<ConnectOptions>, connector: Connector) -> Self {
        Self {
            sequence: Sequence::new(options.clone(), connector.share()),
            queues: Queues::new(connector, &options.timeouts),
            keep_alive: KeepAlive::default(),
        }
    }

    /// What the controller says about trying again.
    pub(crate) fn retry_delays(&self) -> &RetryDelays {
        &self.sequence.facts().retry_delays
    }

    /// The other addresses of its name, once it is connected to one, if each is to be a path.
    pub(crate) fn keep_address(&mut self) -> Vec<HostName> {
        self.queues.connector.keep_address()
    }

    /// Commands of the caller without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.queues.outstanding()
    }

    /// Has the sequence decide what is next.
    pub(super) fn decide(
        &mut self,
        now: Time,
        pool: &Pool,
        reports: &mut Reports,
        decide: impl FnOnce(&mut Sequence, &mut Context<'_>) -> Action,
    ) -> Action {
        let mut context = Context {
            now,
            pool,
            io: &self.queues.io,
            secured: self.queues.connector.psks().is_some(),
            replacement: None,
            keep_alive: &mut self.keep_alive,
            reports,
        };
        let action = decide(&mut self.sequence, &mut context);
        context.replacement.take().into_iter().for_each(|psk| self.queues.connector.secure(psk));
        self.queues.admin.set_aborts_max(self.sequence.facts().controller.aborts_max);
        action
    }

    /// Keeps a command whose answer does not count: I/O for a replay, an admin command to be told of its end.
    pub(super) fn keep(&mut self, reports: &mut Reports, command: Option<Box<Command>>) {
        let Some(command) = command else { return };
        match command.owner {
            Owner::Io(_) => reports.give_back(command),
            Owner::Admin(_) => self.queues.admin.keep(command),
            Owner::Sequence => self.sequence.take_back(*command),
            Owner::KeepAlive | Owner::AsyncEvent | Owner::Abort => {}
            Owner::Reset(_) | Owner::ResetLog | Owner::LostHostLog => {}
        }
    }

    /// Ends all connections, in order or at once.
    pub(super) fn close(&mut self, resources: &mut Resources, reports: &mut Reports, orderly: bool) {
        self.sequence.stop();
        self.keep_alive = KeepAlive::default();
        for command in self.queues.close(resources, orderly) {
            self.keep(reports, Some(command));
        }
    }

    /// When it has something to do.
    pub(super) fn due(&self) -> Time {
        self.queues.due().min(self.keep_alive.due())
    }

    /// What its queues have done, for people.
    pub(super) fn count(&self, status: &mut PathStatus) {
        (status.commands, status.bytes) = self.queues.io.counters();
        status.outstanding = self.queues.io.outstanding();
        status.address = self.queues.connector.known_address();
    }
}
