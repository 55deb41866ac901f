//! The fetch of missed webhook deliveries, once per daemon.
//!
//! The time of the last complete fetch is recorded after all its events were handled. A daemon that
//! dies before that is followed by one that fetches them again; each event is handled once, because
//! deliveries are remembered. Start at [`EffectExecutor::fetch_missed_deliveries`].

use std::sync::Arc;

use heeler_model::error_chain;
use heeler_store::StoreReader;
use jiff::Timestamp;

use super::{EffectExecutor, ExecutorContext};
use crate::command::{DaemonCommand, DaemonCommandErrorKind};
use crate::dispatch_input::{DELIVERIES_FETCHED_UNTIL, DispatchInput};
use crate::fault::{self, FaultPoint};
use crate::github::{
    DELIVERY_MARGIN, GithubConnections, fetch_missed_calls, wants_missed_deliveries,
};

impl EffectExecutor {
    /// Fetches the deliveries that earlier daemons did not receive.
    pub(crate) fn fetch_missed_deliveries(&self) {
        if !wants_missed_deliveries(&self.shared.setup()) {
            return;
        }
        let (shared, connections, fetch) =
            (Arc::clone(&self.shared), self.github.connections(), self.github.delivery_fetch());
        self.github.submit_search(move || {
            let begun = (shared.fleet.now)();
            match fetch_and_handle(&shared, &connections, begun) {
                Ok(()) => {
                    fault::reach(FaultPoint::DeliveriesHandled);
                    let until = begun.checked_sub(DELIVERY_MARGIN).unwrap_or(begun);
                    shared.send_input(DispatchInput::DeliveriesFetched { until });
                }
                Err(reason) => {
                    tracing::warn!(reason, "missed webhook deliveries were not all fetched");
                    fetch.retry_later();
                }
            }
        });
    }
}

/// Fetches and handles missed deliveries. An error means that some may be left.
fn fetch_and_handle(
    shared: &Arc<ExecutorContext>,
    connections: &GithubConnections,
    now: Timestamp,
) -> Result<(), String> {
    let reader = StoreReader::open(&shared.fleet.dir).map_err(|error| error_chain(&error))?;
    let since = reader.meta(DELIVERIES_FETCHED_UNTIL).map_err(|error| error_chain(&error))?;
    drop(reader);
    // A fleet that never listened before has missed nothing.
    let Some(since) = since.and_then(|text| text.parse::<Timestamp>().ok()) else { return Ok(()) };
    let setup = shared.setup();
    let connection = connections.get(&setup, shared.fleet.now)?;
    let calls = fetch_missed_calls(&setup, &connection, since, now);
    let calls = calls.map_err(|error| error_chain(&error))?;
    let mut left = 0_usize;
    for call in calls {
        let (agent, schedule) = (call.agent.clone(), call.schedule.clone());
        match shared.dispatcher.send_and_wait(DaemonCommand::Webhook(Box::new(call))) {
            Ok(_) => tracing::info!(agent, schedule, "handled a missed webhook delivery"),
            Err(refused) => {
                tracing::warn!(agent, schedule, reason = refused.message, "refused a delivery");
                let may_succeed_later = matches!(
                    refused.kind,
                    DaemonCommandErrorKind::Busy | DaemonCommandErrorKind::Trouble
                );
                left += usize::from(may_succeed_later);
            }
        }
    }
    match left {
        0 => Ok(()),
        _ => Err(format!("{left} of them could not be handled yet")),
    }
}
