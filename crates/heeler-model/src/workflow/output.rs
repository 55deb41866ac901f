//! Output of a part: truncation and interpretation.

use heeler_config::workflow::{MarkerRule, OutputRules};

use super::journal::PartDecision;
use serde_json::Value as Json;

/// Largest output in a journal entry, in bytes. The transcript has the full text.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Bytes kept from the beginning of a long output.
const HEAD_BYTES: usize = 16 << 10;

/// Truncates an output to its beginning and its end, which is the most informative.
pub fn truncate_output(text: &str) -> String {
    if text.len() <= OUTPUT_BYTES_MAX {
        return text.to_owned();
    }
    // The rest of the room is for the mark in the middle.
    let room = OUTPUT_BYTES_MAX - HEAD_BYTES - 64;
    let head = &text[..text.floor_char_boundary(HEAD_BYTES)];
    let tail = &text[text.ceil_char_boundary(text.len() - room)..];
    let left_out = text[head.len()..text.len() - tail.len()].chars().count();
    format!("{head}\n…[truncated {left_out} chars]\n{tail}")
}

/// Result of the rule for BLOCKED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerOutcome {
    NoMarker,
    /// The output contains BLOCKED, so the part failed.
    Blocked,
    /// It contains BLOCKED, but the context exempts the part.
    Bypassed,
}

/// Returns true if an output lacks the text that the rules require.
pub(super) fn lacks_marker(rules: &OutputRules, output: &str) -> bool {
    rules.requires_marker.as_ref().is_some_and(|marker| !output.contains(marker))
}

/// Applies a phase's rule for BLOCKED to an output.
pub(super) fn judge_output(rules: &OutputRules, output: &str, context: &Json) -> MarkerOutcome {
    match &rules.blocked {
        Some(marker) if output.to_ascii_uppercase().contains("BLOCKED") => {
            match is_bypassed(marker, context) {
                true => MarkerOutcome::Bypassed,
                false => MarkerOutcome::Blocked,
            }
        }
        _ => MarkerOutcome::NoMarker,
    }
}

fn is_bypassed(marker: &MarkerRule, context: &Json) -> bool {
    // Last Light's triggers call them `issueLabels` and `issueTitle`.
    let labels = ["labels", "issueLabels"].into_iter().filter_map(|key| context[key].as_array());
    let mut labels = labels.flatten();
    // Labels are texts, or objects as GitHub's API returns them.
    let label_of = |label: &Json| label.as_str().or(label["name"].as_str()).map(str::to_owned);
    let by_label = marker
        .unless_label
        .as_ref()
        .is_some_and(|wanted| labels.any(|label| label_of(label).as_ref() == Some(wanted)));
    let mut titles = ["title", "issueTitle"].into_iter().filter_map(|key| context[key].as_str());
    let pattern = marker.unless_title_matches.as_ref();
    by_label || pattern.is_some_and(|pattern| titles.any(|title| pattern.is_match(title)))
}

/// Returns the verdict of a review: the last `VERDICT:` line, or the first word.
pub(super) fn parse_verdict(output: &str) -> Option<PartDecision> {
    let mut lines = output.lines().rev().filter_map(|line| {
        let line = line.trim();
        // `get` instead of a slice: the eighth byte may be inside of a character.
        let word = line.get(..8).filter(|it| it.eq_ignore_ascii_case("VERDICT:"))?;
        let rest = line[word.len()..].trim();
        match () {
            () if rest.eq_ignore_ascii_case("APPROVED") => Some(PartDecision::Approved),
            () if rest.eq_ignore_ascii_case("REQUEST_CHANGES") => {
                Some(PartDecision::RequestChanges)
            }
            () => None,
        }
    });
    // The last verdict counts: a review may quote an earlier one.
    lines.next().or_else(|| {
        let upper = output.trim_start().to_ascii_uppercase();
        // A text that begins with consent may still ask for changes further on.
        let approves = upper.starts_with("APPROVED") && !upper.contains("REQUEST_CHANGES");
        approves.then_some(PartDecision::Approved)
    })
}

#[cfg(test)]
mod tests {
    use heeler_config::workflow::WorkflowPattern;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_output_keeps_its_beginning_and_its_end() {
        assert_eq!(truncate_output("short"), "short");
        let exact = "x".repeat(OUTPUT_BYTES_MAX);
        assert_eq!(truncate_output(&exact), exact);
        let long = format!("begin{}end", "ä".repeat(OUTPUT_BYTES_MAX));
        let cut = truncate_output(&long);
        assert!(cut.len() <= OUTPUT_BYTES_MAX, "{}", cut.len());
        assert!(cut.starts_with("begin") && cut.ends_with("end") && cut.contains("…[truncated "));
    }

    #[test]
    fn a_review_says_its_verdict_on_a_line_of_its_own() {
        let check = |text: &str, expected| assert_eq!(parse_verdict(text), expected, "{text:?}");
        check("Fine.\n  verdict: approved  \n", Some(PartDecision::Approved));
        check("VERDICT: REQUEST_CHANGES", Some(PartDecision::RequestChanges));
        check("> VERDICT: APPROVED", None);
        check("VERDICT: APPROVED\nVERDICT: REQUEST_CHANGES", Some(PartDecision::RequestChanges));
        check("approved, all good", Some(PartDecision::Approved));
        check("Approved? No: REQUEST_CHANGES", None);
        check("VERDICT: maybe", None);
        check("", None);
    }

    #[test]
    fn a_blocked_output_has_failed_unless_the_context_says_otherwise() {
        let marker = MarkerRule {
            unless_label: Some("bootstrap".to_owned()),
            unless_title_matches: Some(WorkflowPattern::parse("^(Scaffold|boot)\\b").unwrap()),
            ..MarkerRule::default()
        };
        let rules = OutputRules { blocked: Some(marker), requires_marker: None };
        let check = |output: &str, context: &Json, expected| {
            assert_eq!(judge_output(&rules, output, context), expected, "{output:?} {context}");
        };
        check("all good", &json!({}), MarkerOutcome::NoMarker);
        check("I am blocked.", &json!({}), MarkerOutcome::Blocked);
        check("BLOCKED", &json!({"labels": ["bootstrap"]}), MarkerOutcome::Bypassed);
        check("BLOCKED", &json!({"labels": [{"name": "bootstrap"}]}), MarkerOutcome::Bypassed);
        check("BLOCKED", &json!({"title": "scaffold the app"}), MarkerOutcome::Bypassed);
        check("BLOCKED", &json!({"issueLabels": ["bootstrap"]}), MarkerOutcome::Bypassed);
        check("BLOCKED", &json!({"issueTitle": "scaffold the app"}), MarkerOutcome::Bypassed);
        check("BLOCKED", &json!({"title": "A scaffold"}), MarkerOutcome::Blocked);
        check("BLOCKED", &json!({"title": "bootstrap"}), MarkerOutcome::Blocked);
        let marked = OutputRules { blocked: None, requires_marker: Some("DONE:".to_owned()) };
        assert!(lacks_marker(&marked, "done"));
        assert!(!lacks_marker(&marked, "DONE: x") && !lacks_marker(&rules, "done"));
    }
}
