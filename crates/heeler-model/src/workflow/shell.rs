//! Values in shell commands: quoting, and where in a command a quoted value is safe.

/// Puts a value into quotes that `/bin/sh` takes away; a plain word stays as it is.
pub(super) fn quote(text: &str) -> String {
    // With `=` it might set a variable.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+:,./-".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// How far a command has been read: what quotes are open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shell {
    open: Vec<Open>,
    /// Why the rest of the command is not understood well enough to put values into it.
    unsure: Option<&'static str>,
    last: Option<char>,
    escaped: bool,
    word: String,
}

/// What is open in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Double,
    Single,
    /// `$'…'`.
    Ansi,
    /// `$(…)` and `(…)`.
    Paren,
    /// `${…}`.
    Brace,
    /// `$((…))`.
    Arithmetic,
    Comment,
}

impl Shell {
    /// Reads literal text of a command.
    pub(super) fn read(&mut self, text: &str) {
        let mut skip = 0;
        for (at, c) in text.char_indices() {
            let was_escaped = self.escaped;
            match skip {
                0 => skip = self.character(c, &text[at + c.len_utf8()..]),
                _ => skip -= 1,
            }
            // What is escaped begins and ends nothing.
            self.last = Some(if was_escaped { 'x' } else { c });
        }
    }

    /// Takes note that a value stands here.
    pub(super) fn read_value(&mut self) {
        self.last = Some('x');
        self.word.clear();
    }

    /// Says whether quotes stand as they did at another place.
    pub(super) fn same_place(&self, other: &Shell) -> bool {
        self.open == other.open && self.unsure == other.unsure
    }

    /// Returns what quotes a value stands in that brings its own, or why it cannot stand here.
    pub(super) fn place(&self) -> Result<&'static str, String> {
        let refused = |what: &str| {
            Err(format!(
                "a value cannot stand {what}: the shell would read it; add `| raw` if it may"
            ))
        };
        match (self.unsure, self.open.last()) {
            (Some(what), _) => refused(what),
            _ if self.escaped => refused("behind a backslash"),
            (None, None | Some(Open::Paren)) if self.last == Some('$') => refused("behind a `$`"),
            (None, None | Some(Open::Paren)) => Ok(""),
            (None, Some(Open::Double)) => Ok("\""),
            (None, Some(Open::Single)) => Ok("'"),
            (None, Some(Open::Ansi)) => refused("within `$'…'`"),
            (None, Some(Open::Brace)) => refused("within `${…}`"),
            (None, Some(Open::Arithmetic)) => refused("within `$((…))`"),
            (None, Some(Open::Comment)) => refused("in a comment"),
        }
    }

    /// Reads a character, and says how many after it belong to it.
    fn character(&mut self, c: char, rest: &str) -> usize {
        let next = rest.chars().next();
        if std::mem::take(&mut self.escaped) {
            return 0;
        }
        match self.open.last() {
            Some(Open::Comment) if c == '\n' => drop(self.open.pop()),
            Some(Open::Comment) => {}
            Some(Open::Single) if c == '\'' => drop(self.open.pop()),
            Some(Open::Single) => {}
            Some(Open::Ansi) if c == '\'' => drop(self.open.pop()),
            _ if c == '\\' => self.escaped = true,
            Some(Open::Ansi) => {}
            Some(Open::Double) if c == '"' => drop(self.open.pop()),
            _ if c == '`' => self.unsure = Some("behind backquotes"),
            _ if c == '$' && rest.starts_with("((") => {
                self.open.push(Open::Arithmetic);
                return 2;
            }
            _ if c == '$' && next == Some('(') => {
                self.open.push(Open::Paren);
                return 1;
            }
            _ if c == '$' && next == Some('{') => {
                self.open.push(Open::Brace);
                return 1;
            }
            Some(Open::Double) => {}
            Some(Open::Brace) if c == '}' => drop(self.open.pop()),
            Some(Open::Brace) if c == '"' || c == '\'' => {
                self.unsure = Some("behind quotes within `${…}`");
            }
            Some(Open::Brace) => {}
            Some(Open::Arithmetic) if c == ')' && next == Some(')') => {
                self.open.pop();
                return 1;
            }
            Some(Open::Arithmetic) => {}
            None | Some(Open::Paren) => return self.unquoted(c, next),
        }
        0
    }

    fn unquoted(&mut self, c: char, next: Option<char>) -> usize {
        let starts_word =
            self.last.is_none_or(|last| last.is_whitespace() || ";&|()".contains(last));
        if starts_word {
            self.word.clear();
        }
        self.word.push(c);
        if self.word == "case" && !next.is_some_and(char::is_alphanumeric) && !self.open.is_empty()
        {
            // The `)` of its patterns would look like the end of `$(`.
            self.unsure = Some("behind `case` within `$(…)`");
        }
        match c {
            '\'' if self.last == Some('$') => self.open.push(Open::Ansi),
            '\'' => self.open.push(Open::Single),
            '"' => self.open.push(Open::Double),
            '(' => self.open.push(Open::Paren),
            ')' => drop(self.open.pop()),
            '#' if starts_word => self.open.push(Open::Comment),
            '<' if next == Some('<') => self.unsure = Some("behind a here-document"),
            _ => {}
        }
        0
    }
}
