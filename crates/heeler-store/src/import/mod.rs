//! The state of other systems, brought in: herdctl, Last Light, agents-fleet.
//!
//! The source is never written. What can be read comes in, what cannot is listed with the reason,
//! and a second import finds everything there. Reading (`read.rs` of each) is pure; files are put in
//! place whole and synced before the rows that name them. Start at [`ImportReport`], the answer of
//! [`import_herdctl()`], [`import_lastlight()`] and [`import_agents_fleet()`].

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

/// Why an import stopped. What it had finished stays; importing again goes on from there.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The source cannot be opened.
    #[error("cannot open {path} to import from it")]
    Open {
        /// The source.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The source is no folder.
    #[error("{path} is not a folder")]
    NotAFolder {
        /// The source.
        path: Utf8PathBuf,
    },
    /// There is nothing of that system.
    #[error("there is no {what} at {path}")]
    NotFound {
        /// The source.
        path: Utf8PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// The source is the state directory itself.
    #[error("{path} is this fleet's own state directory: it needs no import")]
    SourceIsTarget {
        /// The source.
        path: Utf8PathBuf,
    },
    /// The source is being written.
    #[error("{path} keeps changing while it is copied; stop the server that uses it and try again")]
    InUse {
        /// The source.
        path: Utf8PathBuf,
    },
    /// The source is a database that SQLite cannot read.
    #[error("cannot read the database {path}")]
    Database {
        /// The source.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A file could not be written here.
    #[error("cannot write {path}; what was imported so far is complete, import again to go on")]
    Write {
        /// The file.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A link is where a file would be put.
    #[error("a file cannot be put there; remove what is in its way and try again")]
    Blocked {
        /// The cause; it names the link.
        #[source]
        source: NameError,
    },
    /// What says that a rebuild was cut off cannot be believed.
    #[error("{path} is not a note of ours about a rebuild that was cut off ({reason}); remove it")]
    BadRebuildMarker {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The database here did not take or answer something.
    #[error(
        "the import was not saved; what was imported before is complete, import again to go on"
    )]
    Save {
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl From<DatabaseError> for ImportError {
    fn from(error: DatabaseError) -> ImportError {
        ImportError::Save { source: Box::new(error) }
    }
}
