//! What an administrator does with a target that runs.

mod check;
mod doctor;
mod top;
mod tour;
