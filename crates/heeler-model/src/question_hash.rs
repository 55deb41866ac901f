//! Identification of what a person was shown when they answered.
//!
//! The answer carries this hash back, and the run compares it with the request that it holds. The
//! hash is that of the shown, redacted input, so that it tells nothing about a secret. Start at
//! [`question_hash`].

use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

/// Returns the SHA-256 of a tool's name and input as canonical JSON, in hexadecimal digits.
pub fn question_hash(tool: &str, input: &Json) -> String {
    let mut text = String::new();
    write_canonical(&Json::from(vec![Json::from(tool), input.clone()]), &mut text);
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes JSON with sorted keys and without blanks, so that equal values have equal texts.
fn write_canonical(value: &Json, text: &mut String) {
    match value {
        Json::Object(fields) => {
            let mut fields: Vec<(&String, &Json)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (number, (name, value)) in fields.into_iter().enumerate() {
                if number > 0 {
                    text.push(',');
                }
                text.push_str(&Json::from(name.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
            }
            text.push('}');
        }
        Json::Array(items) => {
            text.push('[');
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_requests_have_one_hash_and_all_others_another() {
        let one = json!({"command": "ls", "timeout": 1, "list": [1, {"b": 2, "a": null}]});
        let same: Json = serde_json::from_str(
            r#"{ "list": [1, {"a": null, "b": 2}], "timeout": 1, "command": "ls" }"#,
        )
        .unwrap();
        assert_eq!(question_hash("Bash", &one), question_hash("Bash", &same));
        assert_eq!(question_hash("Bash", &one).len(), 64);
        for other in [json!({"command": "ls "}), json!({}), json!(null), json!(["ls"])] {
            assert_ne!(question_hash("Bash", &one), question_hash("Bash", &other));
        }
        assert_ne!(question_hash("Bash", &one), question_hash("Write", &one));
        assert_ne!(question_hash("a", &json!(["b"])), question_hash("a\",[\"b", &json!(null)));
    }
}
