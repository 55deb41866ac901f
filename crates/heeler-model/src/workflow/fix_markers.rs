//! Markers with which Last Light's `fixing` skill ends its phases. Its host stores them in `scratch`,
//! where conditions of later phases read them.
//!
//! The text comes from an agent: a field that is missing or not known is `null`. Start at
//! [`save_fix_markers`].

use serde_json::{Map, Value as Json, json};

/// Key in `scratch`.
const SCRATCH_KEY: &str = "fixMarkers";

/// Longest value of a field, in characters.
const FIELD_CHARS_MAX: usize = 160;

/// Most names in a list.
const NAMES_MAX: usize = 6;

const CLASSES: [&str; 5] =
    ["reproducible", "env-mismatch", "flaky", "infra-dependent", "upstream-broken"];
const OUTCOMES: [&str; 3] = ["pushed", "no-change", "gave-up"];
const GATES: [&str; 3] = ["green", "red", "skipped"];

/// Stores the markers of an output in `scratch`, if it has any.
pub(super) fn save_fix_markers(scratch: &mut Map<String, Json>, output: &str) {
    let diagnosis = last_marker(output, "DIAGNOSIS_COMPLETE:").map(parse_diagnosis);
    let fix = last_marker(output, "CI_FIX_COMPLETE:").map(parse_fix);
    for (key, value) in [("diagnosis", diagnosis), ("fix", fix)] {
        let Some(value) = value else { continue };
        let state = scratch.entry(SCRATCH_KEY).or_insert_with(|| json!({}));
        // A phase may have stored something else under this key.
        if !state.is_object() {
            *state = json!({});
        }
        state[key] = value;
    }
}

/// Returns the text after the last occurrence of a marker. An earlier one may be a quotation.
fn last_marker<'t>(output: &'t str, tag: &str) -> Option<&'t str> {
    let found =
        output.lines().rev().find_map(|line| line.find(tag).map(|at| &line[at + tag.len()..]));
    // The line may be emphasized or a piece of code.
    found.map(|rest| rest.trim_end_matches(['`', '*', '_', ' ', '\t', '\r']).trim())
}

fn parse_diagnosis(line: &str) -> Json {
    let keys = ["pr", "attempt", "class", "cause", "ci_vs_local", "unreproducible"];
    let field = |key: &str| read_field(line, &keys, key);
    let names: Vec<String> = field("unreproducible")
        .unwrap_or_default()
        .split(',')
        .map(|name| shorten(name.trim()))
        .filter(|name| !name.is_empty())
        .take(NAMES_MAX)
        .collect();
    json!({
        "pr": number(field("pr")),
        "attempt": number(field("attempt")),
        "class": known(field("class"), &CLASSES),
        "rawClass": field("class").map(shorten),
        "cause": shorten(field("cause").unwrap_or_default()),
        "ciVsLocal": shorten(field("ci_vs_local").unwrap_or_default()),
        "unreproducible": names,
    })
}

fn parse_fix(line: &str) -> Json {
    let keys = ["pr", "attempt", "outcome", "tried", "gate"];
    let field = |key: &str| read_field(line, &keys, key);
    json!({
        "pr": number(field("pr")),
        "attempt": number(field("attempt")),
        "outcome": known(field("outcome"), &OUTCOMES),
        "rawOutcome": field("outcome").map(shorten),
        "tried": shorten(field("tried").unwrap_or_default()),
        "gate": known(field("gate"), &GATES),
        "rawGate": field("gate").map(shorten),
    })
}

/// Returns the value of a field. It ends where the next known field begins, because a value may
/// contain spaces and equals signs.
fn read_field<'t>(line: &'t str, keys: &[&str], key: &str) -> Option<&'t str> {
    let begin = |key: &str| -> Option<(usize, usize)> {
        let text = format!("{key}=");
        let places = line.match_indices(&text).map(|(at, _)| at);
        // `attempt=` must not be found within another word.
        let mut places =
            places.filter(|at| line[..*at].chars().last().is_none_or(char::is_whitespace));
        places.next().map(|at| (at, at + text.len()))
    };
    let (_, from) = begin(key)?;
    let ends = keys.iter().filter_map(|key| begin(key)).map(|(at, _)| at);
    let to = ends.filter(|at| *at >= from).min().unwrap_or(line.len());
    Some(line[from..to].trim())
}

fn number(text: Option<&str>) -> Option<u64> {
    text?.parse().ok()
}

/// Returns a word if it is known. Another one must not count as a similar word.
fn known(text: Option<&str>, words: &[&str]) -> Option<String> {
    text.filter(|text| words.contains(text)).map(str::to_owned)
}

fn shorten(text: &str) -> String {
    text.chars().take(FIELD_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(output: &str) -> Json {
        let mut scratch = Map::new();
        save_fix_markers(&mut scratch, output);
        Json::Object(scratch)
    }

    #[test]
    fn the_last_marker_is_read_with_values_that_contain_spaces_and_equals_signs() {
        let text = "This is not DIAGNOSIS_COMPLETE: class=reproducible\n\
                    - `DIAGNOSIS_COMPLETE: pr=7 attempt=2 class=flaky cause=a=b is slow \
                    ci_vs_local=none unreproducible=lint, e2e`\nBye.";
        let found = &saved(text)["fixMarkers"]["diagnosis"];
        assert_eq!(found["class"], "flaky");
        assert_eq!((&found["pr"], &found["attempt"]), (&json!(7), &json!(2)));
        assert_eq!(found["cause"], "a=b is slow");
        assert_eq!(found["unreproducible"], json!(["lint", "e2e"]));
    }

    #[test]
    fn an_unknown_word_is_no_class_and_text_without_a_marker_changes_nothing() {
        let found = saved("DIAGNOSIS_COMPLETE: class=probably-flaky");
        assert_eq!(found["fixMarkers"]["diagnosis"]["class"], Json::Null);
        assert_eq!(found["fixMarkers"]["diagnosis"]["rawClass"], "probably-flaky");
        assert_eq!(saved("class=flaky DIAGNOSIS_COMPLETE"), json!({}));
        let mut scratch = Map::new();
        save_fix_markers(&mut scratch, "DIAGNOSIS_COMPLETE: class=flaky");
        save_fix_markers(&mut scratch, "CI_FIX_COMPLETE: outcome=pushed tried=x gate=green");
        let both = &scratch["fixMarkers"];
        assert_eq!(
            (&both["diagnosis"]["class"], &both["fix"]["gate"]),
            (&json!("flaky"), &json!("green"))
        );
    }
}
