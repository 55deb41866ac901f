//! x
pub mod import;
