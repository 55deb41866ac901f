//! Encodings of a secret that programs commonly print.
//!
//! [`exact_encodings`] occur in a text byte by byte; [`foldable_encodings`] may contain line
//! breaks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::SECRET_BYTES_MIN;

/// Fence of a PEM key. Fence lines are not secret.
const KEY_FENCE: &str = "-----";

/// Returns the raw secret, and its encodings in JSON, in JSON within JSON, and in URLs.
pub(super) fn exact_encodings(secret: &str) -> BTreeSet<String> {
    let mut forms = json_encodings(secret);
    // Keys are often printed line by line, and each line must be found alone.
    for line in lines(secret).filter(|line| *line != secret) {
        forms.append(&mut json_encodings(line));
    }
    forms.append(&mut percent_encodings(secret));
    forms
}

/// Returns the base64 and hex encodings of a secret.
pub(super) fn foldable_encodings(secret: &str) -> BTreeSet<String> {
    let mut lower = String::with_capacity(secret.len() * 2);
    for byte in secret.bytes() {
        write!(lower, "{byte:02x}").expect("a string takes all");
    }
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
    // Most secrets look like this, and every start of a runner encodes all of them.
    if text.bytes().all(is_never_escaped) {
        return BTreeSet::from([text.to_owned()]);
    }
    let once: BTreeSet<String> = JSON_STYLES.iter().map(|style| style.escape(text)).collect();
    let mut forms = BTreeSet::from([text.to_owned()]);
    for inner in &once {
        // Rows contain JSON texts of tools, which contain JSON themselves.
        forms.extend(JSON_STYLES.iter().map(|outer| outer.escape(inner)));
    }
    forms.extend(once);
    forms
}

/// Returns true for bytes that no JSON writer escapes.
fn is_never_escaped(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.=:".contains(&byte)
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
        let mut upper = String::with_capacity(secret.len() * 3);
        for byte in secret.bytes() {
            match keeps {
                Some(keeps) if byte.is_ascii_alphanumeric() || keeps.contains(&byte) => {
                    upper.push(char::from(byte));
                }
                _ => write!(upper, "%{byte:02X}").expect("a string takes all"),
            }
        }
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
