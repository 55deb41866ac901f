//! Irrevocable limits of an agent's processes, which the kernel passes to all their descendants.
//!
//! No process of an agent can gain privileges; the kernel shows this as `NoNewPrivs` in
//! `/proc/PID/status`, by which the daemon and the runners recognize agents. Where the kernel has
//! Landlock, processes of an agent also can neither signal nor inspect processes outside it: not the
//! runner, the daemon or other agents. Files are limited if the config asks for it, by the rules of
//! [`file_limits`](super::file_limits). Start at [`AgentConfinement`].

use std::io;

use landlock::{CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetCreated, Scope};

/// Limits that a new agent process applies to itself between fork and exec.
pub(super) struct AgentConfinement {
    /// `None` if the kernel cannot limit signals.
    signals: Option<RulesetCreated>,
    /// `None` if the config limits no files.
    files: Option<RulesetCreated>,
}

impl AgentConfinement {
    /// Prepares the limits before the fork, because nothing may be allocated after it.
    pub(super) fn prepare(files: Option<RulesetCreated>) -> AgentConfinement {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let signals = ruleset.scope(Scope::Signal).and_then(Ruleset::create);
        if let Err(error) = &signals {
            tracing::debug!(%error, "signals of the agent cannot be limited");
        }
        AgentConfinement { signals: signals.ok(), files }
    }

    /// Applies the limits to this process. For use after a fork: allocates nothing.
    pub(super) fn apply(&mut self) -> io::Result<()> {
        // Without the mark an agent would count as a person, so it does not start without it.
        rustix::thread::set_no_new_privs(true)?;
        // An agent with limited files never runs without the limit.
        if let Some(files) = self.files.take() {
            files.restrict_self().map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        }
        // The limit of signals is an additional defence. A kernel may refuse it, for example in a
        // deep nesting of fleets.
        let _limited = self.signals.take().map(RulesetCreated::restrict_self);
        Ok(())
    }
}
