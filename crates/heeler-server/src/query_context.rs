//! The query context of a running daemon.

use std::sync::Arc;

use heeler_engine::DaemonSetup;
use heeler_query::QueryContext;

/// Creates the context in which the daemon answers queries.
pub fn query_context(setup: &DaemonSetup) -> QueryContext {
    QueryContext {
        config: Some(setup.config.clone()),
        loaded: Some(Arc::clone(&setup.loaded)),
        env: setup.env.clone(),
        home: Some(setup.home.clone()),
        zone: setup.zone.clone(),
    }
}
