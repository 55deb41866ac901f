//! The server `heeler-files`: an agent hands a file of its working directory over.
//!
//! The file is copied, so that what is handed over stays as it was. Nothing outside the working
//! directory can be named, neither by its path nor through a link. Start at [`FileSender`].

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskError, OsDisk, create_folder, place_file};
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::server::{Note, Outcome, read, record, tool};

pub(super) const SERVER: &str = "heeler-files";

/// The largest file that is handed over.
const FILE_BYTES_MAX: u64 = 100 * 1024 * 1024;
/// How many files a run hands over.
const FILES_MAX: usize = 100;
/// The longest name under which a file is handed over.
const NAME_BYTES_MAX: usize = 120;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendFile {
    /// The file: a path in the working directory.
    file_path: String,
    /// What to say with it.
    message: Option<String>,
    /// What to call it; its own name if left out.
    filename: Option<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![tool::<SendFile>(
        "send_file",
        "Hand a file of the working directory to the people who follow this job: a report, a picture, \
         an archive. They get a copy of it as it is now.",
    )]
}

/// Why a file is not handed over; the agent reads it.
#[derive(Debug, Error)]
enum SendError {
    #[error("{path} is not in the working directory {root}; copy it there first")]
    Outside { path: String, root: Utf8PathBuf },
    #[error("cannot open {path} in the working directory")]
    Open {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a regular file; put what you want to hand over into one file")]
    NotAFile { path: String },
    #[error("{path} has more than {FILE_BYTES_MAX} bytes; hand over a smaller or packed one")]
    TooLarge { path: String },
    #[error("this run has handed over {FILES_MAX} files, which is as many as it may")]
    TooMany,
    #[error(
        "{name:?} cannot be a file name here; give a `filename` without slashes or control \
         characters, of at most {NAME_BYTES_MAX} bytes"
    )]
    Name { name: String },
    #[error("the file cannot be stored")]
    Store(#[source] DiskError),
    #[error("the copy was cut short: {0}")]
    Cut(#[source] tokio::task::JoinError),
}

/// Hands files over by copying them into a folder.
#[derive(Debug)]
pub(super) struct FileSender {
    root: Utf8PathBuf,
    folder: Utf8PathBuf,
    notes: mpsc::Sender<Note>,
    begun: AtomicUsize,
}

/// A file that is to be handed over, already open.
struct Parcel {
    file: File,
    path: String,
    name: String,
}

impl FileSender {
    /// `root` is the agent's working directory, a real path; copies go to `folder`.
    pub(super) fn new(root: &Utf8Path, folder: &Utf8Path, notes: mpsc::Sender<Note>) -> FileSender {
        let (root, folder) = (root.to_owned(), folder.to_owned());
        FileSender { root, folder, notes, begun: AtomicUsize::new(0) }
    }

    pub(super) async fn call(&self, arguments: JsonObject) -> Outcome {
        let SendFile { file_path, message, filename } = read(arguments)?;
        let sent = self.send(file_path, filename).await;
        let (path, name, bytes) = sent.map_err(|error| told(&error))?;
        let answer = format!("{name} ({bytes} bytes) is handed over");
        record(&self.notes, Note::FileSent { path, name, bytes, message }).await?;
        Ok(answer)
    }

    async fn send(
        &self,
        path: String,
        name: Option<String>,
    ) -> Result<(Utf8PathBuf, String, u64), SendError> {
        if self.begun.fetch_add(1, Ordering::Relaxed) >= FILES_MAX {
            return Err(SendError::TooMany);
        }
        let (root, folder) = (self.root.clone(), self.folder.clone());
        // The run's one thread must not wait for the disk as long as a large file takes.
        let copied = tokio::task::spawn_blocking(move || {
            let parcel = open(&root, path, name)?;
            store(parcel, &folder)
        });
        let sent = copied.await.map_err(SendError::Cut).and_then(|sent| sent);
        if sent.is_err() {
            self.begun.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }
}

/// Opens a file of `root`, whatever links there are on the way.
fn open(root: &Utf8Path, path: String, name: Option<String>) -> Result<Parcel, SendError> {
    let inside = Utf8Path::new(&path);
    // Agents like to name files by their whole path.
    let inside = inside.strip_prefix(root).unwrap_or(inside);
    let name = match name {
        Some(name) => name,
        None => inside.file_name().unwrap_or_default().to_owned(),
    };
    let opened = open_beneath(root, inside);
    let file = opened.map_err(|errno| match errno {
        Errno::XDEV => SendError::Outside { path: path.clone(), root: root.to_owned() },
        errno => SendError::Open { path: path.clone(), source: errno.into() },
    })?;
    let found = file.metadata().map_err(|source| SendError::Open { path: path.clone(), source })?;
    if !found.is_file() {
        return Err(SendError::NotAFile { path });
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(SendError::TooLarge { path });
    }
    let bad = |c: char| matches!(c, '/' | '\\') || c.is_control();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(bad) {
        return Err(SendError::Name { name });
    }
    Ok(Parcel { file, path, name })
}

/// The kernel itself keeps the whole way inside `root`: nobody can put a link there in between.
fn open_beneath(root: &Utf8Path, inside: &Utf8Path) -> Result<File, Errno> {
    let folder = openat(
        CWD,
        root.as_std_path(),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // A pipe without a writer would be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&folder, inside.as_std_path(), flags, Mode::empty(), beneath).map(File::from)
}

/// Copies a file into `folder`; a crash leaves the whole copy or none.
fn store(parcel: Parcel, folder: &Utf8Path) -> Result<(Utf8PathBuf, String, u64), SendError> {
    create_folder(&OsDisk, folder).map_err(SendError::Store)?;
    let Parcel { mut file, path, name } = parcel;
    let copy = folder.join(format!("{}-{name}", Uuid::new_v4().simple()));
    let stored = place_file(&OsDisk, &copy, &mut file, FILE_BYTES_MAX);
    match stored {
        Ok(bytes) => Ok((copy, name, bytes)),
        // It grew since it was looked at.
        Err(error) if error.source.kind() == io::ErrorKind::FileTooLarge => {
            Err(SendError::TooLarge { path })
        }
        Err(error) => Err(SendError::Store(error)),
    }
}

/// Returns the whole chain of an error as one line.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
