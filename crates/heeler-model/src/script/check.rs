//! From the loose form of a script to the checked one. Reading goes on after a fault, so that one
//! pass finds them all; what a faulty key stands for does not matter then.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::{
    Condition, Doing, Exit, Failure, Garbage, Part, Question, Script, ScriptFault, SessionKind,
    Spawn, Speech, Step, ToolUse,
};
use crate::config::{Period, Size, did_you_mean};

/// The most steps of a script, nested ones included.
pub const STEPS_MAX: usize = 10_000;
/// The most messages of a flood.
pub const FLOOD_MAX: u64 = 100_000_000;
/// The most turns of a repetition.
pub const REPEAT_MAX: u64 = 1_000_000;
/// The largest message of a flood, in bytes.
pub const FLOOD_BYTES_MAX: u64 = 1 << 20;
/// The longest line of garbage, in bytes.
pub const GARBAGE_BYTES_MAX: u64 = 256 << 20;

/// How long the texts of a flood are when nobody says.
const FLOOD_TEXT_BYTES: usize = 80;
/// How long a huge line is when nobody says: longer than any line that is kept whole.
const HUGE_LINE_BYTES: usize = 64 << 20;

/// Every step and its options. A step is known by its first word; no option is one of those words.
pub(super) const STEPS: &[(&str, &[&str])] = &[
    ("say", &["chunks", "delay"]),
    ("think", &["chunks", "delay"]),
    ("run", &["description", "ask_permission"]),
    ("read", &["ask_permission"]),
    ("write", &["text", "ask_permission"]),
    ("edit", &["old", "new", "ask_permission"]),
    ("tool", &["input", "result", "fails", "ask_permission"]),
    ("call", &["input", "ask_permission"]),
    ("question", &["options", "header", "multi"]),
    ("sub_agent", &["prompt", "do"]),
    ("background", &["then"]),
    ("retry", &["because", "delay"]),
    ("error", &["message"]),
    ("hang", &["ignore_interrupt", "ignore_term"]),
    ("sleep", &[]),
    ("flood", &["size"]),
    ("garbage", &["size"]),
    ("raw", &[]),
    ("stderr", &[]),
    ("exit", &[]),
    ("spawn", &["setsid", "ignore_term", "clear_env", "hold_output"]),
    ("cost", &[]),
    ("usage", &[]),
    ("when", &["do", "else"]),
    ("repeat", &["do"]),
];

/// Signals that an `exit` can name.
const SIGNALS: &[(&str, i32)] = &[
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGABRT", 6),
    ("SIGKILL", 9),
    ("SIGSEGV", 11),
    ("SIGTERM", 15),
];

pub(super) fn check(steps: &[Json]) -> Result<Script, Vec<ScriptFault>> {
    let mut checker = Checker { faults: Vec::new(), steps_left: STEPS_MAX };
    let steps = checker.list(steps, &[]);
    match checker.faults.is_empty() {
        true => Ok(Script { steps }),
        false => Err(checker.faults),
    }
}

struct Checker {
    faults: Vec<ScriptFault>,
    steps_left: usize,
}

/// A step on the way through its keys.
struct Item<'a> {
    map: &'a Map<String, Json>,
    path: &'a [Part],
}

impl Checker {
    fn fault(&mut self, path: &[Part], message: impl Into<String>) {
        self.faults.push(ScriptFault { path: path.to_vec(), message: message.into() });
    }

    fn fault_at(&mut self, item: &Item<'_>, key: &str, message: impl Into<String>) {
        let mut path = item.path.to_vec();
        path.push(Part::Key(key.to_owned()));
        self.fault(&path, message);
    }

    fn list(&mut self, list: &[Json], path: &[Part]) -> Vec<Step> {
        if list.is_empty() {
            self.fault(path, "there is no step");
        }
        if list.len() > self.steps_left {
            self.steps_left = 0;
            self.fault(path, format!("a script has at most {STEPS_MAX} steps"));
            return Vec::new();
        }
        self.steps_left -= list.len();
        let numbered = list.iter().enumerate();
        let steps = numbered.filter_map(|(number, step)| {
            let path = [path, &[Part::Item(number)]].concat();
            self.step(step, &path)
        });
        steps.collect()
    }

    fn step(&mut self, step: &Json, path: &[Part]) -> Option<Step> {
        match step {
            Json::String(word) if word == "hang" => {
                Some(Step::Hang { ignore_interrupt: false, ignore_term: false })
            }
            Json::String(word) if STEPS.iter().any(|(name, _)| name == word) => {
                self.fault(path, format!("`{word}` needs a value: `{word}: …`"));
                None
            }
            Json::Object(map) => {
                let item = Item { map, path };
                let action = self.action(&item)?;
                Some(self.read(&item, action))
            }
            _ => {
                self.fault(path, "a step looks like `say: Hello`");
                None
            }
        }
    }

    /// Finds out which step it is, and whether its options are those of that step.
    fn action(&mut self, item: &Item<'_>) -> Option<&'static str> {
        let known = |key: &str| STEPS.iter().find(|(name, _)| *name == key);
        let found: Vec<_> = item.map.keys().filter_map(|key| known(key)).collect();
        let [(action, options)] = found[..] else {
            match (&found[..], item.map.keys().next()) {
                ([(first, _), (second, _), ..], _) => {
                    let message =
                        format!("`{first}` and `{second}` are two steps; each needs its own `-`");
                    self.fault_at(item, second, message);
                }
                (_, Some(key)) => {
                    let near = did_you_mean(key, STEPS.iter().map(|(name, _)| *name));
                    let all = || {
                        let words: Vec<_> = STEPS.iter().map(|(name, _)| *name).collect();
                        format!("expected one of: {}", words.join(", "))
                    };
                    let hint = near.map_or_else(all, |near| format!("did you mean `{near}`?"));
                    self.fault_at(item, key, format!("unknown step `{key}`; {hint}"));
                }
                (_, None) => self.fault(item.path, "a step looks like `say: Hello`"),
            }
            return None;
        };
        for key in item.map.keys().filter(|key| *key != action && !options.contains(&key.as_str()))
        {
            let near = did_you_mean(key, options.iter().copied());
            let hint = match (near, options) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, []) => "it has none".to_owned(),
                (None, options) => format!("expected one of: {}", options.join(", ")),
            };
            self.fault_at(item, key, format!("`{action}` has no option `{key}`; {hint}"));
        }
        Some(action)
    }

    fn read(&mut self, item: &Item<'_>, action: &'static str) -> Step {
        match action {
            "say" => Step::Say(self.speech(item, action)),
            "think" => Step::Think(self.speech(item, action)),
            "run" | "read" | "write" | "edit" | "tool" | "call" => {
                Step::Tool(self.tool(item, action))
            }
            "question" => Step::Question(self.question(item)),
            "sub_agent" => Step::SubAgent {
                about: self.text(item, "sub_agent"),
                prompt: self.optional_text(item, "prompt").unwrap_or_default(),
                steps: self.nested(item, "do"),
            },
            "background" => Step::Background {
                command: self.text(item, "background"),
                then: self.nested_or_none(item, "then"),
            },
            "retry" => Step::Retry {
                times: self.number(item, "retry", 1..=1000).map_or(1, clamped),
                failure: match item.map.contains_key("because") {
                    true => self.failure(item, "because"),
                    false => Failure::Overloaded,
                },
                delay: self.length(item, "delay"),
            },
            "error" => Step::Error {
                failure: self.failure(item, "error"),
                message: self.optional_text(item, "message"),
            },
            "hang" => self.hang(item),
            "sleep" => Step::Sleep(self.length(item, "sleep")),
            _ => self.read_rare(item, action),
        }
    }

    fn read_rare(&mut self, item: &Item<'_>, action: &'static str) -> Step {
        match action {
            "flood" => Step::Flood {
                messages: self.number(item, "flood", 1..=FLOOD_MAX).unwrap_or(1),
                size_bytes: self.size(item, FLOOD_TEXT_BYTES, FLOOD_BYTES_MAX),
            },
            "garbage" => Step::Garbage {
                kind: self.word(item, "garbage", Garbage::ALL).unwrap_or(Garbage::NotJson),
                size_bytes: self.size(item, HUGE_LINE_BYTES, GARBAGE_BYTES_MAX),
            },
            "raw" => Step::Raw(self.text(item, "raw")),
            "stderr" => Step::Stderr(self.text(item, "stderr")),
            "exit" => Step::Exit(self.exit(item)),
            "spawn" => Step::Spawn(Spawn {
                command: self.text(item, "spawn"),
                setsid: self.flag(item, "setsid"),
                ignore_term: self.flag(item, "ignore_term"),
                clear_env: self.flag(item, "clear_env"),
                hold_output: self.flag(item, "hold_output"),
            }),
            "cost" => Step::Cost(self.cost(item)),
            "usage" => self.usage(item),
            "when" => Step::When {
                condition: self.condition(item),
                steps: self.nested(item, "do"),
                otherwise: self.nested_or_none(item, "else"),
            },
            _ => Step::Repeat {
                times: self.number(item, "repeat", 1..=REPEAT_MAX).unwrap_or(1),
                steps: self.nested(item, "do"),
            },
        }
    }

    fn hang(&mut self, item: &Item<'_>) -> Step {
        let message = match item.map.get("hang") {
            Some(Json::Null | Json::Bool(true)) => None,
            Some(Json::Object(_)) => {
                Some("options stand beside `hang`: `- {hang: true, ignore_interrupt: true}`")
            }
            _ => Some("`hang` is for ever: write `hang: true`, or use `sleep`"),
        };
        if let Some(message) = message {
            self.fault_at(item, "hang", message);
        }
        Step::Hang {
            ignore_interrupt: self.flag(item, "ignore_interrupt"),
            ignore_term: self.flag(item, "ignore_term"),
        }
    }

    fn speech(&mut self, item: &Item<'_>, action: &str) -> Speech {
        Speech {
            text: self.text(item, action),
            chunks: match item.map.contains_key("chunks") {
                true => self.number(item, "chunks", 1..=10_000).map_or(1, clamped),
                false => 1,
            },
            delay: self.length(item, "delay"),
        }
    }

    fn tool(&mut self, item: &Item<'_>, action: &'static str) -> ToolUse {
        let subject = self.text(item, action);
        let (name, input, doing) = match action {
            "run" => {
                let mut input = json!({"command": subject});
                if let Some(description) = self.optional_text(item, "description") {
                    input["description"] = json!(description);
                }
                ("Bash".to_owned(), input, Doing::Real)
            }
            "read" => ("Read".to_owned(), json!({"file_path": subject}), Doing::Real),
            "write" => {
                let content = self.text(item, "text");
                let input = json!({"file_path": subject, "content": content});
                ("Write".to_owned(), input, Doing::Real)
            }
            "edit" => {
                let (old, new) = (self.text(item, "old"), self.text(item, "new"));
                let input = json!({"file_path": subject, "old_string": old, "new_string": new});
                ("Edit".to_owned(), input, Doing::Real)
            }
            "tool" => {
                let canned = Doing::Canned {
                    result: self.text_of_anything(item, "result"),
                    fails: self.flag(item, "fails"),
                };
                (subject, self.input(item), canned)
            }
            _ => {
                let doing = self.mcp(item, &subject);
                (subject, self.input(item), doing)
            }
        };
        ToolUse { name, input, ask_permission: self.flag(item, "ask_permission"), doing }
    }

    fn mcp(&mut self, item: &Item<'_>, name: &str) -> Doing {
        let parts = name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"));
        match parts {
            Some((server, tool)) if !server.is_empty() && !tool.is_empty() => {
                Doing::Mcp { server: server.to_owned(), tool: tool.to_owned() }
            }
            _ => {
                self.fault_at(item, "call", "expected a tool such as `mcp__server__tool`");
                Doing::Real
            }
        }
    }

    fn question(&mut self, item: &Item<'_>) -> Question {
        let text = self.text(item, "question");
        let options = match item.map.get("options") {
            Some(Json::Array(options)) => options.iter().filter_map(scalar).collect(),
            _ => Vec::new(),
        };
        let given = item.map.get("options").and_then(Json::as_array).map_or(0, Vec::len);
        if options.len() < 2 || options.len() != given {
            self.fault_at(
                item,
                "options",
                "`question` needs `options`: a list of two or more texts",
            );
        }
        let header = self.optional_text(item, "header").unwrap_or_else(|| "Question".to_owned());
        Question { text, header, options, multi: self.flag(item, "multi") }
    }

    fn failure(&mut self, item: &Item<'_>, key: &str) -> Failure {
        let by_status = item.map.get(key).and_then(Json::as_u64).and_then(|status| {
            let found = |failure: &&Failure| failure.status().map(u64::from) == Some(status);
            Failure::ALL.iter().find(found).copied()
        });
        by_status
            .or_else(|| self.word_or(item, key, Failure::ALL, &statuses()))
            .unwrap_or(Failure::ServerError)
    }

    fn exit(&mut self, item: &Item<'_>) -> Exit {
        let value = item.map.get("exit").unwrap_or(&Json::Null);
        if let Some(code) = value.as_u64().and_then(|code| u8::try_from(code).ok()) {
            return Exit::Code(code);
        }
        let found = value.as_str().and_then(|word| SIGNALS.iter().find(|(name, _)| *name == word));
        if let Some((_, signal)) = found {
            return Exit::Signal(*signal);
        }
        let names: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
        let message = format!("expected a code from 0 to 255 or one of: {}", names.join(", "));
        self.fault_at(item, "exit", message);
        Exit::Code(1)
    }

    fn cost(&mut self, item: &Item<'_>) -> f64 {
        let cost = item.map.get("cost").and_then(Json::as_f64);
        if let Some(cost) = cost.filter(|cost| (0.0..=1e6).contains(cost)) {
            return cost;
        }
        self.fault_at(item, "cost", "expected US dollars such as 0.05");
        0.0
    }

    fn usage(&mut self, item: &Item<'_>) -> Step {
        let Some(Json::Object(map)) = item.map.get("usage") else {
            self.fault_at(item, "usage", "expected tokens: `usage: {input: 100, output: 20}`");
            return Step::Usage { input: 0, output: 0 };
        };
        let path = [item.path, &[Part::Key("usage".to_owned())]].concat();
        let within = Item { map, path: &path };
        self.known_keys(&within, "usage", &["input", "output"]);
        let mut tokens = |key: &str| match map.contains_key(key) {
            true => self.number(&within, key, 0..=1_000_000_000).unwrap_or(0),
            false => 0,
        };
        Step::Usage { input: tokens("input"), output: tokens("output") }
    }

    fn condition(&mut self, item: &Item<'_>) -> Condition {
        let Some(Json::Object(map)) = item.map.get("when") else {
            self.fault_at(item, "when", "expected a condition: `when: {prompt: deploy}`");
            return Condition::default();
        };
        let path = [item.path, &[Part::Key("when".to_owned())]].concat();
        let within = Item { map, path: &path };
        self.known_keys(&within, "when", &["prompt", "answer", "turn", "session"]);
        if map.is_empty() {
            self.fault_at(item, "when", "expected a condition: `when: {prompt: deploy}`");
        }
        Condition {
            prompt: self.optional_text(&within, "prompt"),
            answer: self.optional_text(&within, "answer"),
            turn: map
                .contains_key("turn")
                .then(|| self.number(&within, "turn", 1..=u64::MAX))
                .flatten(),
            session: map
                .contains_key("session")
                .then(|| self.word(&within, "session", SessionKind::ALL))
                .flatten(),
        }
    }

    fn known_keys(&mut self, item: &Item<'_>, what: &str, known: &[&'static str]) {
        for key in item.map.keys().filter(|key| !known.contains(&key.as_str())) {
            let hint = match did_you_mean(key, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of: {}", known.join(", ")),
            };
            self.fault_at(item, key, format!("`{what}` does not know `{key}`; {hint}"));
        }
    }

    fn nested(&mut self, item: &Item<'_>, key: &str) -> Vec<Step> {
        let path = [item.path, &[Part::Key(key.to_owned())]].concat();
        match item.map.get(key) {
            Some(Json::Array(steps)) => self.list(steps, &path),
            Some(_) => {
                self.fault(&path, format!("`{key}` is a list of steps"));
                Vec::new()
            }
            None => {
                self.fault(item.path, format!("`{key}` is missing: a list of steps"));
                Vec::new()
            }
        }
    }

    fn nested_or_none(&mut self, item: &Item<'_>, key: &str) -> Vec<Step> {
        match item.map.contains_key(key) {
            true => self.nested(item, key),
            false => Vec::new(),
        }
    }

    fn text(&mut self, item: &Item<'_>, key: &str) -> String {
        match item.map.get(key) {
            None => {
                self.fault(item.path, format!("`{key}` is missing"));
                String::new()
            }
            Some(_) => self.optional_text(item, key).unwrap_or_default(),
        }
    }

    fn optional_text(&mut self, item: &Item<'_>, key: &str) -> Option<String> {
        let value = item.map.get(key)?;
        let text = scalar(value);
        if text.is_none() {
            let message = match braces(value) {
                Some(word) => format!(
                    "put text that starts with a brace in quotes: `{key}: \"{{{word}}} …\"`"
                ),
                None => format!("expected text behind `{key}`"),
            };
            self.fault_at(item, key, message);
        }
        text
    }

    /// Reads text, or anything else as its JSON.
    fn text_of_anything(&mut self, item: &Item<'_>, key: &str) -> String {
        match item.map.get(key) {
            None | Some(Json::Null) => self.text(item, key),
            Some(Json::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    fn input(&mut self, item: &Item<'_>) -> Json {
        match item.map.get("input") {
            None | Some(Json::Null) => json!({}),
            Some(input @ Json::Object(_)) => input.clone(),
            Some(_) => {
                self.fault_at(item, "input", "expected a map");
                json!({})
            }
        }
    }

    fn flag(&mut self, item: &Item<'_>, key: &str) -> bool {
        match item.map.get(key) {
            None => false,
            Some(Json::Bool(flag)) => *flag,
            Some(_) => {
                self.fault_at(item, key, format!("`{key}` is true or false"));
                false
            }
        }
    }

    fn number(&mut self, item: &Item<'_>, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let number = item.map.get(key).and_then(Json::as_u64).filter(|n| range.contains(n));
        if number.is_none() {
            let message = match *range.end() {
                u64::MAX => format!("`{key}` is a whole number from {}", range.start()),
                end => format!("`{key}` is a whole number from {} to {end}", range.start()),
            };
            self.fault_at(item, key, message);
        }
        number
    }

    fn length(&mut self, item: &Item<'_>, key: &str) -> Duration {
        let Some(value) = item.map.get(key) else { return Duration::ZERO };
        let parsed = scalar(value).ok_or("it is no text").and_then(|text| text.parse::<Period>());
        match parsed {
            Ok(period) => period.get(),
            Err(reason) => {
                self.fault_at(item, key, format!("`{key}` is a length such as `200ms`: {reason}"));
                Duration::ZERO
            }
        }
    }

    fn size(&mut self, item: &Item<'_>, default: usize, max: u64) -> usize {
        let Some(value) = item.map.get("size") else { return default };
        let parsed = scalar(value).and_then(|text| text.parse::<Size>().ok()).map(Size::bytes);
        match parsed.filter(|bytes| *bytes <= max) {
            Some(bytes) => usize::try_from(bytes).unwrap_or(default),
            None => {
                let max = max >> 20;
                let message = format!("`size` is a length such as `200` or `4k`, at most `{max}m`");
                self.fault_at(item, "size", message);
                default
            }
        }
    }

    fn word<T>(&mut self, item: &Item<'_>, key: &str, all: &[T]) -> Option<T>
    where
        T: Copy + std::fmt::Display + std::str::FromStr,
    {
        self.word_or(item, key, all, "")
    }

    /// Reads a word. `or` is told with the words: what else there may be.
    fn word_or<T>(&mut self, item: &Item<'_>, key: &str, all: &[T], or: &str) -> Option<T>
    where
        T: Copy + std::fmt::Display + std::str::FromStr,
    {
        let text = item.map.get(key).and_then(scalar).unwrap_or_default();
        if let Ok(word) = text.parse() {
            return Some(word);
        }
        let words: Vec<String> = all.iter().map(T::to_string).collect();
        let hint = match did_you_mean(&text, words.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        // The value is not repeated: it may come from the environment.
        self.fault_at(item, key, format!("`{key}` is one of: {}{or}{hint}", words.join(", ")));
        None
    }
}

/// Tells the HTTP statuses that stand for an API error.
fn statuses() -> String {
    let mut known: Vec<u16> = Failure::ALL.iter().filter_map(|failure| failure.status()).collect();
    known.sort_unstable();
    known.dedup();
    let known: Vec<String> = known.iter().map(u16::to_string).collect();
    format!("; or an HTTP status: {}", known.join(", "))
}

/// Returns a number that was checked to fit.
fn clamped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns what YAML may have read as a number or a boolean as the text that it was.
fn scalar(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns the word in braces that YAML took for a map.
fn braces(value: &Json) -> Option<&str> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter().next().filter(|(_, value)| value.is_null()).map(|(word, _)| word.as_str())
}
