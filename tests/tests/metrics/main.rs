//! What can be seen of a target from outside: latency, metrics, the page for people.

mod browser;
mod clients;
mod dashboard;
mod documented;
mod latency;
mod prometheus;
mod target;
