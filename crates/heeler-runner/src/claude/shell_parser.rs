//! Splits a shell line into the simple commands that it runs.
//!
//! Its one purpose is to be sure that nothing runs that an allowlist does not name, so it never
//! guesses. Constructs that could run a command not visible in the text (substitutions, subshells,
//! comments, here-documents) or write a file (redirections) are rejected on purpose. Start at
//! [`simple_commands`].

#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::str::Chars;

/// The only file that redirections may write to.
const DEV_NULL: &str = "/dev/null";

/// Shell builtins that evaluate arithmetic or take the name of a variable.
const ARITHMETIC_BUILTINS: [&str; 22] = [
    "test",
    "[",
    "[[",
    "printf",
    "print",
    "let",
    "read",
    "unset",
    "declare",
    "typeset",
    "local",
    "export",
    "readonly",
    "integer",
    "float",
    "mapfile",
    "readarray",
    "getopts",
    "wait",
    "set",
    "exit",
    "return",
];

/// Separators of words and lines. To a shell, other Unicode blanks are parts of a word.
pub(super) const BLANKS: [char; 3] = [' ', '\t', '\n'];

/// Returns the simple commands of a line; `None` if some of them might be hidden.
pub(super) fn simple_commands(line: &str) -> Option<Vec<String>> {
    let odd = |c: char| (c.is_control() || c.is_whitespace()) && !BLANKS.contains(&c);
    if line.contains(odd) {
        return None;
    }
    let mut reader = ShellLineParser {
        rest: line.chars().peekable(),
        text: String::new(),
        commands: Vec::new(),
    };
    while let Some(c) = reader.rest.next() {
        reader.parse_unquoted(c)?;
    }
    reader.end_command();
    reader.commands.iter().all(|command| is_safe_command(command)).then_some(reader.commands)
}

struct ShellLineParser<'l> {
    rest: Peekable<Chars<'l>>,
    /// Command being parsed.
    text: String,
    commands: Vec<String>,
}

impl ShellLineParser<'_> {
    fn parse_unquoted(&mut self, c: char) -> Option<()> {
        match c {
            '\'' => self.parse_single_quoted()?,
            '"' => self.parse_double_quoted()?,
            '\\' => self.parse_escape()?,
            '$' => self.parse_dollar()?,
            '&' if self.rest.peek() == Some(&'>') => {
                self.rest.next();
                self.parse_redirection()?;
            }
            '>' => self.parse_redirection()?,
            // The second character of `&&`, `||` or `|&` ends an empty command, which is dropped.
            ';' | '|' | '&' | '\n' => self.end_command(),
            '`' | '(' | ')' | '<' => return None,
            // A comment: the shell would stop reading here, even inside an apparent quote.
            '#' if self.at_word_start() => return None,
            _ => self.text.push(c),
        }
        Some(())
    }

    fn end_command(&mut self) {
        let command = std::mem::take(&mut self.text);
        let command = command.trim_matches(BLANKS);
        if !command.is_empty() {
            self.commands.push(command.to_owned());
        }
    }

    fn at_word_start(&self) -> bool {
        self.text.chars().next_back().is_none_or(is_blank)
    }

    fn parse_single_quoted(&mut self) -> Option<()> {
        self.text.push('\'');
        loop {
            // A quote that is never closed makes the rest of the line uncertain.
            let c = self.rest.next()?;
            self.text.push(c);
            if c == '\'' {
                return Some(());
            }
        }
    }

    fn parse_double_quoted(&mut self) -> Option<()> {
        self.text.push('"');
        loop {
            match self.rest.next()? {
                '"' => break,
                '\\' => self.parse_escape()?,
                '$' => self.parse_dollar()?,
                '`' => return None,
                c => self.text.push(c),
            }
        }
        self.text.push('"');
        Some(())
    }

    /// Parses the character after a backslash; a backslash before a line break joins the lines.
    fn parse_escape(&mut self) -> Option<()> {
        match self.rest.next()? {
            '\n' => {}
            c => self.text.extend(['\\', c]),
        }
        Some(())
    }

    /// Parses the text after a dollar sign: a plain variable, a literal dollar, or a here-document.
    fn parse_dollar(&mut self) -> Option<()> {
        self.text.push('$');
        match self.rest.peek() {
            Some('(') => self.parse_heredoc(),
            Some('{') => {
                let name: String = self.rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                self.text.extend(["{", &name, "}"]);
                (!name.is_empty() && name.chars().all(plain)).then_some(())
            }
            // `$'…'` has escapes of its own, `$[…]` is arithmetic.
            Some('\'' | '"' | '[') => None,
            _ => Some(()),
        }
    }

    /// Parses `(cat <<'WORD'`, literal lines, `WORD` and `)`: the form in which agents write a long
    /// message. Only the enclosing quote may follow. In bash a line that merely begins with the
    /// word may end the here-document too, and the bash of macOS does not recognize the end at all.
    fn parse_heredoc(&mut self) -> Option<()> {
        let opening: String = self.rest.by_ref().take_while(|c| *c != '\n').collect();
        let word = opening.strip_prefix("(cat <<'")?.strip_suffix('\'')?;
        let is_plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic());
        if !is_plain || !cfg!(target_os = "linux") {
            return None;
        }
        let rest: String = self.rest.by_ref().collect();
        let mut lines = rest.split('\n');
        let ending = lines.find(|line| line.trim_start_matches(BLANKS).starts_with(word))?;
        let after = lines.collect::<Vec<_>>().join("\n");
        if ending != word || after.trim_matches(BLANKS).strip_prefix(')')? != "\"" {
            return None;
        }
        // Only the closing quote may be left, which the caller parses as usual.
        self.rest = "\"".chars().peekable();
        Some(())
    }

    /// Parses the target of `>`: `/dev/null` or another stream. A file is rejected.
    fn parse_redirection(&mut self) -> Option<()> {
        // A number before `>` is a descriptor and no word, unless it ends a longer word.
        let digits = self.text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        if self.text[..digits].chars().next_back().is_some_and(is_blank) {
            self.text.truncate(digits);
        }
        self.rest.next_if_eq(&'>');
        let copies = self.rest.next_if_eq(&'&').is_some();
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        let mut target = String::new();
        let ends = |c: &char| matches!(c, ' ' | '\t' | '\n' | ';' | '|' | '&');
        while let Some(c) = self.rest.next_if(|c| !ends(c)) {
            target.push(c);
        }
        let stream = copies && target.len() == 1 && target.as_bytes()[0].is_ascii_digit();
        (stream || target == DEV_NULL).then_some(())
    }
}

fn is_blank(c: char) -> bool {
    BLANKS.contains(&c)
}

/// Returns true if a command is not one of [`ARITHMETIC_BUILTINS`], or is one without anything that
/// could run a command. Dangerous are a subscript (`test -v 'a[$(x)]'`), also one that arrives
/// through a variable, a file name or `_` (the last word of the previous command), and a variable
/// that is set indirectly (`printf -v PATH`).
fn is_safe_command(command: &str) -> bool {
    // A shell removes quotes and backslashes before it looks for a builtin.
    let bare = command.replace(['\'', '"', '\\'], "");
    let mut words = bare.split(BLANKS);
    if !words.next().is_some_and(|name| ARITHMETIC_BUILTINS.contains(&name)) {
        return true;
    }
    let is_special =
        |word: &str| word.starts_with("-v") || word.contains(['[', '$', '`', '*', '?', '{']);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !words.any(is_special) && !bare.split(|c| !is_part(c)).any(|name| name == "_")
}
