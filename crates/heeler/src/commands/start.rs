//! `heeler start`: runs the daemon in this process or in the background. Start at [`run`].

mod container_init;
mod host_facts;
mod memory_trimmer;
mod open_standby;
mod serving;
mod socket_server;
mod start_failure;
mod web_listener;

use std::io::Write as _;
use std::num::NonZeroU16;
use std::time::Duration;

use camino::Utf8Path;
use clap::Args;
use clap::builder::FalseyValueParser;
#[cfg(feature = "fault-points")]
use heeler_config::ConfigDuration;
use heeler_config::{ConfigFaults, WebConfig, WebPort};
#[cfg(feature = "fault-points")]
use heeler_engine::fault::{self, FaultInjection};
use heeler_engine::logs::DAEMON_LOG;
use heeler_engine::{
    ApiTokenError, Daemon, DaemonExit, DaemonMode, DaemonOpenError, DaemonOptions, DaemonSetup,
    RUNNER_SILENCE_MAX, SetupLoader, StandbyExit, StateOpenError, remove_daemon_file,
};
use heeler_model::redact::SecretRedactor;
use heeler_model::{LocalName, error_chain};
use heeler_server::ConnectionCounter;
use heeler_store::{DaemonFile, DatabaseOpenError, HostLease, StoreOpenError};
use heeler_transcript::LockError;
use serde_json::json;

use crate::config_changes;
use crate::context::CommandContext;
use crate::daemon::{self, DaemonReadiness};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::{self, RecordedLoad};
use crate::global_args::GlobalArgs;
use crate::logging;
use crate::open_file_limit;
use crate::output;
use crate::process_env;
use crate::store_setting;
use crate::trust::{self, UnlistedFleet};

use self::host_facts::HostOptionArgs;
use self::open_standby::OpenStandby;
use self::socket_server::SocketServer;
use self::start_failure::DaemonStartFailure;

/// Help footer of `start`.
pub(crate) const ABOUT: &str = "In the foreground, the daemon logs to stderr. Ctrl-C ends it after its running jobs have finished. A
second Ctrl-C, or SIGTERM, ends it at once; the jobs continue, and the next daemon takes them over.
SIGHUP rereads the config. With -d, the daemon runs in the background and logs to `logs/heeler.log` in
the state directory.
The dashboard and the API are on the first free port from http://127.0.0.1:7878 on, unless `web:` in
the config sets another address; `heeler status` and `heeler open` name it.
`heeler open` opens the dashboard and logs you in.

Commands that change something and find no daemon start a temporary one (--until-idle). It keeps no
schedules and serves no dashboard; `heeler start` replaces it. See docs/daemon.md for systemd and
containers.

With --host, several machines share a fleet on PostgreSQL: one leads, the others stand by. The name is
recorded, so later starts need it no more. So are --label and --max-concurrent. See docs/hosts.md.

Exit codes: 0 the daemon ended or, with -d, is ready; 2 invalid config; 5 another daemon runs, the dashboard's port is
taken, or the state directory was moved or removed while the daemon ran; 6 not trusted (see heeler trust), or
changed while a job ran (see heeler reload --accept).";

/// Time to wait for another process that writes the state; most need only a moment.
const STATE_LOCK_WAIT: Duration = Duration::from_secs(2);

/// The same in the background, where the starting process waits and retries.
const STATE_LOCK_WAIT_IN_BACKGROUND: Duration = Duration::from_millis(200);

/// Variable with the effect of `--no-web`.
const NO_WEB: &str = "HEELER_NO_WEB";

/// Variable with the effect of `--web`, for the background process.
const WITH_WEB: &str = "HEELER_WEB";

/// Variable with the effect of `--web-port`, for the background process.
const WEB_PORT: &str = "HEELER_WEB_PORT";

/// Variable with the effect of `--host`, for the background process.
const HOST: &str = "HEELER_HOST";

/// Version as reported to other processes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Arguments of `start`.
#[derive(Args)]
pub(crate) struct StartArgs {
    /// Run in the background; return once ready, and print the process ID
    #[arg(short, long)]
    detach: bool,
    /// Run without schedules, and exit when no job is running or queued
    #[arg(long)]
    until_idle: bool,
    /// Serve neither dashboard nor API, overriding the config
    #[arg(long, env = NO_WEB, hide_env_values = true, value_parser = FalseyValueParser::new())]
    no_web: bool,
    /// Serve the dashboard and the API even if the config turns them off
    #[arg(long, env = WITH_WEB, hide_env = true, value_parser = FalseyValueParser::new())]
    web: bool,
    /// Serve the dashboard and the API on this port, overriding the config
    #[arg(long, value_name = "PORT", env = WEB_PORT, hide_env = true)]
    web_port: Option<NonZeroU16>,
    /// Run as this host of a fleet on PostgreSQL: lead it, or stand by (see docs/hosts.md)
    #[arg(long, value_name = "NAME", env = HOST, hide_env = true, conflicts_with = "until_idle")]
    host: Option<LocalName>,
    #[command(flatten)]
    host_options: HostOptionArgs,
    /// Log JSON; with -d, print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Act as the process that -d starts
    #[arg(long, hide = true, conflicts_with = "detach")]
    in_background: bool,
    /// Longest silence of a runner before it is killed; for tests
    #[cfg(feature = "fault-points")]
    #[arg(long, hide = true, value_name = "PERIOD")]
    unheard_max: Option<ConfigDuration>,
    /// Length of the leases of new runs, on a host of a fleet; for tests
    #[cfg(feature = "fault-points")]
    #[arg(long, hide = true, value_name = "PERIOD")]
    run_lease: Option<ConfigDuration>,
    /// Die, as by kill -9, when a fault point is reached for the Nth time; for tests
    #[cfg(feature = "fault-points")]
    #[arg(long, hide = true, value_name = "POINT[:N]")]
    fault: Option<FaultInjection>,
    /// Act as the first process of a container, whatever the process ID
    #[arg(long, hide = true, conflicts_with = "detach")]
    as_init: bool,
}

impl StartArgs {
    /// Returns true if this process becomes the daemon.
    pub(crate) fn is_daemon(&self) -> bool {
        !self.detach
    }

    #[cfg(feature = "fault-points")]
    fn silence_max(&self) -> Duration {
        self.unheard_max.map_or(RUNNER_SILENCE_MAX, ConfigDuration::get)
    }

    #[cfg(not(feature = "fault-points"))]
    fn silence_max(&self) -> Duration {
        RUNNER_SILENCE_MAX
    }

    #[cfg(feature = "fault-points")]
    fn host_lease(&self) -> HostLease {
        self.run_lease.map_or_else(HostLease::default, |length| HostLease::new(length.get()))
    }

    #[cfg(not(feature = "fault-points"))]
    fn host_lease(&self) -> HostLease {
        HostLease::default()
    }

    /// Returns the web settings of the config with the changes of the options.
    fn web_settings(&self, config: &WebConfig) -> WebConfig {
        let mut web = config.clone();
        let is_wanted = self.web || self.web_port.is_some();
        web.enabled = is_wanted || (web.enabled && !self.no_web);
        if let Some(port) = self.web_port {
            web.port = WebPort::Fixed(port);
        }
        web
    }

    fn mode(&self) -> DaemonMode {
        if self.until_idle { DaemonMode::UntilIdle } else { DaemonMode::Permanent }
    }
}

/// Runs `start`.
pub(crate) fn run(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    // A daemon started inside a run would be killed together with that run.
    heeler_runner::restart_without_marker()?;
    if args.detach {
        return start_detached(global, args);
    }
    // Before anything is opened: the daemon is then a child of this process.
    if container_init::is_needed(args.as_init) {
        return container_init::run();
    }
    // The environment holds secrets that agents must not read from this process.
    heeler_process::hide_own_memory()?;
    #[cfg(feature = "fault-points")]
    args.fault.into_iter().for_each(fault::arm);
    if args.in_background {
        return run_in_background(global, args);
    }
    let context = CommandContext::find(global)?.allow_new_state();
    trust::require(&context, UnlistedFleet::Ask)?;
    config_changes::require(&context)?;
    // Check the config first: an invalid one must not end a daemon that works.
    let prepared = PreparedDaemonSetup::new(&context)?;
    if args.mode() == DaemonMode::Permanent {
        daemon::stop_idle_daemon(&context)?;
    }
    let phases = DaemonPhases { global, context: &context, args, is_attended: true };
    match phases.run(prepared, STATE_LOCK_WAIT, || {}) {
        Err(DaemonStartFailure::Held(holder)) => Err(daemon::already_running(&context, &holder)),
        Err(DaemonStartFailure::Failed(failure)) => Err(failure),
        Err(DaemonStartFailure::Led) => Err(led_failure()),
        Ok(()) => Ok(()),
    }
}

/// Returns the failure of a daemon that is not a host of a fleet that another host leads.
fn led_failure() -> CommandFailure {
    let message = "another host leads this fleet";
    CommandFailure::message(FailureCode::Refused, message).hint("heeler start --host NAME")
}

/// The life of a daemon. A host of several leads the fleet or stands by, and changes from one to the
/// other.
struct DaemonPhases<'c> {
    global: &'c GlobalArgs,
    context: &'c CommandContext,
    args: &'c StartArgs,
    is_attended: bool,
}

impl DaemonPhases<'_> {
    /// Runs until the daemon ends. Calls `ready` when it accepts connections for the first time.
    fn run(
        &self,
        prepared: PreparedDaemonSetup,
        patience: Duration,
        ready: impl FnOnce(),
    ) -> Result<(), DaemonStartFailure> {
        let DaemonPhases { global, context, args, is_attended } = *self;
        // Before anything is opened: a new state directory takes the setting.
        let store = prepared.setup.loaded.fleets.first().and_then(|fleet| fleet.store.as_ref());
        store_setting::settle_store_location(context, store, args.host.as_ref())?;
        // A new state directory is created later.
        let is_host = context.state_dir.is_dir() && context.dir()?.host().is_some();
        if args.mode() == DaemonMode::UntilIdle && is_host {
            let message = "this state directory is a host of a fleet, and its daemon does not run";
            let failure = CommandFailure::message(FailureCode::Refused, message);
            return Err(DaemonStartFailure::Failed(failure.hint("heeler start")));
        }
        let (mut prepared, mut ready) = (Some(prepared), Some(ready));
        let mut prepare = || match prepared.take() {
            Some(prepared) => Ok(prepared),
            None => PreparedDaemonSetup::new(context),
        };
        loop {
            match OpenDaemon::new(context, prepare()?, args, patience) {
                Ok(open) => {
                    ready.take().into_iter().for_each(|ready| ready());
                    if open.run(global, context, is_attended)? == DaemonExit::LeadLost {
                        // Another life begins, with nothing of this one.
                        open_file_limit::undo_raise();
                        return Err(heeler_runner::restart_process().into());
                    }
                    return Ok(());
                }
                Err(DaemonStartFailure::Led) => {}
                Err(failure) => return Err(failure),
            }
            let open = OpenStandby::new(context, prepare()?, args, patience)?;
            ready.take().into_iter().for_each(|ready| ready());
            if open.run(global, context, is_attended)? != StandbyExit::Promoted {
                return Ok(());
            }
        }
    }
}

/// Starts a daemon in the background, and prints its process and address.
fn start_detached(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    let mut context = CommandContext::find(global)?.allow_new_state();
    // The background process has fixed arguments, so the options go by its environment.
    let options = [
        (NO_WEB, args.no_web.then(|| "1".to_owned())),
        (WITH_WEB, args.web.then(|| "1".to_owned())),
        (WEB_PORT, args.web_port.map(|port| port.to_string())),
        (HOST, args.host.as_ref().map(ToString::to_string)),
    ];
    let options = options.into_iter().chain(args.host_options.variables());
    let given = options.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    context.env.extend(given);
    trust::require(&context, UnlistedFleet::Ask)?;
    config_changes::require(&context)?;
    // Show config faults here: the background process has no terminal.
    fleet_config::print_workflow_faults(
        &context,
        &PreparedDaemonSetup::new(&context)?.setup.loaded,
    )?;
    let pid = match args.mode() {
        DaemonMode::Permanent => daemon::start_permanent(&context)?,
        // A daemon that runs already serves the purpose, whichever mode it has.
        DaemonMode::UntilIdle => daemon::connect_or_start(&context)?.daemon_info().pid,
    };
    let log = context.dir()?.logs().join(DAEMON_LOG);
    // The daemon chooses the port, so only it can tell the address.
    let url = daemon::connect(&context)?.and_then(|client| client.daemon_info().url.clone());
    if args.json {
        return Ok(output::print_json(&json!({ "pid": pid, "log": log, "url": url }))?);
    }
    output::print_line(format!("started: process {pid}, log {log}"))?;
    if let Some(url) = url {
        output::print_line(format!("dashboard: {url} (heeler open logs you in)"))?;
    }
    if !global.quiet {
        output::print_note("heeler status --watch shows the fleet, heeler stop ends the daemon")?;
    }
    Ok(())
}

/// Runs the daemon in the background; reports success or failure once to the starting process.
fn run_in_background(global: &GlobalArgs, args: &StartArgs) -> CommandResult {
    // Leave the terminal, so that its Ctrl-C does not end the daemon. Fails for a session leader,
    // which has left already.
    let _session = rustix::process::setsid();
    let context = CommandContext::find(global)
        .map(CommandContext::allow_new_state)
        .map_err(DaemonStartFailure::Failed);
    let mut is_ready = false;
    let ended = context.and_then(|context| {
        let prepared = PreparedDaemonSetup::new(&context).map_err(DaemonStartFailure::Failed)?;
        let phases = DaemonPhases { global, context: &context, args, is_attended: false };
        phases.run(prepared, STATE_LOCK_WAIT_IN_BACKGROUND, || {
            // Only once connections are accepted: the starting process connects at once.
            report_readiness(&DaemonReadiness::Ready { pid: std::process::id() });
            is_ready = true;
        })
    });
    let failure = match ended {
        Ok(()) => return Ok(()),
        Err(DaemonStartFailure::Held(holder)) => {
            report_readiness(&DaemonReadiness::Held { holder });
            // The starting process prints the failure; here it would only repeat it in the log.
            return Err(CommandFailure::silent(FailureCode::Refused));
        }
        Err(DaemonStartFailure::Led) => led_failure(),
        Err(DaemonStartFailure::Failed(failure)) => failure,
    };
    match is_ready {
        // The starting process has ended; the log is for this failure.
        true => Err(failure),
        false => {
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

/// Reports to the starting process, which may have ended meanwhile.
fn report_readiness(readiness: &DaemonReadiness) {
    // The newline marks a complete report: without it the reader assumes a crash.
    let mut line = serde_json::to_vec(readiness).expect("it is JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&line).and_then(|()| out.flush()));
}

/// A loaded config, and the function that loads it again.
struct PreparedDaemonSetup {
    setup: DaemonSetup,
    load: SetupLoader,
}

impl PreparedDaemonSetup {
    fn new(context: &CommandContext) -> CommandResult<PreparedDaemonSetup> {
        let setup = match load_setup(context)? {
            Ok(setup) => setup,
            Err(faults) => {
                fleet_config::print_faults(context, &faults)?;
                return Err(CommandFailure::message(FailureCode::Usage, faults.summary()));
            }
        };
        // Again when the state is open; here nothing has been stopped or changed yet.
        let redactor = SecretRedactor::new(&setup.secrets());
        config_changes::check(context, &setup.content, &redactor)?;
        // Each reload reads the same config file with the environment of the daemon's start.
        let again = context.clone();
        let load = Box::new(move || {
            let file = again.config_file().map_err(|failure| failure.text())?;
            let setup = load_setup(&again).map_err(|failure| failure.text())?;
            setup.map_err(|faults| fleet_config::faults_text(file, &faults))
        });
        Ok(PreparedDaemonSetup { setup, load })
    }

    /// Returns the config loader; its first call returns the config that is already loaded.
    fn loader(self) -> SetupLoader {
        let PreparedDaemonSetup { setup, mut load } = self;
        // The config was just checked; loading it again could give another one.
        let mut first = Some(setup);
        Box::new(move || first.take().map_or_else(&mut load, Ok))
    }
}

/// Loads the config for a daemon: the one way to it, however it is started.
fn load_setup(context: &CommandContext) -> CommandResult<Result<DaemonSetup, ConfigFaults>> {
    let RecordedLoad { loaded, content, env } =
        fleet_config::load_recorded(context, context.config_file()?)?;
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => return Ok(Err(faults)),
    };
    trust::check(context, &loaded)?;
    Ok(Ok(fleet_config::daemon_setup(context, loaded, content, env)?))
}

fn connection_counter(mode: DaemonMode) -> ConnectionCounter {
    match mode {
        DaemonMode::Permanent => ConnectionCounter::default(),
        // Otherwise it could end before the command that started it has connected.
        DaemonMode::UntilIdle => ConnectionCounter::with_expected_connection(),
    }
}

/// A daemon that accepts connections and is about to start work.
struct OpenDaemon {
    daemon: Daemon,
    file: DaemonFile,
    serving: SocketServer,
}

impl OpenDaemon {
    fn new(
        context: &CommandContext,
        prepared: PreparedDaemonSetup,
        args: &StartArgs,
        patience: Duration,
    ) -> Result<OpenDaemon, DaemonStartFailure> {
        let root = prepared.setup.loaded.fleets.first();
        // A reader cannot open a database of an older release, and the daemon upgrades it anyway.
        context.migrate_database()?;
        // Adopts a herdctl state directory.
        let reader = context.open_reader()?;
        let logs = root.map(|fleet| fleet.logs);
        // Bind the port first: if it is taken, nothing has been changed yet.
        let web = match (args.mode(), root) {
            (DaemonMode::Permanent, Some(root)) => {
                web_listener::listen(context, &args.web_settings(&root.web), reader.as_ref())?
            }
            _ => None,
        };
        drop(reader);
        let sockets = prepared.setup.sockets.clone();
        let mut fleet = process_env::engine_fleet(&context.state_dir, &context.env)?;
        // Before the first runner starts: it must learn the original limit.
        open_file_limit::raise_limit(&mut fleet.env);
        fleet.host_lease = args.host_lease();
        let dir = fleet.dir.clone();
        let connections = connection_counter(args.mode());
        let settings = DaemonOptions {
            fleet,
            load: prepared.loader(),
            mode: args.mode(),
            clients: connections.open(),
            version: VERSION.to_owned(),
            lock_timeout: patience,
            silence_max: args.silence_max(),
            host: host_facts::host_facts(&dir, web.as_ref(), &args.host_options, VERSION)?,
        };
        // From here on this process holds the state lock.
        let mut daemon = Daemon::open(settings).map_err(to_start_failure)?;
        // Only the holder of the lock may rotate the log file.
        if let Some(limits) = logs {
            logging::log_to_file(&dir.logs().join(DAEMON_LOG), limits);
        }
        if web.is_some() {
            prepare_token_file(&daemon)
                .map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
        }
        let (handle, monitor) = (daemon.handle(), daemon.snapshot());
        let (mode, parts) = (args.mode(), (handle, monitor));
        let (file, serving) =
            serving::start_serving(context, &dir, &sockets, mode, web, parts, connections)?;
        daemon.keep_files(&file)?;
        Ok(OpenDaemon { daemon, file, serving })
    }

    /// Runs the daemon until it ends.
    fn run(
        self,
        global: &GlobalArgs,
        context: &CommandContext,
        is_attended: bool,
    ) -> CommandResult<DaemonExit> {
        let OpenDaemon { daemon, file, serving } = self;
        let dir = context.dir()?;
        // Loading the config has left much free memory behind.
        memory_trimmer::start_memory_trimmer()?;
        socket_server::handle_signals(daemon.handle(), is_attended && !global.quiet)?;
        tracing::info!(pid = file.pid, state = %dir.root(), url = file.url, "ready");
        if let Some(url) = file.url.as_ref().filter(|_| is_attended && !global.quiet) {
            output::print_note(&format!("dashboard: {url} (heeler open logs you in)"))?;
        }
        // The file is removed under the lock, so it is never that of the next daemon.
        let ended = daemon.run(|| remove_daemon_file(&file, &dir));
        // After the dispatcher: the reply to `heeler stop` is sent last.
        serving.end();
        match ended {
            DaemonExit::Stopped => tracing::info!("stopped"),
            DaemonExit::Idle => tracing::info!("idle: no job is running or queued"),
            DaemonExit::StateLost => return Err(state_lost_failure(dir.root())),
            DaemonExit::LeadLost => tracing::warn!("does not lead any more; begins again"),
        }
        Ok(ended)
    }
}

/// Keeps the token file if the config asks for it, and otherwise revokes the token of an earlier
/// version.
fn prepare_token_file(daemon: &Daemon) -> Result<(), ApiTokenError> {
    let setup = daemon.snapshot().setup();
    if setup.loaded.fleets.first().is_some_and(|fleet| fleet.web.token_file) {
        return daemon.ensure_api_token();
    }
    if daemon.retire_api_token()? {
        tracing::warn!(
            "the token in the file api-token was revoked and the file removed: every agent could \
             read it; `heeler token create` makes another, `web: {{token_file: true}}` keeps a file"
        );
    }
    Ok(())
}

/// Returns the failure for a state directory that vanished.
fn state_lost_failure(root: &Utf8Path) -> CommandFailure {
    let message = format!(
        "the state directory {root} was removed, moved or replaced while this daemon used it; \
         running jobs continue"
    );
    tracing::error!("{message}");
    // This exit code stops a service manager from starting a new daemon with an empty state.
    CommandFailure::message(FailureCode::Refused, message)
        .hint("if it was moved, move it back; heeler start then takes the jobs over")
}

fn to_start_failure(error: DaemonOpenError) -> DaemonStartFailure {
    match error {
        // The caller may wait for this one; all other failures are final.
        DaemonOpenError::Open(StateOpenError::Store(error)) if is_led(&error) => {
            DaemonStartFailure::Led
        }
        DaemonOpenError::Open(StateOpenError::Busy { source, .. }) => {
            DaemonStartFailure::Held(writer_name(&source))
        }
        DaemonOpenError::HeldChange(change) => {
            DaemonStartFailure::Failed(config_changes::refusal(&change))
        }
        DaemonOpenError::Config(text) => {
            DaemonStartFailure::Failed(CommandFailure::message(FailureCode::Usage, text))
        }
        // Nothing is damaged, so the hint at `doctor` would mislead.
        DaemonOpenError::Open(StateOpenError::Store(error)) if is_forbidden(&error) => {
            DaemonStartFailure::Failed(CommandFailure::new(FailureCode::Refused, error))
        }
        error => DaemonStartFailure::Failed(
            CommandFailure::new(FailureCode::Failed, error).hint("heeler doctor"),
        ),
    }
}

fn is_led(error: &StoreOpenError) -> bool {
    matches!(error, StoreOpenError::Open(DatabaseOpenError::Led { .. }))
}

fn is_forbidden(error: &StoreOpenError) -> bool {
    matches!(error, StoreOpenError::Lock { source: LockError::Forbidden { .. }, .. })
}

/// Describes the process that writes the state.
fn writer_name(error: &StoreOpenError) -> String {
    match error {
        // A process that has just taken the lock may not have written its name yet.
        StoreOpenError::Lock { source: LockError::Held { holder: Some(holder), .. }, .. } => {
            holder.to_string()
        }
        other => error_chain(other),
    }
}
