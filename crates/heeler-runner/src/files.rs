//! Files of a run directory: `spec.json`, `started.json`, `container.json`, `asks/<id>.json`,
//! `asks/<id>.closed`, `result.json`.
//!
//! The files may come from an untrusted clone: reads are bounded, links are not followed, and paths
//! in them must stay in the state directory. The result is written once, into space reserved before
//! the agent started, so that a full disk cannot lose it. Start at [`read_spec`] and
//! [`ReservedResultFile`].

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_model::run::file::{self, RunFileParseError};
use heeler_model::run::{
    AgentQuestion, ClosedQuestion, ContainerRecord, QuestionFileKind, ResultPublicKey,
    ResultSigningKey, RunResult, RunSpec, RunStartRecord, SIGNATURE_FIELD_BYTES,
};
use heeler_transcript::{
    DiskBackend as _, DiskError, LockFile, NameError, OsDisk, create_folder, replace_file,
    set_file_aside, untrusted_file, validate_id,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::session;

/// Size limit of a result; this much space is reserved before the agent starts. Texts are cut at
/// [`RESULT_TEXT_BYTES_MAX`]. If the result is still too large, the figures by model are omitted,
/// and then its output is cut.
pub(crate) const RESULT_BYTES_MAX: usize = 256 * 1024;
/// Length limit of a text in a result. Each byte may take six bytes in JSON.
const RESULT_TEXT_BYTES_MAX: usize = 6 * 1024;

/// Reason that a file of a run directory could not be used.
#[derive(Debug, Error)]
pub enum RunFileError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its content is invalid.
    #[error("cannot use {path}")]
    Form {
        path: Utf8PathBuf,
        #[source]
        source: RunFileParseError,
    },
    /// The file belongs to another run.
    #[error("{path} belongs to another run than its directory; do not copy run directories")]
    OtherRun { path: Utf8PathBuf },
    /// Another process than the daemon wrote the spec.
    #[error("{path} is not the file that the daemon wrote")]
    ForeignSpec { path: Utf8PathBuf },
    /// The file names a path outside the state directory.
    #[error("{path} names {named}, which is outside of the state directory")]
    OutsideStateDirectory {
        path: Utf8PathBuf,
        /// Path that it names.
        named: Utf8PathBuf,
    },
    /// An ID is not usable as a file name.
    #[error("a question's ID is not a valid file name")]
    Name(#[from] NameError),
}

/// Reads `spec.json` and checks that it belongs to this directory and stays in its state directory.
pub(crate) fn read_spec(dir: &Utf8Path) -> Result<RunSpec, RunFileError> {
    let spec = read_own_spec(dir, None)?;
    check_logs(dir, &spec)?;
    Ok(spec)
}

/// Checks that a run belongs to this directory and stays in its state directory.
pub(crate) fn check_spec(dir: &Utf8Path, spec: RunSpec) -> Result<RunSpec, RunFileError> {
    check_run(dir, &spec)?;
    check_logs(dir, &spec)?;
    Ok(spec)
}

/// Reads `spec.json` of a dead run. Its state directory may have been moved or be mounted
/// elsewhere, so transcript paths are derived from `dir`, not from the paths that the file names.
/// With a key, the spec must be the one that the daemon wrote.
pub(crate) fn read_spec_of_dead_run(
    dir: &Utf8Path,
    key: Option<&ResultPublicKey>,
) -> Result<RunSpec, RunFileError> {
    let mut spec = read_own_spec(dir, key)?;
    let state = state_directory_of(dir)?;
    spec.job_log = state.join(format!("jobs/{}.jsonl", spec.job));
    spec.projects = state.join("agent-sessions/projects");
    if spec.session.is_unrecorded {
        spec.session.log = Some(state.join(format!("runs/{}/{}", spec.run, file::SESSION_LOG)));
    }
    check_logs(dir, &spec)?;
    Ok(spec)
}

/// Returns the directory in which a run was started, according to its spec, if it is not `dir`: the
/// state directory was moved or copied since.
pub(crate) fn original_folder(
    dir: &Utf8Path,
    key: Option<&ResultPublicKey>,
) -> Result<Option<Utf8PathBuf>, RunFileError> {
    let spec = read_own_spec(dir, key)?;
    let state = spec.job_log.parent().and_then(Utf8Path::parent);
    let first = state.map(|state| state.join("runs").join(spec.run.to_string()));
    let here = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    // A relative path says nothing about where the run was started.
    Ok(first.filter(|first| first.is_absolute() && *first != here))
}

/// Returns the job of the run in `dir` if it is live and its working directory is `top` or below
/// it.
pub(crate) fn live_job(dir: &Utf8Path, top: &Utf8Path) -> Option<JobId> {
    // The cheap check comes first: most directories belong to runs that have ended.
    if dir.join(file::RESULT).exists() {
        return None;
    }
    // A directory that cannot be read, or is just being created, belongs to no known job.
    let spec: RunSpec = read(&dir.join(file::SPEC)).ok()??;
    let is_here = spec.working_directory.starts_with(top);
    let is_live = || matches!(LockFile::probe(&dir.join(file::LOCK)), Ok(Some(_)));
    (is_here && is_live()).then_some(spec.job)
}

fn read_own_spec(dir: &Utf8Path, key: Option<&ResultPublicKey>) -> Result<RunSpec, RunFileError> {
    let path = dir.join(file::SPEC);
    let bytes = read_bytes(&path)?.ok_or_else(|| DiskError {
        action: "read",
        path: path.clone(),
        source: io::ErrorKind::NotFound.into(),
    })?;
    if key.is_some_and(|key| !key.accepts_spec(&bytes)) {
        return Err(RunFileError::ForeignSpec { path });
    }
    let spec: RunSpec = parse(&path, &bytes)?;
    check_run(dir, &spec)?;
    Ok(spec)
}

fn check_run(dir: &Utf8Path, spec: &RunSpec) -> Result<(), RunFileError> {
    // A link to the directory must not hide another name.
    let real = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    match real.file_name() == Some(spec.run.to_string().as_str()) {
        true => Ok(()),
        false => Err(RunFileError::OtherRun { path: dir.join(file::SPEC) }),
    }
}

fn check_logs(dir: &Utf8Path, spec: &RunSpec) -> Result<(), RunFileError> {
    let (path, state) = (dir.join(file::SPEC), state_directory_of(dir)?);
    check_inside(&path, &state, &spec.job_log)?;
    check_inside(&path, &state, &spec.projects)
}

/// Reads `started.json`; `None` if the runner did not get that far. The session transcript's path
/// is taken from the spec.
pub(crate) fn read_started(
    dir: &Utf8Path,
    spec: &RunSpec,
) -> Result<Option<RunStartRecord>, RunFileError> {
    let path = dir.join(file::STARTED);
    let Some(mut started) = read::<RunStartRecord>(&path)? else { return Ok(None) };
    if started.run != spec.run {
        return Err(RunFileError::OtherRun { path });
    }
    // A path in the file is not trusted, and the state directory may have been moved since.
    started.session_log = session::log_path(spec, &started.session);
    check_inside(&path, &state_directory_of(dir)?, &started.session_log)?;
    Ok(Some(started))
}

/// Returns the cgroup that a run recorded, even if its directory is otherwise unusable.
pub(crate) fn recorded_cgroup(dir: &Utf8Path) -> Option<Utf8PathBuf> {
    read::<RunStartRecord>(&dir.join(file::STARTED)).ok()??.cgroup
}

/// Reads `container.json`; `None` if the run had no container.
pub(crate) fn read_container(dir: &Utf8Path) -> Result<Option<ContainerRecord>, RunFileError> {
    read(&dir.join(file::CONTAINER))
}

/// Reads `result.json`; `None` if the run has none yet.
pub(crate) fn read_result(dir: &Utf8Path) -> Result<Option<RunResult>, RunFileError> {
    let path = dir.join(file::RESULT);
    let Some(result) = read::<RunResult>(&path)? else { return Ok(None) };
    // The writer may have been killed before its own sync.
    OsDisk.sync_folder(dir).map_err(disk_error("sync folder", dir))?;
    Ok(Some(result))
}

/// Reads `result.json` if the run's runner wrote it. Any other file with that name is set aside.
pub(crate) fn read_signed_result(
    dir: &Utf8Path,
    runner_key: &ResultPublicKey,
) -> Result<Option<RunResult>, RunFileError> {
    let path = dir.join(file::RESULT);
    match untrusted_file::read(&path, file::BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(bytes) if runner_key.has_signed(&bytes) => return read_result(dir),
        // It is a link, a folder or too long, which no runner writes.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            return Err(disk_error("read", &path)(error).into());
        }
        Ok(_) | Err(_) => {}
    }
    refuse_result(dir)?;
    Ok(None)
}

/// Sets a result aside that no process of Heeler can have written.
fn refuse_result(dir: &Utf8Path) -> Result<(), DiskError> {
    let kept = set_file_aside(&dir.join(file::RESULT), file::REFUSED_SUFFIX)?;
    tracing::warn!(%dir, ?kept, "a result that the runner did not write was set aside");
    Ok(())
}

/// Writes `started.json`. It is durable when this returns.
pub(crate) fn write_started(dir: &Utf8Path, started: &RunStartRecord) -> Result<(), RunFileError> {
    write(&dir.join(file::STARTED), started)
}

/// Writes `container.json`. It is durable when this returns.
pub(crate) fn write_container(
    dir: &Utf8Path,
    container: &ContainerRecord,
) -> Result<(), RunFileError> {
    write(&dir.join(file::CONTAINER), container)
}

/// Marks that an image is pulled, or removes the mark. Only the display depends on it, so it need
/// not be durable.
pub(crate) fn set_pulling(dir: &Utf8Path, is_pulling: bool) {
    let path = dir.join(file::PULLING);
    let changed = match is_pulling {
        true => OpenOptions::new().write(true).create(true).truncate(true).open(&path).map(drop),
        false => std::fs::remove_file(&path),
    };
    if let Err(error) = changed {
        tracing::warn!(%error, "the status `pulling` cannot be set");
    }
}

/// Writes `asks/<id>.closed`, signed if there is a key. It is durable when this returns.
pub(crate) fn write_closed(
    dir: &Utf8Path,
    closed: &ClosedQuestion,
    key: Option<&ResultSigningKey>,
) -> Result<(), RunFileError> {
    write_question(dir, (&closed.ask.id, QuestionFileKind::Closed), closed, key)
}

/// Writes `asks/<id>.json`, signed if there is a key. It is durable when this returns.
pub(crate) fn write_ask(
    dir: &Utf8Path,
    ask: &AgentQuestion,
    key: Option<&ResultSigningKey>,
) -> Result<(), RunFileError> {
    write_question(dir, (&ask.id, QuestionFileKind::Open), ask, key)
}

fn write_question(
    dir: &Utf8Path,
    (id, kind): (&str, QuestionFileKind),
    content: &impl Serialize,
    key: Option<&ResultSigningKey>,
) -> Result<(), RunFileError> {
    let asks = dir.join("asks");
    let path = asks.join(format!("{}{}", validate_id(id)?, kind.suffix()));
    create_folder(&OsDisk, &asks)?;
    let bytes = encode(content);
    let bytes = key.map_or_else(|| bytes.clone(), |key| key.sign_question(kind, &bytes));
    Ok(replace_file(&OsDisk, &path, &bytes)?)
}

fn write(path: &Utf8Path, content: &impl Serialize) -> Result<(), RunFileError> {
    // The file is replaced as a whole, so a reader never sees a part of it.
    Ok(replace_file(&OsDisk, path, &encode(content))?)
}

fn encode(content: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(content).expect("a file of a run has only text keys");
    bytes.push(b'\n');
    bytes
}

fn read<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, RunFileError> {
    read_bytes(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

fn read_bytes(path: &Utf8Path) -> Result<Option<Vec<u8>>, RunFileError> {
    match untrusted_file::read(path, file::BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => Ok(Some(result.map_err(disk_error("read", path))?)),
    }
}

fn parse<T: DeserializeOwned>(path: &Utf8Path, bytes: &[u8]) -> Result<T, RunFileError> {
    file::parse_run_file(bytes)
        .map_err(|source| RunFileError::Form { path: path.to_owned(), source })
}

/// Returns the state directory, given `dir` = `<state>/runs/<run>`.
fn state_directory_of(dir: &Utf8Path) -> Result<Utf8PathBuf, DiskError> {
    let dir = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    // Such a path has no state directory above it, and the checks then refuse everything outside.
    Ok(dir.parent().and_then(Utf8Path::parent).unwrap_or(&dir).to_owned())
}

/// Refuses a path outside the state directory.
fn check_inside(file: &Utf8Path, state: &Utf8Path, named: &Utf8Path) -> Result<(), RunFileError> {
    let plain = named.is_absolute()
        && named.components().all(|part| !matches!(part, Utf8Component::ParentDir));
    // A missing path cannot be a link; an existing one must not lead out of the state directory.
    let there = named.ancestors().find(|path| path.symlink_metadata().is_ok());
    let real = there.and_then(|path| path.canonicalize_utf8().ok());
    if plain && real.is_some_and(|real| real.starts_with(state)) {
        return Ok(());
    }
    Err(RunFileError::OutsideStateDirectory { path: file.to_owned(), named: named.to_owned() })
}

/// Most files that are set aside for a result; an agent could create one again each time.
const PLACE_ATTEMPTS: u32 = 20;

/// File that reserves the space of the result.
const RESERVE_FILE: &str = ".result.json.reserve";

/// Reserved space for a result. A crash leaves the file behind, and settling the run uses it.
#[derive(Debug)]
pub(crate) struct ReservedResultFile {
    dir: Utf8PathBuf,
    file: std::fs::File,
    key: Option<ResultSigningKey>,
}

impl ReservedResultFile {
    /// Reserves the space. With a key, the result is signed.
    pub(crate) fn create(
        dir: &Utf8Path,
        key: Option<&ResultSigningKey>,
    ) -> Result<ReservedResultFile, DiskError> {
        let path = dir.join(RESERVE_FILE);
        let mut options = OpenOptions::new();
        // It is not truncated, because a crash may have left the reserved space behind.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file =
            untrusted_file::open_with(&mut options, &path).map_err(disk_error("create", &path))?;
        reserve(&file).map_err(disk_error("reserve space in", &path))?;
        Ok(ReservedResultFile { dir: dir.to_owned(), file, key: key.cloned() })
    }

    /// Writes the result and renames it into place. The file is durable when this returns. Fails if
    /// the run has a result already and this one is not signed; with a signature, the other one
    /// comes from elsewhere and is set aside.
    pub(crate) fn write(self, result: &RunResult) -> Result<(), DiskError> {
        let (from, to) = (self.dir.join(RESERVE_FILE), self.dir.join(file::RESULT));
        let mut bytes = encode_bounded(result);
        if let Some(key) = &self.key {
            bytes = key.sign_document(&bytes);
        }
        // Writing into reserved space cannot fail for lack of space.
        self.file.write_all_at(&bytes, 0).map_err(disk_error("write", &from))?;
        self.file.set_len(bytes.len() as u64).map_err(disk_error("shorten", &from))?;
        // The rename must not become durable before the content.
        OsDisk.sync(&self.file).map_err(disk_error("sync", &from))?;
        let mut placed = OsDisk.rename_new(&from, &to);
        for _ in 0..PLACE_ATTEMPTS {
            match &placed {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                _ => break,
            }
            // An existing result is never replaced: it may have been read already. But this process
            // holds the run's lock, so a file that appeared meanwhile is not a result.
            if self.key.is_none() {
                break;
            }
            refuse_result(&self.dir)?;
            placed = OsDisk.rename_new(&from, &to);
        }
        placed.map_err(disk_error("put in place", &to))?;
        OsDisk.sync_folder(&self.dir).map_err(disk_error("sync folder", &self.dir))
    }
}

fn reserve(file: &std::fs::File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESULT_BYTES_MAX as u64) {
        // Not every file system supports `fallocate`. Written bytes reserve the space as well.
        Err(Errno::NOTSUP | Errno::NOSYS) => file.write_all_at(&[b' '; RESULT_BYTES_MAX], 0),
        result => Ok(result?),
    }
}

/// Encodes the result so that with a signature it has at most [`RESULT_BYTES_MAX`] bytes.
fn encode_bounded(result: &RunResult) -> Vec<u8> {
    // The caller reports the whole result to clients, so only a copy is cut.
    let mut result = result.clone();
    let mut texts: Vec<&mut String> = Vec::new();
    texts.extend(result.stop_reason.as_mut());
    texts.extend(result.summary.as_mut());
    if let Some(error) = &mut result.error {
        texts.extend([&mut error.message, &mut error.cure]);
    }
    for text in texts {
        text.truncate(text.floor_char_boundary(RESULT_TEXT_BYTES_MAX));
    }
    let written = |result: &RunResult| {
        let mut bytes = serde_json::to_vec_pretty(result).expect("a result has only text keys");
        bytes.push(b'\n');
        bytes
    };
    let bytes_max = RESULT_BYTES_MAX - SIGNATURE_FIELD_BYTES;
    let mut bytes = written(&result);
    if bytes.len() > bytes_max {
        result.cost.usage.per_model.clear();
        bytes = written(&result);
    }
    // The encoded size of a text depends on its characters, so it is cut until it fits.
    while bytes.len() > bytes_max
        && let Some(output) = result.output.take()
    {
        let half = output.floor_char_boundary(output.len() / 2);
        result.output = Some(output[..half].to_owned()).filter(|output| !output.is_empty());
        bytes = written(&result);
    }
    bytes
}

fn disk_error(action: &'static str, path: &Utf8Path) -> impl Fn(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { action, path: path.clone(), source }
}

#[cfg(test)]
pub(crate) mod tests;
