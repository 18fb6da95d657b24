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

    /// This is the service's status. That it is alive is told only while all of its cores are.
    pub(super) fn tick(&mut self, now: Instant, status: &str, alive: bool) {
        if alive && self.watchdog_is_due(now) {
            self.watchdog_at = now;
            tell(&[NotifyState::Watchdog]);
        }
        if status != self.status && now.duration_since(self.status_at) >= STATUS_INTERVAL {
            self.status_at = now;
            status.clone_into(&mut self.status);
            tell(&[NotifyState::Status(status)]);
        }
    }

    fn watchdog_is_due(&self, now: Instant) -> bool {
        self.watchdog.is_some_and(|interval| now.duration_since(self.watchdog_at) >= interval)
    }

    /// The service drains.
    pub(super) fn stopping(&mut self) {
        tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_in_time_while_the_cores_are_alive_and_at_once_when_they_are_again() {
        let begin = Instant::now();
        let interval = Duration::from_secs(10);
        let mut notifier = Notifier {
            watchdog: Some(interval),
            watchdog_at: begin,
            status: String::new(),
            status_at: begin,
        };
        let mut fed_after = |elapsed: u64, alive| {
            let now = begin + Duration::from_secs(elapsed);
            notifier.tick(now, "", alive);
            notifier.watchdog_at == now
        };
        assert_eq!([fed_after(9, true), fed_after(10, true), fed_after(19, true)], [false, true, false]);
        assert_eq!([fed_after(20, false), fed_after(29, false)], [false, false]);
        assert!(fed_after(30, true));
    }
}
