//! The config as it counts. Secrets appear by name only.

use heeler_model::redact::Redactor;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Known, QueryError};

/// The merged, checked config, with keys as in the files.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigShown {
    /// The keys of the fleet file.
    pub fleet: Value,
    /// Each agent with its merged keys, its `qualified_name` and the `file` that it is from.
    #[schema(value_type = Vec<Object>)]
    pub agents: Value,
    /// The config file.
    pub config_path: Option<String>,
}

impl ConfigShown {
    /// Returns the config as it counts, without the secrets that stand in its files.
    pub fn of(known: &Known) -> Result<ConfigShown, QueryError> {
        let mut shown = ConfigShown::as_written(known)?;
        let redactor = Redactor::new(&known.secrets());
        redactor.json(&mut shown.fleet);
        redactor.json(&mut shown.agents);
        Ok(shown)
    }

    /// Returns it with those, for whoever may read the files.
    pub fn as_written(known: &Known) -> Result<ConfigShown, QueryError> {
        let mut shown = known.config()?.show();
        Ok(ConfigShown {
            fleet: shown["fleet"].take(),
            agents: shown["agents"].take(),
            config_path: known.config.as_ref().map(ToString::to_string),
        })
    }
}
