//! Loads the fleet's configuration from files and the environment, checked or with its faults.
//! Start at [`load`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::workflow::{self, WORKFLOW_FILES_MAX};
use heeler_config::{ConfigFaults, LoadedConfig, parse_dotenv};
use heeler_engine::DaemonSetup;
use heeler_engine::hooks::ChatServiceUrls;
use heeler_query::QueryContext;
use heeler_store::FleetEnvironment;
use jiff::tz::TimeZone;

use crate::context::{CONFIG_NAMES, CommandContext};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SafeText};
use crate::process_env;
use crate::text_file::{parent_dir, read_text};
use crate::trust_file::TrustFile;

/// Depth of folders in which workflows are searched.
const WORKFLOW_DEPTH_MAX: usize = 8;

/// Loads the fleet's config; prints all faults and fails if there are any.
pub(crate) fn load(context: &CommandContext) -> CommandResult<LoadedConfig> {
    let file = context.config_file()?;
    match try_load(context, file, &read_text)? {
        Ok(loaded) => Ok(loaded),
        Err(faults) => {
            print_faults(context, &faults)?;
            Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
        }
    }
}

/// Loads a config file with its `.env`; returns the faults to the caller.
pub(crate) fn try_load(
    context: &CommandContext,
    file: &Utf8Path,
    read: &heeler_config::FileReader<'_>,
) -> CommandResult<Result<LoadedConfig, ConfigFaults>> {
    let loaded = heeler_config::load(file, read, &environment(context, file)?);
    Ok(loaded.map(|loaded| with_workflows(loaded, read)))
}

/// Loads the fleet's config without its workflows; prints all faults and fails if there are any.
pub(crate) fn load_without_workflows(context: &CommandContext) -> CommandResult<LoadedConfig> {
    let file = context.config_file()?;
    heeler_config::load(file, &read_text, &environment(context, file)?).or_else(|faults| {
        print_faults(context, &faults)?;
        Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
    })
}

/// Adds the workflows of the fleet's folder to its config. An invalid workflow does not stop the
/// fleet.
fn with_workflows(mut loaded: LoadedConfig, read: &heeler_config::FileReader<'_>) -> LoadedConfig {
    // Only the workflow folder of the root fleet is used.
    let Some(settings) = loaded.fleets.first().map(|fleet| fleet.workflows.clone()) else {
        return loaded;
    };
    let files = workflow_files(&settings.folder);
    loaded.add_workflows(workflow::load_workflow_folder(&files, read, &loaded.agents, &settings));
    loaded
}

/// Prints the faults of workflow files to stderr.
pub(crate) fn print_workflow_faults(
    context: &CommandContext,
    loaded: &LoadedConfig,
) -> io::Result<()> {
    loaded.faulty_files.iter().try_for_each(|faulty| {
        print_faults(context, &faulty.faults)?;
        output::print_note(&faulty.describe(&context.working_dir))
    })
}

/// Lists the files of a workflow folder, sorted. A missing or unreadable folder has none.
pub(crate) fn workflow_files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    add_workflow_files(folder, 0, &mut found);
    found.sort();
    found
}

fn add_workflow_files(folder: &Utf8Path, depth: usize, found: &mut Vec<Utf8PathBuf>) {
    // One unreadable folder must not hide the others.
    let Ok(entries) = folder.read_dir_utf8() else { return };
    for entry in entries.filter_map(Result::ok) {
        let (path, name) = (entry.path(), entry.file_name());
        // One file more than allowed is kept, so that the loader reports the excess.
        if found.len() > WORKFLOW_FILES_MAX || name.starts_with('.') {
            continue;
        }
        // Do not follow a link to a folder: it may lead back here.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // Prompts and skills are parts of workflows, and may hold YAML that is no workflow.
        if is_folder && depth < WORKFLOW_DEPTH_MAX && !["prompts", "skills"].contains(&name) {
            add_workflow_files(path, depth + 1, found);
        }
        if !is_folder && matches!(path.extension(), Some("yaml" | "yml")) {
            found.push(path.to_owned());
        }
    }
}

/// Returns the environment together with the variables of `.env` next to a config file.
pub(crate) fn environment(
    context: &CommandContext,
    file: &Utf8Path,
) -> CommandResult<BTreeMap<String, String>> {
    with_dotenv(context.env.clone(), &parent_dir(file).join(".env"))
}

/// Formats faults with their positions, for a reader in another folder: paths are relative to the
/// config file's folder.
pub(crate) fn faults_text(file: &Utf8Path, faults: &ConfigFaults) -> String {
    SafeText::from_faults(faults, parent_dir(file)).plain().trim_end().to_owned()
}

/// Prints faults with their positions to stderr.
pub(crate) fn print_faults(context: &CommandContext, faults: &ConfigFaults) -> io::Result<()> {
    match faults.is_empty() {
        true => Ok(()),
        false => output::print_error(SafeText::from_faults(faults, &context.working_dir)),
    }
}

/// Adds the variables of `.env`; variables of the real environment take precedence.
fn with_dotenv(
    mut env: BTreeMap<String, String>,
    file: &Utf8Path,
) -> CommandResult<BTreeMap<String, String>> {
    let text = match read_text(file) {
        Ok(text) => text,
        // The file is optional, but without readable secrets the agents would fail later.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(env),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot read {file}"));
            return Err(CommandFailure::new(FailureCode::Usage, error));
        }
    };
    let (pairs, faults) = parse_dotenv(&text);
    for fault in faults {
        output::print_note(&format!("{file}:{}: line skipped: {}", fault.line, fault.reason))?;
    }
    for (name, value) in pairs {
        // A variable that is set for one command must win over the file.
        env.entry(name).or_insert(value);
    }
    Ok(env)
}

/// Returns the context in which the fleet's state is read: config, environment, home and time zone.
pub(crate) fn query_context(
    context: &CommandContext,
    loaded: Option<Arc<LoadedConfig>>,
) -> QueryContext {
    let file = context.config.as_deref();
    // Readers work without a config, so its faults are not reported here.
    let load = || Some(Arc::new(try_load(context, file?, &read_text).ok()?.ok()?));
    let loaded = loaded.or_else(load);
    let env = file.and_then(|file| environment(context, file).ok());
    let root = loaded.as_ref().and_then(|loaded| loaded.fleets.first());
    let zone = root.and_then(|fleet| fleet.timezone.as_ref()).map(|zone| zone.zone().clone());
    QueryContext {
        config: context.config.clone(),
        env: env.unwrap_or_else(|| context.env.clone()),
        home: context.home.clone(),
        zone: zone.unwrap_or_else(TimeZone::system),
        loaded,
    }
}

/// The fleet's config for commands that only read; a faulty or missing config does not stop them.
pub(crate) struct OptionalFleetConfig {
    loaded: Option<LoadedConfig>,
    env: BTreeMap<String, String>,
}

impl OptionalFleetConfig {
    /// Loads the config, if there is one.
    pub(crate) fn load(context: &CommandContext) -> CommandResult<OptionalFleetConfig> {
        let Some(file) = &context.config else {
            return Ok(OptionalFleetConfig { loaded: None, env: context.env.clone() });
        };
        let loaded = try_load(context, file, &read_text)?.ok();
        Ok(OptionalFleetConfig { loaded, env: environment(context, file)? })
    }

    /// Returns the config, if there is one without faults.
    pub(crate) fn into_loaded(self) -> Option<LoadedConfig> {
        self.loaded
    }

    /// Lists secrets that must not be shown.
    pub(crate) fn secrets(&self) -> Vec<String> {
        // Secrets do not depend on the home folder.
        let home = Utf8Path::new("");
        FleetEnvironment { loaded: self.loaded.as_ref(), env: &self.env, home }.secrets()
    }
}

/// Returns the configuration of a daemon.
pub(crate) fn daemon_setup(
    context: &CommandContext,
    loaded: LoadedConfig,
) -> CommandResult<DaemonSetup> {
    let home = context.home.clone().ok_or_else(process_env::no_home)?;
    let config = context.config_file()?.to_owned();
    let root = loaded.fleets.first();
    let zone = root.and_then(|fleet| fleet.timezone.as_ref());
    let env = environment(context, &config)?;
    // An invalid workflow stops only itself, so the daemon starts and warns.
    for faulty in &loaded.faulty_files {
        tracing::warn!("{}; see: heeler workflow validate", faulty.describe(parent_dir(&config)));
    }
    Ok(DaemonSetup {
        sockets: context.socket_dir()?,
        protected: protected_paths(context, &loaded, &home)?,
        zone: zone.map_or_else(TimeZone::system, |zone| zone.zone().clone()),
        services: ChatServiceUrls::from_env(&env),
        env,
        config,
        home,
        loaded: Arc::new(loaded),
    })
}

/// Returns the paths that agents must not change: all that control agents or record their work,
/// under every name they have. These are the config, config files that would be found before it,
/// the `.env` next to it, state and locks.
pub(crate) fn protected_paths(
    context: &CommandContext,
    loaded: &LoadedConfig,
    home: &Utf8Path,
) -> CommandResult<Vec<Utf8PathBuf>> {
    let folder = parent_dir(context.config_file()?);
    // A new `heeler.yaml` next to a `herdctl.yaml` would be found first, so it must not be created.
    let names = CONFIG_NAMES.iter().map(|(name, _)| *name).chain([".env"]);
    let mut paths: Vec<Utf8PathBuf> = names.map(|name| folder.join(name)).collect();
    paths.extend(loaded.files.iter().cloned());
    paths.extend(loaded.fleets.first().map(|fleet| fleet.workflows.folder.clone()));
    paths.extend([context.state_dir.clone(), home.to_owned()]);
    // With its own entry there, any fleet could run commands.
    paths.extend(TrustFile::path(&context.env));
    // A link could be used as a second name of a protected file.
    let real: Vec<Utf8PathBuf> = paths.iter().filter_map(|path| canonicalize(path)).collect();
    paths.extend(real);
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Resolves links in a path. The file itself need not exist.
fn canonicalize(path: &Utf8Path) -> Option<Utf8PathBuf> {
    // A protected file may not exist yet, but its folder does.
    let folder = || Some(path.parent()?.canonicalize_utf8().ok()?.join(path.file_name()?));
    path.canonicalize_utf8().ok().or_else(folder)
}
