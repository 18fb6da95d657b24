//! What an administrator does with a target that runs.

mod top;
