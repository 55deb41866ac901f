//! `heeler start`: runs the fleet. This process is the daemon, or starts it in the background.

mod init;
mod memory;
mod serving;
mod web;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use clap::Args;
use clap::builder::FalseyValueParser;
use heeler_engine::fault::{self, Fault};
use heeler_engine::logs::DAEMON_LOG;
use heeler_engine::{
    Daemon, DaemonError, DaemonFile, DaemonMode, Ended, Loader, OpenError, Settings, Setup,
    UNHEARD_MAX,
};
use heeler_model::chain;
use heeler_model::config::Period;
use heeler_query::{Known, Records};
use heeler_server::{Access, Connections, Live, Metrics, Reach, Served, bind};
use heeler_store::StoreError;
use heeler_transcript::LockError;
use serde_json::json;

use crate::cli::Global;
use crate::daemon::{self, Readiness};
use crate::failure::{Code, Failure, Outcome};
use crate::files;
use crate::fleet;
use crate::logging;
use crate::output;
use crate::place::{self, Place};

use self::serving::Serving;
use self::web::Listening;

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
const PATIENCE: Duration = Duration::from_secs(2);

/// The same where whoever started us waits and tries again.
const PATIENCE_IN_BACKGROUND: Duration = Duration::from_millis(200);

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
    unheard_max: Option<Period>,
    /// Die, as by kill -9, when a point is reached for the N-th time; for tests
    #[arg(long, hide = true, value_name = "POINT[:N]")]
    fault: Option<Fault>,
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
pub(crate) fn run(global: &Global, args: &StartArgs) -> Outcome {
    // Started from within a run, we would end with it.
    heeler_runner::shed_marker()?;
    if args.detach {
        return detached(global, args);
    }
    if init::is_needed(args.as_init) {
        return init::run();
    }
    args.fault.into_iter().for_each(fault::arm);
    if args.in_background {
        return in_background(global, args);
    }
    let place = Place::find(global)?.may_be_new();
    let prepared = Prepared::new(&place)?;
    if args.mode() == DaemonMode::Permanent {
        daemon::make_way(&place)?;
    }
    let daemon = match Open::new(&place, prepared, args, PATIENCE) {
        Err(NotOpen::Held(holder)) => return Err(daemon::second(&place, &holder)),
        Err(NotOpen::Failed(failure)) => return Err(failure),
        Ok(open) => open,
    };
    daemon.run(global, &place, true)
}

/// Starts a daemon in the background and says where it is.
fn detached(global: &Global, args: &StartArgs) -> Outcome {
    let mut place = Place::find(global)?.may_be_new();
    if args.no_web {
        place.env.insert(NO_WEB.to_owned(), "1".to_owned());
    }
    // Faults of the config are shown here, where somebody looks.
    fleet::print_faulty(&place, &Prepared::new(&place)?.setup.loaded)?;
    let pid = match args.mode() {
        DaemonMode::Permanent => daemon::start_permanent(&place)?,
        DaemonMode::UntilIdle => daemon::connect_or_start(&place)?.hello().pid,
    };
    let log = place.dir()?.logs().join(DAEMON_LOG);
    let url = daemon::file(&place)?.and_then(|file| file.url);
    if args.json {
        return Ok(output::json(&json!({ "pid": pid, "log": log, "url": url }))?);
    }
    output::line(format!("started: process {pid}, log {log}"))?;
    if let Some(url) = url {
        output::line(format!("dashboard: {url} (heeler open logs you in)"))?;
    }
    if !global.quiet {
        output::note("heeler status --watch shows it at work, heeler stop ends it")?;
    }
    Ok(())
}

/// Is a daemon that nobody looks at; whoever started it is told once how that went.
fn in_background(global: &Global, args: &StartArgs) -> Outcome {
    // Nobody's terminal, and nobody's Ctrl-C. Whoever leads a session already has none to leave.
    let _session = rustix::process::setsid();
    let place = Place::find(global).map(Place::may_be_new).map_err(NotOpen::Failed);
    let opened = place.and_then(|place| {
        let prepared = Prepared::new(&place).map_err(NotOpen::Failed)?;
        let open = Open::new(&place, prepared, args, PATIENCE_IN_BACKGROUND)?;
        Ok((place, open))
    });
    match opened {
        Ok((place, open)) => {
            tell(&Readiness::Ready { pid: std::process::id() });
            open.run(global, &place, false)
        }
        Err(NotOpen::Held(holder)) => {
            tell(&Readiness::Held { holder });
            Err(Failure::silent(Code::Refused))
        }
        Err(NotOpen::Failed(failure)) => {
            let Failure { code, error, hint } = failure;
            tell(&Readiness::Failed { code: code as u8, message: format!("{error:#}"), hint });
            Err(Failure::silent(code))
        }
    }
}

/// Tells whoever started us, who may have gone meanwhile.
fn tell(readiness: &Readiness) {
    let mut line = serde_json::to_vec(readiness).expect("it is JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&line).and_then(|()| out.flush()));
}

/// A config that was read, and the way to read it again.
struct Prepared {
    setup: Setup,
    load: Loader,
}

impl Prepared {
    fn new(place: &Place) -> Outcome<Prepared> {
        let setup = fleet::setup(place, fleet::load(place)?)?;
        let again = place.clone();
        let load = Box::new(move || {
            let file = again.config_file().map_err(|failure| failure.text())?;
            let loaded = fleet::try_load(&again, file, &fleet::read_text);
            let loaded = loaded.map_err(|failure| failure.text())?;
            let loaded = loaded.map_err(|faults| fleet::faults_text(file, &faults))?;
            fleet::setup(&again, loaded).map_err(|failure| failure.text())
        });
        Ok(Prepared { setup, load })
    }

    /// Returns what reads the config: the first time, what was read already.
    fn loader(self) -> Loader {
        let Prepared { setup, mut load } = self;
        let mut first = Some(setup);
        Box::new(move || first.take().map_or_else(&mut load, Ok))
    }
}

/// Why a daemon does not run.
enum NotOpen {
    /// Another process writes the state; who, in words.
    Held(String),
    /// Something else.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for NotOpen {
    fn from(error: E) -> NotOpen {
        NotOpen::Failed(error.into())
    }
}

/// A daemon that can be talked to, and is about to work.
struct Open {
    daemon: Daemon,
    file: DaemonFile,
    serving: Serving,
}

impl Open {
    fn new(
        place: &Place,
        prepared: Prepared,
        args: &StartArgs,
        patience: Duration,
    ) -> Result<Open, NotOpen> {
        // What herdctl left is adopted.
        let reader = place.reader()?;
        let root = prepared.setup.loaded.fleets.first();
        let logs = root.map(|fleet| fleet.logs);
        // Before anything is changed, since it may be taken.
        let web = match (args.mode(), root) {
            (DaemonMode::Permanent, Some(root)) if !args.no_web => {
                web::listen(place, &root.web, reader.as_ref())?
            }
            _ => None,
        };
        drop(reader);
        let sockets = prepared.setup.sockets.clone();
        let surroundings = daemon::surroundings(place)?;
        let mut fleet = place::engine(&place.state_dir, &place.env)?;
        files::raise(&mut fleet.env);
        let dir = fleet.dir.clone();
        let connections = match args.mode() {
            DaemonMode::Permanent => Connections::default(),
            DaemonMode::UntilIdle => Connections::expecting_one(),
        };
        let settings = Settings {
            fleet,
            load: prepared.loader(),
            mode: args.mode(),
            clients: connections.open(),
            version: VERSION.to_owned(),
            patience,
            unheard_max: args.unheard_max.map_or(UNHEARD_MAX, Period::get),
        };
        let daemon = Daemon::open(settings).map_err(not_open)?;
        if let Some(limits) = logs {
            logging::keep_in(&dir.logs().join(DAEMON_LOG), limits);
        }
        let (web, reach) = match web {
            Some(Listening { listener, reach }) => {
                daemon.keep_api_token().map_err(|error| Failure::new(Code::Failed, error))?;
                (Some(listener), Some(reach))
            }
            None => (None, None),
        };
        // The state is ours, so what is there of a socket is a dead daemon's.
        let (listener, socket) = bind(&sockets, dir.root())?;
        let mut file = DaemonFile::this_process(socket, place::now(), VERSION, args.mode());
        file.surroundings = Some(surroundings);
        file.url = reach.as_ref().map(Reach::url);
        let outlook = daemon.outlook();
        let known = outlook.clone();
        let records = Records::new(dir.clone(), move || Known::of_setup(&known.setup()));
        let metrics = Arc::<Metrics>::default();
        heeler_server::observe(&outlook, records.clone(), Arc::clone(&metrics), VERSION)?;
        let app = Arc::new(Served {
            handle: daemon.handle(),
            records,
            live: Live::new(&outlook),
            metrics,
            costly: Arc::default(),
            outlook,
            access: Arc::new(Access::new(&reach.unwrap_or_default())),
            version: VERSION.to_owned(),
            now: place::now,
        });
        let serving = Serving::start(listener, web, app, connections)?;
        file.write(&dir).map_err(|error| Failure::new(Code::Failed, error))?;
        Ok(Open { daemon, file, serving })
    }

    /// Works until the end.
    fn run(self, global: &Global, place: &Place, is_attended: bool) -> Outcome {
        let Open { daemon, file, serving } = self;
        let dir = place.dir()?;
        memory::keep_small()?;
        serving::heed_signals(daemon.handle(), is_attended && !global.quiet)?;
        tracing::info!(pid = file.pid, state = %dir.root(), url = file.url, "ready");
        if let Some(url) = file.url.as_ref().filter(|_| is_attended && !global.quiet) {
            output::note(&format!("dashboard: {url} (heeler open logs you in)"))?;
        }
        let ended = daemon.run(|| file.remove(&dir));
        serving.end();
        match ended {
            Ended::Stopped => tracing::info!("stopped"),
            Ended::Idle => tracing::info!("nothing is left to do"),
            Ended::Lost => return Err(lost(dir.root())),
        }
        Ok(())
    }
}

/// Says that the state directory is gone.
fn lost(root: &Utf8Path) -> Failure {
    let message = format!(
        "the state directory {root} was removed, moved or replaced while this daemon worked in it; \
         jobs that run go on"
    );
    tracing::error!("{message}");
    // A service manager that started another would make an empty state where this one was.
    Failure::message(Code::Refused, message)
        .hint("if it was moved, move it back: heeler start takes them over")
}

fn not_open(error: DaemonError) -> NotOpen {
    match error {
        DaemonError::Open(OpenError::Busy { source, .. }) => NotOpen::Held(who(&source)),
        DaemonError::Config(text) => NotOpen::Failed(Failure::message(Code::Usage, text)),
        error => NotOpen::Failed(Failure::new(Code::Failed, error).hint("heeler doctor")),
    }
}

/// Says who writes the state.
fn who(error: &StoreError) -> String {
    match error {
        StoreError::Lock { source: LockError::Held { holder: Some(holder), .. }, .. } => {
            holder.to_string()
        }
        other => chain(other),
    }
}
