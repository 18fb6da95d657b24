//! What can be seen of a target from outside: latency, metrics, the page for people.

mod latency;
