//! Syntax highlighting of code blocks, for the languages that agents write most.
//!
//! A small lexer for comments, strings, numbers and keywords. A grammar engine would add megabytes
//! to the program for colours that a reader of a chat does not miss. Every character of the code is
//! in the result, in order; only styles differ. Start at [`highlight_code`].

use ratatui::style::Style;
use ratatui::text::Span;

use crate::TerminalTheme;

/// Lexical rules of a language.
struct CodeLanguage {
    names: &'static [&'static str],
    line_comments: &'static [&'static str],
    block_comment: Option<(&'static str, &'static str)>,
    /// Quotes of strings that end on their line.
    quotes: &'static [char],
    /// Quotes of strings that may span lines. They are tried first.
    long_quotes: &'static [&'static str],
    keywords: &'static [&'static str],
}

const C_COMMENTS: (&[&str], Option<(&str, &str)>) = (&["//"], Some(("/*", "*/")));

const LANGUAGES: &[CodeLanguage] = &[
    CodeLanguage {
        names: &["rust", "rs"],
        line_comments: C_COMMENTS.0,
        block_comment: C_COMMENTS.1,
        quotes: &['"'],
        long_quotes: &[],
        keywords: &[
            "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum",
            "extern", "false", "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod",
            "move", "mut", "pub", "ref", "return", "self", "Self", "static", "struct", "super",
            "trait", "true", "type", "unsafe", "use", "where", "while",
        ],
    },
    CodeLanguage {
        names: &["python", "py"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &['"', '\''],
        long_quotes: &["\"\"\"", "'''"],
        keywords: &[
            "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
            "elif", "else", "except", "False", "finally", "for", "from", "global", "if", "import",
            "in", "is", "lambda", "None", "nonlocal", "not", "or", "pass", "raise", "return",
            "True", "try", "while", "with", "yield",
        ],
    },
    CodeLanguage {
        names: &["javascript", "js", "jsx", "mjs", "typescript", "ts", "tsx"],
        line_comments: C_COMMENTS.0,
        block_comment: C_COMMENTS.1,
        quotes: &['"', '\''],
        long_quotes: &["`"],
        keywords: &[
            "abstract",
            "as",
            "async",
            "await",
            "break",
            "case",
            "catch",
            "class",
            "const",
            "continue",
            "default",
            "delete",
            "do",
            "else",
            "enum",
            "export",
            "extends",
            "false",
            "finally",
            "for",
            "from",
            "function",
            "if",
            "implements",
            "import",
            "in",
            "instanceof",
            "interface",
            "let",
            "new",
            "null",
            "of",
            "private",
            "protected",
            "public",
            "readonly",
            "return",
            "static",
            "super",
            "switch",
            "this",
            "throw",
            "true",
            "try",
            "type",
            "typeof",
            "undefined",
            "var",
            "void",
            "while",
            "yield",
        ],
    },
    CodeLanguage {
        names: &["go", "golang"],
        line_comments: C_COMMENTS.0,
        block_comment: C_COMMENTS.1,
        quotes: &['"', '\''],
        long_quotes: &["`"],
        keywords: &[
            "break",
            "case",
            "chan",
            "const",
            "continue",
            "default",
            "defer",
            "else",
            "false",
            "for",
            "func",
            "go",
            "goto",
            "if",
            "import",
            "interface",
            "map",
            "nil",
            "package",
            "range",
            "return",
            "select",
            "struct",
            "switch",
            "true",
            "type",
            "var",
        ],
    },
    CodeLanguage {
        names: &[
            "c", "h", "cpp", "c++", "cc", "hpp", "java", "kotlin", "kt", "csharp", "cs", "swift",
        ],
        line_comments: C_COMMENTS.0,
        block_comment: C_COMMENTS.1,
        quotes: &['"', '\''],
        long_quotes: &[],
        keywords: &[
            "auto",
            "bool",
            "boolean",
            "break",
            "case",
            "catch",
            "char",
            "class",
            "const",
            "continue",
            "default",
            "delete",
            "do",
            "double",
            "else",
            "enum",
            "extends",
            "extern",
            "false",
            "final",
            "finally",
            "float",
            "for",
            "fun",
            "func",
            "goto",
            "if",
            "implements",
            "import",
            "int",
            "interface",
            "let",
            "long",
            "namespace",
            "new",
            "null",
            "nullptr",
            "override",
            "package",
            "private",
            "protected",
            "public",
            "return",
            "short",
            "signed",
            "sizeof",
            "static",
            "struct",
            "switch",
            "template",
            "this",
            "throw",
            "true",
            "try",
            "typedef",
            "union",
            "unsigned",
            "using",
            "val",
            "var",
            "virtual",
            "void",
            "volatile",
            "while",
        ],
    },
    CodeLanguage {
        names: &["bash", "sh", "shell", "zsh", "console"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &[],
        // A string of a shell may span lines.
        long_quotes: &["\"", "'"],
        keywords: &[
            "case", "do", "done", "elif", "else", "esac", "export", "fi", "for", "function", "if",
            "in", "local", "return", "select", "set", "then", "until", "while",
        ],
    },
    CodeLanguage {
        names: &["json", "jsonc", "json5", "jsonl"],
        line_comments: &["//"],
        block_comment: Some(("/*", "*/")),
        quotes: &['"'],
        long_quotes: &[],
        keywords: &["false", "null", "true"],
    },
    CodeLanguage {
        names: &["yaml", "yml", "toml", "ini", "dockerfile", "makefile"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &['"', '\''],
        long_quotes: &[],
        keywords: &[
            "CMD",
            "COPY",
            "ENTRYPOINT",
            "ENV",
            "EXPOSE",
            "FROM",
            "RUN",
            "USER",
            "WORKDIR",
            "false",
            "no",
            "null",
            "true",
            "yes",
        ],
    },
    CodeLanguage {
        names: &["sql", "sqlite", "postgresql"],
        line_comments: &["--"],
        block_comment: Some(("/*", "*/")),
        quotes: &['\'', '"'],
        long_quotes: &[],
        keywords: &[
            "ALTER", "AND", "AS", "BEGIN", "BY", "CASE", "COMMIT", "CREATE", "DELETE", "DISTINCT",
            "DROP", "ELSE", "END", "EXISTS", "FROM", "GROUP", "HAVING", "IN", "INDEX", "INSERT",
            "INTO", "IS", "JOIN", "KEY", "LEFT", "LIKE", "LIMIT", "NOT", "NULL", "ON", "OR",
            "ORDER", "PRIMARY", "SELECT", "SET", "TABLE", "THEN", "UNION", "UPDATE", "VALUES",
            "WHEN", "WHERE", "WITH",
        ],
    },
    CodeLanguage {
        names: &["html", "xml", "svg", "vue", "svelte"],
        line_comments: &[],
        block_comment: Some(("<!--", "-->")),
        quotes: &['"'],
        long_quotes: &[],
        keywords: &[],
    },
    CodeLanguage {
        names: &["css", "scss"],
        line_comments: &[],
        block_comment: Some(("/*", "*/")),
        quotes: &['"', '\''],
        long_quotes: &[],
        keywords: &["important", "inherit", "initial", "none", "unset"],
    },
    CodeLanguage {
        names: &["ruby", "rb", "elixir", "ex", "php", "lua"],
        line_comments: &["#", "--"],
        block_comment: None,
        quotes: &['"', '\''],
        long_quotes: &[],
        keywords: &[
            "and",
            "begin",
            "break",
            "case",
            "class",
            "def",
            "defmodule",
            "do",
            "else",
            "elsif",
            "end",
            "false",
            "fn",
            "for",
            "function",
            "if",
            "in",
            "local",
            "module",
            "nil",
            "not",
            "or",
            "rescue",
            "return",
            "self",
            "then",
            "true",
            "unless",
            "until",
            "use",
            "when",
            "while",
            "yield",
        ],
    },
];

/// Returns code as styled spans. Code of an unknown language has one style.
pub(crate) fn highlight_code(
    code: &str,
    language: &str,
    theme: &TerminalTheme,
) -> Vec<Span<'static>> {
    // A fence may carry more than the name, such as `rust,ignore`.
    let name = language.split([',', ' ', '{', ':']).next().unwrap_or_default().to_lowercase();
    if matches!(name.as_str(), "diff" | "patch" | "udiff") {
        return highlight_diff(code, theme);
    }
    highlight_known_code(code, &name, theme)
        .unwrap_or_else(|| vec![Span::styled(code.to_owned(), theme.code)])
}

/// Returns code of a language, or with this extension of a file name, as styled spans; `None` if the
/// language is unknown.
pub(crate) fn highlight_known_code(
    code: &str,
    name: &str,
    theme: &TerminalTheme,
) -> Option<Vec<Span<'static>>> {
    let language = LANGUAGES.iter().find(|known| known.names.contains(&name))?;
    Some(CodeLexer { language, theme, spans: vec![] }.run(code))
}

/// Returns a unified diff as styled spans, one per line.
pub(crate) fn highlight_diff(code: &str, theme: &TerminalTheme) -> Vec<Span<'static>> {
    let style = |line: &str| match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => theme.heading,
        [b'+', ..] => theme.good,
        [b'-', ..] => theme.bad,
        [b'@', b'@', ..] => theme.keyword,
        [b' ', ..] | [] | [b'\n', ..] => Style::new(),
        _ => theme.dim,
    };
    code.split_inclusive('\n').map(|line| Span::styled(line.to_owned(), style(line))).collect()
}

struct CodeLexer<'t> {
    language: &'static CodeLanguage,
    theme: &'t TerminalTheme,
    spans: Vec<Span<'static>>,
}

impl CodeLexer<'_> {
    fn run(mut self, code: &str) -> Vec<Span<'static>> {
        let mut left = code;
        // Beginning of code that has no other style yet.
        let mut plain = 0;
        let mut before = None;
        while let Some(c) = left[plain..].chars().next() {
            let at = &left[plain..];
            match self.token(at, before) {
                Some((len, style)) => {
                    self.push(&left[..plain], self.theme.code);
                    self.push(&at[..len], style);
                    before = at[..len].chars().next_back();
                    left = &at[len..];
                    plain = 0;
                }
                None => {
                    // A word is skipped as a whole: its end is no beginning of a keyword.
                    let word = at.len() - at.trim_start_matches(is_word).len();
                    plain += word.max(c.len_utf8());
                    before = left[..plain].chars().next_back();
                }
            }
        }
        self.push(left, self.theme.code);
        self.spans
    }

    fn push(&mut self, text: &str, style: Style) {
        if !text.is_empty() {
            self.spans.push(Span::styled(text.to_owned(), style));
        }
    }

    /// Returns length and style of the token at the beginning, if it has a style of its own.
    fn token(&self, code: &str, before: Option<char>) -> Option<(usize, Style)> {
        let language = self.language;
        let line_end = code.find('\n').unwrap_or(code.len());
        if let Some((open, close)) = language.block_comment
            && code.starts_with(open)
        {
            let end = code[open.len()..].find(close);
            let end = end.map_or(code.len(), |at| open.len() + at + close.len());
            return Some((end, self.theme.dim));
        }
        // In a shell or YAML, `#` and `--` inside a word begin no comment.
        let is_apart = before.is_none_or(|c| c.is_whitespace() || ";,{}()[]".contains(c));
        if language.line_comments.iter().any(|mark| code.starts_with(mark))
            && (is_apart || code.starts_with("//"))
            // The address of a URL is no comment.
            && before != Some(':')
        {
            return Some((line_end, self.theme.dim));
        }
        if let Some(quote) = language.long_quotes.iter().find(|quote| code.starts_with(**quote)) {
            let end = string_end(code, quote, code.len());
            return Some((end, self.theme.string));
        }
        let first = code.chars().next()?;
        if language.quotes.contains(&first) {
            let end = string_end(code, first.encode_utf8(&mut [0; 4]), line_end);
            return Some((end, self.theme.string));
        }
        if before.is_some_and(is_word) {
            return None;
        }
        if first.is_ascii_digit() {
            let end = code.len() - code.trim_start_matches(|c: char| is_word(c) || c == '.').len();
            return Some((end, self.theme.number));
        }
        let word = &code[..code.len() - code.trim_start_matches(is_word).len()];
        let is_sql = language.names[0] == "sql";
        let is_keyword =
            |known: &&str| *known == word || (is_sql && known.eq_ignore_ascii_case(word));
        language.keywords.iter().any(is_keyword).then_some((word.len(), self.theme.keyword))
    }
}

/// Returns the end of a string that begins with a quote; a backslash escapes the next character.
fn string_end(code: &str, quote: &str, limit: usize) -> usize {
    let mut at = quote.len();
    while at < limit {
        let rest = &code[at..limit];
        if rest.starts_with(quote) {
            return at + quote.len();
        }
        let mut chars = rest.chars();
        at += chars.next().map_or(0, |c| match c {
            '\\' => 1 + chars.next().map_or(0, char::len_utf8),
            c => c.len_utf8(),
        });
    }
    limit
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks tokens: `k(`keyword`)`, `s(`string`)`, `c(`comment`)`, `n(`number`)`.
    fn marked(code: &str, language: &str) -> String {
        let theme = TerminalTheme::dark();
        let spans = highlight_code(code, language, &theme);
        let plain: String = spans.iter().map(|span| span.content.as_ref()).collect();
        assert_eq!(plain, code, "no character is lost");
        let mark = |span: &Span<'_>| match span.style {
            style if style == theme.keyword => format!("k({})", span.content),
            style if style == theme.string => format!("s({})", span.content),
            style if style == theme.dim => format!("c({})", span.content),
            style if style == theme.number => format!("n({})", span.content),
            _ => span.content.to_string(),
        };
        spans.iter().map(mark).collect()
    }

    #[test]
    fn words_strings_numbers_and_comments_have_their_styles() {
        assert_eq!(
            marked("fn a<'x>() { let b = \"c\\\"d\"; } // fn\n/* if\n */ 12u8", "rust"),
            "k(fn) a<'x>() { k(let) b = s(\"c\\\"d\"); } c(// fn)\nc(/* if\n */) n(12u8)"
        );
        assert_eq!(
            marked("def f(x):\n    \"\"\"a\n    b\"\"\"\n    return x1  # no", "py"),
            "k(def) f(x):\n    s(\"\"\"a\n    b\"\"\")\n    k(return) x1  c(# no)"
        );
        assert_eq!(
            marked("if x; then echo 'a\nb' a#b; fi", "sh"),
            "k(if) x; k(then) echo s('a\nb') a#b; k(fi)"
        );
        assert_eq!(marked("select 'a' from t -- x", "SQL"), "k(select) s('a') k(from) t c(-- x)");
        assert_eq!(marked("{\"a\": [1.5, true]}", "json"), "{s(\"a\"): [n(1.5), k(true)]}");
        assert_eq!(marked("const u = `a\n${b}`;", "ts"), "k(const) u = s(`a\n${b}`);");
        assert_eq!(marked("informal", "rust"), "informal", "`in` and `for` are parts of a word");
    }

    #[test]
    fn unknown_languages_and_unfinished_code_stay_as_they_are() {
        assert_eq!(marked("let x = 1", "klingon"), "let x = 1");
        for code in ["\"", "'", "/*", "\"\\", "`", "日本 \"語", "0x", "\\", "#", "\u{301}\""] {
            for language in ["rust", "py", "ts", "sh", "yaml", "html", "diff", ""] {
                let theme = TerminalTheme::dark();
                let spans = highlight_code(code, language, &theme);
                let text: String = spans.iter().map(|span| span.content.as_ref()).collect();
                assert_eq!(text, code);
            }
        }
    }

    #[test]
    fn a_diff_shows_what_goes_and_what_comes() {
        let theme = TerminalTheme::dark();
        let spans = highlight_code("--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n z", "diff", &theme);
        let styles: Vec<Style> = spans.iter().map(|span| span.style).collect();
        assert_eq!(
            styles,
            [theme.heading, theme.heading, theme.keyword, theme.bad, theme.good, Style::new()]
        );
    }
}
