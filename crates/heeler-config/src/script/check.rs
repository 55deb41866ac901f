//! Converts the untyped form of a script into the checked one. Checking continues after a fault, so
//! that one pass finds them all; the value used for a faulty key is then irrelevant.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::{
    AgentScript, GarbageKind, OrphanProcess, ScriptApiError, ScriptCondition, ScriptExit,
    ScriptFault, ScriptPathSegment, ScriptQuestion, ScriptSessionKind, ScriptStep, ScriptToolCall,
    StreamedText, ToolResultSource,
};
use crate::{ByteSize, ConfigDuration, did_you_mean};

/// Maximum number of steps in a script, including nested ones.
pub const STEPS_MAX: usize = 10_000;
/// Maximum number of messages in a flood.
pub const FLOOD_MAX: u64 = 100_000_000;
/// Maximum number of repetitions.
pub const REPEAT_MAX: u64 = 1_000_000;
/// Largest message of a flood, in bytes.
pub const FLOOD_BYTES_MAX: u64 = 1 << 20;
/// Longest line of garbage, in bytes.
pub const GARBAGE_BYTES_MAX: u64 = 256 << 20;

/// Default length of the texts of a flood.
const FLOOD_TEXT_BYTES: usize = 80;
/// Default length of a huge line: longer than any line that is kept whole.
const HUGE_LINE_BYTES: usize = 64 << 20;

/// Every step and its options. A step is identified by its first word; no option has the name of a
/// step.
pub(super) const STEP_OPTIONS: &[(&str, &[&str])] = &[
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

pub(super) fn check(steps: &[Json]) -> Result<AgentScript, Vec<ScriptFault>> {
    let mut checker = ScriptChecker { faults: Vec::new(), steps_left: STEPS_MAX };
    let steps = checker.read_steps(steps, &[]);
    match checker.faults.is_empty() {
        true => Ok(AgentScript { steps }),
        false => Err(checker.faults),
    }
}

struct ScriptChecker {
    faults: Vec<ScriptFault>,
    steps_left: usize,
}

/// Step being checked.
struct RawStep<'a> {
    map: &'a Map<String, Json>,
    path: &'a [ScriptPathSegment],
}

impl ScriptChecker {
    fn report(&mut self, path: &[ScriptPathSegment], message: impl Into<String>) {
        self.faults.push(ScriptFault { path: path.to_vec(), message: message.into() });
    }

    fn report_at_key(&mut self, item: &RawStep<'_>, key: &str, message: impl Into<String>) {
        let mut path = item.path.to_vec();
        path.push(ScriptPathSegment::Key(key.to_owned()));
        self.report(&path, message);
    }

    fn read_steps(&mut self, list: &[Json], path: &[ScriptPathSegment]) -> Vec<ScriptStep> {
        if list.is_empty() {
            self.report(path, "there is no step");
        }
        if list.len() > self.steps_left {
            // Nothing more is counted or reported for a script that is far too long.
            self.steps_left = 0;
            self.report(path, format!("a script has at most {STEPS_MAX} steps"));
            return Vec::new();
        }
        self.steps_left -= list.len();
        let numbered = list.iter().enumerate();
        let steps = numbered.filter_map(|(number, step)| {
            // The path leads from the whole script to the step, for the position of a fault.
            let path = [path, &[ScriptPathSegment::Item(number)]].concat();
            self.read_step(step, &path)
        });
        steps.collect()
    }

    fn read_step(&mut self, step: &Json, path: &[ScriptPathSegment]) -> Option<ScriptStep> {
        match step {
            // The only step without a value may be written as a word.
            Json::String(word) if word == "hang" => {
                Some(ScriptStep::Hang { ignore_interrupt: false, ignore_term: false })
            }
            Json::String(word) if STEP_OPTIONS.iter().any(|(name, _)| name == word) => {
                self.report(path, format!("`{word}` needs a value: `{word}: …`"));
                None
            }
            Json::Object(map) => {
                let item = RawStep { map, path };
                let action = self.find_action(&item)?;
                Some(self.read_action(&item, action))
            }
            _ => {
                self.report(path, "a step looks like `say: Hello`");
                None
            }
        }
    }

    /// Determines the step's action and checks that its options belong to that action.
    fn find_action(&mut self, item: &RawStep<'_>) -> Option<&'static str> {
        let known = |key: &str| STEP_OPTIONS.iter().find(|(name, _)| *name == key);
        let found: Vec<_> = item.map.keys().filter_map(|key| known(key)).collect();
        // A step is recognized by its word, in any position among its options.
        let [(action, options)] = found[..] else {
            match (&found[..], item.map.keys().next()) {
                ([(first, _), (second, _), ..], _) => {
                    let message =
                        format!("`{first}` and `{second}` are two steps; each needs its own `-`");
                    self.report_at_key(item, second, message);
                }
                (_, Some(key)) => {
                    let near = did_you_mean(key, STEP_OPTIONS.iter().map(|(name, _)| *name));
                    let all = || {
                        let words: Vec<_> = STEP_OPTIONS.iter().map(|(name, _)| *name).collect();
                        format!("expected one of: {}", words.join(", "))
                    };
                    let hint = near.map_or_else(all, |near| format!("did you mean `{near}`?"));
                    self.report_at_key(item, key, format!("unknown step `{key}`; {hint}"));
                }
                (_, None) => self.report(item.path, "a step looks like `say: Hello`"),
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
            self.report_at_key(item, key, format!("`{action}` has no option `{key}`; {hint}"));
        }
        Some(action)
    }

    fn read_action(&mut self, item: &RawStep<'_>, action: &'static str) -> ScriptStep {
        match action {
            "say" => ScriptStep::Say(self.speech(item, action)),
            "think" => ScriptStep::Think(self.speech(item, action)),
            "run" | "read" | "write" | "edit" | "tool" | "call" => {
                ScriptStep::Tool(self.tool(item, action))
            }
            "question" => ScriptStep::Question(self.question(item)),
            "sub_agent" => ScriptStep::SubAgent {
                description: self.text(item, "sub_agent"),
                prompt: self.optional_text(item, "prompt").unwrap_or_default(),
                steps: self.read_nested_steps(item, "do"),
            },
            "background" => ScriptStep::Background {
                command: self.text(item, "background"),
                then: self.read_optional_steps(item, "then"),
            },
            "retry" => ScriptStep::Retry {
                times: self.number(item, "retry", 1..=1000).map_or(1, to_u32),
                // Checked first, because reading a missing word would report it.
                failure: match item.map.contains_key("because") {
                    true => self.failure(item, "because"),
                    false => ScriptApiError::Overloaded,
                },
                delay: self.read_duration(item, "delay"),
            },
            "error" => ScriptStep::Error {
                failure: self.failure(item, "error"),
                message: self.optional_text(item, "message"),
            },
            "hang" => self.hang(item),
            "sleep" => ScriptStep::Sleep(self.read_duration(item, "sleep")),
            _ => self.read_other_action(item, action),
        }
    }

    fn read_other_action(&mut self, item: &RawStep<'_>, action: &'static str) -> ScriptStep {
        match action {
            "flood" => ScriptStep::Flood {
                messages: self.number(item, "flood", 1..=FLOOD_MAX).unwrap_or(1),
                size_bytes: self.size(item, FLOOD_TEXT_BYTES, FLOOD_BYTES_MAX),
            },
            "garbage" => ScriptStep::Garbage {
                kind: self
                    .read_word(item, "garbage", GarbageKind::ALL)
                    .unwrap_or(GarbageKind::NotJson),
                size_bytes: self.size(item, HUGE_LINE_BYTES, GARBAGE_BYTES_MAX),
            },
            "raw" => ScriptStep::Raw(self.text(item, "raw")),
            "stderr" => ScriptStep::Stderr(self.text(item, "stderr")),
            "exit" => ScriptStep::Exit(self.exit(item)),
            "spawn" => ScriptStep::Spawn(OrphanProcess {
                command: self.text(item, "spawn"),
                setsid: self.flag(item, "setsid"),
                ignore_term: self.flag(item, "ignore_term"),
                clear_env: self.flag(item, "clear_env"),
                hold_output: self.flag(item, "hold_output"),
            }),
            "cost" => ScriptStep::Cost(self.cost(item)),
            "usage" => self.usage(item),
            "when" => ScriptStep::When {
                condition: self.condition(item),
                steps: self.read_nested_steps(item, "do"),
                otherwise: self.read_optional_steps(item, "else"),
            },
            // Every other action was handled above.
            _ => ScriptStep::Repeat {
                times: self.number(item, "repeat", 1..=REPEAT_MAX).unwrap_or(1),
                steps: self.read_nested_steps(item, "do"),
            },
        }
    }

    fn hang(&mut self, item: &RawStep<'_>) -> ScriptStep {
        let message = match item.map.get("hang") {
            Some(Json::Null | Json::Bool(true)) => None,
            Some(Json::Object(_)) => {
                Some("options stand beside `hang`: `- {hang: true, ignore_interrupt: true}`")
            }
            _ => Some("`hang` is for ever: write `hang: true`, or use `sleep`"),
        };
        if let Some(message) = message {
            self.report_at_key(item, "hang", message);
        }
        ScriptStep::Hang {
            ignore_interrupt: self.flag(item, "ignore_interrupt"),
            ignore_term: self.flag(item, "ignore_term"),
        }
    }

    fn speech(&mut self, item: &RawStep<'_>, action: &str) -> StreamedText {
        StreamedText {
            text: self.text(item, action),
            chunks: match item.map.contains_key("chunks") {
                true => self.number(item, "chunks", 1..=10_000).map_or(1, to_u32),
                false => 1,
            },
            delay: self.read_duration(item, "delay"),
        }
    }

    fn tool(&mut self, item: &RawStep<'_>, action: &'static str) -> ScriptToolCall {
        let subject = self.text(item, action);
        let (name, input, doing) = match action {
            "run" => {
                let mut input = json!({"command": subject});
                if let Some(description) = self.optional_text(item, "description") {
                    input["description"] = json!(description);
                }
                ("Bash".to_owned(), input, ToolResultSource::Execution)
            }
            "read" => {
                ("Read".to_owned(), json!({"file_path": subject}), ToolResultSource::Execution)
            }
            "write" => {
                let content = self.text(item, "text");
                let input = json!({"file_path": subject, "content": content});
                ("Write".to_owned(), input, ToolResultSource::Execution)
            }
            "edit" => {
                let (old, new) = (self.text(item, "old"), self.text(item, "new"));
                let input = json!({"file_path": subject, "old_string": old, "new_string": new});
                ("Edit".to_owned(), input, ToolResultSource::Execution)
            }
            "tool" => {
                let canned = ToolResultSource::Canned {
                    // A result may be any JSON, as tools return it.
                    result: self.read_text_or_json(item, "result"),
                    fails: self.flag(item, "fails"),
                };
                (subject, self.input(item), canned)
            }
            _ => {
                let doing = self.mcp(item, &subject);
                (subject, self.input(item), doing)
            }
        };
        ScriptToolCall {
            name,
            input,
            ask_permission: self.flag(item, "ask_permission"),
            result_source: doing,
        }
    }

    fn mcp(&mut self, item: &RawStep<'_>, name: &str) -> ToolResultSource {
        let parts = name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"));
        match parts {
            Some((server, tool)) if !server.is_empty() && !tool.is_empty() => {
                ToolResultSource::Mcp { server: server.to_owned(), tool: tool.to_owned() }
            }
            _ => {
                self.report_at_key(item, "call", "expected a tool such as `mcp__server__tool`");
                ToolResultSource::Execution
            }
        }
    }

    fn question(&mut self, item: &RawStep<'_>) -> ScriptQuestion {
        let text = self.text(item, "question");
        let options = match item.map.get("options") {
            // YAML reads `yes` and `1` as other types, but a person meant words.
            Some(Json::Array(options)) => options.iter().filter_map(scalar_text).collect(),
            _ => Vec::new(),
        };
        let given = item.map.get("options").and_then(Json::as_array).map_or(0, Vec::len);
        if options.len() < 2 || options.len() != given {
            self.report_at_key(
                item,
                "options",
                "`question` needs `options`: a list of two or more texts",
            );
        }
        let header = self.optional_text(item, "header").unwrap_or_else(|| "Question".to_owned());
        ScriptQuestion { text, header, options, multi: self.flag(item, "multi") }
    }

    fn failure(&mut self, item: &RawStep<'_>, key: &str) -> ScriptApiError {
        // Both the name and the HTTP status of an error are known to people.
        let by_status = item.map.get(key).and_then(Json::as_u64).and_then(|status| {
            let found = |failure: &&ScriptApiError| failure.status().map(u64::from) == Some(status);
            ScriptApiError::ALL.iter().find(found).copied()
        });
        by_status
            .or_else(|| self.read_word_with_hint(item, key, ScriptApiError::ALL, &status_hint()))
            .unwrap_or(ScriptApiError::ServerError)
    }

    fn exit(&mut self, item: &RawStep<'_>) -> ScriptExit {
        let value = item.map.get("exit").unwrap_or(&Json::Null);
        if let Some(code) = value.as_u64().and_then(|code| u8::try_from(code).ok()) {
            return ScriptExit::Code(code);
        }
        let found = value.as_str().and_then(|word| SIGNALS.iter().find(|(name, _)| *name == word));
        if let Some((_, signal)) = found {
            return ScriptExit::Signal(*signal);
        }
        let names: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
        let message = format!("expected a code from 0 to 255 or one of: {}", names.join(", "));
        self.report_at_key(item, "exit", message);
        ScriptExit::Code(1)
    }

    fn cost(&mut self, item: &RawStep<'_>) -> f64 {
        let cost = item.map.get("cost").and_then(Json::as_f64);
        // NaN is in no range, so it is refused too.
        if let Some(cost) = cost.filter(|cost| (0.0..=1e6).contains(cost)) {
            return cost;
        }
        self.report_at_key(item, "cost", "expected US dollars such as 0.05");
        0.0
    }

    fn usage(&mut self, item: &RawStep<'_>) -> ScriptStep {
        let Some(Json::Object(map)) = item.map.get("usage") else {
            self.report_at_key(item, "usage", "expected tokens: `usage: {input: 100, output: 20}`");
            return ScriptStep::Usage { input: 0, output: 0 };
        };
        let path = [item.path, &[ScriptPathSegment::Key("usage".to_owned())]].concat();
        let within = RawStep { map, path: &path };
        self.check_known_keys(&within, "usage", &["input", "output"]);
        let mut tokens = |key: &str| match map.contains_key(key) {
            true => self.number(&within, key, 0..=1_000_000_000).unwrap_or(0),
            false => 0,
        };
        ScriptStep::Usage { input: tokens("input"), output: tokens("output") }
    }

    fn condition(&mut self, item: &RawStep<'_>) -> ScriptCondition {
        let Some(Json::Object(map)) = item.map.get("when") else {
            self.report_at_key(item, "when", "expected a condition: `when: {prompt: deploy}`");
            return ScriptCondition::default();
        };
        let path = [item.path, &[ScriptPathSegment::Key("when".to_owned())]].concat();
        let within = RawStep { map, path: &path };
        self.check_known_keys(&within, "when", &["prompt", "answer", "turn", "session"]);
        if map.is_empty() {
            self.report_at_key(item, "when", "expected a condition: `when: {prompt: deploy}`");
        }
        ScriptCondition {
            prompt: self.optional_text(&within, "prompt"),
            answer: self.optional_text(&within, "answer"),
            // A missing key is no fault here, but `number` would report it.
            turn: map
                .contains_key("turn")
                .then(|| self.number(&within, "turn", 1..=u64::MAX))
                .flatten(),
            session: map
                .contains_key("session")
                .then(|| self.read_word(&within, "session", ScriptSessionKind::ALL))
                .flatten(),
        }
    }

    fn check_known_keys(&mut self, item: &RawStep<'_>, what: &str, known: &[&'static str]) {
        for key in item.map.keys().filter(|key| !known.contains(&key.as_str())) {
            let hint = match did_you_mean(key, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of: {}", known.join(", ")),
            };
            self.report_at_key(item, key, format!("`{what}` has no key `{key}`; {hint}"));
        }
    }

    fn read_nested_steps(&mut self, item: &RawStep<'_>, key: &str) -> Vec<ScriptStep> {
        let path = [item.path, &[ScriptPathSegment::Key(key.to_owned())]].concat();
        match item.map.get(key) {
            Some(Json::Array(steps)) => self.read_steps(steps, &path),
            Some(_) => {
                self.report(&path, format!("`{key}` is a list of steps"));
                Vec::new()
            }
            None => {
                self.report(item.path, format!("`{key}` is missing: a list of steps"));
                Vec::new()
            }
        }
    }

    fn read_optional_steps(&mut self, item: &RawStep<'_>, key: &str) -> Vec<ScriptStep> {
        match item.map.contains_key(key) {
            true => self.read_nested_steps(item, key),
            false => Vec::new(),
        }
    }

    fn text(&mut self, item: &RawStep<'_>, key: &str) -> String {
        match item.map.get(key) {
            None => {
                self.report(item.path, format!("`{key}` is missing"));
                String::new()
            }
            Some(_) => self.optional_text(item, key).unwrap_or_default(),
        }
    }

    fn optional_text(&mut self, item: &RawStep<'_>, key: &str) -> Option<String> {
        let value = item.map.get(key)?;
        let text = scalar_text(value);
        if text.is_none() {
            // `{name}` without quotes is a map in YAML, and a template to the writer.
            let message = match word_in_braces(value) {
                Some(word) => format!(
                    "put text that starts with a brace in quotes: `{key}: \"{{{word}}} …\"`"
                ),
                None => format!("expected text behind `{key}`"),
            };
            self.report_at_key(item, key, message);
        }
        text
    }

    /// Returns text as it is, and any other value as JSON.
    fn read_text_or_json(&mut self, item: &RawStep<'_>, key: &str) -> String {
        match item.map.get(key) {
            None | Some(Json::Null) => self.text(item, key),
            Some(Json::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    fn input(&mut self, item: &RawStep<'_>) -> Json {
        match item.map.get("input") {
            None | Some(Json::Null) => json!({}),
            Some(input @ Json::Object(_)) => input.clone(),
            // Tools take objects only.
            Some(_) => {
                self.report_at_key(item, "input", "expected a map");
                json!({})
            }
        }
    }

    fn flag(&mut self, item: &RawStep<'_>, key: &str) -> bool {
        match item.map.get(key) {
            None => false,
            Some(Json::Bool(flag)) => *flag,
            Some(_) => {
                self.report_at_key(item, key, format!("`{key}` is true or false"));
                false
            }
        }
    }

    fn number(&mut self, item: &RawStep<'_>, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let number = item.map.get(key).and_then(Json::as_u64).filter(|n| range.contains(n));
        if number.is_none() {
            let message = match *range.end() {
                u64::MAX => format!("`{key}` is a whole number from {}", range.start()),
                end => format!("`{key}` is a whole number from {} to {end}", range.start()),
            };
            self.report_at_key(item, key, message);
        }
        number
    }

    fn read_duration(&mut self, item: &RawStep<'_>, key: &str) -> Duration {
        let Some(value) = item.map.get(key) else { return Duration::ZERO };
        let parsed = scalar_text(value)
            .ok_or("it is not text")
            .and_then(|text| text.parse::<ConfigDuration>());
        match parsed {
            Ok(period) => period.get(),
            Err(reason) => {
                self.report_at_key(
                    item,
                    key,
                    format!("`{key}` is a length such as `200ms`: {reason}"),
                );
                Duration::ZERO
            }
        }
    }

    fn size(&mut self, item: &RawStep<'_>, default: usize, max: u64) -> usize {
        let Some(value) = item.map.get("size") else { return default };
        let parsed =
            scalar_text(value).and_then(|text| text.parse::<ByteSize>().ok()).map(ByteSize::bytes);
        match parsed.filter(|bytes| *bytes <= max) {
            Some(bytes) => usize::try_from(bytes).unwrap_or(default),
            None => {
                let max = max >> 20;
                let message = format!("`size` is a length such as `200` or `4k`, at most `{max}m`");
                self.report_at_key(item, "size", message);
                default
            }
        }
    }

    fn read_word<T>(&mut self, item: &RawStep<'_>, key: &str, all: &[T]) -> Option<T>
    where
        T: Copy + std::fmt::Display + std::str::FromStr,
    {
        self.read_word_with_hint(item, key, all, "")
    }

    /// Reads a word. `or` is appended to the list of words in the error and names other accepted
    /// values.
    fn read_word_with_hint<T>(
        &mut self,
        item: &RawStep<'_>,
        key: &str,
        all: &[T],
        or: &str,
    ) -> Option<T>
    where
        T: Copy + std::fmt::Display + std::str::FromStr,
    {
        let text = item.map.get(key).and_then(scalar_text).unwrap_or_default();
        if let Ok(word) = text.parse() {
            return Some(word);
        }
        let words: Vec<String> = all.iter().map(T::to_string).collect();
        let hint = match did_you_mean(&text, words.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        // The message does not repeat the value: it may come from the environment.
        self.report_at_key(item, key, format!("`{key}` is one of: {}{or}{hint}", words.join(", ")));
        None
    }
}

/// Lists the HTTP statuses that map to an API error.
fn status_hint() -> String {
    let mut known: Vec<u16> =
        ScriptApiError::ALL.iter().filter_map(|failure| failure.status()).collect();
    known.sort_unstable();
    known.dedup();
    let known: Vec<String> = known.iter().map(u16::to_string).collect();
    format!("; or an HTTP status: {}", known.join(", "))
}

/// Converts a number that is already known to fit.
fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the text of a value that YAML may have read as a number or a boolean.
fn scalar_text(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns the word in braces that YAML read as a map.
fn word_in_braces(value: &Json) -> Option<&str> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter().next().filter(|(_, value)| value.is_null()).map(|(word, _)| word.as_str())
}
