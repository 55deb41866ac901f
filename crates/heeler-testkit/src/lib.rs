//! What the tests of Heeler share: simulated disks, proof sizes, fixtures, temporary fleets.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod disk;
mod disk_crash;
mod proof;

pub use disk::{SimDisk, Trouble};
pub use disk_crash::Crash;
pub use proof::Proof;
