//! The real target process, killed and stopped under load; and what waits for it when it does not come back.

mod forever;
#[expect(dead_code, reason = "the tests of backings use more of it")]
mod load;
mod returning;
