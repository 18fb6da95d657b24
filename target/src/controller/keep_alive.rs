//! The keep-alive timer (NVM Express Base 2.0, section 3.9), renewed by traffic.

use std::time::Duration;

use ringfab_reactor::Time;

/// Granularity of the timeout (KAS): 100 ms units in Identify Controller.
pub(crate) const GRANULARITY: Duration = Duration::from_secs(1);

/// How long a controller without a timeout of its own may be silent before it is enabled, and a discovery
/// controller that asked for none (section 3.1.3.2: the discovery controller's activity timeout).
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The longest timeout that is accepted, so that a controller whose host is gone is always found.
const TIMEOUT_MS_MAX: u32 = 24 * 3600 * 1000;

/// The timer of one controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    timeout_ms: u32,
    /// A discovery controller counts silence even when its host asked for no timeout.
    always: bool,
    enabled: bool,
    /// It has run out: there is nothing more to wait for.
    expired: bool,
    started: Time,
}

impl KeepAlive {
    /// The timer of a new controller, with the timeout of its Connect in milliseconds; zero is none.
    pub(crate) fn new(timeout_ms: u32, discovery: bool, now: Time) -> Self {
        let timeout_ms = round(timeout_ms);
        Self { timeout_ms, always: discovery, enabled: false, expired: false, started: now }
    }

    /// The timeout in milliseconds, as the feature reports it: rounded up to the granularity.
    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    pub(crate) fn set_timeout(&mut self, timeout_ms: u32, now: Time) {
        self.timeout_ms = round(timeout_ms);
        self.started = now;
    }

    /// The controller became ready, or ceased to be.
    pub(crate) fn set_enabled(&mut self, enabled: bool, now: Time) {
        self.enabled = enabled;
        self.started = now;
    }

    /// A Keep Alive command, or traffic that was seen at a deadline.
    pub(crate) fn restart(&mut self, now: Time) {
        self.started = now;
    }

    /// It has run out, which happens once: the controller is being torn down.
    pub(crate) fn expire(&mut self) {
        self.expired = true;
    }

    /// When to look next; none when nothing bounds the silence.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.silence_max().filter(|_| !self.expired).map(|silence| self.started + silence)
    }

    fn silence_max(&self) -> Option<Duration> {
        if !self.enabled {
            return Some(SILENCE_MAX);
        }
        match self.timeout_ms {
            0 if self.always => Some(SILENCE_MAX),
            0 => None,
            // One granule more than was agreed: the host's own timer and the network may be late.
            timeout_ms => Some(Duration::from_millis(u64::from(timeout_ms)) + GRANULARITY),
        }
    }
}

fn round(timeout_ms: u32) -> u32 {
    let granularity_ms = u32::try_from(GRANULARITY.as_millis()).expect("a second fits");
    timeout_ms.min(TIMEOUT_MS_MAX).next_multiple_of(granularity_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_timeout_is_rounded_up_to_the_granularity_and_bounded() {
        assert_eq!(round(0), 0);
        assert_eq!(round(1), 1000);
        assert_eq!(round(1000), 1000);
        assert_eq!(round(1001), 2000);
        assert_eq!(round(u32::MAX), TIMEOUT_MS_MAX);
    }

    #[test]
    fn the_timer_runs_from_enabling_and_restarts() {
        let mut timer = KeepAlive::new(5000, false, at(0));
        assert_eq!(timer.deadline(), Some(at(120)));
        timer.set_enabled(true, at(10));
        assert_eq!(timer.deadline(), Some(at(16)));
        timer.restart(at(12));
        assert_eq!(timer.deadline(), Some(at(18)));
        timer.set_timeout(0, at(13));
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn a_discovery_controller_without_a_timeout_still_ends_after_silence() {
        let mut timer = KeepAlive::new(0, true, at(0));
        timer.set_enabled(true, at(0));
        assert_eq!(timer.deadline(), Some(at(120)));
    }
}
