//! A shell line as the simple commands that it runs.
//!
//! It is read for one purpose: to be sure that nothing runs that a list does not name. So it never
//! guesses. Whatever could run something that the text does not show at once (substitutions,
//! subshells, comments, here-documents) or write a file (redirections) is not understood on purpose.

#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::str::Chars;

/// The one file that everything may be written to.
const NOWHERE: &str = "/dev/null";

/// Returns the simple commands of a line, or nothing if it cannot be sure to see all of them.
pub(super) fn simple_commands(line: &str) -> Option<Vec<String>> {
    let odd = |c: char| c.is_control() && !matches!(c, '\t' | '\n');
    if line.contains(odd) {
        return None;
    }
    let mut reader =
        Reader { rest: line.chars().peekable(), text: String::new(), done: Vec::new() };
    while let Some(c) = reader.rest.next() {
        reader.unquoted(c)?;
    }
    reader.end_command();
    Some(reader.done)
}

struct Reader<'l> {
    rest: Peekable<Chars<'l>>,
    /// The command that is being read.
    text: String,
    done: Vec<String>,
}

impl Reader<'_> {
    fn unquoted(&mut self, c: char) -> Option<()> {
        match c {
            '\'' => self.single_quoted()?,
            '"' => self.double_quoted()?,
            '\\' => self.escaped()?,
            '$' => self.dollar()?,
            '&' if self.rest.peek() == Some(&'>') => {
                self.rest.next();
                self.redirected()?;
            }
            '>' => self.redirected()?,
            ';' | '|' | '&' | '\n' => self.end_command(),
            '`' | '(' | ')' | '<' => return None,
            // The shell would stop reading here, quotes and all.
            '#' if self.at_word_start() => return None,
            _ => self.text.push(c),
        }
        Some(())
    }

    fn end_command(&mut self) {
        let command = std::mem::take(&mut self.text);
        let command = command.trim();
        if !command.is_empty() {
            self.done.push(command.to_owned());
        }
    }

    fn at_word_start(&self) -> bool {
        self.text.chars().next_back().is_none_or(char::is_whitespace)
    }

    fn single_quoted(&mut self) -> Option<()> {
        self.text.push('\'');
        loop {
            let c = self.rest.next()?;
            self.text.push(c);
            if c == '\'' {
                return Some(());
            }
        }
    }

    fn double_quoted(&mut self) -> Option<()> {
        self.text.push('"');
        loop {
            match self.rest.next()? {
                '"' => break,
                '\\' => self.escaped()?,
                '$' => self.dollar()?,
                '`' => return None,
                c => self.text.push(c),
            }
        }
        self.text.push('"');
        Some(())
    }

    /// Reads what follows a backslash; one before a line break joins the lines.
    fn escaped(&mut self) -> Option<()> {
        match self.rest.next()? {
            '\n' => {}
            c => self.text.extend(['\\', c]),
        }
        Some(())
    }

    /// Reads what follows a dollar sign: a plain variable, nothing special, or a text in a
    /// here-document.
    fn dollar(&mut self) -> Option<()> {
        self.text.push('$');
        match self.rest.peek() {
            Some('(') => self.quoted_document(),
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

    /// Reads `(cat <<'WORD'`, lines as they are, `WORD` and `)`: how agents write a long message.
    fn quoted_document(&mut self) -> Option<()> {
        let opening: String = self.rest.by_ref().take_while(|c| *c != '\n').collect();
        let word = opening.strip_prefix("(cat <<'")?.strip_suffix('\'')?;
        if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphabetic() || c == '_') {
            return None;
        }
        loop {
            self.rest.peek()?;
            let line: String = self.rest.by_ref().take_while(|c| *c != '\n').collect();
            if line == word {
                break;
            }
        }
        while self.rest.next_if(|c| matches!(c, ' ' | '\t' | '\n')).is_some() {}
        self.rest.next_if_eq(&')').map(|_| ())
    }

    /// Reads what follows `>`: to nowhere, or where another stream goes. A file is not understood.
    fn redirected(&mut self) -> Option<()> {
        let digits = self.text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        if self.text[..digits].chars().next_back().is_some_and(char::is_whitespace) {
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
        (stream || target == NOWHERE).then_some(())
    }
}
