//! Import of records from files: state of herdctl, Last Light and agents-fleet, and a state
//! directory whose database was lost.
//!
//! The source is never written. Readable data are imported, the rest is listed with the reason,
//! and a repeated import changes nothing. Reading (`read.rs` of each) is pure; files are
//! written and synced before the rows that refer to them, by [`heeler_store::staging`]. A rebuild
//! is an import as well: views have herdctl's formats, and adopted directories keep herdctl's
//! files. Start at [`ImportReport`], the result of [`import_herdctl()`], [`import_lastlight()`]
//! and [`import_agents_fleet()`]; of [`adopt()`]; and of [`rebuild()`].

mod adopt;
mod agents_fleet;
#[cfg(test)]
mod crash_tests;
mod herdctl;
mod import_error;
mod lastlight;
mod message_count;
#[cfg(test)]
mod property_tests;
mod rebuild;
mod report;
mod source;

pub use adopt::{AdoptError, AdoptionReport, adopt};
pub use agents_fleet::import_agents_fleet;
pub use herdctl::import_herdctl;
pub use import_error::ImportError;
pub use lastlight::import_lastlight;
pub use rebuild::{RebuildError, RebuildReport, rebuild};
pub use report::{ImportCounts, ImportItemKind, ImportRefusal, ImportReport};
