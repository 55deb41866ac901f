//! The one integration binary: the real program in real folders.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests start the program, read the environment, and fail by panicking"
)]

mod fleet;
mod golden;
mod hostile;
mod kills;
mod reads;
#[expect(dead_code, reason = "the claude tests follow")]
mod rig;
mod tidy;
mod writes;
