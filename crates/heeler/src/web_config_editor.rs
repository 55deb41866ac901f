//! Edits config files for a person in the browser. Start at [`WebConfigEditor`].
//!
//! Only files that the loaded config consists of can be edited, and only inside of the folder of the
//! fleet's config. A file with a secret never leaves this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{FaultSeverity, LoadedConfig, LocalName, read_yaml_values, templates};
use heeler_engine::{ConfigDrafts, ConfigFileRecorder};
use heeler_model::config_change::{ConfigContent, ConfigFileContent, ConfigFileKind};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_query::workflows::{
    ConfigFaultSummary, PhaseDescription, describe_phases, faults_with_severity,
};
use heeler_server::config_editor::{
    ConfigEditCheck, ConfigEditError, ConfigEditor, ConfigFileDiff, ConfigFileText, ConfigItemKind,
    EditableConfigFile, EditableConfigFiles, SavedConfigEdit, WantedConfigEdit,
};

use heeler_store::WorkflowRunFilter;
use sha2::{Digest as _, Sha256};

use crate::config_changes::OwnConfigEdit;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, FailureCode};
use crate::fleet_config::{self, RecordedLoad};
use crate::process_env;
use crate::text_file;

/// Folder of new agents, relative to the config.
const AGENT_FOLDER: &str = "agents";

/// Editor of the config files of a daemon.
pub(crate) struct WebConfigEditor {
    context: CommandContext,
    /// One edit at a time: each is checked against the files on disk.
    saving: Mutex<()>,
}

impl fmt::Debug for WebConfigEditor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The context has the environment, and with it secrets.
        formatter.debug_struct("WebConfigEditor").finish_non_exhaustive()
    }
}

/// Texts of an edit, by the real paths of the files, and the file to remove afterwards.
#[derive(Default)]
struct EditedTexts {
    /// In the order in which they are written.
    texts: Vec<EditedText>,
    removed: Option<RemovedFile>,
    /// Agent or workflow that the first text must define.
    added: Option<(ConfigItemKind, LocalName)>,
}

struct RemovedFile {
    path: Utf8PathBuf,
    text: String,
}

struct EditedText {
    path: Utf8PathBuf,
    /// `None` if the file is new.
    before: Option<String>,
    after: String,
}

impl WebConfigEditor {
    pub(crate) fn new(context: CommandContext) -> WebConfigEditor {
        WebConfigEditor { context, saving: Mutex::new(()) }
    }

    /// Returns the real path of the fleet's config, and its folder.
    fn config(&self) -> Result<(Utf8PathBuf, Utf8PathBuf), ConfigEditError> {
        let file = self.context.config_file().map_err(failed)?;
        let file = file.canonicalize_utf8().map_err(io_failed)?;
        let folder = text_file::parent_dir(&file).to_owned();
        Ok((file, folder))
    }

    fn load(&self, drafts: ConfigDrafts) -> Result<RecordedLoad, ConfigEditError> {
        let file = self.context.config_file().map_err(failed)?;
        let recorder = ConfigFileRecorder::with_drafts(drafts);
        fleet_config::load_with_recorder(&self.context, file, recorder).map_err(failed)
    }

    /// Returns the files of the loaded config inside of its folder, by their relative paths.
    fn editable(&self) -> Result<BTreeMap<String, FoundConfigFile>, ConfigEditError> {
        let (config, folder) = self.config()?;
        let mut found: BTreeMap<String, FoundConfigFile> = BTreeMap::new();
        let mut add = |file: &Utf8Path, agent: Option<&str>, workflow: Option<&str>| {
            // A link may lead out of the folder.
            let Ok(real) = file.canonicalize_utf8() else { return };
            let Ok(relative) = real.strip_prefix(&folder) else { return };
            let entry = found.entry(relative.to_string()).or_default();
            entry.agents.extend(agent.map(str::to_owned));
            entry.workflow = workflow.map(str::to_owned).or(entry.workflow.take());
            entry.real = real;
        };
        add(&config, None, None);
        // A config with errors can be edited too, but only its own file is known then.
        if let Ok(loaded) = &self.load(ConfigDrafts::new())?.loaded {
            loaded.fleets.iter().for_each(|fleet| add(&fleet.file, None, None));
            let agents = loaded.agents.iter();
            agents.for_each(|agent| add(&agent.file, Some(agent.name.as_str()), None));
            for it in &loaded.workflows {
                // Prompts and skills are edited with their workflow.
                it.files.keys().for_each(|file| add(file, None, None));
                add(&it.root, None, Some(it.workflow.name.as_str()));
            }
            loaded.crons.iter().for_each(|cron| add(&cron.file, None, None));
            loaded.faulty_files.iter().for_each(|faulty| add(&faulty.file, None, None));
        }
        Ok(found)
    }

    fn read_real(&self, path: &str) -> Result<(Utf8PathBuf, String), ConfigEditError> {
        let mut files = self.editable()?;
        let Some(found) = files.remove(path) else {
            return Err(ConfigEditError::NotFound(format!("`{path}` is no file of this config")));
        };
        let text = text_file::read_text(&found.real).map_err(io_failed)?;
        Ok((found.real, text))
    }

    /// Returns the texts of an edit; nothing is written.
    fn plan(&self, edit: &WantedConfigEdit) -> Result<EditedTexts, ConfigEditError> {
        match edit {
            WantedConfigEdit::Replace { path, text, hash } => {
                let (path, before) = self.read_real(path)?;
                if hash_text(&before) != *hash {
                    return Err(refused(
                        format!("{path} was changed meanwhile; not overwritten"),
                        "open the file again, and repeat your change",
                    ));
                }
                let text = EditedText { path, before: Some(before), after: text.clone() };
                Ok(EditedTexts { texts: vec![text], ..EditedTexts::default() })
            }
            WantedConfigEdit::Add { kind, name, text } => {
                let name: LocalName =
                    name.parse().map_err(|error| ConfigEditError::Invalid(format!("{error}")))?;
                match kind {
                    ConfigItemKind::Agent => self.plan_new_agent(name, text),
                    ConfigItemKind::Workflow => self.plan_new_workflow(name, text),
                }
            }
            WantedConfigEdit::Remove { kind: ConfigItemKind::Agent, name } => {
                self.plan_agent_removal(name)
            }
            WantedConfigEdit::Remove { kind: ConfigItemKind::Workflow, name } => {
                self.plan_workflow_removal(name)
            }
        }
    }

    fn plan_new_agent(&self, name: LocalName, text: &str) -> Result<EditedTexts, ConfigEditError> {
        let (config, folder) = self.config()?;
        let before = text_file::read_text(&config).map_err(io_failed)?;
        let relative = format!("{AGENT_FOLDER}/{name}.yaml");
        let after = templates::add_agent(&before, &relative)
            .map_err(|error| refused(error.to_string(), "heeler config edit"))?;
        // The agent's file comes first, so that the config never names a file that does not exist.
        let agent = new_text(folder.join(&relative), &relative, text)?;
        let fleet = EditedText { path: config, before: Some(before), after };
        let added = Some((ConfigItemKind::Agent, name));
        Ok(EditedTexts { texts: vec![agent, fleet], added, ..EditedTexts::default() })
    }

    fn plan_new_workflow(
        &self,
        name: LocalName,
        text: &str,
    ) -> Result<EditedTexts, ConfigEditError> {
        let (_, folder) = self.config()?;
        let Some(below) = self.workflow_folder()? else {
            let message = "the folder of workflows is outside of the config's folder";
            return Err(refused(message, "write the file there"));
        };
        let relative = format!("{below}/{name}.yaml");
        let workflow = new_text(folder.join(&relative), &relative, text)?;
        let added = Some((ConfigItemKind::Workflow, name));
        Ok(EditedTexts { texts: vec![workflow], added, ..EditedTexts::default() })
    }

    /// Returns the folder of workflow files, relative to the config's folder, if it is in there.
    fn workflow_folder(&self) -> Result<Option<Utf8PathBuf>, ConfigEditError> {
        let (_, folder) = self.config()?;
        let recorded = self.load(ConfigDrafts::new())?;
        let Ok(loaded) = &recorded.loaded else { return Ok(None) };
        let Some(fleet) = loaded.fleets.first() else { return Ok(None) };
        let wanted = &fleet.workflows.folder;
        // A link may lead out of the folder. A folder that does not exist yet is made.
        let real = wanted.canonicalize_utf8().or_else(|_| {
            let parent = text_file::parent_dir(wanted).canonicalize_utf8()?;
            Ok::<_, std::io::Error>(parent.join(wanted.file_name().unwrap_or_default()))
        });
        Ok(real.ok().and_then(|real| Some(real.strip_prefix(&folder).ok()?.to_owned())))
    }

    fn plan_workflow_removal(&self, name: &str) -> Result<EditedTexts, ConfigEditError> {
        let files = self.editable()?;
        let own = |it: &FoundConfigFile| it.workflow.as_deref() == Some(name);
        let Some((_, found)) = files.into_iter().find(|(_, it)| own(it)) else {
            let message = format!("there is no workflow `{name}` in the config's folder");
            return Err(ConfigEditError::NotFound(message));
        };
        let text = text_file::read_text(&found.real).map_err(io_failed)?;
        let removed = Some(RemovedFile { path: found.real, text });
        Ok(EditedTexts { removed, ..EditedTexts::default() })
    }

    fn plan_agent_removal(&self, name: &str) -> Result<EditedTexts, ConfigEditError> {
        let (config, folder) = self.config()?;
        let files = self.editable()?;
        let own = |(path, it): (&String, &FoundConfigFile)| {
            (it.agents.as_slice() == [name] && it.real != config)
                .then(|| (path.clone(), it.real.clone()))
        };
        let Some((relative, real)) = files.iter().find_map(own) else {
            return Err(refused(
                format!("`{name}` has no config file of its own in {folder}"),
                "heeler config edit",
            ));
        };
        let before = text_file::read_text(&config).map_err(io_failed)?;
        // The path may be written in another form.
        let after = [relative.clone(), format!("./{relative}")]
            .iter()
            .find_map(|path| templates::remove_agent(&before, path).ok());
        let Some(after) = after else {
            let message = format!("`{name}` cannot be removed from {config} automatically");
            return Err(refused(message, "heeler config edit"));
        };
        let file = EditedText { path: config, before: Some(before), after };
        let text = text_file::read_text(&real).map_err(io_failed)?;
        let removed = Some(RemovedFile { path: real, text });
        Ok(EditedTexts { texts: vec![file], removed, added: None })
    }

    fn check_plan(&self, plan: &EditedTexts) -> Result<ConfigEditCheck, ConfigEditError> {
        let recorded = self.load(plan.drafts())?;
        if let (Some((kind, name)), Ok(loaded)) = (&plan.added, &recorded.loaded) {
            check_name(loaded, *kind, name, &plan.texts[0].path)?;
        }
        let (errors, warnings) = match &recorded.loaded {
            Err(faults) => (
                faults_with_severity(faults, FaultSeverity::Error),
                faults_with_severity(faults, FaultSeverity::Warning),
            ),
            Ok(loaded) => {
                let faulty = loaded.faulty_files.iter();
                let errors = faulty
                    .flat_map(|it| faults_with_severity(&it.faults, FaultSeverity::Error))
                    .collect();
                (errors, faults_with_severity(&loaded.warnings, FaultSeverity::Warning))
            }
        };
        let (_, folder) = self.config()?;
        let removed = plan.removed.iter().map(|file| {
            let after = String::new();
            let before = Some(file.text.clone());
            EditedText { path: file.path.clone(), before, after }.diff(&folder)
        });
        let changes = plan.texts.iter().map(|text| text.diff(&folder)).chain(removed).collect();
        let edited = plan.texts.first();
        let values = edited.and_then(|text| read_yaml_values(&text.after));
        let loaded = recorded.loaded.as_ref().ok();
        let phases = edited.zip(loaded).and_then(|(text, loaded)| phases_of(loaded, &text.path));
        Ok(ConfigEditCheck { errors, warnings, changes, values, phases })
    }
}

/// Config file in the folder of the config.
#[derive(Default)]
struct FoundConfigFile {
    real: Utf8PathBuf,
    agents: Vec<String>,
    workflow: Option<String>,
}

/// Plans a file that must not exist yet.
fn new_text(path: Utf8PathBuf, relative: &str, text: &str) -> Result<EditedText, ConfigEditError> {
    if path.symlink_metadata().is_ok() {
        let hint = "choose another name, or edit the file";
        return Err(refused(format!("{relative} exists already"), hint));
    }
    Ok(EditedText { path, before: None, after: text.to_owned() })
}

/// Fails if the file of a new agent or workflow defines one of another name, because the name could
/// not be found by the name of its file then.
fn check_name(
    loaded: &LoadedConfig,
    kind: ConfigItemKind,
    name: &LocalName,
    path: &Utf8Path,
) -> Result<(), ConfigEditError> {
    let is_right = match kind {
        ConfigItemKind::Agent => {
            let mut defined = loaded.agents.iter().filter(|agent| agent.file == path);
            defined.any(|agent| agent.name.as_str() == name.as_str())
        }
        ConfigItemKind::Workflow => {
            let is_it = |file: &Utf8Path| file.file_name() == path.file_name();
            let mut defined = loaded.workflows.iter().filter(|it| is_it(&it.root));
            // The errors of a faulty file say more.
            defined.any(|it| it.workflow.name == *name)
                || loaded.faulty_files.iter().any(|it| is_it(&it.file))
        }
    };
    match is_right {
        true => Ok(()),
        false => {
            Err(ConfigEditError::Invalid(format!("the text must have the line `name: {name}`")))
        }
    }
}

/// Returns the phases of the workflow that a file defines.
fn phases_of(loaded: &LoadedConfig, path: &Utf8Path) -> Option<Vec<PhaseDescription>> {
    let is_it = |root: &Utf8Path| match root.canonicalize_utf8() {
        Ok(real) => real == path,
        // A new file has no real path yet.
        Err(_) => root.file_name() == path.file_name(),
    };
    let found = loaded.workflows.iter().find(|it| is_it(&it.root))?;
    Some(describe_phases(&found.workflow))
}

impl EditedTexts {
    fn drafts(&self) -> ConfigDrafts {
        let written = self.texts.iter().map(|text| (text.path.clone(), Some(text.after.clone())));
        let removed = self.removed.iter().map(|file| (file.path.clone(), None));
        written.chain(removed).collect()
    }
}

impl EditedText {
    fn diff(&self, folder: &Utf8Path) -> ConfigFileDiff {
        let content = |text: Option<&str>| {
            let kind = ConfigFileKind::Text;
            let file = match text {
                Some(text) => ConfigFileContent::of_bytes(kind, text.as_bytes()),
                None => ConfigFileContent::absent(kind),
            };
            ConfigContent { files: BTreeMap::from([(self.path.clone(), file)]) }
        };
        let before = content(self.before.as_deref());
        let changed = before.changes_to(&content(Some(&self.after)));
        let path = self.path.strip_prefix(folder).unwrap_or(&self.path).to_string();
        ConfigFileDiff { path, lines: changed.into_iter().flat_map(|file| file.lines).collect() }
    }

    fn write(&self) -> Result<(), ConfigEditError> {
        match &self.before {
            Some(before) => {
                text_file::replace_text(&self.path, before, &self.after).map_err(failed)
            }
            None => {
                std::fs::create_dir_all(text_file::parent_dir(&self.path)).map_err(io_failed)?;
                text_file::create_text(&self.path, &self.after).map_err(io_failed)
            }
        }
    }
}

impl ConfigEditor for WebConfigEditor {
    fn files(&self) -> Result<EditableConfigFiles, ConfigEditError> {
        let (config, _) = self.config()?;
        let file = |(path, found): (String, FoundConfigFile)| {
            let FoundConfigFile { real, agents, workflow } = found;
            EditableConfigFile { path, agents, workflow, is_fleet: real == config }
        };
        let name: LocalName =
            "NAME".parse().map_err(|error| ConfigEditError::Failed(format!("{error}")))?;
        Ok(EditableConfigFiles {
            files: self.editable()?.into_iter().map(file).collect(),
            agent_template: templates::agent_file_with(&name, "", &Default::default())
                .lines()
                // The schema is for editors.
                .skip_while(|line| line.starts_with('#') || line.is_empty())
                .collect::<Vec<_>>()
                .join("\n"),
            workflow_folder: self.workflow_folder()?.map(|folder| folder.to_string()),
        })
    }

    fn read(&self, path: &str) -> Result<ConfigFileText, ConfigEditError> {
        let (_, text) = self.read_real(path)?;
        let redactor = self.load(ConfigDrafts::new())?.redactor();
        // Replies are redacted, so the text would be saved without its secret.
        if redactor.redact_text(&text) != text {
            return Err(refused(
                format!("{path} contains a secret, which is not shown in a browser"),
                "heeler config edit; or move the secret to .env, and write ${NAME}",
            ));
        }
        let hash = hash_text(&text);
        Ok(ConfigFileText { path: path.to_owned(), text, hash })
    }

    fn check(&self, edit: &WantedConfigEdit) -> Result<ConfigEditCheck, ConfigEditError> {
        self.check_plan(&self.plan(edit)?)
    }

    fn save(&self, edit: &WantedConfigEdit) -> Result<SavedConfigEdit, ConfigEditError> {
        let _one = self.saving.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let plan = self.plan(edit)?;
        if let Some(error) = self.check_plan(&plan)?.errors.first() {
            return Err(ConfigEditError::Invalid(describe_fault(error)));
        }
        match edit {
            WantedConfigEdit::Remove { kind: ConfigItemKind::Agent, name } => {
                self.refuse_running_agent(name)?;
            }
            WantedConfigEdit::Remove { kind: ConfigItemKind::Workflow, name } => {
                self.refuse_active_workflow(name)?;
            }
            _ => {}
        }
        let own = OwnConfigEdit::prepare(&self.context, plan.drafts()).map_err(failed)?;
        plan.texts.iter().try_for_each(EditedText::write)?;
        if let Some(file) = &plan.removed {
            self.move_to_trash(&file.path)?;
        }
        Ok(SavedConfigEdit { fingerprint: own.confirm_trust(&self.context) })
    }
}

impl WebConfigEditor {
    fn refuse_running_agent(&self, name: &str) -> Result<(), ConfigEditError> {
        let Some(reader) = self.context.open_reader().map_err(failed)? else { return Ok(()) };
        let running = reader
            .running_jobs()
            .map_err(|error| ConfigEditError::Failed(heeler_model::error_chain(&error)))?;
        match running.into_iter().find(|head| head.agent == name) {
            None => Ok(()),
            Some(head) => {
                let hint = format!("heeler jobs cancel {}", head.id);
                Err(refused(format!("{name} runs job {}", head.id), &hint))
            }
        }
    }

    fn refuse_active_workflow(&self, name: &str) -> Result<(), ConfigEditError> {
        let Some(reader) = self.context.open_reader().map_err(failed)? else { return Ok(()) };
        for status in
            [WorkflowRunStatus::Running, WorkflowRunStatus::Paused, WorkflowRunStatus::Queued]
        {
            let filter = WorkflowRunFilter {
                workflow: Some(name.to_owned()),
                status: Some(status),
                ..WorkflowRunFilter::default()
            };
            let active = reader
                .workflow_runs(&filter, None, 1)
                .map_err(|error| ConfigEditError::Failed(heeler_model::error_chain(&error)))?;
            if let Some(head) = active.first() {
                let hint = format!("heeler workflow cancel {}", head.id);
                return Err(refused(format!("{name} has the active run {}", head.id), &hint));
            }
        }
        Ok(())
    }

    /// Moves the file of a removed agent or workflow to the trash of the state directory.
    fn move_to_trash(&self, file: &Utf8Path) -> Result<(), ConfigEditError> {
        let trash = self.context.state_dir.join("trash").join("config");
        std::fs::create_dir_all(&trash).map_err(io_failed)?;
        let name = file.file_name().unwrap_or("agent.yaml");
        let target = trash.join(format!("{}-{name}", process_env::now().as_millisecond()));
        // The state directory may be on another file system.
        std::fs::copy(file, &target).and_then(|_| std::fs::remove_file(file)).map_err(io_failed)
    }
}

fn describe_fault(fault: &ConfigFaultSummary) -> String {
    format!("{}:{}: {}", fault.file, fault.line, fault.message)
}

fn hash_text(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refused(message: impl Into<String>, hint: &str) -> ConfigEditError {
    ConfigEditError::Refused { message: message.into(), hint: Some(hint.to_owned()) }
}

fn failed(failure: CommandFailure) -> ConfigEditError {
    let message = format!("{:#}", failure.error);
    match failure.code {
        FailureCode::Refused | FailureCode::Untrusted => {
            ConfigEditError::Refused { message, hint: failure.hint }
        }
        _ => ConfigEditError::Failed(message),
    }
}

fn io_failed(error: std::io::Error) -> ConfigEditError {
    ConfigEditError::Failed(error.to_string())
}
