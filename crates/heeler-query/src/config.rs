//! The config as it counts. Secrets appear by name only.

use camino::Utf8Path;
use heeler_model::config::Loaded;
use heeler_model::redact::Redactor;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{QueryError, Records};

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
    /// Returns a config that was read from a file.
    pub fn of(loaded: &Loaded, file: Option<&Utf8Path>) -> ConfigShown {
        let mut shown = loaded.show();
        ConfigShown {
            fleet: shown["fleet"].take(),
            agents: shown["agents"].take(),
            config_path: file.map(ToString::to_string),
        }
    }
}

impl Records {
    /// Returns the config as it counts, for whoever may read: a secret that stands in the file itself
    /// is taken out too.
    pub fn config(&self) -> Result<ConfigShown, QueryError> {
        let known = self.known();
        let mut shown = ConfigShown::of(&*known.config()?, known.config.as_deref());
        let secrets = known.around().map(|around| around.secrets()).unwrap_or_default();
        let redactor = Redactor::new(&secrets);
        redactor.json(&mut shown.fleet);
        redactor.json(&mut shown.agents);
        Ok(shown)
    }
}
