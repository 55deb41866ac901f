//! Parser for the text of a `.env` file. The caller reads the file and gives real environment
//! variables precedence. Start at [`parse_dotenv`].

use thiserror::Error;

use crate::interpolate::is_variable_name;

/// A line of a `.env` file that is not an assignment.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line} of .env is not `NAME=value`: {reason}")]
pub struct DotenvFault {
    /// Line number, counted from 1.
    pub line: usize,
    pub reason: &'static str,
}

/// Parses `.env` text: `NAME=value`, `export NAME=value`, `# comments`, single and double quotes
/// (also across lines), and escapes such as `\n` within double quotes. Returns every valid
/// assignment, in order, and a fault for every invalid line.
pub fn parse_dotenv(text: &str) -> (Vec<(String, String)>, Vec<DotenvFault>) {
    let mut pairs = Vec::new();
    let mut faults = Vec::new();
    // Editors on Windows write a byte order mark.
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut line = 1;
    while !rest.is_empty() {
        let (outcome, used) = parse_assignment(rest);
        match outcome {
            Ok(Some(pair)) => pairs.push(pair),
            Ok(None) => {}
            // One wrong line must not hide the other variables.
            Err(reason) => faults.push(DotenvFault { line, reason }),
        }
        // A quoted value may span lines.
        line += rest[..used].matches('\n').count();
        rest = &rest[used..];
    }
    (pairs, faults)
}

type ParsedAssignment = Result<Option<(String, String)>, &'static str>;

/// Parses one assignment. Also returns the number of bytes consumed, including the line end.
fn parse_assignment(text: &str) -> (ParsedAssignment, usize) {
    let line_end = text.find('\n').map_or(text.len(), |at| at + 1);
    let line = text[..line_end].trim();
    if line.is_empty() || line.starts_with('#') {
        return (Ok(None), line_end);
    }
    // Files that shells read have this prefix.
    let body = line.strip_prefix("export ").unwrap_or(line);
    let (Some((name, value)), Some(equals)) = (body.split_once('='), text.find('=')) else {
        return (Err("there is no `=`"), line_end);
    };
    let name = name.trim();
    if !is_variable_name(name) {
        return (Err("the name may hold only letters, digits and `_`"), line_end);
    }
    let value = value.trim_start();
    let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return (Ok(Some((name.to_owned(), parse_unquoted(value)))), line_end);
    };
    // A quoted value may span lines, so the closing quote is searched in the rest of the text.
    let opened = text[equals..].find(quote).map_or(text.len(), |at| equals + at + 1);
    match parse_quoted(&text[opened..], quote) {
        Some((value, length)) => {
            let after = opened + length;
            let used = text[after..].find('\n').map_or(text.len(), |at| after + at + 1);
            let tail = text[after..used].trim();
            match tail.is_empty() || tail.starts_with('#') {
                true => (Ok(Some((name.to_owned(), value))), used),
                false => (Err("there is text after the closing quote"), used),
            }
        }
        // Only this line is skipped, so that the variables after it are still found.
        None => (Err("the quote is never closed"), line_end),
    }
}

fn parse_unquoted(value: &str) -> String {
    // A `#` within a word is part of the value, as in a shell.
    let comment = value.find(" #").unwrap_or(value.len());
    match value.starts_with('#') {
        true => String::new(),
        false => value[..comment].trim_end().to_owned(),
    }
}

/// Parses up to the closing quote. Returns the value and the number of bytes consumed, including
/// the quote.
fn parse_quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Some((value, at + c.len_utf8())),
            // Single quotes take everything literally.
            '\\' if quote == '"' => match chars.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                escaped @ ('"' | '\\' | '$') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Expect) {
        let (pairs, faults) = parse_dotenv(text);
        let pairs = pairs.iter().map(|(name, value)| format!("{name}={value:?}\n"));
        let faults = faults.iter().map(|fault| format!("{fault}\n"));
        expect.assert_eq(&pairs.chain(faults).collect::<String>());
    }

    #[test]
    fn assignments_quotes_comments_and_export_are_read() {
        check(
            "# a comment\n\nA=1\nexport B = two words # note\nC='#kept \\n'\nD=\"x\\ty\" # note\nE=\nF=#x\nG=a#b\n",
            expect![[r##"
                A="1"
                B="two words"
                C="#kept \\n"
                D="x\ty"
                E=""
                F=""
                G="a#b"
            "##]],
        );
    }

    #[test]
    fn a_quoted_value_may_run_over_lines_and_later_lines_keep_their_number() {
        check(
            "KEY=\"-----BEGIN\nabc\n-----END\"\r\nbad line\nZ=1",
            expect![[r#"
                KEY="-----BEGIN\nabc\n-----END"
                Z="1"
                line 4 of .env is not `NAME=value`: there is no `=`
            "#]],
        );
    }

    #[test]
    fn every_bad_line_is_named() {
        check(
            "\u{feff}OK=1\n1X=2\nA-B=3\nQ=\"open\nR='a' b\n",
            expect![[r#"
                OK="1"
                line 2 of .env is not `NAME=value`: the name may hold only letters, digits and `_`
                line 3 of .env is not `NAME=value`: the name may hold only letters, digits and `_`
                line 4 of .env is not `NAME=value`: the quote is never closed
                line 5 of .env is not `NAME=value`: there is text after the closing quote
            "#]],
        );
    }
}
