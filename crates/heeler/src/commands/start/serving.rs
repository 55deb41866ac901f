//! The servers of a daemon: its socket and its web listener. Start at [`start_serving`].

use std::sync::Arc;

use camino::Utf8Path;
use heeler_engine::{DaemonHandle, DaemonMode, FleetMonitor, write_daemon_file};
use heeler_model::error_chain;
use heeler_query::FleetReader;
use heeler_server::{
    AccessControl, ConnectionCounter, DaemonInfo, LiveStreams, ServerMetrics, ServerState,
    StateIdentity, WebEndpoint, bind,
};
use heeler_store::{DaemonFile, StateDir};

use super::VERSION;
use super::socket_server::SocketServer;
use super::start_failure::DaemonStartFailure;
use super::web_listener::WebListener;
use crate::context::CommandContext;
use crate::daemon;
use crate::process_env;
use crate::web_config_editor::WebConfigEditor;

/// Accepts connections, and writes the daemon's file. This process holds the lock of the state
/// directory.
pub(super) fn start_serving(
    context: &CommandContext,
    dir: &StateDir,
    sockets: &Utf8Path,
    mode: DaemonMode,
    web: Option<WebListener>,
    (dispatcher, monitor): (DaemonHandle, FleetMonitor),
    connections: ConnectionCounter,
) -> Result<(DaemonFile, SocketServer), DaemonStartFailure> {
    let (web, reach) = match web {
        Some(WebListener { listener, reach }) => (Some(listener), Some(reach)),
        None => (None, None),
    };
    // This process holds the state lock, so an existing socket belongs to a dead daemon.
    let (listener, socket) = bind(sockets, dir.root())?;
    let mut file = DaemonFile::this_process(socket, process_env::now(), VERSION, mode);
    // The next command compares it with its own to decide whether this daemon is outdated.
    file.surroundings = Some(daemon::environment_hash(context)?);
    file.url = reach.as_ref().map(WebEndpoint::url);
    let metrics = Arc::<ServerMetrics>::default();
    let known = monitor.clone();
    let records =
        FleetReader::new(dir.clone(), move || heeler_server::query_context(&known.setup()));
    heeler_server::start_telemetry(&monitor, records.clone(), Arc::clone(&metrics), VERSION)?;
    let app = Arc::new(ServerState {
        dispatcher,
        records,
        live_streams: LiveStreams::new(&monitor),
        metrics,
        expensive_reads: Arc::default(),
        job_lists: Arc::default(),
        reply_redactor: Arc::default(),
        config_editor: Some(Arc::new(WebConfigEditor::new(context.clone()))),
        fleet_monitor: monitor,
        access: Arc::new(AccessControl::new(&reach.unwrap_or_default())),
        version: VERSION.to_owned(),
        daemon_info: daemon_info(&file, dir.root())?,
        clock: process_env::now,
    });
    // The socket must accept connections before the file names it to clients.
    let serving = SocketServer::start(listener, web, app, connections)?;
    // Commands find the daemon without the file, which is for people and scripts.
    if let Err(error) = write_daemon_file(&file, dir) {
        tracing::warn!("{}; it is tried again", error_chain(&error));
    }
    Ok((file, serving))
}

/// Returns what the daemon tells clients about itself; they do not believe its file.
fn daemon_info(file: &DaemonFile, state_dir: &Utf8Path) -> std::io::Result<DaemonInfo> {
    Ok(DaemonInfo {
        pid: file.pid,
        version: VERSION.to_owned(),
        state: Some(StateIdentity::of(state_dir)?),
        mode: Some(file.mode),
        surroundings: file.surroundings,
        url: file.url.clone(),
    })
}
