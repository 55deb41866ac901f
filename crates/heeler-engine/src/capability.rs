//! Capabilities: secrets with which processes of runs and hooks identify themselves to the daemon.
//!
//! A capability is created for one run or hook, passed to its runner through a pipe and to its
//! processes in an environment variable. The daemon stores only its hash: that of a run in the
//! database, so that it survives the daemon, and that of a hook in memory, so that a hook without a
//! daemon loses its permissions. Start at [`capability_text`] and [`HookGrants`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_config::{AgentName, HookPermissions};
use heeler_model::run::{AgentLaunchSpec, CAPABILITY_VARIABLE};
use heeler_model::{JobId, RunId, secret_hash};

use crate::access::AccessSecret;

/// Beginning of every capability. API tokens have another one.
const PREFIX: &str = "heeler-run.";

/// Returns the capability of a run or hook as text, with its secret.
fn capability_text(run: RunId, secret: &AccessSecret) -> String {
    format!("{PREFIX}{run}.{}", secret.reveal())
}

/// Returns the hash of a capability, for the record.
pub(crate) fn capability_hash(run: RunId, secret: &AccessSecret) -> String {
    secret_hash(&capability_text(run, secret))
}

/// Returns the run that a text names, if the text has the form of a capability. Anyone can write
/// such a text, so its hash must be compared with the record.
pub fn run_of_capability(text: &str) -> Option<RunId> {
    text.strip_prefix(PREFIX)?.split_once('.')?.0.parse().ok()
}

/// Adds a capability to the environment of an agent or hook, and to the secrets that its runner
/// removes from everything it writes.
pub(crate) fn add_capability(brief: &mut AgentLaunchSpec, run: RunId, secret: &AccessSecret) {
    let text = capability_text(run, secret);
    brief.secrets.push(text.clone());
    // Replaces the capability of another fleet's run, in which this fleet may run.
    brief.env.insert(CAPABILITY_VARIABLE.to_owned(), text);
}

/// Identity and permissions of a command hook.
#[derive(Debug, Clone)]
pub(crate) struct HookGrant {
    /// Hash of its capability.
    pub(crate) hash: String,
    /// Agent that the hook belongs to.
    pub(crate) agent: AgentName,
    /// Job that the hook follows.
    pub(crate) job: JobId,
    pub(crate) permissions: HookPermissions,
}

impl HookGrant {
    /// Returns the name of the hook for the record.
    pub(crate) fn name(&self) -> String {
        format!("hook of {} ({})", self.agent, self.job)
    }
}

/// Permissions of the command hooks that this daemon executes.
#[derive(Debug, Clone, Default)]
pub struct HookGrants {
    hooks: Arc<Mutex<HashMap<RunId, HookGrant>>>,
    /// First run of the agent's process that executes a later run of its conversation. The process
    /// has the capability of its first run.
    first_runs: Arc<Mutex<HashMap<RunId, RunId>>>,
}

impl HookGrants {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, HookGrant>> {
        // Nothing panics while the lock is held, so poisoning can be ignored.
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_first_runs(&self) -> MutexGuard<'_, HashMap<RunId, RunId>> {
        self.first_runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a run is passed to the agent's process of an earlier one.
    pub(crate) fn record_hand_over(&self, run: RunId, first: RunId) {
        self.lock_first_runs().insert(run, first);
    }

    /// Forgets the process of a run that has ended.
    pub(crate) fn forget_hand_over(&self, run: RunId) {
        self.lock_first_runs().remove(&run);
    }

    /// Returns true if the agent's process of `first` executes `run`.
    pub(crate) fn is_handed_over(&self, first: RunId, run: RunId) -> bool {
        self.lock_first_runs().get(&run) == Some(&first)
    }

    /// Grants a hook its permissions until the result is dropped.
    pub(crate) fn grant(&self, run: RunId, grant: HookGrant) -> ActiveHookGrant {
        self.lock().insert(run, grant);
        ActiveHookGrant { grants: self.clone(), run }
    }

    /// Returns the permissions of a live hook.
    pub(crate) fn get(&self, run: RunId) -> Option<HookGrant> {
        self.lock().get(&run).cloned()
    }

    /// Returns true if a text is the capability of this hook.
    pub(crate) fn is_capability(&self, run: RunId, text: &str) -> bool {
        // Hashes are compared, so the time of the comparison tells nothing about the secret.
        self.lock().get(&run).is_some_and(|grant| grant.hash == secret_hash(text))
    }
}

/// Permissions of a hook that is being executed.
#[derive(Debug)]
pub(crate) struct ActiveHookGrant {
    grants: HookGrants,
    run: RunId,
}

impl Drop for ActiveHookGrant {
    fn drop(&mut self) {
        self.grants.lock().remove(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u8) -> RunId {
        RunId::mint(jiff::Timestamp::UNIX_EPOCH, [number; 10])
    }

    #[test]
    fn a_capability_names_its_run_and_proves_itself_by_its_hash() {
        let secret = AccessSecret::new().unwrap();
        let text = capability_text(run(1), &secret);
        assert_eq!(run_of_capability(&text), Some(run(1)));
        assert_eq!(secret_hash(&text), capability_hash(run(1), &secret));
        assert_ne!(capability_hash(run(1), &secret), capability_hash(run(2), &secret));
        for other in ["", "heeler_0011", "heeler-run.x.y", "heeler-run."] {
            assert_eq!(run_of_capability(other), None, "{other}");
        }
    }

    #[test]
    fn a_hook_has_its_permissions_only_while_it_is_executed() {
        let (grants, secret) = (HookGrants::default(), AccessSecret::new().unwrap());
        let grant = HookGrant {
            hash: capability_hash(run(1), &secret),
            agent: "a".parse().unwrap(),
            job: "job-2026-01-02-abc123".parse().unwrap(),
            permissions: HookPermissions::default(),
        };
        let text = capability_text(run(1), &secret);
        grants.record_hand_over(run(2), run(1));
        assert!(grants.is_handed_over(run(1), run(2)) && !grants.is_handed_over(run(2), run(1)));
        grants.forget_hand_over(run(2));
        assert!(!grants.is_handed_over(run(1), run(2)));
        let active = grants.grant(run(1), grant);
        assert!(grants.is_capability(run(1), &text));
        assert!(!grants.is_capability(run(1), &format!("{text}0")));
        assert!(!grants.is_capability(run(2), &text));
        drop(active);
        assert!(!grants.is_capability(run(1), &text) && grants.get(run(1)).is_none());
    }
}
