//! Import.
use camino::Utf8PathBuf;
use std::io;
use thiserror::Error;
mod agents_fleet;
mod herdctl;
mod lastlight;
mod messages;
mod place;
mod record;
mod report;
mod session;
mod source;
pub use report::{Kind, Refusal, Report, Tally};

/// Why nothing was imported, or only a part.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The folder cannot be opened.
    #[error("cannot open {path} to import from it")]
    Open {
        /// The folder.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no folder.
    #[error("{path} is not a folder")]
    NotAFolder {
        /// The path.
        path: Utf8PathBuf,
    },
    /// A file could not be written here.
    #[error("cannot write {path}; what was imported so far is complete, import again to go on")]
    Write {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}
