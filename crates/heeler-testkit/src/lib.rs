//! Shared test tools: simulated disks, proof settings, a fake Messages API, the real claude.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod claude;
mod disk;
mod disk_crash;
mod disk_hook;
mod messages_api;
mod proof;

pub use claude::{axe, claude};
pub use disk::{SimDisk, SimulatedFault};
pub use disk_crash::CrashState;
pub use disk_hook::{DiskHook, HookedDisk};
pub use messages_api::{ApiRequest, MessagesApi, ModelScript, ModelScriptStep, ModelToolCall};
pub use proof::ProofSettings;
