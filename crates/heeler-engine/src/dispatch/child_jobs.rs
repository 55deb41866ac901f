//! Jobs that start jobs: limits on depth, number, agents and budget.
//!
//! A job requested by a process of a run becomes a child of that run's job. The limits of all its
//! ancestors apply. Start at [`DispatchTransaction::check_spawn`].

use std::sync::Arc;

use heeler_config::{AgentConfig, compare_rights, describe_differences};
use heeler_model::budget_ledger::{RESERVATION_DEFAULT, RESERVATION_MIN};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{Job, JobId, JobRequest};
use heeler_store::DatabaseError;

use super::transaction::DispatchTransaction;
use crate::command::{DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use heeler_store::session_lineage::{ANCESTORS_MAX, lineage_jobs, parent_of};

/// Names that no worker may have, because views use them for the agent that starts workers.
const RESERVED_WORKER_NAMES: [&str; 2] = ["main", "coordinator"];

const WORKER_NAME_BYTES_MAX: usize = 64;

impl DispatchTransaction<'_, '_> {
    /// Returns the name of a job's worker: the requested name, the name of the session that the job
    /// continues, or the agent's name with the next number.
    pub(super) fn worker_name(
        &self,
        parent: &JobId,
        wanted: &JobRequest,
    ) -> Result<String, DispatchFailure> {
        let mut known: Vec<Job> = Vec::new();
        // Names are unique in the whole conversation, which may consist of several jobs.
        for id in lineage_jobs(self.tx, parent)? {
            for id in self.tx.jobs_spawned_by(&id)? {
                known.extend(self.tx.job(&id)?);
            }
        }
        let session = match &wanted.session {
            SessionChoice::Given { id } => Some(id),
            _ => None,
        };
        let own =
            known.iter().filter(|job| session.is_some() && job.head.session_id.as_ref() == session);
        let own = own.filter_map(Job::worker).next();
        let is_taken = |name: &str| known.iter().any(|job| job.worker() == Some(name));
        let usage = |message: String| {
            Err(DaemonCommandError::new(DaemonCommandErrorKind::Usage, message).into())
        };
        // A worker that is continued in its session keeps its name.
        match (&wanted.worker, own) {
            (None, Some(own)) => Ok(own.to_owned()),
            (None, None) => Ok(next_worker_name(wanted.agent.as_str(), &known)),
            (Some(name), own) if own == Some(name.as_str()) => Ok(name.clone()),
            (Some(name), _) if !is_worker_name(name) => usage(format!(
                "`{name}` is not a valid worker name: letters, digits, `-`, `_` and, not first, `.`; \
                 at most {WORKER_NAME_BYTES_MAX}, and not {}",
                RESERVED_WORKER_NAMES.join(" or ")
            )),
            (Some(name), _) if is_taken(name) => {
                usage(format!("worker {name} already exists; message it, or choose another name"))
            }
            (Some(name), _) => Ok(name.clone()),
        }
    }

    /// Checks that a job may start a job of an agent. Returns the budget left for it, in millionths
    /// of a dollar; `None` means that only its own limits apply. `own` is the new job, if it is
    /// already queued.
    pub(super) fn check_spawn(
        &self,
        parent: &JobId,
        agent: &AgentConfig,
        own: Option<&JobId>,
    ) -> Result<Option<i64>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let mut left: Option<i64> = None;
        let mut above = self.tx.job(parent)?;
        // The limit also ends the walk if damaged records form a circle.
        for depth in 1..=ANCESTORS_MAX {
            let Some(job) = above else { break };
            let id = &job.head.id;
            let refuse = |why: String| {
                let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, why);
                Err(refused
                    .with_hint(format!("`spawn` of {} in the config", job.head.agent))
                    .into())
            };
            // The rules of an agent that no longer exists are unknown, so they allow nothing.
            let Some(owner) = setup.agent(&job.head.agent) else {
                return refuse(format!("the agent of {id} is not in the config any more"));
            };
            let rules = &owner.spawn;
            if depth > rules.max_depth as usize {
                let most = rules.max_depth;
                return refuse(format!("{id} may start jobs at most {most} levels deep"));
            }
            if let Err(why) = check_target(owner, agent) {
                return refuse(format!("{id} may not start jobs of {}: {why}", agent.name));
            }
            // One more than allowed, because the new job itself may be among them.
            let mut below = self.descendants(id, rules.max_jobs as usize + 1)?;
            // A queued job is checked again at its start, and must not count against itself.
            below.retain(|job| Some(&job.head.id) != own);
            if below.len() >= rules.max_jobs as usize {
                return refuse(format!("{id} has started {} jobs, the maximum", below.len()));
            }
            if let Some(budget) = owner.budget.as_ref().and_then(|budget| budget.job) {
                let budget = i64::try_from(budget.micros()).unwrap_or(i64::MAX);
                let spent = below.iter().map(|job| self.spent_or_reserved(job));
                let spent: i64 = spent.sum::<Result<i64, DatabaseError>>()?;
                let rest = budget.saturating_sub(spent);
                // A run with less than the smallest reservation could not start.
                if rest < RESERVATION_MIN {
                    return refuse(format!("the jobs that {id} started have spent its budget"));
                }
                // The strictest ancestor counts.
                left = Some(left.map_or(rest, |left| left.min(rest)));
            }
            above = match parent_of(&job) {
                Some(parent) => self.tx.job(&parent)?,
                None => None,
            };
        }
        Ok(left)
    }

    /// Lists the jobs that a job started, directly or indirectly, until there are `enough`.
    fn descendants(&self, job: &JobId, enough: usize) -> Result<Vec<Job>, DatabaseError> {
        let mut found: Vec<Job> = Vec::new();
        let mut parents = vec![job.clone()];
        while let Some(parent) = parents.pop() {
            for id in self.tx.jobs_spawned_by(&parent)? {
                found.extend(self.tx.job(&id)?);
                parents.push(id);
            }
            if found.len() >= enough {
                break;
            }
        }
        Ok(found)
    }

    fn spent_or_reserved(&self, job: &Job) -> Result<i64, DatabaseError> {
        let spent = self.tx.spent_by_job(&job.head.id)?;
        if job.head.status.is_final() {
            return Ok(spent);
        }
        let live = self.state.fleet.runs().values().find(|live| live.job == job.head.id);
        // A job that has not started counts with the default, or many at once would pass the limit.
        let held = live.and_then(|live| live.budget_micros).unwrap_or(RESERVATION_DEFAULT);
        Ok(spent.saturating_add(held))
    }
}

/// Checks that an agent may start another: it must be named, and must not have more rights.
fn check_target(owner: &AgentConfig, agent: &AgentConfig) -> Result<(), String> {
    let AgentConfig { name: own, spawn: rules, .. } = owner;
    if !rules.agents.contains(&agent.name) {
        return Err(format!("`spawn.agents` of {own} does not name it"));
    }
    if rules.elevate.contains(&agent.name) {
        return Ok(());
    }
    match compare_rights(owner, agent) {
        more if more.is_empty() => Ok(()),
        more => Err(format!(
            "it has more rights than {own} ({}), and `spawn.elevate` of {own} does not name it",
            describe_differences(&more)
        )),
    }
}

/// Returns the agent's name with a number higher than all used ones.
fn next_worker_name(agent: &str, known: &[Job]) -> String {
    let agent = agent.rsplit('.').next().unwrap_or(agent);
    let number = |job: &Job| {
        let (of, number) = job.worker()?.rsplit_once('-')?;
        number.parse::<u64>().ok().filter(|_| of == agent)
    };
    let last = known.iter().filter_map(number).max().unwrap_or(0);
    format!("{agent}-{}", last.saturating_add(1))
}

fn is_worker_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=WORKER_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with('.')
        && !RESERVED_WORKER_NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_a_name_that_is_a_file_and_nobody_elses() {
        for name in ["coder-1", "Ada", "a.b", "_", "main-1", &"x".repeat(WORKER_NAME_BYTES_MAX)] {
            assert!(is_worker_name(name), "{name}");
        }
        let long = "x".repeat(WORKER_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", ".x", "a/b", "a b", "ä", "main", "coordinator", &long] {
            assert!(!is_worker_name(name), "{name}");
        }
    }
}
