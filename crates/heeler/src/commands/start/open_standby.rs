//! A host that stands by: it serves reads and passes commands on to the leader. Start at
//! [`OpenStandby`].

use std::time::Duration;

use heeler_engine::logs::DAEMON_LOG;
use heeler_engine::{StandbyDaemon, StandbyExit, StandbyOptions, remove_daemon_file};
use heeler_store::{DaemonFile, StoreReader};

use super::host_facts::host_facts;
use super::serving::start_serving;
use super::socket_server::{self, SocketServer};
use super::start_failure::DaemonStartFailure;
use super::{
    PreparedDaemonSetup, StartArgs, VERSION, connection_counter, memory_trimmer,
    state_lost_failure, to_start_failure, web_listener,
};
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::logging;
use crate::output;
use crate::process_env;

/// A host that accepts connections and stands by.
pub(super) struct OpenStandby {
    standby: StandbyDaemon,
    file: DaemonFile,
    serving: SocketServer,
}

impl OpenStandby {
    pub(super) fn new(
        context: &CommandContext,
        prepared: PreparedDaemonSetup,
        args: &StartArgs,
        patience: Duration,
    ) -> Result<OpenStandby, DaemonStartFailure> {
        let mut fleet = process_env::engine_fleet(&context.state_dir, &context.env)?;
        fleet.host_lease = args.host_lease();
        let dir = fleet.dir.clone();
        let root = prepared.setup.loaded.fleets.first();
        let logs = root.map(|fleet| fleet.logs);
        // The leader may not have created the tables yet.
        let reader = StoreReader::open(&dir).ok();
        let web = match root {
            Some(root) => {
                web_listener::listen(context, &args.web_settings(&root.web), reader.as_ref())?
            }
            None => None,
        };
        drop(reader);
        let sockets = prepared.setup.sockets.clone();
        let connections = connection_counter(args.mode());
        let options = StandbyOptions {
            fleet,
            load: prepared.loader(),
            facts: host_facts(&dir, web.as_ref(), &args.host_options, VERSION)?.unwrap_or_default(),
            lock_timeout: patience,
            silence_max: args.silence_max(),
        };
        let standby = StandbyDaemon::open(options).map_err(to_start_failure)?;
        // Only the holder of the lock may rotate the log file.
        if let Some(limits) = logs {
            logging::log_to_file(&dir.logs().join(DAEMON_LOG), limits);
        }
        let parts = (standby.handle(), standby.snapshot());
        let (file, serving) =
            start_serving(context, &dir, &sockets, args.mode(), web, parts, connections)?;
        Ok(OpenStandby { standby, file, serving })
    }

    /// Runs until it is stopped or takes the lead.
    pub(super) fn run(
        self,
        global: &GlobalArgs,
        context: &CommandContext,
        is_attended: bool,
    ) -> CommandResult<StandbyExit> {
        let OpenStandby { standby, file, serving } = self;
        let dir = context.dir()?;
        memory_trimmer::start_memory_trimmer()?;
        socket_server::handle_signals(standby.handle(), is_attended && !global.quiet)?;
        let host = dir.host().map(|host| host.name.to_string());
        tracing::info!(pid = file.pid, state = %dir.root(), url = file.url, host, "stands by");
        if is_attended && !global.quiet {
            let url = file.url.as_ref().map(|url| format!("; dashboard: {url}"));
            output::print_note(&format!(
                "another host leads; this one stands by{}",
                url.unwrap_or_default()
            ))?;
        }
        // The file is removed under the lock, so it is never that of the next daemon.
        let ended = standby.run(|| remove_daemon_file(&file, &dir));
        // The replies to the last commands are sent first.
        serving.end();
        match ended {
            StandbyExit::Stopped => tracing::info!("stopped"),
            StandbyExit::Promoted => tracing::info!("takes the lead"),
            StandbyExit::StateLost => return Err(state_lost_failure(dir.root())),
        }
        Ok(ended)
    }
}
