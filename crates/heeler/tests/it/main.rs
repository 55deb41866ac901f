//! The one integration binary: the real program in real folders.
#![expect(clippy::disallowed_methods, reason = "tests start the program and read the environment")]

mod fleet;
mod golden;
mod reads;
mod tidy;
