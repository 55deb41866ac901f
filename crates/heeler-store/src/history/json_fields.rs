//! Fields at the top level of a JSON object in the compact form that programs write: names
//! without escapes, no whitespace between tokens.
//!
//! Values are skipped without parsing, so a long string costs one search. Objects in another
//! form are not read; the caller needs a parser for them. Start at [`top_fields`].

use memchr::memchr2;

/// Returns the raw values of the named fields, the last one of each; `None` if the object has
/// another form or is torn.
pub(super) fn top_fields<'t, const N: usize>(
    text: &'t [u8],
    names: [&str; N],
) -> Option<[Option<&'t [u8]>; N]> {
    let mut found = [None; N];
    let mut at = 1;
    if text.first() != Some(&b'{') {
        return None;
    }
    loop {
        let name_end = string_end(text, at)?;
        let name = &text[at + 1..name_end - 1];
        if text.get(name_end) != Some(&b':') || name.contains(&b'\\') {
            return None;
        }
        let value_end = value_end(text, name_end + 1)?;
        if let Some(place) = names.iter().position(|wanted| wanted.as_bytes() == name) {
            found[place] = Some(&text[name_end + 1..value_end]);
        }
        match text.get(value_end)? {
            b',' => at = value_end + 1,
            b'}' if value_end + 1 == text.len() => return Some(found),
            _ => return None,
        }
    }
}

/// Returns the text of a raw value that is a string without escapes.
pub(super) fn plain_text(value: &[u8]) -> Option<&[u8]> {
    let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (!text.contains(&b'\\')).then_some(text)
}

/// Returns the end of the value that begins at an offset.
fn value_end(text: &[u8], start: usize) -> Option<usize> {
    match text.get(start)? {
        b'"' => string_end(text, start),
        b'{' | b'[' => nested_end(text, start),
        b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
            let len = text[start..].iter().position(|byte| matches!(byte, b',' | b'}'))?;
            Some(start + len)
        }
        _ => None,
    }
}

/// Returns the offset after the closing quote of the string that begins at an offset.
fn string_end(text: &[u8], start: usize) -> Option<usize> {
    if text.get(start) != Some(&b'"') {
        return None;
    }
    let mut at = start + 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        match text[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Returns the offset after the bracket that closes the one at an offset.
fn nested_end(text: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => at = string_end(text, at)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' if depth == 1 => return Some(at + 1),
            b'}' | b']' => (at, depth) = (at + 1, depth - 1),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<[Option<&str>; 2]>) {
        let found = top_fields(text.as_bytes(), ["a", "b"]);
        let found = found.map(|found| found.map(|value| value.map(str::from_utf8)));
        let expected = expected.map(|values| values.map(|value| value.map(Ok)));
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn only_fields_at_the_top_are_found_and_the_last_of_a_name_counts() {
        check(
            r#"{"x":{"a":1,"y":["a",{"b":"}"}]},"a":"t\"}\\","z":-1.5,"b":null}"#,
            Some([Some(r#""t\"}\\""#), Some("null")]),
        );
        check(r#"{"a":true,"a":[],"text":"\"b\":1"}"#, Some([Some("[]"), None]));
        check(r#"{"b":2}"#, Some([None, Some("2")]));
    }

    #[test]
    fn what_is_torn_or_written_in_another_way_is_not_read() {
        for text in [
            "",
            "[]",
            "{}",
            "{",
            r#"{"a"#,
            r#"{"a":"#,
            r#"{"a":1"#,
            r#"{"a":"1"#,
            r#"{"a":"1\"#,
            r#"{"a":{"b":1}"#,
            r#"{"a": 1}"#,
            r#"{ "a":1}"#,
            r#"{"a":1} "#,
            r#"{"\u0061":1}"#,
            r#"{"a":1}{"b":2}"#,
            r#"{"x":"torn{"a":1,"b":2}"#,
            r#"{"x":{"y":"torn{"a":1,"b":2}"#,
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_plain_text_has_quotes_and_no_escapes() {
        assert_eq!(plain_text(br#""ab""#), Some(&b"ab"[..]));
        for value in ["ab", "1", r#"""#, r#""a\u0062""#, "null"] {
            assert_eq!(plain_text(value.as_bytes()), None, "{value}");
        }
    }
}
