//! Placeholders in braces for a script's texts. Unknown placeholders stay unchanged, so that braces
//! in code and JSON need no escape.

/// Values of the placeholders at one moment.
#[derive(Debug, Default, Clone)]
pub(super) struct ScriptedTemplateVariables {
    pub(super) prompt: String,
    /// Number of the turn in the session, from 1.
    pub(super) turn: u64,
    /// Earlier prompts of the session, oldest first.
    pub(super) remembered: Vec<String>,
    pub(super) session: String,
    pub(super) cwd: String,
    /// Answer to the last question.
    pub(super) answer: String,
    /// Output of the last tool.
    pub(super) output: String,
    /// Number of the repetition, from 1.
    pub(super) n: u64,
}

/// Size limit of a placeholder's value in a command's environment: the kernel accepts at most 128
/// KiB per variable.
const VARIABLE_BYTES_MAX: usize = 96 * 1024;

impl ScriptedTemplateVariables {
    fn get(&self, word: &str) -> Option<String> {
        Some(match word {
            "prompt" => self.prompt.clone(),
            "turn" => self.turn.to_string(),
            "remembered" if self.remembered.is_empty() => "nothing".to_owned(),
            "remembered" => self.remembered.join(" | "),
            "session" => self.session.clone(),
            "cwd" => self.cwd.clone(),
            "answer" => self.answer.clone(),
            "output" => self.output.clone(),
            "n" => self.n.to_string(),
            _ => return None,
        })
    }

    /// Expands the placeholders of a text. Their values are not expanded again.
    pub(super) fn expand(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, from_brace) = rest.split_at(open);
            filled.push_str(before);
            let word = from_brace[1..].split_once('}').map(|(word, _)| word);
            match word.and_then(|word| Some((word, self.get(word)?))) {
                Some((word, value)) => {
                    filled.push_str(&value);
                    rest = &from_brace[word.len() + 2..];
                }
                None => {
                    // The brace stands for itself, and a placeholder may follow it.
                    filled.push('{');
                    rest = &from_brace[1..];
                }
            }
        }
        filled.push_str(rest);
        filled
    }

    /// Returns the values as environment variables for a command. They are never inserted into its
    /// text: a prompt may come from a stranger.
    pub(super) fn environment_variables(&self) -> Vec<(String, String)> {
        let words = ["prompt", "turn", "remembered", "session", "answer", "output", "n"];
        let variable = |word: &str| {
            // The kernel accepts no NUL in a variable.
            let mut value = self.get(word).unwrap_or_default().replace('\0', "");
            let mut end = value.len().min(VARIABLE_BYTES_MAX);
            while !value.is_char_boundary(end) {
                end -= 1;
            }
            value.truncate(end);
            (format!("SCRIPT_{}", word.to_uppercase()), value)
        };
        words.into_iter().map(variable).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let words = ScriptedTemplateVariables {
            prompt: "do {turn}".to_owned(),
            turn: 2,
            remembered: vec!["one".to_owned(), "two".to_owned()],
            ..ScriptedTemplateVariables::default()
        };
        assert_eq!(words.expand(text), expect);
    }

    #[test]
    fn known_words_are_filled_in_once() {
        check("{turn}: {prompt}!", "2: do {turn}!");
        check("{remembered}", "one | two");
    }

    #[test]
    fn other_braces_stay() {
        check(r#"{"a": {"b": 1}} {unknown} { {} {"#, r#"{"a": {"b": 1}} {unknown} { {} {"#);
        check("{{turn}}", "{2}");
        check("ä{turn", "ä{turn");
    }

    #[test]
    fn nothing_is_remembered_in_a_new_session() {
        assert_eq!(ScriptedTemplateVariables::default().expand("{remembered}"), "nothing");
    }

    #[test]
    fn a_long_prompt_is_cut_for_the_environment_at_a_character() {
        let words = ScriptedTemplateVariables {
            prompt: "é\0".repeat(VARIABLE_BYTES_MAX),
            ..ScriptedTemplateVariables::default()
        };
        let (name, value) = words.environment_variables().swap_remove(0);
        assert_eq!(name, "SCRIPT_PROMPT");
        assert_eq!(value, "é".repeat(VARIABLE_BYTES_MAX / 2));
    }
}
