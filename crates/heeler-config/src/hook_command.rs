//! The programs that a hook's shell text names by a path.
//!
//! A hook runs in the agent's working directory, where the agent may write. A program that is named
//! by a relative path is therefore found beside the config, and its file is protected. Only the
//! words that a shell would execute are found: programs, and the scripts of interpreters. Start at
//! [`hook_programs`].

use std::ops::Range;

/// Words after which a shell expects another command.
const PREFIX_WORDS: [&str; 18] = [
    "!", "{", "command", "do", "elif", "else", "env", "exec", "if", "ionice", "nice", "nohup",
    "sudo", "then", "time", "until", "while", "xargs",
];

/// Programs that execute the script in their first argument.
const INTERPRETERS: [&str; 17] = [
    ".", "ash", "bash", "bun", "dash", "deno", "fish", "ksh", "node", "perl", "php", "python",
    "python3", "ruby", "sh", "source", "zsh",
];

/// A program or script in a hook's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookProgram {
    /// Position of the word in the command, with its quotes.
    pub range: Range<usize>,
    /// Path without quotes, as written.
    pub path: String,
}

/// Returns the programs and scripts that a command names by a path. Words with variables or
/// substitutions are not known before the shell runs, so they are left out.
pub fn hook_programs(command: &str) -> Vec<HookProgram> {
    let mut found = Vec::new();
    let mut position = WordPosition::Program;
    for token in shell_tokens(command) {
        let Some(word) = token.word else {
            position = WordPosition::Program;
            continue;
        };
        position = match position {
            WordPosition::Program => {
                let name = word.text.rsplit('/').next().unwrap_or_default();
                let is_assignment = word.text.split_once('=').is_some_and(|(name, _)| {
                    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
                });
                if is_assignment || PREFIX_WORDS.contains(&word.text.as_str()) {
                    continue;
                }
                if word.is_literal && word.text.contains('/') {
                    found.push(HookProgram { range: word.range, path: word.text.clone() });
                }
                match INTERPRETERS.contains(&name) {
                    true => WordPosition::Script,
                    false => WordPosition::Argument,
                }
            }
            // `-c` takes a text, and no script follows it.
            WordPosition::Script if word.text == "-c" || word.text == "-e" => {
                WordPosition::Argument
            }
            WordPosition::Script if word.text.starts_with('-') => WordPosition::Script,
            WordPosition::Script => {
                if word.is_literal {
                    found.push(HookProgram { range: word.range, path: word.text.clone() });
                }
                WordPosition::Argument
            }
            WordPosition::Argument => WordPosition::Argument,
        };
    }
    found
}

/// Quotes a text for a shell.
pub fn quote_shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[derive(Clone, Copy, PartialEq)]
enum WordPosition {
    Program,
    /// The first argument of an interpreter.
    Script,
    Argument,
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
            assert!(!command[program.range.clone()].is_empty());
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
            ("bash -c './a.sh'", &[]),
            ("if ./check; then exec ./go; fi # ./no", &["./check", "./go"]),
            ("\"./quoted\" 2>./err", &["./quoted"]),
            ("$HOME/x.sh; ./$NAME; `./sub`", &[]),
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
                let _word = &command[program.range];
            }
        }
    }
}
