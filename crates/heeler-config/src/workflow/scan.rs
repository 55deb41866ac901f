//! Scan of an expression for names, based on its text alone.

use super::template_scope::{NAMESPACES, ValuePath};

/// Role of a word in an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpressionWord {
    /// `value | filter`.
    Filter,
    /// `value is test`.
    Test,
    /// `function(…)`.
    Function,
}

/// Words before a bracket that are not function calls.
const KEYWORDS: [&str; 10] = ["and", "or", "not", "in", "is", "if", "elif", "else", "for", "loop"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpressionToken<'t> {
    Word(&'t str),
    Text(&'t str),
    Symbol(char),
}

/// Returns the filters, tests and functions that an expression uses.
pub(super) fn called_names(code: &str) -> Vec<(ExpressionWord, &str)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let ExpressionToken::Word(name) = *token else { continue };
        let before = at.checked_sub(1).map(|at| tokens[at]);
        let second = at.checked_sub(2).map(|at| tokens[at]);
        let is_test = match before {
            // `is not` has its test after the `not`.
            Some(ExpressionToken::Word("is")) => name != "not",
            Some(ExpressionToken::Word("not")) => second == Some(ExpressionToken::Word("is")),
            _ => false,
        };
        match before {
            Some(ExpressionToken::Symbol('|')) => found.push((ExpressionWord::Filter, name)),
            _ if is_test => found.push((ExpressionWord::Test, name)),
            // A method is looked up on the value, not among the functions.
            Some(ExpressionToken::Symbol('.')) => {}
            _ if tokens.get(at + 1) == Some(&ExpressionToken::Symbol('('))
                && !KEYWORDS.contains(&name) =>
            {
                found.push((ExpressionWord::Function, name));
            }
            _ => {}
        }
    }
    found
}

/// Returns the names that an expression accesses by brackets, such as `outputs["read-it"]`.
pub(super) fn bracketed_names(code: &str) -> Vec<ValuePath> {
    let tokens = tokens(code);
    let held = tokens.windows(4).filter_map(|four| match four {
        [
            ExpressionToken::Word(head),
            ExpressionToken::Symbol('['),
            ExpressionToken::Text(name),
            ExpressionToken::Symbol(']'),
        ] if NAMESPACES.contains(head) => Some(vec![(*head).to_owned(), (*name).to_owned()]),
        _ => None,
    });
    held.collect()
}

fn tokens(code: &str) -> Vec<ExpressionToken<'_>> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' | '\'' => {
                let end = end_of_text(rest, c);
                // An open string ends with the text; the engine reports it.
                tokens.push(ExpressionToken::Text(&rest[1..end]));
                (end + 1).min(rest.len())
            }
            _ if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let end = end.unwrap_or(rest.len());
                tokens.push(ExpressionToken::Word(&rest[..end]));
                end
            }
            _ => {
                if !c.is_whitespace() {
                    tokens.push(ExpressionToken::Symbol(c));
                }
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

fn end_of_text(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at,
            _ => {}
        }
    }
    text.len()
}
