//! The clocks of the system.

use std::time::Duration;

use crate::Time;

/// The clock of [`Time`]: CLOCK_MONOTONIC.
pub fn clock() -> Time {
    Time::from_nanos(read_clock(libc::CLOCK_MONOTONIC).as_nanos() as u64)
}

/// Seconds since the Unix epoch.
pub(crate) fn wall_clock() -> Duration {
    read_clock(libc::CLOCK_REALTIME)
}

fn read_clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure that lives in this frame.
    let result = unsafe { libc::clock_gettime(which, &raw mut time) };
    assert_eq!(result, 0, "a clock that every Linux has");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
