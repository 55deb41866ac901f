//! `heeler start`: runs the fleet. This process is the daemon, or starts it in the background.

mod container_init;
mod memory_trimmer;
mod socket_server;
mod web_listener;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use clap::Args;
use clap::builder::FalseyValueParser;
use heeler_engine::fault::{self, FaultInjection};
use heeler_engine::logs::DAEMON_LOG;
use heeler_engine::{
    Daemon, DaemonExit, DaemonFile, DaemonMode, DaemonOpenError, DaemonOptions, DaemonSetup,
    RUNNER_SILENCE_MAX, SetupLoader, StateOpenError,
};
use heeler_model::config::ConfigDuration;
use heeler_model::error_chain;
use heeler_query::{FleetReader, QueryContext};
use heeler_server::{
    AccessControl, ConnectionCounter, LiveStreams, ServerMetrics, ServerState, WebEndpoint, bind,
};
use heeler_store::StoreOpenError;
use heeler_transcript::LockError;
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::context::{self, CommandContext};
use crate::daemon::{self, DaemonReadiness};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::logging;
use crate::open_file_limit;
use crate::output;

use self::socket_server::SocketServer;
use self::web_listener::WebListener;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "In the foreground it logs what happens to stderr until Ctrl-C, which waits for the jobs that run; a
second Ctrl-C leaves them to the next daemon. SIGTERM leaves them at once, SIGHUP reads the config
again. A daemon that stays serves the dashboard and the API on http://127.0.0.1:7878, unless `web:`
in the config says otherwise: heeler open logs you in. With -d it goes to the background and logs to `logs/heeler.log` in the state directory.

Commands that change something and find no daemon start one with --until-idle; `heeler start` takes
over from it. See docs/daemon.md for systemd and containers.

Exit codes: 0 ended or, with -d, ready; 2 a fault in the config; 5 another daemon runs, the port of
the dashboard is taken, or the state directory was moved or removed under it.";

/// How long another process that writes the state is waited for: most are done in a moment.
const STATE_LOCK_WAIT: Duration = Duration::from_secs(2);

/// The same where whoever started us waits and tries again.
const STATE_LOCK_WAIT_IN_BACKGROUND: Duration = Duration::from_millis(200);

/// The variable that says the same as `--no-web`.
const NO_WEB: &str = "HEELER_NO_WEB";

/// Our version, as other processes are told.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Arguments of `start`.
#[derive(Args)]
pub(crate) struct StartArgs {
    /// Go to the background once it is ready; print its process
    #[arg(short, long)]
    detach: bool,
    /// Keep no schedules, and end when nothing runs or waits
    #[arg(long)]
    until_idle: bool,
    /// Serve neither the dashboard nor the API, whatever the config says
    #[arg(long, env = NO_WEB, hide_env_values = true, value_parser = FalseyValueParser::new())]
    no_web: bool,
    /// Log JSON; with -d print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Be what -d starts
    #[arg(long, hide = true, conflicts_with = "detach")]
    in_background: bool,
    /// How long a runner may not answer before it is killed; for tests
    #[arg(long, hide = true, value_name = "PERIOD")]
    unheard_max: Option<ConfigDuration>,
    /// Die, as by kill -9, when a point is reached for the N-th time; for tests
    #[arg(long, hide = true, value_name = "POINT[:N]")]
    fault: Option<FaultInjection>,
    /// Be the first process of a container, whatever the process id
    #[arg(long, hide = true, conflicts_with = "detach")]
    as_init: bool,
}

impl StartArgs {
    /// Says whether this process is to be the daemon.
    pub(crate) fn is_daemon(&self) -> bool {
        !self.detach
    }

    fn mode(&self) -> DaemonMode {
        if self.until_idle { DaemonMode::UntilIdle } else { DaemonMode::Permanent }
    }
}

/// Starts.
pub(crate) fn run(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    // Started from within a run, we would end with it.
    heeler_runner::restart_without_marker()?;
    if args.detach {
        return start_detached(global, args);
    }
    if container_init::is_needed(args.as_init) {
        return container_init::run();
    }
    args.fault.into_iter().for_each(fault::arm);
    if args.in_background {
        return run_in_background(global, args);
    }
    let place = CommandContext::find(global)?.allow_new_state();
    let prepared = PreparedDaemonSetup::new(&place)?;
    if args.mode() == DaemonMode::Permanent {
        daemon::stop_idle_daemon(&place)?;
    }
    let daemon = match OpenDaemon::new(&place, prepared, args, STATE_LOCK_WAIT) {
        Err(DaemonStartFailure::Held(holder)) => {
            return Err(daemon::already_running(&place, &holder));
        }
        Err(DaemonStartFailure::Failed(failure)) => return Err(failure),
        Ok(open) => open,
    };
    daemon.run(global, &place, true)
}

/// Starts a daemon in the background and says where it is.
fn start_detached(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    let mut place = CommandContext::find(global)?.allow_new_state();
    if args.no_web {
        place.env.insert(NO_WEB.to_owned(), "1".to_owned());
    }
    // Faults of the config are shown here, where somebody looks.
    fleet_config::print_workflow_faults(&place, &PreparedDaemonSetup::new(&place)?.setup.loaded)?;
    let pid = match args.mode() {
        DaemonMode::Permanent => daemon::start_permanent(&place)?,
        DaemonMode::UntilIdle => daemon::connect_or_start(&place)?.daemon_info().pid,
    };
    let log = place.dir()?.logs().join(DAEMON_LOG);
    let url = daemon::read_daemon_file(&place)?.and_then(|file| file.url);
    if args.json {
        return Ok(output::print_json(&json!({ "pid": pid, "log": log, "url": url }))?);
    }
    output::print_line(format!("started: process {pid}, log {log}"))?;
    if let Some(url) = url {
        output::print_line(format!("dashboard: {url} (heeler open logs you in)"))?;
    }
    if !global.quiet {
        output::print_note("heeler status --watch shows it at work, heeler stop ends it")?;
    }
    Ok(())
}

/// Is a daemon that nobody looks at; whoever started it is told once how that went.
fn run_in_background(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    // Nobody's terminal, and nobody's Ctrl-C. Whoever leads a session already has none to leave.
    let _session = rustix::process::setsid();
    let place = CommandContext::find(global)
        .map(CommandContext::allow_new_state)
        .map_err(DaemonStartFailure::Failed);
    let opened = place.and_then(|place| {
        let prepared = PreparedDaemonSetup::new(&place).map_err(DaemonStartFailure::Failed)?;
        let open = OpenDaemon::new(&place, prepared, args, STATE_LOCK_WAIT_IN_BACKGROUND)?;
        Ok((place, open))
    });
    match opened {
        Ok((place, open)) => {
            report_readiness(&DaemonReadiness::Ready { pid: std::process::id() });
            open.run(global, &place, false)
        }
        Err(DaemonStartFailure::Held(holder)) => {
            report_readiness(&DaemonReadiness::Held { holder });
            Err(CommandFailure::silent(FailureCode::Refused))
        }
        Err(DaemonStartFailure::Failed(failure)) => {
            let CommandFailure { code, error, hint } = failure;
            report_readiness(&DaemonReadiness::Failed {
                code: code as u8,
                message: format!("{error:#}"),
                hint,
            });
            Err(CommandFailure::silent(code))
        }
    }
}

/// Tells whoever started us, who may have gone meanwhile.
fn report_readiness(readiness: &DaemonReadiness) {
    let mut line = serde_json::to_vec(readiness).expect("it is JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&line).and_then(|()| out.flush()));
}

/// A config that was read, and the way to read it again.
struct PreparedDaemonSetup {
    setup: DaemonSetup,
    load: SetupLoader,
}

impl PreparedDaemonSetup {
    fn new(place: &CommandContext) -> CommandResult<PreparedDaemonSetup> {
        let setup = fleet_config::daemon_setup(place, fleet_config::load(place)?)?;
        let again = place.clone();
        let load = Box::new(move || {
            let file = again.config_file().map_err(|failure| failure.text())?;
            let loaded = fleet_config::try_load(&again, file, &fleet_config::read_text);
            let loaded = loaded.map_err(|failure| failure.text())?;
            let loaded = loaded.map_err(|faults| fleet_config::faults_text(file, &faults))?;
            fleet_config::daemon_setup(&again, loaded).map_err(|failure| failure.text())
        });
        Ok(PreparedDaemonSetup { setup, load })
    }

    /// Returns what reads the config: the first time, what was read already.
    fn loader(self) -> SetupLoader {
        let PreparedDaemonSetup { setup, mut load } = self;
        let mut first = Some(setup);
        Box::new(move || first.take().map_or_else(&mut load, Ok))
    }
}

/// Why a daemon does not run.
enum DaemonStartFailure {
    /// Another process writes the state; who, in words.
    Held(String),
    /// Something else.
    Failed(CommandFailure),
}

impl<E: Into<CommandFailure>> From<E> for DaemonStartFailure {
    fn from(error: E) -> DaemonStartFailure {
        DaemonStartFailure::Failed(error.into())
    }
}

/// A daemon that can be talked to, and is about to work.
struct OpenDaemon {
    daemon: Daemon,
    file: DaemonFile,
    serving: SocketServer,
}

impl OpenDaemon {
    fn new(
        place: &CommandContext,
        prepared: PreparedDaemonSetup,
        args: &StartArgs,
        patience: Duration,
    ) -> Result<OpenDaemon, DaemonStartFailure> {
        // What herdctl left is adopted.
        let reader = place.open_reader()?;
        let root = prepared.setup.loaded.fleets.first();
        let logs = root.map(|fleet| fleet.logs);
        // Before anything is changed, since it may be taken.
        let web = match (args.mode(), root) {
            (DaemonMode::Permanent, Some(root)) if !args.no_web => {
                web_listener::listen(place, &root.web, reader.as_ref())?
            }
            _ => None,
        };
        drop(reader);
        let sockets = prepared.setup.sockets.clone();
        let surroundings = daemon::environment_hash(place)?;
        let mut fleet = context::engine_fleet(&place.state_dir, &place.env)?;
        open_file_limit::raise_limit(&mut fleet.env);
        let dir = fleet.dir.clone();
        let connections = match args.mode() {
            DaemonMode::Permanent => ConnectionCounter::default(),
            DaemonMode::UntilIdle => ConnectionCounter::with_expected_connection(),
        };
        let settings = DaemonOptions {
            fleet,
            load: prepared.loader(),
            mode: args.mode(),
            clients: connections.open(),
            version: VERSION.to_owned(),
            lock_timeout: patience,
            silence_max: args.unheard_max.map_or(RUNNER_SILENCE_MAX, ConfigDuration::get),
        };
        let daemon = Daemon::open(settings).map_err(to_start_failure)?;
        if let Some(limits) = logs {
            logging::log_to_file(&dir.logs().join(DAEMON_LOG), limits);
        }
        let (web, reach) = match web {
            Some(WebListener { listener, reach }) => {
                daemon
                    .ensure_api_token()
                    .map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
                (Some(listener), Some(reach))
            }
            None => (None, None),
        };
        // The state is ours, so what is there of a socket is a dead daemon's.
        let (listener, socket) = bind(&sockets, dir.root())?;
        let mut file = DaemonFile::this_process(socket, context::now(), VERSION, args.mode());
        file.surroundings = Some(surroundings);
        file.url = reach.as_ref().map(WebEndpoint::url);
        let outlook = daemon.snapshot();
        let known = outlook.clone();
        let records =
            FleetReader::new(dir.clone(), move || QueryContext::from_setup(&known.setup()));
        let metrics = Arc::<ServerMetrics>::default();
        heeler_server::start_telemetry(&outlook, records.clone(), Arc::clone(&metrics), VERSION)?;
        let app = Arc::new(ServerState {
            dispatcher: daemon.handle(),
            records,
            live_streams: LiveStreams::new(&outlook),
            metrics,
            expensive_reads: Arc::default(),
            fleet_monitor: outlook,
            access: Arc::new(AccessControl::new(&reach.unwrap_or_default())),
            version: VERSION.to_owned(),
            clock: context::now,
        });
        let serving = SocketServer::start(listener, web, app, connections)?;
        file.write(&dir).map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
        Ok(OpenDaemon { daemon, file, serving })
    }

    /// Works until the end.
    fn run(self, global: &GlobalArgs, place: &CommandContext, is_attended: bool) -> CommandResult {
        let OpenDaemon { daemon, file, serving } = self;
        let dir = place.dir()?;
        memory_trimmer::start_memory_trimmer()?;
        socket_server::handle_signals(daemon.handle(), is_attended && !global.quiet)?;
        tracing::info!(pid = file.pid, state = %dir.root(), url = file.url, "ready");
        if let Some(url) = file.url.as_ref().filter(|_| is_attended && !global.quiet) {
            output::print_note(&format!("dashboard: {url} (heeler open logs you in)"))?;
        }
        let ended = daemon.run(|| file.remove(&dir));
        serving.end();
        match ended {
            DaemonExit::Stopped => tracing::info!("stopped"),
            DaemonExit::Idle => tracing::info!("nothing is left to do"),
            DaemonExit::StateLost => return Err(state_lost_failure(dir.root())),
        }
        Ok(())
    }
}

/// Says that the state directory is gone.
fn state_lost_failure(root: &Utf8Path) -> CommandFailure {
    let message = format!(
        "the state directory {root} was removed, moved or replaced while this daemon worked in it; \
         jobs that run go on"
    );
    tracing::error!("{message}");
    // A service manager that started another would make an empty state where this one was.
    CommandFailure::message(FailureCode::Refused, message)
        .hint("if it was moved, move it back: heeler start takes them over")
}

fn to_start_failure(error: DaemonOpenError) -> DaemonStartFailure {
    match error {
        DaemonOpenError::Open(StateOpenError::Busy { source, .. }) => {
            DaemonStartFailure::Held(writer_name(&source))
        }
        DaemonOpenError::Config(text) => {
            DaemonStartFailure::Failed(CommandFailure::message(FailureCode::Usage, text))
        }
        error => DaemonStartFailure::Failed(
            CommandFailure::new(FailureCode::Failed, error).hint("heeler doctor"),
        ),
    }
}

/// Says who writes the state.
fn writer_name(error: &StoreOpenError) -> String {
    match error {
        StoreOpenError::Lock { source: LockError::Held { holder: Some(holder), .. }, .. } => {
            holder.to_string()
        }
        other => error_chain(other),
    }
}
