//! Every wait has its end, says what it waits for, and ends by a signal.

mod cells;
mod leftovers;
mod statuses;
