//! What is wrong with a fleet's state.

use heeler_store::doctor::{self, Finding, FindingSeverity};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// What was found in the state directory.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    /// What was found.
    pub findings: Vec<FindingSummary>,
    /// Whether nothing is wrong: there are notes at most.
    pub sound: bool,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FindingSummary {
    /// How bad it is: `note`, `warning` or `error`.
    pub severity: String,
    /// Which part it concerns.
    pub area: String,
    /// The file or record.
    pub subject: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub cure: String,
    /// Whether `heeler doctor --fix` would do something about it.
    pub fixable: bool,
}

impl From<&Finding> for FindingSummary {
    fn from(finding: &Finding) -> FindingSummary {
        let severity = match finding.severity {
            FindingSeverity::Note => "note",
            FindingSeverity::Warning => "warning",
            FindingSeverity::Error => "error",
        };
        FindingSummary {
            severity: severity.to_owned(),
            area: finding.area.to_string(),
            subject: finding.subject.clone(),
            problem: finding.problem.clone(),
            cure: finding.remedy.clone(),
            fixable: finding.repair.is_some(),
        }
    }
}

impl FleetReader {
    /// Looks at everything and changes nothing.
    pub fn check_health(&self, now: Timestamp) -> HealthReport {
        let home = self.context().home;
        let findings = doctor::examine(self.dir().root(), home.as_deref(), now);
        let sound = findings.iter().all(|finding| finding.severity == FindingSeverity::Note);
        HealthReport { findings: findings.iter().map(FindingSummary::from).collect(), sound }
    }

    /// Says whether the state can be read.
    pub fn check_readable(&self) -> Result<(), QueryError> {
        self.reader()?.schema_version()?;
        Ok(())
    }
}
