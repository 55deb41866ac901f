//! Loads the fleet's configuration from files and the environment, checked or with its faults.
//! Start at [`load`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use camino::Utf8Path;
use heeler_config::workflow::{self, FolderLister};
use heeler_config::{ConfigFaults, LoadedConfig, parse_dotenv};

use heeler_engine::hooks::ChatServiceUrls;
use heeler_engine::{
    ConfigFileRecorder, DaemonSetup, claude_settings_files, list_skill_files, list_workflow_files,
};
use heeler_model::config_change::{ConfigContent, ConfigFileKind};
use heeler_query::QueryContext;
use heeler_store::FleetEnvironment;
use jiff::tz::TimeZone;

use crate::context::{CONFIG_NAMES, CommandContext};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SafeText};
use crate::process_env;
use crate::protected_files::{hook_files, protected_files};
use crate::text_file::{parent_dir, read_text};

/// Folders with programs that only an administrator changes.
const SYSTEM_FOLDERS: [&str; 5] = ["/bin", "/nix", "/opt", "/sbin", "/usr"];

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
    let (env, of_file) = environment_with_dotenv(context, file)?;
    let loaded = heeler_config::load(file, read, &env);
    Ok(loaded.map(|mut loaded| {
        loaded.add_dotenv_secrets(&of_file);
        with_workflows(loaded, read, &list_workflow_files, &list_skill_files)
    }))
}

/// A config with the content of all files that decided it.
pub(crate) struct RecordedLoad {
    pub(crate) loaded: Result<LoadedConfig, ConfigFaults>,
    pub(crate) content: ConfigContent,
    /// Environment with the variables of `.env`.
    pub(crate) env: BTreeMap<String, String>,
}

/// Loads a config file with its `.env`, and records exactly what was read.
pub(crate) fn load_recorded(
    context: &CommandContext,
    file: &Utf8Path,
) -> CommandResult<RecordedLoad> {
    load_with_recorder(context, file, ConfigFileRecorder::default())
}

/// Loads a config file by a recorder, which may have drafts of some files.
pub(crate) fn load_with_recorder(
    context: &CommandContext,
    file: &Utf8Path,
    recorder: ConfigFileRecorder,
) -> CommandResult<RecordedLoad> {
    let dotenv = parent_dir(file).join(".env");
    let read = |path: &Utf8Path| match path == dotenv {
        true => recorder.read_secret(path),
        false => recorder.read_text(path),
    };
    let (env, of_file) = with_dotenv(context.env.clone(), &dotenv, &read)?;
    let loaded = heeler_config::load(file, &read, &env).map(|mut loaded| {
        loaded.add_dotenv_secrets(&of_file);
        with_workflows(loaded, &read, &|folder| recorder.list_workflows(folder), &|folder| {
            recorder.list_skill(folder)
        })
    });
    for program in loaded.iter().flat_map(hook_files) {
        // An update of the system is not a change of the fleet.
        if !SYSTEM_FOLDERS.iter().any(|folder| program.starts_with(folder)) {
            recorder.add_file(ConfigFileKind::Text, &program);
        }
    }
    add_unnamed_files(file, loaded.as_ref().ok(), &recorder);
    Ok(RecordedLoad { loaded, content: recorder.into_content(), env })
}

/// Records the files that no file names, but that decide what runs if they exist: config files that a
/// command would find in the same folders, and settings from which Claude takes commands.
fn add_unnamed_files(
    file: &Utf8Path,
    loaded: Option<&LoadedConfig>,
    recorder: &ConfigFileRecorder,
) {
    let fleets = loaded.into_iter().flat_map(|loaded| &loaded.fleets);
    for folder in fleets.map(|fleet| parent_dir(&fleet.file)).chain([parent_dir(file)]) {
        for (name, _) in CONFIG_NAMES {
            recorder.add_file(ConfigFileKind::Text, &folder.join(name));
        }
    }
    for (path, kind) in loaded.into_iter().flat_map(|it| &it.agents).flat_map(claude_settings_files)
    {
        recorder.add_file(kind, &path);
    }
}

/// Loads the fleet's config without its workflows; prints all faults and fails if there are any.
pub(crate) fn load_without_workflows(context: &CommandContext) -> CommandResult<LoadedConfig> {
    let file = context.config_file()?;
    let (env, of_file) = environment_with_dotenv(context, file)?;
    let mut loaded = heeler_config::load(file, &read_text, &env).or_else(|faults| {
        print_faults(context, &faults)?;
        Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
    })?;
    loaded.add_dotenv_secrets(&of_file);
    Ok(loaded)
}

/// Adds the workflows of the fleet's folder to its config. An invalid workflow does not stop the
/// fleet.
fn with_workflows(
    mut loaded: LoadedConfig,
    read: &heeler_config::FileReader<'_>,
    list: &FolderLister<'_>,
    list_skill: &FolderLister<'_>,
) -> LoadedConfig {
    // Only the workflow folder of the root fleet is used.
    let Some(settings) = loaded.fleets.first().map(|fleet| fleet.workflows.clone()) else {
        return loaded;
    };
    let files = list(&settings.folder);
    let folder =
        workflow::load_workflow_folder(&files, (read, list_skill), &loaded.agents, &settings);
    loaded.add_workflows(folder);
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

/// Returns the environment together with the variables of `.env` next to a config file.
pub(crate) fn environment(
    context: &CommandContext,
    file: &Utf8Path,
) -> CommandResult<BTreeMap<String, String>> {
    Ok(environment_with_dotenv(context, file)?.0)
}

/// Variables as pairs of name and value.
type VariablePairs = Vec<(String, String)>;

/// Returns the environment together with the variables of `.env`, and the latter alone.
fn environment_with_dotenv(
    context: &CommandContext,
    file: &Utf8Path,
) -> CommandResult<(BTreeMap<String, String>, VariablePairs)> {
    with_dotenv(context.env.clone(), &parent_dir(file).join(".env"), &read_text)
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
    read: &heeler_config::FileReader<'_>,
) -> CommandResult<(BTreeMap<String, String>, VariablePairs)> {
    let text = match read(file) {
        Ok(text) => text,
        // The file is optional, but without readable secrets the agents would fail later.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((env, Vec::new())),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot read {file}"));
            return Err(CommandFailure::new(FailureCode::Usage, error));
        }
    };
    let (pairs, faults) = parse_dotenv(&text);
    for fault in faults {
        output::print_note(&format!("{file}:{}: line skipped: {}", fault.line, fault.reason))?;
    }
    for (name, value) in &pairs {
        // A variable that is set for one command must win over the file.
        env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok((env, pairs))
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
    content: ConfigContent,
    env: BTreeMap<String, String>,
) -> CommandResult<DaemonSetup> {
    let home = context.home.clone().ok_or_else(process_env::no_home)?;
    let config = context.config_file()?.to_owned();
    let root = loaded.fleets.first();
    let zone = root.and_then(|fleet| fleet.timezone.as_ref());
    // An invalid workflow stops only itself, so the daemon starts and warns.
    for faulty in &loaded.faulty_files {
        tracing::warn!("{}; see: heeler workflow validate", faulty.describe(parent_dir(&config)));
    }
    Ok(DaemonSetup {
        sockets: context.socket_dir()?,
        protected: protected_files(context, &loaded, &home)?,
        zone: zone.map_or_else(TimeZone::system, |zone| zone.zone().clone()),
        services: ChatServiceUrls::from_env(&env),
        env,
        config,
        home,
        content,
        loaded: Arc::new(loaded),
    })
}
