//! Questions of agents as lines of text, and typed lines as answers. Start at [`PermissionText`] and
//! [`choice_lines`].

use anstyle::{AnsiColor, Style};
use heeler_model::job_row::{main_input_field, summarize_tool_input};
use heeler_model::question::{allows_multiple, options, resolve_choice};
use heeler_model::reveal_line;
use heeler_model::run::{AgentQuestion, QuestionAnswer};
use serde_json::{Map, Value as Json};

use crate::output::{SafeText, pluralize};

/// Characters of a tool's main field that are shown before it is allowed, unless the user asks for
/// all.
const WANTED_CHARS_MAX: usize = 2000;
const WANTED_LINES_MAX: usize = 40;

/// Characters of each other field that are shown.
const FIELD_CHARS_MAX: usize = 400;

/// Prefix of each further line of a tool's input, so that no line can pose as Heeler's own.
const CONTINUATION_PREFIX: &str = "  │ ";

/// Parses a line as a permission, a denial, or neither. A question that was not shown in full
/// cannot be allowed with a single key.
pub(crate) fn parse_permission(line: &str, is_cut: bool) -> Option<QuestionAnswer> {
    let line_lower = line.to_lowercase();
    match line_lower.as_str() {
        // A person who has not seen everything must type the whole word.
        "all" | "y" if is_cut => None,
        "y" | "yes" => Some(QuestionAnswer::Allow { input: None }),
        "" | "n" | "no" => Some(deny("the user said no")),
        // As free text it would be a reason to deny, which is hardly meant.
        _ if YES_WORDS.iter().any(|word| begins_with_word(&line_lower, word)) => None,
        _ => Some(deny(line)),
    }
}

/// Words of agreement from people who may not have read the instructions.
const YES_WORDS: [&str; 5] = ["y", "yes", "ok", "okay", "sure"];

fn begins_with_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

pub(super) fn deny(message: &str) -> QuestionAnswer {
    QuestionAnswer::Deny { message: message.to_owned(), interrupt: false }
}

/// A tool's request, formatted for display.
pub(crate) struct PermissionText {
    lines: Vec<SafeText>,
    /// Number of characters that are not shown.
    chars_left_out: usize,
}

impl PermissionText {
    /// Formats a request. The user must see all that is allowed, so every omission is counted.
    pub(crate) fn new(ask: &AgentQuestion, whole: bool) -> PermissionText {
        let yellow = AnsiColor::Yellow.on_default();
        let (key, wants) = match (main_input_field(&ask.input), &ask.input) {
            (Some((key, text)), _) => (key, text.to_owned()),
            // The fields below show all of it.
            (None, Json::Object(_)) => ("", String::new()),
            (None, input) => ("", summarize_tool_input(input)),
        };
        // Cut before escaping, so that the count is that of the agent's own characters.
        let (wants, mut left) = shorten(&wants, WANTED_CHARS_MAX, whole);
        let mut wants = wants.split('\n').map(reveal_line);
        let tool = SafeText::styled(yellow.bold(), &reveal_line(&ask.tool));
        let first = SafeText::styled(yellow, "? ").append(tool).append(" ");
        let mut lines = vec![first.append(wants.next().unwrap_or_default())];
        lines.extend(wants.map(|line| SafeText::styled(yellow, CONTINUATION_PREFIX).append(line)));
        // A harmless main field must not hide another one, such as `run_in_background`.
        let fields = ask.input.as_object().into_iter().flatten();
        for (name, value) in fields.filter(|(name, _)| *name != key) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let (value, more) = shorten(&value, FIELD_CHARS_MAX, whole);
            left += more;
            let line = format!("    {}: {}", reveal_line(name), reveal_line(&value));
            lines.push(SafeText::styled(Style::new().dimmed(), &line));
        }
        PermissionText { lines, chars_left_out: left }
    }

    /// Returns true if something is not shown.
    pub(crate) fn is_cut(&self) -> bool {
        self.chars_left_out > 0
    }

    pub(super) fn lines(&self) -> &[SafeText] {
        &self.lines
    }

    pub(crate) fn into_lines(self) -> Vec<SafeText> {
        self.lines
    }

    /// Returns the request for an answer.
    pub(crate) fn prompt(&self) -> String {
        if !self.is_cut() {
            return "  allow it? `y`, `n` (or Enter), or tell the agent to do something else: "
                .to_owned();
        }
        let left = pluralize(self.chars_left_out as u64, "character");
        format!(
            "  {left} not shown: `all` shows them; allow it? `yes` in full, [n]o, or tell the agent to do \
             something else: "
        )
    }
}

/// Returns the beginning of a text, and the number of characters left out.
fn shorten(text: &str, chars_max: usize, whole: bool) -> (String, usize) {
    let lines = text.match_indices('\n').nth(WANTED_LINES_MAX - 1).map(|(end, _)| end);
    let chars = text.char_indices().nth(chars_max).map(|(end, _)| end);
    // Both limits apply: many short lines fill the screen as one long line does.
    match lines.into_iter().chain(chars).min() {
        Some(end) if !whole => (format!("{}…", &text[..end]), text[end..].chars().count()),
        _ => (text.to_owned(), 0),
    }
}

/// Returns the first question without an answer; `None` for other requests.
pub(crate) fn open_question<'a>(
    ask: &'a AgentQuestion,
    answers: &Map<String, Json>,
) -> Option<&'a Json> {
    // The input comes from the agent and may lack questions; it is then asked as a permission.
    let questions = (ask.kind == "question").then_some(ask.input["questions"].as_array()?)?;
    questions.iter().find(|question| !answers.contains_key(text(&question["question"])))
}

/// Returns a question with its options.
pub(crate) fn choice_lines(question: &Json) -> Vec<SafeText> {
    let yellow = AnsiColor::Yellow.on_default();
    let mut texts = text(&question["question"]).split('\n').map(reveal_line);
    let first = format!("? {}", texts.next().unwrap_or_default());
    let mut lines = vec![SafeText::styled(yellow, &first)];
    lines.extend(texts.map(|line| SafeText::styled(yellow, CONTINUATION_PREFIX).append(line)));
    for (number, option) in options(question).iter().enumerate() {
        let label = format!("  {}. {}", number + 1, reveal_line(text(&option["label"])));
        let about = reveal_line(text(&option["description"]));
        let about = if about.is_empty() { about } else { format!("  {about}") };
        lines.push(SafeText::from(label).append(SafeText::styled(Style::new().dimmed(), &about)));
    }
    lines
}

pub(crate) fn how_to_answer(question: &Json) -> &'static str {
    match (options(question).is_empty(), allows_multiple(question)) {
        (true, _) => "  your answer: ",
        (false, true) => "  numbers with commas, or your own answer: ",
        (false, false) => "  a number, or your own answer: ",
    }
}

/// Parses a line as the answer to the first open question. Returns the answers once all questions
/// have one, or an error message.
pub(crate) fn parse_choice(
    ask: &AgentQuestion,
    line: &str,
    answers: &mut Map<String, Json>,
) -> Result<Option<QuestionAnswer>, String> {
    let Some(question) = open_question(ask, answers) else {
        return Ok(parse_permission(line, false));
    };
    // Enter alone is no answer to a question; it is asked again.
    if line.is_empty() {
        return Ok(None);
    }
    let chosen = resolve_choice(question, line)?;
    // Claude expects the answers by the text of their questions.
    answers.insert(text(&question["question"]).to_owned(), chosen.into());
    if open_question(ask, answers).is_some() {
        return Ok(None);
    }
    let mut input = ask.input.clone();
    // Claude's tool takes the answers as a part of its own input.
    input["answers"] = Json::Object(answers.clone());
    Ok(Some(QuestionAnswer::Allow { input: Some(input) }))
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(kind: &str, input: Json) -> AgentQuestion {
        AgentQuestion {
            protocol: 1,
            id: "a".to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            kind: kind.to_owned(),
            tool: "AskUserQuestion".to_owned(),
            input,
            until: None,
            network_host: None,
            grant: None,
        }
    }

    #[test]
    fn a_permission_is_given_refused_or_refused_with_a_reason() {
        let allow = Some(QuestionAnswer::Allow { input: None });
        assert_eq!(parse_permission("y", false), allow);
        assert_eq!(parse_permission("YES", false), allow);
        assert_eq!(parse_permission("", false), Some(deny("the user said no")));
        assert_eq!(parse_permission("use rg instead", false), Some(deny("use rg instead")));
        assert!(parse_permission("yesterday's file, not this", false).is_some());
        for unclear in ["yes please", "OK", "sure, go on", "y."] {
            assert_eq!(parse_permission(unclear, false), None, "{unclear}");
        }
        // Of what was cut, a key is not enough.
        assert_eq!((parse_permission("y", true), parse_permission("all", true)), (None, None));
        assert_eq!(parse_permission("yes", true), allow);
    }

    fn shown(input: Json, whole: bool) -> (String, usize) {
        let ask = AgentQuestion { tool: "Bash".to_owned(), ..ask("permission", input) };
        let shown = PermissionText::new(&ask, whole);
        let lines: Vec<String> = shown.lines.iter().map(ToString::to_string).collect();
        (anstream::adapter::strip_str(&lines.join("\n")).to_string(), shown.chars_left_out)
    }

    #[test]
    fn nothing_that_is_to_be_allowed_is_hidden() {
        let hidden = "ls \x1b]0;touch /x;\x07\u{9b}1A\r\u{202e}\u{200b}\u{a0}\u{ad}\t\u{3164}.";
        let seen = "? Bash ls \\u{1b}]0;touch /x;\\u{7}\\u{9b}1A\\u{d}\\u{202e}\\u{200b}\\u{a0}\\u{ad}\\u{9}\\u{3164}.";
        assert_eq!(shown(json!({ "command": hidden }), false), (seen.to_owned(), 0));
        let lines = json!({"command": "ls\n  allow it? [y]es", "description": "a\nb \x1b[2K"});
        let seen = "? Bash ls\n  │   allow it? [y]es\n    description: a\\nb \\u{1b}[2K";
        assert_eq!(shown(lines, false), (seen.to_owned(), 0));
        assert_eq!(reveal_line("größe 大きさ"), "größe 大きさ");
        let unusual = json!({"path": "", "targets": ["/"], "recursive": true});
        let seen = "? Bash \n    path: \n    targets: [\"/\"]\n    recursive: true";
        assert_eq!(shown(unusual, false), (seen.to_owned(), 0));
        let same = json!({"command": "ls", "description": "ls"});
        assert_eq!(shown(same, false), ("? Bash ls\n    description: ls".to_owned(), 0));
    }

    #[test]
    fn what_is_cut_is_counted_and_can_be_seen() {
        let long = format!("{}; touch /x", "x".repeat(WANTED_CHARS_MAX));
        let (seen, left) = shown(json!({"command": long, "note": "n".repeat(401)}), false);
        assert!(!seen.contains("touch"));
        assert_eq!(left, "; touch /x".len() + 1);
        let (seen, left) = shown(json!({ "command": long }), true);
        assert!(seen.contains("touch /x") && left == 0);
        let (seen, left) = shown(json!({"command": format!("ls{}touch", "\n".repeat(60))}), false);
        assert_eq!((seen.lines().count(), left), (WANTED_LINES_MAX, 60 - WANTED_LINES_MAX + 1 + 5));
    }

    #[test]
    fn questions_are_answered_one_after_the_other_by_number_or_in_words() {
        let ask = ask(
            "question",
            json!({"questions": [
                {"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]},
                {"question": "When?", "options": [{"label": "now"}, {"label": "later"}], "multiSelect": true},
                {"question": "Why?"},
            ]}),
        );
        let mut answers = Map::new();
        assert_eq!(parse_choice(&ask, "", &mut answers), Ok(None));
        assert_eq!(parse_choice(&ask, "2", &mut answers), Ok(None));
        assert_eq!(parse_choice(&ask, "1, 2", &mut answers), Ok(None));
        let Ok(Some(QuestionAnswer::Allow { input: Some(input) })) =
            parse_choice(&ask, "7", &mut answers)
        else {
            panic!("all are answered");
        };
        assert_eq!(input["answers"], json!({"Which?": "B", "When?": "now, later", "Why?": "7"}));
        assert_eq!(input["questions"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_number_out_of_range_is_no_answer() {
        let one = json!({"question": "?", "options": [{"label": "A"}, {"label": "7"}]});
        let several = json!({"question": "?", "options": [{"label": "A"}], "multiSelect": true});
        for (question, line) in [(&one, "3"), (&one, "0"), (&one, "-1"), (&several, "1, 2")] {
            let wrong = resolve_choice(question, line).unwrap_err();
            let last = options(question).len();
            assert!(wrong.contains(&format!(": choose 1 to {last}, or")), "{line}: {wrong}");
        }
        assert_eq!(resolve_choice(&one, "1,2").unwrap_err(), "only one option can be chosen");
        assert_eq!(resolve_choice(&one, "7").unwrap(), "7", "it is a label");
        assert_eq!(resolve_choice(&one, "\"3\"").unwrap(), "3");
        assert_eq!(resolve_choice(&one, "3 of them").unwrap(), "3 of them");
    }
}
