//! Effective config. Secrets appear by name only.

use heeler_model::redact::SecretRedactor;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{QueryContext, QueryError};

/// Merged, checked config, with keys as in the files.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveConfig {
    /// Keys of the fleet file.
    pub fleet: Value,
    /// Agents, each with its merged keys, its `qualified_name` and the `file` that defines it.
    #[schema(value_type = Vec<Object>)]
    pub agents: Value,
    /// Path of the config file.
    pub config_path: Option<String>,
}

impl EffectiveConfig {
    /// Returns the effective config without the secrets written in its files.
    pub fn of(known: &QueryContext) -> Result<EffectiveConfig, QueryError> {
        let mut shown = EffectiveConfig::unredacted(known)?;
        let redactor = SecretRedactor::new(&known.secrets());
        redactor.redact_json(&mut shown.fleet);
        redactor.redact_json(&mut shown.agents);
        Ok(shown)
    }

    /// Returns the effective config with the secrets written in its files, for callers who may read
    /// the files.
    pub fn unredacted(known: &QueryContext) -> Result<EffectiveConfig, QueryError> {
        let mut shown = known.config()?.show();
        Ok(EffectiveConfig {
            fleet: shown["fleet"].take(),
            agents: shown["agents"].take(),
            config_path: known.config.as_ref().map(ToString::to_string),
        })
    }
}
