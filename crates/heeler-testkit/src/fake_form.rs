//! Forms with files, as the fake services receive them.

use serde_json::{Value as Json, json};

/// Returns the parts of a form by their names; `None` if the body is of another kind.
pub(crate) fn form_parts(content_type: &str, bytes: &[u8]) -> Option<Json> {
    let boundary = content_type.strip_prefix("multipart/form-data; boundary=")?;
    let text = String::from_utf8_lossy(bytes);
    let mut parts = json!({});
    for part in text.split(&format!("--{boundary}")).skip(1) {
        // The last one ends the form.
        let Some((head, content)) = part.split_once("\r\n\r\n") else { continue };
        let name = head.split_once("name=\"")?.1.split_once('"')?.0;
        parts[name] = json!(content.strip_suffix("\r\n")?);
    }
    Some(parts)
}
