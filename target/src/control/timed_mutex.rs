//! Changes are made one at a time. Each waits for its turn within a limit.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a change waits for those before it.
const TURN_LIMIT: Duration = Duration::from_secs(30);

/// What is changed by one at a time.
#[derive(Debug)]
pub(super) struct TimedMutex<T> {
    state: Mutex<State<T>>,
    free: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// None while somebody has it.
    value: Option<T>,
    /// What is being done with it, and since when.
    busy: Option<(&'static str, Instant)>,
}

impl<T> TimedMutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self { state: Mutex::new(State { value: Some(value), busy: None }), free: Condvar::new() }
    }

    /// Does `what` with it when it is free.
    ///
    /// # Errors
    /// What is being done with it instead, when that takes too long.
    pub(super) fn with_lock<R>(
        &self,
        what: &'static str,
        act: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        self.with_lock_within(TURN_LIMIT, what, act)
    }

    /// The same with a limit of the caller's.
    pub(super) fn with_lock_within<R>(
        &self,
        limit: Duration,
        what: &'static str,
        act: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        let is_taken = |state: &mut State<T>| state.value.is_none();
        let waited = self.free.wait_timeout_while(self.state(), limit, is_taken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(value) = state.value.take() else {
            let (other, since) = state.busy.unwrap_or(("a change", Instant::now()));
            let seconds = since.elapsed().as_secs();
            return Err(format!("another change is still under way: {other}, since {seconds} s"));
        };
        state.busy = Some((what, Instant::now()));
        drop(state);
        // It is given back also when the change panics.
        let mut guard = Guard { timed: self, value: Some(value) };
        Ok(act(guard.value.as_mut().expect("it was just put there")))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Guard<'a, T> {
    timed: &'a TimedMutex<T>,
    value: Option<T>,
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.timed.state();
        (state.value, state.busy) = (self.value.take(), None);
        self.timed.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_change_that_takes_too_long_is_named_to_who_waits() {
        let timed = TimedMutex::new(0);
        let (entered, is_in) = mpsc::channel();
        let (go_on, waits) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let timed = &timed;
            let slow = scope.spawn(move || {
                timed.with_lock("namespace add", |value| {
                    entered.send(()).expect("the test waits");
                    waits.recv().expect("the test says so");
                    *value += 1;
                })
            });
            is_in.recv().expect("it is in");
            let error =
                timed.with_lock_within(Duration::from_millis(20), "status", |_| ()).expect_err("taken");
            assert!(error.contains("namespace add, since 0 s"), "{error}");
            go_on.send(()).expect("it waits");
            slow.join().expect("no panic").expect("its turn");
        });
        assert_eq!(timed.with_lock("status", |value| *value), Ok(1));
    }
}
