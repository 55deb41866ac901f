//! Changes of the config files: which are loaded at once, and which wait for a person.
//!
//! Start at [`Dispatcher::check_held_change`]; [`crate::config_guard`] defines the terms.

use std::time::{Duration, Instant};

use heeler_model::JobId;
use heeler_model::config_change::HeldConfigChange;
use heeler_model::redact::SecretRedactor;
use heeler_store::DatabaseError;
use jiff::Timestamp;

use super::deferred_work::{ConfigCheck, HeldChangeCache};
use super::dispatcher::Dispatcher;
use super::dispatcher_state::DispatcherState;
use super::event::DispatchEvent;
use super::transaction::DispatchTransaction;
use crate::command::{DaemonCommandError, DaemonCommandErrorKind, PendingReply};
use crate::config_files::{ConfigFileStamps, read_content_again};
use crate::config_guard::ConfigGuard;
use crate::setup::DaemonSetup;

/// Delay of the first repeated check; each further one waits twice as long.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(50);

/// Longest delay between two checks.
const CHECK_DELAY_MAX: Duration = Duration::from_secs(10);

/// The way to load a change that is held.
const ACCEPT_HINT: &str =
    "heeler reload --accept shows the change and asks; or undo the change, and nothing is asked";

impl DispatchTransaction<'_, '_> {
    /// Records that a run of a job can change the config files from now on.
    pub(super) fn expose_config(&mut self, job: &JobId) -> Result<(), DatabaseError> {
        let DispatcherState { config_guard, setup, redactor, .. } = &mut *self.state;
        let context = (&**redactor, self.now);
        config_guard.expose(self.tx, job, context, || read_content_again(&setup.content))
    }

    /// Records a config that is about to be used.
    pub(super) fn guard_setup(
        &mut self,
        setup: &DaemonSetup,
        is_confirmed: bool,
    ) -> Result<(), DatabaseError> {
        let DispatcherState { config_guard, fleet, .. } = &mut *self.state;
        let redactor = SecretRedactor::new(&setup.secrets());
        if is_confirmed {
            config_guard.accept(self.tx, &setup.content, &redactor)?;
        }
        if !config_guard.is_exposed() {
            // Runs of an earlier release, or of a state without this record.
            let jobs: Vec<JobId> = fleet.runs().values().map(|live| live.job.clone()).collect();
            for job in jobs {
                let context = (&redactor, self.now);
                config_guard.expose(self.tx, &job, context, || setup.content.clone())?;
            }
        }
        // A change that was confirmed or undone is over at once, unless an agent is left.
        self.end_config_exposure()
    }

    /// Records that people alone can change the config files, if that is so.
    pub(super) fn end_config_exposure(&mut self) -> Result<(), DatabaseError> {
        let has_runs = !self.state.fleet.runs().is_empty();
        let guard = &self.state.config_guard;
        match has_runs || !is_unchanged_without_agents(guard, self.dir.root(), self.now) {
            true => Ok(()),
            false => self.state.config_guard.end_exposure(self.tx),
        }
    }
}

impl Dispatcher {
    /// Refuses a config that was changed while a run was alive, unless a person has confirmed
    /// exactly this content.
    pub(super) fn check_held_change(
        &mut self,
        new: &DaemonSetup,
        confirmed: Option<&str>,
    ) -> Result<(), DaemonCommandError> {
        let unconfirmed = |message: String, hint: &str| {
            DaemonCommandError::new(DaemonCommandErrorKind::Unconfirmed, message).with_hint(hint)
        };
        if confirmed.is_some_and(|confirmed| confirmed != new.content.fingerprint()) {
            let message = "not loaded: the files have changed again since the change was shown";
            return Err(unconfirmed(message.to_owned(), ACCEPT_HINT));
        }
        let held = {
            let state = self.state();
            state.config_guard.held_change(&new.content, &state.redactor)
        };
        match held {
            Some(change) if confirmed.is_none() => Err(unconfirmed(change.summary(), ACCEPT_HINT)),
            _ => Ok(()),
        }
    }

    /// Confirms the content on disk without loading it, if it is the one that a person has written.
    pub(super) fn confirm_config(
        &mut self,
        fingerprint: &str,
        owed: PendingReply,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        let checked = (self.load)()
            .map_err(|why| DaemonCommandError::new(DaemonCommandErrorKind::Usage, why))
            .and_then(|new| self.check_held_change(&new, Some(fingerprint)).map(|()| new));
        match checked {
            Ok(new) => Some((DispatchEvent::ConfigConfirmed(Box::new(new.content)), Some(owed))),
            Err(refused) => {
                owed.send(Err(refused));
                None
            }
        }
    }

    /// Returns the change on disk that waits for a person.
    pub(super) fn held_config_change(&mut self) -> Option<HeldConfigChange> {
        let (guard, redactor) = {
            let state = self.state();
            (state.config_guard.clone(), std::sync::Arc::clone(&state.redactor))
        };
        if !guard.is_exposed() {
            return None;
        }
        let baseline = guard.baseline().fingerprint();
        if let Some(known) = self.deferred.held_change.as_ref().filter(|it| it.baseline == baseline)
            && known.stamps == ConfigFileStamps::of_files(guard.baseline(), &known.listed)
        {
            let jobs = guard.jobs().to_vec();
            return known.change.clone().map(|change| HeldConfigChange { jobs, ..change });
        }
        let on_disk = read_content_again(guard.baseline());
        // The config may name further files, which a person must see too. One with faults cannot be
        // loaded, and only its known files are shown.
        let mut load = || match guard.baseline().covers(&on_disk) {
            true => on_disk.clone(),
            false => (self.load)().map_or_else(
                |_| on_disk.clone(),
                |setup| setup.content.redacted(&SecretRedactor::new(&setup.secrets())),
            ),
        };
        // The first time tells which files there are. Their stamps are taken before the content that
        // counts is read, so that a change in between is noticed the next time.
        let listed = load();
        let stamps = ConfigFileStamps::of_files(guard.baseline(), &listed);
        let content = load();
        let change = guard.held_change(&content, &redactor);
        let held = HeldChangeCache { baseline, stamps, listed, change: change.clone() };
        self.deferred.held_change = Some(held);
        change
    }

    /// Ends the exposure of the config files, if that is possible now.
    pub(super) fn check_config_exposure(&mut self) {
        let now = (self.fleet.now)();
        let is_over = {
            let state = self.state();
            state.fleet.runs().is_empty()
                && is_unchanged_without_agents(&state.config_guard, self.fleet.dir.root(), now)
        };
        if is_over {
            self.commit(vec![(DispatchEvent::ConfigUnexposed, None)]);
        }
    }

    /// Checks again, from time to time, whether a process of an agent is left or a change was undone.
    pub(super) fn retry_config_check(&mut self) {
        let is_waiting = {
            let state = self.state();
            state.config_guard.is_exposed() && state.fleet.runs().is_empty()
        };
        if !is_waiting {
            self.deferred.config_check = None;
            return;
        }
        let now = Instant::now();
        let delay = match &self.deferred.config_check {
            None => FIRST_CHECK_DELAY,
            Some(check) if check.at > now => return,
            Some(check) => (check.delay * 2).min(CHECK_DELAY_MAX),
        };
        self.check_config_exposure();
        self.deferred.config_check = Some(ConfigCheck { at: Instant::now() + delay, delay });
    }
}

/// Returns true if the config is exposed, no process of an agent is left, and the files are what
/// they were.
fn is_unchanged_without_agents(
    guard: &ConfigGuard,
    state_dir: &camino::Utf8Path,
    now: Timestamp,
) -> bool {
    // The processes first: one that is left could change a file after it was read.
    guard.is_exposed()
        && !heeler_process::has_agent_process(state_dir, guard.agent_age_max(now))
        && guard.baseline().covers(&read_content_again(guard.baseline()))
}
