//! Editing of config files by a person in the browser. The program implements [`ConfigEditor`],
//! because only it reads files and the environment.

use std::fmt::Debug;

use heeler_query::workflows::{ConfigFaultSummary, PhaseDescription};
use serde::Serialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

/// Config file that can be edited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EditableConfigFile {
    /// Path, relative to the folder of the fleet's config.
    pub path: String,
    /// Agents that the file defines.
    pub agents: Vec<String>,
    /// Workflow that the file defines.
    pub workflow: Option<String>,
    /// True for the config file of the fleet itself.
    pub is_fleet: bool,
}

/// Files that can be edited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EditableConfigFiles {
    pub files: Vec<EditableConfigFile>,
    /// Content of a new agent file, with `NAME` for its name.
    pub agent_template: String,
    /// Folder of workflow files, relative to the folder of the fleet's config. `null` if it is
    /// outside of it, so that no workflow can be added here.
    pub workflow_folder: Option<String>,
}

/// Content of a config file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFileText {
    pub path: String,
    pub text: String,
    /// SHA-256 of the text. An edit names it, so that it replaces no other text.
    pub hash: String,
}

/// Change of the config that a person wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedConfigEdit {
    /// Replace the text of a file.
    Replace {
        path: String,
        text: String,
        /// [`ConfigFileText::hash`] of the text that the person edited.
        hash: String,
    },
    /// Add an agent or a workflow with a file of its own.
    Add { kind: ConfigItemKind, name: String, text: String },
    /// Remove an agent or a workflow that has a file of its own. The file is moved to the trash.
    Remove { kind: ConfigItemKind, name: String },
}

/// Kind of an item that has a config file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigItemKind {
    Agent,
    Workflow,
}

impl WantedConfigEdit {
    /// Returns the file, the agent or the workflow that it changes.
    pub(crate) fn subject(&self) -> &str {
        match self {
            WantedConfigEdit::Replace { path, .. } => path,
            WantedConfigEdit::Add { name, .. } | WantedConfigEdit::Remove { name, .. } => name,
        }
    }
}

/// Result of a check of the whole fleet with an edit.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigEditCheck {
    /// Errors; an edit with errors is not saved.
    pub errors: Vec<ConfigFaultSummary>,
    pub warnings: Vec<ConfigFaultSummary>,
    /// Removed and added lines by file.
    pub changes: Vec<ConfigFileDiff>,
    /// Values of the edited file, without substituted variables; `null` if it is not valid YAML.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Json>,
    /// Phases of the workflow that the edited file defines, if it has no errors.
    pub phases: Option<Vec<PhaseDescription>>,
}

/// Difference of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFileDiff {
    pub path: String,
    /// `- ` and the removed line, or `+ ` and the added line.
    pub lines: Vec<String>,
}

/// Edit that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedConfigEdit {
    /// Fingerprint of the content, if a run is alive and a person must confirm the change.
    pub fingerprint: Option<String>,
}

/// Reason for which an edit is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigEditError {
    /// There is no such file or agent.
    NotFound(String),
    /// The edit is not allowed, with the cure.
    Refused { message: String, hint: Option<String> },
    /// The edit has errors.
    Invalid(String),
    /// Something failed.
    Failed(String),
}

/// Reads, checks and writes config files. All methods may wait for the disk.
pub trait ConfigEditor: Debug + Send + Sync {
    fn files(&self) -> Result<EditableConfigFiles, ConfigEditError>;
    fn read(&self, path: &str) -> Result<ConfigFileText, ConfigEditError>;
    /// Checks the whole fleet with an edit; writes nothing.
    fn check(&self, edit: &WantedConfigEdit) -> Result<ConfigEditCheck, ConfigEditError>;
    /// Checks and writes an edit.
    fn save(&self, edit: &WantedConfigEdit) -> Result<SavedConfigEdit, ConfigEditError>;
}
