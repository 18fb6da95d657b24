//! What an administrator does with a target that runs.

mod check;
mod doctor;
mod files;
mod machine;
mod monitoring;
mod names;
mod top;
