//! Encodings of a secret that programs commonly print.
//!
//! [`exact_encodings`] occur in a text byte by byte; [`foldable_encodings`] may contain line
//! breaks.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::SECRET_BYTES_MIN;

/// Fence of a PEM key. Fence lines are not secret.
const KEY_FENCE: &str = "-----";

/// Returns the raw secret, and its encodings in JSON, in JSON within JSON, and in URLs.
pub(super) fn exact_encodings(secret: &str) -> BTreeSet<String> {
    let mut forms = json_encodings(secret);
    for line in lines(secret) {
        // Keys are often printed line by line, and each line must be found alone.
        forms.append(&mut json_encodings(line));
    }
    forms.append(&mut percent_encodings(secret));
    forms
}

/// Returns the base64 and hex encodings of a secret.
pub(super) fn foldable_encodings(secret: &str) -> BTreeSet<String> {
    let lower: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = base64_encodings(secret.as_bytes());
    forms.insert(lower.to_ascii_uppercase());
    forms.insert(lower);
    forms
}

/// Splits a secret at real line breaks and at escaped ones, as in a key stored in a variable.
fn lines(secret: &str) -> impl Iterator<Item = &str> {
    secret
        .split(['\n', '\r'])
        .flat_map(|line| line.split("\\n"))
        .map(|line| line.trim_end_matches("\\r").trim())
        // Short lines and fences are ordinary text; redacting them would destroy other output.
        .filter(|line| line.len() >= SECRET_BYTES_MIN && !line.starts_with(KEY_FENCE))
}

/// Escaping style of a JSON writer: characters that it escapes beyond the required ones.
struct JsonStyle {
    escapes: fn(char) -> bool,
    slash: bool,
    upper: bool,
}

/// Escaping styles of the JSON writers of common languages.
const JSON_STYLES: [JsonStyle; 7] = [
    JsonStyle { escapes: |_| false, slash: false, upper: false },
    JsonStyle { escapes: |_| false, slash: true, upper: false },
    JsonStyle { escapes: |c| !c.is_ascii(), slash: false, upper: false },
    JsonStyle { escapes: |c| !c.is_ascii(), slash: false, upper: true },
    JsonStyle { escapes: |c| !c.is_ascii(), slash: true, upper: false },
    JsonStyle { escapes: |c| "<>&\u{2028}\u{2029}".contains(c), slash: false, upper: false },
    JsonStyle { escapes: |c| !c.is_ascii() || "<>&'\"+`".contains(c), slash: false, upper: true },
];

/// Returns the raw text, and its encodings in JSON and in JSON within JSON.
fn json_encodings(text: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::from([text.to_owned()]);
    for style in &JSON_STYLES {
        let once = style.escape(text);
        // Rows contain JSON texts of tools, which contain JSON themselves.
        for outer in &JSON_STYLES {
            forms.insert(outer.escape(&once));
        }
        forms.insert(once);
    }
    forms
}

impl JsonStyle {
    fn escape(&self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                // First, because a style may escape a quote or a slash in its own way.
                c if (self.escapes)(c) => self.unicode(c, &mut escaped),
                '"' => escaped.push_str("\\\""),
                '\\' => escaped.push_str("\\\\"),
                '/' if self.slash => escaped.push_str("\\/"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\u{8}' => escaped.push_str("\\b"),
                '\u{c}' => escaped.push_str("\\f"),
                c if c < ' ' => self.unicode(c, &mut escaped),
                c => escaped.push(c),
            }
        }
        escaped
    }

    fn unicode(&self, c: char, escaped: &mut String) {
        // Characters beyond the basic plane are two escapes in JSON.
        for unit in c.encode_utf16(&mut [0; 2]) {
            let code = if self.upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
            escaped.push_str(&code);
        }
    }
}

/// Characters that URL encoders leave unescaped: strict, browser component, whole browser URL,
/// path, form; `None` escapes everything.
const PERCENT_KEEPS: [Option<&[u8]>; 6] = [
    Some(b"-_.~"),
    Some(b"-_.~!*'()"),
    Some(b"-_.~!*'();,/?:@&=+$#"),
    Some(b"-_.~/"),
    Some(b"-_.*"),
    None,
];

fn percent_encodings(secret: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    for keeps in PERCENT_KEEPS {
        let encode = |byte: u8| match keeps {
            Some(keeps) if byte.is_ascii_alphanumeric() || keeps.contains(&byte) => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        };
        let upper: String = secret.bytes().map(encode).collect();
        for form in [lower_hex(&upper), upper] {
            // Forms encode a space as a plus sign.
            forms.insert(form.replace("%20", "+"));
            forms.insert(form);
        }
    }
    forms
}

/// Converts the digits after each `%` to lower case.
fn lower_hex(percent: &str) -> String {
    let mut digits = 0;
    let lower = |c: char| {
        digits = if c == '%' { 2 } else { i32::max(digits - 1, -1) };
        if digits >= 0 { c.to_ascii_lowercase() } else { c }
    };
    percent.chars().map(lower).collect()
}

/// Returns the part of the base64 text that is independent of the bytes around the secret, for each
/// of its three alignments; also with the end of the text.
fn base64_encodings(secret: &[u8]) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    for before in 0..3 {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(secret);
        let padded = STANDARD.encode(&bytes);
        // The first characters depend on the bytes before the secret, so they are left out.
        let start = (before * 8).div_ceil(6);
        // The last character may share bits with the byte after the secret.
        let core = &padded[start..bytes.len() * 8 / 6];
        let ended = padded[start..].trim_end_matches('=');
        // With and without padding, as programs print both.
        for form in [core, ended, &padded[start..]] {
            forms.insert(form.to_owned());
            // The alphabet for URLs differs in two characters.
            forms.insert(form.replace('+', "-").replace('/', "_"));
        }
    }
    forms
}
