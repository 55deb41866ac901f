//! Content of a review of a pull request, as an agent writes it to a file.
//!
//! The text comes from an agent, which may have been manipulated by the pull request. It decides only
//! about the text and the verdict of the review. Start at [`ReviewFindings::parse`].

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// File in which an agent leaves its review, in its working directory; Last Light's name.
pub const FINDINGS_FILE: &str = ".lastlight/pr-review/findings.json";

/// Most findings of a review.
const FINDINGS_MAX: usize = 200;

/// Content of a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviewFindings {
    /// True if nothing is to be posted.
    #[serde(default)]
    pub skip: bool,
    #[serde(default)]
    pub summary: String,
    #[serde(default)]
    pub event: ReviewVerdict,
    #[serde(default)]
    pub findings: Vec<ReviewFinding>,
}

/// Verdict of a review.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReviewVerdict {
    Approve,
    RequestChanges,
    #[default]
    Comment,
}

/// Side of a diff.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReviewSide {
    /// The old version.
    Left,
    #[default]
    Right,
}

/// Remark about a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviewFinding {
    pub path: String,
    #[serde(default)]
    pub line: u32,
    #[serde(default)]
    pub side: ReviewSide,
    /// First line, if the remark is about several.
    #[serde(default)]
    pub start_line: Option<u32>,
    #[serde(default)]
    pub severity: String,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub body: String,
    /// Replacement of the lines.
    #[serde(default)]
    pub suggestion: Option<String>,
}

impl ReviewFindings {
    /// Parses the content of the file, or returns the reason why it is no review.
    pub fn parse(text: &str) -> Result<ReviewFindings, String> {
        let json: Json = serde_json::from_str(text.trim())
            .map_err(|error| format!("{FINDINGS_FILE} is not valid JSON: {error}"))?;
        let is_skip = json["skip"] == Json::Bool(true);
        // A missing verdict must not count as one.
        if !is_skip && (!json["event"].is_string() || !json["summary"].is_string()) {
            return Err(format!("{FINDINGS_FILE} has no `summary` or no `event`"));
        }
        let findings: ReviewFindings = serde_json::from_value(json)
            .map_err(|error| format!("{FINDINGS_FILE} is no review: {error}"))?;
        match findings.findings.len() {
            0..=FINDINGS_MAX => Ok(findings),
            more => {
                Err(format!("{FINDINGS_FILE} has {more} findings; the limit is {FINDINGS_MAX}"))
            }
        }
    }
}

/// Returns the command that reads the file in the agent's working directory. The file is renamed, so
/// that no other run posts the same review; the command can be repeated.
pub(super) fn read_findings_command(run: &str) -> String {
    let stem = FINDINGS_FILE.trim_end_matches(".json");
    // An ID of a run has no characters that the shell interprets.
    let own = format!("{stem}-{run}.json");
    format!(
        "if [ -f '{FINDINGS_FILE}' ]; then mv -- '{FINDINGS_FILE}' '{own}'; fi\n\
         if [ -f '{own}' ]; then cat -- '{own}'; else \
         echo 'the agent wrote no {FINDINGS_FILE}' >&2; exit 1; fi"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_has_a_verdict_or_is_skipped() {
        let text = r#"{"summary": "Fine.", "event": "APPROVE", "findings": []}"#;
        assert_eq!(ReviewFindings::parse(text).unwrap().event, ReviewVerdict::Approve);
        assert!(ReviewFindings::parse(r#"{"skip": true}"#).unwrap().skip);
        let text = r#"{"summary": "x", "event": "COMMENT",
            "findings": [{"path": "a.rs", "line": 3, "side": "LEFT", "severity": "Critical"}]}"#;
        assert_eq!(ReviewFindings::parse(text).unwrap().findings[0].side, ReviewSide::Left);
        for text in ["", "[]", r#"{"summary": "x"}"#, r#"{"summary": "x", "event": "MERGE"}"#] {
            assert!(ReviewFindings::parse(text).is_err(), "{text}");
        }
    }
}
