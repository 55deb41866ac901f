//! The programs that a hook's shell text names by a path.
//!
//! A hook runs in the agent's working directory, where the agent may write. A program that is named
//! by a relative path is therefore found beside the config, and its file is protected. Only the
//! words that a shell would execute are found: programs, and the scripts of interpreters, also
//! behind programs that execute another one. Start at [`hook_programs`].

mod program_rules;

use std::ops::Range;

use program_rules::{NextWord, ProgramRule, find_rule};

/// Words after which a shell expects another command.
const PREFIX_WORDS: [&str; 9] = ["!", "{", "do", "elif", "else", "if", "then", "until", "while"];

/// A program or script in a hook's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookProgram {
    /// Position of the word in the command, with its quotes; `None` for a word inside a text that
    /// another shell executes.
    pub range: Option<Range<usize>>,
    /// Path without quotes, as written.
    pub path: String,
}

/// Splits a command at white space and the signs of the shell. Each path that the command names is
/// among the words, also one that another program executes, such as `find`.
pub fn command_words(command: &str) -> impl Iterator<Item = &str> {
    let words = command.split(|c: char| c.is_whitespace() || "'\";|&()<>=".contains(c));
    words.filter(|word| !word.is_empty())
}

/// Returns the programs and scripts that a command names by a path. Words with variables are not
/// known before the shell runs, so they are left out.
pub fn hook_programs(command: &str) -> Vec<HookProgram> {
    let mut scan = CommandScan { found: Vec::new(), position: WordPosition::Program };
    for token in shell_tokens(command) {
        match token.word {
            Some(word) => scan.take_word(&word),
            None => scan.position = WordPosition::Program,
        }
    }
    scan.found
}

struct CommandScan {
    found: Vec<HookProgram>,
    position: WordPosition,
}

/// Meaning of the next word.
#[derive(Clone, Copy)]
enum WordPosition {
    Program,
    /// An option or own argument of a program that executes what follows them.
    Options {
        rule: &'static ProgramRule,
        arguments_left: usize,
    },
    /// The value of such an option.
    Value {
        rule: &'static ProgramRule,
        arguments_left: usize,
    },
    /// A text that another shell executes.
    Text,
    Argument,
}

impl CommandScan {
    fn take_word(&mut self, word: &ShellWord) {
        if !word.is_literal {
            self.add_substitutions(&word.text);
        }
        self.position = match self.position {
            WordPosition::Program => self.take_program(word),
            WordPosition::Options { rule, arguments_left } => {
                self.take_option(rule, arguments_left, word)
            }
            WordPosition::Value { rule, arguments_left } => {
                // Some options name a file that the interpreter executes first.
                if rule.then == NextWord::Script {
                    self.push(word);
                }
                WordPosition::Options { rule, arguments_left }
            }
            WordPosition::Text => {
                self.add_nested(&word.text);
                WordPosition::Argument
            }
            WordPosition::Argument => WordPosition::Argument,
        };
    }

    fn take_program(&mut self, word: &ShellWord) -> WordPosition {
        let is_assignment = word
            .text
            .split_once('=')
            .is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
        if is_assignment || PREFIX_WORDS.contains(&word.text.as_str()) {
            return WordPosition::Program;
        }
        if word.text.contains('/') {
            self.push(word);
        }
        let name = word.text.rsplit('/').next().unwrap_or_default();
        match find_rule(name) {
            Some(rule) => WordPosition::Options { rule, arguments_left: rule.arguments },
            None => WordPosition::Argument,
        }
    }

    fn take_option(
        &mut self,
        rule: &'static ProgramRule,
        arguments_left: usize,
        word: &ShellWord,
    ) -> WordPosition {
        let text = word.text.as_str();
        if text.len() > 1 && text.starts_with(['-', '+']) {
            // The code of an interpreter itself is no script, and none follows it.
            return if rule.is_text_option(text) {
                WordPosition::Text
            } else if rule.is_code_option(text) {
                WordPosition::Argument
            } else if rule.has_value(text) {
                WordPosition::Value { rule, arguments_left }
            } else {
                WordPosition::Options { rule, arguments_left }
            };
        }
        if arguments_left > 0 {
            return WordPosition::Options { rule, arguments_left: arguments_left - 1 };
        }
        match rule.then {
            NextWord::Script if rule.subcommands.contains(&text) => {
                WordPosition::Options { rule, arguments_left }
            }
            NextWord::Script => {
                self.push(word);
                WordPosition::Argument
            }
            NextWord::Program => self.take_program(word),
        }
    }

    fn push(&mut self, word: &ShellWord) {
        if word.is_literal {
            let range = Some(word.range.clone());
            self.found.push(HookProgram { range, path: word.text.clone() });
        }
    }

    /// Adds the programs of a text that another shell executes.
    fn add_nested(&mut self, text: &str) {
        let nested = hook_programs(text).into_iter();
        self.found.extend(nested.map(|program| HookProgram { range: None, ..program }));
    }

    /// Adds the programs of the commands that a shell would replace by their output.
    fn add_substitutions(&mut self, text: &str) {
        text.split("$(").skip(1).for_each(|inner| self.add_nested(inner));
        text.split('`').skip(1).step_by(2).for_each(|inner| self.add_nested(inner));
    }
}

/// Quotes a text for a shell.
pub fn quote_shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

struct ShellWord {
    range: Range<usize>,
    /// Text without quotes.
    text: String,
    /// False if the shell replaces parts of the word.
    is_literal: bool,
}

/// A word, or `None` for an operator after which a command begins.
struct ShellToken {
    word: Option<ShellWord>,
}

fn shell_tokens(command: &str) -> Vec<ShellToken> {
    let mut tokens = Vec::new();
    let mut chars = command.char_indices().peekable();
    let mut is_redirection = false;
    while let Some(&(start, first)) = chars.peek() {
        match first {
            ' ' | '\t' => drop(chars.next()),
            ';' | '&' | '|' | '(' | ')' | '\n' => {
                chars.next();
                tokens.push(ShellToken { word: None });
            }
            '<' | '>' => {
                chars.next();
                // The text of a here-document is no command, and its end is not searched.
                if first == '<' && chars.peek().is_some_and(|(_, next)| *next == '<') {
                    return tokens;
                }
                // `>&2`, `>|` and `>>` are one operator.
                while chars.next_if(|(_, next)| ['>', '&', '|'].contains(next)).is_some() {}
                is_redirection = true;
            }
            '#' => while chars.next_if(|(_, next)| *next != '\n').is_some() {},
            _ => {
                let word = take_word(command, start, &mut chars);
                let is_number = word.text.bytes().all(|b| b.is_ascii_digit());
                let before_redirection =
                    chars.peek().is_some_and(|(_, next)| ['<', '>'].contains(next));
                // The file of a redirection, and the number of its stream, are no words.
                let is_target = std::mem::take(&mut is_redirection);
                let is_stream = is_number && before_redirection;
                if !is_target && !is_stream {
                    tokens.push(ShellToken { word: Some(word) });
                }
            }
        }
    }
    tokens
}

fn take_word(
    command: &str,
    start: usize,
    chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
) -> ShellWord {
    let (mut text, mut is_literal, mut quote) = (String::new(), true, None);
    let mut end = command.len();
    while let Some(&(at, c)) = chars.peek() {
        match (quote, c) {
            (None, ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>') => {
                end = at;
                break;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (Some('\''), c) => text.push(c),
            (_, '\\') => {
                chars.next();
                text.extend(chars.peek().map(|(_, next)| *next));
            }
            (_, c) => {
                is_literal &= !['$', '`'].contains(&c);
                is_literal &= quote.is_some() || !['*', '?', '[', '~'].contains(&c);
                text.push(c);
            }
        }
        chars.next();
    }
    ShellWord { range: start..end, text, is_literal }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(command: &str) -> Vec<String> {
        let found = hook_programs(command);
        for program in &found {
            assert!(program.range.as_ref().is_none_or(|range| !command[range.clone()].is_empty()));
        }
        found.into_iter().map(|program| program.path).collect()
    }

    #[test]
    fn programs_and_scripts_are_found_where_a_shell_runs_them() {
        for (command, expected) in [
            ("./notify.sh", &["./notify.sh"][..]),
            ("  scripts/a.sh x ./data.json > ./out.txt", &["scripts/a.sh"]),
            ("jq -r .result >> reviews.md", &[]),
            ("A=1 B=2 ./x.sh; ./y.sh && ../z | /bin/w", &["./x.sh", "./y.sh", "../z", "/bin/w"]),
            ("sh notify.sh now", &["notify.sh"]),
            ("/bin/bash -eu './my hook.sh'", &["/bin/bash", "./my hook.sh"]),
            ("sh -e notify.sh data.json", &["notify.sh"]),
            ("bash -c './a.sh'", &["./a.sh"]),
            ("bash -lc 'cd x && sh a.sh' name", &["a.sh"]),
            ("bash -euo pipefail a.sh b.json", &["pipefail", "a.sh"]),
            ("perl -pe 's/a/b/' data.txt", &[]),
            ("node -r ./setup.js main.js x", &["./setup.js", "main.js"]),
            ("python3 -m http.server; python3 -u a.py", &["a.py"]),
            ("bun run a.ts", &["a.ts"]),
            ("timeout 30 sh a.sh; timeout -s KILL -k5 30 ./b", &["a.sh", "./b"]),
            ("timeout $T sh a.sh", &["a.sh"]),
            ("nice -n 5 sh a.sh; nice -5 ./b", &["a.sh", "./b"]),
            ("env -i A=1 sh a.sh; env -u B ./b; env -S 'sh c'", &["a.sh", "./b", "c"]),
            ("/usr/bin/env sh a.sh", &["/usr/bin/env", "a.sh"]),
            ("flock -w 5 lock sh a.sh; flock lock -c './b'", &["a.sh", "./b"]),
            ("sudo -nu root -- sh a.sh", &["a.sh"]),
            ("stdbuf -oL setsid -w nohup time -p sh a.sh", &["a.sh"]),
            ("echo \"$(./a.sh) `sh b.sh`\"; echo $(./c)", &["./a.sh", "b.sh", "./c"]),
            ("grep sh notify.sh | sort -o out.txt", &[]),
            ("if ./check; then exec ./go; fi # ./no", &["./check", "./go"]),
            ("\"./quoted\" 2>./err", &["./quoted"]),
            ("$HOME/x.sh; ./$NAME; `./sub`", &["./sub"]),
            ("(./inner) & . ./env.sh", &["./inner", "./env.sh"]),
            ("cat <<EOF\n./text\nEOF", &[]),
            ("./\\a", &["./a"]),
            ("", &[]),
        ] {
            assert_eq!(paths(command), expected, "{command}");
        }
    }

    #[test]
    fn a_quoted_word_is_one_word() {
        assert_eq!(quote_shell_word("/it's here/x"), r"'/it'\''s here/x'");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_scanned(command in "[ -~\n]{0,60}") {
            for program in hook_programs(&command) {
                let _word = program.range.map(|range| &command[range]);
            }
        }
    }
}
