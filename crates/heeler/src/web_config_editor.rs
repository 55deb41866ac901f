//! Edits config files for a person in the browser. Start at [`WebConfigEditor`].
//!
//! Only files that the loaded config consists of can be edited, and only inside of the folder of the
//! fleet's config. A file with a secret never leaves this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{FaultSeverity, LocalName, templates};
use heeler_engine::ConfigFileRecorder;
use heeler_model::config_change::{ConfigContent, ConfigFileContent, ConfigFileKind};
use heeler_query::workflows::{ConfigFaultSummary, faults_with_severity};
use heeler_server::config_editor::{
    ConfigEditCheck, ConfigEditError, ConfigEditor, ConfigFileDiff, ConfigFileText,
    EditableConfigFile, EditableConfigFiles, SavedConfigEdit, WantedConfigEdit,
};
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

/// Texts of an edit, by the real paths of the files, and the files to remove afterwards.
struct EditedTexts {
    /// In the order in which they are written.
    texts: Vec<EditedText>,
    removed: Option<Utf8PathBuf>,
    /// Agent that the first text must define.
    added: Option<LocalName>,
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

    fn load(&self, drafts: BTreeMap<Utf8PathBuf, String>) -> Result<RecordedLoad, ConfigEditError> {
        let file = self.context.config_file().map_err(failed)?;
        let recorder = ConfigFileRecorder::with_drafts(drafts);
        fleet_config::load_with_recorder(&self.context, file, recorder).map_err(failed)
    }

    /// Returns the files of the loaded config inside of its folder, by their relative paths.
    fn editable(&self) -> Result<BTreeMap<String, (Utf8PathBuf, Vec<String>)>, ConfigEditError> {
        let (config, folder) = self.config()?;
        let mut found: BTreeMap<String, (Utf8PathBuf, Vec<String>)> = BTreeMap::new();
        let mut add = |file: &Utf8Path, agent: Option<&str>| {
            // A link may lead out of the folder.
            let Ok(real) = file.canonicalize_utf8() else { return };
            let Ok(relative) = real.strip_prefix(&folder) else { return };
            let entry = found.entry(relative.to_string()).or_insert((real.clone(), Vec::new()));
            entry.1.extend(agent.map(str::to_owned));
        };
        add(&config, None);
        // A config with errors can be edited too, but only its own file is known then.
        if let Ok(loaded) = &self.load(BTreeMap::new())?.loaded {
            loaded.fleets.iter().for_each(|fleet| add(&fleet.file, None));
            loaded.agents.iter().for_each(|agent| add(&agent.file, Some(agent.name.as_str())));
        }
        Ok(found)
    }

    fn read_real(&self, path: &str) -> Result<(Utf8PathBuf, String), ConfigEditError> {
        let files = self.editable()?;
        let Some((real, _)) = files.get(path) else {
            return Err(ConfigEditError::NotFound(format!("`{path}` is no file of this config")));
        };
        let text = text_file::read_text(real).map_err(io_failed)?;
        Ok((real.clone(), text))
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
                Ok(EditedTexts { texts: vec![text], removed: None, added: None })
            }
            WantedConfigEdit::AddAgent { name, text } => self.plan_new_agent(name, text),
            WantedConfigEdit::RemoveAgent { name } => self.plan_removal(name),
        }
    }

    fn plan_new_agent(&self, name: &str, text: &str) -> Result<EditedTexts, ConfigEditError> {
        let name: LocalName =
            name.parse().map_err(|error| ConfigEditError::Invalid(format!("{error}")))?;
        let (config, folder) = self.config()?;
        let before = text_file::read_text(&config).map_err(io_failed)?;
        let relative = format!("{AGENT_FOLDER}/{name}.yaml");
        let after = templates::add_agent(&before, &relative)
            .map_err(|error| refused(error.to_string(), "heeler config edit"))?;
        let path = folder.join(&relative);
        if path.symlink_metadata().is_ok() {
            let hint = "choose another name, or edit the file";
            return Err(refused(format!("{relative} exists already"), hint));
        }
        // The agent's file comes first, so that the config never names a file that does not exist.
        let agent = EditedText { path, before: None, after: text.to_owned() };
        let fleet = EditedText { path: config, before: Some(before), after };
        Ok(EditedTexts { texts: vec![agent, fleet], removed: None, added: Some(name) })
    }

    fn plan_removal(&self, name: &str) -> Result<EditedTexts, ConfigEditError> {
        let (config, folder) = self.config()?;
        let files = self.editable()?;
        let own = |(path, (real, agents)): (&String, &(Utf8PathBuf, Vec<String>))| {
            (agents.as_slice() == [name] && *real != config).then(|| (path.clone(), real.clone()))
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
        let text = EditedText { path: config, before: Some(before), after };
        Ok(EditedTexts { texts: vec![text], removed: Some(real), added: None })
    }

    fn check_plan(&self, plan: &EditedTexts) -> Result<ConfigEditCheck, ConfigEditError> {
        let recorded = self.load(plan.drafts())?;
        if let (Some(name), Ok(loaded)) = (&plan.added, &recorded.loaded) {
            let mut defined = loaded.agents.iter().filter(|agent| agent.file == plan.texts[0].path);
            // Otherwise the agent could not be found by the name of its file.
            if !defined.any(|agent| agent.name.as_str() == name.to_string()) {
                let message = format!("the text must have the line `name: {name}`");
                return Err(ConfigEditError::Invalid(message));
            }
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
        let changes = plan.texts.iter().map(|text| text.diff(&folder)).collect();
        Ok(ConfigEditCheck { errors, warnings, changes })
    }
}

impl EditedTexts {
    fn drafts(&self) -> BTreeMap<Utf8PathBuf, String> {
        self.texts.iter().map(|text| (text.path.clone(), text.after.clone())).collect()
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
        let file = |(path, (real, agents)): (String, (Utf8PathBuf, Vec<String>))| {
            EditableConfigFile { path, agents, is_fleet: real == config }
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
        })
    }

    fn read(&self, path: &str) -> Result<ConfigFileText, ConfigEditError> {
        let (_, text) = self.read_real(path)?;
        let redactor = self.load(BTreeMap::new())?.redactor();
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
        if let WantedConfigEdit::RemoveAgent { name } = edit {
            self.refuse_running(name)?;
        }
        let own = OwnConfigEdit::prepare(&self.context, plan.drafts()).map_err(failed)?;
        plan.texts.iter().try_for_each(EditedText::write)?;
        if let Some(file) = &plan.removed {
            self.move_to_trash(file)?;
        }
        Ok(SavedConfigEdit { fingerprint: own.confirm_trust(&self.context) })
    }
}

impl WebConfigEditor {
    fn refuse_running(&self, name: &str) -> Result<(), ConfigEditError> {
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

    /// Moves the file of a removed agent to the trash of the state directory.
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
