//! What the agent asks, put to the person who watches: one question at a time.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::SyncSender;

use anstyle::{AnsiColor, Style};
use camino::Utf8Path;
use heeler_engine::Control;
use heeler_model::question::{chosen, options, takes_several};
use heeler_model::run::{Answer, Ask, Op, ReplyBody};
use heeler_model::{chain, steers_terminal};
use serde_json::{Map, Value as Json};
use unicode_width::UnicodeWidthChar as _;

use super::Event;
use super::keys::{Keyboard, Keys};
use super::screen::Screen;
use crate::failure::Outcome;
use crate::output::{Text, counted, one_line};

/// How much of what a tool wants to do is shown before it is allowed, unless all is asked for.
const WANTED_CHARS_MAX: usize = 2000;
const WANTED_LINES_MAX: usize = 40;

/// How much of each of its other fields is shown.
const FIELD_CHARS_MAX: usize = 400;

/// Begins each further line of what a tool wants, so that none can pose as one of ours.
const FURTHER: &str = "  │ ";

/// What the agent is told after the end of input.
const NOBODY: &str = "nobody answers any more";

/// What the agent waits for.
pub(crate) struct Asks {
    /// Where answers are typed; none where nobody is asked.
    keyboard: Option<Keyboard>,
    /// Who answers, for the record.
    who: String,
    tell: SyncSender<Event>,
    waiting: VecDeque<Ask>,
    known: HashSet<String>,
    /// Answers so far to the questions of the first one that waits.
    answers: Map<String, Json>,
    /// Whether all of the first one is to be shown, however long it is.
    whole: bool,
    keys: Option<Keys>,
    /// The number of what was put last: lines that were typed before it are no answer to it.
    question: u64,
    /// The end of input was typed: nobody answers any more.
    ended: bool,
}

impl Asks {
    pub(crate) fn new(keyboard: Option<Keyboard>, who: String, tell: SyncSender<Event>) -> Asks {
        Asks {
            keyboard,
            who,
            tell,
            waiting: VecDeque::new(),
            known: HashSet::new(),
            answers: Map::new(),
            whole: false,
            keys: None,
            question: 0,
            ended: false,
        }
    }

    /// Says whether a person is being asked.
    pub(crate) fn is_asking(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a question; one that is known already changes nothing.
    pub(crate) fn add(&mut self, ask: Ask, folder: &Utf8Path, screen: &mut Screen) -> Outcome {
        if !self.known.insert(ask.id.clone()) {
            return Ok(());
        }
        if self.keyboard.is_none() {
            let wants = format!("{} {}", ask.tool, gist(&ask.input));
            return screen.remark(&format!("waits for an answer: {}", one_line(&wants)));
        }
        self.waiting.push_back(ask);
        if self.ended {
            return self.deny_all(folder, screen);
        }
        match self.waiting.len() {
            1 => self.put(screen),
            _ => Ok(()),
        }
    }

    /// Takes a question back that was answered elsewhere, timed out or was withdrawn.
    pub(crate) fn settled(&mut self, id: &str, screen: &mut Screen) -> Outcome {
        let Some(place) = self.waiting.iter().position(|ask| ask.id == id) else { return Ok(()) };
        self.waiting.remove(place);
        if place > 0 {
            return Ok(());
        }
        self.next();
        screen.line("".into())?;
        screen.remark("the question was settled without you")?;
        self.put(screen)
    }

    /// Takes a typed line as the answer to what was put last.
    pub(crate) fn typed(
        &mut self,
        question: u64,
        line: Option<String>,
        folder: &Utf8Path,
        screen: &mut Screen,
    ) -> Outcome {
        if line.is_some() && question != self.question {
            return Ok(());
        }
        let Some(line) = line else {
            self.ended = true;
            return self.deny_all(folder, screen);
        };
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        let answer = match ask.kind.as_str() {
            "question" if open_question(ask, &self.answers).is_some() => {
                match choice(ask, line.trim(), &mut self.answers) {
                    Ok(answer) => answer,
                    Err(wrong) => return self.put_again(&wrong, screen),
                }
            }
            _ => {
                let is_cut = Shown::of(ask, self.whole).left > 0;
                self.whole |= line.trim() == "all";
                permission(line.trim(), is_cut)
            }
        };
        let Some(answer) = answer else { return self.put(screen) };
        let id = ask.id.clone();
        self.waiting.pop_front();
        self.next();
        self.send(folder, id, answer, screen)?;
        self.put(screen)
    }

    /// Answers the run itself: it works without a daemon, and the run says how its question ended.
    fn send(&self, folder: &Utf8Path, ask: String, answer: Answer, screen: &mut Screen) -> Outcome {
        let by = self.who.clone();
        let sent = Control::of_run(folder)
            .and_then(|mut control| control.ask(Op::Answer { ask, answer, by }));
        match sent {
            Ok(ReplyBody::Refused { reason }) => screen.remark(&format!("not taken: {reason}")),
            Ok(_) => Ok(()),
            Err(error) => screen.remark(&format!("not delivered: {}", chain(&error))),
        }
    }

    fn next(&mut self) {
        self.answers.clear();
        self.whole = false;
    }

    /// Denies whatever waits: nobody is there to be asked.
    fn deny_all(&mut self, folder: &Utf8Path, screen: &mut Screen) -> Outcome {
        self.answers.clear();
        while let Some(ask) = self.waiting.pop_front() {
            screen.line("".into())?;
            screen.remark(&format!("denied, as {NOBODY}: {}", one_line(&ask.tool)))?;
            self.send(folder, ask.id, deny(NOBODY), screen)?;
        }
        Ok(())
    }

    /// Puts the first question that waits.
    fn put(&mut self, screen: &mut Screen) -> Outcome {
        let (Some(ask), Some(keyboard)) = (self.waiting.front(), &self.keyboard) else {
            return Ok(());
        };
        let keys = self.keys.get_or_insert_with(|| Keys::read(keyboard.clone(), self.tell.clone()));
        self.question = keys.forget();
        match open_question(ask, &self.answers) {
            Some(question) => put_question(question, screen),
            None => put_permission(&Shown::of(ask, self.whole), screen),
        }
    }

    /// Says what was wrong with the answer and asks again; the question itself stands above.
    fn put_again(&mut self, wrong: &str, screen: &mut Screen) -> Outcome {
        screen.line(Text::styled(AnsiColor::Red.on_default(), &format!("  {wrong}")))?;
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        let Some(question) = open_question(ask, &self.answers) else { return Ok(()) };
        let how = how_to_answer(question);
        self.question = self.keys.as_ref().map_or(self.question, Keys::forget);
        screen.prompt(how)
    }
}

/// Takes a line as a permission, a refusal, or neither: of what was not shown in full nobody says
/// yes with a single key.
fn permission(line: &str, is_cut: bool) -> Option<Answer> {
    let line_lower = line.to_lowercase();
    match line_lower.as_str() {
        "all" | "y" if is_cut => None,
        "y" | "yes" => Some(Answer::Allow { input: None }),
        "" | "n" | "no" => Some(deny("the user said no")),
        // It would be a reason to deny, and is hardly meant as one.
        _ if AGREEING.iter().any(|word| begins_with_word(&line_lower, word)) => None,
        _ => Some(deny(line)),
    }
}

/// What people say who agree, and may not have read how to.
const AGREEING: [&str; 5] = ["y", "yes", "ok", "okay", "sure"];

fn begins_with_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

fn deny(message: &str) -> Answer {
    Answer::Deny { message: message.to_owned(), interrupt: false }
}

/// What a tool wants to do, as it is shown.
struct Shown {
    lines: Vec<Text>,
    /// How many characters of it are not.
    left: usize,
}

impl Shown {
    /// Whoever allows something must have seen it: nothing in it is left out but what is counted.
    fn of(ask: &Ask, whole: bool) -> Shown {
        let yellow = AnsiColor::Yellow.on_default();
        let (key, wants) = match (telling(&ask.input), &ask.input) {
            (Some((key, text)), _) => (key, text.to_owned()),
            // All of it is in the fields below.
            (None, Json::Object(_)) => ("", String::new()),
            (None, input) => ("", gist(input)),
        };
        let (wants, mut left) = shorten(&wants, WANTED_CHARS_MAX, whole);
        let mut wants = wants.split('\n').map(visible);
        let tool = Text::styled(yellow.bold(), &visible(&ask.tool));
        let first = Text::styled(yellow, "? ").then(tool).then(" ");
        let mut lines = vec![first.then(wants.next().unwrap_or_default())];
        lines.extend(wants.map(|line| Text::styled(yellow, FURTHER).then(line)));
        let fields = ask.input.as_object().into_iter().flatten();
        for (name, value) in fields.filter(|(name, _)| *name != key) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let (value, more) = shorten(&value, FIELD_CHARS_MAX, whole);
            left += more;
            let line = format!("    {}: {}", visible(name), visible(&value));
            lines.push(Text::styled(Style::new().dimmed(), &line));
        }
        Shown { lines, left }
    }
}

fn put_permission(shown: &Shown, screen: &mut Screen) -> Outcome {
    for line in &shown.lines {
        screen.line(line.clone())?;
    }
    if shown.left == 0 {
        return screen.prompt("  allow it? `y`, `n` (or Enter), or say what to do instead: ");
    }
    let left = counted(shown.left as u64, "character");
    screen.line(Text::styled(AnsiColor::Red.on_default(), &format!("  {left} not shown")))?;
    screen.prompt("  `all` shows them; allow it? `yes` in full, [n]o, or say what to do instead: ")
}

/// Returns the beginning of a text, and how many characters it lacks.
fn shorten(text: &str, chars_max: usize, whole: bool) -> (String, usize) {
    let lines = text.match_indices('\n').nth(WANTED_LINES_MAX - 1).map(|(end, _)| end);
    let chars = text.char_indices().nth(chars_max).map(|(end, _)| end);
    match lines.into_iter().chain(chars).min() {
        Some(end) if !whole => (format!("{}…", &text[..end]), text[end..].chars().count()),
        _ => (text.to_owned(), 0),
    }
}

/// Returns a text on one line in which every character can be seen: what a terminal would hide, take
/// as a command or show elsewhere stands there by its number.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' => shown.push(c),
            '\n' => shown.push_str("\\n"),
            c if hides(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

fn hides(c: char) -> bool {
    let is_blank =
        c.is_whitespace() || matches!(c, '\u{ad}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}');
    is_blank || steers_terminal(c) || c.width().is_none_or(|width| width == 0)
}

/// Returns the first question without an answer; none if this is no question.
fn open_question<'a>(ask: &'a Ask, answers: &Map<String, Json>) -> Option<&'a Json> {
    let questions = (ask.kind == "question").then_some(ask.input["questions"].as_array()?)?;
    questions.iter().find(|question| !answers.contains_key(text(&question["question"])))
}

fn put_question(question: &Json, screen: &mut Screen) -> Outcome {
    let yellow = AnsiColor::Yellow.on_default();
    let mut asked = text(&question["question"]).split('\n').map(visible);
    screen.line(Text::styled(yellow, &format!("? {}", asked.next().unwrap_or_default())))?;
    for line in asked {
        screen.line(Text::styled(yellow, FURTHER).then(line))?;
    }
    for (number, option) in options(question).iter().enumerate() {
        let label = format!("  {}. {}", number + 1, visible(text(&option["label"])));
        let about = visible(text(&option["description"]));
        let about = if about.is_empty() { about } else { format!("  {about}") };
        screen.line(Text::from(label).then(Text::styled(Style::new().dimmed(), &about)))?;
    }
    screen.prompt(how_to_answer(question))
}

fn how_to_answer(question: &Json) -> &'static str {
    match (options(question).is_empty(), takes_several(question)) {
        (true, _) => "  your answer: ",
        (false, true) => "  numbers with commas, or your own answer: ",
        (false, false) => "  a number, or your own answer: ",
    }
}

/// Takes a line as the answer to the first open question; returns the answer to all of them once
/// there is one for each, or what is wrong with the line.
fn choice(
    ask: &Ask,
    line: &str,
    answers: &mut Map<String, Json>,
) -> Result<Option<Answer>, String> {
    let Some(question) = open_question(ask, answers) else { return Ok(permission(line, false)) };
    if line.is_empty() {
        return Ok(None);
    }
    let chosen = chosen(question, line)?;
    answers.insert(text(&question["question"]).to_owned(), chosen.into());
    if open_question(ask, answers).is_some() {
        return Ok(None);
    }
    let mut input = ask.input.clone();
    input["answers"] = Json::Object(answers.clone());
    Ok(Some(Answer::Allow { input: Some(input) }))
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

/// What of a tool's input tells most, where it has such a field.
const TELLING: [&str; 9] = [
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "query",
    "url",
    "description",
    "prompt",
];

fn telling(input: &Json) -> Option<(&'static str, &str)> {
    TELLING.iter().map(|key| (*key, text(&input[*key]))).find(|(_, text)| !text.is_empty())
}

/// Returns what a tool wants to do, in short.
pub(crate) fn gist(input: &Json) -> String {
    let telling = telling(input).map(|(_, text)| text);
    let telling = telling.or_else(|| input["questions"][0]["question"].as_str());
    match (telling, input) {
        (Some(text), _) => text.to_owned(),
        (None, Json::String(text)) => text.clone(),
        (None, Json::Object(fields)) if fields.len() == 1 => fields
            .values()
            .map(|value| value.as_str().map_or(value.to_string(), str::to_owned))
            .collect(),
        (None, Json::Null) => String::new(),
        (None, other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(kind: &str, input: Json) -> Ask {
        Ask {
            protocol: 1,
            id: "a".to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            kind: kind.to_owned(),
            tool: "AskUserQuestion".to_owned(),
            input,
            until: None,
        }
    }

    #[test]
    fn a_permission_is_given_refused_or_refused_with_a_reason() {
        let allow = Some(Answer::Allow { input: None });
        assert_eq!(permission("y", false), allow);
        assert_eq!(permission("YES", false), allow);
        assert_eq!(permission("", false), Some(deny("the user said no")));
        assert_eq!(permission("use rg instead", false), Some(deny("use rg instead")));
        assert!(permission("yesterday's file, not this", false).is_some());
        for unclear in ["yes please", "OK", "sure, go on", "y."] {
            assert_eq!(permission(unclear, false), None, "{unclear}");
        }
        // Of what was cut, a key is not enough.
        assert_eq!((permission("y", true), permission("all", true)), (None, None));
        assert_eq!(permission("yes", true), allow);
    }

    fn shown(input: Json, whole: bool) -> (String, usize) {
        let ask = Ask { tool: "Bash".to_owned(), ..ask("permission", input) };
        let shown = Shown::of(&ask, whole);
        let lines: Vec<String> = shown.lines.iter().map(ToString::to_string).collect();
        (anstream::adapter::strip_str(&lines.join("\n")).to_string(), shown.left)
    }

    #[test]
    fn nothing_that_is_to_be_allowed_is_hidden() {
        let hidden = "ls \x1b]0;touch /x;\x07\u{9b}1A\r\u{202e}\u{200b}\u{a0}\u{ad}\t\u{3164}.";
        let seen = "? Bash ls \\u{1b}]0;touch /x;\\u{7}\\u{9b}1A\\u{d}\\u{202e}\\u{200b}\\u{a0}\\u{ad}\\u{9}\\u{3164}.";
        assert_eq!(shown(json!({ "command": hidden }), false), (seen.to_owned(), 0));
        let lines = json!({"command": "ls\n  allow it? [y]es", "description": "a\nb \x1b[2K"});
        let seen = "? Bash ls\n  │   allow it? [y]es\n    description: a\\nb \\u{1b}[2K";
        assert_eq!(shown(lines, false), (seen.to_owned(), 0));
        assert_eq!(visible("größe 大きさ"), "größe 大きさ");
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
        assert_eq!(choice(&ask, "", &mut answers), Ok(None));
        assert_eq!(choice(&ask, "2", &mut answers), Ok(None));
        assert_eq!(choice(&ask, "1, 2", &mut answers), Ok(None));
        let Ok(Some(Answer::Allow { input: Some(input) })) = choice(&ask, "7", &mut answers) else {
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
            let wrong = chosen(question, line).unwrap_err();
            let last = options(question).len();
            assert!(wrong.contains(&format!(": 1 to {last}, or")), "{line}: {wrong}");
        }
        assert_eq!(chosen(&one, "1,2").unwrap_err(), "only one of them can be chosen");
        assert_eq!(chosen(&one, "7").unwrap(), "7", "it is a label");
        assert_eq!(chosen(&one, "\"3\"").unwrap(), "3");
        assert_eq!(chosen(&one, "3 of them").unwrap(), "3 of them");
    }

    #[test]
    fn what_a_tool_wants_is_told_in_short() {
        assert_eq!(gist(&json!({"command": "ls", "timeout": 3})), "ls");
        assert_eq!(gist(&json!({"x": 1})), "1");
        assert_eq!(gist(&json!({"x": 1, "y": 2})), r#"{"x":1,"y":2}"#);
        assert_eq!(gist(&json!("text")), "text");
        assert_eq!(gist(&Json::Null), "");
    }
}
