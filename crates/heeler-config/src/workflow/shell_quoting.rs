//! Values in shell commands: quoting, and the positions at which a quoted value is safe.
//!
//! Start at [`quote_shell`] and [`ShellQuoteState`].

/// Quotes a value for `/bin/sh`. A plain word stays unchanged.
pub(super) fn quote_shell(text: &str) -> String {
    // A word with `=` might set a variable, so `=` is not plain.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+:,./-".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        // Within single quotes a shell expands nothing; the quote itself must leave them.
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Open quotes and brackets at a position of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShellQuoteState {
    open: Vec<ShellDelimiter>,
    /// Reason why values cannot be inserted into the rest of the command.
    unsafe_reason: Option<&'static str>,
    last: Option<char>,
    escaped: bool,
    word: String,
}

/// Quote or bracket that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShellDelimiter {
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

impl ShellQuoteState {
    /// Scans literal text of a command.
    pub(super) fn read(&mut self, text: &str) {
        let mut skip = 0;
        for (at, c) in text.char_indices() {
            let was_escaped = self.escaped;
            match skip {
                0 => skip = self.read_char(c, &text[at + c.len_utf8()..]),
                _ => skip -= 1,
            }
            // An escaped character opens and closes nothing.
            self.last = Some(if was_escaped { 'x' } else { c });
        }
    }

    /// Records that a value is inserted here.
    pub(super) fn read_value(&mut self) {
        self.last = Some('x');
        // The value is part of the current word, so no keyword can begin after it.
        self.word.clear();
    }

    /// Returns true if the same quotes are open as at another position.
    pub(super) fn has_same_quotes(&self, other: &ShellQuoteState) -> bool {
        // A reason that appears within a block would hold only if the block is rendered.
        self.open == other.open && self.unsafe_reason == other.unsafe_reason
    }

    /// Returns the quote that is open here, which must be closed around a quoted value. Returns an
    /// error if a value is not allowed here.
    pub(super) fn enclosing_quote(&self) -> Result<&'static str, String> {
        let refused = |what: &str| {
            Err(format!(
                "a value is not allowed {what}: the shell would expand it; use `| raw` to allow that"
            ))
        };
        // Whatever cannot be followed with certainty refuses values for the rest of the command.
        match (self.unsafe_reason, self.open.last()) {
            (Some(what), _) => refused(what),
            _ if self.escaped => refused("after a backslash"),
            // `$` before quotes gives them another meaning.
            (None, None | Some(ShellDelimiter::Paren)) if self.last == Some('$') => {
                refused("after a `$`")
            }
            (None, None | Some(ShellDelimiter::Paren)) => Ok(""),
            // The caller closes the quote before the value and opens it again.
            (None, Some(ShellDelimiter::Double)) => Ok("\""),
            (None, Some(ShellDelimiter::Single)) => Ok("'"),
            (None, Some(ShellDelimiter::Ansi)) => refused("within `$'…'`"),
            (None, Some(ShellDelimiter::Brace)) => refused("within `${…}`"),
            (None, Some(ShellDelimiter::Arithmetic)) => refused("within `$((…))`"),
            (None, Some(ShellDelimiter::Comment)) => refused("in a comment"),
        }
    }

    /// Scans a character. Returns the number of following characters that belong to it.
    fn read_char(&mut self, c: char, rest: &str) -> usize {
        let next = rest.chars().next();
        if std::mem::take(&mut self.escaped) {
            return 0;
        }
        match self.open.last() {
            Some(ShellDelimiter::Comment) if c == '\n' => drop(self.open.pop()),
            Some(ShellDelimiter::Comment) => {}
            Some(ShellDelimiter::Single) if c == '\'' => drop(self.open.pop()),
            Some(ShellDelimiter::Single) => {}
            Some(ShellDelimiter::Ansi) if c == '\'' => drop(self.open.pop()),
            // Below single quotes and comments, in which a backslash is an ordinary character.
            _ if c == '\\' => self.escaped = true,
            Some(ShellDelimiter::Ansi) => {}
            Some(ShellDelimiter::Double) if c == '"' => drop(self.open.pop()),
            // Within backquotes a second layer of escapes applies, which is not followed.
            _ if c == '`' => self.unsafe_reason = Some("after backquotes"),
            _ if c == '$' && rest.starts_with("((") => {
                self.open.push(ShellDelimiter::Arithmetic);
                return 2;
            }
            _ if c == '$' && next == Some('(') => {
                self.open.push(ShellDelimiter::Paren);
                return 1;
            }
            _ if c == '$' && next == Some('{') => {
                self.open.push(ShellDelimiter::Brace);
                return 1;
            }
            Some(ShellDelimiter::Double) => {}
            Some(ShellDelimiter::Brace) if c == '}' => drop(self.open.pop()),
            // Shells differ in how they read these quotes.
            Some(ShellDelimiter::Brace) if c == '"' || c == '\'' => {
                self.unsafe_reason = Some("after quotes within `${…}`");
            }
            Some(ShellDelimiter::Brace) => {}
            Some(ShellDelimiter::Arithmetic) if c == ')' && next == Some(')') => {
                self.open.pop();
                return 1;
            }
            Some(ShellDelimiter::Arithmetic) => {}
            None | Some(ShellDelimiter::Paren) => return self.read_unquoted(c, next),
        }
        0
    }

    fn read_unquoted(&mut self, c: char, next: Option<char>) -> usize {
        let starts_word =
            self.last.is_none_or(|last| last.is_whitespace() || ";&|()".contains(last));
        if starts_word {
            self.word.clear();
        }
        self.word.push(c);
        if self.word == "case" && !next.is_some_and(char::is_alphanumeric) && !self.open.is_empty()
        {
            // The `)` of `case` patterns would look like the end of `$(`.
            self.unsafe_reason = Some("after `case` within `$(…)`");
        }
        match c {
            '\'' if self.last == Some('$') => self.open.push(ShellDelimiter::Ansi),
            '\'' => self.open.push(ShellDelimiter::Single),
            '"' => self.open.push(ShellDelimiter::Double),
            '(' => self.open.push(ShellDelimiter::Paren),
            ')' => drop(self.open.pop()),
            // A `#` within a word is an ordinary character.
            '#' if starts_word => self.open.push(ShellDelimiter::Comment),
            // Quotes mean nothing in a here-document, and its end is not followed.
            '<' if next == Some('<') => self.unsafe_reason = Some("after a here-document"),
            _ => {}
        }
        0
    }
}
