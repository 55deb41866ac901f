//! Findings about the state of a fleet.

use heeler_store::doctor::{self, Finding, FindingSeverity};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Findings about the state directory.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    /// Findings.
    pub findings: Vec<FindingSummary>,
    /// True if there are no warnings or errors.
    pub sound: bool,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FindingSummary {
    /// Severity: `note`, `warning` or `error`.
    pub severity: String,
    /// Area of the state directory.
    pub area: String,
    /// File or record concerned.
    pub subject: String,
    /// Description of the problem.
    pub problem: String,
    /// Suggested action.
    pub cure: String,
    /// True if `heeler doctor --fix` can repair it.
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
    /// Checks the state directory without changing it.
    pub fn check_health(&self, now: Timestamp) -> HealthReport {
        let home = self.context().home;
        let findings = doctor::examine(self.dir().root(), home.as_deref(), now);
        // Notes describe the normal state, so they do not make it unsound.
        let sound = findings.iter().all(|finding| finding.severity == FindingSeverity::Note);
        HealthReport { findings: findings.iter().map(FindingSummary::from).collect(), sound }
    }

    /// Checks that the state can be read.
    pub fn check_readable(&self) -> Result<(), QueryError> {
        // A pooled reader was opened earlier. Only a statement shows if the file is readable now.
        self.reader()?.schema_version()?;
        Ok(())
    }
}
