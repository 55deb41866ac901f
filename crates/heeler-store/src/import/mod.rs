//! Import of other systems' state: herdctl, Last Light, agents-fleet.
//!
//! The source is never written. Readable data are imported, the rest is listed with the reason,
//! and a repeated import changes nothing. Reading (`read.rs` of each) is pure; files are
//! written and synced before the rows that refer to them. Start at [`ImportReport`], the result
//! of [`import_herdctl()`], [`import_lastlight()`] and [`import_agents_fleet()`].

use std::error::Error as StdError;
use std::io;

use camino::Utf8PathBuf;
use heeler_transcript::NameError;
use thiserror::Error;

use crate::db::DatabaseError;

mod adopt;
mod agents_fleet;
pub(crate) mod atomic_files;
#[cfg(test)]
mod crash_tests;
pub(crate) mod draft_database;
mod foreign_record;
pub(crate) mod herdctl;
pub(crate) mod idle_session;
mod lastlight;
pub(crate) mod message_count;
#[cfg(test)]
mod property_tests;
mod report;
pub(crate) mod source;
pub(crate) mod target;

pub use self::adopt::{AdoptError, AdoptionReport, adopt, is_adoptable};
pub use self::agents_fleet::import_agents_fleet;
pub use self::herdctl::import_herdctl;
pub use self::lastlight::import_lastlight;
pub use self::report::{ImportCounts, ImportItemKind, ImportRefusal, ImportReport};

/// Failure that stops an import. Completed parts stay; importing again continues from there.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("cannot open {path} to import from it")]
    Open {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a folder")]
    NotAFolder { path: Utf8PathBuf },
    /// The source holds no state of that system.
    #[error("there is no {what} at {path}")]
    NotFound {
        path: Utf8PathBuf,
        /// The kind of state that was expected.
        what: &'static str,
    },
    /// The source is the state directory itself.
    #[error("{path} is this fleet's own state directory: it needs no import")]
    SourceIsTarget { path: Utf8PathBuf },
    /// Another process is writing the source.
    #[error("{path} keeps changing while it is copied; stop the server that uses it and try again")]
    InUse { path: Utf8PathBuf },
    /// The source is a database that SQLite cannot read.
    #[error("cannot read the database {path}")]
    Database {
        path: Utf8PathBuf,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A file of the state directory could not be written.
    #[error("cannot write {path}; items imported before are complete, import again to continue")]
    Write {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A symbolic link is in the way of a file.
    #[error("cannot write a file through a symbolic link; remove the link and try again")]
    Blocked {
        /// Names the link.
        #[source]
        source: NameError,
    },
    /// The marker of an interrupted rebuild cannot be trusted.
    #[error("{path} is not a valid marker of an interrupted rebuild ({reason}); remove it")]
    BadRebuildMarker { path: Utf8PathBuf, reason: String },
    /// The database failed to save or answer.
    #[error(
        "the import was not saved; items imported before are complete, import again to continue"
    )]
    Save {
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl From<DatabaseError> for ImportError {
    fn from(error: DatabaseError) -> ImportError {
        ImportError::Save { source: Box::new(error) }
    }
}
