//! The real target process, killed and stopped under load; and what waits for it when it does not come back.

mod forever;
mod load;
mod returning;
