//! What the service manager is told. Without one, all of this does nothing.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The least time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Tells the service manager.
#[derive(Debug)]
pub(super) struct Notifier {
    /// Half of what the service manager waits for, so that one late tick does no harm.
    watchdog: Option<Duration>,
    watchdog_at: Instant,
    status: String,
    status_at: Instant,
}

impl Notifier {
    /// All listeners are bound.
    pub(super) fn ready(status: &str) -> Self {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
        let now = Instant::now();
        Self {
            watchdog: sd_notify::watchdog_enabled().map(|interval| interval / 2),
            watchdog_at: now,
            status: status.to_owned(),
            status_at: now,
        }
    }

    /// How long the next wait may be.
    pub(super) fn interval(&self, tick: Duration) -> Duration {
        self.watchdog.map_or(tick, |watchdog| watchdog.min(tick))
    }

    /// The service is alive, and this is its status.
    pub(super) fn tick(&mut self, status: &str) {
        let now = Instant::now();
        if self.watchdog.is_some_and(|interval| now.duration_since(self.watchdog_at) >= interval) {
            self.watchdog_at = now;
            tell(&[NotifyState::Watchdog]);
        }
        if status != self.status && now.duration_since(self.status_at) >= STATUS_INTERVAL {
            self.status_at = now;
            status.clone_into(&mut self.status);
            tell(&[NotifyState::Status(status)]);
        }
    }

    /// The service drains.
    pub(super) fn stopping(&mut self) {
        tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
