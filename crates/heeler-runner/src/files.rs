//! The files of a run's folder: `spec.json`, `started.json`, `asks/<id>.json`,
//! `asks/<id>.closed`, `result.json`.
//!
//! What is read may have come with a clone: it is bounded, links are not followed, and the paths in
//! it must stay in the state directory. The result is written once, into space that was reserved
//! before the agent started, so that a full disk cannot lose it. Start at [`read_spec`] and
//! [`ReservedResultFile`].

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_model::run::file::{self, RunFileParseError};
use heeler_model::run::{AgentQuestion, ClosedQuestion, RunResult, RunSpec, RunStartRecord};
use heeler_transcript::{
    DiskBackend as _, DiskError, LockFile, NameError, OsDisk, create_folder, replace_file,
    untrusted_file, validate_id,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::session;

/// The largest result; so much space is reserved before the agent starts. What a text of it has
/// beyond [`RESULT_TEXT_BYTES_MAX`] is cut; figures by model are left out if it is still larger, and
/// then its output is cut.
pub(crate) const RESULT_BYTES_MAX: usize = 256 * 1024;
/// The longest text in a result. Each byte may take six when it is written.
const RESULT_TEXT_BYTES_MAX: usize = 6 * 1024;

/// Why a file of a run's folder could not be used.
#[derive(Debug, Error)]
pub enum RunFileError {
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its content cannot be used.
    #[error("cannot use {path}")]
    Form {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: RunFileParseError,
    },
    /// It is the file of another run.
    #[error("{path} is of another run than its folder; leave copied folders alone")]
    OtherRun {
        /// The file.
        path: Utf8PathBuf,
    },
    /// It names a file that is none of the fleet's.
    #[error("{path} names {named}, which is outside of the state directory")]
    OutsideStateDirectory {
        /// The file.
        path: Utf8PathBuf,
        /// What it names.
        named: Utf8PathBuf,
    },
    /// A name that cannot be a file's.
    #[error("a question has a name that cannot be a file's")]
    Name(#[from] NameError),
}

/// Reads `spec.json` and checks that it is this folder's and stays in its state directory.
pub(crate) fn read_spec(dir: &Utf8Path) -> Result<RunSpec, RunFileError> {
    let spec = read_own_spec(dir)?;
    check_logs(dir, &spec)?;
    Ok(spec)
}

/// Reads `spec.json` of a run that is dead. Its state directory may have been moved since, or be
/// mounted elsewhere: its logs are where they are from here, whatever it names.
pub(crate) fn read_spec_of_dead_run(dir: &Utf8Path) -> Result<RunSpec, RunFileError> {
    let mut spec = read_own_spec(dir)?;
    let state = state_directory_of(dir)?;
    spec.job_log = state.join(format!("jobs/{}.jsonl", spec.job));
    spec.projects = state.join("agent-sessions/projects");
    check_logs(dir, &spec)?;
    Ok(spec)
}

/// Returns the folder that a run was started in, as its spec tells: another one if the state
/// directory was moved or copied since.
pub(crate) fn original_folder(dir: &Utf8Path) -> Result<Option<Utf8PathBuf>, RunFileError> {
    let spec = read_own_spec(dir)?;
    let state = spec.job_log.parent().and_then(Utf8Path::parent);
    let first = state.map(|state| state.join("runs").join(spec.run.to_string()));
    let here = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    Ok(first.filter(|first| first.is_absolute() && *first != here))
}

/// Returns the job of a run that lives and works in this folder or below it.
pub(crate) fn live_job(dir: &Utf8Path, top: &Utf8Path) -> Option<JobId> {
    if dir.join(file::RESULT).exists() {
        return None;
    }
    let spec: RunSpec = read(&dir.join(file::SPEC)).ok()??;
    let is_here = spec.working_directory.starts_with(top);
    let is_live = || matches!(LockFile::probe(&dir.join(file::LOCK)), Ok(Some(_)));
    (is_here && is_live()).then_some(spec.job)
}

fn read_own_spec(dir: &Utf8Path) -> Result<RunSpec, RunFileError> {
    let path = dir.join(file::SPEC);
    let spec: RunSpec = read(&path)?.ok_or_else(|| DiskError {
        action: "read",
        path: path.clone(),
        source: io::ErrorKind::NotFound.into(),
    })?;
    let dir = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    if dir.file_name() != Some(spec.run.to_string().as_str()) {
        return Err(RunFileError::OtherRun { path });
    }
    Ok(spec)
}

fn check_logs(dir: &Utf8Path, spec: &RunSpec) -> Result<(), RunFileError> {
    let (path, state) = (dir.join(file::SPEC), state_directory_of(dir)?);
    check_inside(&path, &state, &spec.job_log)?;
    check_inside(&path, &state, &spec.projects)
}

/// Reads `started.json`; `None` when the runner did not come so far. The session's log is where the
/// spec says.
pub(crate) fn read_started(
    dir: &Utf8Path,
    spec: &RunSpec,
) -> Result<Option<RunStartRecord>, RunFileError> {
    let path = dir.join(file::STARTED);
    let Some(mut started) = read::<RunStartRecord>(&path)? else { return Ok(None) };
    if started.run != spec.run {
        return Err(RunFileError::OtherRun { path });
    }
    started.session_log = session::log_path(spec, &started.session);
    check_inside(&path, &state_directory_of(dir)?, &started.session_log)?;
    Ok(Some(started))
}

/// Returns the control group that a run says it has, whatever else is wrong with its folder.
pub(crate) fn recorded_cgroup(dir: &Utf8Path) -> Option<Utf8PathBuf> {
    read::<RunStartRecord>(&dir.join(file::STARTED)).ok()??.cgroup
}

/// Reads `result.json`; `None` when the run has none yet.
pub(crate) fn read_result(dir: &Utf8Path) -> Result<Option<RunResult>, RunFileError> {
    let path = dir.join(file::RESULT);
    let Some(result) = read::<RunResult>(&path)? else { return Ok(None) };
    // Who wrote it may have been killed before this.
    OsDisk.sync_folder(dir).map_err(disk_error("sync folder", dir))?;
    Ok(Some(result))
}

/// Writes `started.json`. Once this returns, it survives a power loss.
pub(crate) fn write_started(dir: &Utf8Path, started: &RunStartRecord) -> Result<(), RunFileError> {
    write(&dir.join(file::STARTED), started)
}

/// Writes `asks/<id>.closed`. Once this returns, it survives a power loss.
pub(crate) fn write_closed(dir: &Utf8Path, closed: &ClosedQuestion) -> Result<(), RunFileError> {
    let path = dir.join(format!("asks/{}.closed", validate_id(&closed.ask.id)?));
    write(&path, closed)
}

/// Writes `asks/<id>.json`. Once this returns, it survives a power loss.
pub(crate) fn write_ask(dir: &Utf8Path, ask: &AgentQuestion) -> Result<(), RunFileError> {
    let asks = dir.join("asks");
    let path = asks.join(format!("{}.json", validate_id(&ask.id)?));
    create_folder(&OsDisk, &asks)?;
    write(&path, ask)
}

fn write(path: &Utf8Path, content: &impl Serialize) -> Result<(), RunFileError> {
    let mut bytes = serde_json::to_vec_pretty(content).expect("a file of a run has only text keys");
    bytes.push(b'\n');
    Ok(replace_file(&OsDisk, path, &bytes)?)
}

fn read<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, RunFileError> {
    let bytes = match untrusted_file::read(path, file::BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(disk_error("read", path))?,
    };
    let content = file::parse_run_file(&bytes).map(Some);
    content.map_err(|source| RunFileError::Form { path: path.to_owned(), source })
}

/// Returns the state directory, in which `dir` is `runs/<run>`.
fn state_directory_of(dir: &Utf8Path) -> Result<Utf8PathBuf, DiskError> {
    let dir = dir.canonicalize_utf8().map_err(disk_error("resolve", dir))?;
    Ok(dir.parent().and_then(Utf8Path::parent).unwrap_or(&dir).to_owned())
}

/// Refuses a path that leads out of the state directory.
fn check_inside(file: &Utf8Path, state: &Utf8Path, named: &Utf8Path) -> Result<(), RunFileError> {
    let plain = named.is_absolute()
        && named.components().all(|part| !matches!(part, Utf8Component::ParentDir));
    // What is not there yet cannot be a link; what is there must not lead out.
    let there = named.ancestors().find(|path| path.symlink_metadata().is_ok());
    let real = there.and_then(|path| path.canonicalize_utf8().ok());
    if plain && real.is_some_and(|real| real.starts_with(state)) {
        return Ok(());
    }
    Err(RunFileError::OutsideStateDirectory { path: file.to_owned(), named: named.to_owned() })
}

/// What holds the space of the result until there is one.
const RESERVE_FILE: &str = ".result.json.reserve";

/// Space for a result. A crash leaves the file that holds it, and whoever settles the run uses it.
#[derive(Debug)]
pub(crate) struct ReservedResultFile {
    dir: Utf8PathBuf,
    file: std::fs::File,
}

impl ReservedResultFile {
    /// Reserves it.
    pub(crate) fn create(dir: &Utf8Path) -> Result<ReservedResultFile, DiskError> {
        let path = dir.join(RESERVE_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file =
            untrusted_file::open_with(&mut options, &path).map_err(disk_error("create", &path))?;
        reserve(&file).map_err(disk_error("reserve space in", &path))?;
        Ok(ReservedResultFile { dir: dir.to_owned(), file })
    }

    /// Writes the result and gives it its name; fails if the run has one. Once this returns, it
    /// survives a power loss.
    pub(crate) fn write(self, result: &RunResult) -> Result<(), DiskError> {
        let (from, to) = (self.dir.join(RESERVE_FILE), self.dir.join(file::RESULT));
        let bytes = encode_bounded(result);
        self.file.write_all_at(&bytes, 0).map_err(disk_error("write", &from))?;
        self.file.set_len(bytes.len() as u64).map_err(disk_error("shorten", &from))?;
        OsDisk.sync(&self.file).map_err(disk_error("sync", &from))?;
        OsDisk.rename_new(&from, &to).map_err(disk_error("put in place", &to))?;
        OsDisk.sync_folder(&self.dir).map_err(disk_error("sync folder", &self.dir))
    }
}

fn reserve(file: &std::fs::File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESULT_BYTES_MAX as u64) {
        // Not every file system can. Bytes that are there take the space as well.
        Err(Errno::NOTSUP | Errno::NOSYS) => file.write_all_at(&[b' '; RESULT_BYTES_MAX], 0),
        result => Ok(result?),
    }
}

/// Returns the result as it is written: at most [`RESULT_BYTES_MAX`].
fn encode_bounded(result: &RunResult) -> Vec<u8> {
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
    let mut bytes = written(&result);
    if bytes.len() > RESULT_BYTES_MAX {
        result.cost.usage.per_model.clear();
        bytes = written(&result);
    }
    // What an output takes depends on what is in it.
    while bytes.len() > RESULT_BYTES_MAX
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
