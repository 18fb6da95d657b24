//! What an administrator does with a target that runs.

mod check;
mod doctor;
mod machine;
mod top;
mod tour;
