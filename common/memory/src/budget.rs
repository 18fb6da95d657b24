//! A bound on memory, shared by its holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of bytes that several holders share: a reservation either fits or is refused.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared { limit, used: AtomicU64::new(0) }))
    }

    /// Reserves `bytes` until the reservation is dropped; `None` when they do not fit.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.0.limit);
        self.0.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Reservation { budget: self.clone(), bytes })
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Acquire)
    }

    /// Bytes that may be reserved in all.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }
}

/// Bytes taken from a [`Budget`]; dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn a_reservation_fits_up_to_the_limit_and_not_a_byte_beyond() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).expect("60 of 100 fit");
        assert!(budget.reserve(41).is_none());
        let second = budget.reserve(40).expect("the rest fits exactly");
        assert_eq!(budget.used(), 100);
        drop((first, second));
        assert_eq!(budget.used(), 0);
        assert!(budget.reserve(u64::MAX).is_none());
    }
}
