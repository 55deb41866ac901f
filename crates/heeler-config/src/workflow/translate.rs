//! Translation of Last Light's template syntax to minijinja's.
//!
//! Only the text of a template is translated, when it is parsed. Values never pass through this
//! module. Start at [`translate`].

use super::shell_quoting::ShellQuoteState;
use super::template_error::TemplateParseError;

/// Template in minijinja's syntax.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TranslatedTemplate {
    pub(super) source: String,
    /// Values of the names `_slot0`, `_slot1` and so on in the source.
    pub(super) slots: Vec<TemplateSlot>,
    /// Content of each `{{ }}` and `{% %}`, with its position in the text.
    pub(super) code: Vec<(usize, String)>,
}

/// Value that minijinja's syntax cannot express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TemplateSlot {
    /// Value at a path, such as `models.pr-fix`.
    Path(Vec<String>),
    /// Output of a phase: `${phase.output}`.
    Output(String),
    /// URL of a file in the branch.
    BranchUrl(String),
    /// URL of an artifact.
    ArtifactUrl(String),
}

/// Kind of text that a template produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateTarget {
    /// Text for people and agents.
    Text,
    /// Command for `/bin/sh`.
    Shell,
}

/// Lexical piece of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplatePiece<'t> {
    Text(&'t str),
    /// Content of `{{ }}`.
    Print(&'t str),
    /// Content of `{% %}`.
    Block(&'t str),
    /// `{% raw %}text{% endraw %}`.
    Raw(&'t str),
    Comment,
    /// Name in `${name.output}`.
    Output(&'t str),
}

/// Translates a template to minijinja's syntax.
pub(super) fn translate(
    text: &str,
    target: TemplateTarget,
) -> Result<TranslatedTemplate, TemplateParseError> {
    let mut translator = TemplateTranslator {
        text,
        at: 0,
        out: TranslatedTemplate::default(),
        shell: (target == TemplateTarget::Shell).then(ShellQuoteState::default),
        blocks: Vec::new(),
    };
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, length) =
            first_piece(rest).map_err(|message| translator.parse_error(message))?;
        translator.piece(piece)?;
        translator.at += length;
        rest = &rest[length..];
    }
    Ok(translator.out)
}

struct TemplateTranslator<'t> {
    text: &'t str,
    at: usize,
    out: TranslatedTemplate,
    shell: Option<ShellQuoteState>,
    /// Quote state at the start of each open block.
    blocks: Vec<ShellQuoteState>,
}

impl TemplateTranslator<'_> {
    fn parse_error(&self, message: impl Into<String>) -> TemplateParseError {
        // The parser's own line numbers are about the translated text, which nobody has seen.
        let line = self.text[..self.at].matches('\n').count() + 1;
        TemplateParseError { message: message.into(), line: Some(line) }
    }

    fn piece(&mut self, piece: TemplatePiece<'_>) -> Result<(), TemplateParseError> {
        match piece {
            TemplatePiece::Text(text) | TemplatePiece::Raw(text) => {
                // Raw text is part of the command as well, and may open quotes.
                if let Some(shell) = &mut self.shell {
                    shell.read(text);
                }
                match piece {
                    // The text may contain braces that minijinja would take for its own.
                    TemplatePiece::Raw(_) => self.push("{% raw %}", text, "{% endraw %}"),
                    _ => self.out.source.push_str(text),
                }
                Ok(())
            }
            TemplatePiece::Comment => Ok(()),
            TemplatePiece::Output(name) => {
                // A name with a hyphen is no name in minijinja.
                let slot = self.slot(TemplateSlot::Output(name.to_owned()));
                self.print(&slot)
            }
            TemplatePiece::Print(code) => self.expression(code),
            TemplatePiece::Block(code) => {
                // The signs for white space control are not part of the statement.
                self.check_block_quotes(code.trim_matches(['-', '+']).trim())?;
                self.code(code);
                self.push("{%", code, "%}");
                Ok(())
            }
        }
    }

    fn expression(&mut self, code: &str) -> Result<(), TemplateParseError> {
        let words = code.trim();
        // Last Light's blocks are Handlebars', which minijinja does not know.
        if let Some(condition) = words.strip_prefix("#if ") {
            return self.translate_if(condition.trim());
        }
        let (word, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        let rest = rest.trim();
        let code = match word {
            "/if" if rest.is_empty() => {
                self.check_block_quotes("endif")?;
                self.out.source.push_str("{% endif %}");
                return Ok(());
            }
            // Other helpers of Handlebars; without this they would be reported as broken syntax.
            _ if word.starts_with(['#', '/']) => {
                let message = format!("`{{{{{words}}}}}` is not known");
                return Err(self.parse_error(message + ": write `{% for … %}` or `{% if … %}`"));
            }
            // Only with a plain path: anything else is meant for minijinja's own filter.
            "slugify" if is_path(rest) => format!("{}|slugify", self.path(rest)),
            "branchUrl" if is_file_name(rest) => {
                self.slot(TemplateSlot::BranchUrl(rest.to_owned()))
            }
            "artifactUrl" if is_file_name(rest) => {
                self.slot(TemplateSlot::ArtifactUrl(rest.to_owned()))
            }
            _ if is_path(words) => self.path(words),
            _ => {
                self.code(code);
                code.to_owned()
            }
        };
        self.print(&code)
    }

    fn translate_if(&mut self, condition: &str) -> Result<(), TemplateParseError> {
        let (not, path) = match condition.strip_prefix('!') {
            Some(path) => ("not ", path.trim()),
            None => ("", condition),
        };
        if !is_path(path) {
            let message = format!("`{{{{#if {condition}}}}}` names no value");
            return Err(self.parse_error(message + ": write `{% if … %}` for more than a name"));
        }
        self.check_block_quotes("if")?;
        let path = self.path(path);
        self.out.source.push_str(&format!("{{% if {not}{path} %}}"));
        Ok(())
    }

    /// Returns a path in minijinja's syntax: unchanged, or as a slot.
    fn path(&mut self, path: &str) -> String {
        let is_name =
            // minijinja would take a hyphen for a minus, and a digit for an index.
            |part: &str| !part.contains('-') && !part.starts_with(|c: char| c.is_ascii_digit());
        match path.split('.').all(is_name) {
            true => path.to_owned(),
            false => self.slot(TemplateSlot::Path(path.split('.').map(str::to_owned).collect())),
        }
    }

    fn slot(&mut self, slot: TemplateSlot) -> String {
        // The same value is prepared once, however often it is used.
        let known = self.out.slots.iter().position(|known| *known == slot);
        let number = known.unwrap_or_else(|| {
            self.out.slots.push(slot);
            self.out.slots.len() - 1
        });
        format!("_slot{number}")
    }

    /// Prints a value. In a command, the shell sees it as one word or part of one.
    fn print(&mut self, code: &str) -> Result<(), TemplateParseError> {
        let quote = match &self.shell {
            Some(shell) if !is_raw(code) => {
                shell.enclosing_quote().map_err(|why| self.parse_error(why))?
            }
            _ => "",
        };
        // A value has its own quotes: close the enclosing quote before it and reopen it after it.
        let before = format!("{quote}{{{{ ");
        let code = code.trim();
        self.push(&before, code, &format!(" }}}}{quote}"));
        // From here on the word may not begin anew, whatever the value is.
        if let Some(shell) = &mut self.shell {
            shell.read_value();
        }
        Ok(())
    }

    /// Checks that quotes opened within a block of a command are closed within it.
    fn check_block_quotes(&mut self, code: &str) -> Result<(), TemplateParseError> {
        let Some(shell) = &self.shell else { return Ok(()) };
        let word = code.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        // A `set` with a value is one statement and has no end.
        let is_set = word == "set" && code.contains('=');
        match word {
            "if" | "for" | "with" | "filter" | "autoescape" => self.blocks.push(shell.clone()),
            "set" if !is_set => self.blocks.push(shell.clone()),
            // Each branch must have the same quotes, since only one of them is rendered.
            "elif" | "else" => return self.check_balance(self.blocks.last()),
            _ if word.starts_with("end") => {
                let start = self.blocks.pop();
                return self.check_balance(start.as_ref());
            }
            _ => {}
        }
        Ok(())
    }

    fn check_balance(&self, start: Option<&ShellQuoteState>) -> Result<(), TemplateParseError> {
        match (start, &self.shell) {
            (Some(start), Some(now)) if !start.has_same_quotes(now) => Err(self
                .parse_error("quotes that begin within a block of a command must end within it")),
            _ => Ok(()),
        }
    }

    fn code(&mut self, code: &str) {
        self.out.code.push((self.at, code.to_owned()));
    }

    fn push(&mut self, before: &str, text: &str, after: &str) {
        let source = &mut self.out.source;
        source.push_str(before);
        source.push_str(text);
        source.push_str(after);
    }
}

/// Returns the first piece of a non-empty text, and its length.
fn first_piece(text: &str) -> Result<(TemplatePiece<'_>, usize), String> {
    if let Some(rest) = text.strip_prefix("{{") {
        let end = end_of(rest, "}}").ok_or("`{{` has no `}}`")?;
        return Ok((TemplatePiece::Print(&rest[..end]), end + 4));
    }
    if let Some(length) = shell_length_expansion(text) {
        return Ok((TemplatePiece::Raw(&text[..length]), length));
    }
    if let Some(rest) = text.strip_prefix("{#") {
        let end = rest.find("#}").ok_or("`{#` has no `#}`")?;
        return Ok((TemplatePiece::Comment, end + 4));
    }
    if let Some(rest) = text.strip_prefix("{%") {
        let end = end_of(rest, "%}").ok_or("`{%` has no `%}`")?;
        return match rest[..end].trim_matches(['-', '+']).trim() {
            "raw" => raw_piece(text, end + 4),
            _ => Ok((TemplatePiece::Block(&rest[..end]), end + 4)),
        };
    }
    if let Some(name) = output_name(text) {
        return Ok((TemplatePiece::Output(name), name.len() + "${.output}".len()));
    }
    let starts = |at: &usize| {
        let rest = &text[*at..];
        ["{{", "{#", "{%"].iter().any(|mark| rest.starts_with(mark))
            || output_name(rest).is_some()
            || shell_length_expansion(rest).is_some()
    };
    // The first character is no mark, or it would have been found above.
    let marks = text.char_indices().map(|(at, _)| at).skip(1);
    // Only two bytes can begin a mark, which skips most of the text cheaply.
    let end = marks.filter(|at| matches!(text.as_bytes()[*at], b'{' | b'$')).find(starts);
    let end = end.unwrap_or(text.len());
    Ok((TemplatePiece::Text(&text[..end]), end))
}

/// Returns the length of `${#name}` (the shell's length of a variable) at the start of a text. It
/// must not be parsed as a comment.
fn shell_length_expansion(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("${#")?;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_@*[]!?-$#".contains(c);
    let end = rest.find(|c: char| !is_of_name(c))?;
    (rest[end..].starts_with('}') && (end == 0 || !rest[..end].ends_with('#'))).then_some(end + 4)
}

fn raw_piece(text: &str, start: usize) -> Result<(TemplatePiece<'_>, usize), String> {
    let mut from = start;
    while let Some(found) = text[from..].find("{%") {
        let at = from + found;
        let inner = &text[at + 2..];
        // A block without an end is text here, as everything within raw is.
        let end = inner.find("%}").unwrap_or(inner.len());
        if inner[..end].trim_matches(['-', '+']).trim() == "endraw" {
            return Ok((TemplatePiece::Raw(&text[start..at]), at + end + 4));
        }
        from = at + 2;
    }
    Err("`{% raw %}` has no `{% endraw %}`".to_owned())
}

/// Finds the end of `{{` or `{%`, ignoring strings. The file name of `branchUrl` and `artifactUrl`
/// is not a string.
fn end_of(text: &str, end: &str) -> Option<usize> {
    if text.trim_start().starts_with("artifactUrl ") || text.trim_start().starts_with("branchUrl ")
    {
        return text.find(end);
    }
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if text[at..].starts_with(end) => return Some(at),
            None if c == '"' || c == '\'' => quote = Some(c),
            None => {}
        }
    }
    None
}

/// Returns the name in `${name.output}` at the start of a text.
pub(super) fn output_name(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix("${")?.split_once(".output}")?;
    // A dot within the name would make it a path.
    (is_path(name) && !name.contains('.')).then_some(name)
}

/// Returns true if a text is a path in Last Light's form: words with hyphens, separated by dots.
pub(super) fn is_path(text: &str) -> bool {
    let is_part = |part: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && text.split('.').all(is_part)
}

fn is_file_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['{', '}', '"', '|', '('])
}

/// Returns true if a value is inserted unquoted, by `| raw`.
fn is_raw(code: &str) -> bool {
    code.trim()
        .trim_end_matches('-')
        .trim_end()
        .strip_suffix("raw")
        .is_some_and(|before| before.trim_end().ends_with('|'))
}
