//! Clones in which the phases of one workflow run work (`workspace: per-run`).
//!
//! A clone appears complete, before the first phase of its run starts, and its name has the ID of the
//! run. So a run never sees the files of another one, and an interrupted clone is simply made again.
//! Start at [`ensure_run_clone`].

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::workflow::RunClonePolicy;
use heeler_config::{AgentConfig, RepoConfig};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{PhaseJobRequest, WorkflowRunId, error_chain};
use heeler_store::{StateDir, StoreReader, WorkflowRunHead};
use heeler_transcript::{OsDisk, create_folder};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::checkout::{CLONE_MARK, clone_to, is_missing};

/// Time for which the clone of a run that has succeeded is kept.
const SUCCEEDED_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// Time for which the clone of any other ended run is kept: it may be retried or examined.
const FAILED_KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Minimum age of a clone of an unknown run, or of a part of one, before it is removed.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Number of characters of the hash of a repository's address.
const HASH_CHARS: usize = 16;

/// Returns the clone that a part of a workflow run works in. `None` if the agent has no repository.
pub(crate) fn run_clone_path(
    dir: &StateDir,
    agent: &AgentConfig,
    phase: &PhaseJobRequest,
) -> Option<Utf8PathBuf> {
    let (policy, repo) = (phase.run_clone?, agent.repo.as_ref()?);
    let hash: String =
        Sha256::digest(repo.address()).iter().map(|byte| format!("{byte:02x}")).collect();
    // Agents with the same repository share the clone.
    Some(dir.worktrees().join(format!("{policy}.{}.{}", phase.run, &hash[..HASH_CHARS])))
}

/// Returns true if [`ensure_run_clone`] would clone.
pub(crate) fn needs_run_clone(
    dir: &StateDir,
    agent: &AgentConfig,
    phase: &PhaseJobRequest,
) -> bool {
    run_clone_path(dir, agent, phase).is_some_and(|path| is_missing(&path))
}

/// Makes the clone of a workflow run if it is missing. Returns `None` if the run has none, and the
/// reason if it cannot be made.
pub(crate) fn ensure_run_clone(
    dir: &StateDir,
    reader: &StoreReader,
    (agent, phase): (&AgentConfig, &PhaseJobRequest),
    env: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<Option<Utf8PathBuf>, String> {
    let Some(policy) = phase.run_clone else { return Ok(None) };
    let name = &agent.name;
    let (Some(path), Some(repo)) = (run_clone_path(dir, agent, phase), &agent.repo) else {
        return Err(format!(
            "the agent `{name}` has no `repo` any more, of which the run needs a clone"
        ));
    };
    if !is_missing(&path) {
        return Ok(Some(path));
    }
    let run = reader.workflow_run(&phase.run).map_err(|error| error_chain(&error))?;
    let run = run.map(|row| row.head).ok_or_else(|| format!("there is no run {}", phase.run))?;
    if let Some(wanted) = foreign_subject(&run, repo) {
        return Err(format!(
            "the run is about {wanted}, and `repo` of the agent `{name}` is {}: give the workflow an \
             agent for {wanted}",
            repo.address()
        ));
    }
    create_folder(&OsDisk, &dir.worktrees()).map_err(|error| error_chain(&error))?;
    remove_old_clones(dir, reader, now);
    if policy == RunClonePolicy::PerTarget {
        remove_clones(dir, |clone| is_earlier(reader, clone, &run));
    }
    // A lock per clone would leave a file of each run.
    let hash = path.as_str().rsplit('.').next().unwrap_or_default();
    let lock = format!(".run-clones.{}.lock", &hash[..1]);
    clone_to(&path, (agent, repo), env, lock, now).map_err(|error| error_chain(&error))?;
    Ok(Some(path))
}

/// Returns the repository of a run if it is another one than the agent's. A repository on this
/// machine has no name on GitHub.
fn foreign_subject(run: &WorkflowRunHead, repo: &RepoConfig) -> Option<String> {
    let wanted = format!("{}/{}", run.owner.as_ref()?, run.repo.as_ref()?);
    let address = repo.address().trim_end_matches('/').trim_end_matches(".git");
    let is_remote = (address.contains("://") && !address.starts_with("file://"))
        || (address.contains('@') && address.contains(':'));
    let address = address.to_lowercase();
    let is_it =
        address.strip_suffix(&wanted.to_lowercase()).is_some_and(|host| host.ends_with(['/', ':']));
    (is_remote && !is_it).then_some(wanted)
}

/// A clone in the state directory, by its name.
struct FoundClone {
    policy: RunClonePolicy,
    run: WorkflowRunId,
    path: Utf8PathBuf,
}

impl FoundClone {
    fn parse(path: &Utf8Path) -> Option<FoundClone> {
        let (rest, _hash) = path.file_name()?.rsplit_once('.')?;
        let (policy, run) = rest.split_once('.')?;
        Some(FoundClone {
            policy: policy.parse().ok()?,
            run: run.parse().ok()?,
            path: path.to_owned(),
        })
    }
}

/// Returns true for the clone of an earlier run about the same issue or pull request that has ended.
fn is_earlier(reader: &StoreReader, clone: &FoundClone, run: &WorkflowRunHead) -> bool {
    if clone.policy != RunClonePolicy::PerTarget || clone.run == run.id {
        return false;
    }
    let earlier = reader.workflow_run(&clone.run).ok().flatten().map(|row| row.head);
    earlier.is_some_and(|earlier| {
        earlier.status.is_final()
            && (&earlier.workflow, &earlier.trigger_id) == (&run.workflow, &run.trigger_id)
    })
}

/// Removes the clones of runs that ended long ago, and what interrupted clones left.
pub(crate) fn remove_old_clones(dir: &StateDir, reader: &StoreReader, now: Timestamp) {
    remove_clones(dir, |clone| {
        let Ok(run) = reader.workflow_run(&clone.run) else { return false };
        let Some(run) = run.map(|row| row.head) else { return is_orphan(&clone.path, now) };
        let kept = match (run.status, clone.policy) {
            (WorkflowRunStatus::Succeeded, RunClonePolicy::PerRun) => SUCCEEDED_KEPT,
            _ => FAILED_KEPT,
        };
        let ended = run.finished_at.filter(|_| run.status.is_final());
        ended.is_some_and(|ended| now.duration_since(ended) > kept)
    });
    for entry in dir.worktrees().read_dir_utf8().into_iter().flatten().flatten() {
        let is_part = entry.file_name().starts_with('.') && entry.file_name().contains(CLONE_MARK);
        if is_part && entry.path().is_dir() && is_orphan(entry.path(), now) {
            remove(entry.path());
        }
    }
}

fn remove_clones(dir: &StateDir, is_due: impl Fn(&FoundClone) -> bool) {
    let entries = dir.worktrees().read_dir_utf8().into_iter().flatten().flatten();
    let clones = entries.filter_map(|entry| FoundClone::parse(entry.path()));
    for clone in clones.filter(|clone| is_due(clone)) {
        remove(&clone.path);
    }
}

/// Removes a directory. Links in it are removed, not followed.
fn remove(path: &Utf8Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(%path, %error, "cannot remove the clone of a workflow run");
    }
}

/// Returns true if a directory is older than any clone takes to create.
fn is_orphan(path: &Utf8Path, now: Timestamp) -> bool {
    let made = path.symlink_metadata().and_then(|found| found.modified()).ok();
    let made = made.and_then(|made| Timestamp::try_from(made).ok());
    made.is_some_and(|made| now.duration_since(made) > ORPHAN_AGE)
}

#[cfg(test)]
mod tests;
