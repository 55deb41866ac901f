//! What is wrong with a fleet's state.

use heeler_store::doctor::{self, Finding, Severity};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{QueryError, Records};

/// What was found in the state directory.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Examined {
    /// What was found.
    pub findings: Vec<FindingItem>,
    /// Whether nothing is wrong: there are notes at most.
    pub sound: bool,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FindingItem {
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

impl From<&Finding> for FindingItem {
    fn from(finding: &Finding) -> FindingItem {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        FindingItem {
            severity: severity.to_owned(),
            area: finding.area.to_string(),
            subject: finding.subject.clone(),
            problem: finding.problem.clone(),
            cure: finding.cure.clone(),
            fixable: finding.fix.is_some(),
        }
    }
}

impl Records {
    /// Looks at everything and changes nothing.
    pub fn examine(&self, now: Timestamp) -> Examined {
        let home = self.known().home;
        let findings = doctor::examine(self.dir().root(), home.as_deref(), now);
        let sound = findings.iter().all(|finding| finding.severity == Severity::Note);
        Examined { findings: findings.iter().map(FindingItem::from).collect(), sound }
    }

    /// Says whether the state can be read.
    pub fn is_readable(&self) -> Result<(), QueryError> {
        self.reader()?.schema_version()?;
        Ok(())
    }
}
