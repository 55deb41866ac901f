//! Values of a template as text.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Output of a phase that a template also accesses by `.output`.
#[derive(Debug)]
pub(super) struct PhaseOutputValue(pub(super) Value);

impl Object for PhaseOutputValue {
    fn get_value(self: &Arc<PhaseOutputValue>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("output")).then(|| self.0.clone())
    }
    fn render(self: &Arc<PhaseOutputValue>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Value that is inserted into a command unquoted. Only the filter `raw` creates it.
#[derive(Debug)]
pub(super) struct RawShellValue(pub(super) Value);

impl Object for RawShellValue {
    fn render(self: &Arc<RawShellValue>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&value_text(&self.0))
    }
}

/// Converts a value to text: empty for a missing value, JSON for lists and maps.
pub(super) fn value_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => String::new(),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable
            // Both are objects of the engine, but stand for the text in them.
            if value.downcast_object_ref::<PhaseOutputValue>().is_none()
                && value.downcast_object_ref::<RawShellValue>().is_none() =>
        {
            json(value).unwrap_or_else(|_| value.to_string())
        }
        _ => value.to_string(),
    }
}

/// Converts a value to JSON text.
pub(super) fn json(value: &Value) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}
