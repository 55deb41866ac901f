//! What the agent asks, put to the person who watches: one question at a time.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::SyncSender;

use anstyle::{AnsiColor, Style};
use camino::Utf8Path;
use heeler_engine::Control;
use heeler_model::run::{Answer, Ask, Op, ReplyBody};
use heeler_store::doctor::chain;
use serde_json::{Map, Value as Json};

use super::screen::Screen;
use super::{Event, keys};
use crate::failure::Outcome;
use crate::output::{Text, harmless, one_line, shortened};

/// How much of what a tool wants to do is shown before it is allowed.
const WANTED_CHARS_MAX: usize = 2000;

/// How much of each of its other fields is shown.
const FIELD_CHARS_MAX: usize = 400;

/// What the agent waits for.
pub(crate) struct Asks {
    attended: bool,
    tell: SyncSender<Event>,
    waiting: VecDeque<Ask>,
    known: HashSet<String>,
    /// Answers so far to the questions of the first one that waits.
    answers: Map<String, Json>,
    reads: bool,
}

impl Asks {
    pub(crate) fn new(attended: bool, tell: SyncSender<Event>) -> Asks {
        Asks {
            attended,
            tell,
            waiting: VecDeque::new(),
            known: HashSet::new(),
            answers: Map::new(),
            reads: false,
        }
    }

    /// Says whether a person is being asked.
    pub(crate) fn is_asking(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a question; one that is known already changes nothing.
    pub(crate) fn add(&mut self, ask: Ask, screen: &mut Screen) -> Outcome {
        if !self.known.insert(ask.id.clone()) {
            return Ok(());
        }
        if !self.attended {
            let wants = format!("{} {}", ask.tool, gist(&ask.input));
            return screen.remark(&format!("waits for an answer: {}", one_line(&wants)));
        }
        self.waiting.push_back(ask);
        if !std::mem::replace(&mut self.reads, true) {
            keys::read_lines(self.tell.clone());
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
        self.answers.clear();
        screen.line("".into())?;
        screen.remark("the question was settled without you")?;
        self.put(screen)
    }

    /// Takes a typed line as the answer to what was put last.
    pub(crate) fn typed(
        &mut self,
        line: Option<String>,
        folder: &Utf8Path,
        screen: &mut Screen,
    ) -> Outcome {
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        let answer = match (&line, ask.kind.as_str()) {
            (None, _) => Some(deny("nobody answers any more")),
            (Some(line), "question") => choice(ask, line.trim(), &mut self.answers),
            (Some(line), _) => Some(permission(line.trim())),
        };
        let Some(answer) = answer else { return self.put(screen) };
        let id = ask.id.clone();
        self.waiting.pop_front();
        self.answers.clear();
        send(folder, id, answer, screen)?;
        self.put(screen)
    }

    /// Puts the first question that waits.
    fn put(&self, screen: &mut Screen) -> Outcome {
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        match open_question(ask, &self.answers) {
            Some(question) => put_question(question, screen),
            None => put_permission(ask, screen),
        }
    }
}

fn send(folder: &Utf8Path, ask: String, answer: Answer, screen: &mut Screen) -> Outcome {
    let by = "the terminal".to_owned();
    let sent =
        Control::of_run(folder).and_then(|mut control| control.ask(Op::Answer { ask, answer, by }));
    match sent {
        Ok(ReplyBody::Refused { reason }) => screen.remark(&format!("not taken: {reason}")),
        Ok(_) => Ok(()),
        Err(error) => screen.remark(&format!("not delivered: {}", chain(&error))),
    }
}

fn permission(line: &str) -> Answer {
    match line.to_lowercase().as_str() {
        "y" | "yes" => Answer::Allow { input: None },
        "" | "n" | "no" => deny("the user said no"),
        _ => deny(line),
    }
}

fn deny(message: &str) -> Answer {
    Answer::Deny { message: message.to_owned(), interrupt: false }
}

fn put_permission(ask: &Ask, screen: &mut Screen) -> Outcome {
    let yellow = AnsiColor::Yellow.on_default();
    let wants = shortened(&harmless(&gist(&ask.input)), WANTED_CHARS_MAX);
    let tool = Text::styled(yellow.bold(), &one_line(&ask.tool));
    screen.line(Text::styled(yellow, "? ").then(tool).then(" ").then(wants))?;
    // Whoever allows something must have seen all of it, in outline at least.
    let fields = ask.input.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(_, value)| text(value) != gist(&ask.input)) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let value = shortened(&one_line(&value), FIELD_CHARS_MAX);
        let line = format!("    {}: {value}", one_line(name));
        screen.line(Text::styled(Style::new().dimmed(), &line))?;
    }
    screen.prompt("  allow it? [y]es, [n]o, or say what to do instead: ")
}

/// Returns the first question without an answer; none if this is no question.
fn open_question<'a>(ask: &'a Ask, answers: &Map<String, Json>) -> Option<&'a Json> {
    let questions = (ask.kind == "question").then_some(ask.input["questions"].as_array()?)?;
    questions.iter().find(|question| !answers.contains_key(text(&question["question"])))
}

fn put_question(question: &Json, screen: &mut Screen) -> Outcome {
    let yellow = AnsiColor::Yellow.on_default();
    screen.line(Text::styled(yellow, &format!("? {}", harmless(text(&question["question"])))))?;
    for (number, option) in options(question).iter().enumerate() {
        let label = format!("  {}. {}", number + 1, one_line(text(&option["label"])));
        let about = one_line(text(&option["description"]));
        let about = if about.is_empty() { about } else { format!("  {about}") };
        screen.line(Text::from(label).then(Text::styled(Style::new().dimmed(), &about)))?;
    }
    let how = match (options(question).is_empty(), question["multiSelect"] == Json::Bool(true)) {
        (true, _) => "  your answer: ",
        (false, true) => "  numbers with commas, or your own answer: ",
        (false, false) => "  a number, or your own answer: ",
    };
    screen.prompt(how)
}

/// Takes a line as the answer to the first open question; returns the answer to all of them once
/// there is one for each.
fn choice(ask: &Ask, line: &str, answers: &mut Map<String, Json>) -> Option<Answer> {
    let Some(question) = open_question(ask, answers) else { return Some(permission(line)) };
    if line.is_empty() {
        return None;
    }
    let options = options(question);
    let label = |number: &str| {
        let number = number.trim().parse::<usize>().ok()?.checked_sub(1)?;
        options.get(number).map(|option| text(&option["label"]))
    };
    let chosen: Option<Vec<&str>> = line.split(',').map(label).collect();
    let chosen = chosen.map_or_else(|| line.to_owned(), |labels| labels.join(", "));
    answers.insert(text(&question["question"]).to_owned(), chosen.into());
    if open_question(ask, answers).is_some() {
        return None;
    }
    let mut input = ask.input.clone();
    input["answers"] = Json::Object(answers.clone());
    Some(Answer::Allow { input: Some(input) })
}

fn options(question: &Json) -> &[Json] {
    question["options"].as_array().map_or(&[], Vec::as_slice)
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

/// Returns what a tool wants to do, in short.
pub(crate) fn gist(input: &Json) -> String {
    let telling = TELLING.iter().find_map(|key| input[*key].as_str());
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
        }
    }

    #[test]
    fn a_permission_is_given_refused_or_refused_with_a_reason() {
        assert_eq!(permission("y"), Answer::Allow { input: None });
        assert_eq!(permission("YES"), Answer::Allow { input: None });
        assert_eq!(permission(""), deny("the user said no"));
        assert_eq!(permission("use rg instead"), deny("use rg instead"));
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
        assert_eq!(choice(&ask, "", &mut answers), None);
        assert_eq!(choice(&ask, "2", &mut answers), None);
        assert_eq!(choice(&ask, "1, 2", &mut answers), None);
        let Some(Answer::Allow { input: Some(input) }) = choice(&ask, "7", &mut answers) else {
            panic!("all are answered");
        };
        assert_eq!(input["answers"], json!({"Which?": "B", "When?": "now, later", "Why?": "7"}));
        assert_eq!(input["questions"].as_array().unwrap().len(), 3);
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
