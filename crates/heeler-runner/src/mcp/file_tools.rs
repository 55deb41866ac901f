//! The server `heeler-files`: an agent sends a file of its working directory to people.
//!
//! The file is copied, so later changes do not affect it. Files outside the working directory
//! cannot be reached, neither by path nor through a link, and a file that holds a secret of the run
//! is refused. Start at [`FileSender`].

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_model::redact::SecretRedactor;
use heeler_transcript::{DiskError, OsDisk, create_folder, write_new_file};
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::tool_definition::{ToolCallOutcome, define_tool, mark_read_only, parse_input};
use super::tool_note::{ToolNote, check_message, send_note};

pub(super) const SERVER: &str = "heeler-files";

/// Size limit of a sent file.
const FILE_BYTES_MAX: u64 = 100 * 1024 * 1024;
/// Limit on files that a run sends.
const FILES_MAX: usize = 100;
/// Length limit of the name of a sent file.
const NAME_BYTES_MAX: usize = 120;
/// Length of the longest secret, in any encoding, that is found across two reads.
const SECRET_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendFileInput {
    /// Path of the file, inside the working directory
    file_path: String,
    /// Message to send with the file
    message: Option<String>,
    /// Name to give the file; default: its own name
    filename: Option<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![mark_read_only(define_tool::<SendFileInput>(
        "send_file",
        "Send a file of the working directory to the people who follow this job: a report, an image, \
         an archive. They get a copy of its current content.",
    ))]
}

/// Reason that a file is not sent; shown to the agent.
#[derive(Debug, Error)]
enum FileSendError {
    #[error("{path} is not in the working directory {root}; copy it there first")]
    Outside { path: String, root: Utf8PathBuf },
    #[error("cannot open {path} in the working directory")]
    Open {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a regular file; pack the content into one file")]
    NotAFile { path: String },
    #[error("{path} has more than {FILE_BYTES_MAX} bytes; send a smaller or compressed file")]
    TooLarge { path: String },
    #[error("{path} holds a secret of this run; remove it before you send the file")]
    Secret { path: String },
    #[error("this run has sent {FILES_MAX} files, which is the limit")]
    TooMany,
    #[error(
        "{name:?} cannot be a file name here; give a `filename` without slashes or control \
         characters, of at most {NAME_BYTES_MAX} bytes"
    )]
    Name { name: String },
    #[error("the file cannot be stored")]
    Store(#[source] DiskError),
    #[error("the copy failed: {0}")]
    CopyInterrupted(#[source] tokio::task::JoinError),
}

/// Sends files by copying them into a directory.
#[derive(Debug)]
pub(super) struct FileSender {
    root: Utf8PathBuf,
    folder: Utf8PathBuf,
    secrets: SecretRedactor,
    notes: mpsc::Sender<ToolNote>,
    started_count: AtomicUsize,
}

/// File to send, already open.
struct OutgoingFile {
    file: File,
    path: String,
    name: String,
}

impl FileSender {
    /// Builds a sender. `root` is the agent's working directory, a resolved path; copies go to
    /// `folder`.
    pub(super) fn new(
        root: &Utf8Path,
        folder: &Utf8Path,
        secrets: &SecretRedactor,
        notes: mpsc::Sender<ToolNote>,
    ) -> FileSender {
        let (root, folder, secrets) = (root.to_owned(), folder.to_owned(), secrets.clone());
        FileSender { root, folder, secrets, notes, started_count: AtomicUsize::new(0) }
    }

    pub(super) async fn call(&self, arguments: JsonObject) -> ToolCallOutcome {
        let SendFileInput { file_path, message, filename } = parse_input(arguments)?;
        // A message that is too long is refused before anything is copied.
        check_message(message.as_deref().unwrap_or_default())?;
        let sent = self.send(file_path, filename).await;
        let (path, name, bytes) = sent.map_err(|error| error_chain(&error))?;
        let answer = format!("{name} ({bytes} bytes) was sent");
        // The note comes after the copy, so that people never hear of a file that does not exist.
        send_note(&self.notes, ToolNote::FileSent { path, name, bytes, message }).await?;
        Ok(answer)
    }

    async fn send(
        &self,
        path: String,
        name: Option<String>,
    ) -> Result<(Utf8PathBuf, String, u64), FileSendError> {
        // The count is raised before the copy, because calls may overlap. A refused call does not
        // raise it: a copy that fails makes room for another.
        let raised =
            self.started_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < FILES_MAX).then_some(count + 1)
            });
        raised.map_err(|_| FileSendError::TooMany)?;
        let (root, folder) = (self.root.clone(), self.folder.clone());
        let secrets = self.secrets.clone();
        // The run has one thread, which must not block on the disk for the duration of a large
        // copy.
        let copied = tokio::task::spawn_blocking(move || {
            let parcel = open_file(&root, path, name)?;
            store_file(parcel, &folder, secrets)
        });
        let sent = copied.await.map_err(FileSendError::CopyInterrupted).and_then(|sent| sent);
        // Only files that were sent count.
        if sent.is_err() {
            self.started_count.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }
}

/// Opens a file inside `root`; links on the way must not lead out of it.
fn open_file(
    root: &Utf8Path,
    path: String,
    name: Option<String>,
) -> Result<OutgoingFile, FileSendError> {
    let inside = Utf8Path::new(&path);
    // Agents often name files by their absolute path.
    let inside = inside.strip_prefix(root).unwrap_or(inside);
    let name = match name {
        Some(name) => name,
        None => inside.file_name().unwrap_or_default().to_owned(),
    };
    let opened = open_beneath(root, inside);
    let file = opened.map_err(|errno| match errno {
        Errno::XDEV => FileSendError::Outside { path: path.clone(), root: root.to_owned() },
        errno => FileSendError::Open { path: path.clone(), source: errno.into() },
    })?;
    let found =
        file.metadata().map_err(|source| FileSendError::Open { path: path.clone(), source })?;
    // A directory or a device has no content that could be copied.
    if !found.is_file() {
        return Err(FileSendError::NotAFile { path });
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(FileSendError::TooLarge { path });
    }
    let bad = |c: char| matches!(c, '/' | '\\') || c.is_control();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(bad) {
        return Err(FileSendError::Name { name });
    }
    Ok(OutgoingFile { file, path, name })
}

/// Opens the file with the kernel's guarantee that the path stays inside `root`: a link created in
/// between cannot lead out.
fn open_beneath(root: &Utf8Path, inside: &Utf8Path) -> Result<File, Errno> {
    let folder = openat(
        CWD,
        root.as_std_path(),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // Opening a pipe without a writer would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Links in `/proc` lead anywhere without a path that could be checked.
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&folder, inside.as_std_path(), flags, Mode::empty(), beneath).map(File::from)
}

/// Copies a file into `folder`; a crash leaves a complete copy or none.
fn store_file(
    parcel: OutgoingFile,
    folder: &Utf8Path,
    secrets: SecretRedactor,
) -> Result<(Utf8PathBuf, String, u64), FileSendError> {
    let OutgoingFile { file, path, name } = parcel;
    let mut file = SecretCheckedFile { file, secrets, tail: Vec::new() };
    // People see the name as well, so it must not hold a secret either.
    file.check(name.as_bytes()).map_err(|_| FileSendError::Secret { path: path.clone() })?;
    create_folder(&OsDisk, folder).map_err(FileSendError::Store)?;
    // The random part keeps two files of the same name apart.
    let copy = folder.join(format!("{}-{name}", Uuid::new_v4().simple()));
    match write_new_file(&OsDisk, &copy, &mut file, FILE_BYTES_MAX) {
        Ok(bytes) => Ok((copy, name, bytes)),
        Err(error)
            if error.source.get_ref().is_some_and(|source| source.is::<SecretFoundError>()) =>
        {
            Err(FileSendError::Secret { path })
        }
        // The file grew since it was checked.
        Err(error) if error.source.kind() == io::ErrorKind::FileTooLarge => {
            Err(FileSendError::TooLarge { path })
        }
        Err(error) => Err(FileSendError::Store(error)),
    }
}

#[derive(Debug, Error)]
#[error("a secret was read")]
struct SecretFoundError;

/// Reader that fails once it has read a secret.
struct SecretCheckedFile {
    file: File,
    secrets: SecretRedactor,
    /// End of the previous read, where a secret may have begun.
    tail: Vec<u8>,
}

impl SecretCheckedFile {
    fn check(&self, bytes: &[u8]) -> io::Result<()> {
        match self.secrets.redact_bytes(bytes) {
            Cow::Borrowed(_) => Ok(()),
            Cow::Owned(_) => Err(io::Error::other(SecretFoundError)),
        }
    }
}

impl io::Read for SecretCheckedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The copy is read through this check, so a file with a secret is never completed.
        let read = self.file.read(buffer)?;
        self.tail.extend_from_slice(&buffer[..read]);
        self.check(&self.tail)?;
        // The end is kept, because a secret may continue in the next read.
        self.tail.drain(..self.tail.len().saturating_sub(SECRET_BYTES_MAX));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::fs::{FileType, mknodat};
    use serde_json::{Value as Json, json};

    use super::super::tests::{McpFixture, SECRET, call, said};
    use super::*;

    /// Calls the tool; returns its text and the error flag.
    async fn send(place: &McpFixture, input: Json) -> (String, bool) {
        let (injected, _notes) = place.injected();
        said(&injected.handle(SERVER, call(1, "send_file", input)).await)
    }

    /// Sends `path`, which must fail.
    async fn refused(place: &McpFixture, path: &str) -> String {
        let (text, failed) = send(place, json!({ "file_path": path })).await;
        assert!(failed, "{text}");
        assert!(left(place).is_empty(), "{text}");
        text.replace(place.root().as_str(), "")
    }

    fn left(place: &McpFixture) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(place.sent()) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_file_is_copied_and_recorded() {
        let place = McpFixture::new();
        std::fs::create_dir(place.work().join("out")).unwrap();
        std::fs::write(place.work().join("out/report.md"), "# All well").unwrap();
        let (injected, mut notes) = place.injected();
        let whole = place.work().join("out/report.md");
        for (path, filename) in [("out/report.md", None), (whole.as_str(), Some("week 7.md"))] {
            let input = json!({ "file_path": path, "filename": filename, "message": "here" });
            let reply = injected.handle(SERVER, call(1, "send_file", input)).await;
            let called = filename.unwrap_or("report.md");
            assert_eq!(said(&reply), (format!("{called} (10 bytes) was sent"), false));
            let note = notes.try_recv().unwrap();
            assert_eq!(note.subtype(), "file_sent");
            assert!(note.content().starts_with(called) && note.content().ends_with(": here"));
            let ToolNote::FileSent { path, name, bytes, .. } = note else { panic!() };
            assert_eq!((name.as_str(), bytes), (called, 10));
            assert!(path.starts_with(place.sent()) && path.as_str().ends_with(called));
            assert_eq!(std::fs::read(&path).unwrap(), b"# All well");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(left(&place).len(), 2);
    }

    #[tokio::test]
    async fn nothing_outside_the_working_directory_is_handed_over() {
        let place = McpFixture::new();
        let (work, root) = (place.work(), place.root());
        std::fs::write(root.join("secret"), "s").unwrap();
        std::fs::create_dir(root.join("work2")).unwrap();
        std::fs::write(root.join("work2/secret"), "s").unwrap();
        symlink("../secret", work.join("link")).unwrap();
        symlink(root.join("secret"), work.join("whole")).unwrap();
        symlink("..", work.join("up")).unwrap();
        symlink("/proc/self/cwd", work.join("magic")).unwrap();
        let outside = |path: &str| {
            format!("{path} is not in the working directory /work; copy it there first")
        };
        for path in [
            "../secret",
            "link",
            "whole",
            "up/secret",
            "magic/Cargo.toml",
            "a/../../secret",
            "/etc/passwd",
            "./../secret",
        ] {
            if path == "a/../../secret" {
                std::fs::create_dir(work.join("a")).unwrap();
            }
            assert_eq!(refused(&place, path).await, outside(path));
        }
        for path in ["work2/secret", "secret", "work/../secret"] {
            let path = root.join(path);
            assert_eq!(
                refused(&place, path.as_str()).await,
                outside(path.as_str()).replace(root.as_str(), "")
            );
        }
    }

    #[tokio::test]
    async fn a_link_that_stays_inside_is_followed() {
        let place = McpFixture::new();
        std::fs::write(place.work().join("run-3.log"), "ok").unwrap();
        symlink("run-3.log", place.work().join("latest.log")).unwrap();
        let input = json!({ "file_path": "latest.log" });
        assert_eq!(send(&place, input).await, ("latest.log (2 bytes) was sent".to_owned(), false));
    }

    #[tokio::test]
    async fn what_is_no_file_is_refused_at_once() {
        let place = McpFixture::new();
        let work = place.work();
        std::fs::create_dir(work.join("folder")).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, work.join("pipe").as_std_path(), FileType::Fifo, mode, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(work.join("socket")).unwrap();
        symlink("loop", work.join("loop")).unwrap();
        let no_file =
            |path| format!("{path} is not a regular file; pack the content into one file");
        assert_eq!(refused(&place, "folder").await, no_file("folder"));
        assert_eq!(refused(&place, ".").await, no_file("."));
        assert_eq!(
            refused(&place, work.as_str()).await,
            "cannot open /work in the working directory: No such file or directory (os error 2)"
        );
        assert_eq!(refused(&place, "pipe").await, no_file("pipe"));
        let cannot = |path: &str| format!("cannot open {path} in the working directory: ");
        for path in ["socket", "loop", "gone", "folder/gone", "pipe/under", "with\0nul", ""] {
            let text = refused(&place, path).await;
            assert!(text.starts_with(&cannot(path)), "{text}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_too_large_is_refused_before_it_is_copied() {
        let place = McpFixture::new();
        let file = File::create(place.work().join("big")).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        let too_large = "big has more than 104857600 bytes; send a smaller or compressed file";
        assert_eq!(refused(&place, "big").await, too_large);
    }

    #[test]
    fn a_file_that_grows_while_it_is_copied_is_refused() {
        let place = McpFixture::new();
        let path = place.work().join("growing");
        std::fs::write(&path, "small").unwrap();
        let parcel = open_file(&place.work(), "growing".to_owned(), None).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = store_file(parcel, &place.sent(), SecretRedactor::new(&[])).unwrap_err();
        assert!(matches!(error, FileSendError::TooLarge { .. }), "{error}");
        assert!(left(&place).is_empty());
    }

    #[test]
    fn a_file_that_vanishes_once_it_is_open_is_handed_over_whole() {
        let place = McpFixture::new();
        let path = place.work().join("short-lived");
        std::fs::write(&path, "content").unwrap();
        let parcel = open_file(&place.work(), "short-lived".to_owned(), None).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(store_file(parcel, &place.sent(), SecretRedactor::new(&[])).unwrap().2, 7);
    }

    #[tokio::test]
    async fn a_name_cannot_lead_out_of_the_folder() {
        let place = McpFixture::new();
        std::fs::write(place.work().join("a"), "a").unwrap();
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["../a", "/a", "", "a\\b", "a\nb", &long] {
            let (text, failed) = send(&place, json!({ "file_path": "a", "filename": name })).await;
            assert!(failed && text.contains("cannot be a file name here"), "{text}");
        }
        assert!(left(&place).is_empty());
        for name in ["..", ".hidden", &long[1..]] {
            let (text, failed) = send(&place, json!({ "file_path": "a", "filename": name })).await;
            assert!(!failed, "{text}");
        }
        assert_eq!(left(&place).len(), 3);
    }

    #[tokio::test]
    async fn a_run_hands_over_only_so_many_files() {
        let place = McpFixture::new();
        std::fs::write(place.work().join("a"), "a").unwrap();
        let (notes, mut received) = mpsc::channel(1);
        let sender =
            FileSender::new(&place.work(), &place.sent(), &SecretRedactor::new(&[]), notes);
        sender.started_count.store(FILES_MAX - 1, Ordering::Relaxed);
        let input = |path| json!({ "file_path": path }).as_object().unwrap().clone();
        sender.call(input("gone")).await.unwrap_err();
        sender.call(input("a")).await.unwrap();
        received.recv().await.unwrap();
        let full = "this run has sent 100 files, which is the limit";
        assert_eq!(sender.call(input("a")).await.unwrap_err(), full);
        // A refused call takes no place from a later one.
        assert_eq!(sender.started_count.load(Ordering::Relaxed), FILES_MAX);
    }

    #[tokio::test]
    async fn a_file_that_holds_a_secret_is_not_handed_over() {
        let place = McpFixture::new();
        // The secret crosses the end of the first read.
        let edge = "x".repeat(256 * 1024 - 6);
        let holds = format!("{edge}{SECRET}");
        let encoded = holds.replace(SECRET, &SECRET.replace(' ', "%20"));
        for (name, text) in [("raw", holds.as_str()), ("url", &encoded), ("short", SECRET)] {
            std::fs::write(place.work().join(name), text).unwrap();
            let reason = "holds a secret of this run; remove it before you send the file";
            assert_eq!(refused(&place, name).await, format!("{name} {reason}"));
        }
        std::fs::write(place.work().join("clean"), edge).unwrap();
        let (text, failed) =
            send(&place, json!({ "file_path": "clean", "filename": SECRET })).await;
        assert!(failed && text.starts_with("clean holds a secret"), "{text}");
        assert!(!send(&place, json!({ "file_path": "clean" })).await.1);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_made_is_told() {
        let place = McpFixture::new();
        std::fs::write(place.root().join("state"), "a file").unwrap();
        std::fs::write(place.work().join("a"), "a").unwrap();
        let text = refused(&place, "a").await;
        assert!(text.starts_with("the file cannot be stored: cannot "), "{text}");
    }
}
