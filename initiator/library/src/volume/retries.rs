//! Commands that were answered so that another try may succeed: [`crate::retry`] has the table.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;

use super::{NamedPath, Volumes};
use crate::command::Command;
use crate::error::IoError;
use crate::path::{NOTICE_AGAIN, NOTICE_FIRST, Path, seconds};
use crate::resources::Resources;
use crate::retry::{Verdict, judge, path_limit};

impl Volumes {
    /// A path has answered a command with something else than success: it gets another try, or that is its end.
    pub(crate) fn refused(
        &mut self,
        resources: &mut Resources,
        from: NamedPath<'_>,
        mut command: Box<Command>,
        status: Status,
    ) {
        if command.aborted && status.code() == Status::ABORT_REQUESTED {
            return resources.done(self.id, command, Err(IoError::TimedOut));
        }
        let NamedPath { id, path } = from;
        let verdict = judge(status);
        let policy = self.options.reconnect;
        let mut elsewhere = false;
        if verdict == Verdict::WaitForPath {
            let group = self.subsystem.group_of(&command);
            if self.path_is_refused(resources.now(), id, group, status) {
                path.access_is_news(resources);
            }
            // Paths that refuse it in turn get it once each without a delay.
            let line = self.waiting.lines.of_group(group);
            let chooser = self.waiting.lines.chooser(line);
            elsewhere = !chooser.is_closed() && !chooser.has(id.index());
            elsewhere &= command.tries.sent() as usize <= self.records.len();
        }
        if let Some(delay) = command.tries.next(verdict, status, path.association.retry_delays(), &policy) {
            if elsewhere {
                tracing::debug!(peer = path.peer(), %status, "another path is taken");
                path.liveness.put_off();
                return self.waiting.put_back(&self.subsystem, vec![command]);
            }
            tracing::debug!(peer = path.peer(), %status, ?delay, sent = command.tries.sent(), "tried again");
            self.log_delayed(resources.now(), path, &command, status, verdict, delay);
            self.waiting.delay(id, command, resources.now() + delay);
            return path.liveness.put_off();
        }
        let error = IoError::final_status(verdict, status, command.tries);
        resources.done(self.id, command, Err(error));
    }

    /// Logs that a command waits for another try, where that takes long.
    fn log_delayed(
        &mut self,
        now: Time,
        path: &Path,
        command: &Command,
        status: Status,
        verdict: Verdict,
        delay: Duration,
    ) {
        let long = verdict == Verdict::WaitForPath || delay >= NOTICE_FIRST;
        if !long || now < self.delayed_logged {
            return;
        }
        self.delayed_logged = now + NOTICE_AGAIN;
        let until = match path_limit(status, path.association.retry_delays(), &self.options.reconnect) {
            _ if verdict == Verdict::Retry => format!("tried again in {}", seconds(delay)),
            Some(limit) => format!("tried again for {} at most", seconds(limit)),
            None => "tried again without an end".to_owned(),
        };
        let name = status.name_in_nvm().map_or_else(|| status.to_string(), str::to_owned);
        tracing::warn!(
            "{}: namespace {}: {name}; commands are {until}",
            path.peer(),
            command.entry.nsid.get()
        );
    }
}
