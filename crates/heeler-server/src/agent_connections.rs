//! Limits on open connections of agents to the unix socket.
//!
//! They are counted apart from those of people, so that an agent cannot lock its owner out. Start at
//! [`AgentConnectionLimiter`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_model::RunId;

/// Most connections of the processes of one run. Processes whose run is unknown share one limit.
pub(crate) const CONNECTIONS_PER_RUN_MAX: usize = 32;

/// Most connections of all runs together.
const RUN_CONNECTIONS_MAX: usize = 1024;

/// Counts open connections by run.
#[derive(Debug, Clone, Default)]
pub(crate) struct AgentConnectionLimiter(Arc<Mutex<HashMap<Option<RunId>, usize>>>);

impl AgentConnectionLimiter {
    /// Admits a connection of a process of `run`; returns `None` at a limit.
    pub(crate) fn try_admit(&self, run: Option<RunId>) -> Option<AgentConnectionPermit> {
        let mut counts = self.lock();
        let total: usize = counts.values().sum();
        let count = counts.get(&run).copied().unwrap_or_default();
        if count >= CONNECTIONS_PER_RUN_MAX || total >= RUN_CONNECTIONS_MAX {
            return None;
        }
        counts.insert(run, count + 1);
        drop(counts);
        Some(AgentConnectionPermit { limiter: self.clone(), run })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<RunId>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Share of one connection, released when it is dropped.
#[derive(Debug)]
pub(crate) struct AgentConnectionPermit {
    limiter: AgentConnectionLimiter,
    run: Option<RunId>,
}

impl Drop for AgentConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.lock();
        if let Some(count) = counts.get_mut(&self.run) {
            *count -= 1;
            // Otherwise every run that ever connected would stay in the map.
            if *count == 0 {
                counts.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_cannot_take_the_connections_of_another() {
        let limiter = AgentConnectionLimiter::default();
        let run = |number| Some(RunId::mint(jiff::Timestamp::UNIX_EPOCH, [number; 10]));
        let mut taken: Vec<_> =
            (0..CONNECTIONS_PER_RUN_MAX).map(|_| limiter.try_admit(run(1)).unwrap()).collect();
        assert!(limiter.try_admit(run(1)).is_none());
        assert!(limiter.try_admit(run(2)).is_some() && limiter.try_admit(None).is_some());
        drop(taken.pop());
        assert!(limiter.try_admit(run(1)).is_some());
        drop(taken);
        assert!(limiter.lock().is_empty());
        let runs = RUN_CONNECTIONS_MAX / CONNECTIONS_PER_RUN_MAX;
        let all: Vec<_> = (0..RUN_CONNECTIONS_MAX)
            .map(|number| limiter.try_admit(run((number % runs) as u8)).unwrap())
            .collect();
        assert!(limiter.try_admit(None).is_none());
        drop(all);
    }
}
