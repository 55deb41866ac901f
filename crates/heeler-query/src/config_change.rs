//! A change of the config that waits for a person. Start at [`ConfigChangeSummary`].

use heeler_model::config_change::{ChangedConfigFile, HeldConfigChange};
use serde::Serialize;
use utoipa::ToSchema;

/// Change of the config that happened while a job ran, and that no person has confirmed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigChangeSummary {
    /// Hash of the changed content. It is part of the confirmation.
    pub fingerprint: String,
    /// IDs of the jobs that ran meanwhile.
    pub jobs: Vec<String>,
    /// Changed files.
    pub files: Vec<ChangedFileSummary>,
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedFileSummary {
    /// Path of the file, or of a folder with workflows.
    pub path: String,
    /// `added`, `removed` or `changed`.
    pub change: String,
    /// Removed lines begin with `- `, added lines with `+ `. Empty if the content is not shown.
    pub lines: Vec<String>,
}

impl From<&HeldConfigChange> for ConfigChangeSummary {
    fn from(change: &HeldConfigChange) -> ConfigChangeSummary {
        ConfigChangeSummary {
            fingerprint: change.fingerprint.clone(),
            jobs: change.jobs.iter().map(ToString::to_string).collect(),
            files: change.files.iter().map(ChangedFileSummary::from).collect(),
        }
    }
}

impl From<&ChangedConfigFile> for ChangedFileSummary {
    fn from(file: &ChangedConfigFile) -> ChangedFileSummary {
        let ChangedConfigFile { path, change, lines } = file;
        let (path, change) = (path.to_string(), change.as_str().to_owned());
        ChangedFileSummary { path, change, lines: lines.clone() }
    }
}
